//! Images of one process that have a layer in common.

use super::*;

/// A layer with its plain bytes and its ztoc.
fn layer() -> (Bytes, Descriptor, Vec<u8>, Bytes) {
    let plain = tar(&[3_000_000]);
    let blob = gzip(&plain);
    let ztoc = ztoc(&blob, 65_536);
    (blob.clone(), Descriptor::of(GZIP, &blob), plain, ztoc)
}

/// A registry that never answers the first `n` requests for the layer.
async fn silent(n: usize) -> (Faulty, Descriptor, Vec<u8>, Bytes) {
    let (blob, layer, plain, ztoc) = layer();
    let is_first = first(n);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        (seen.is("GET", "/blobs/") && is_first()).then(no_response)
    })
    .await;
    faulty.add_blob(blob);
    (faulty, layer, plain, ztoc)
}

async fn until_requested(faulty: &Faulty, requests: usize) {
    for _ in 0..6000 {
        if faulty.saw("GET", "/blobs/").len() == requests {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} requests of {requests}", faulty.saw("GET", "/blobs/").len());
}

/// The sum of the requested ranges.
fn requested(faulty: &Faulty) -> u64 {
    let size = |seen: ReceivedRequest| {
        let (from, last) =
            seen.header("range").unwrap().strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        last.parse::<u64>().unwrap() + 1 - from.parse::<u64>().unwrap()
    };
    faulty.saw("GET", "/blobs/").into_iter().map(size).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn images_of_a_process_fetch_each_span_once() {
    let (blob, layer, plain, ztoc) = layer();
    // One reads in large pieces and in order, the other in small ones and from the end.
    for (size, step) in [(3_000_000, 1), (65_536, 1), (100_000, 7)] {
        let faulty = Faulty::honest(RegistrySettings {
            slow_blobs: Duration::from_millis(50),
            ..RegistrySettings::default()
        })
        .await;
        faulty.add_blob(blob.clone());
        let source = registry(&faulty.host());
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::new(Some(dir.path()));
        let mut readers = Vec::new();
        for reader in 0..3 {
            let open = desk.open(&source, &layer, Some(ztoc.clone())).await.unwrap();
            let size = size / (1 + reader);
            let mut starts: Vec<usize> = (0..plain.len()).step_by(size).collect();
            if reader == 1 {
                starts.reverse();
            }
            // Some of them at once.
            let options = ContentOptions { deadline: Duration::from_secs(120), ..options() };
            readers.push((desk.content(&source, vec![open], options), starts, size));
        }
        let reads = readers.iter().map(|(content, starts, size)| {
            let content = content.clone();
            let starts = starts.clone();
            let size = *size;
            let plain = plain.clone();
            tokio::spawn(async move {
                for group in starts.chunks(step) {
                    let read = |at: usize| {
                        let content = content.clone();
                        let end = plain.len().min(at + size);
                        async move { (at..end, read(&content, at, end - at).await.unwrap()) }
                    };
                    for (range, found) in
                        futures_util::future::join_all(group.iter().copied().map(read)).await
                    {
                        assert!(found == plain[range.clone()], "{range:?}");
                    }
                }
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap();
        }
        let contents = || readers.iter().map(|(content, ..)| content);
        let spans = contents().next().unwrap().layers().next().unwrap().spans().count();
        let decoded: Vec<u64> = contents().map(|content| content.stats().spans_decoded).collect();
        assert_eq!(decoded.iter().sum::<u64>(), u64::from(spans), "{decoded:?}");
        assert_eq!(contents().map(|content| content.stats().errors).sum::<u64>(), 0);
        // Neighbours may share a byte.
        let requested = requested(&faulty);
        assert!(requested <= layer.size + u64::from(spans), "{requested} of {}", layer.size);
        assert_eq!(entries(dir.path()).len(), spans as usize);
    }
}

/// Another image that hangs does not block this one for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_hangs_does_not_block_others_for_long() {
    let (faulty, layer, plain, ztoc) = silent(1).await;
    let source = registry(&faulty.host());
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::new(Some(dir.path()));
    let open = desk.open(&source, &layer, Some(ztoc.clone())).await.unwrap();
    let hours = ContentOptions { deadline: Duration::from_secs(4 * 3600), ..options() };
    let hanging = desk.content(&source, vec![open], hours);
    let task = tokio::spawn(async move { read(&hanging, 1000, 1000).await });
    until_requested(&faulty, 1).await;
    let content = desk.one(&source, &layer, Some(ztoc)).await;
    // Within the deadline.
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    assert_eq!((faulty.saw("GET", "/blobs/").len(), content.stats().errors), (2, 0));
    task.abort();
}
