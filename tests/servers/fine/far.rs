//! Registries that are far away: a program waits for one span after the other, unless a recorded
//! start brings what it reads.

use ociseek_format::offset::Compressed;

use super::*;

/// Reads a byte of each span, in no order. Returns how many spans each request was for, in the
/// order of the requests, and how many spans there are. `fetches_start` says whether the recorded
/// `start` is fetched or ignored.
async fn requests_for_all_spans(
    start: &[Range<SpanId>],
    fetches_start: bool,
    cached: bool,
    content: ContentOptions,
) -> (Vec<usize>, usize) {
    let settings = RegistrySettings {
        referrers: true,
        slow_blobs: Duration::from_millis(20),
        ..RegistrySettings::default()
    };
    let registry = Faulty::honest(settings).await;
    let image = Image::push(&registry, false, start);
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, cached.then_some(dir.path()));
    let opened = reader.open(fetches_start, content).await;
    let spans = opened.layers[0].map.fine().unwrap().spans();
    let count = spans.count() as usize;
    assert!(count > 20);
    let step =
        (7..).find(|step| !count.is_multiple_of(*step) && [7, 11, 13, 17].contains(step)).unwrap();
    for number in 0..count {
        let plain = spans.plain_range(SpanId((number * step % count) as u32));
        let at = plain.start.0 as usize;
        assert_eq!(read(&opened, 0, at..at + 1).await[..], image.tars[0][at..at + 1]);
    }
    let spans_in = |seen: ReceivedRequest| {
        let (from, last) =
            seen.header("range").unwrap().strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let from = Compressed(from.parse().unwrap());
        let last = Compressed(last.parse().unwrap());
        let blobs =
            SpanId::each(SpanId(0)..SpanId(spans.count())).map(|span| spans.fetch_range(span));
        blobs.filter(|blob| from <= blob.start && blob.end <= last + 1).count()
    };
    let requests =
        registry.saw("GET", &image.blobs[0].digest.to_string()).into_iter().map(spans_in).collect();
    check(&opened, 0, &image.tars[0]).await;
    (requests, count)
}

#[tokio::test]
async fn what_arrives_while_a_request_waits_is_fetched_with_it() {
    for cached in [false, true] {
        let (requests, spans) = requests_for_all_spans(&[], false, cached, options()).await;
        // The first four find out how far away the registry is.
        assert!(requests.len() < spans / 2, "{requests:?} for {spans} spans");
    }
}

#[tokio::test]
async fn reads_that_a_recorded_start_covers_are_answered_as_before() {
    // Nothing of it is fetched ahead, because it has no room in memory. So each read misses its
    // span.
    let content = ContentOptions { memory: 0, ..options() };
    let (requests, spans) =
        requests_for_all_spans(&[SpanId(0)..SpanId(1000)], true, false, content).await;
    assert_eq!(requests, vec![1; spans]);
}

#[tokio::test]
async fn what_follows_is_fetched_again_after_misses_outside_a_recorded_start() {
    for fetches_start in [true, false] {
        let start = [SpanId(0)..SpanId(1)];
        let (requests, spans) =
            requests_for_all_spans(&start, fetches_start, true, options()).await;
        assert_eq!(requests[..8], [1; 8], "{requests:?}");
        assert!(requests.len() < spans, "{requests:?} for {spans} spans");
    }
}
