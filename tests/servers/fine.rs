//! Images that are read by their fine indexes: every byte is correct, few bytes are requested, and
//! unusable documents are skipped.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use ociseek::digest::Digest;
use ociseek::fine::FineLayer;
use ociseek::image::Descriptor;
use ociseek::image::fine::FineIndex;
use ociseek::image::soci::SociIndex;
use ociseek::layer::{LayerIndexer, LayerOptions, Outcome};
use ociseek::offset::{LayerId, SpanId, Uncompressed};
use ociseek::ops::open::{OpenOptions, RootFs, open};
use ociseek::progress::{Progress, Recorder};
use ociseek::rootfs::cache::SpanCache;
use ociseek::rootfs::content::ContentOptions;
use ociseek::rootfs::layers::{Caches, LayerAccess};
use ociseek::store::Source;
use ociseek::store::blob::Target;
use ociseek::store::cache::ZtocCache;
use ociseek::store::registry::{Client, ClientConfig, CredentialSource, Limits};
use serde_json::json;

use crate::content::options;
use crate::support::faulty::{Faulty, Nature, Seen, cut, problem, silence, stalls, status};
use crate::support::fine;
use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST, PLAIN, gzip, tar};

const SPAN: u64 = 64 << 10;
/// How many requests of a recorded start are in progress.
const START_REQUESTS: usize = 12;

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
    fn push_layers(registry: &Faulty, tars: Vec<Vec<u8>>, plain: bool, starts: &[Vec<Range<SpanId>>]) -> Image {
        let mut layers = Vec::new();
        for (number, tar) in tars.iter().enumerate() {
            let is_plain = plain && number == 1;
            let blob = if is_plain { tar.clone() } else { gzip(tar) };
            registry.add_blob(blob.clone());
            let media_type = if is_plain { PLAIN } else { GZIP };
            layers.push((Descriptor::of(media_type, &blob), built(&blob), starts[number].clone()));
        }
        let diff_ids: Vec<Digest> = tars.iter().map(|tar| Digest::sha256(tar)).collect();
        let config =
            json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        let config = config.to_string();
        registry.add_blob(config.clone());
        let blobs: Vec<Descriptor> = layers.iter().map(|(blob, ..)| blob.clone()).collect();
        let config = Descriptor::of(OCI_CONFIG, config.as_bytes());
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": blobs});
        let manifest = manifest.to_string();
        registry.add_manifest("v1", OCI_MANIFEST, manifest.clone());
        let layers: Vec<_> = layers.into_iter().map(|(_, layer, start)| (layer, start)).collect();
        let fine = fine::attach(registry, manifest.as_bytes(), &layers);
        Image { tars, blobs, fine }
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
    let options = LayerOptions { span_size: SPAN, build_tool_identifier: "test".into(), fine: false };
    let mut indexer = LayerIndexer::new(options, None);
    indexer.push(blob).unwrap();
    match indexer.finish().unwrap().outcome {
        Outcome::Ztoc(built) => fine::layer(blob, &built.bytes),
        Outcome::Unservable(why) => panic!("{why}"),
    }
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
        let config = ClientConfig { credentials: CredentialSource::Anonymous, limits, ..ClientConfig::default() };
        let repository = Client::new(config).unwrap().repository(&registry.host(), "a/b").unwrap();
        Reader { caches: Caches { ztocs, spans }, recorder, source: Source::Registry(repository) }
    }

    async fn open(&self, start: bool, content: ContentOptions) -> RootFs {
        let options = OpenOptions { start, content, ..OpenOptions::default() };
        let progress = Arc::clone(&self.recorder) as Arc<dyn Progress>;
        open(&self.source, &Target::Tag("v1".into()), &options, &self.caches, &progress).await.unwrap()
    }

    fn warnings(&self) -> Vec<String> {
        self.recorder.warnings()
    }
}

/// The bytes of a blob that a request asks for.
fn part(seen: &Seen, truth: &Faulty, blob: &str) -> Option<Bytes> {
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
            assert!(read(image, layer, range.clone()).await == tar[range.clone()], "{range:?} of layer {layer}");
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
async fn every_byte_is_right_and_windows_come_in_pages() {
    for (plain, cached) in [(false, true), (true, false)] {
        let registry = Faulty::honest(Nature { referrers: true, ..Nature::default() }).await;
        let image = Image::push(&registry, plain, &[]);
        let dir = tempfile::tempdir().unwrap();
        let reader = Reader::new(&registry, cached.then_some(dir.path()));
        let opened = reader.open(false, options()).await;
        assert_eq!(opened.layers.iter().map(|layer| layer.how).collect::<Vec<_>>(), [LayerAccess::Fine; 2]);
        assert!(opened.fine.is_some());
        for layer in 0..2 {
            // Only the head, with a single request, and nothing of the layer.
            let document = &image.fine.layers[layer];
            let head = match document.head_size == document.size {
                true => "all".to_owned(),
                false => format!("bytes=0-{}", document.head_size - 1),
            };
            assert_eq!((image.parts(&registry, layer), image.saw(&registry, layer)), (vec![head], 0));
        }
        for (layer, tar) in (0..).zip(&image.tars) {
            check(&opened, layer, tar).await;
        }
        assert_eq!(reader.warnings(), Vec::<String>::new());
        // Windows of neighbours are fetched together when a layer is read sequentially in MiBs.
        let pages = image.parts(&registry, 0).len() - 1;
        assert!((1..=4).contains(&pages), "{pages} requests for pages");
        assert_eq!(image.parts(&registry, 1).len() > 1, !plain, "a plain tar needs no windows");

        // Spans on disk are neither fetched nor decoded again, and the head and the config are on disk too.
        if cached {
            let before = registry.seen().len();
            let again = reader.open(false, options()).await;
            check(&again, 0, &image.tars[0]).await;
            let blobs = registry.seen()[before..].iter().filter(|seen| seen.path.contains("/blobs/")).count();
            assert_eq!((blobs, again.content.stats().requests), (0, 0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn indexes_are_read_side_by_side() {
    let waiting = Arc::new(AtomicUsize::new(0));
    let known = Arc::new(std::sync::OnceLock::<Vec<String>>::new());
    let (indexes, count) = (Arc::clone(&known), Arc::clone(&waiting));
    // Each is answered after both were requested.
    let registry = Faulty::start(Nature { referrers: true, ..Nature::default() }, move |seen, _| {
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
        subject: Some(image.fine.subject.clone()),
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
async fn what_is_unfit_is_passed_over_with_a_warning() {
    type Lie = fn(&Seen, &Faulty, &FineIndex) -> Option<Response<Body>>;
    fn of_document(seen: &Seen, fine: &FineIndex) -> bool {
        seen.path.contains(&fine.layers[0].document.to_string())
    }
    let lies: [(&str, &str, Lie); 3] = [
        ("gone", "without its fine document", |seen, _, fine| {
            of_document(seen, fine).then(|| problem(404, "BLOB_UNKNOWN", "gone"))
        }),
        ("another document", "ignoring the fine document", |seen, truth, fine| {
            let mut other = seen.clone();
            let (this, that) = (fine.layers[0].document.to_string(), fine.layers[1].document.to_string());
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
        let nature = Nature { referrers: true, ..Nature::default() };
        let registry = Faulty::start(nature, move |seen, truth| lie(seen, truth, fine.get()?)).await;
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
async fn wrong_pages_and_spans_are_fetched_again_or_are_errors() {
    for lies in [1, usize::MAX] {
        for page in [false, true] {
            let target = Arc::new(std::sync::OnceLock::<String>::new());
            let (wrong, left) = (Arc::clone(&target), AtomicUsize::new(lies));
            let registry = Faulty::start(Nature { referrers: true, ..Nature::default() }, move |seen, truth| {
                let is_it = seen.path.contains(wrong.get()?) && !seen.header("range")?.starts_with("bytes=0-");
                if !is_it || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
                {
                    return None;
                }
                let (head, _) = truth.truth_now(seen).into_parts();
                let spoilt: Vec<u8> = part(seen, truth, wrong.get()?)?.iter().map(|byte| byte ^ 1).collect();
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
            match lies {
                1 => assert!(result.unwrap() == image.tars[0][range], "page: {page}"),
                _ => assert!(result.is_err(), "page: {page}"),
            }
        }
    }
}

#[tokio::test]
async fn a_recorded_start_is_fetched_at_once_and_nothing_twice() {
    for cached in [false, true] {
        let registry = Faulty::honest(Nature { referrers: true, ..Nature::default() }).await;
        // Out of order, as in a real start. Neighbours are a single request, even if others are
        // read between them.
        let start = [SpanId(12)..SpanId(13), SpanId(2)..SpanId(6), SpanId(13)..SpanId(14), SpanId(6)..SpanId(7)];
        let image = Image::push(&registry, false, &start);
        let dir = tempfile::tempdir().unwrap();
        let reader = Reader::new(&registry, cached.then_some(dir.path()));
        let opened = reader.open(true, options()).await;
        settled(&opened, 7).await;
        // A single request returns the head and the windows of the start.
        let document = &image.fine.layers[0];
        assert!(document.start_size > document.head_size);
        assert_eq!(image.parts(&registry, 0), [format!("bytes=0-{}", document.start_size - 1)]);
        assert_eq!(image.saw(&registry, 0), 2);
        let content = opened.content.stats();
        assert_eq!((content.requests, content.start_requests), (2, 2));
        assert_eq!(content.start_bytes, content.bytes_fetched);
        let unread = opened.content.start_stats().unread_bytes;
        assert_eq!(unread, content.start_bytes);

        // Fetched spans count as read when they are used.
        let map = &opened.layers[0].map;
        let spans = map.fine().unwrap().spans();
        for span in start.iter().cloned().flat_map(SpanId::each) {
            let plain = spans.plain_range(span);
            let range = plain.start.0 as usize..plain.end.0 as usize;
            assert!(read(&opened, 0, range.clone()).await == image.tars[0][range], "span {span}");
        }
        assert_eq!(image.saw(&registry, 0), 2, "nothing is fetched twice");
        let stats = opened.content.start_stats();
        assert_eq!((stats.spans, stats.unread_bytes, stats.stopped), (7, 0, false));
        assert_eq!(opened.content.stats().start_requests, 2);

        // The rest of the layer does not belong to the start.
        check(&opened, 0, &image.tars[0]).await;
        let content = opened.content.stats();
        assert!(content.requests > 2 && content.start_requests == 2, "{content:?}");
    }
}

#[tokio::test]
async fn a_recorded_start_has_many_small_requests_or_few_large_ones_in_progress() {
    let each = |spans: Range<u32>| spans.map(|span| SpanId(2 * span)..SpanId(2 * span + 1)).collect::<Vec<_>>();
    let large = || (0..3).map(|range| SpanId(20 * range)..SpanId(20 * range + 13)).collect::<Vec<_>>();
    // Large ones have 0.9 MiB each. Layers take turns by bytes.
    for (starts, expected) in [([large(), Vec::new()], [2, 0]), ([large(), each(0..25)], [1, 11])] {
        let known = Arc::new(std::sync::OnceLock::<Vec<String>>::new());
        let (blobs, released) = (Arc::clone(&known), Arc::new(AtomicBool::new(false)));
        let on = Arc::clone(&released);
        let registry = Faulty::start(Nature { referrers: true, ..Nature::default() }, move |seen, _| {
            let is_stopped = blobs.get()?.iter().any(|blob| seen.path.contains(blob)) && !on.load(Ordering::SeqCst);
            is_stopped.then(silence)
        })
        .await;
        let tars = vec![tar(1, 10, 400_000), tar(2, 10, 400_000)];
        let image = Image::push_layers(&registry, tars, false, &starts);
        known.set(image.blobs.iter().map(|blob| blob.digest.to_string()).collect()).unwrap();
        let reader = Reader::new(&registry, None);
        let opened = reader.open(true, options()).await;
        let saw = || [image.saw(&registry, 0), image.saw(&registry, 1)];
        while saw() != expected {
            assert!(saw().iter().zip(&expected).all(|(saw, expected)| saw <= expected), "{:?}", saw());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(saw(), expected);
        released.store(true, Ordering::SeqCst);
        drop(opened);
        let opened = reader.open(true, options()).await;
        settled(&opened, starts.iter().flatten().map(|range| u64::from(range.end.0 - range.start.0)).sum()).await;
        check(&opened, 0, &image.tars[0]).await;
    }
}

#[tokio::test]
async fn wrong_guesses_are_bounded() {
    let registry = Faulty::honest(Nature { referrers: true, ..Nature::default() }).await;
    // Each is a separate request.
    let start: Vec<Range<SpanId>> = (0..14).rev().map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
    let image = Image::push(&registry, false, &start);
    let reader = Reader::new(&registry, None);
    let opened = reader.open(true, ContentOptions { unread: 1, ..options() }).await;
    for _ in 0..2000 {
        if opened.content.start_stats().stopped {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = opened.content.start_stats();
    assert!(stats.stopped && stats.unread_bytes > 1, "{stats:?}");
    // The requests in progress when the first one was counted.
    assert!(image.saw(&registry, 0) <= START_REQUESTS, "{}", image.saw(&registry, 0));
    check(&opened, 0, &image.tars[0]).await;
}

#[tokio::test]
async fn without_a_cache_on_disk_a_start_takes_half_of_the_memory() {
    let registry = Faulty::honest(Nature { referrers: true, ..Nature::default() }).await;
    let image = Image::push(&registry, false, &[SpanId(0)..SpanId(27)]);
    let reader = Reader::new(&registry, None);
    let opened = reader.open(true, ContentOptions { memory: 10 * SPAN, ..options() }).await;
    settled(&opened, 3).await;
    assert!((3..=5).contains(&opened.content.start_stats().spans), "{:?}", opened.content.start_stats());
    check(&opened, 0, &image.tars[0]).await;
}

#[tokio::test]
async fn a_read_passes_a_start_that_hangs() {
    let blob = Arc::new(std::sync::OnceLock::<(String, Range<u64>)>::new());
    let asked_for = Arc::clone(&blob);
    let released = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&released);
    let registry = Faulty::start(Nature { referrers: true, ..Nature::default() }, move |seen, truth| {
        let (digest, read) = asked_for.get()?;
        if !seen.path.contains(digest) || on.load(Ordering::SeqCst) {
            return None;
        }
        let from: u64 = seen.header("range")?.strip_prefix("bytes=")?.split_once('-')?.0.parse().ok()?;
        // Everything is silent except what is read.
        let (head, _) = truth.truth_now(seen).into_parts();
        (!read.contains(&from)).then(|| Response::from_parts(head, stalls(&Bytes::new(), 0).into_body()))
    })
    .await;
    let start: Vec<Range<SpanId>> = (1..14).map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
    let image = Image::push(&registry, false, &start);
    let layer = built(&registry.blob(&image.blobs[0].digest).unwrap());
    let range = layer.spans().fetch_range(SpanId(0));
    blob.set((image.blobs[0].digest.to_string(), range.start.0..range.end.0)).unwrap();
    let reader = Reader::new(&registry, None);
    let opened = reader.open(true, options()).await;
    while image.saw(&registry, 0) < START_REQUESTS {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(read(&opened, 0, 0..1000).await == image.tars[0][..1000]);
    assert_eq!(image.saw(&registry, 0), START_REQUESTS + 1, "those of the start, and the read");
    // A request that hangs is repeated by the next read.
    released.store(true, Ordering::SeqCst);
    drop(opened);
    let opened = reader.open(true, options()).await;
    check(&opened, 0, &image.tars[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn faults_in_the_middle_of_a_start_do_no_harm() {
    for fault in ["500", "429", "404", "206", "cut"] {
        let blob = Arc::new(std::sync::OnceLock::<String>::new());
        let (digest, count) = (Arc::clone(&blob), AtomicUsize::new(0));
        let released = Arc::new(AtomicBool::new(false));
        let on = Arc::clone(&released);
        let registry = Faulty::start(Nature { referrers: true, ..Nature::default() }, move |seen, truth| {
            if !seen.path.contains(digest.get()?) || count.fetch_add(1, Ordering::SeqCst) >= START_REQUESTS {
                return None;
            }
            // All requests for the start in progress fail when a read waits.
            tokio::task::block_in_place(|| {
                while !on.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            match fault.parse() {
                Ok(code) => Some(status(code)),
                Err(_) => {
                    let content = part(seen, truth, digest.get()?)?;
                    Some(cut(truth.truth_now(seen), &content, content.len() / 2))
                }
            }
        })
        .await;
        let start: Vec<Range<SpanId>> = (0..14).map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
        let image = Image::push(&registry, false, &start);
        blob.set(image.blobs[0].digest.to_string()).unwrap();
        let reader = Reader::new(&registry, None);
        let opened = reader.open(true, options()).await;
        while image.saw(&registry, 0) < START_REQUESTS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let content = opened.content.clone();
        let joined = tokio::spawn(async move { content.read(LayerId(0), Uncompressed(0), 1000).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        released.store(true, Ordering::SeqCst);
        assert!(joined.await.unwrap().unwrap() == image.tars[0][..1000], "{fault}");
        check(&opened, 0, &image.tars[0]).await;
    }
}
