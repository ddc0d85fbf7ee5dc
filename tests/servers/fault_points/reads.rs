//! The Nth request of opening an image and reading all its files fails, once or from then on: each
//! byte that is read is right, or the read fails in time; without the fault it is right; and
//! nothing wrong is kept in the cache.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use ociseek_format::image::Descriptor;
use ociseek_format::offset::{SpanId, Uncompressed};
use ociseek_format::progress::{Progress, SilentProgress, causes};
use ociseek_format::tree::NodeKind;
use ociseek_ops::open::{DocumentFetch, OpenImageError, OpenOptions, RootFs, open};
use ociseek_rootfs::cache::SpanCache;
use ociseek_rootfs::content::ContentOptions;
use ociseek_rootfs::layers::{Caches, LayerAccess};
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits};
use tokio::task::JoinHandle;

use ociseek_testkit::fault_plan::{Fault, Plan, Point};
use ociseek_testkit::fault_points::{MISSED, Points, READS};
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, PLAIN, Sandbox, ZSTD, gzip, tar};
use ociseek_testkit::{fine, layers};

const AT_ONCE: usize = 8;
/// Points in CI.
const SAMPLE: usize = 150;
const SPAN: u64 = 32 << 10;
/// Files in each of the two layers, and bytes of each.
const FILES: [(usize, usize); 2] = [(3, 60_000), (2, 40_000)];
/// What is read at a time.
const PIECE: usize = 25_000;
/// When a read gives up while a fault lasts.
const DEADLINE: Duration = Duration::from_secs(3);
/// When a read gives up otherwise. It should not come to that, however busy the machine is.
const LATER: Duration = Duration::from_secs(30);
/// What takes longer hangs. A busy machine adds to the deadline.
const HANGS: Duration = Duration::from_secs(60);

/// By what an image is read, and the files that its index lists, which are fetched in the
/// background.
type Kind = (&'static str, LayerAccess, &'static [&'static str]);
const KINDS: [Kind; 4] = [
    ("SOCI index", LayerAccess::Index, &[]),
    (
        "SOCI index with prefetch lists",
        LayerAccess::Index,
        &["dir1/file2", "dir1/file0", "dir2/file1"],
    ),
    ("fine index", LayerAccess::Fine, &[]),
    ("no index", LayerAccess::Local, &[]),
];

/// An image with such an index in a registry of its own, and the tars of its layers. The upper
/// layer is zstd where there is no index, else plain.
async fn image((_, how, listed): Kind) -> (Faulty, Vec<Vec<u8>>) {
    let registry = Faulty::honest(RegistrySettings {
        referrers: true,
        bearer: Some(None),
        ..RegistrySettings::default()
    })
    .await;
    let tars: Vec<Vec<u8>> =
        (1..).zip(FILES).map(|(seed, (files, size))| tar(seed, files, size)).collect();
    let upper = match how {
        LayerAccess::Local => (ZSTD, zstd::stream::encode_all(&tars[1][..], 3).unwrap()),
        _ => (PLAIN, tars[1].clone()),
    };
    let blobs = [(GZIP, gzip(&tars[0])), upper];
    let image = Image::new(&config(&tars), blobs.clone());
    image.add_to(&registry, "v1");
    if how == LayerAccess::Fine {
        let fine = |(_, blob): &(&str, Vec<u8>)| {
            fine::layer(blob, &layers::built(blob, SPAN, "test").bytes)
        };
        let start = vec![SpanId(2)..SpanId(4), SpanId(0)..SpanId(1)];
        let layers = [(fine(&blobs[0]), start), (fine(&blobs[1]), Vec::new())];
        fine::attach(&registry, &image.manifest, &layers);
    }
    if how == LayerAccess::Index {
        let sandbox = Sandbox::new();
        let name = format!("{}/a/b:v1", registry.host());
        let listed: Vec<String> =
            listed.iter().map(|path| format!("--prefetch-file={path}")).collect();
        let mut args =
            vec!["index", "--no-cache", "--min-layer-size=0", "--span-size=32KiB", &name];
        args.extend(listed.iter().map(String::as_str));
        let mut command = sandbox.command(&args);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    (registry, tars)
}

/// What opens the image, with a cache on the disk.
struct Reader {
    source: Source,
    caches: Caches,
    progress: Arc<dyn Progress>,
    deadline: Duration,
}

impl Reader {
    fn new(registry: &Faulty, cache: &Path, deadline: Duration) -> Reader {
        let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
        let limits = Limits {
            header: Duration::from_millis(700),
            idle: Duration::from_millis(700),
            first_wait: Duration::from_millis(5),
            tries: 3,
            patience: Some(Duration::from_millis(300)),
            ..Limits::default()
        };
        let config = ClientConfig {
            credentials: CredentialSource::Anonymous,
            limits,
            ..ClientConfig::default()
        };
        let repository = Client::new(config).unwrap().repository(&registry.host(), "a/b").unwrap();
        let ztocs = ZtocCache::open(Some(cache), Arc::clone(&progress));
        let spans = SpanCache::open(Some(cache), 1 << 30, Arc::clone(&progress));
        Reader {
            source: Source::Registry(repository),
            caches: Caches { ztocs, spans },
            progress,
            deadline,
        }
    }

    async fn open(&self) -> Result<RootFs, OpenImageError> {
        let content = ContentOptions { deadline: self.deadline, ..ContentOptions::default() };
        let options = OpenOptions {
            documents: DocumentFetch { start: true },
            content,
            ..OpenOptions::default()
        };
        open(&self.source, &Target::Tag("v1".into()), &options, &self.caches, &self.progress).await
    }

    /// Opens the image when nothing fails any more. On a busy machine, answers of the registry may
    /// still be later than the limits above, so only that is tried again.
    async fn open_without_fault(&self) -> Result<RootFs, String> {
        let begun = Instant::now();
        loop {
            match self.open().await.map_err(|error| causes(&error)) {
                Err(late)
                    if late.contains(" did not arrive within ") && begun.elapsed() < HANGS => {}
                opened => return opened,
            }
        }
    }
}

/// How many reads failed; an error if bytes are wrong, or if a read takes too long. Who gets an
/// error reads one more piece, and gives up.
async fn read_all(image: &RootFs, tars: &[Vec<u8>]) -> Result<usize, String> {
    let mut failed = 0;
    for (layer, (files, size)) in FILES.into_iter().enumerate() {
        for number in 0..files {
            let path = format!("dir{}/file{number}", layer + 1);
            let node =
                image.tree.resolve(path.as_bytes(), true).map_err(|e| format!("{path}: {e}"))?;
            let NodeKind::File(extent) = &image.tree.node(node).kind else {
                return Err(format!("{path}: no file"));
            };
            if extent.size != size as u64 {
                return Err(format!("{path}: {} bytes", extent.size));
            }
            for at in (0..size).step_by(PIECE) {
                let from = extent.offset.0 as usize + at;
                let length = PIECE.min(size - at);
                let read = image.content.read(extent.layer, Uncompressed(from as u64), length);
                let read = tokio::time::timeout(HANGS, read).await;
                match read.map_err(|_| format!("{path}: a read at {at} hangs"))? {
                    Ok(bytes) if bytes == tars[layer][from..from + length] => {}
                    Ok(_) => return Err(format!("{path}: wrong bytes at {at}")),
                    Err(_) if failed == 1 => return Ok(2),
                    Err(_) => failed += 1,
                }
            }
        }
    }
    Ok(failed)
}

/// Fetches the files that the index lists, in the background, as a mount does. It goes on while the
/// registry fails.
fn prefetch(image: &RootFs) -> JoinHandle<()> {
    let content = image.content.clone();
    let lists = image.prefetch.clone();
    tokio::spawn(async move { content.prefetch_artifacts(lists).await })
}

async fn prefetched(prefetching: JoinHandle<()>) -> Result<(), String> {
    let ended = tokio::time::timeout(HANGS, prefetching)
        .await
        .map_err(|_| "prefetching hangs".to_owned())?;
    ended.map_err(|e| format!("prefetching: {e}"))
}

/// An image, and how many requests it takes to open it and to read it if all is well.
struct Sound {
    registry: Faulty,
    tars: Vec<Vec<u8>>,
    opening: usize,
    requests: usize,
}

impl Sound {
    async fn new(kind: Kind) -> Sound {
        let (registry, tars) = image(kind).await;
        let copy = registry.copy(|_, _| None).await;
        let cache = tempfile::tempdir().unwrap();
        let opened = Reader::new(&copy, cache.path(), LATER).open().await.unwrap();
        assert!(opened.layers[0].how == kind.1, "{:?}", opened.layers);
        let opening = copy.requests().len();
        let prefetching = prefetch(&opened);
        assert_eq!(read_all(&opened, &tars).await, Ok(0));
        prefetched(prefetching).await.unwrap();
        let is_fetched =
            |list: &Descriptor| !copy.saw("GET", &format!("blobs/{}", list.digest)).is_empty();
        assert!(opened.prefetch.is_empty() == kind.2.is_empty());
        assert!(opened.prefetch.iter().all(|(_, list)| is_fetched(list)));
        Sound { registry, tars, opening, requests: copy.requests().len() }
    }
}

/// Whether a fault that comes once is none that a reader sees: what is asked for again is there.
fn passes(fault: Fault) -> bool {
    !matches!(fault, Fault::Denied | Fault::WebPage)
}

/// How a point ended; what was wrong there.
async fn attempt(point: Point, sound: &Sound) -> Result<String, String> {
    let Point { fault, lasts, at, .. } = point;
    let plan = Arc::new(Plan { fault, at, lasts, ..Plan::default() });
    let planned = Arc::clone(&plan);
    let registry = sound.registry.copy(move |seen, faulty| planned.answer(seen, faulty)).await;
    let cache = tempfile::tempdir().unwrap();
    let is_lasting = lasts || fault == Fault::Down;
    let reader = Reader::new(&registry, cache.path(), if is_lasting { DEADLINE } else { LATER });
    let opened =
        tokio::time::timeout(HANGS, reader.open()).await.map_err(|_| "opening hangs".to_owned())?;
    let prefetching = opened.as_ref().ok().map(prefetch);
    let failed = match &opened {
        Ok(opened) => read_all(opened, &sound.tars).await?,
        Err(_) => 0,
    };
    if failed > 0 && at >= sound.opening && !is_lasting && passes(fault) {
        return Err("a read failed, though only one request did".to_owned());
    }
    let is_hit = plan.asked.load(Ordering::SeqCst) > at;
    plan.is_over.store(true, Ordering::SeqCst);
    registry.up().await;
    if let Some(prefetching) = prefetching {
        prefetched(prefetching).await?;
    }
    let end = match (&opened, failed) {
        _ if !is_hit => MISSED,
        (Err(_), _) => "not opened, then right",
        (Ok(_), 0) => "right",
        (Ok(_), _) => "errors, then right",
    };
    // A span that missed the deadline is not waited for again within a second.
    let all_right = async |image: &RootFs, when: &str| {
        let begun = Instant::now();
        loop {
            match read_all(image, &sound.tars).await {
                Ok(0) => return Ok(()),
                Ok(_) if begun.elapsed() > HANGS => {
                    return Err(format!("{when}, reads still fail"));
                }
                Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(error) => return Err(format!("{when}: {error}")),
            }
        }
    };
    match &opened {
        Ok(opened) => all_right(opened, "without the fault").await?,
        Err(first) => {
            let again = reader.open_without_fault().await;
            let again =
                again.map_err(|e| format!("not opened without the fault: {e}, first: {first}"))?;
            all_right(&again, "opened without the fault").await?;
        }
    }
    let next = Reader::new(&registry, cache.path(), LATER);
    let next =
        next.open_without_fault().await.map_err(|e| format!("not opened with the cache: {e}"))?;
    all_right(&next, "with the cache").await?;
    Ok(end.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_returns_and_caches_no_wrong_bytes() {
    let mut sounds = Vec::new();
    let mut points = Points::of(READS);
    for (number, kind) in KINDS.into_iter().enumerate() {
        let sound = Sound::new(kind).await;
        println!("{}: {} requests, {} of them to open it", kind.0, sound.requests, sound.opening);
        // A registry that is down stays so.
        points.add(
            kind.0,
            Point::all(number, sound.requests)
                .filter(|point| point.fault != Fault::Down || point.lasts),
        );
        sounds.push(sound);
    }
    let ((points, mut score), sounds) = (points.chosen(SAMPLE), &sounds);
    let outcomes: Vec<_> = stream::iter(points)
        .map(|point| async move { (point, attempt(point, &sounds[point.kind]).await) })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for (point, outcome) in outcomes {
        score.count(&format!("{}, {point:?}", KINDS[point.kind].0), outcome);
    }
    score.conclude();
}
