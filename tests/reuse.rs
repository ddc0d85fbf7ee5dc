//! A second build costs what changed: ztocs that indexes list already are reused, and their layers are not read again.

#[path = "support/faulty.rs"]
mod faulty;
#[path = "cli/support.rs"]
mod support;

use std::sync::Arc;

use bytes::Bytes;
use faulty::{Faulty, Nature};
use ociseek::digest::Digest;
use ociseek::image::Descriptor;
use ociseek::image::soci::{SociIndex, ZtocRef};
use ociseek::layer::LayerOptions;
use ociseek::ops::TOOL_IDENTIFIER;
use ociseek::ops::index::{Existing, Gate, IndexOptions, IndexedImage, index};
use ociseek::progress::Recorder;
use ociseek::store::blob::Target;
use ociseek::store::registry::{Client, ClientConfig, CredentialSource, Repository};
use ociseek::store::{Destination, Source};
use serde_json::json;
use support::{GZIP, OCI_CONFIG, OCI_MANIFEST, gzip, tar};

const SPAN: u64 = 64 << 10;

/// A registry in memory, and what was said while it was used.
struct Setting {
    registry: Faulty,
    said: Arc<Recorder>,
}

impl Setting {
    async fn new() -> Setting {
        let nature = Nature { referrers: true, ..Nature::default() };
        Setting { registry: Faulty::honest(nature).await, said: Arc::default() }
    }

    fn repository(&self) -> Repository {
        let config = ClientConfig { credentials: CredentialSource::Anonymous, ..ClientConfig::default() };
        Client::new(config).unwrap().repository(&self.registry.host(), "a/b").unwrap()
    }

    /// An image of these layers; its manifest's descriptor.
    fn push(&self, tag: &str, layers: &[&Bytes]) -> Descriptor {
        let layers: Vec<Descriptor> = layers.iter().map(|layer| self.blob(GZIP, layer)).collect();
        let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}});
        let config = self.blob(OCI_CONFIG, &config.to_string().into());
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers});
        let manifest = manifest.to_string();
        self.registry.add_manifest(tag, OCI_MANIFEST, manifest.clone());
        Descriptor::of(OCI_MANIFEST, manifest.as_bytes())
    }

    fn blob(&self, media_type: &str, content: &Bytes) -> Descriptor {
        self.registry.add_blob(content.clone());
        Descriptor::of(media_type, content)
    }

    async fn index(&self, tag: &str, options: &IndexOptions) -> IndexedImage {
        let repository = self.repository();
        let (source, destination) = (Source::Registry(repository.clone()), Destination::Registry(repository));
        let said: Arc<dyn ociseek::progress::Progress> = self.said.clone();
        index(&source, &Target::Tag(tag.into()), Some(&destination), None, options, &said).await.unwrap()
    }

    /// How often a blob was asked for, whole or in part.
    fn reads(&self, blob: Digest) -> usize {
        self.registry.saw("GET", &format!("blobs/{blob}")).len()
    }

    /// Attaches an index by `tool` that gives `layer` the ztoc `ztoc`.
    fn attach(&self, subject: &Descriptor, layer: &Bytes, ztoc: &Bytes, tool: &str) {
        let index = SociIndex {
            layers: vec![ZtocRef {
                ztoc: self.registry.add_blob(ztoc.clone()),
                size: ztoc.len() as u64,
                layer: Digest::sha256(layer),
                layer_media_type: GZIP.into(),
                span_size: SPAN,
            }],
            subject: Some(subject.clone()),
            build_tool_identifier: tool.into(),
        };
        self.registry.add_blob(&b"{}"[..]);
        self.registry.add_manifest("attached", OCI_MANIFEST, index.encode().bytes);
    }
}

fn options() -> IndexOptions {
    IndexOptions {
        platforms: Vec::new(),
        layer: LayerOptions { span_size: SPAN, build_tool_identifier: TOOL_IDENTIFIER.into() },
        min_layer_size: 0,
        existing: Existing::Skip,
        jobs: 2,
        dry_run: false,
        deadline: None,
        gate: Gate::default(),
    }
}

/// A layer of about `size` bytes, another one for each `seed`.
fn layer(seed: u64, size: usize) -> Bytes {
    gzip(&tar(seed, 8, size / 8)).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ztoc_out_of_proportion_to_its_layer_is_not_even_fetched() {
    let setting = Setting::new().await;
    let (one, two) = (layer(1, 300_000), layer(2, 300_000));
    let subject = setting.push("v1", &[&one, &two]);
    // 300 KB of layer may have a ztoc of some 2.5 MB with spans of 64 KiB.
    let huge = Bytes::from(vec![0; 4 << 20]);
    setting.attach(&subject, &one, &huge, TOOL_IDENTIFIER);
    setting.index("v1", &options()).await;
    assert_eq!(setting.reads(Digest::sha256(&huge)), 0);
    assert_eq!((setting.reads(Digest::sha256(&one)), setting.reads(Digest::sha256(&two))), (1, 1));
}
