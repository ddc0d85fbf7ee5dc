//! Failing uploads, in one request and in chunks.

use super::*;

#[tokio::test]
async fn blobs_are_uploaded_whole_and_in_chunks() {
    for (monolithic, chunk, requests) in [
        (1 << 20, 1000, "POST PUT"),
        (0, 400, "POST PATCH PATCH PATCH PUT"),
        (0, 1000, "POST PATCH PUT"),
    ] {
        let faulty = Faulty::honest(RegistrySettings::default()).await;
        let limits = Limits { monolithic, chunk, ..limits() };
        let repository = repository(&faulty, ClientConfig { limits, ..config() });
        let blob = content(1000);
        assert!(repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap());
        assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob.clone()));
        assert!(!repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap());
        assert!(repository.blob_exists(&Digest::sha256(&blob), None).await.unwrap());
        assert!(!repository.blob_exists(&Digest::sha256(b"no"), None).await.unwrap());
        let made: Vec<_> = faulty
            .requests()
            .iter()
            .map(|s| s.method.to_string())
            .filter(|m| m != "HEAD" && m != "GET")
            .collect();
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
async fn content_that_does_not_match_its_descriptor_is_not_sent() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    let error = repository(&faulty, config())
        .push_blob_unchecked(&descriptor(&content(5)), content(6))
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::Content { expected: 5, found: 6, .. }), "{error:?}");
    assert!(faulty.requests().is_empty());
}

#[tokio::test]
async fn the_minimum_chunk_size_of_the_registry_is_honoured() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, truth| {
        seen.is("POST", "uploads").then(|| {
            let mut answer = truth.truth_now(seen);
            answer.headers_mut().insert("oci-chunk-min-length", "600".parse().unwrap());
            answer
        })
    })
    .await;
    let limits = Limits { monolithic: 0, chunk: 100, ..limits() };
    let blob = content(1000);
    repository(&faulty, ClientConfig { limits, ..config() })
        .push_blob(&descriptor(&blob), blob.clone())
        .await
        .unwrap();
    let sizes: Vec<_> =
        faulty.saw("PATCH", "uploads").iter().map(|patch| patch.body.len()).collect();
    assert_eq!(sizes, [600, 400]);
}

#[tokio::test]
async fn a_too_large_body_is_sent_in_chunks() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
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
async fn a_chunk_with_a_lost_response_is_not_sent_twice() {
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        (seen.is("PATCH", "uploads") && seen.header("content-range") == Some("400-799") && once())
            .then(|| {
                // It accepts the chunk, but reports an error.
                truth.truth_now(seen);
                status(503)
            })
    })
    .await;
    let limits = Limits { monolithic: 0, chunk: 400, ..limits() };
    let blob = content(1000);
    repository(&faulty, ClientConfig { limits, ..config() })
        .push_blob(&descriptor(&blob), blob.clone())
        .await
        .unwrap();
    assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
    let ranges: Vec<_> = faulty
        .saw("PATCH", "uploads")
        .iter()
        .filter_map(|patch| patch.header("content-range").map(str::to_owned))
        .collect();
    assert_eq!(ranges, ["0-399", "400-799", "800-999"]);
}

#[tokio::test]
async fn a_lost_response_to_an_upload_is_detected() {
    let once = first(1);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        (seen.is("PUT", "uploads") && once()).then(|| {
            truth.truth_now(seen);
            status(502)
        })
    })
    .await;
    let blob = content(1000);
    assert!(
        repository(&faulty, config()).push_blob(&descriptor(&blob), blob.clone()).await.unwrap()
    );
    let made: Vec<_> = faulty.requests().iter().map(|s| s.method.to_string()).collect();
    assert_eq!(made, ["HEAD", "POST", "PUT", "DELETE", "HEAD"]);
}

#[tokio::test]
async fn a_throttled_upload_is_repeated_in_its_session() {
    for method in ["PUT", "PATCH"] {
        let once = first(1);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            (seen.is(method, "uploads") && once()).then(|| status(429))
        })
        .await;
        let limits = Limits { monolithic: if method == "PUT" { 1000 } else { 0 }, ..limits() };
        let blob = content(1000);
        repository(&faulty, ClientConfig { limits, ..config() })
            .push_blob(&descriptor(&blob), blob.clone())
            .await
            .unwrap();
        assert_eq!(
            (faulty.saw("POST", "uploads").len(), faulty.saw(method, "uploads").len()),
            (1, 2)
        );
    }
}

#[tokio::test]
async fn lost_sessions_are_restarted_a_limited_number_of_times() {
    for (lost, works) in [(2, true), (3, false)] {
        let some = first(lost);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            (seen.is("PUT", "uploads") && some())
                .then(|| problem(404, "BLOB_UPLOAD_UNKNOWN", "gone"))
        })
        .await;
        let blob = content(1000);
        let pushed =
            repository(&faulty, config()).push_blob(&descriptor(&blob), blob.clone()).await;
        assert_eq!(pushed.is_ok(), works, "{pushed:?}");
        assert_eq!(faulty.saw("POST", "uploads").len(), 3);
        if let Err(error) = pushed {
            assert!(matches!(error, RegistryError::UploadLost { times: 3, .. }), "{error:?}");
            assert!(everything(&error).contains("BLOB_UPLOAD_UNKNOWN"));
        }
    }
}

#[tokio::test]
async fn every_request_of_an_upload_states_its_length() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        let writes = ["POST", "PUT", "PATCH"].contains(&seen.method.as_str());
        (writes && seen.header("content-length").is_none()).then(|| status(411))
    })
    .await;
    for (monolithic, size) in [(u64::MAX, 1000), (u64::MAX, 0), (0, 1000)] {
        let repository = repository(
            &faulty,
            ClientConfig { limits: Limits { monolithic, ..limits() }, ..config() },
        );
        let blob = content(size);
        repository.push_blob_unchecked(&descriptor(&blob), blob.clone()).await.unwrap();
        assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
    }
}

/// A registry whose answers to PATCH have this status and what `range` makes of the true position:
/// the begin and the end of the chunk, and the end of the first chunk.
async fn answering_patch(status: u16, range: fn(u64, u64, u64) -> Option<String>) -> Faulty {
    Faulty::start(RegistrySettings::default(), move |seen, truth| {
        seen.is("PATCH", "uploads").then(|| {
            let (begin, end) = match seen
                .header("content-range")
                .and_then(|range| range.split_once('-'))
            {
                Some((begin, last)) => (begin.parse().unwrap(), last.parse::<u64>().unwrap() + 1),
                None => (0, seen.body.len() as u64),
            };
            let mut answer = truth.truth_now(seen);
            assert!(answer.status().is_success());
            *answer.status_mut() = status.try_into().unwrap();
            answer.headers_mut().remove(header::RANGE);
            if let Some(range) = range(begin, end, 400.min(end)) {
                answer.headers_mut().insert(header::RANGE, range.parse().unwrap());
            }
            answer
        })
    })
    .await
}

#[tokio::test]
async fn chunks_are_accepted_whatever_the_status_and_the_range() {
    // By public reports: Amazon ECR (201, and a range that stays at the first chunk), zot and
    // Aliyun (the range of the chunk), and registries without a range.
    type RangeOf = fn(u64, u64, u64) -> Option<String>;
    let ranges: [RangeOf; 5] = [
        |_, end, _| Some(format!("0-{}", end - 1)),
        |_, _, first| Some(format!("0-{}", first - 1)),
        |begin, end, _| Some(format!("0-{}", end - begin - 1)),
        |begin, end, _| Some(format!("{begin}-{}", end - 1)),
        |_, _, _| None,
    ];
    for status in [200, 201, 202, 204] {
        for range in ranges {
            let faulty = answering_patch(status, range).await;
            let limits = Limits { monolithic: 0, chunk: 400, ..limits() };
            let repository = repository(&faulty, ClientConfig { limits, ..config() });
            let blob = content(1000);
            repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
            assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
            assert_eq!(
                (faulty.saw("PATCH", "uploads").len(), faulty.saw("POST", "uploads").len()),
                (3, 1)
            );
        }
    }
}

#[tokio::test]
async fn a_registry_that_drops_chunks_gets_one_request() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        seen.is("PATCH", "uploads").then(|| {
            Response::builder()
                .status(202)
                .header(header::RANGE, "0-0")
                .body(Body::empty())
                .unwrap()
        })
    })
    .await;
    let limits = Limits { monolithic: 0, ..limits() };
    let blob = content(1000);
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
    assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
}

#[tokio::test]
async fn a_registry_that_refuses_one_way_is_asked_in_the_other() {
    for refusal in [400, 405, 411, 415, 416, 422, 501] {
        for (method, monolithic) in [("PUT", u64::MAX), ("PATCH", 0)] {
            // A PUT is refused only with a body.
            let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
                (seen.is(method, "uploads") && !seen.body.is_empty()).then(|| status(refusal))
            })
            .await;
            let repository = repository(
                &faulty,
                ClientConfig { limits: Limits { monolithic, ..limits() }, ..config() },
            );
            let blob = content(1000);
            repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
            assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
        }
    }
    // Both are refused: the reason for the usual way is reported.
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| match seen.method.as_str() {
        "PUT" => Some(problem(400, "SIZE_INVALID", "at most 1 GB")),
        "PATCH" => Some(problem(405, "UNSUPPORTED", "no chunks")),
        _ => None,
    })
    .await;
    let error = repository(&faulty, config())
        .push_blob(&descriptor(&content(9)), content(9))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("at most 1 GB"), "{error}");
    assert_eq!(faulty.saw("POST", "uploads").len(), 2);
}

#[tokio::test]
async fn an_upload_that_starts_with_201_is_finished_or_there() {
    for is_there in [false, true] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            seen.is("POST", "uploads").then(|| {
                if is_there {
                    truth.add_blob(content(1000));
                }
                let mut answer = truth.truth_now(seen);
                *answer.status_mut() = 201.try_into().unwrap();
                answer
            })
        })
        .await;
        let blob = content(1000);
        repository(&faulty, config()).push_blob(&descriptor(&blob), blob.clone()).await.unwrap();
        assert_eq!(faulty.saw("PUT", "uploads").len(), usize::from(!is_there));
        assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
    }
}

/// Copies a blob of three chunks from another registry.
async fn copied(
    faulty: &Faulty,
    config: ClientConfig,
    blob: &Bytes,
    there: Bytes,
) -> Result<(), StoreError> {
    let from = Faulty::start(RegistrySettings::default(), move |seen, _| {
        seen.is("GET", "blobs").then(|| Response::new(Body::from(there.clone())))
    })
    .await;
    let limits = Limits { chunk: 400, ..config.limits.clone() };
    let to = Destination::Registry(repository(faulty, ClientConfig { limits, ..config.clone() }));
    let from = Source::Registry(repository(&from, config));
    to.copy_blob(&descriptor(blob), &from, 1, &|_| {}).await.map(drop)
}

#[tokio::test]
async fn a_large_blob_is_copied_in_one_request() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    let blob = content(1000);
    copied(&faulty, config(), &blob, blob.clone()).await.unwrap();
    assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob.clone()));
    let puts = faulty.saw("PUT", "uploads");
    assert_eq!((puts.len(), faulty.saw("PATCH", "uploads").len()), (1, 0));
    assert_eq!(puts[0].header("content-length"), Some("1000"));
    assert_eq!(puts[0].header("transfer-encoding"), None);

    // Damaged bytes never complete the request.
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    let mut damaged = blob.to_vec();
    damaged[999] ^= 1;
    let error = copied(&faulty, config(), &blob, damaged.into()).await.unwrap_err();
    // It was read twice.
    assert!(
        matches!(&error, StoreError::Twice(error) if error.to_string().contains("the content for")),
        "{error:?}"
    );
    assert_eq!(faulty.blob(&Digest::sha256(&blob)), None);
}

#[tokio::test]
async fn an_interrupted_copy_goes_on_in_chunks() {
    for failure in [401, 502, 404, 400, 307] {
        let once = first(1);
        let settings = RegistrySettings { bearer: Some(None), ..RegistrySettings::default() };
        let faulty = Faulty::start(settings, move |seen, truth| {
            if !(seen.is("PUT", "uploads") && !seen.body.is_empty() && once()) {
                return None;
            }
            match failure {
                // The token ended. The registry answers as it does without one.
                401 => {
                    truth.revoke_tokens();
                    None
                }
                307 => Some(redirect(307, "/elsewhere")),
                other => Some(status(other)),
            }
        })
        .await;
        let blob = content(1000);
        copied(&faulty, config(), &blob, blob.clone()).await.unwrap();
        assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
        assert_eq!(faulty.saw("PATCH", "uploads").len(), 3, "{failure}");
    }
}

#[tokio::test]
async fn a_chunk_whose_token_ended_is_sent_again_in_its_session() {
    let once = first(1);
    let settings = RegistrySettings { bearer: Some(None), ..RegistrySettings::default() };
    let faulty = Faulty::start(settings, move |seen, truth| {
        if seen.is("PATCH", "uploads") && seen.header("content-range") == Some("400-799") && once()
        {
            truth.revoke_tokens();
        }
        None
    })
    .await;
    let blob = content(1000);
    copied(
        &faulty,
        ClientConfig { limits: Limits { monolithic: 0, ..limits() }, ..config() },
        &blob,
        blob.clone(),
    )
    .await
    .unwrap();
    assert_eq!(faulty.blob(&Digest::sha256(&blob)), Some(blob));
    // The first was without a token.
    let sessions = faulty
        .saw("POST", "uploads")
        .iter()
        .filter(|post| post.header("authorization").is_some())
        .count();
    assert_eq!((sessions, faulty.saw("PATCH", "uploads").len()), (1, 4));
}

#[tokio::test]
async fn upload_locations_are_followed_and_checked() {
    let blob = content(1000);
    let pushed = async |faulty: &Faulty| {
        let repository = repository(faulty, with_password(faulty, "u", "p"));
        repository.push_blob(&descriptor(&blob), blob.clone()).await.unwrap()
    };
    // An absolute URL at the registry itself: with authorization.
    let settings =
        RegistrySettings { basic: Some(("u".into(), "p".into())), ..RegistrySettings::default() };
    let faulty = Faulty::start(settings.clone(), |seen, truth| {
        (seen.is("POST", "uploads") && seen.header("authorization").is_some()).then(|| {
            let mut answer = truth.truth_now(seen);
            let relative = answer.headers()[header::LOCATION].to_str().unwrap().to_owned();
            answer.headers_mut().insert(
                header::LOCATION,
                format!("http://{}{relative}", truth.host()).parse().unwrap(),
            );
            answer
        })
    })
    .await;
    assert!(pushed(&faulty).await);

    // At another host: without authorization.
    let store = Faulty::start(RegistrySettings::default(), |_, _| Some(status(201))).await;
    let to = format!("http://{}/up?sig=1", store.host());
    let faulty = Faulty::start(settings, move |seen, _| {
        (seen.is("POST", "uploads") && seen.header("authorization").is_some())
            .then(|| redirect(202, &to))
    })
    .await;
    assert!(pushed(&faulty).await);
    let seen = store.requests();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].path.starts_with("/up?sig=1&digest=sha256%3A"), "{}", seen[0].path);
    assert_eq!(seen[0].header("authorization"), None);

    // A missing URL, and a forbidden one.
    for (answer, what) in [(None, "no Location"), (Some("http://169.254.169.254/up"), "link-local")]
    {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("POST", "uploads")
                .then(|| answer.map_or_else(|| status(202), |to| redirect(202, to)))
        })
        .await;
        let error = repository(&faulty, config())
            .push_blob(&descriptor(&blob), blob.clone())
            .await
            .unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[tokio::test]
async fn errors_of_refused_uploads_contain_the_message_of_the_registry() {
    for (status, code) in [(403, "DENIED"), (400, "DIGEST_INVALID"), (409, "TOOMANYREQUESTS")] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("PUT", "uploads").then(|| problem(status, code, "quota"))
        })
        .await;
        let error = repository(&faulty, config())
            .push_blob(&descriptor(&content(9)), content(9))
            .await
            .unwrap_err();
        assert!(error.to_string().ends_with(&format!("{code}: quota")), "{error}");
        // For 400, also in chunks.
        assert_eq!(faulty.saw("PUT", "uploads").len(), if status == 400 { 2 } else { 1 });
        assert!(!error.to_string().contains("_state"), "{error}");
    }
}

/// A blob of `a/b` is mounted into `c/d`, with a lie.
async fn mounted(
    lie: impl Fn(&ReceivedRequest) -> Option<u16> + Send + Sync + 'static,
) -> (bool, Faulty) {
    let settings = RegistrySettings { bearer: Some(None), ..RegistrySettings::default() };
    let faulty = Faulty::start(settings, move |seen, _| {
        lie(seen).map(|status| problem(status, "DENIED", "no"))
    })
    .await;
    let digest = faulty.add_blob("x");
    let client = Client::new(config()).unwrap();
    let [from, to] = ["a/b", "c/d"].map(|name| client.repository(&faulty.host(), name).unwrap());
    let mounted = to.mount_blob(&digest, &from).await.unwrap();
    to.push_blob_unchecked(&Descriptor::of("x/y", b"x"), Bytes::from_static(b"x")).await.unwrap();
    (mounted, faulty)
}

#[tokio::test]
async fn a_mount_asks_for_both_repositories() {
    let (_, faulty) = mounted(|_| None).await;
    let scopes = |seen: &ReceivedRequest| seen.path.split_once("&scope=").unwrap().1.to_owned();
    let scopes: Vec<String> = faulty.saw("GET", "/token").iter().map(scopes).collect();
    let own = "repository%3Ac%2Fd%3Apull%2Cpush";
    assert_eq!(scopes.last().unwrap(), own);
    assert!(scopes.contains(&format!("{own}&scope=repository%3Aa%2Fb%3Apull")), "{scopes:?}");
}

#[tokio::test]
async fn a_refused_mount_becomes_an_upload() {
    for status in [400, 401, 403, 404, 500] {
        let (mounted, faulty) =
            mounted(move |seen| seen.is("POST", "mount=").then_some(status)).await;
        assert!(!mounted && faulty.blob(&Digest::sha256(b"x")).is_some(), "{status}");
        let token_refused = move |seen: &ReceivedRequest| {
            (seen.is("GET", "/token") && seen.path.contains("a%2Fb")).then_some(status)
        };
        let (mounted, _) = self::mounted(token_refused).await;
        assert!(!mounted, "no token, {status}");
    }
}
