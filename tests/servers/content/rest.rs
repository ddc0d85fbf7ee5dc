//! The rest of images, which is fetched in the background.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A layer with files of this size, and the registry that has it.
async fn served(registry: &Faulty, files: &[usize]) -> (Descriptor, Vec<u8>, Bytes) {
    let plain = tar(files);
    let blob = gzip(&plain);
    registry.add_blob(blob.clone());
    (Descriptor::of(GZIP, &blob), plain, ztoc(&blob, 65_536))
}

fn slowly(bytes_per_second: u64) -> BackgroundFetches {
    let shared = BackgroundFetches::default();
    shared.speed.set(Some(bytes_per_second));
    shared
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_near_a_read_comes_first_and_no_faster_than_allowed() {
    const FILE: usize = 6_000_000;
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    let (layer, plain, ztoc) = served(&faulty, &[FILE, FILE, FILE]).await;
    let desk = Desk::new(Some(dir.path()));
    let content = desk.one(&registry(&faulty.host()), &layer, Some(ztoc)).await;
    let shared = Arc::new(slowly(1 << 20));
    let begun = std::time::Instant::now();
    let rest = {
        let content = content.clone();
        let shared = Arc::clone(&shared);
        tokio::spawn(async move { content.fetch_rest(&shared).await })
    };
    while content.rest_stats().is_none_or(|rest| rest.bytes == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // In the last file.
    let at = 2 * (FILE + 1024) + FILE / 2;
    assert!(read(&content, at, 1000).await.unwrap() == plain[at..at + 1000]);
    let end = plain.len() - 2048;
    let after =
        |at: usize| content.spans(LayerId(0), Uncompressed(at as u64)..Uncompressed(end as u64));
    let of_file = after(at);
    let is_cached = |span| content.is_from_cache(LayerId(0), span);
    while !SpanId::each(of_file.clone()).all(is_cached) {
        assert!(!rest.is_finished());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The file between the beginning and the read waits for it.
    let told = content.rest_stats().unwrap();
    assert!(told.bytes < plain.len() as u64 * 3 / 4, "{told:?}");
    // A quarter of a second is for free, and what is in progress when it ends.
    let fetched = content.stats().bytes_fetched as f64;
    let allowed = (begun.elapsed().as_secs_f64() + 0.25) * f64::from(1 << 20);
    assert!(fetched <= allowed + f64::from(2 << 20), "{fetched} of {allowed}");
    shared.speed.set(None);
    rest.await.unwrap();
    assert_eq!(content.rest_stats().unwrap().bytes, plain.len() as u64);
    let asked = faulty.requests().len();
    check(&content, 0, &plain, 30).await;
    assert_eq!(faulty.requests().len(), asked);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_share_the_room_in_the_cache_and_displace_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    let source = registry(&faulty.host());
    let (one, plain, ztoc) = served(&faulty, &[3_000_000]).await;
    let (other, _, other_ztoc) = served(&faulty, &[1000, 3_000_000]).await;
    let desk = Desk::with_limit(Some(dir.path()), 6_000_000);
    let shared = BackgroundFetches::default();
    let fetched = async |layer: &Descriptor, ztoc: &Bytes| {
        let content = desk.one(&source, layer, Some(ztoc.clone())).await;
        content.fetch_rest(&shared).await;
        content
    };
    let first = fetched(&one, &ztoc).await;
    // The same layer counts once.
    let again = fetched(&one, &ztoc).await;
    assert_eq!((first.rest_stats(), desk.warnings()), (again.rest_stats(), Vec::new()));
    assert_eq!(first.rest_stats().unwrap().unfit_bytes, 0);
    let unfit = fetched(&other, &other_ztoc).await.rest_stats().unwrap().unfit_bytes;
    assert!((1_000_000..1_500_000).contains(&unfit), "{unfit}");
    assert_eq!(desk.warnings().len(), 1, "{:?}", desk.warnings());
    assert_eq!(desk.caches.spans.stats().evictions, 0);
    check(&first, 0, &plain, 20).await;
    // An image that is not mounted any more takes no room.
    drop((first, again));
    assert_eq!(fetched(&other, &other_ztoc).await.rest_stats().unwrap().unfit_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_comes_when_the_registry_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let faulty = Faulty::start(RegistrySettings::default(), move |request, _| {
        let fails = down.load(Ordering::Relaxed) && request.path.contains("/blobs/");
        fails.then(|| {
            let gone = axum::http::Response::builder().status(404);
            gone.body(axum::body::Body::empty()).unwrap()
        })
    })
    .await;
    let (layer, plain, ztoc) = served(&faulty, &[3_000_000]).await;
    let desk = Desk::new(Some(dir.path()));
    let content = desk.one(&registry(&faulty.host()), &layer, Some(ztoc)).await;
    let shared = BackgroundFetches::default();
    let back = async {
        while faulty.saw("GET", "/blobs/").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        is_down.store(false, Ordering::Relaxed);
    };
    tokio::join!(content.fetch_rest(&shared), back);
    assert_eq!(content.rest_stats().unwrap().bytes, plain.len() as u64);
    check(&content, 0, &plain, 20).await;
}
