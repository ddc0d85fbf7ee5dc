//! Large blobs over several connections: the right bytes in order whatever the registry does, over
//! at most the allowed number of connections, and over one if parts are not available or memory is
//! short.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use futures_util::stream;
use ociseek_format::image::Descriptor;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits};
use ociseek_store::{Source, StoreError};
use ociseek_testkit::blobs::{content, descriptor};
use ociseek_testkit::faulty::*;
use ociseek_testkit::servers::Server;

const PART: u64 = 10_000;

fn config(connections: usize) -> ClientConfig {
    let limits = Limits {
        first_wait: Duration::from_millis(2),
        longest_wait: Duration::from_secs(5),
        connections,
        part: PART,
        ..Limits::default()
    };
    ClientConfig { credentials: CredentialSource::Anonymous, limits, ..ClientConfig::default() }
}

fn source(host: &str, config: ClientConfig) -> Source {
    Source::Registry(Client::new(config).unwrap().repository(host, "a/b").unwrap())
}

async fn read(source: &Source, blob: &Descriptor) -> Result<Vec<u8>, StoreError> {
    let mut stream = source.blob(blob, false).await?;
    let mut all = Vec::new();
    while let Some(chunk) = stream.next().await? {
        assert!(!chunk.is_empty());
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

fn range(seen: &ReceivedRequest) -> Option<(usize, usize)> {
    let (from, last) = seen.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
    Some((from.parse().ok()?, last.parse::<usize>().ok()? + 1))
}

/// A registry that sends slowly, with the number of responses sent at the same time.
async fn slow(blobs: &[Bytes]) -> (Faulty, Arc<OpenResponses>) {
    let open = Arc::new(OpenResponses::default());
    let counting = Arc::clone(&open);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, faulty| {
        let digest =
            seen.path.split("/blobs/").nth(1).filter(|_| seen.method == "GET")?.parse().ok()?;
        let whole = faulty.blob(&digest)?;
        let (from, end) = range(seen).unwrap_or((0, whole.len()));
        Some(counting.answer(faulty.truth_now(seen), whole.slice(from..end.min(whole.len()))))
    })
    .await;
    for blob in blobs {
        faulty.add_blob(blob.clone());
    }
    (faulty, open)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_blob_is_read_over_as_many_connections_as_allowed() {
    for (length, connections, parts) in [
        (200_000, 4, 20),
        (199_999, 4, 20),
        (200_001, 3, 21),
        (40_000, 8, 4),
        (200_000, 1, 1),
        (39_999, 8, 1),
        (0, 8, 1),
    ] {
        let blob = content(length);
        let (faulty, open) = slow(std::slice::from_ref(&blob)).await;
        let found =
            read(&source(&faulty.host(), config(connections)), &descriptor(&blob)).await.unwrap();
        assert!(found == blob, "{length} bytes");
        assert_eq!(faulty.saw("GET", "/blobs/").len(), parts, "{length} bytes");
        assert_eq!(open.most(), connections.min(parts), "{length} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_blobs_share_the_connections() {
    let blobs: Vec<_> = (0..4).map(|i| content(150_000 + i * 1000)).collect();
    let (faulty, open) = slow(&blobs).await;
    let source = source(&faulty.host(), config(5));
    let reads = blobs.iter().map(|blob| {
        let source = source.clone();
        let blob = blob.clone();
        tokio::spawn(async move { read(&source, &descriptor(&blob)).await.unwrap() == blob })
    });
    for right in futures_util::future::join_all(reads).await {
        assert!(right.unwrap());
    }
    assert_eq!(open.most(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_blobs_than_connections_are_read_one_after_the_other() {
    let blobs: Vec<_> = (0..6).map(|i| content(60_000 + i * 1000)).collect();
    let (faulty, open) = slow(&blobs).await;
    let source = source(&faulty.host(), config(2));
    let reads =
        blobs.iter().map(|blob| async { read(&source, &descriptor(blob)).await.unwrap() == *blob });
    assert!(futures_util::future::join_all(reads).await.into_iter().all(|right| right));
    assert_eq!(open.most(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_interrupted_parts_are_requested_again() {
    let blob = content(200_000);
    let broken = Arc::new(AtomicUsize::new(0));
    let times = Arc::clone(&broken);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, faulty| {
        let digest = seen.path.split("/blobs/").nth(1)?.parse().ok()?;
        let (from, end) = range(seen)?;
        // Every third response is truncated, and some requests are refused temporarily.
        let turn = times.fetch_add(1, Ordering::SeqCst);
        let whole = faulty.blob(&digest)?;
        match turn % 6 {
            2 | 5 => {
                let half = whole.slice(from..(from + (end - from) / 2));
                let (head, _) = faulty.truth_now(seen).into_parts();
                let cut = stream::iter([Ok(half), Err(std::io::Error::other("cut"))]);
                Some(Response::from_parts(head, Body::from_stream(cut)))
            }
            4 => Some(Response::builder().status(503).body(Body::empty()).unwrap()),
            _ => None,
        }
    })
    .await;
    faulty.add_blob(blob.clone());
    let found = read(&source(&faulty.host(), config(4)), &descriptor(&blob)).await.unwrap();
    assert!(found == blob);
    assert!(broken.load(Ordering::SeqCst) > 24);
    // Known bytes are not requested again: reading continues where it was interrupted.
    let asked: usize =
        faulty.saw("GET", "/blobs/").iter().filter_map(range).map(|(from, end)| end - from).sum();
    assert!(asked < 2 * blob.len(), "{asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_sends_the_whole_blob_gets_one_request() {
    let blob = content(200_000);
    let whole = blob.clone();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        seen.is("GET", "/blobs/").then(|| Response::new(Body::from(whole.clone())))
    })
    .await;
    let source = source(&faulty.host(), config(4));
    for _ in 0..2 {
        assert!(read(&source, &descriptor(&blob)).await.unwrap() == blob);
    }
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_continues_over_one_connection_if_parts_are_no_longer_sent() {
    let blob = content(200_000);
    let whole = blob.clone();
    let answers = AtomicUsize::new(0);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let later = seen.is("GET", "/blobs/") && answers.fetch_add(1, Ordering::SeqCst) >= 3;
        later.then(|| Response::new(Body::from(whole.clone())))
    })
    .await;
    faulty.add_blob(blob.clone());
    assert!(read(&source(&faulty.host(), config(2)), &descriptor(&blob)).await.unwrap() == blob);
    // Two may be in progress when it stops. The rest is a single request.
    let asked = faulty.saw("GET", "/blobs/").len();
    assert!((4..=8).contains(&asked), "{asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_part_fails_the_blob() {
    let blob = content(200_000);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let far = range(seen).is_some_and(|(from, _)| from >= 120_000);
        far.then(|| {
            Response::builder()
                .status(403)
                .body(Body::from(r#"{"errors":[{"code":"DENIED"}]}"#))
                .unwrap()
        })
    })
    .await;
    faulty.add_blob(blob.clone());
    let mut stream =
        source(&faulty.host(), config(4)).blob(&descriptor(&blob), false).await.unwrap();
    let mut read = 0;
    let error = loop {
        match stream.next().await {
            Ok(chunk) => read += chunk.unwrap().len(),
            Err(error) => break error,
        }
    };
    assert_eq!(read, 120_000);
    assert!(error.to_string().contains("403"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_use_at_most_a_quarter_of_the_memory_of_an_image() {
    let blob = content(200_000);
    let (faulty, open) = slow(std::slice::from_ref(&blob)).await;
    let config = ClientConfig { max_memory: 4 * (2 * PART + PART / 2), ..config(6) };
    let source = source(&faulty.host(), config);
    assert!(read(&source, &descriptor(&blob)).await.unwrap() == blob);
    assert_eq!(open.most(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_blob_releases_its_connections() {
    let blob = content(200_000);
    let (faulty, open) = slow(std::slice::from_ref(&blob)).await;
    let source = source(&faulty.host(), config(4));
    for _ in 0..3 {
        let mut stream = source.blob(&descriptor(&blob), false).await.unwrap();
        assert!(stream.next().await.unwrap().is_some());
    }
    assert_eq!(read(&source, &descriptor(&blob)).await.unwrap().len(), blob.len());
    assert!(open.most() >= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn real_registries_send_parts_concurrently() {
    let servers = [
        Server::olareg(|_, _| Vec::new()),
        Server::distribution("127.0.0.1:0", |_| String::new()),
        Server::crane(),
    ];
    for server in servers.into_iter().flatten() {
        let blob = content(2_000_000);
        let repository = Client::new(config(4)).unwrap().repository(&server.host, "a/b").unwrap();
        repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
        assert!(read(&Source::Registry(repository), &descriptor(&blob)).await.unwrap() == blob);
    }
}
