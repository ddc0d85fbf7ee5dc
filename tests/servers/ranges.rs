//! Ranges of blobs, from correct stores and from faulty registries.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_store::archive::Archive;
use ociseek_store::layout::Layout;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits};
use ociseek_store::{Source, StoreError};
use ociseek_testkit::blobs::{content, descriptor};
use ociseek_testkit::faulty::*;
use ociseek_testkit::servers::Server;

fn config() -> ClientConfig {
    let limits = Limits {
        first_wait: Duration::from_millis(2),
        longest_wait: Duration::from_secs(5),
        idle: Duration::from_millis(500),
        ..Limits::default()
    };
    ClientConfig { credentials: CredentialSource::Anonymous, limits, ..ClientConfig::default() }
}

fn source(host: &str) -> Source {
    Source::Registry(Client::new(config()).unwrap().repository(host, "a/b").unwrap())
}

fn everything(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut next: Option<&dyn Error> = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}

/// Checks that ranges of `blob` are correct, and that invalid ranges are errors.
async fn check(source: &Source, blob: &Bytes) {
    let descriptor = descriptor(blob);
    let size = blob.len() as u64;
    for range in
        [0..0, 0..1, 0..size, 1..size, size - 1..size, 5000..70_000, size..size, 65_536..131_072]
    {
        let found = source.blob_range(&descriptor, range.clone()).await.unwrap();
        assert!(found == blob.slice(range.start as usize..range.end as usize), "{range:?}");
    }
    for range in [(0, size + 1), (size + 1, size + 1), (2, 1), (0, u64::MAX)] {
        let range = range.0..range.1;
        let error = source.blob_range(&descriptor, range).await.unwrap_err();
        assert!(matches!(error, StoreError::Range { .. }), "{error}");
    }
}

#[tokio::test]
async fn parts_are_read_from_a_layout_and_its_archive() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_new(&dir.path().join("layout")).unwrap();
    let blob = content(300_000);
    layout.write_blob(&descriptor(&blob), &blob).unwrap();
    let file = dir.path().join("a.tar");
    let mut tar = tar::Builder::new(std::fs::File::create(&file).unwrap());
    tar.append_dir_all(".", dir.path().join("layout")).unwrap();
    tar.into_inner().unwrap();
    check(&Source::Layout(Arc::new(layout)), &blob).await;
    check(&Source::Archive(Arc::new(Archive::open(&file).unwrap())), &blob).await;
}

#[tokio::test]
async fn a_missing_blob_or_one_of_another_size_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_new(dir.path()).unwrap();
    let blob = content(1000);
    layout.write_blob(&descriptor(&blob), &blob).unwrap();
    let source = Source::Layout(Arc::new(layout));
    let other = descriptor(&content(999));
    assert!(source.blob_range(&other, 0..10).await.is_err());
    let longer = Descriptor { size: 2000, ..descriptor(&blob) };
    assert!(source.blob_range(&longer, 1500..1600).await.is_err());
}

/// A real registry of each kind.
fn real() -> Vec<Server> {
    [
        Server::olareg(|_, _| Vec::new()),
        Server::distribution("127.0.0.1:0", |_| String::new()),
        Server::crane(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[tokio::test]
async fn parts_are_read_from_real_registries() {
    for server in real() {
        let blob = content(300_000);
        let repository = Client::new(config()).unwrap().repository(&server.host, "a/b").unwrap();
        repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
        check(&Source::Registry(repository), &blob).await;
    }
}

#[tokio::test]
async fn one_request_asks_for_exactly_the_part() {
    let blob = content(300_000);
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(blob.clone());
    check(&source(&faulty.host()), &blob).await;
    let ranges: Vec<_> = faulty
        .saw("GET", "/blobs/")
        .iter()
        .map(|get| get.header("range").unwrap_or("-").to_owned())
        .collect();
    assert_eq!(
        ranges,
        [
            "bytes=0-0",
            "-",
            "bytes=1-299999",
            "bytes=299999-299999",
            "bytes=5000-69999",
            "bytes=65536-131071"
        ]
    );
}

#[tokio::test]
async fn a_host_without_ranges_is_read_up_to_the_part_and_remembered() {
    let blob = content(300_000);
    let whole = blob.clone();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        seen.is("GET", "/blobs/").then(|| Response::new(Body::from(whole.clone())))
    })
    .await;
    let source = source(&faulty.host());
    for _ in 0..2 {
        let found = source.blob_range(&descriptor(&blob), 100_000..100_100).await.unwrap();
        assert_eq!(found, blob.slice(100_000..100_100));
    }
    let asked: Vec<_> =
        faulty.saw("GET", "/blobs/").iter().map(|get| get.header("range").is_some()).collect();
    assert_eq!(asked, [true, false]);

    let limits = Limits { reread: 50_000, ..config().limits };
    let client = Client::new(ClientConfig { limits, ..config() }).unwrap();
    let strict = Source::Registry(client.repository(&faulty.host(), "a/b").unwrap());
    let error = strict.blob_range(&descriptor(&blob), 100_000..100_100).await.unwrap_err();
    assert!(
        everything(&error).contains("100000 bytes precede the range"),
        "{}",
        everything(&error)
    );
    assert_eq!(
        strict.blob_range(&descriptor(&blob), 40_000..50_000).await.unwrap(),
        blob.slice(40_000..50_000)
    );
}

#[tokio::test]
async fn wrong_parts_are_errors() {
    // The bytes 1000 to 1999 of 300,000 were requested. Whether the whole is requested then: it may
    // be right where a part is refused or another one. Otherwise such an answer does not improve.
    for (status, range, length, for_whole) in [
        (206, "bytes 0-999/300000", 1000, true),
        (206, "bytes 1001-2000/300000", 1000, true),
        (206, "bytes 1000-2000/300000", 1001, true),
        (206, "bytes 1000-1999/300001", 1000, true),
        (206, "bytes 1000-1999", 1000, true),
        (206, "bytes 1000-18446744073709551615/*", 1000, true),
        (206, "", 1000, true),
        (206, "bytes 1000-1999/300000", 1001, false),
        (416, "bytes */300000", 0, true),
        (404, "", 0, false),
        (204, "", 0, false),
    ] {
        let blob = content(300_000);
        let whole = blob.clone();
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("GET", "/blobs/").then(|| {
                let answer =
                    Response::builder().status(status).header(header::CONTENT_RANGE, range);
                answer.body(Body::from(whole.slice(1000..1000 + length))).unwrap()
            })
        })
        .await;
        let found = source(&faulty.host()).blob_range(&descriptor(&blob), 1000..2000).await;
        assert!(found.is_err(), "{status} {range} {length}");
        let gets = faulty.saw("GET", "/blobs/");
        let ranges: Vec<_> = gets.iter().map(|get| get.header("range").is_some()).collect();
        assert_eq!(
            ranges,
            if for_whole { &[true, false][..] } else { &[true] },
            "{status} {range}"
        );
    }
}

#[tokio::test]
async fn the_rest_is_requested_if_a_server_sends_less() {
    let blob = content(300_000);
    let whole = blob.clone();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let range = seen.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let from = range.0.parse::<usize>().ok()?;
        let last = range.1.parse::<usize>().ok()?;
        let last = last.min(from + 39_999);
        let answer = Response::builder().status(206);
        let answer =
            answer.header(header::CONTENT_RANGE, format!("bytes {from}-{last}/{}", whole.len()));
        Some(answer.body(Body::from(whole.slice(from..=last))).unwrap())
    })
    .await;
    let found = source(&faulty.host()).blob_range(&descriptor(&blob), 1000..101_000).await.unwrap();
    assert!(found == blob.slice(1000..101_000));
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 3);
}

#[tokio::test]
async fn interrupted_and_stalled_parts_are_resumed() {
    for stall in [false, true] {
        let blob = content(300_000);
        let whole = blob.clone();
        let once = first(1);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            (seen.is("GET", "/blobs/") && once()).then(|| {
                let answer = truth.get_blob(seen, &Digest::sha256(&whole).to_string());
                let part = whole.slice(1000..200_000);
                let (head, _) = answer.into_parts();
                let body = if stall {
                    stalls(&part, 70_000)
                } else {
                    cut(Response::new(Body::empty()), &part, 70_000)
                };
                Response::from_parts(head, body.into_body())
            })
        })
        .await;
        faulty.add_blob(blob.clone());
        let found =
            source(&faulty.host()).blob_range(&descriptor(&blob), 1000..200_000).await.unwrap();
        assert!(found == blob.slice(1000..200_000));
        let ranges: Vec<_> = faulty
            .saw("GET", "/blobs/")
            .iter()
            .map(|get| get.header("range").unwrap().to_owned())
            .collect();
        assert_eq!(ranges, ["bytes=1000-199999", "bytes=71000-199999"]);
    }
}

#[tokio::test]
async fn expired_tokens_and_signed_urls_are_renewed() {
    let blob = content(100_000);
    let bearer = RegistrySettings { bearer: Some(None), ..RegistrySettings::default() };
    let store = Faulty::start(RegistrySettings::default(), {
        let some = first(1);
        move |_, _| {
            some().then(|| Response::builder().status(403).body(Body::from("expired")).unwrap())
        }
    })
    .await;
    store.add_blob(blob.clone());
    let to =
        format!("http://{}/v2/s/blobs/{}?Signature=hunter2", store.host(), Digest::sha256(&blob));
    let faulty = Faulty::start(bearer, move |seen, truth| {
        let answer = truth.truth_now(seen);
        let granted = seen.is("GET", "/blobs/") && answer.status() != 401;
        Some(if granted { redirect(307, &to) } else { answer })
    })
    .await;
    faulty.add_blob(blob.clone());
    let source = source(&faulty.host());
    for from in [1000, 2000, 3000] {
        // Not through the remembered place.
        let mut part = source.blob_part(&descriptor(&blob), from..from + 500, true).await.unwrap();
        assert_eq!(
            part.next().await.unwrap().unwrap(),
            blob.slice(from as usize..from as usize + 500)
        );
        faulty.revoke_tokens();
    }
    assert!(store.requests().iter().all(|seen| seen.header("authorization").is_none()));
    assert!(store.requests().iter().all(|seen| seen.header("range").is_some()));
    assert_eq!(store.requests().len(), 4, "one refusal");
    assert_eq!(faulty.saw("GET", "/token").len(), 3);
}
