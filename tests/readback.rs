//! Every file of real layers, read back through their ztocs, is what a straight read gives: layers of a Debian image by the
//! compressors that image builders use, through our ztocs, through those that soci's own library writes, and without an index.

#[path = "soci/mod.rs"]
mod soci;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ociseek::digest::{Algorithm, Digest, Hasher};
use ociseek::image::Descriptor;
use ociseek::image::manifest::{OCI_CONFIG, OCI_MANIFEST};
use ociseek::image::soci::{CONFIG, INDEX_V1, SociIndex, ZTOC, ZtocRef};
use ociseek::layer::Outcome;
use ociseek::offset::Uncompressed;
use ociseek::ops::open::{OpenOptions, RootFs, open};
use ociseek::progress::{Event, Progress, Recorder};
use ociseek::rootfs::cache::SpanCache;
use ociseek::rootfs::layers::{Caches, How};
use ociseek::rootfs::tree::{NodeId, NodeKind};
use ociseek::store::Source;
use ociseek::store::blob::Target;
use ociseek::store::cache::ZtocCache;
use ociseek::store::layout::Layout;
use soci::{Oracle, oracle_binary, skip};

const SPAN: u64 = 1 << 20;

/// Compressors whose blocks, members and spans differ most, and an uncompressed layer.
const INDEXED: [&str; 6] = ["go.tar.gz", "bgzip.tar.gz", "estargz.tar.gz", "igzip0.tar.gz", "pgzip.tar.gz", "tar"];
/// Layers that no index covers.
const WITHOUT: [&str; 3] = ["zstd3.tar.zst", "zstdchunked.tar.zst", "libdeflate12.tar.gz"];

/// A directory of the corpus; None is said on one line.
fn corpus() -> Option<PathBuf> {
    let cache = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/ociseek-corpus"));
    let corpus = std::env::var_os("OCISEEK_CORPUS").map(PathBuf::from).or_else(cache);
    let layers = corpus.map(|dir| dir.join("layers/debian-rootfs")).filter(|dir| dir.is_dir());
    if layers.is_none() {
        skip("no corpus: run tests/corpus/make");
    }
    layers
}

/// An image of one layer in a layout, and what indexes it is given.
struct Image {
    dir: tempfile::TempDir,
    layout: Arc<Layout>,
    layer: Descriptor,
    manifest: Descriptor,
    progress: Arc<Recorder>,
}

impl Image {
    fn of(layer: &Path) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(&dir.path().join("image")).unwrap();
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let size = copy(&mut File::open(layer).unwrap(), |bytes| hasher.update(bytes));
        let digest = hasher.finish();
        let kind = match layer.extension().unwrap().to_str().unwrap() {
            "gz" => "+gzip",
            "zst" => "+zstd",
            _ => "",
        };
        let descriptor = Descriptor::new(format!("application/vnd.oci.image.layer.v1.tar{kind}"), digest, size);
        fs::create_dir_all(dir.path().join("image/blobs/sha256")).unwrap();
        let blob = dir.path().join("image/blobs/sha256").join(digest.hex());
        fs::hard_link(layer, &blob).or_else(|_| fs::copy(layer, &blob).map(drop)).unwrap();
        let config = serde_json::json!({"os": "linux", "architecture": "amd64",
            "rootfs": {"type": "layers", "diff_ids": [Digest::sha256(b"not looked at")]}});
        let config = put(&layout, OCI_CONFIG, config.to_string().as_bytes());
        let manifest = serde_json::json!(
            {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [descriptor]});
        let manifest = put(&layout, OCI_MANIFEST, manifest.to_string().as_bytes());
        Image { dir, layout: Arc::new(layout), layer: descriptor, manifest, progress: Arc::default() }
    }

    /// Gives the image an index of one ztoc, in the place of the one that it has.
    fn index(&self, ztoc: &[u8], replaces: &[Digest]) -> Digest {
        let ztoc = put(&self.layout, ZTOC, ztoc);
        put(&self.layout, INDEX_V1, CONFIG);
        let entry = ZtocRef {
            ztoc: ztoc.digest,
            size: ztoc.size,
            layer: self.layer.digest,
            layer_media_type: self.layer.media_type.clone(),
            span_size: SPAN,
        };
        let index =
            SociIndex { layers: vec![entry], subject: self.manifest.clone(), build_tool_identifier: soci::TOOL.into() };
        let index = index.encode();
        self.layout.attach(&index.descriptor, &index.bytes, &self.manifest, replaces).unwrap();
        index.descriptor.digest
    }

    async fn open(&self) -> RootFs {
        let progress: Arc<dyn Progress> = self.progress.clone();
        let cache = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        let caches = Caches {
            ztocs: ZtocCache::open(Some(&cache), Arc::clone(&progress)),
            spans: SpanCache::open(Some(&cache), 1 << 30, Arc::clone(&progress)),
        };
        let source = Source::Layout(Arc::clone(&self.layout));
        let target = Target::Digest(self.manifest.digest);
        let opened = open(&source, &target, &OpenOptions::default(), &caches, &progress).await.unwrap();
        let told: Vec<Event> =
            self.progress.events().into_iter().filter(|event| matches!(event, Event::Warning(_))).collect();
        assert_eq!(told, []);
        opened
    }
}

fn put(layout: &Layout, media_type: &str, content: &[u8]) -> Descriptor {
    let descriptor = Descriptor::of(media_type, content);
    layout.write_blob(&descriptor, content).unwrap();
    descriptor
}

fn copy(from: &mut dyn Read, mut to: impl FnMut(&[u8])) -> u64 {
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

type Files = BTreeMap<Vec<u8>, (u64, Digest)>;

/// The regular files of a layer by decoders and a tar reader that are not ours.
fn straight(layer: &Path) -> Files {
    let file = File::open(layer).unwrap();
    let plain: Box<dyn Read> = match layer.extension().unwrap().to_str().unwrap() {
        "gz" => Box::new(flate2::read::MultiGzDecoder::new(file)),
        "zst" => Box::new(zstd::Decoder::new(file).unwrap()),
        _ => Box::new(file),
    };
    let mut files = Files::new();
    for entry in tar::Archive::new(plain).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path_bytes().into_owned();
        let path = path.strip_prefix(b"./").unwrap_or(&path).to_vec();
        if entry.header().entry_type().is_file() {
            let mut hasher = Hasher::new(Algorithm::Sha256);
            let size = copy(&mut entry, |bytes| hasher.update(bytes));
            files.insert(path, (size, hasher.finish()));
        }
    }
    files
}

/// The same files, and no others, through the tree and the spans.
async fn assert_reads(image: &Image, expected: &Files, how: How) {
    let opened = image.open().await;
    assert_eq!(opened.layers[0].how, how);
    let mut seen = 0;
    let mut directories = vec![(Vec::new(), NodeId(0))];
    while let Some((path, directory)) = directories.pop() {
        for (name, id) in opened.tree.children(directory) {
            let path = if path.is_empty() { name.to_vec() } else { [&path[..], b"/", name].concat() };
            match &opened.tree.node(id).kind {
                NodeKind::Directory(_) => directories.push((path, id)),
                NodeKind::File(extent) => {
                    // A hard link is a name of a file that is listed under another one.
                    let Some((size, digest)) = expected.get(&path) else { continue };
                    assert_eq!(extent.size, *size, "{}", path.escape_ascii());
                    let mut hasher = Hasher::new(Algorithm::Sha256);
                    let mut at = 0;
                    while at < extent.size {
                        let part = (extent.size - at).min(1 << 20) as usize;
                        let from = Uncompressed(extent.offset.0 + at);
                        hasher.update(&opened.content.read(extent.layer, from, part).await.unwrap());
                        at += part as u64;
                    }
                    assert_eq!(hasher.finish(), *digest, "{}", path.escape_ascii());
                    seen += 1;
                }
                _ => {}
            }
        }
    }
    assert_eq!(seen, expected.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn indexed_layers() {
    let (Some(corpus), Some(oracle)) = (corpus(), oracle_binary()) else { return };
    let mut oracle = Oracle::new(&oracle, "build");
    for name in INDEXED {
        let layer = corpus.join(format!("debian-rootfs.{name}"));
        let expected = straight(&layer);
        assert!(expected.len() > 4000, "{name}: {} files", expected.len());
        let image = Image::of(&layer);
        let Outcome::Ztoc(ours) = soci::index(&layer, SPAN, "readback").unwrap().outcome else { panic!("{name}") };
        let first = image.index(&ours.bytes, &[]);
        assert_reads(&image, &expected, How::Index).await;

        let theirs = image.dir.path().join("soci.ztoc");
        assert!(oracle.build(SPAN, soci::TOOL, &layer, &theirs).is_ok(), "{name}");
        image.index(&fs::read(&theirs).unwrap(), &[first]);
        assert_reads(&image, &expected, How::Index).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_without_an_index() {
    let Some(corpus) = corpus() else { return };
    for name in WITHOUT {
        let layer = corpus.join(format!("debian-rootfs.{name}"));
        let how = if name.ends_with(".zst") { How::Whole } else { How::Local };
        assert_reads(&Image::of(&layer), &straight(&layer), how).await;
    }
}
