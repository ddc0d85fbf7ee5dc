//! Redirects to other hosts.

use super::*;

#[tokio::test]
async fn another_host_never_sees_the_authorization() {
    let blob = content(1000);
    for settings in [
        RegistrySettings { basic: Some(("u".into(), "p".into())), ..RegistrySettings::default() },
        RegistrySettings {
            bearer: Some(Some(("u".into(), "p".into()))),
            ..RegistrySettings::default()
        },
    ] {
        for status in [301, 302, 303, 307, 308] {
            let store = Faulty::honest(RegistrySettings::default()).await;
            store.add_blob(blob.clone());
            let to = format!(
                "http://{}/v2/store/blobs/{}?X-Sig=s%2F1#f",
                store.host(),
                Digest::sha256(&blob)
            );
            let faulty = Faulty::start(settings.clone(), move |seen, _| {
                (seen.is("GET", "/blobs/") && seen.header("authorization").is_some())
                    .then(|| redirect(status, &to))
            })
            .await;
            let found = repository(&faulty, with_password(&faulty, "u", "p"))
                .blob_bytes(&descriptor(&blob), 1000)
                .await
                .unwrap();
            assert_eq!(found, blob);
            let seen = store.requests();
            assert_eq!(seen.len(), 1);
            assert!(seen[0].path.ends_with("?X-Sig=s%2F1"), "{}", seen[0].path);
            assert_eq!(seen[0].header("authorization"), None);
            assert_eq!(seen[0].header("referer"), None);
        }
    }
}

#[tokio::test]
async fn an_expired_signed_url_is_requested_again() {
    for (refusals, works) in [(1, true), (9, false)] {
        let some = first(refusals);
        let store = Faulty::start(RegistrySettings::default(), move |_, _| {
            some().then(|| Response::builder().status(403).body(Body::from("expired")).unwrap())
        })
        .await;
        store.add_blob("x");
        let to = format!(
            "http://{}/v2/s/blobs/{}?Signature=hunter2",
            store.host(),
            Digest::sha256(b"x")
        );
        let faulty =
            Faulty::start(RegistrySettings::default(), move |_, _| Some(redirect(307, &to))).await;
        let found = repository(&faulty, config()).blob_bytes(&Descriptor::of("x/y", b"x"), 1).await;
        assert_eq!(found.is_ok(), works);
        assert_eq!((faulty.requests().len(), store.requests().len()), (2, 2));
        if let Err(error) = found {
            assert!(!everything(&error).contains("hunter2"), "{error:?}");
            assert_eq!(error.host(), Some(faulty.host().as_str()));
        }
    }
}

/// A registry that redirects every request to `store`, with another signature each time.
async fn sends_to(store: &Faulty) -> Faulty {
    let host = store.host();
    let signed = AtomicUsize::new(0);
    Faulty::start(RegistrySettings::default(), move |seen, _| {
        let number = signed.fetch_add(1, Ordering::SeqCst);
        Some(redirect(307, &format!("http://{host}{}?Signature={number}", seen.path)))
    })
    .await
}

#[tokio::test]
async fn the_location_of_a_blob_is_requested_once() {
    let blob = content(1000);
    let store = Faulty::honest(RegistrySettings::default()).await;
    store.add_blob(blob.clone());
    let faulty = sends_to(&store).await;
    let repository = repository(&faulty, config());
    let source = Source::Registry(repository.clone());
    for at in 0..5u64 {
        let range = at * 100..at * 100 + 50;
        let part = source.blob_range(&descriptor(&blob), range.clone()).await.unwrap();
        assert_eq!(part, blob.slice(range.start as usize..range.end as usize));
    }
    assert_eq!((faulty.requests().len(), store.requests().len()), (1, 5));
    // If caches must not answer, the registry itself is asked.
    let mut part = source.blob_part(&descriptor(&blob), 1..9, true).await.unwrap();
    assert_eq!(part.next().await.unwrap().unwrap(), blob.slice(1..9));
    assert_eq!((faulty.requests().len(), store.requests().len()), (2, 6));
    // Only the registry knows whether the blob exists.
    assert!(source.blob_exists(&descriptor(&blob)).await.unwrap());
    assert_eq!(faulty.requests().len(), 3);
}

#[tokio::test]
async fn the_location_is_used_for_as_long_as_it_states() {
    let blob = content(1000);
    let store = Faulty::honest(RegistrySettings::default()).await;
    store.add_blob(blob.clone());
    let host = store.host();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        Some(redirect(307, &format!("http://{host}{}?X-Amz-Expires=6", seen.path)))
    })
    .await;
    let source = Source::Registry(repository(&faulty, config()));
    for (requests, wait) in [(1, Duration::ZERO), (1, Duration::from_secs(6)), (2, Duration::ZERO)]
    {
        assert_eq!(source.blob_range(&descriptor(&blob), 0..50).await.unwrap(), blob.slice(..50));
        assert_eq!(faulty.requests().len(), requests);
        tokio::time::sleep(wait).await;
    }
}

#[tokio::test]
async fn the_location_is_requested_again_after_a_failure() {
    let blob = content(1000);
    for answer in [400, 401, 403, 404, 410, 416, 500, 503, 0] {
        // The first signature is valid for a single request.
        let answers = AtomicUsize::new(0);
        let store = Faulty::start(RegistrySettings::default(), move |seen, _| {
            let later =
                seen.path.ends_with("Signature=0") && answers.fetch_add(1, Ordering::SeqCst) > 0;
            let broken = || {
                Body::from_stream(stream::iter([Err::<Bytes, _>(std::io::Error::other("gone"))]))
            };
            later.then(|| match answer {
                0 => Response::new(broken()),
                status => Response::builder().status(status).body(Body::from("expired")).unwrap(),
            })
        })
        .await;
        store.add_blob(blob.clone());
        let faulty = sends_to(&store).await;
        let source = Source::Registry(repository(&faulty, config()));
        for at in 0..4u64 {
            let part = source.blob_range(&descriptor(&blob), at..at + 9).await.unwrap();
            assert_eq!(part, blob.slice(at as usize..at as usize + 9), "{answer}");
        }
        let asked = faulty.requests().len();
        assert!((2..=3).contains(&asked), "{answer}: {asked}");
    }
}

#[tokio::test]
async fn endless_and_invalid_redirects_are_errors() {
    for (location, requests) in [
        ("?again", 11),
        ("http://169.254.169.254/x", 1),
        ("http://[fe80::1]/x", 1),
        ("gopher://x/", 1),
        ("http://u:p@127.0.0.1/", 1),
        ("http://:99999/", 1),
    ] {
        let faulty =
            Faulty::start(RegistrySettings::default(), move |_, _| Some(redirect(302, location)))
                .await;
        let error =
            repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert!(
            matches!(error, RegistryError::Protocol { .. } | RegistryError::Detour { .. }),
            "{location}: {error:?}"
        );
        assert_eq!(faulty.requests().len(), requests, "{location}");
    }
    let faulty = Faulty::start(RegistrySettings::default(), |_, _| Some(status(307))).await;
    let error = repository(&faulty, config()).manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert!(error.to_string().contains("redirect without a location"), "{error}");
}
