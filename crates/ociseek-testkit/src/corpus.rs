//! Images with one real layer each, from the corpus that tests/corpus/make creates.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::image::image_manifest;
use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::image::Descriptor;
use ociseek_format::image::manifest::{OCI_CONFIG, OCI_MANIFEST};
use ociseek_format::image::soci::{CONFIG, INDEX_V1, SociIndex, ZTOC, ZtocRef};
use ociseek_format::offset::SpanSize;
use ociseek_store::layout::Layout;

use super::servers::skip;

/// The layers of a Debian image by many compressors, `debian-rootfs.*`. If they are missing, prints
/// a line and returns None.
pub fn debian_layers() -> Option<PathBuf> {
    let cache = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/ociseek-corpus"));
    let corpus = std::env::var_os("OCISEEK_CORPUS").map(PathBuf::from).or_else(cache);
    let layers = corpus.map(|dir| dir.join("layers/debian-rootfs")).filter(|dir| dir.is_dir());
    if layers.is_none() {
        skip("no corpus: run tests/corpus/make");
    }
    layers
}

/// An image with one layer in a layout, under the tag `v1`.
pub struct Image {
    pub dir: tempfile::TempDir,
    pub layout: Arc<Layout>,
    pub layer: Descriptor,
    pub manifest: Descriptor,
}

impl Image {
    pub fn of(layer: &Path) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_new(&dir.path().join("image")).unwrap();
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let size = copy(&mut File::open(layer).unwrap(), |bytes| hasher.update(bytes));
        let digest = hasher.finish();
        let kind = match magic(layer) {
            GZIP => "+gzip",
            ZSTD => "+zstd",
            _ => "",
        };
        let descriptor =
            Descriptor::new(format!("application/vnd.oci.image.layer.v1.tar{kind}"), digest, size);
        fs::create_dir_all(dir.path().join("image/blobs/sha256")).unwrap();
        let blob = dir.path().join("image/blobs/sha256").join(digest.hex());
        fs::hard_link(layer, &blob).or_else(|_| fs::copy(layer, &blob).map(drop)).unwrap();
        let config = serde_json::json!({"os": "linux", "architecture": "amd64",
            "config": {"Cmd": ["/bin/sh", "-c", "echo READY"]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id(layer)]}});
        let config = put(&layout, OCI_CONFIG, config.to_string().as_bytes());
        let manifest = image_manifest(&config, &[&descriptor]);
        let manifest = put(&layout, OCI_MANIFEST, manifest.to_string().as_bytes());
        let mut listed = serde_json::to_value(&manifest).unwrap();
        listed["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": "v1"});
        let index = serde_json::json!({"schemaVersion": 2, "manifests": [listed]});
        fs::write(dir.path().join("image/index.json"), index.to_string()).unwrap();
        Image { dir, layout: Arc::new(layout), layer: descriptor, manifest }
    }

    /// The name for commands.
    pub fn name(&self) -> String {
        format!("oci:{}:v1", self.dir.path().join("image").display())
    }

    /// Copies it to a registry with what refers to it; `login` is `USER:PASSWORD`.
    pub fn copied_to(&self, name: &str, login: Option<&str>) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(super::copied::copy(self.dir.path(), &self.name(), name, true, login));
    }

    /// Replaces the image's index by one with a single ztoc.
    pub fn index(&self, ztoc: &[u8], span_size: u64, tool: &str, replaces: &[Digest]) -> Digest {
        let ztoc = put(&self.layout, ZTOC, ztoc);
        put(&self.layout, INDEX_V1, CONFIG);
        let entry = ZtocRef {
            ztoc: ztoc.digest,
            size: ztoc.size,
            layer: self.layer.digest,
            layer_media_type: self.layer.media_type.clone(),
            span_size: SpanSize::new(span_size).unwrap(),
        };
        let subject = Some(self.manifest.clone());
        let index = SociIndex {
            layers: vec![entry],
            subject,
            build_tool_identifier: tool.into(),
            prefetch: Vec::new(),
        }
        .encode();
        self.layout.attach(&index.descriptor, &index.bytes, replaces).unwrap();
        index.descriptor.digest
    }
}

fn put(layout: &Layout, media_type: &str, content: &[u8]) -> Descriptor {
    let descriptor = Descriptor::of(media_type, content);
    layout.write_blob(&descriptor, content).unwrap();
    descriptor
}

/// The digest of a layer's tar.
fn diff_id(layer: &Path) -> Digest {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    copy(&mut plain(layer), |bytes| hasher.update(bytes));
    hasher.finish()
}

/// A layer's tar, decoded by decoders other than ours.
pub fn plain(layer: &Path) -> Box<dyn Read> {
    let file = File::open(layer).unwrap();
    match magic(layer) {
        GZIP => Box::new(flate2::read::MultiGzDecoder::new(file)),
        ZSTD => Box::new(zstd::Decoder::new(file).unwrap()),
        _ => Box::new(file),
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 2] = [0x28, 0xb5];

/// The first bytes of a layer, because the corpus' names tell the compressor instead of the format.
fn magic(layer: &Path) -> [u8; 2] {
    let mut magic = [0; 2];
    File::open(layer).unwrap().read_exact(&mut magic).unwrap();
    magic
}

/// Passes on all of `from` in pieces. Returns the number of bytes.
pub fn copy(from: &mut dyn Read, mut to: impl FnMut(&[u8])) -> u64 {
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        let read = from.read(&mut buffer).unwrap();
        if read == 0 {
            return size;
        }
        to(&buffer[..read]);
        size += read as u64;
    }
}
