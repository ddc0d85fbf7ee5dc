//! Registries that are far away: a program without a recorded start waits for one span after the
//! other.

use super::*;

/// Reads a byte of each span, in no order, and returns how many requests that took.
async fn requests_for_all_spans(start: &[Range<SpanId>], cached: bool) -> (usize, usize) {
    let settings =
        RegistrySettings { referrers: true, slow_blobs: Duration::from_millis(20), ..RegistrySettings::default() };
    let registry = Faulty::honest(settings).await;
    let image = Image::push(&registry, false, start);
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, cached.then_some(dir.path()));
    let opened = reader.open(false, options()).await;
    let spans = opened.layers[0].map.fine().unwrap().spans();
    let count = spans.count() as usize;
    assert!(count > 20);
    let step = (7..).find(|step| !count.is_multiple_of(*step) && [7, 11, 13, 17].contains(step)).unwrap();
    for number in 0..count {
        let plain = spans.plain_range(SpanId((number * step % count) as u32));
        let at = plain.start.0 as usize;
        assert_eq!(read(&opened, 0, at..at + 1).await[..], image.tars[0][at..at + 1]);
    }
    check(&opened, 0, &image.tars[0]).await;
    (image.saw(&registry, 0), count)
}

#[tokio::test]
async fn what_arrives_while_a_request_waits_is_fetched_with_it() {
    for cached in [false, true] {
        let (requests, spans) = requests_for_all_spans(&[], cached).await;
        // The first four find out how far away the registry is.
        assert!(requests < spans / 2, "{requests} requests for {spans} spans");
    }
}

#[tokio::test]
async fn an_image_with_a_recorded_start_is_read_as_before() {
    let (requests, spans) = requests_for_all_spans(&[SpanId(0)..SpanId(1)], true).await;
    assert_eq!(requests, spans);
}
