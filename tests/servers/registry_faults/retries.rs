//! Temporary and permanent failures.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use ociseek_testkit::faulty;

#[tokio::test]
async fn retry_after_is_honoured() {
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let busy = Response::builder()
            .status(429)
            .header(header::RETRY_AFTER, "1")
            .body(Body::empty())
            .unwrap();
        (seen.is("GET", "/manifests/") && once()).then_some(busy)
    })
    .await;
    faulty.add_manifest("t", OCI_MANIFEST, "{}");
    let begun = Instant::now();
    repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(faulty.requests().len(), 2);
}

#[tokio::test]
async fn too_long_a_retry_after_is_not_waited_for() {
    let later = SystemTime::now() + Duration::from_secs(3600);
    let unix = later.duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
    // Those that nobody can mean are in field::reports.
    for wait in ["21600".to_owned(), "604800".to_owned(), unix] {
        let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
            Some(
                Response::builder()
                    .status(429)
                    .header(header::RETRY_AFTER, &wait)
                    .body(Body::empty())
                    .unwrap(),
            )
        })
        .await;
        let begun = Instant::now();
        let error =
            repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert_eq!(error.status(), Some(429));
        assert!(error.to_string().contains("asks to wait"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(3));
        assert_eq!(faulty.requests().len(), 1);
    }
}

#[tokio::test]
async fn transient_failures_are_retried() {
    for status in [408, 425, 429, 499, 500, 502, 503, 504, 520, 522, 524] {
        let thrice = first(3);
        let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
            thrice().then(|| faulty::status(status))
        })
        .await;
        faulty.add_manifest("t", OCI_MANIFEST, "{}");
        repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap();
        assert_eq!(faulty.requests().len(), 4, "{status}");
    }
}

#[tokio::test]
async fn persistent_failures_report_the_message_of_the_registry() {
    let faulty = Faulty::start(RegistrySettings::default(), |_, _| {
        Some(
            Response::builder().status(503).body(Body::from("<h1>down\x1b[2J</h1>\nmore")).unwrap(),
        )
    })
    .await;
    let error = repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert_eq!(error.to_string(), "gave up after 8 tries");
    assert_eq!(error.status(), Some(503));
    assert_eq!(error.host(), Some(faulty.host().as_str()));
    let cause = error.source().unwrap().to_string();
    let url = format!("GET http://{}/v2/a/b/manifests/t", faulty.host());
    assert_eq!(cause, format!("{url}: 503 Service Unavailable: down\\u{{1b}}[2J"));
    assert_eq!(faulty.requests().len(), 8);
}

#[tokio::test]
async fn retries_of_a_run_are_limited() {
    let faulty = Faulty::start(RegistrySettings::default(), |_, _| Some(status(503))).await;
    let limits = Limits { failures: 10, ..limits() };
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    for _ in 0..20 {
        repository.manifest(&Target::Tag("t".into())).await.unwrap_err();
    }
    assert_eq!(faulty.requests().len(), 20 + 10);
}

#[tokio::test]
async fn final_responses_are_not_retried() {
    for (status, code) in
        [(403, "DENIED"), (404, "NAME_UNKNOWN"), (400, "UNSUPPORTED"), (409, "CONFLICT")]
    {
        let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
            Some(problem(status, code, "no\nway"))
        })
        .await;
        let error =
            repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert!(error.to_string().ends_with(&format!(" {code}: no")), "{error}");
        assert_eq!(error.status(), Some(status));
        assert_eq!(faulty.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_silent_registry_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let limits = Limits { header: Duration::from_millis(100), tries: 2, ..limits() };
    let client = Client::new(ClientConfig { limits, ..config() }).unwrap();
    let error = client
        .repository(&host, "a")
        .unwrap()
        .manifest(&Target::Tag("t".into()))
        .await
        .unwrap_err();
    assert!(everything(&error).contains("an answer did not arrive within 0.1 s"), "{error:?}");
    drop(listener);
}

#[tokio::test]
async fn a_stalled_upload_is_given_up() {
    // The body exceeds the system's buffers, and the server never reads it.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        seen.is("POST", "uploads").then(|| {
            Response::builder()
                .status(202)
                .header(header::LOCATION, format!("http://{at}/up"))
                .body(Body::empty())
                .unwrap()
        })
    })
    .await;
    // Larger blobs than a chunk go on in chunks.
    let limits = Limits { idle: Duration::from_millis(200), tries: 2, chunk: 64 << 20, ..limits() };
    let blob = content(32 << 20);
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    let error = repository.push_blob_unchecked(&descriptor(&blob), blob.clone()).await.unwrap_err();
    assert!(
        everything(&error).contains("room for the next bytes of the body did not arrive"),
        "{error:?}"
    );
}

#[tokio::test]
async fn connections_that_break_before_a_response_are_retried() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let accepted = tokio::spawn(async move {
        // One of them tests whether the server uses TLS.
        for _ in 0..9 {
            drop(listener.accept().await.unwrap());
        }
    });
    let repository = Client::new(config()).unwrap().repository(&host, "a").unwrap();
    let error = repository.manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert_eq!(error.to_string(), "gave up after 8 tries");
    accepted.await.unwrap();
}

#[tokio::test]
async fn what_is_waited_for_is_reported_once() {
    for (failing, requested, warned) in
        [(429, Some("1"), true), (503, Some("1"), true), (503, None, false)]
    {
        let twice = first(2);
        let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
            twice().then(|| {
                let mut answer = problem(failing, "TOOMANYREQUESTS", "slow down");
                if let Some(wait) = requested {
                    answer.headers_mut().insert(header::RETRY_AFTER, wait.parse().unwrap());
                }
                answer
            })
        })
        .await;
        faulty.add_manifest("t", OCI_MANIFEST, "{}");
        let recorder = Arc::new(Recorder::default());
        let repository =
            repository(&faulty, ClientConfig { progress: recorder.clone(), ..config() });
        repository.manifest(&Target::Tag("t".into())).await.unwrap();
        let warnings = recorder.warnings();
        assert_eq!(warnings.len(), usize::from(warned), "{warnings:?}");
        for warning in warnings {
            assert!(
                warning.contains(&failing.to_string()) && warning.contains("slow down"),
                "{warning}"
            );
            assert!(warning.contains("; trying again in 1."), "{warning}");
        }
    }
}
