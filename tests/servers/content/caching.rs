//! How many requests the registry gets.

use futures_util::FutureExt;
use ociseek_format::progress::causes;

use super::*;
use ociseek_testkit::servers::skip;

/// A registry with one layer, its plain bytes, and its ztoc with spans of at least 64 KiB.
async fn served(sizes: &[usize]) -> (Faulty, Source, Descriptor, Vec<u8>, Bytes) {
    let plain = tar(sizes);
    let blob = gzip(&plain);
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(blob.clone());
    let source = registry(&faulty.host());
    (faulty, source, Descriptor::of(GZIP, &blob), plain, ztoc(&blob, 65_536))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_readers_of_a_span_send_one_request() {
    for on_disk in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (faulty, source, layer, plain, ztoc) = served(&[3_000_000]).await;
        let desk = Desk::new(on_disk.then_some(dir.path()));
        let content = desk.one(&source, &layer, Some(ztoc)).await;
        let reads = (0..100usize).map(|i| {
            let content = content.clone();
            let expected = plain[600 + i..600 + 2 * i].to_vec();
            tokio::spawn(
                async move { assert!(read(&content, 600 + i, i).await.unwrap() == expected) },
            )
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap();
        }
        assert_eq!(faulty.saw("GET", "/blobs/").len(), 1);
        let stats = content.stats();
        assert_eq!(
            (stats.requests, stats.spans_decoded, stats.retries, stats.errors),
            (1, 1, 0, 0)
        );
        let span =
            content.layers().next().unwrap().spans().blob_range(ociseek_format::offset::SpanId(0));
        assert_eq!(stats.bytes_fetched, span.end.0 - span.start.0);
        assert_eq!(stats.image_bytes, layer.size);
    }
}

#[tokio::test]
async fn neighbouring_spans_are_fetched_in_one_request() {
    let (faulty, source, layer, plain, ztoc) = served(&[3_000_000]).await;
    let content = Desk::new(None).one(&source, &layer, Some(ztoc)).await;
    assert!(
        SpanId::each(content.spans(LayerId(0), Uncompressed(1000)..Uncompressed(1_500_000))).len()
            > 10
    );
    assert!(read(&content, 1000, 1_499_000).await.unwrap() == plain[1000..1_500_000]);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 1);
    // Cached spans divide the missing ones.
    assert!(read(&content, 0, 2_900_000).await.unwrap() == plain[..2_900_000]);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 2);
}

#[tokio::test]
async fn spans_that_are_near_each_other_are_fetched_in_one_request() {
    let (faulty, source, layer, plain, ztoc) = served(&[3_000_000]).await;
    let content = Desk::new(None).one(&source, &layer, Some(ztoc)).await;
    let table = content.layers().next().unwrap().spans().clone();
    let spans = SpanId::each(SpanId(0)..SpanId(table.count())).map(|span| table.plain_range(span));
    let spans: Vec<_> = spans.map(|plain| plain.start.0 as usize..plain.end.0 as usize).collect();
    // The cost of a request is known after some of them.
    for span in [&spans[1], &spans[3], &spans[5], &spans[7]] {
        assert!(read(&content, span.start, 1).await.unwrap()[..] == plain[span.start..][..1]);
    }
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 4);
    // What lies between the missing spans takes less time than three more requests.
    assert!(read(&content, 0, spans[9].end).await.unwrap() == plain[..spans[9].end]);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 5);
    assert_eq!(content.stats().spans_decoded, 10, "none is decoded again");
}

#[tokio::test]
async fn sequential_reads_need_few_requests_and_none_past_the_file() {
    let (faulty, source, layer, plain, ztoc) = served(&[6_000_000, 6_000_000]).await;
    let desk = Desk::new(None);
    let open = desk.open(&source, &layer, Some(ztoc)).await.unwrap();
    let content = desk.content(&source, vec![open], ContentOptions::default());
    let file = 512..6_000_512;
    for at in file.clone().step_by(65_536) {
        let size = (file.end - at).min(65_536);
        assert!(read(&content, at, size).await.unwrap() == plain[at..at + size]);
    }
    let asked = faulty.saw("GET", "/blobs/").len();
    assert!(
        asked <= 12,
        "{asked} requests for {} spans",
        SpanId::each(content.spans(LayerId(0), Uncompressed(0)..Uncompressed(6_000_512))).len()
    );
    let last = content.spans(LayerId(0), Uncompressed(6_000_511)..Uncompressed(6_000_512)).start;
    let end = content.layers().next().unwrap().spans().blob_range(last).end.0;
    assert!(content.stats().bytes_fetched <= end, "{} of {end}", content.stats().bytes_fetched);
}

#[tokio::test]
async fn a_warm_cache_needs_no_requests() {
    let dir = tempfile::tempdir().unwrap();
    let (faulty, source, layer, plain, ztoc) = served(&[1_000_000]).await;
    let first = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc.clone())).await;
    check(&first, 0, &plain, 60).await;
    let asked = faulty.requests().len();
    assert!(first.stats().memory_hits > 0);
    let second = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc.clone())).await;
    check(&second, 0, &plain, 60).await;
    assert_eq!(faulty.requests().len(), asked);
    assert_eq!(second.stats().requests, 0);
    assert!(second.stats().disk_hits > 0);

    // Every entry is damaged: all is fetched again, and is correct.
    for path in entries(dir.path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[end - 1] ^= 1;
        bytes[end / 2] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let third = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc.clone())).await;
    check(&third, 0, &plain, 60).await;
    assert!(faulty.requests().len() > asked);
    let fourth = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc)).await;
    check(&fourth, 0, &plain, 60).await;
    assert_eq!(fourth.stats().requests, 0);
}

#[tokio::test]
async fn a_read_takes_from_disk_only_the_pieces_that_memory_lacks() {
    use ociseek_rootfs::cache::PIECE;
    let dir = tempfile::tempdir().unwrap();
    let (faulty, source, layer, plain, _) = served(&[1_000_000]).await;
    let ztoc = ztoc(&faulty.blob(&layer.digest).unwrap(), 4 << 20);
    let first = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc.clone())).await;
    check(&first, 0, &plain, 60).await;
    let asked = faulty.requests().len();

    let second = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc)).await;
    let read_well = async |at: usize, size: usize| {
        assert!(
            read(&second, at, size).await.unwrap() == plain[at..at + size],
            "{size} bytes at {at}"
        );
    };
    read_well(0, 2 * PIECE).await;
    assert_eq!(second.memory(), 0, "whole pieces are with the reader");
    read_well(2 * PIECE, PIECE + 10).await;
    read_well(6 * PIECE + 10, 10).await;
    assert_eq!(second.memory(), 2 * PIECE as u64);
    // Both pieces in memory can no longer be read from disk.
    for path in entries(dir.path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        let start = bytes.len() - plain.len();
        [3, 6].iter().for_each(|piece| bytes[start + piece * PIECE] ^= 1);
        std::fs::write(&path, bytes).unwrap();
    }
    read_well(3 * PIECE + 10, 3 * PIECE).await;
    assert_eq!((faulty.requests().len(), second.stats().errors), (asked, 0));
    read_well(3 * PIECE, 1).await;
}

/// The bytes that the first poll of a read returns, without a runtime.
fn first_poll(content: &Content, at: usize, size: usize) -> Option<Bytes> {
    let content = content.clone();
    let polled = std::thread::spawn(move || read(&content, at, size).now_or_never());
    polled.join().unwrap().map(|read| read.unwrap())
}

#[tokio::test]
async fn the_first_poll_of_a_read_returns_bytes_in_memory() {
    // On a disk: tmpfs, where the tests may have their files, does not tell what is in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (_faulty, source, layer, plain, ztoc) = served(&[1_000_000]).await;
    let first = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc.clone())).await;
    assert_eq!(first_poll(&first, 1000, 5000), None);
    assert!(read(&first, 1000, 5000).await.unwrap() == plain[1000..6000]);
    assert_eq!(first_poll(&first, 1000, 5000).as_deref(), Some(&plain[1000..6000]));
    assert_eq!(first_poll(&first, 900_000, 5000), None, "another span");
    assert_eq!(first.stats().memory_hits, 1);

    // A new content finds the span in the cache on disk, if the file system can tell that the
    // system has it in memory; a damaged one is left to those who may wait.
    let second = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc.clone())).await;
    match first_poll(&second, 1000, 5000) {
        Some(bytes) => assert!(bytes == plain[1000..6000]),
        None => skip("this file system does not tell what is in memory"),
    }
    assert!(read(&second, 1000, 5000).await.unwrap() == plain[1000..6000]);
    let stats = second.stats();
    assert_eq!((stats.requests, stats.disk_hits, stats.spans_decoded), (0, 1, 0));
    for path in entries(dir.path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().skip(10).for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes).unwrap();
    }
    let third = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc)).await;
    assert_eq!(first_poll(&third, 1000, 5000), None);
    assert!(read(&third, 1000, 5000).await.unwrap() == plain[1000..6000]);
}

#[tokio::test]
async fn a_forged_window_does_not_poison_the_cache_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let (_faulty, source, layer, plain, ztoc) = served(&[1_000_000]).await;
    let mut forged = ociseek_format::ztoc::decode(&ztoc).unwrap();
    if let ociseek_format::ztoc::Checkpoints::Gzip { list, .. } = &mut forged.checkpoints {
        list.iter_mut()
            .for_each(|checkpoint| checkpoint.window.iter_mut().for_each(|byte| *byte = b'!'));
    }
    let forged = Bytes::from(ociseek_format::ztoc::encode(&forged));
    let victim = Desk::new(Some(dir.path())).one(&source, &layer, Some(forged)).await;
    let error = read(&victim, 0, 900_000).await.unwrap_err();
    assert!(
        causes(&error).contains("window"),
        "the span before it shows what the window is: {error:?}"
    );
    let honest = Desk::new(Some(dir.path())).one(&source, &layer, Some(ztoc)).await;
    check(&honest, 0, &plain, 60).await;
}

#[tokio::test]
async fn prefetched_spans_are_read_without_the_registry() {
    let dir = tempfile::tempdir().unwrap();
    let (faulty, source, layer, plain, ztoc) = served(&[3_000_000, 100]).await;
    let desk = Desk::new(Some(dir.path()));
    let content = desk.one(&source, &layer, Some(ztoc.clone())).await;
    read(&content, 1_000_000, 1000).await.unwrap();
    content.fetch_rest(&BackgroundFetches::default()).await;
    let asked = faulty.requests().len();
    assert!(asked <= 4, "{asked}");
    let whole = plain.len() as u64;
    let stats = |bytes, unfit_bytes| Some(RestStats { bytes, of_bytes: whole, unfit_bytes });
    assert_eq!(content.rest_stats(), stats(whole, 0));
    check(&content, 0, &plain, 60).await;
    assert_eq!(faulty.requests().len(), asked);
    assert!(content.stats().bytes_fetched < layer.size + 100_000, "nothing is fetched twice");
    assert_eq!(desk.warnings(), Vec::<String>::new());

    let small = Desk::with_limit(Some(&dir.path().join("small")), 1_000_000);
    let content = small.one(&source, &layer, Some(ztoc.clone())).await;
    assert_eq!(content.rest_stats(), None);
    content.fetch_rest(&BackgroundFetches::default()).await;
    assert_eq!(small.warnings().len(), 1, "{:?}", small.warnings());
    let told = content.rest_stats().unwrap();
    assert_eq!(told.unfit_bytes, whole - 800_000);
    assert!((600_000..=800_000).contains(&told.bytes), "{told:?}");
    check(&content, 0, &plain, 30).await;

    let content = Desk::new(None).one(&source, &layer, Some(ztoc)).await;
    content.fetch_rest(&BackgroundFetches::default()).await;
    assert_eq!(content.stats().requests, 0);
}

#[tokio::test]
async fn only_the_spans_of_a_prefetch_list_are_prefetched() {
    let dir = tempfile::tempdir().unwrap();
    let (faulty, source, layer, plain, ztoc) = served(&[3_000_000]).await;
    let desk = Desk::new(Some(dir.path()));
    let content = desk.one(&source, &layer, Some(ztoc)).await;
    let list = |content: &str| {
        faulty.add_blob(content.as_bytes().to_vec());
        Descriptor::of("application/vnd.amazon.soci.prefetch.v1+json", content.as_bytes())
    };
    // A list may exceed the last span. An invalid list, or one for a missing layer, is ignored.
    let [near, far] = ["2,\"end_span\":3", "90000,\"end_span\":4294967295"]
        .map(|r| format!("{{\"start_span\":{r}}}"));
    let listed = list(&format!("{{\"version\":\"1.0\",\"prefetch_spans\":[{near},{far}]}}"));
    let odd = list("{\"version\":\"1.0\",\"prefetch_spans\":[]}");
    content
        .prefetch_artifacts(vec![
            (LayerId(0), odd),
            (LayerId(0), listed.clone()),
            (LayerId(7), listed),
        ])
        .await;
    let blob = layer.digest.to_string();
    assert_eq!(faulty.saw("GET", &blob).len(), 1, "neighbours come in one request");
    let warnings = desk.warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("lists no spans"), "{warnings:?}");
    let range = content.layers().next().map(|layer| layer.spans().plain_range(SpanId(2))).unwrap();
    let at = usize::try_from(range.start.0).unwrap();
    assert_eq!(read(&content, at, 1000).await.unwrap(), plain[at..at + 1000]);
    assert_eq!(faulty.saw("GET", &blob).len(), 1, "it is there");
    assert_eq!(read(&content, 0, 1000).await.unwrap(), plain[..1000]);
    assert_eq!(faulty.saw("GET", &blob).len(), 2, "and nothing else is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_read_does_not_affect_the_others() {
    let plain = tar(&[500_000]);
    let slow = Duration::from_millis(300);
    let blob = gzip(&plain);
    let ztoc = ztoc(&blob, 65_536);
    let faulty =
        Faulty::honest(RegistrySettings { slow_blobs: slow, ..RegistrySettings::default() }).await;
    faulty.add_blob(blob.clone());
    let content = Desk::new(None)
        .one(&registry(&faulty.host()), &Descriptor::of(GZIP, &blob), Some(ztoc))
        .await;
    let impatient = tokio::time::timeout(Duration::from_millis(50), read(&content, 0, 1000)).await;
    assert!(impatient.is_err());
    assert!(read(&content, 5, 1000).await.unwrap() == plain[5..1005]);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 1);
}

/// A zstd layer in a registry.
async fn whole(plain: Vec<u8>) -> (Faulty, Source, Descriptor, Vec<u8>) {
    let blob = zstd(&plain);
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(blob.clone());
    let source = registry(&faulty.host());
    (faulty, source, Descriptor::of(ZSTD, &blob), plain)
}

#[tokio::test]
async fn a_zstd_layer_is_cached_in_a_recreated_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (_faulty, source, layer, plain) = whole(tar(&[6_000_000, 6_000_000])).await;
    let content = Desk::new(Some(dir.path())).one(&source, &layer, None).await;
    std::fs::remove_dir_all(dir.path().join("spans")).unwrap();
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    let asked = content.stats().requests;
    // The reader of the first span is done before the last span is cached.
    check(&content, 0, &plain, 20).await;
    assert!(content.stats().requests == asked, "{:?}", content.stats());
}

#[tokio::test]
async fn an_uncached_zstd_layer_is_decoded_only_as_far_as_needed() {
    // Spans are larger than half of the first cache, and the layer is larger than the second.
    for most in [4 << 20, 10 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let (_faulty, source, layer, plain) = whole(tar(&[40_000_000])).await;
        let desk = Desk::with_limit(Some(dir.path()), most);
        let open = desk.open(&source, &layer, None).await.unwrap();
        let content = desk.content(&source, vec![open], ContentOptions { memory: 0, ..options() });
        for _ in 0..3 {
            let _ = std::fs::remove_dir_all(dir.path().join("spans"));
            let before = content.stats();
            assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
            // Decoding locks the layer, so after this read nobody decodes it any more.
            assert!(read(&content, 2000, 1000).await.unwrap() == plain[2000..3000]);
            let fetched = content.stats().bytes_fetched - before.bytes_fetched;
            assert!(fetched < layer.size, "{most}: {fetched} of {}", layer.size);
            assert!(
                content.stats().spans_decoded - before.spans_decoded <= 2,
                "{most}: {:?}",
                content.stats()
            );
        }
        let told = desk
            .warnings()
            .iter()
            .filter(|warning| warning.contains("more than the cache keeps"))
            .count();
        assert_eq!(told, 1, "{:?}", desk.warnings());
        check(&content, 0, &plain, 5).await;
    }
}

#[tokio::test]
async fn a_decompression_bomb_does_not_evict_other_layers() {
    let dir = tempfile::tempdir().unwrap();
    let mut bomb = Vec::new();
    for number in 0..25u8 {
        bomb.extend(tarball::file(&format!("f{number}"), &vec![number; 4 << 20]));
    }
    bomb.extend(tarball::end());
    let (_faulty, source, layer, plain) = whole(bomb).await;
    let desk = Desk::with_limit(Some(dir.path()), 90 << 20);
    let mine = SpanPlace::alone(SpanKey::plain(&Digest::sha256(b"mine"), 4), 4);
    assert!(desk.caches.spans.put(&mine, b"mine"));
    let content = desk.one(&source, &layer, None).await;
    for at in [90 << 20, 50 << 20, 1000] {
        assert!(read(&content, at, 1000).await.unwrap() == plain[at..at + 1000]);
    }
    let kept: u64 = entries(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(kept < 75 << 20, "{kept}");
    assert!(desk.caches.spans.has(&mine));
}
