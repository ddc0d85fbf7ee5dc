//! An image in memory: its layers, its config, and the manifest that names them.

use std::path::Path;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::faulty::Faulty;
use crate::hook::put_blob;
use crate::sandbox::{Layout, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use crate::servers::Server;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;

/// An image for one platform.
#[derive(Clone, Debug)]
pub struct Image {
    /// Media types and blobs.
    pub layers: Vec<(&'static str, Bytes)>,
    pub config: Bytes,
    pub manifest: Bytes,
}

/// A config for linux/amd64 that states the digests of these tars.
pub fn config(tars: &[Vec<u8>]) -> Value {
    let diff_ids: Vec<Digest> = tars.iter().map(|tar| Digest::sha256(tar)).collect();
    json!({
        "os": "linux", "architecture": "amd64",
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

/// An image manifest. A test may add more fields.
pub fn image_manifest(config: &impl Serialize, layers: &impl Serialize) -> Value {
    json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers})
}

/// An image index, or a list of referrers.
pub fn image_index(manifests: &impl Serialize) -> Value {
    json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})
}

impl Image {
    /// An image of layers, given by media type and blob.
    pub fn new<B: Into<Bytes>>(
        config: &Value,
        layers: impl IntoIterator<Item = (&'static str, B)>,
    ) -> Image {
        let config = Bytes::from(config.to_string());
        let layers: Vec<_> =
            layers.into_iter().map(|(media_type, blob)| (media_type, blob.into())).collect();
        let described: Vec<Descriptor> =
            layers.iter().map(|(media_type, blob)| Descriptor::of(*media_type, blob)).collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": Descriptor::of(OCI_CONFIG, &config), "layers": described,
        });
        Image { layers, config, manifest: manifest.to_string().into() }
    }

    /// The same with annotations of the manifest.
    #[must_use]
    pub fn annotated(self, annotations: &Value) -> Image {
        let mut manifest: Value = serde_json::from_slice(&self.manifest).unwrap();
        manifest["annotations"] = annotations.clone();
        Image { manifest: manifest.to_string().into(), ..self }
    }

    /// The descriptors of the layers.
    pub fn descriptors(&self) -> Vec<Descriptor> {
        self.layers.iter().map(|(media_type, blob)| Descriptor::of(*media_type, blob)).collect()
    }

    /// Config and layers.
    pub fn blobs(&self) -> impl Iterator<Item = &Bytes> {
        [&self.config].into_iter().chain(self.layers.iter().map(|(_, blob)| blob))
    }

    /// Adds it to a registry. Returns the descriptor of the manifest.
    pub fn add_to(&self, registry: &Faulty, tag: &str) -> Descriptor {
        for blob in self.blobs() {
            registry.add_blob(blob.clone());
        }
        registry.add_manifest(tag, OCI_MANIFEST, self.manifest.clone());
        Descriptor::of(OCI_MANIFEST, &self.manifest)
    }

    /// Pushes it to a real registry without a client, by its digest and under these tags.
    pub fn push(&self, server: &Server, repository: &str, tags: &[&str]) -> Digest {
        for blob in self.blobs() {
            put_blob(&server.host, repository, blob);
        }
        let digest = Digest::sha256(&self.manifest);
        for reference in tags.iter().copied().chain([digest.to_string().as_str()]) {
            server.put_manifest(repository, reference, OCI_MANIFEST, &self.manifest);
        }
        digest
    }

    /// Makes a layout with this image under the tag `v1`.
    pub fn write(&self, dir: &Path) {
        let mut layout = Layout::new(dir);
        for blob in self.blobs() {
            layout.blob("", blob);
        }
        let manifest = layout.blob(OCI_MANIFEST, &self.manifest);
        layout.tag(manifest, "v1");
    }
}
