//! Registries that lie, break connections, or do not respond while a reader waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::body::Body;
use axum::http::{Response, header};

use super::*;

struct Served {
    plain: Vec<u8>,
    blob: Bytes,
    layer: Descriptor,
    ztoc: Bytes,
}

fn served() -> Served {
    let plain = tar(&[500_000]);
    let blob = gzip(&plain);
    Served { layer: Descriptor::of(GZIP, &blob), ztoc: ztoc(&blob, 65_536), plain, blob }
}

/// The correct response with one wrong byte.
fn wrong(seen: &ReceivedRequest, truth: &Faulty, blob: &Bytes) -> Response<Body> {
    let mut spoiled = blob.to_vec();
    spoiled.iter_mut().for_each(|byte| *byte ^= 1);
    let digest = Digest::sha256(blob).to_string();
    let (head, _) = truth.get_blob(seen, &digest).into_parts();
    let range =
        seen.header("range").and_then(|r| r.strip_prefix("bytes=")?.split_once('-')).unwrap();
    let from = range.0.parse::<usize>().unwrap();
    let last = range.1.parse::<usize>().unwrap();
    Response::from_parts(head, Body::from(spoiled[from..=last].to_vec()))
}

#[tokio::test]
async fn wrong_bytes_are_fetched_again_past_caches() {
    let Served { plain, blob, layer, ztoc } = served();
    let spoilt = blob.clone();
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        once().then(|| wrong(seen, truth, &spoilt))
    })
    .await;
    faulty.add_blob(blob);
    let desk = Desk::new(None);
    let content = desk.one(&registry(&faulty.host()), &layer, Some(ztoc)).await;
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    let asked = faulty.saw("GET", "/blobs/");
    let caching: Vec<_> = asked.iter().map(|get| get.header("cache-control")).collect();
    assert_eq!(caching, [None, Some("no-cache")]);
    let stats = content.stats();
    assert_eq!((stats.retries, stats.errors, stats.spans_decoded), (1, 0, 1));
    assert_eq!(desk.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn persistent_wrong_bytes_are_an_error_until_they_are_right() {
    let Served { plain, blob, layer, ztoc } = served();
    let spoilt = blob.clone();
    let lies = first(4);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        lies().then(|| wrong(seen, truth, &spoilt))
    })
    .await;
    faulty.add_blob(blob);
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::new(Some(dir.path()));
    let content = desk.one(&registry(&faulty.host()), &layer, Some(ztoc)).await;
    for _ in 0..2 {
        let error = read(&content, 1000, 1000).await.unwrap_err();
        assert!(matches!(error, ReadError::Span { .. }), "{error:?}");
        assert_eq!(entries(dir.path()), Vec::<PathBuf>::new(), "nothing wrong is kept");
    }
    assert_eq!(desk.warnings().len(), 1, "told once: {:?}", desk.warnings());
    assert!(
        desk.warnings()[0].contains(&layer.digest.to_string())
            && desk.warnings()[0].contains("span 0")
    );
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    assert_eq!(content.stats().errors, 2);
}

#[tokio::test]
async fn invalid_responses_cause_errors_or_right_bytes() {
    type Lie = fn(&ReceivedRequest, &Faulty, &Bytes) -> Response<Body>;
    let lies: [(&str, bool, Lie); 8] = [
        ("the whole instead of the part", true, |_, _, blob| {
            Response::new(Body::from(blob.clone()))
        }),
        ("a web page", false, |_, _, _| web_page()),
        ("nothing", false, |_, _, _| status(206)),
        ("another part", false, |_, _, blob| {
            let range = format!("bytes 0-99/{}", blob.len());
            let answer = Response::builder().status(206).header(header::CONTENT_RANGE, range);
            answer.body(Body::from(blob.slice(..100))).unwrap()
        }),
        ("not found", false, |_, _, _| problem(404, "BLOB_UNKNOWN", "gone")),
        ("denied", false, |_, _, _| problem(403, "DENIED", "no")),
        ("out of order", false, |_, _, _| status(503)),
        ("a redirect to itself", false, |_, _, _| redirect(307, "?again")),
    ];
    for (what, works, lie) in lies {
        let Served { plain, blob, layer, ztoc } = served();
        let whole = blob.clone();
        let lying = Arc::new(AtomicUsize::new(1));
        let on = Arc::clone(&lying);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            (on.load(Ordering::SeqCst) == 1).then(|| lie(seen, truth, &whole))
        })
        .await;
        faulty.add_blob(blob);
        let desk = Desk::new(None);
        let open = desk.open(&registry(&faulty.host()), &layer, Some(ztoc)).await.unwrap();
        // Temporary errors are retried until the deadline.
        let may_pass = what == "out of order";
        let deadline = if may_pass { Duration::from_millis(1200) } else { options().deadline };
        let content = desk.content(
            &registry(&faulty.host()),
            vec![open],
            ContentOptions { deadline, ..options() },
        );
        match read(&content, 100_000, 1000).await {
            Ok(found) => assert!(works && found == plain[100_000..101_000], "{what}"),
            Err(error) => {
                let is_right = match error {
                    ReadError::Fetch { .. } => !may_pass,
                    ReadError::Deadline { .. } => may_pass,
                    _ => false,
                };
                assert!(!works && is_right, "{what}: {error:?}");
                // One for the read, and one for the registry that is being retried.
                assert!((1..=1 + usize::from(may_pass)).contains(&desk.warnings().len()), "{what}");
            }
        }
        lying.store(0, Ordering::SeqCst);
        if may_pass {
            // A span that has just missed the deadline is not waited for again.
            tokio::time::sleep(deadline / 4).await;
        }
        assert!(
            read(&content, 100_000, 1000).await.unwrap() == plain[100_000..101_000],
            "{what} and then the truth"
        );
    }
}

#[tokio::test]
async fn a_silent_registry_fails_the_read_at_its_deadline() {
    let Served { plain, blob, layer, ztoc } = served();
    let whole = blob.clone();
    let silent = Arc::new(AtomicUsize::new(1));
    let on = Arc::clone(&silent);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        (on.load(Ordering::SeqCst) == 1).then(|| {
            let (head, _) = truth.get_blob(seen, &Digest::sha256(&whole).to_string()).into_parts();
            Response::from_parts(head, stalls(&whole, 10).into_body())
        })
    })
    .await;
    faulty.add_blob(blob);
    let desk = Desk::new(None);
    let open = desk.open(&registry(&faulty.host()), &layer, Some(ztoc)).await.unwrap();
    let hasty = ContentOptions { deadline: Duration::from_millis(1200), ..options() };
    let content = desk.content(&registry(&faulty.host()), vec![open], hasty.clone());
    let begun = Instant::now();
    let error = read(&content, 1000, 1000).await.unwrap_err();
    assert!(matches!(error, ReadError::Deadline { .. }), "{error:?}");
    assert!(begun.elapsed() >= hasty.deadline, "{:?}", begun.elapsed());
    silent.store(0, Ordering::SeqCst);
    // The kernel repeats the request at once for the page that a program waits for.
    let asked = faulty.requests().len();
    let error = read(&content, 1000, 10).await.unwrap_err();
    assert!(
        matches!(error, ReadError::Deadline { .. }) && faulty.requests().len() == asked,
        "{error:?}"
    );
    tokio::time::sleep(hasty.deadline / 4).await;
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
}

#[tokio::test]
async fn a_stalled_connection_is_replaced() {
    let Served { plain, blob, layer, ztoc } = served();
    let whole = blob.clone();
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        once().then(|| {
            let (head, _) = truth.get_blob(seen, &Digest::sha256(&whole).to_string()).into_parts();
            Response::from_parts(head, stalls(&whole.slice(10..), 100).into_body())
        })
    })
    .await;
    faulty.add_blob(blob);
    let desk = Desk::new(None);
    let open = desk.open(&registry(&faulty.host()), &layer, Some(ztoc)).await.unwrap();
    let hasty = ContentOptions { deadline: Duration::from_secs(4), ..options() };
    let content = desk.content(&registry(&faulty.host()), vec![open], hasty);
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    assert_eq!(content.stats().retries, 1);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 2);
}

/// The rest of a blob from where a request begins.
fn wanted(seen: &ReceivedRequest, blob: &Bytes) -> Bytes {
    let range =
        seen.header("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    blob.slice(range.unwrap().0.parse::<usize>().unwrap()..)
}

/// A body of which a byte comes now and then.
fn trickle(rest: Bytes) -> Body {
    Body::from_stream(futures_util::stream::unfold(rest, |mut rest| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let byte = rest.split_to(1);
        Some((Ok::<_, std::convert::Infallible>(byte), rest))
    }))
}

#[tokio::test]
async fn a_mirror_that_stalls_or_trickles_is_passed_by() {
    type Silence = fn(Bytes) -> Body;
    let silences: [Silence; 2] = [|rest| stalls(&rest, 100).into_body(), trickle];
    for silence in silences {
        let Served { plain, blob, layer, ztoc } = served();
        let whole = blob.clone();
        let mirror = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            let (head, _) = truth.get_blob(seen, &Digest::sha256(&whole).to_string()).into_parts();
            Some(Response::from_parts(head, silence(wanted(seen, &whole))))
        })
        .await;
        let faulty = Faulty::honest(RegistrySettings::default()).await;
        for registry in [&mirror, &faulty] {
            registry.add_blob(blob.clone());
        }
        let hosts = tempfile::tempdir().unwrap();
        let dir = hosts.path().join(format!("{}_", faulty.host().replace(':', "_")));
        std::fs::create_dir(&dir).unwrap();
        let text = format!("[host.\"http://{}\"]\n", mirror.host());
        std::fs::write(dir.join("hosts.toml"), text).unwrap();
        let hosts_dir = Some(hosts.path().to_owned());
        let credentials = CredentialSource::Anonymous;
        let config = ClientConfig { hosts_dir, credentials, ..ClientConfig::default() };
        let repository = Client::new(config).unwrap().repository(&faulty.host(), "a/b").unwrap();
        let source = Source::Registry(repository);
        let desk = Desk::new(None);
        let open = desk.open(&source, &layer, Some(ztoc)).await.unwrap();
        let hasty = ContentOptions { deadline: Duration::from_secs(4), ..options() };
        let content = desk.content(&source, vec![open], hasty);
        assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
        assert!(!mirror.requests().is_empty() && !faulty.requests().is_empty());
    }
}

#[tokio::test]
async fn a_trickling_connection_is_replaced() {
    let Served { plain, blob, layer, ztoc } = served();
    let whole = blob.clone();
    let count = AtomicUsize::new(0);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        // The second request gets an endless response, a byte at a time.
        (count.fetch_add(1, Ordering::SeqCst) == 1).then(|| {
            let (head, _) = truth.get_blob(seen, &Digest::sha256(&whole).to_string()).into_parts();
            Response::from_parts(head, trickle(wanted(seen, &whole)))
        })
    })
    .await;
    faulty.add_blob(blob);
    let desk = Desk::new(None);
    let open = desk.open(&registry(&faulty.host()), &layer, Some(ztoc)).await.unwrap();
    let content = desk.content(&registry(&faulty.host()), vec![open], options());
    // The usual speed is known after the first request.
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    assert!(read(&content, 300_000, 1000).await.unwrap() == plain[300_000..301_000]);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 3);
    let stats = content.stats();
    assert_eq!((stats.retries, stats.errors), (1, 0));
}

#[tokio::test]
async fn tokens_that_expire_between_reads_are_renewed() {
    let Served { plain, blob, layer, ztoc } = served();
    let faulty =
        Faulty::honest(RegistrySettings { bearer: Some(None), ..RegistrySettings::default() })
            .await;
    faulty.add_blob(blob);
    let content = Desk::new(None).one(&registry(&faulty.host()), &layer, Some(ztoc)).await;
    for at in [0, 200_000, 400_000] {
        assert!(read(&content, at, 1000).await.unwrap() == plain[at..at + 1000]);
        faulty.revoke_tokens();
    }
    assert_eq!(content.stats().errors, 0);
    assert_eq!(faulty.saw("GET", "/token").len(), 3);
}

#[tokio::test]
async fn reads_beyond_the_content_are_errors() {
    let Served { plain, blob, layer, ztoc } = served();
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(blob);
    let content = Desk::new(None).one(&registry(&faulty.host()), &layer, Some(ztoc)).await;
    for (at, size) in [
        (plain.len(), 1),
        (plain.len() - 1, 2),
        (0, plain.len() + 1),
        (usize::MAX - 1, 2),
        (1 << 61, 9),
    ] {
        assert!(read(&content, at, size).await.is_err(), "{size} at {at}");
    }
    assert_eq!(read(&content, plain.len(), 0).await.unwrap(), "");
    assert!(matches!(
        content.read(LayerId(1), Uncompressed(0), 1).await,
        Err(ReadError::NoLayer(LayerId(1)))
    ));
    assert!(content.spans(LayerId(1), Uncompressed(0)..Uncompressed(1)).is_empty());
    assert_eq!(faulty.requests().len(), 0);
}
