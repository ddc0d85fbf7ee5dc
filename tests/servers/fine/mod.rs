//! Images that are read by their fine indexes: every byte is correct, few bytes are requested, and
//! unusable documents are skipped.

mod ahead;
mod damage;
mod far;
mod foresight;
mod lies;
mod starts;
mod zstd_lies;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::fine::FineLayer;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineIndex;
use ociseek_format::image::soci::{SociIndex, ZtocRef};
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::progress::{Progress, Recorder};
use ociseek_ops::open::{DocumentFetch, OpenOptions, RootFs, open};
use ociseek_rootfs::cache::SpanCache;
use ociseek_rootfs::content::ContentOptions;
use ociseek_rootfs::layers::{Caches, LayerAccess};
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits};
use serde_json::json;

use crate::content::options;
use ociseek_testkit::faulty::{
    Faulty, ReceivedRequest, RegistrySettings, cut, no_response, problem, redirect, stalls, status,
};
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, PLAIN, gzip, tar};
use ociseek_testkit::{fine, image, layers};

const SPAN: u64 = 64 << 10;

/// An image in a faulty registry.
struct Image {
    /// The tars of its layers, from the bottom up, and their blobs.
    tars: Vec<Vec<u8>>,
    blobs: Vec<Descriptor>,
    fine: FineIndex,
}

impl Image {
    /// Pushes an image of two layers, with a plain upper one if `plain`, and a fine index that
    /// records `start` for the lower one.
    fn push(registry: &Faulty, plain: bool, start: &[Range<SpanId>]) -> Image {
        let tars = vec![tar(1, 6, 300_000), tar(2, 4, 200_000)];
        Image::push_layers(registry, tars, plain, &[start.to_vec(), Vec::new()])
    }

    /// Pushes an image of these layers, and a fine index with a recorded start for each.
    fn push_layers(
        registry: &Faulty,
        tars: Vec<Vec<u8>>,
        plain: bool,
        starts: &[Vec<Range<SpanId>>],
    ) -> Image {
        let mut contents = Vec::new();
        let mut layers = Vec::new();
        for (number, tar) in tars.iter().enumerate() {
            let is_plain = plain && number == 1;
            let content = if is_plain { (PLAIN, tar.clone()) } else { (GZIP, gzip(tar)) };
            layers.push((built(&content.1), starts[number].clone()));
            contents.push(content);
        }
        let image = image::Image::new(&image::config(&tars), contents);
        image.add_to(registry, "v1");
        let fine = fine::attach(registry, &image.manifest, &layers);
        Image { tars, blobs: image.descriptors(), fine }
    }

    /// The number of requests for a layer's blob.
    fn saw(&self, registry: &Faulty, layer: usize) -> usize {
        registry.saw("GET", &self.blobs[layer].digest.to_string()).len()
    }

    /// The parts of a layer's document that were requested.
    fn parts(&self, registry: &Faulty, layer: usize) -> Vec<String> {
        let asked = registry.saw("GET", &self.fine.layers[layer].document.to_string());
        asked.iter().map(|seen| seen.header("range").unwrap_or("all").to_owned()).collect()
    }
}

fn built(blob: &[u8]) -> FineLayer {
    fine::layer(blob, &ztoc(blob))
}

fn ztoc(blob: &[u8]) -> Vec<u8> {
    layers::built(blob, SPAN, "test").bytes
}

/// Opens the image, and collects the warnings.
struct Reader {
    caches: Caches,
    recorder: Arc<Recorder>,
    source: Source,
}

impl Reader {
    fn new(registry: &Faulty, cache: Option<&std::path::Path>) -> Reader {
        let recorder = Arc::new(Recorder::default());
        let progress = Arc::clone(&recorder) as Arc<dyn Progress>;
        let ztocs = ZtocCache::open(cache, Arc::clone(&progress));
        let spans = SpanCache::open(cache, 1 << 30, Arc::clone(&progress));
        let limits = Limits { first_wait: Duration::from_millis(2), tries: 3, ..Limits::default() };
        let config = ClientConfig {
            credentials: CredentialSource::Anonymous,
            limits,
            ..ClientConfig::default()
        };
        let repository = Client::new(config).unwrap().repository(&registry.host(), "a/b").unwrap();
        Reader { caches: Caches { ztocs, spans }, recorder, source: Source::Registry(repository) }
    }

    async fn open(&self, start: bool, content: ContentOptions) -> RootFs {
        let options =
            OpenOptions { documents: DocumentFetch { start }, content, ..OpenOptions::default() };
        let progress = Arc::clone(&self.recorder) as Arc<dyn Progress>;
        open(&self.source, &Target::Tag("v1".into()), &options, &self.caches, &progress)
            .await
            .unwrap()
    }

    fn warnings(&self) -> Vec<String> {
        self.recorder.warnings()
    }
}

/// The bytes of a blob that a request asks for.
fn part(seen: &ReceivedRequest, truth: &Faulty, blob: &str) -> Option<Bytes> {
    let (from, last) = seen.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
    let (from, last): (usize, usize) = (from.parse().ok()?, last.parse().ok()?);
    Some(truth.blob(&blob.parse().ok()?)?.slice(from..=last))
}

async fn read(image: &RootFs, layer: u32, range: Range<usize>) -> Bytes {
    image.content.read(LayerId(layer), Uncompressed(range.start as u64), range.len()).await.unwrap()
}

/// Reads a whole layer, and ranges everywhere in it.
async fn check(image: &RootFs, layer: u32, tar: &[u8]) {
    for (number, step) in [1 << 20, 100_000, 4096].into_iter().enumerate() {
        for from in (number * 37..tar.len()).step_by(step * (1 + 6 * number)) {
            let range = from..tar.len().min(from + step);
            assert!(
                read(image, layer, range.clone()).await == tar[range.clone()],
                "{range:?} of layer {layer}"
            );
        }
    }
}

/// Waits until the start was fetched and all requests for it were answered.
async fn settled(image: &RootFs, spans: u64) {
    for _ in 0..2000 {
        let stats = image.content.start_stats();
        if stats.spans >= spans && image.content.stats().spans_decoded >= spans {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} {:?}", image.content.start_stats(), image.content.stats());
}

#[tokio::test]
async fn every_byte_is_right_and_windows_are_fetched_in_pages() {
    for (plain, cached) in [(false, true), (true, false)] {
        let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
        let image = Image::push(&registry, plain, &[]);
        let dir = tempfile::tempdir().unwrap();
        let reader = Reader::new(&registry, cached.then_some(dir.path()));
        let opened = reader.open(false, options()).await;
        assert_eq!(
            opened.layers.iter().map(|layer| layer.how).collect::<Vec<_>>(),
            [LayerAccess::Fine; 2]
        );
        assert!(opened.fine.is_some());
        for layer in 0..2 {
            // Only the head, with a single request, and nothing of the layer.
            let document = &image.fine.layers[layer];
            let head = if document.head_size == document.size {
                "all".to_owned()
            } else {
                format!("bytes=0-{}", document.head_size - 1)
            };
            assert_eq!(
                (image.parts(&registry, layer), image.saw(&registry, layer)),
                (vec![head], 0)
            );
        }
        for (layer, tar) in (0..).zip(&image.tars) {
            check(&opened, layer, tar).await;
        }
        assert_eq!(reader.warnings(), Vec::<String>::new());
        // Windows of neighbours are fetched together when a layer is read sequentially in MiBs.
        let pages = image.parts(&registry, 0).len() - 1;
        assert!((1..=4).contains(&pages), "{pages} requests for pages");
        assert_eq!(image.parts(&registry, 1).len() > 1, !plain, "a plain tar needs no windows");

        // Spans on disk are neither fetched nor decoded again, and the head and the config are on
        // disk too.
        if cached {
            let before = registry.requests().len();
            let again = reader.open(false, options()).await;
            check(&again, 0, &image.tars[0]).await;
            let blobs = registry.requests()[before..]
                .iter()
                .filter(|seen| seen.path.contains("/blobs/"))
                .count();
            assert_eq!((blobs, again.content.stats().requests), (0, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn indexes_are_read_concurrently() {
    let waiting = Arc::new(AtomicUsize::new(0));
    let known = Arc::new(std::sync::OnceLock::<Vec<String>>::new());
    let indexes = Arc::clone(&known);
    let count = Arc::clone(&waiting);
    // Each is answered after both were requested.
    let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, _| {
        if !indexes.get()?.iter().any(|digest| seen.path.ends_with(&**digest)) {
            return None;
        }
        count.fetch_add(1, Ordering::SeqCst);
        let are_both = || {
            (0..2000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                count.load(Ordering::SeqCst) == 2
            })
        };
        (!tokio::task::block_in_place(are_both)).then(|| status(400))
    })
    .await;
    let image = Image::push(&registry, false, &[]);
    let fine = image.fine.encode().descriptor.digest;
    let soci = SociIndex {
        layers: Vec::new(),
        subject: image.fine.subject.clone(),
        build_tool_identifier: "test".into(),
        prefetch: Vec::new(),
    };
    let soci = soci.encode();
    registry.add_manifest(&soci.descriptor.digest.to_string(), OCI_MANIFEST, soci.bytes);
    known.set([fine, soci.descriptor.digest].map(|digest| digest.to_string()).to_vec()).unwrap();
    let reader = Reader::new(&registry, None);
    let opened = reader.open(false, options()).await;
    assert_eq!(opened.fine.map(|found| found.digest), Some(fine), "{:?}", reader.warnings());
    assert_eq!(waiting.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn unusable_fine_indexes_are_skipped_with_a_warning() {
    type Lie = fn(&ReceivedRequest, &Faulty, &FineIndex) -> Option<Response<Body>>;
    fn of_document(seen: &ReceivedRequest, fine: &FineIndex) -> bool {
        seen.path.contains(&fine.layers[0].document.to_string())
    }
    let lies: [(&str, &str, Lie); 3] = [
        ("gone", "without its fine document", |seen, _, fine| {
            of_document(seen, fine).then(|| problem(404, "BLOB_UNKNOWN", "gone"))
        }),
        ("another document", "ignoring the fine document", |seen, truth, fine| {
            let mut other = seen.clone();
            let this = fine.layers[0].document.to_string();
            let that = fine.layers[1].document.to_string();
            other.path = other.path.replace(&this, &that);
            of_document(seen, fine).then(|| {
                let (head, body) = truth.truth_now(&other).into_parts();
                // With the requested size.
                let range = seen.header("range").unwrap().replace("bytes=", "bytes ");
                let mut answer = Response::from_parts(head, body);
                let range = format!("{range}/{}", fine.layers[0].size).parse().unwrap();
                answer.headers_mut().insert("content-range", range);
                answer
            })
        }),
        ("not there", "fine index", |seen, _, fine| {
            let manifest = fine.encode();
            let is_it = seen.path.ends_with(&manifest.descriptor.digest.to_string());
            is_it.then(|| status(404))
        }),
    ];
    for (what, warning, lie) in lies {
        let known = Arc::new(std::sync::OnceLock::<FineIndex>::new());
        let fine = Arc::clone(&known);
        let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, truth| {
            lie(seen, truth, fine.get()?)
        })
        .await;
        let image = Image::push(&registry, false, &[]);
        known.set(image.fine.clone()).unwrap();
        let reader = Reader::new(&registry, None);
        let opened = reader.open(true, options()).await;
        let warnings = reader.warnings();
        assert_eq!(opened.layers[0].how, LayerAccess::Local, "{what}");
        let other = if what == "not there" { LayerAccess::Local } else { LayerAccess::Fine };
        assert_eq!(opened.layers[1].how, other, "{what}");
        assert!(warnings.len() == 1 && warnings[0].contains(warning), "{what}: {warnings:?}");
        check(&opened, 0, &image.tars[0]).await;
        check(&opened, 1, &image.tars[1]).await;
    }
}

#[tokio::test]
async fn wrong_pages_and_spans_are_fetched_again() {
    for lies in [1, usize::MAX] {
        for page in [false, true] {
            let target = Arc::new(std::sync::OnceLock::<String>::new());
            let wrong = Arc::clone(&target);
            let left = AtomicUsize::new(lies);
            let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, truth| {
                let is_it = seen.path.contains(wrong.get()?)
                    && !seen.header("range")?.starts_with("bytes=0-");
                if !is_it
                    || left
                        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                            left.checked_sub(1)
                        })
                        .is_err()
                {
                    return None;
                }
                let (head, _) = truth.truth_now(seen).into_parts();
                let spoilt: Vec<u8> =
                    part(seen, truth, wrong.get()?)?.iter().map(|byte| byte ^ 1).collect();
                Some(Response::from_parts(head, Body::from(spoilt)))
            })
            .await;
            let image = Image::push(&registry, false, &[]);
            let spoilt = if page { image.fine.layers[0].document } else { image.blobs[0].digest };
            target.set(spoilt.to_string()).unwrap();
            let reader = Reader::new(&registry, None);
            let opened = reader.open(false, options()).await;
            let range = 500_000..501_000;
            let at = Uncompressed(range.start as u64);
            let result = opened.content.read(LayerId(0), at, range.len()).await;
            match (lies, page) {
                (1, _) => assert!(result.unwrap() == image.tars[0][range], "page: {page}"),
                (_, false) => assert!(result.is_err()),
                // The layer can be read without its document.
                (_, true) => assert!(result.unwrap() == image.tars[0][range]),
            }
        }
    }
}
