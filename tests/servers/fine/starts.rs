//! Recorded starts, which are fetched before they are read.

use super::*;

/// How many requests of a recorded start are in progress.
const START_REQUESTS: usize = 12;

#[tokio::test]
async fn a_recorded_start_is_fetched_immediately_and_only_once() {
    for cached in [false, true] {
        let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
        // Out of order, as in a real start. Neighbours are a single request, even if others are
        // read between them.
        let start = [
            SpanId(12)..SpanId(13),
            SpanId(2)..SpanId(6),
            SpanId(13)..SpanId(14),
            SpanId(6)..SpanId(7),
        ];
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounts_of_one_process_fetch_a_recorded_start_once() {
    let settings = RegistrySettings {
        referrers: true,
        slow_blobs: Duration::from_millis(50),
        ..RegistrySettings::default()
    };
    let registry = Faulty::honest(settings).await;
    let start: Vec<Range<SpanId>> =
        (0..10).map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
    let image = Image::push(&registry, false, &start);
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, Some(dir.path()));
    let options = || ContentOptions { deadline: Duration::from_secs(120), ..options() };
    let (one, other) = tokio::join!(reader.open(true, options()), reader.open(true, options()));
    let decoded = || one.content.stats().spans_decoded + other.content.stats().spans_decoded;
    for _ in 0..2000 {
        if decoded() >= 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(decoded(), 10);
    let (a, b) = tokio::join!(
        read(&one, 0, 0..image.tars[0].len()),
        read(&other, 0, 0..image.tars[0].len())
    );
    assert!(a == image.tars[0] && b == image.tars[0]);
    let spans = one.layers[0].map.fine().unwrap().spans().count();
    assert_eq!(decoded(), u64::from(spans));
}

#[tokio::test]
async fn a_recorded_start_is_loaded_into_memory_from_the_cache() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let start = [SpanId(2)..SpanId(6), SpanId(12)..SpanId(14)];
    let image = Image::push(&registry, false, &start);
    let dir = tempfile::tempdir().unwrap();
    settled(&Reader::new(&registry, Some(dir.path())).open(true, options()).await, 6).await;
    let before = image.saw(&registry, 0);

    let opened = Reader::new(&registry, Some(dir.path())).open(true, options()).await;
    let content = opened.content.clone();
    tokio::task::spawn_blocking(move || content.load_start()).await.unwrap();
    assert_eq!(opened.content.stats().disk_hits, 6);
    // From here on, memory alone has them.
    std::fs::remove_dir_all(SpanCache::dir_in(dir.path())).unwrap();
    let spans = opened.layers[0].map.fine().unwrap().spans();
    for span in start.iter().cloned().flat_map(SpanId::each) {
        let plain = spans.plain_range(span);
        let range = plain.start.0 as usize..plain.end.0 as usize;
        assert!(read(&opened, 0, range.clone()).await == image.tars[0][range], "span {span}");
    }
    assert_eq!(image.saw(&registry, 0), before);
    assert_eq!(opened.content.stats().requests, 0);
}

#[tokio::test]
async fn a_registry_that_redirects_is_asked_once_for_each_layer_of_the_start() {
    let each = |spans: Range<u32>| {
        spans.map(|span| SpanId(2 * span)..SpanId(2 * span + 1)).collect::<Vec<_>>()
    };
    for redirects in [true, false] {
        let settings = RegistrySettings::with_referrers();
        let store = Faulty::honest(settings.clone()).await;
        let image = Image::push(&store, false, &each(0..6));
        let to = store.host();
        let fine = image.fine.clone();
        // The documents take a while.
        let settings = RegistrySettings { slow_blobs: Duration::from_millis(500), ..settings };
        let registry = Faulty::start(settings, move |seen, _| {
            let is_document =
                fine.layers.iter().any(|layer| seen.path.contains(&layer.document.to_string()));
            let is_redirected = seen.is("GET", "/blobs/") && !is_document;
            (redirects && is_redirected)
                .then(|| redirect(307, &format!("http://{to}{}?Signature=x", seen.path)))
        })
        .await;
        Image::push(&registry, false, &each(0..6));
        let opened = Reader::new(&registry, None).open(true, options()).await;
        settled(&opened, 6).await;
        let parts = |at: &Faulty, layer: usize| -> Vec<String> {
            let seen = at.saw("GET", &image.blobs[layer].digest.to_string());
            seen.iter().map(|seen| seen.header("range").unwrap_or("all").to_owned()).collect()
        };
        if redirects {
            assert_eq!(parts(&registry, 0), ["bytes=0-0"]);
            assert_eq!((parts(&store, 0).len(), &*parts(&store, 0)[0]), (7, "bytes=0-0"));
        } else {
            assert_eq!((parts(&registry, 0).len(), parts(&store, 0).len()), (6, 0))
        }
        // The start does not read this layer.
        assert_eq!((parts(&registry, 1).len(), parts(&store, 1).len()), (0, 0));
        check(&opened, 0, &image.tars[0]).await;
    }
}

#[tokio::test]
async fn requests_of_a_recorded_start_are_limited_by_number_and_bytes() {
    let each = |spans: Range<u32>| {
        spans.map(|span| SpanId(2 * span)..SpanId(2 * span + 1)).collect::<Vec<_>>()
    };
    let large =
        || (0..3).map(|range| SpanId(20 * range)..SpanId(20 * range + 13)).collect::<Vec<_>>();
    // Large ones have 0.9 MiB each. Layers take turns by bytes.
    for (starts, expected) in [([large(), Vec::new()], [2, 0]), ([large(), each(0..25)], [1, 11])] {
        let known = Arc::new(std::sync::OnceLock::<Vec<String>>::new());
        let blobs = Arc::clone(&known);
        let released = Arc::new(AtomicBool::new(false));
        let on = Arc::clone(&released);
        let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, _| {
            let is_stopped = blobs.get()?.iter().any(|blob| seen.path.contains(blob))
                && !on.load(Ordering::SeqCst);
            is_stopped.then(no_response)
        })
        .await;
        let tars = vec![tar(1, 10, 400_000), tar(2, 10, 400_000)];
        let image = Image::push_layers(&registry, tars, false, &starts);
        known.set(image.blobs.iter().map(|blob| blob.digest.to_string()).collect()).unwrap();
        let reader = Reader::new(&registry, None);
        let opened = reader.open(true, options()).await;
        let saw = || [image.saw(&registry, 0), image.saw(&registry, 1)];
        while saw() != expected {
            assert!(
                saw().iter().zip(&expected).all(|(saw, expected)| saw <= expected),
                "{:?}",
                saw()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(saw(), expected);
        released.store(true, Ordering::SeqCst);
        drop(opened);
        let opened = reader.open(true, options()).await;
        settled(
            &opened,
            starts.iter().flatten().map(|range| u64::from(range.end.0 - range.start.0)).sum(),
        )
        .await;
        check(&opened, 0, &image.tars[0]).await;
    }
}

#[tokio::test]
async fn wasted_prefetching_is_limited() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    // Each is a separate request.
    let start: Vec<Range<SpanId>> =
        (0..14).rev().map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
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
async fn a_start_that_is_faster_than_the_program_goes_on_when_that_has_read_enough() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let start: Vec<Range<SpanId>> =
        (0..14).rev().map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
    let image = Image::push(&registry, false, &start);
    let reader = Reader::new(&registry, None);
    let opened = reader.open(true, ContentOptions { unread: 1, ..options() }).await;
    let spans = opened.layers[0].map.fine().unwrap().spans();
    for span in start.iter().cloned().flat_map(SpanId::each) {
        let plain = spans.plain_range(span);
        let range = plain.start.0 as usize..plain.end.0 as usize;
        assert!(read(&opened, 0, range.clone()).await == image.tars[0][range], "span {span}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for _ in 0..2000 {
        if !opened.content.start_stats().stopped {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stats = opened.content.start_stats();
    assert_eq!((stats.unread_bytes, stats.stopped), (0, false), "{stats:?}");
}

#[tokio::test]
async fn without_a_disk_cache_a_start_uses_at_most_half_of_the_memory() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let image = Image::push(&registry, false, &[SpanId(0)..SpanId(27)]);
    let reader = Reader::new(&registry, None);
    let opened = reader.open(true, ContentOptions { memory: 10 * SPAN, ..options() }).await;
    settled(&opened, 3).await;
    assert!(
        (3..=5).contains(&opened.content.start_stats().spans),
        "{:?}",
        opened.content.start_stats()
    );
    check(&opened, 0, &image.tars[0]).await;
}

#[tokio::test]
async fn reads_do_not_wait_for_a_stalled_start() {
    let blob = Arc::new(std::sync::OnceLock::<(String, Range<u64>)>::new());
    let asked_for = Arc::clone(&blob);
    let released = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&released);
    let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, truth| {
        let (digest, read) = asked_for.get()?;
        if !seen.path.contains(digest) || on.load(Ordering::SeqCst) {
            return None;
        }
        let from: u64 =
            seen.header("range")?.strip_prefix("bytes=")?.split_once('-')?.0.parse().ok()?;
        // Everything is silent except what is read.
        let (head, _) = truth.truth_now(seen).into_parts();
        (!read.contains(&from))
            .then(|| Response::from_parts(head, stalls(&Bytes::new(), 0).into_body()))
    })
    .await;
    let start: Vec<Range<SpanId>> =
        (1..14).map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
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
async fn faults_during_a_start_do_no_harm() {
    for fault in ["500", "429", "404", "206", "cut"] {
        let blob = Arc::new(std::sync::OnceLock::<String>::new());
        let digest = Arc::clone(&blob);
        let count = AtomicUsize::new(0);
        let released = Arc::new(AtomicBool::new(false));
        let on = Arc::clone(&released);
        let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, truth| {
            if !seen.path.contains(digest.get()?)
                || count.fetch_add(1, Ordering::SeqCst) >= START_REQUESTS
            {
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
        let start: Vec<Range<SpanId>> =
            (0..14).map(|span| SpanId(span * 2)..SpanId(span * 2 + 1)).collect();
        let image = Image::push(&registry, false, &start);
        blob.set(image.blobs[0].digest.to_string()).unwrap();
        let reader = Reader::new(&registry, None);
        let opened = reader.open(true, options()).await;
        while image.saw(&registry, 0) < START_REQUESTS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let content = opened.content.clone();
        let joined =
            tokio::spawn(async move { content.read(LayerId(0), Uncompressed(0), 1000).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        released.store(true, Ordering::SeqCst);
        assert!(joined.await.unwrap().unwrap() == image.tars[0][..1000], "{fault}");
        check(&opened, 0, &image.tars[0]).await;
    }
}
