//! Blobs that arrive broken, wrong, or slowly.

use super::*;

#[tokio::test]
async fn an_interrupted_download_is_resumed() {
    let blob = content(300_000);
    let whole = blob.clone();
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        let answer = |seen| truth.get_blob(seen, &Digest::sha256(&whole).to_string());
        (seen.is("GET", "/blobs/") && once()).then(|| cut(answer(seen), &whole, 100_000))
    })
    .await;
    let digest = faulty.add_blob(blob.clone());
    assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
    let gets = faulty.saw("GET", "/blobs/");
    assert_eq!(gets.len(), 2);
    assert_eq!(gets[0].header("range"), None);
    assert_eq!(gets[1].header("range"), Some("bytes=100000-299999"));
    assert_eq!(gets[1].header("if-range"), Some(format!("\"{digest}\"").as_str()));
    assert!(gets.iter().all(|get| get.header("accept-encoding") == Some("identity")));
}

#[tokio::test]
async fn a_server_without_ranges_is_read_up_to_the_break_and_remembered() {
    let blob = content(300_000);
    let whole = blob.clone();
    let twice = first(2);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let answer = || Response::new(Body::from(whole.clone()));
        let cut_at = if seen.header("range").is_none() { 100_000 } else { 200_000 };
        seen.is("GET", "/blobs/")
            .then(|| if twice() { cut(answer(), &whole, cut_at) } else { answer() })
    })
    .await;
    assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
    let ranges: Vec<_> = faulty
        .saw("GET", "/blobs/")
        .iter()
        .map(|get| get.header("range").map(str::to_owned))
        .collect();
    assert_eq!(ranges, [None, Some("bytes=100000-299999".to_owned()), None]);
}

#[tokio::test]
async fn skipping_bytes_of_a_server_without_ranges_is_limited() {
    let blob = content(300_000);
    let whole = blob.clone();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        seen.is("GET", "/blobs/").then(|| cut(Response::new(Body::empty()), &whole, 200_000))
    })
    .await;
    let limits = Limits { reread: 100_000, ..limits() };
    let error = read(&repository(&faulty, ClientConfig { limits, ..config() }), &descriptor(&blob))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("200000 bytes precede the range"), "{error}");
}

#[tokio::test]
async fn a_server_with_wrong_parts_is_asked_for_the_whole() {
    for (status, range, media_type) in [
        (206, "bytes 0-299999/300000", "application/octet-stream"),
        (206, "bytes 100000-299999/400000", "application/octet-stream"),
        (206, "", "multipart/byteranges; boundary=x"),
        (416, "bytes */300000", "text/plain"),
        (400, "", "application/xml"),
        (501, "", "text/plain"),
    ] {
        let blob = content(300_000);
        let whole = blob.clone();
        let once = first(2);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("GET", "/blobs/").then(|| match seen.header("range") {
                None if once() => cut(Response::new(Body::empty()), &whole, 100_000),
                None => Response::new(Body::from(whole.clone())),
                Some(_) => Response::builder()
                    .status(status)
                    .header(header::CONTENT_TYPE, media_type)
                    .header(header::CONTENT_RANGE, range)
                    .body(Body::from(whole.slice(100_000..)))
                    .unwrap(),
            })
        })
        .await;
        let limits = Limits { reread: 50_000, ..limits() };
        let limited = repository(&faulty, ClientConfig { limits, ..config() });
        let error = read(&limited, &descriptor(&blob)).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Protocol { .. } | RegistryError::Answer(_)),
            "{range}: {error:?}"
        );
        assert_eq!(
            read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(),
            blob,
            "{status} {range}"
        );
        let gets = faulty.saw("GET", "/blobs/");
        let ranges: Vec<_> = gets.iter().map(|get| get.header("range").is_some()).collect();
        assert_eq!(ranges, [false, true, false, true, false], "{status} {range}");
    }
}

#[tokio::test]
async fn a_blob_has_exactly_the_bytes_of_its_descriptor() {
    let blob = content(10_000);
    for (length, announced) in
        [(9_999, true), (10_001, true), (10_001, false), (9_999, false), (0, true)]
    {
        let other = content(length);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            let body = if announced {
                Body::from(other.clone())
            } else {
                Body::from_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(
                    other.clone(),
                )]))
            };
            seen.is("GET", "/blobs/").then(|| Response::new(body))
        })
        .await;
        let error = read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap_err();
        match (length, announced) {
            // This looks like a connection that breaks each time.
            (9_999, false) => assert!(
                matches!(
                    error,
                    RegistryError::Protocol { .. }
                        | RegistryError::GaveUp { .. }
                        | RegistryError::Size { .. }
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
async fn content_with_a_label_of_its_encoding_is_the_blob_if_it_has_its_size() {
    for encoding in ["gzip", "x-gzip", "aws-chunked", "UTF-8", ""] {
        let blob = content(300_000);
        let whole = blob.clone();
        let once = first(1);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            seen.is("GET", "/blobs/").then(|| {
                let mut answer = if once() {
                    cut(Response::new(Body::empty()), &whole, 100_000)
                } else {
                    truth.truth_now(seen)
                };
                answer.headers_mut().insert(header::CONTENT_ENCODING, encoding.parse().unwrap());
                answer
            })
        })
        .await;
        faulty.add_blob(blob.clone());
        assert_eq!(
            read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(),
            blob,
            "{encoding}"
        );
        assert_eq!(
            faulty.saw("GET", "/blobs/")[1].header("range"),
            Some("bytes=100000-299999"),
            "{encoding}"
        );
    }
}

#[tokio::test]
async fn parts_and_wholes_may_have_the_status_of_the_other() {
    let blob = content(300_000);
    let part = |from: usize, end: usize, status: u16, range: Option<String>| {
        let mut answer = Response::builder().status(status);
        if let Some(range) = range {
            answer = answer.header(header::CONTENT_RANGE, range);
        }
        answer.body(Body::from(content(300_000).slice(from..end))).unwrap()
    };
    // The status of a part with and without its range, and of the whole.
    for (of_part, with_range, of_whole, requests) in
        [(200, true, 200, 2), (200, false, 200, 4), (206, true, 206, 2), (200, true, 206, 2)]
    {
        let whole = blob.clone();
        let once = first(1);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("GET", "/blobs/").then(|| match seen.header("range") {
                None if once() => cut(Response::new(Body::empty()), &whole, 100_000),
                None => part(
                    0,
                    300_000,
                    of_whole,
                    (of_whole == 206).then(|| "bytes 0-299999/300000".into()),
                ),
                Some(_) => part(
                    100_000,
                    300_000,
                    of_part,
                    with_range.then(|| "bytes 100000-299999/300000".into()),
                ),
            })
        })
        .await;
        assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
        assert_eq!(
            faulty.saw("GET", "/blobs/").len(),
            requests,
            "{of_part} {with_range} {of_whole}"
        );
        // The first answer is the whole.
        assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
    }
}

#[tokio::test]
async fn a_mirror_that_lost_the_content_is_passed_over() {
    let blob = content(300_000);
    let manifest = index("x").0;
    let lost = blob.clone();
    let mirror = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        let is_content = seen.is("GET", "/blobs/") || seen.is("GET", "/manifests/");
        is_content.then(|| cut(truth.truth_now(seen), &lost, 0))
    })
    .await;
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    for registry in [&mirror, &faulty] {
        registry.add_blob(blob.clone());
        registry.add_manifest("v1", OCI_MANIFEST, manifest.clone());
    }
    let hosts = tempfile::tempdir().unwrap();
    let dir = hosts.path().join(faulty.host());
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("hosts.toml"), format!("[host.\"http://{}\"]\n", mirror.host()))
        .unwrap();
    let config = || ClientConfig { hosts_dir: Some(hosts.path().to_owned()), ..config() };
    let repository = repository(&faulty, config());
    assert_eq!(read(&repository, &descriptor(&blob)).await.unwrap(), blob);
    let found = repository.manifest(&Target::Digest(Digest::sha256(&manifest))).await.unwrap();
    assert_eq!(found.bytes, manifest);
    assert_eq!(
        (mirror.saw("GET", "/blobs/").len(), mirror.saw("GET", "/manifests/").len()),
        (1, 1)
    );
}

#[tokio::test]
async fn a_cache_that_denies_a_blob_to_head_is_asked_with_get() {
    let blob = content(1000);
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        seen.is("HEAD", "/blobs/").then(|| status(404))
    })
    .await;
    faulty.add_blob(blob.clone());
    let repository = repository(&faulty, config());
    assert!(repository.blob_exists(&Digest::sha256(&blob), Some(1000)).await.unwrap());
    assert!(!repository.blob_exists(&Digest::sha256(&blob), Some(999)).await.unwrap());
    assert!(!repository.blob_exists(&Digest::sha256(b"none"), None).await.unwrap());
    assert!(
        faulty.saw("GET", "/blobs/").iter().all(|get| get.header("range") == Some("bytes=0-0"))
    );
}

#[tokio::test]
async fn encoded_content_is_refused() {
    let blob = content(100);
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        let answer = Response::builder()
            .header(header::CONTENT_ENCODING, "gzip")
            .body(Body::from(content(50)))
            .unwrap();
        seen.is("GET", "/blobs/").then_some(answer)
    })
    .await;
    let error = read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap_err();
    assert!(error.to_string().contains("Content-Encoding \"gzip\""), "{error}");
}

#[tokio::test]
async fn silence_within_a_body_counts_as_a_broken_connection() {
    let blob = content(300_000);
    let whole = blob.clone();
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        (seen.is("GET", "/blobs/") && once()).then(|| stalls(&whole, 70_000))
    })
    .await;
    faulty.add_blob(blob.clone());
    let limits = Limits { idle: Duration::from_millis(200), ..limits() };
    let begun = Instant::now();
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    assert_eq!(read(&repository, &descriptor(&blob)).await.unwrap(), blob);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    assert_eq!(faulty.saw("GET", "/blobs/")[1].header("range"), Some("bytes=70000-299999"));
}

#[tokio::test]
async fn a_trickling_download_is_retried() {
    let blob = content(300_000);
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let trickle = || endless("application/octet-stream", content(1), Duration::from_millis(10));
        (seen.is("GET", "/blobs/") && once()).then(trickle)
    })
    .await;
    faulty.add_blob(blob.clone());
    let limits = Limits { idle: Duration::from_millis(200), slowest: 10_000, ..limits() };
    let read = read(&repository(&faulty, ClientConfig { limits, ..config() }), &descriptor(&blob))
        .await
        .unwrap();
    // The bytes that arrived slowly are wrong, which the caller's hash detects. Here it only
    // matters that the download ended.
    assert_eq!(read.len(), blob.len());
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 2);
}

#[tokio::test]
async fn a_pausing_reader_does_not_count_as_a_slow_registry() {
    let blob = content(3_000_000);
    let faulty = Faulty::honest(RegistrySettings::default()).await;
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
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        seen.is("GET", "/blobs/").then(|| Response::new(Body::from(vec![7; 1000])))
    })
    .await;
    let repository = repository(&faulty, config());
    let error = repository.blob_bytes(&descriptor(&blob), 1000).await.unwrap_err();
    assert!(matches!(error, RegistryError::Digest { reads: 2, .. }), "{error:?}");
    assert_eq!(faulty.requests()[1].header("cache-control"), Some("no-cache"));
    let error = repository.blob_bytes(&descriptor(&blob), 999).await.unwrap_err();
    assert!(matches!(error, RegistryError::BlobTooLarge { limit: 999, .. }), "{error:?}");
    assert_eq!(faulty.requests().len(), 2);
}

#[tokio::test]
async fn the_empty_blob_is_read() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(Bytes::new());
    let repository = repository(&faulty, config());
    assert_eq!(repository.blob_bytes(&descriptor(&Bytes::new()), 0).await.unwrap(), Bytes::new());
    assert!(
        repository.push_blob(&Descriptor::of("x/y", b"z"), Bytes::from_static(b"z")).await.unwrap()
    );
}
