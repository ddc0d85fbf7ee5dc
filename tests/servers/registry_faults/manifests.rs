//! Manifests other than the requested ones.

use super::*;

#[tokio::test]
async fn invalid_manifests_are_refused() {
    let lies = ["digest", "header", "html", "large", "endless", "bad header"];
    for lie in lies {
        let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
            let answer = Response::builder().header(header::CONTENT_TYPE, OCI_MANIFEST);
            Some(match lie {
                "digest" => answer.body(Body::from("{\"other\":1}")).unwrap(),
                "header" => answer
                    .header("docker-content-digest", Digest::sha256(b"x").to_string())
                    .body(Body::from("{}"))
                    .unwrap(),
                "bad header" => answer
                    .header("docker-content-digest", "sha256:../../etc")
                    .body(Body::from("{}"))
                    .unwrap(),
                "html" => web_page(),
                "large" => answer.body(Body::from(vec![b' '; (4 << 20) + 1])).unwrap(),
                _ => endless(OCI_MANIFEST, Bytes::from(vec![b' '; 64 << 10]), Duration::ZERO),
            })
        })
        .await;
        let target = if lie == "digest" {
            Target::Digest(Digest::sha256(b"{}"))
        } else {
            Target::Tag("t".into())
        };
        let error = repository(&faulty, config()).manifest(&target).await.unwrap_err();
        match lie {
            "digest" | "header" => {
                assert!(matches!(error, RegistryError::Digest { .. }), "{lie}: {error:?}")
            }
            "large" | "endless" => {
                assert!(
                    matches!(error, RegistryError::TooLarge { limit: 0x400000, .. }),
                    "{lie}: {error:?}"
                )
            }
            _ => assert!(matches!(error, RegistryError::Protocol { .. }), "{lie}: {error:?}"),
        }
        // What does not match its digest may have been damaged on the way, or in a cache there.
        let reads = if matches!(lie, "digest" | "header") { 2 } else { 1 };
        let past_caches = [None, Some("no-cache")];
        let seen = faulty.requests();
        assert_eq!(
            seen.iter().map(|s| s.header("cache-control")).collect::<Vec<_>>(),
            past_caches[..reads],
            "{lie}"
        );
        assert_eq!(error.to_string().ends_with("(it was read twice)"), reads == 2, "{error}");
    }
}

#[tokio::test]
async fn manifests_are_read_by_tag_and_digest_with_their_media_types() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    let bytes = format!("{{\"mediaType\":\"{OCI_INDEX}\"}}");
    let repository = repository(&faulty, config());
    for (media_type, want) in [
        (
            "application/vnd.docker.distribution.manifest.v2+json",
            "application/vnd.docker.distribution.manifest.v2+json",
        ),
        ("Application/VND.oci.image.manifest.v1+JSON; charset=utf-8", OCI_MANIFEST),
        ("application/json", OCI_INDEX),
        ("text/plain; charset=utf-8", OCI_INDEX),
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
    let asked = &faulty.requests()[0];
    for kind in
        [OCI_INDEX, OCI_MANIFEST, "application/vnd.docker.distribution.manifest.list.v2+json"]
    {
        assert!(asked.header("accept").unwrap().contains(kind));
    }
    assert!(asked.header("user-agent").unwrap().starts_with("ociseek/"));
    let error = repository.manifest(&Target::Tag("none".into())).await.unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains("MANIFEST_UNKNOWN"), "{error}");
    let error = repository.manifest(&Target::Tag("../x".into())).await.unwrap_err();
    assert!(matches!(error, RegistryError::Name(_)), "{error:?}");
}

#[tokio::test]
async fn an_interrupted_manifest_is_read_again() {
    let once = first(1);
    let bytes = Bytes::from(format!("{{\"x\":\"{}\"}}", "y".repeat(1000)));
    let whole = bytes.clone();
    let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
        once().then(|| cut(Response::new(Body::empty()), &whole, 500))
    })
    .await;
    let digest = faulty.add_manifest("t", OCI_MANIFEST, bytes.clone());
    let document = repository(&faulty, config()).manifest(&Target::Digest(digest)).await.unwrap();
    assert_eq!(document.bytes, bytes);
    assert_eq!(faulty.requests().len(), 2);
}

#[tokio::test]
async fn warnings_of_registries_are_shown_once() {
    let faulty = Faulty::start(RegistrySettings::default(), |_, _| {
        Some(
            Response::builder()
                .header("warning", "299 - \"moving away\"")
                .header("content-type", OCI_MANIFEST)
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
    assert_eq!(
        recorder.events(),
        [ProgressEvent::Warning(format!("{} says: moving away", faulty.host()))]
    );
}

#[tokio::test]
async fn what_is_there_need_not_be_written_again() {
    for status in [400, 403, 405, 409, 412] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            let reference = seen.path.rsplit('/').next().unwrap();
            let is_there = seen.is("PUT", "/manifests/") && truth.manifest(reference).is_some();
            is_there.then(|| problem(status, "DENIED", "the tag is immutable"))
        })
        .await;
        let repository = repository(&faulty, config());
        let push = |tag: &str, text: &'static str| {
            let target = Target::Tag(tag.to_owned());
            let repository = repository.clone();
            async move {
                repository
                    .push_manifest(&target, OCI_MANIFEST, Bytes::from_static(text.as_bytes()))
                    .await
            }
        };
        let [one, other] = ["{\"schemaVersion\":2}", "{\"schemaVersion\":2,\"layers\":[]}"];
        push("t", one).await.unwrap();
        push("t", one).await.unwrap();
        let error = push("t", other).await.unwrap_err();
        assert!(
            error.status() == Some(status) && error.to_string().contains("immutable"),
            "{error}"
        );
        assert_eq!(faulty.manifest("t").unwrap(), one);
        // So is a referrer.
        for _ in 0..2 {
            attach(&repository, "x", &[]).await.unwrap();
        }
    }
}
