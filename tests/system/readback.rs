//! Every file of real layers, read back through their ztocs, equals the result of a plain
//! extraction: layers of a Debian image by the compressors that image builders use, with our ztocs,
//! with those of soci's own library, and without an index.

use ociseek_testkit::soci;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::layer::Outcome;
use ociseek_format::offset::Uncompressed;
use ociseek_format::progress::{Progress, ProgressEvent, Recorder};
use ociseek_format::tree::{NodeId, NodeKind};
use ociseek_ops::open::{OpenOptions, RootFs, open};
use ociseek_rootfs::cache::SpanCache;
use ociseek_rootfs::layers::{Caches, LayerAccess};
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_testkit::corpus::{Image, copy, debian_layers, plain};
use ociseek_testkit::soci::{Oracle, TOOL, oracle_binary};

const SPAN: u64 = 1 << 20;

/// The compressors with the most different blocks, members and spans, and an uncompressed layer.
const OF_BUILDERS: [&str; 3] = ["go.tar.gz", "pgzip.tar.gz", "estargz.tar.gz"];
const OTHERS: [&str; 3] = ["bgzip.tar.gz", "igzip0.tar.gz", "tar"];
/// No index covers these layers.
const WITHOUT: [&str; 3] = ["zstd.tar.gz", "libdeflate12.tar.gz", "pigz.tar.gz"];

async fn opened(image: &Image) -> RootFs {
    let recorder = Arc::new(Recorder::default());
    let progress: Arc<dyn Progress> = recorder.clone();
    let cache = tempfile::tempdir_in(image.dir.path()).unwrap().keep();
    let caches = Caches {
        ztocs: ZtocCache::open(Some(&cache), Arc::clone(&progress)),
        spans: SpanCache::open(Some(&cache), 1 << 30, Arc::clone(&progress)),
    };
    let source = Source::Layout(Arc::clone(&image.layout));
    let target = Target::Digest(image.manifest.digest);
    let opened = open(&source, &target, &OpenOptions::default(), &caches, &progress).await.unwrap();
    let mut told = recorder.events();
    told.retain(|event| matches!(event, ProgressEvent::Warning(_)));
    assert_eq!(told, []);
    opened
}

type Files = BTreeMap<Vec<u8>, (u64, Digest)>;

/// The regular files of a layer, read by independent decoders and tar readers.
fn straight(layer: &Path) -> Files {
    let mut files = Files::new();
    for entry in tar::Archive::new(plain(layer)).entries().unwrap() {
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

/// Checks that exactly these files can be read through the tree and the spans.
async fn assert_reads(image: &Image, expected: &Files, how: LayerAccess) {
    let opened = opened(image).await;
    assert_eq!(opened.layers[0].how, how);
    let mut seen = 0;
    let mut directories = vec![(Vec::new(), NodeId(0))];
    while let Some((path, directory)) = directories.pop() {
        for (name, id) in opened.tree.children(directory) {
            let path =
                if path.is_empty() { name.to_vec() } else { [&path[..], b"/", name].concat() };
            match &opened.tree.node(id).kind {
                NodeKind::Directory(_) => directories.push((path, id)),
                NodeKind::File(extent) => {
                    // A hard link is another name of a file that was listed before.
                    let Some((size, digest)) = expected.get(&path) else { continue };
                    assert_eq!(extent.size, *size, "{}", path.escape_ascii());
                    let mut hasher = Hasher::new(Algorithm::Sha256);
                    let mut at = 0;
                    while at < extent.size {
                        let part = (extent.size - at).min(1 << 20) as usize;
                        let from = Uncompressed(extent.offset.0 + at);
                        hasher
                            .update(&opened.content.read(extent.layer, from, part).await.unwrap());
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

/// Through the ztocs of both.
async fn assert_indexed(names: [&str; 3]) {
    let (Some(layers), Some(oracle)) = (debian_layers(), oracle_binary()) else { return };
    let mut oracle = Oracle::new(&oracle, "build");
    for name in names {
        let layer = layers.join(format!("debian-rootfs.{name}"));
        let expected = straight(&layer);
        assert!(expected.len() > 4000, "{name}: {} files", expected.len());
        let image = Image::of(&layer);
        let Outcome::Ztoc(ours) = soci::straight(&layer, SPAN, "readback").unwrap().outcome else {
            panic!("{name}")
        };
        let first = image.index(&ours.bytes, SPAN, "readback", &[]);
        assert_reads(&image, &expected, LayerAccess::Index).await;

        let theirs = image.dir.path().join("soci.ztoc");
        assert!(oracle.build(SPAN, TOOL, &layer, &theirs).is_ok(), "{name}");
        image.index(&fs::read(&theirs).unwrap(), SPAN, TOOL, &[first]);
        assert_reads(&image, &expected, LayerAccess::Index).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn indexed_layers_of_image_builders() {
    assert_indexed(OF_BUILDERS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn indexed_layers_of_other_compressors() {
    assert_indexed(OTHERS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_without_an_index() {
    let Some(layers) = debian_layers() else { return };
    for name in WITHOUT {
        let layer = layers.join(format!("debian-rootfs.{name}"));
        let how = if name.starts_with("zstd") { LayerAccess::Whole } else { LayerAccess::Local };
        assert_reads(&Image::of(&layer), &straight(&layer), how).await;
    }
}
