//! The registry client against registries that lie in one way each.

#[path = "support/faulty.rs"]
mod faulty;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use faulty::*;
use ociseek::digest::Digest;
use ociseek::image::Descriptor;
use ociseek::progress::{Event, Recorder};
use ociseek::store::blob::{Attached, Target};
use ociseek::store::registry::{
    AttachReport, Client, ClientConfig, CredentialSource, Limits, RegistryError, Repository,
};
use serde_json::json;

const SOCI: &str = "application/vnd.amazon.soci.index.v1+json";

/// Limits with which a test does not wait for long.
fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        header: Duration::from_secs(10),
        idle: Duration::from_secs(10),
        first_wait: Duration::from_millis(2),
        longest_wait: Duration::from_secs(5),
        settle: Duration::from_millis(10),
        ..Limits::default()
    }
}

fn config() -> ClientConfig {
    ClientConfig { credentials: CredentialSource::Anonymous, limits: limits(), ..ClientConfig::default() }
}

fn with_password(user: &str, password: &str) -> ClientConfig {
    let credentials = CredentialSource::Explicit { user: user.into(), password: password.into() };
    ClientConfig { credentials, ..config() }
}

fn repository(faulty: &Faulty, config: ClientConfig) -> Repository {
    Client::new(config).unwrap().repository(&faulty.host(), "a/b").unwrap()
}

/// Bytes that differ everywhere.
fn content(length: usize) -> Bytes {
    (0..length).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect::<Vec<_>>().into()
}

fn descriptor(content: &Bytes) -> Descriptor {
    Descriptor::of("application/octet-stream", content)
}

async fn read(repository: &Repository, blob: &Descriptor) -> Result<Bytes, RegistryError> {
    let mut stream = repository.blob(blob).await?;
    let mut all = Vec::new();
    while let Some(chunk) = stream.next().await? {
        all.extend_from_slice(&chunk);
    }
    Ok(all.into())
}

/// All that anyone could ever print of an error.
fn everything(error: &RegistryError) -> String {
    let mut text = format!("{error:?} {error:#?} {error}");
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause} {cause:?}");
        next = cause.source();
    }
    text
}

// ---- downloads ----

#[tokio::test]
async fn a_cut_download_goes_on_where_it_broke() {
    let blob = content(300_000);
    let (whole, once) = (blob.clone(), first(1));
    let faulty = Faulty::start(Nature::default(), move |seen, truth| {
        let answer = |seen| truth.get_blob(seen, &Digest::sha256(&whole).to_string());
        (seen.is("GET", "/blobs/") && once()).then(|| cut(answer(seen), &whole, 100_000))
    })
    .await;
    let digest = faulty.add_blob(blob.clone());
    assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
    let gets = faulty.saw("GET", "/blobs/");
    assert_eq!(gets.len(), 2);
    assert_eq!(gets[0].header("range"), None);
    assert_eq!(gets[1].header("range"), Some("bytes=100000-"));
    assert_eq!(gets[1].header("if-range"), Some(format!("\"{digest}\"").as_str()));
    assert!(gets.iter().all(|get| get.header("accept-encoding") == Some("identity")));
}

#[tokio::test]
async fn a_server_without_ranges_is_read_up_to_where_it_broke_and_not_asked_again() {
    let blob = content(300_000);
    let (whole, twice) = (blob.clone(), first(2));
    let faulty = Faulty::start(Nature::default(), move |seen, _| {
        let answer = || Response::new(Body::from(whole.clone()));
        let cut_at = if seen.header("range").is_none() { 100_000 } else { 200_000 };
        seen.is("GET", "/blobs/").then(|| if twice() { cut(answer(), &whole, cut_at) } else { answer() })
    })
    .await;
    assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
    let ranges: Vec<_> =
        faulty.saw("GET", "/blobs/").iter().map(|get| get.header("range").map(str::to_owned)).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".to_owned()), None]);
}

#[tokio::test]
async fn a_server_without_ranges_is_not_read_up_too_far() {
    let blob = content(300_000);
    let whole = blob.clone();
    let faulty = Faulty::start(Nature::default(), move |seen, _| {
        seen.is("GET", "/blobs/").then(|| cut(Response::new(Body::empty()), &whole, 200_000))
    })
    .await;
    let limits = Limits { reread: 100_000, ..limits() };
    let error = read(&repository(&faulty, ClientConfig { limits, ..config() }), &descriptor(&blob)).await.unwrap_err();
    assert!(error.to_string().contains("broke off at byte 200000"), "{error}");
}

#[tokio::test]
async fn wrong_parts_are_refused() {
    for (status, range, media_type) in [
        (206, "bytes 0-299999/300000", "application/octet-stream"),
        (206, "bytes 100000-299999/400000", "application/octet-stream"),
        (206, "", "multipart/byteranges; boundary=x"),
        (416, "bytes */300000", "text/plain"),
    ] {
        let blob = content(300_000);
        let whole = blob.clone();
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            seen.is("GET", "/blobs/").then(|| match seen.header("range") {
                None => cut(Response::new(Body::empty()), &whole, 100_000),
                Some(_) => Response::builder()
                    .status(status)
                    .header(header::CONTENT_TYPE, media_type)
                    .header(header::CONTENT_RANGE, range)
                    .body(Body::from(whole.slice(100_000..)))
                    .unwrap(),
            })
        })
        .await;
        let error = read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap_err();
        assert!(matches!(error, RegistryError::Protocol { .. } | RegistryError::Answer(_)), "{range}: {error:?}");
        assert_eq!(faulty.saw("GET", "/blobs/").len(), 2, "{range}");
    }
}

#[tokio::test]
async fn a_blob_has_exactly_the_bytes_of_its_descriptor() {
    let blob = content(10_000);
    for (length, announced) in [(9_999, true), (10_001, true), (10_001, false), (9_999, false), (0, true)] {
        let other = content(length);
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            let body = match announced {
                true => Body::from(other.clone()),
                false => Body::from_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(other.clone())])),
            };
            seen.is("GET", "/blobs/").then(|| Response::new(body))
        })
        .await;
        let error = read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap_err();
        match (length, announced) {
            // It cannot be told from a connection that breaks each time.
            (9_999, false) => assert!(
                matches!(
                    error,
                    RegistryError::Protocol { .. } | RegistryError::GaveUp { .. } | RegistryError::Size { .. }
                ),
                "{error:?}"
            ),
            _ => assert!(
                matches!(error, RegistryError::Size { expected: 10_000, found, .. } if found == length as u64),
                "{error:?}"
            ),
        }
    }
}

#[tokio::test]
async fn content_in_an_encoding_is_refused() {
    let blob = content(100);
    let faulty = Faulty::start(Nature::default(), |seen, _| {
        let answer =
            Response::builder().header(header::CONTENT_ENCODING, "gzip").body(Body::from(content(50))).unwrap();
        seen.is("GET", "/blobs/").then_some(answer)
    })
    .await;
    let error = read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap_err();
    assert!(error.to_string().contains("Content-Encoding \"gzip\""), "{error}");
}

#[tokio::test]
async fn silence_in_a_body_is_a_broken_connection() {
    let blob = content(300_000);
    let (whole, once) = (blob.clone(), first(1));
    let faulty = Faulty::start(Nature::default(), move |seen, _| {
        (seen.is("GET", "/blobs/") && once()).then(|| stalls(&whole, 70_000))
    })
    .await;
    faulty.add_blob(blob.clone());
    let limits = Limits { idle: Duration::from_millis(200), ..limits() };
    let begun = Instant::now();
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    assert_eq!(read(&repository, &descriptor(&blob)).await.unwrap(), blob);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(faulty.saw("GET", "/blobs/")[1].header("range"), Some("bytes=70000-"));
}

#[tokio::test]
async fn a_trickle_is_not_waited_for() {
    let blob = content(300_000);
    let once = first(1);
    let faulty = Faulty::start(Nature::default(), move |seen, _| {
        let trickle = || endless("application/octet-stream", content(1), Duration::from_millis(10));
        (seen.is("GET", "/blobs/") && once()).then(trickle)
    })
    .await;
    faulty.add_blob(blob.clone());
    let limits = Limits { idle: Duration::from_millis(200), slowest: 10_000, ..limits() };
    let read = read(&repository(&faulty, ClientConfig { limits, ..config() }), &descriptor(&blob)).await.unwrap();
    // The trickle's bytes are wrong, which the caller's hash tells; what counts here is that it ended.
    assert_eq!(read.len(), blob.len());
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 2);
}

#[tokio::test]
async fn a_pause_of_the_reader_is_no_slowness_of_the_registry() {
    let blob = content(3_000_000);
    let faulty = Faulty::honest(Nature::default()).await;
    faulty.add_blob(blob.clone());
    let limits = Limits { idle: Duration::from_millis(1500), slowest: 1 << 30, ..limits() };
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    let mut stream = repository.blob(&descriptor(&blob)).await.unwrap();
    let mut length = stream.next().await.unwrap().unwrap().len();
    tokio::time::sleep(Duration::from_millis(2000)).await;
    while let Some(chunk) = stream.next().await.unwrap() {
        length += chunk.len();
    }
    assert_eq!(length, blob.len());
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 1);
}

#[tokio::test]
async fn small_blobs_are_checked() {
    let blob = content(1000);
    let faulty = Faulty::start(Nature::default(), |seen, _| {
        seen.is("GET", "/blobs/").then(|| Response::new(Body::from(vec![7; 1000])))
    })
    .await;
    let repository = repository(&faulty, config());
    let error = repository.blob_bytes(&descriptor(&blob), 1000).await.unwrap_err();
    assert!(matches!(error, RegistryError::Digest { .. }), "{error:?}");
    let error = repository.blob_bytes(&descriptor(&blob), 999).await.unwrap_err();
    assert!(matches!(error, RegistryError::BlobTooLarge { limit: 999, .. }), "{error:?}");
    assert_eq!(faulty.seen().len(), 1);
}

#[tokio::test]
async fn the_empty_blob_is_a_blob() {
    let faulty = Faulty::honest(Nature::default()).await;
    faulty.add_blob(Bytes::new());
    let repository = repository(&faulty, config());
    assert_eq!(repository.blob_bytes(&descriptor(&Bytes::new()), 0).await.unwrap(), Bytes::new());
    assert!(repository.push_blob(&Descriptor::of("x/y", b"z"), Bytes::from_static(b"z")).await.unwrap());
}

// ---- trying again ----

#[tokio::test]
async fn retry_after_is_kept() {
    let once = first(1);
    let faulty = Faulty::start(Nature::default(), move |seen, _| {
        let busy = Response::builder().status(429).header(header::RETRY_AFTER, "1").body(Body::empty()).unwrap();
        (seen.is("GET", "/manifests/") && once()).then_some(busy)
    })
    .await;
    faulty.add_manifest("t", MANIFEST, "{}");
    let begun = Instant::now();
    repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(faulty.seen().len(), 2);
}

#[tokio::test]
async fn who_asks_for_too_long_a_wait_is_not_waited_for() {
    for wait in ["1000000000", "18446744073709551615", "Fri, 31 Dec 2100 23:59:59 GMT"] {
        let faulty = Faulty::start(Nature::default(), move |_, _| {
            Some(Response::builder().status(429).header(header::RETRY_AFTER, wait).body(Body::empty()).unwrap())
        })
        .await;
        let begun = Instant::now();
        let error = repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert_eq!(error.status(), Some(429));
        assert!(error.to_string().contains("asks to wait"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(3));
        assert_eq!(faulty.seen().len(), 1);
    }
}

#[tokio::test]
async fn passing_failures_pass() {
    for status in [408, 425, 429, 500, 502, 503, 504] {
        let thrice = first(3);
        let faulty = Faulty::start(Nature::default(), move |_, _| thrice().then(|| faulty::status(status))).await;
        faulty.add_manifest("t", MANIFEST, "{}");
        repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap();
        assert_eq!(faulty.seen().len(), 4, "{status}");
    }
}

#[tokio::test]
async fn failures_that_stay_are_given_up_with_what_the_registry_says() {
    let faulty = Faulty::start(Nature::default(), |_, _| {
        Some(Response::builder().status(503).body(Body::from("<h1>down\x1b[2J</h1>\nmore")).unwrap())
    })
    .await;
    let error = repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert_eq!(error.to_string(), "gave up after 8 tries");
    assert_eq!(error.status(), Some(503));
    assert_eq!(error.host(), Some(faulty.host().as_str()));
    let cause = error.source().unwrap().to_string();
    let url = format!("GET http://{}/v2/a/b/manifests/t", faulty.host());
    assert_eq!(cause, format!("{url}: 503 Service Unavailable: <h1>down\\u{{1b}}[2J</h1>"));
    assert_eq!(faulty.seen().len(), 8);
}

#[tokio::test]
async fn a_run_has_a_budget() {
    let faulty = Faulty::start(Nature::default(), |_, _| Some(status(503))).await;
    let limits = Limits { failures: 10, ..limits() };
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    for _ in 0..20 {
        repository.manifest(&Target::Tag("t".into())).await.unwrap_err();
    }
    assert_eq!(faulty.seen().len(), 20 + 10);
}

#[tokio::test]
async fn final_answers_are_final() {
    for (status, code) in [(403, "DENIED"), (404, "NAME_UNKNOWN"), (400, "UNSUPPORTED"), (409, "CONFLICT")] {
        let faulty = Faulty::start(Nature::default(), move |_, _| Some(problem(status, code, "no\nway"))).await;
        let error = repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert!(error.to_string().ends_with(&format!(" {code}: no")), "{error}");
        assert_eq!(error.status(), Some(status));
        assert_eq!(faulty.seen().len(), 1);
    }
}

#[tokio::test]
async fn silence_is_not_waited_for_for_ever() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let limits = Limits { header: Duration::from_millis(100), tries: 2, ..limits() };
    let client = Client::new(ClientConfig { limits, ..config() }).unwrap();
    let error = client.repository(&host, "a").unwrap().manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert!(everything(&error).contains("an answer did not come within 0.1 s"), "{error:?}");
    drop(listener);
}

#[tokio::test]
async fn an_upload_that_nobody_takes_is_not_waited_for_for_ever() {
    // The body is larger than what the system's buffers take, and the server never reads it.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let faulty = Faulty::start(Nature::default(), move |seen, _| {
        seen.is("POST", "uploads").then(|| {
            Response::builder()
                .status(202)
                .header(header::LOCATION, format!("http://{at}/up"))
                .body(Body::empty())
                .unwrap()
        })
    })
    .await;
    let limits = Limits { idle: Duration::from_millis(200), tries: 2, ..limits() };
    let blob = content(32 << 20);
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    let error = repository.push_blob_unchecked(&descriptor(&blob), blob.clone()).await.unwrap_err();
    assert!(everything(&error).contains("room for the next bytes of the body did not come"), "{error:?}");
}

#[tokio::test]
async fn connections_that_break_before_an_answer_are_tried_again_and_refused_ones_soon_left_alone() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let accepted = tokio::spawn(async move {
        for _ in 0..8 {
            drop(listener.accept().await.unwrap());
        }
    });
    let get = |host: String| async move {
        let repository = Client::new(config()).unwrap().repository(&host, "a").unwrap();
        repository.manifest(&Target::Tag("t".into())).await.unwrap_err()
    };
    assert_eq!(get(host.clone()).await.to_string(), "gave up after 8 tries");
    accepted.await.unwrap();
    let error = get(host).await;
    assert_eq!(error.to_string(), "gave up after 3 tries");
    assert!(everything(&error).contains("Connection refused"), "{error:?}");
}

// ---- authorization ----

#[tokio::test]
async fn one_token_serves_all_who_wait_for_it() {
    let faulty = Faulty::honest(Nature { bearer: Some(None), ..Nature::default() }).await;
    let blob = content(1000);
    faulty.add_blob(blob.clone());
    let repository = repository(&faulty, config());
    let reads: Vec<_> = (0..16)
        .map(|_| {
            let (repository, blob) = (repository.clone(), descriptor(&blob));
            tokio::spawn(async move { repository.blob_bytes(&blob, 1000).await })
        })
        .collect();
    for read in reads {
        assert_eq!(read.await.unwrap().unwrap(), blob);
    }
    let tokens = faulty.saw("GET", "/token");
    assert_eq!(tokens.len(), 1);
    assert_eq!(tokens[0].path, "/token?service=faulty&scope=repository%3Aa%2Fb%3Apull");
    assert_eq!(tokens[0].header("authorization"), None);
}

#[tokio::test]
async fn what_one_repository_taught_serves_the_next_with_its_own_token() {
    let faulty = Faulty::honest(Nature { bearer: Some(None), ..Nature::default() }).await;
    faulty.add_blob("x");
    let client = Client::new(config()).unwrap();
    let blob = Descriptor::of("x/y", b"x");
    for name in ["one/a", "two"] {
        client.repository(&faulty.host(), name).unwrap().blob_bytes(&blob, 1).await.unwrap();
    }
    let two = client.repository(&faulty.host(), "two").unwrap();
    two.push_blob(&Descriptor::of("x/y", b"z"), Bytes::from_static(b"z")).await.unwrap();
    let story: Vec<_> = faulty
        .seen()
        .iter()
        .map(|s| format!("{} {}", s.method, s.path.split(['&', ',']).next_back().unwrap()))
        .collect();
    let at = |name: &str| format!("GET /v2/{name}/blobs/{}", Digest::sha256(b"x"));
    assert_eq!(story[..3], [at("one/a"), "GET scope=repository%3Aone%2Fa%3Apull".to_owned(), at("one/a")]);
    assert_eq!(story[3..5], ["GET scope=repository%3Atwo%3Apull".to_owned(), at("two")]);
    let tokens = faulty.saw("GET", "/token");
    assert_eq!(tokens.len(), 3);
    assert!(tokens[2].path.ends_with("scope=repository%3Atwo%3Apull%2Cpush"), "{}", tokens[2].path);
    assert_eq!(faulty.seen().len(), 3 + 2 + 1 + 3);
}

#[tokio::test]
async fn a_token_that_runs_out_in_mid_transfer_is_renewed_and_the_transfer_goes_on() {
    let blob = content(300_000);
    let (whole, once) = (blob.clone(), first(1));
    let faulty = Faulty::start(Nature { bearer: Some(None), ..Nature::default() }, move |seen, truth| {
        let cut_off = seen.is("GET", "/blobs/") && seen.header("authorization").is_some() && once();
        cut_off.then(|| {
            truth.revoke_tokens();
            cut(Response::new(Body::empty()), &whole, 100_000)
        })
    })
    .await;
    faulty.add_blob(blob.clone());
    assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
    let gets = faulty.saw("GET", "/blobs/");
    let story: Vec<_> = gets.iter().map(|get| (get.header("authorization"), get.header("range"))).collect();
    assert_eq!(
        story,
        [
            (None, None),
            (Some("Bearer token-1"), None),
            (Some("Bearer token-1"), Some("bytes=100000-")),
            (Some("Bearer token-2"), Some("bytes=100000-")),
        ]
    );
}

#[tokio::test]
async fn a_token_that_never_helps_is_renewed_once() {
    let faulty = Faulty::start(Nature { bearer: Some(None), ..Nature::default() }, |seen, truth| {
        if seen.is("GET", "/blobs/") {
            truth.revoke_tokens();
        }
        None
    })
    .await;
    let repository = repository(&faulty, config());
    let error = repository.blob(&descriptor(&content(1))).await.err().unwrap();
    assert!(error.is_unauthorized(), "{error:?}");
    assert_eq!((faulty.saw("GET", "/blobs/").len(), faulty.saw("GET", "/token").len()), (2, 1));
}

#[tokio::test]
async fn token_answers_of_every_kind() {
    for (answer, works) in [
        (r#"{"token":"T"}"#, true),
        (r#"{"access_token":"T"}"#, true),
        (r#"{"token":"","access_token":"T","expires_in":0}"#, true),
        (r#"{"token":"T","expires_in":300000000000}"#, true),
        (r#"{"token":"T","expires_in":-1,"issued_at":"1999-01-01T00:00:00Z"}"#, true),
        (r#"{"token":"T","expires_in":"soon"}"#, true),
        (r#"{}"#, false),
        (r#"{"token":""}"#, false),
        (r#"{"token":"hunter2\n"}"#, false),
        (r#"{"token":["hunter2"]}"#, false),
        ("hunter2", false),
    ] {
        let faulty = Faulty::start(Nature { bearer: Some(None), ..Nature::default() }, move |seen, truth| {
            if seen.is("GET", "/token") {
                return Some(Response::new(Body::from(answer)));
            }
            (seen.header("authorization") == Some("Bearer T"))
                .then(|| truth.get_blob(seen, &Digest::sha256(b"x").to_string()))
        })
        .await;
        faulty.add_blob("x");
        let found = repository(&faulty, config()).blob_bytes(&Descriptor::of("x/y", b"x"), 1).await;
        assert_eq!(found.is_ok(), works, "{answer}: {found:?}");
        if let Err(error) = found {
            assert!(!everything(&error).contains("hunter2"), "{error:?}");
            assert_eq!(error.host(), Some(faulty.host().as_str()));
        }
    }
}

#[tokio::test]
async fn passwords_go_to_the_token_service_and_a_wrong_one_is_told() {
    let nature = Nature { bearer: Some(Some(("u".into(), "p:q".into()))), ..Nature::default() };
    let faulty = Faulty::honest(nature).await;
    faulty.add_blob("x");
    let blob = Descriptor::of("x/y", b"x");
    repository(&faulty, with_password("u", "p:q")).blob_bytes(&blob, 1).await.unwrap();
    let token = &faulty.saw("GET", "/token")[0];
    assert_eq!(token.header("authorization"), Some(basic("u", "p:q").as_str()));
    assert!(faulty.saw("GET", "/blobs/").iter().all(|get| get.header("authorization") != Some(&basic("u", "p:q"))));

    let error = repository(&faulty, with_password("u", "hunter2")).blob_bytes(&blob, 1).await.unwrap_err();
    assert!(error.is_unauthorized(), "{error:?}");
    assert_eq!(error.to_string(), format!("no token for {} could be had", faulty.host()));
    let all = everything(&error);
    assert!(
        all.contains("wrong password") && !all.contains("hunter2") && !all.contains(&basic("u", "hunter2")),
        "{all}"
    );
}

#[tokio::test]
async fn basic_authorization_is_shown_when_it_is_asked_for() {
    let faulty = Faulty::honest(Nature { basic: Some(("u".into(), "p".into())), ..Nature::default() }).await;
    faulty.add_blob("x");
    let blob = Descriptor::of("x/y", b"x");
    let right = repository(&faulty, with_password("u", "p"));
    right.blob_bytes(&blob, 1).await.unwrap();
    right.blob_bytes(&blob, 1).await.unwrap();
    let shown: Vec<_> = faulty.seen().iter().map(|seen| seen.header("authorization").is_some()).collect();
    assert_eq!(shown, [false, true, true]);

    for (config, requests) in [(with_password("u", "hunter2"), 2), (config(), 1)] {
        let before = faulty.seen().len();
        let error = repository(&faulty, config).blob_bytes(&blob, 1).await.unwrap_err();
        assert!(error.is_unauthorized(), "{error:?}");
        assert!(error.to_string().contains("UNAUTHORIZED: authentication required"), "{error}");
        assert_eq!(faulty.seen().len() - before, requests);
    }
}

#[tokio::test]
async fn a_401_that_does_not_say_what_it_wants_is_final() {
    let faulty = Faulty::start(Nature::default(), |_, _| Some(status(401))).await;
    let error = repository(&faulty, with_password("u", "p")).manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert!(error.is_unauthorized(), "{error:?}");
    assert_eq!(faulty.seen().len(), 1);
    assert_eq!(faulty.seen()[0].header("authorization"), None);
}

#[tokio::test]
async fn token_services_where_credentials_must_not_go() {
    let other = Faulty::honest(Nature::default()).await;
    for realm in [
        "http://169.254.169.254/token".to_owned(),
        "https://169.254.169.254/token".to_owned(),
        "http://registry.example/token".to_owned(),
        format!("http://u:p@{}/token", other.host()),
        "ftp://127.0.0.1/token".to_owned(),
        "/token".to_owned(),
    ] {
        let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
        let faulty = Faulty::start(Nature::default(), move |_, _| {
            Some(
                Response::builder()
                    .status(401)
                    .header(header::WWW_AUTHENTICATE, &challenge)
                    .body(Body::empty())
                    .unwrap(),
            )
        })
        .await;
        let error = repository(&faulty, with_password("u", "p")).manifest(&Target::Tag("t".into())).await.unwrap_err();
        let RegistryError::Token { source, .. } = &error else { panic!("{realm}: {error:?}") };
        assert!(matches!(**source, RegistryError::Detour { .. }), "{realm}: {error:?}");
        assert_eq!(faulty.seen().len(), 1);
    }
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn a_token_service_that_redirects_gets_no_second_look() {
    let other = Faulty::honest(Nature { bearer: Some(None), ..Nature::default() }).await;
    let to = format!("http://{}/token", other.host());
    let nature = Nature { bearer: Some(Some(("u".into(), "p".into()))), ..Nature::default() };
    let faulty = Faulty::start(nature, move |seen, _| seen.is("GET", "/token").then(|| redirect(307, &to))).await;
    let error = repository(&faulty, with_password("u", "p")).manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert_eq!(error.status(), Some(307));
    assert!(other.seen().is_empty());
}

// ---- redirects ----

#[tokio::test]
async fn another_host_never_sees_the_authorization() {
    let blob = content(1000);
    for nature in [
        Nature { basic: Some(("u".into(), "p".into())), ..Nature::default() },
        Nature { bearer: Some(Some(("u".into(), "p".into()))), ..Nature::default() },
    ] {
        for status in [301, 302, 303, 307, 308] {
            let store = Faulty::honest(Nature::default()).await;
            store.add_blob(blob.clone());
            let to = format!("http://{}/v2/store/blobs/{}?X-Sig=s%2F1#f", store.host(), Digest::sha256(&blob));
            let faulty = Faulty::start(nature.clone(), move |seen, _| {
                (seen.is("GET", "/blobs/") && seen.header("authorization").is_some()).then(|| redirect(status, &to))
            })
            .await;
            let found =
                repository(&faulty, with_password("u", "p")).blob_bytes(&descriptor(&blob), 1000).await.unwrap();
            assert_eq!(found, blob);
            let seen = store.seen();
            assert_eq!(seen.len(), 1);
            assert!(seen[0].path.ends_with("?X-Sig=s%2F1"), "{}", seen[0].path);
            assert_eq!(seen[0].header("authorization"), None);
            assert_eq!(seen[0].header("referer"), None);
        }
    }
}

#[tokio::test]
async fn a_signed_url_that_ran_out_is_asked_for_once_more() {
    for (refusals, works) in [(1, true), (9, false)] {
        let some = first(refusals);
        let store = Faulty::start(Nature::default(), move |_, _| {
            some().then(|| Response::builder().status(403).body(Body::from("expired")).unwrap())
        })
        .await;
        store.add_blob("x");
        let to = format!("http://{}/v2/s/blobs/{}?Signature=hunter2", store.host(), Digest::sha256(b"x"));
        let faulty = Faulty::start(Nature::default(), move |_, _| Some(redirect(307, &to))).await;
        let found = repository(&faulty, config()).blob_bytes(&Descriptor::of("x/y", b"x"), 1).await;
        assert_eq!(found.is_ok(), works);
        assert_eq!((faulty.seen().len(), store.seen().len()), (2, 2));
        if let Err(error) = found {
            assert!(!everything(&error).contains("hunter2"), "{error:?}");
            assert_eq!(error.host(), Some(faulty.host().as_str()));
        }
    }
}

#[tokio::test]
async fn redirects_without_end_or_to_nowhere() {
    for (location, requests) in [
        ("?again", 11),
        ("http://169.254.169.254/x", 1),
        ("http://[fe80::1]/x", 1),
        ("gopher://x/", 1),
        ("http://u:p@127.0.0.1/", 1),
        ("http://:99999/", 1),
    ] {
        let faulty = Faulty::start(Nature::default(), move |_, _| Some(redirect(302, location))).await;
        let error = repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Protocol { .. } | RegistryError::Detour { .. }),
            "{location}: {error:?}"
        );
        assert_eq!(faulty.seen().len(), requests, "{location}");
    }
    let faulty = Faulty::start(Nature::default(), |_, _| Some(status(307))).await;
    let error = repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert!(error.to_string().contains("redirect to nowhere"), "{error}");
}

// ---- manifests ----

#[tokio::test]
async fn manifests_are_what_they_are_asked_for_as() {
    let lies = ["digest", "header", "html", "large", "endless", "bad header"];
    for lie in lies {
        let faulty = Faulty::start(Nature::default(), move |_, _| {
            let answer = Response::builder().header(header::CONTENT_TYPE, MANIFEST);
            Some(match lie {
                "digest" => answer.body(Body::from("{\"other\":1}")).unwrap(),
                "header" => answer
                    .header("docker-content-digest", Digest::sha256(b"x").to_string())
                    .body(Body::from("{}"))
                    .unwrap(),
                "bad header" => {
                    answer.header("docker-content-digest", "sha256:../../etc").body(Body::from("{}")).unwrap()
                }
                "html" => web_page(),
                "large" => answer.body(Body::from(vec![b' '; (4 << 20) + 1])).unwrap(),
                _ => endless(MANIFEST, Bytes::from(vec![b' '; 64 << 10]), Duration::ZERO),
            })
        })
        .await;
        let target = if lie == "digest" { Target::Digest(Digest::sha256(b"{}")) } else { Target::Tag("t".into()) };
        let error = repository(&faulty, config()).manifest(&target).await.unwrap_err();
        match lie {
            "digest" | "header" => assert!(matches!(error, RegistryError::Digest { .. }), "{lie}: {error:?}"),
            "large" | "endless" => {
                assert!(matches!(error, RegistryError::TooLarge { limit: 0x400000, .. }), "{lie}: {error:?}")
            }
            _ => assert!(matches!(error, RegistryError::Protocol { .. }), "{lie}: {error:?}"),
        }
        assert_eq!(faulty.seen().len(), 1, "{lie}");
    }
}

#[tokio::test]
async fn manifests_by_tag_and_digest_and_their_media_types() {
    let faulty = Faulty::honest(Nature::default()).await;
    let bytes = format!("{{\"mediaType\":\"{INDEX}\"}}");
    let repository = repository(&faulty, config());
    for (media_type, want) in [
        (
            "application/vnd.docker.distribution.manifest.v2+json",
            "application/vnd.docker.distribution.manifest.v2+json",
        ),
        ("Application/VND.oci.image.manifest.v1+JSON; charset=utf-8", MANIFEST),
        ("application/json", INDEX),
        ("text/plain; charset=utf-8", INDEX),
    ] {
        let digest = faulty.add_manifest("t", media_type, bytes.clone());
        for target in [Target::Tag("t".into()), Target::Digest(digest)] {
            let document = repository.manifest(&target).await.unwrap();
            assert_eq!(
                (document.media_type.as_str(), document.digest, &document.bytes[..]),
                (want, digest, bytes.as_bytes())
            );
        }
    }
    let asked = &faulty.seen()[0];
    for kind in [INDEX, MANIFEST, "application/vnd.docker.distribution.manifest.list.v2+json"] {
        assert!(asked.header("accept").unwrap().contains(kind));
    }
    assert!(asked.header("user-agent").unwrap().starts_with("ociseek/"));
    let error = repository.manifest(&Target::Tag("none".into())).await.unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("MANIFEST_UNKNOWN"), "{error}");
    let error = repository.manifest(&Target::Tag("../x".into())).await.unwrap_err();
    assert!(matches!(error, RegistryError::Name(_)), "{error:?}");
}

#[tokio::test]
async fn a_manifest_that_breaks_off_is_read_again() {
    let once = first(1);
    let bytes = Bytes::from(format!("{{\"x\":\"{}\"}}", "y".repeat(1000)));
    let whole = bytes.clone();
    let faulty =
        Faulty::start(Nature::default(), move |_, _| once().then(|| cut(Response::new(Body::empty()), &whole, 500)))
            .await;
    let digest = faulty.add_manifest("t", MANIFEST, bytes.clone());
    let document = repository(&faulty, config()).manifest(&Target::Digest(digest)).await.unwrap();
    assert_eq!(document.bytes, bytes);
    assert_eq!(faulty.seen().len(), 2);
}

#[tokio::test]
async fn warnings_are_passed_on_once() {
    let faulty = Faulty::start(Nature::default(), |_, _| {
        Some(
            Response::builder()
                .header("warning", "299 - \"moving away\"")
                .header("content-type", MANIFEST)
                .body(Body::from("{}"))
                .unwrap(),
        )
    })
    .await;
    let recorder = Arc::new(Recorder::default());
    let repository = repository(&faulty, ClientConfig { progress: recorder.clone(), ..config() });
    for _ in 0..3 {
        repository.manifest(&Target::Tag("t".into())).await.unwrap();
    }
    assert_eq!(recorder.events(), [Event::Warning(format!("{} says: moving away", faulty.host()))]);
}

// ---- uploads ----

#[tokio::test]
async fn uploads_at_once_and_in_chunks() {
    for (monolithic, chunk, requests) in
        [(1 << 20, 1000, "POST PUT"), (0, 400, "POST PATCH PATCH PATCH PUT"), (0, 1000, "POST PATCH PUT")]
    {
        let faulty = Faulty::honest(Nature::default()).await;
        let limits = Limits { monolithic, chunk, ..limits() };
        let repository = repository(&faulty, ClientConfig { limits, ..config() });
        let blob = content(1000);
        assert!(repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap());
        assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob.clone()));
        assert!(!repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap());
        assert!(repository.blob_exists(&Digest::sha256(&blob)).await.unwrap());
        assert!(!repository.blob_exists(&Digest::sha256(b"no")).await.unwrap());
        let made: Vec<_> = faulty.seen().iter().map(|s| s.method.to_string()).filter(|m| m != "HEAD").collect();
        assert_eq!(made.join(" "), requests);
        let put = &faulty.saw("PUT", "uploads")[0];
        assert!(put.path.contains("?_state=a%2Fb&digest=sha256%3A"), "{}", put.path);
        for patch in faulty.saw("PATCH", "uploads") {
            assert_eq!(patch.header("content-length"), Some(patch.body.len().to_string().as_str()));
            assert_eq!(patch.header("transfer-encoding"), None);
        }
    }
}

#[tokio::test]
async fn content_that_is_not_its_descriptors_is_not_sent() {
    let faulty = Faulty::honest(Nature::default()).await;
    let error =
        repository(&faulty, config()).push_blob_unchecked(&descriptor(&content(5)), content(6)).await.unwrap_err();
    assert!(matches!(error, RegistryError::Content { expected: 5, found: 6, .. }), "{error:?}");
    assert!(faulty.seen().is_empty());
}

#[tokio::test]
async fn the_registrys_least_chunk_is_kept() {
    let faulty = Faulty::start(Nature::default(), |seen, truth| {
        seen.is("POST", "uploads").then(|| {
            let mut answer = truth.truth_now(seen);
            answer.headers_mut().insert("oci-chunk-min-length", "600".parse().unwrap());
            answer
        })
    })
    .await;
    let limits = Limits { monolithic: 0, chunk: 100, ..limits() };
    let blob = content(1000);
    repository(&faulty, ClientConfig { limits, ..config() }).push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
    let sizes: Vec<_> = faulty.saw("PATCH", "uploads").iter().map(|patch| patch.body.len()).collect();
    assert_eq!(sizes, [600, 400]);
}

#[tokio::test]
async fn a_body_that_is_too_large_goes_in_chunks() {
    let faulty = Faulty::start(Nature::default(), |seen, _| {
        (seen.body.len() > (5 << 20))
            .then(|| Response::builder().status(413).body(Body::from("<html>too large")).unwrap())
    })
    .await;
    let blob = content(9 << 20);
    repository(&faulty, config()).push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
    assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
    assert_eq!(faulty.saw("PATCH", "uploads").len(), 3);
    assert_eq!(faulty.saw("DELETE", "uploads").len(), 1);
}

#[tokio::test]
async fn a_chunk_whose_answer_is_lost_is_not_sent_twice() {
    let once = first(1);
    let faulty = Faulty::start(Nature::default(), move |seen, truth| {
        (seen.is("PATCH", "uploads") && seen.header("content-range") == Some("400-799") && once()).then(|| {
            // It takes the chunk, and then does not say so.
            truth.truth_now(seen);
            status(503)
        })
    })
    .await;
    let limits = Limits { monolithic: 0, chunk: 400, ..limits() };
    let blob = content(1000);
    repository(&faulty, ClientConfig { limits, ..config() }).push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
    assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
    let ranges: Vec<_> = faulty
        .saw("PATCH", "uploads")
        .iter()
        .filter_map(|patch| patch.header("content-range").map(str::to_owned))
        .collect();
    assert_eq!(ranges, ["0-399", "400-799", "800-999"]);
}

#[tokio::test]
async fn a_lost_answer_to_an_upload_is_found_out() {
    let once = first(1);
    let faulty = Faulty::start(Nature::default(), move |seen, truth| {
        (seen.is("PUT", "uploads") && once()).then(|| {
            truth.truth_now(seen);
            status(502)
        })
    })
    .await;
    let blob = content(1000);
    assert!(repository(&faulty, config()).push_blob(&descriptor(&blob), blob.clone()).await.unwrap());
    let made: Vec<_> = faulty.seen().iter().map(|s| s.method.to_string()).collect();
    assert_eq!(made, ["HEAD", "POST", "PUT", "DELETE", "HEAD"]);
}

#[tokio::test]
async fn an_upload_that_comes_at_a_busy_time_is_sent_again_in_its_session() {
    for method in ["PUT", "PATCH"] {
        let once = first(1);
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            (seen.is(method, "uploads") && once()).then(|| status(429))
        })
        .await;
        let limits = Limits { monolithic: if method == "PUT" { 1000 } else { 0 }, ..limits() };
        let blob = content(1000);
        repository(&faulty, ClientConfig { limits, ..config() })
            .push_blob(&descriptor(&blob), blob.clone())
            .await
            .unwrap();
        assert_eq!((faulty.saw("POST", "uploads").len(), faulty.saw(method, "uploads").len()), (1, 2));
    }
}

#[tokio::test]
async fn lost_sessions_are_begun_again_but_not_for_ever() {
    for (lost, works) in [(2, true), (3, false)] {
        let some = first(lost);
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            (seen.is("PUT", "uploads") && some()).then(|| problem(404, "BLOB_UPLOAD_UNKNOWN", "gone"))
        })
        .await;
        let blob = content(1000);
        let pushed = repository(&faulty, config()).push_blob(&descriptor(&blob), blob.clone()).await;
        assert_eq!(pushed.is_ok(), works, "{pushed:?}");
        assert_eq!(faulty.saw("POST", "uploads").len(), 3);
        if let Err(error) = pushed {
            assert!(matches!(error, RegistryError::UploadLost { times: 3, .. }), "{error:?}");
            assert!(everything(&error).contains("BLOB_UPLOAD_UNKNOWN"));
        }
    }
}

#[tokio::test]
async fn a_registry_that_takes_nothing_of_a_chunk_is_left_alone() {
    let faulty = Faulty::start(Nature::default(), |seen, _| {
        seen.is("PATCH", "uploads")
            .then(|| Response::builder().status(202).header(header::RANGE, "0-0").body(Body::empty()).unwrap())
    })
    .await;
    let limits = Limits { monolithic: 0, ..limits() };
    let error = repository(&faulty, ClientConfig { limits, ..config() })
        .push_blob(&descriptor(&content(1000)), content(1000))
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::UploadLost { .. }), "{error:?}");
    assert_eq!(faulty.saw("PATCH", "uploads").len(), 3);
}

#[tokio::test]
async fn upload_locations() {
    let blob = content(1000);
    // Absolute, at the registry itself: with authorization.
    let nature = Nature { basic: Some(("u".into(), "p".into())), ..Nature::default() };
    let faulty = Faulty::start(nature.clone(), |seen, truth| {
        (seen.is("POST", "uploads") && seen.header("authorization").is_some()).then(|| {
            let mut answer = truth.truth_now(seen);
            let relative = answer.headers()[header::LOCATION].to_str().unwrap().to_owned();
            answer
                .headers_mut()
                .insert(header::LOCATION, format!("http://{}{relative}", truth.host()).parse().unwrap());
            answer
        })
    })
    .await;
    assert!(repository(&faulty, with_password("u", "p")).push_blob(&descriptor(&blob), blob.clone()).await.unwrap());

    // Somewhere else: without.
    let store = Faulty::start(Nature::default(), |_, _| Some(status(201))).await;
    let to = format!("http://{}/up?sig=1", store.host());
    let faulty = Faulty::start(nature, move |seen, _| {
        (seen.is("POST", "uploads") && seen.header("authorization").is_some()).then(|| redirect(202, &to))
    })
    .await;
    assert!(repository(&faulty, with_password("u", "p")).push_blob(&descriptor(&blob), blob.clone()).await.unwrap());
    let seen = store.seen();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].path.starts_with("/up?sig=1&digest=sha256%3A"), "{}", seen[0].path);
    assert_eq!(seen[0].header("authorization"), None);

    // Nowhere, and where nobody goes.
    for (answer, what) in [(None, "no Location"), (Some("http://169.254.169.254/up"), "link-local")] {
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            seen.is("POST", "uploads").then(|| answer.map_or_else(|| status(202), |to| redirect(202, to)))
        })
        .await;
        let error = repository(&faulty, config()).push_blob(&descriptor(&blob), blob.clone()).await.unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[tokio::test]
async fn refused_uploads_carry_the_registrys_words() {
    for (status, code) in [(403, "DENIED"), (400, "DIGEST_INVALID"), (409, "TOOMANYREQUESTS")] {
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            seen.is("PUT", "uploads").then(|| problem(status, code, "quota"))
        })
        .await;
        let error = repository(&faulty, config()).push_blob(&descriptor(&content(9)), content(9)).await.unwrap_err();
        assert!(error.to_string().ends_with(&format!("{code}: quota")), "{error}");
        assert_eq!(faulty.saw("PUT", "uploads").len(), 1);
        assert!(!error.to_string().contains("_state"), "{error}");
    }
}

// ---- referrers ----

fn subject() -> (Bytes, Descriptor) {
    let bytes = Bytes::from_static(br#"{"schemaVersion":2,"image":1}"#);
    (bytes.clone(), Descriptor::of(MANIFEST, &bytes))
}

/// An index manifest of ours for the subject; `name` makes it different from others.
fn index(name: &str) -> (Bytes, Descriptor) {
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": SOCI, "digest": Digest::sha256(b"{}"), "size": 2},
        "layers": [],
        "subject": {"mediaType": MANIFEST, "digest": subject().1.digest, "size": subject().1.size},
        "annotations": {"name": name},
    });
    let bytes = Bytes::from(manifest.to_string());
    let mut descriptor = Descriptor::of(MANIFEST, &bytes);
    descriptor.artifact_type = Some(SOCI.into());
    descriptor.annotations.insert("name".into(), name.into());
    (bytes, descriptor)
}

async fn attach(repository: &Repository, name: &str, replaces: &[Digest]) -> Result<AttachReport, RegistryError> {
    repository.push_blob(&Descriptor::of(SOCI, b"{}"), Bytes::from_static(b"{}")).await?;
    let (bytes, descriptor) = index(name);
    repository.attach(&descriptor, bytes, &subject().1, replaces).await
}

fn tag() -> String {
    format!("sha256-{}", subject().1.digest.hex())
}

fn entries(descriptors: &[Descriptor]) -> Vec<&str> {
    descriptors.iter().filter_map(|descriptor| descriptor.annotations.get("name")).map(String::as_str).collect()
}

#[tokio::test]
async fn registries_without_the_api_are_told_by_any_answer_that_is_no_index() {
    let other = Faulty::start(Nature::default(), |_, _| Some(web_page())).await;
    for kind in ["404", "405", "400", "login page", "redirect to a login page", "other JSON", "empty"] {
        let login = format!("http://{}/login?continue=x", other.host());
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            seen.is("GET", "/referrers/").then(|| match kind {
                "login page" => web_page(),
                "redirect to a login page" => redirect(302, &login),
                "other JSON" => json_answer(200, &json!({"errors": []})),
                "empty" => status(200),
                number => status(number.parse().unwrap()),
            })
        })
        .await;
        let repository = repository(&faulty, config());
        let none = repository.referrers(&subject().1.digest, None).await.unwrap();
        assert_eq!((none.descriptors.len(), none.api), (0, false), "{kind}");
        let list = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [index("x").1]});
        faulty.add_manifest(&tag(), INDEX, list.to_string());
        let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
        assert_eq!((found.descriptors, found.api), (vec![index("x").1], false), "{kind}");
        assert!(repository.referrers(&subject().1.digest, Some("x/other")).await.unwrap().descriptors.is_empty());
    }
}

#[tokio::test]
async fn failures_of_the_referrers_api_are_failures() {
    for status in [401, 403, 500] {
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            seen.is("GET", "/referrers/").then(|| faulty::status(status))
        })
        .await;
        let error = repository(&faulty, config()).referrers(&subject().1.digest, None).await.unwrap_err();
        assert_eq!(error.status(), Some(status));
    }
    let broken = |_: &Seen, _: &Faulty| {
        Some(Response::builder().header(header::CONTENT_TYPE, INDEX).body(Body::from("{\"manifests\":7}")).unwrap())
    };
    let faulty = Faulty::start(Nature::default(), broken).await;
    let error = repository(&faulty, config()).referrers(&subject().1.digest, None).await.unwrap_err();
    assert!(matches!(error, RegistryError::Json { .. }), "{error:?}");
}

#[tokio::test]
async fn pages_are_followed_and_filtered() {
    let faulty = Faulty::start(Nature::default(), |seen, _| {
        seen.is("GET", "/referrers/").then(|| {
            let page: usize = seen.path.split("page=").nth(1).map_or(0, |page| page.parse().unwrap());
            let mut other = index(&format!("other{page}")).1;
            other.artifact_type = Some("x/other".into());
            let mut answer = index_answer(&json!([index(&format!("p{page}")).1, other]));
            if page < 4 {
                let next = format!("<{}?page={}>; rel=\"next\"", seen.path.split('?').next().unwrap(), page + 1);
                answer.headers_mut().insert(header::LINK, next.parse().unwrap());
            }
            answer
        })
    })
    .await;
    let repository = repository(&faulty, config());
    let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
    assert!(found.api);
    assert_eq!(entries(&found.descriptors), ["p0", "p1", "p2", "p3", "p4"]);
    assert!(
        faulty.seen()[0].path.ends_with("?artifactType=application%2Fvnd.amazon.soci.index.v1%2Bjson"),
        "{}",
        faulty.seen()[0].path
    );
    assert_eq!(repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.len(), 10);
}

#[tokio::test]
async fn lists_without_end_have_one() {
    let other = Faulty::honest(Nature::default()).await;
    let elsewhere = format!("http://{}/v2/a/b/referrers/x", other.host());
    for kind in ["same", "new", "elsewhere", "gone"] {
        let elsewhere = elsewhere.clone();
        let faulty =
            Faulty::start(Nature { basic: Some(("u".into(), "p".into())), ..Nature::default() }, move |seen, _| {
                seen.header("authorization")?;
                let count = seen.path.split("n=").nth(1).map_or(0, |n| n.parse::<u32>().unwrap());
                if kind == "gone" && count > 0 {
                    return Some(status(404));
                }
                let mut answer = index_answer(&json!([]));
                let next = match kind {
                    "same" => "<?n=1>; rel=next".to_owned(),
                    "elsewhere" => format!("<{elsewhere}>; rel=next"),
                    _ => format!("<?n={}>; rel=next", count + 1),
                };
                answer.headers_mut().insert(header::LINK, next.parse().unwrap());
                Some(answer)
            })
            .await;
        let error =
            repository(&faulty, with_password("u", "p")).referrers(&subject().1.digest, None).await.unwrap_err();
        assert!(matches!(error, RegistryError::Protocol { .. }), "{kind}: {error:?}");
    }
    assert!(other.seen().is_empty());
}

// ---- attaching ----

#[tokio::test]
async fn the_registry_links_it_where_it_can() {
    let faulty = Faulty::honest(Nature { referrers: true, ..Nature::default() }).await;
    let repository = repository(&faulty, config());
    let old = index("old").1.digest;
    assert_eq!(
        attach(&repository, "old", &[]).await.unwrap(),
        AttachReport { attached: Attached::ReferrersApi, not_deleted: vec![] }
    );
    attach(&repository, "new", &[old]).await.unwrap();
    let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
    assert!(found.api);
    assert_eq!(found.descriptors.iter().map(|d| d.digest).collect::<Vec<_>>(), [index("new").1.digest]);
    assert_eq!(faulty.manifest(&tag()), None);
    // The manifest goes up after the blob.
    let order: Vec<_> =
        faulty.seen().iter().filter(|s| s.method == "PUT").map(|s| s.path.contains("/manifests/")).collect();
    assert_eq!(order, [false, true, true]);
}

#[tokio::test]
async fn an_api_that_does_not_say_oci_subject_is_an_api_if_it_lists() {
    let faulty = Faulty::start(Nature { referrers: true, ..Nature::default() }, |seen, truth| {
        seen.is("PUT", "/manifests/").then(|| {
            let mut answer = truth.truth_now(seen);
            answer.headers_mut().remove("oci-subject");
            answer
        })
    })
    .await;
    assert_eq!(attach(&repository(&faulty, config()), "x", &[]).await.unwrap().attached, Attached::ReferrersApi);
    assert_eq!(faulty.manifest(&tag()), None);
}

#[tokio::test]
async fn without_the_api_the_tag_lists_it() {
    let faulty = Faulty::honest(Nature { conditions: true, ..Nature::default() }).await;
    let repository = repository(&faulty, config());
    let report = attach(&repository, "one", &[]).await.unwrap();
    assert_eq!(report, AttachReport { attached: Attached::TagSchema(tag()), not_deleted: vec![] });
    attach(&repository, "two", &[]).await.unwrap();
    attach(&repository, "three", &[index("one").1.digest]).await.unwrap();
    // Again, which changes nothing and writes nothing.
    let writes = faulty.saw("PUT", &tag()).len();
    attach(&repository, "three", &[index("one").1.digest]).await.unwrap();
    assert_eq!(faulty.saw("PUT", &tag()).len(), writes);

    let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
    assert!(!found.api);
    assert_eq!(found.descriptors, [index("three").1, index("two").1]);
    assert_eq!(faulty.manifest(&index("one").1.digest.to_string()), None);
    assert!(
        faulty.saw("PUT", &tag()).iter().all(|put| put.header("if-match").or(put.header("if-none-match")).is_some())
    );
}

#[tokio::test]
async fn an_older_index_that_cannot_be_deleted_is_reported() {
    let faulty = Faulty::start(Nature::default(), |seen, _| (seen.method == "DELETE").then(|| status(405))).await;
    let repository = repository(&faulty, config());
    attach(&repository, "one", &[]).await.unwrap();
    let old = index("one").1.digest;
    // Neither the subject nor the index itself is ever deleted.
    let report = attach(&repository, "two", &[old, subject().1.digest, index("two").1.digest]).await.unwrap();
    assert_eq!(report.not_deleted, [old]);
    assert_eq!(faulty.saw("DELETE", "").len(), 1);
    let found = repository.referrers(&subject().1.digest, None).await.unwrap();
    assert_eq!(entries(&found.descriptors), ["two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_attach_at_once_lose_nothing() {
    for (conditions, slow) in [(false, 0), (false, 20), (true, 5)] {
        let nature = Nature { conditions, slow_manifests: Duration::from_millis(slow), ..Nature::default() };
        let faulty = Faulty::honest(nature).await;
        // A client each, so that nothing but the registry stands between them.
        let names: Vec<String> = (0..5).map(|i| format!("w{i}")).collect();
        let all: Vec<_> = names
            .iter()
            .map(|name| {
                let (repository, name) = (repository(&faulty, config()), name.clone());
                tokio::spawn(async move { attach(&repository, &name, &[]).await })
            })
            .collect();
        for one in all {
            assert_eq!(one.await.unwrap().unwrap().attached, Attached::TagSchema(tag()));
        }
        let found = repository(&faulty, config()).referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
        let mut found = entries(&found.descriptors);
        found.sort_unstable();
        assert_eq!(found, names, "conditions {conditions}, slow {slow}");
    }
}

#[tokio::test]
async fn tasks_of_one_client_take_turns() {
    let faulty = Faulty::honest(Nature::default()).await;
    let repository = repository(&faulty, config());
    let all: Vec<_> = (0..4)
        .map(|i| {
            let repository = repository.clone();
            tokio::spawn(async move { attach(&repository, &format!("t{i}"), &[]).await })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    assert_eq!(faulty.saw("PUT", &tag()).len(), 4);
    assert_eq!(repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.len(), 4);
}

#[tokio::test]
async fn an_entry_that_another_writer_drops_comes_back() {
    let once = first(1);
    let stranger = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [index("stranger").1]}).to_string();
    let faulty = Faulty::start(Nature::default(), move |seen, truth| {
        // After our write, someone who had read the list before writes it without us.
        if seen.is("GET", &tag()) && truth.manifest(&tag()).is_some() && once() {
            truth.add_manifest(&tag(), INDEX, stranger.clone());
        }
        None
    })
    .await;
    let repository = repository(&faulty, config());
    attach(&repository, "ours", &[]).await.unwrap();
    let found = repository.referrers(&subject().1.digest, None).await.unwrap();
    assert_eq!(entries(&found.descriptors), ["stranger", "ours"]);
}

#[tokio::test]
async fn a_registry_that_refuses_every_condition_is_written_to_without() {
    let faulty = Faulty::start(Nature::default(), |seen, _| {
        (seen.header("if-match").is_some() || seen.header("if-none-match").is_some()).then(|| status(412))
    })
    .await;
    let repository = repository(&faulty, config());
    attach(&repository, "one", &[]).await.unwrap();
    attach(&repository, "two", &[]).await.unwrap();
    let found = repository.referrers(&subject().1.digest, None).await.unwrap();
    assert_eq!(entries(&found.descriptors), ["one", "two"]);
}

#[tokio::test]
async fn writers_that_never_stop_are_an_error() {
    let faulty = Faulty::start(Nature::default(), move |seen, truth| {
        if seen.is("GET", &tag()) {
            truth.add_manifest(&tag(), INDEX, json!({"schemaVersion": 2, "manifests": []}).to_string());
        }
        None
    })
    .await;
    let error = attach(&repository(&faulty, config()), "ours", &[]).await.unwrap_err();
    assert!(matches!(error, RegistryError::FallbackTag { .. }), "{error:?}");
    assert!(error.to_string().contains("others overwrote our entry"), "{error}");
}

#[tokio::test]
async fn a_tag_that_is_the_subject_itself_is_no_list() {
    // GitLab takes the tag sha256-HEX for the digest.
    let faulty = Faulty::honest(Nature::default()).await;
    faulty.add_manifest(&tag(), MANIFEST, subject().0);
    let repository = repository(&faulty, config());
    assert!(repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.is_empty());
    attach(&repository, "x", &[]).await.unwrap();
    assert_eq!(faulty.manifest(&subject().1.digest.to_string()), Some(subject().0));

    // And one that cannot be written to says so.
    let faulty =
        Faulty::start(Nature::default(), |seen, _| seen.is("PUT", "/manifests/sha256-").then(|| status(201))).await;
    faulty.add_manifest(&tag(), MANIFEST, subject().0);
    let error = attach(&self::repository(&faulty, config()), "x", &[]).await.unwrap_err();
    assert!(matches!(error, RegistryError::FallbackTag { .. }), "{error:?}");
    assert!(faulty.saw("DELETE", "").is_empty());
}

#[tokio::test]
async fn a_tag_that_is_something_else_is_left_alone() {
    let faulty = Faulty::honest(Nature::default()).await;
    faulty.add_manifest(&tag(), MANIFEST, "{\"someones\":\"image\"}");
    let repository = repository(&faulty, config());
    assert!(repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.is_empty());
    let error = attach(&repository, "x", &[]).await.unwrap_err();
    assert!(error.to_string().contains("no index of referrers"), "{error}");
    assert_eq!(faulty.manifest(&tag()).unwrap(), "{\"someones\":\"image\"}");
}

#[tokio::test]
async fn a_blob_that_only_seems_to_be_there_is_pushed_for_real() {
    let faulty = Faulty::start(Nature::default(), |seen, _| {
        let there = || Response::builder().header(header::CONTENT_LENGTH, 2).body(Body::empty()).unwrap();
        seen.is("HEAD", "/blobs/").then(there)
    })
    .await;
    let repository = repository(&faulty, config());
    let error = attach(&repository, "x", &[]).await.unwrap_err();
    assert!(error.is_blob_unknown(), "{error:?}");
    repository.push_blob_unchecked(&Descriptor::of(SOCI, b"{}"), Bytes::from_static(b"{}")).await.unwrap();
    attach(&repository, "x", &[]).await.unwrap();
}

#[tokio::test]
async fn refused_manifests() {
    for (kind, what) in
        [("digest", "digest of the content is"), ("413", "413 Payload Too Large"), ("400", "MANIFEST_INVALID: subject")]
    {
        let faulty = Faulty::start(Nature::default(), move |seen, _| {
            seen.is("PUT", "/manifests/").then(|| match kind {
                "digest" => Response::builder()
                    .status(201)
                    .header("docker-content-digest", Digest::sha256(b"other").to_string())
                    .body(Body::empty())
                    .unwrap(),
                "413" => status(413),
                _ => problem(400, "MANIFEST_INVALID", "subject"),
            })
        })
        .await;
        let error = attach(&repository(&faulty, config()), "x", &[]).await.unwrap_err();
        assert!(error.to_string().contains(what), "{kind}: {error}");
        assert_eq!(faulty.manifest(&tag()), None);
    }
    let faulty = Faulty::honest(Nature::default()).await;
    let (bytes, descriptor) = index("x");
    let error =
        repository(&faulty, config()).attach(&descriptor, bytes.slice(1..), &subject().1, &[]).await.unwrap_err();
    assert!(matches!(error, RegistryError::Content { .. }), "{error:?}");
    assert!(faulty.seen().is_empty());
}

// ---- what else there is ----

#[tokio::test]
async fn errors_hold_no_secret() {
    let store = Faulty::start(Nature::default(), |_, _| Some(status(500))).await;
    let to = format!("http://{}/x?X-Amz-Signature=hunter2", store.host());
    let nature = Nature { bearer: Some(Some(("u".into(), "hunter2".into()))), ..Nature::default() };
    let faulty = Faulty::start(nature, move |seen, _| {
        (seen.is("GET", "/v2/") && seen.header("authorization").is_some()).then(|| redirect(307, &to))
    })
    .await;
    let config = with_password("u", "hunter2");
    assert!(!format!("{:?}", config.credentials).contains("hunter2"));
    let error = repository(&faulty, config).manifest(&Target::Tag("t".into())).await.unwrap_err();
    let all = everything(&error);
    assert!(!all.contains("hunter2") && !all.contains("token-1") && !all.contains("Signature"), "{all}");
    assert!(all.contains(&format!("GET http://{}/x: 500", store.host())), "{all}");
}

#[tokio::test]
async fn ipv6_literals() {
    let faulty = Faulty::at("[::1]:0", Nature::default(), |_, _| None).await;
    faulty.add_blob("x");
    let host = format!("[::1]:{}", faulty.address.port());
    let repository = Client::new(config()).unwrap().repository(&host, "a/b").unwrap();
    assert_eq!(repository.blob_bytes(&Descriptor::of("x/y", b"x"), 1).await.unwrap(), "x");
    assert_eq!(faulty.seen()[0].header("host"), Some(host.as_str()));
}

#[tokio::test]
async fn plain_http_is_for_this_machine_or_where_told() {
    let faulty = Faulty::honest(Nature::default()).await;
    faulty.add_blob("x");
    let blob = Descriptor::of("x/y", b"x");
    // A setting for TLS may be meant for another registry.
    let insecure = || ClientConfig { insecure_skip_tls_verify: true, ..config() };
    for (plain_http, works) in [(None, true), (Some(true), true), (Some(false), false)] {
        let found = repository(&faulty, ClientConfig { plain_http, ..insecure() }).blob_bytes(&blob, 1).await;
        assert_eq!(found.is_ok(), works, "{plain_http:?}: {found:?}");
    }
}

/// Runs a test of this file by itself, in a process with these variables: they belong to a whole process.
fn in_child(test: &str, variables: &[(&str, &str)]) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--ignored", "--nocapture"]);
    for name in
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"]
    {
        child.env_remove(name);
    }
    let output = child.envs(variables.iter().copied()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
async fn proxies_of_the_environment() {
    let proxy = Faulty::start(Nature { basic: None, ..Nature::default() }, |seen, truth| {
        seen.is("GET", "/blobs/").then(|| truth.get_blob(seen, &Digest::sha256(b"x").to_string()))
    })
    .await;
    proxy.add_blob("x");
    let url = format!("http://pu:pp@{}", proxy.host());
    let run =
        move || in_child("child_with_a_proxy", &[("HTTP_PROXY", &url), ("NO_PROXY", "10.0.0.0/8,direct.invalid")]);
    tokio::task::spawn_blocking(run).await.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
    let seen = proxy.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("host"), Some("registry.invalid"));
    assert_eq!(seen[0].header("proxy-authorization"), Some(basic("pu", "pp").as_str()));
}

#[tokio::test]
#[ignore = "run by proxies_of_the_environment, in a process of its own"]
async fn child_with_a_proxy() {
    let limits = Limits { tries: 1, ..limits() };
    let client = Client::new(ClientConfig { plain_http: Some(true), limits, ..config() }).unwrap();
    let get = |host: &str| {
        let repository = client.repository(host, "a/b").unwrap();
        async move { repository.blob_bytes(&Descriptor::of("x/y", b"x"), 1).await }
    };
    assert_eq!(get("registry.invalid").await.unwrap(), "x");
    get("direct.invalid").await.unwrap_err();
    // This machine is not behind a proxy.
    let local = Faulty::honest(Nature::default()).await;
    local.add_blob("x");
    get(&local.host()).await.unwrap();
}

#[tokio::test]
async fn what_docker_login_left_is_found() {
    let nature = Nature { bearer: Some(Some(("u".into(), "p".into()))), ..Nature::default() };
    for kind in ["auth", "identitytoken", "registrytoken"] {
        let faulty = Faulty::start(nature.clone(), |seen, truth| {
            (seen.header("authorization") == Some("Bearer registry-token-of-u"))
                .then(|| truth.get_blob(seen, &Digest::sha256(b"x").to_string()))
        })
        .await;
        faulty.add_blob("x");
        let entry = match kind {
            "auth" => json!({"auth": basic("u", "p").strip_prefix("Basic ").unwrap()}),
            "identitytoken" => json!({"auth": "dTo=", "identitytoken": "identity-of-u"}),
            _ => json!({"registrytoken": "registry-token-of-u"}),
        };
        let dir = tempfile::tempdir().unwrap();
        let auths = json!({"auths": {faulty.host(): entry}});
        std::fs::write(dir.path().join("config.json"), auths.to_string()).unwrap();
        let (path, host) = (dir.path().to_str().unwrap().to_owned(), faulty.host());
        let run = move || in_child("child_with_a_login", &[("DOCKER_CONFIG", &path), ("TEST_REGISTRY", &host)]);
        tokio::task::spawn_blocking(run).await.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
        let post = faulty.saw("POST", "/token");
        if kind == "identitytoken" {
            let form = String::from_utf8_lossy(&post[0].body).into_owned();
            assert!(
                form.starts_with(
                    "grant_type=refresh_token&client_id=ociseek&service=faulty&scope=repository%3Aa%2Fb%3Apull&"
                ),
                "{form}"
            );
        } else {
            assert!(post.is_empty());
        }
    }
}

#[tokio::test]
#[ignore = "run by what_docker_login_left_is_found, in a process of its own"]
async fn child_with_a_login() {
    let host = std::env::var("TEST_REGISTRY").unwrap();
    let config = ClientConfig { credentials: CredentialSource::Ambient, ..config() };
    let repository = Client::new(config).unwrap().repository(&host, "a/b").unwrap();
    assert_eq!(repository.blob_bytes(&Descriptor::of("x/y", b"x"), 1).await.unwrap(), "x");
}
