//! Lists of referrers.

use super::*;
use ociseek_testkit::faulty;
use ociseek_testkit::image::image_index;

#[tokio::test]
async fn any_response_but_an_index_means_that_there_is_no_referrers_api() {
    let other = Faulty::start(RegistrySettings::default(), |_, _| Some(web_page())).await;
    for kind in [
        "404",
        "405",
        "400",
        "406",
        "410",
        "415",
        "422",
        "501",
        "204",
        "login page",
        "redirect to a login page",
        "other JSON",
        "empty",
        "empty index",
    ] {
        let login = format!("http://{}/login?continue=x", other.host());
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("GET", "/referrers/").then(|| match kind {
                "login page" => web_page(),
                "redirect to a login page" => redirect(302, &login),
                "other JSON" => json_answer(200, &json!({"errors": []})),
                "empty" => status(200),
                "empty index" => Response::builder()
                    .header(header::CONTENT_TYPE, OCI_INDEX)
                    .body(Body::empty())
                    .unwrap(),
                number => status(number.parse().unwrap()),
            })
        })
        .await;
        let repository = repository(&faulty, config());
        let none = repository.referrers(&subject().1.digest, None).await.unwrap();
        assert_eq!((none.descriptors.len(), none.api), (0, false), "{kind}");
        let list = image_index(&[index("x").1]);
        faulty.add_manifest(&tag(), OCI_INDEX, list.to_string());
        let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
        assert_eq!((found.descriptors, found.api), (vec![index("x").1], false), "{kind}");
        assert!(
            repository
                .referrers(&subject().1.digest, Some("x/other"))
                .await
                .unwrap()
                .descriptors
                .is_empty()
        );
    }
}

/// Anyone who may push can list something under the fallback tag, and a registry may know more
/// algorithms than we do.
#[tokio::test]
async fn entries_that_cannot_be_read_do_not_hide_the_others() {
    let strange = [
        json!({"mediaType": OCI_MANIFEST, "digest": "blake3:abab", "size": 7, "artifactType": SOCI}),
        json!({"mediaType": OCI_MANIFEST, "digest": "sha256:../../x", "size": 7, "artifactType": SOCI}),
        json!({"mediaType": OCI_MANIFEST, "digest": index("y").1.digest, "size": -1, "artifactType": SOCI}),
        json!({"mediaType": OCI_MANIFEST, "size": 7}),
        json!(null),
        json!([[]]),
    ];
    for api in [true, false] {
        let ours = index("x").1;
        let [first, rest @ ..] = &strange;
        let mut entries = vec![first.clone(), serde_json::to_value(&ours).unwrap()];
        entries.extend_from_slice(rest);
        let list = image_index(&entries);
        let by_api = list.clone();
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            (api && seen.is("GET", "/referrers/")).then(|| index_answer(&by_api["manifests"]))
        })
        .await;
        if !api {
            faulty.add_manifest(&tag(), OCI_INDEX, list.to_string());
        }
        let recorder = Arc::new(Recorder::default());
        let config = ClientConfig { progress: recorder.clone(), ..config() };
        let repository = repository(&faulty, config);
        let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
        assert_eq!((found.descriptors, found.api), (vec![ours], api));
        let warnings = recorder
            .events()
            .into_iter()
            .filter(|event| matches!(event, ProgressEvent::Warning(text) if text.contains("skipping entries")));
        assert_eq!(warnings.count(), 1);
        if !api {
            // Those of others stay.
            attach(&repository, "z", &[]).await.unwrap();
            let after: serde_json::Value =
                serde_json::from_slice(&faulty.manifest(&tag()).unwrap()).unwrap();
            let manifests = after["manifests"].as_array().unwrap();
            assert!(
                strange.iter().all(|one| manifests.contains(one))
                    && manifests.len() == strange.len() + 2
            );
        }
    }
}

#[tokio::test]
async fn one_web_page_does_not_hide_the_referrers_api() {
    let pages = AtomicUsize::new(0);
    let faulty = Faulty::start(RegistrySettings::with_referrers(), move |seen, _| {
        let is_first = seen.is("GET", "/referrers/") && pages.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then(web_page)
    })
    .await;
    let repository = repository(&faulty, config());
    attach(&repository, "x", &[]).await.unwrap();
    let found = repository.referrers(&subject().1.digest, None).await.unwrap();
    assert_eq!((found.descriptors.len(), found.api), (1, true));
    assert!(faulty.saw("GET", "/referrers/").len() > 1);
}

#[tokio::test]
async fn the_fallback_tag_is_requested_until_the_api_is_known() {
    for (referrers, tags) in [(true, 1), (false, 3)] {
        let faulty =
            Faulty::honest(RegistrySettings { referrers, ..RegistrySettings::default() }).await;
        let repository = repository(&faulty, config());
        for _ in 0..3 {
            assert_eq!(
                repository.referrers(&subject().1.digest, None).await.unwrap().api,
                referrers
            );
        }
        assert_eq!(faulty.saw("GET", "/referrers/").len(), 3);
        assert_eq!(
            faulty.saw("GET", "/manifests/sha256-").len(),
            tags,
            "with the API: {referrers}"
        );
    }
}

#[tokio::test]
async fn failures_of_the_referrers_api_are_errors() {
    for status in [401, 403, 500] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("GET", "/referrers/").then(|| faulty::status(status))
        })
        .await;
        let error =
            repository(&faulty, config()).referrers(&subject().1.digest, None).await.unwrap_err();
        assert_eq!(error.status(), Some(status));
    }
    let broken = |_: &ReceivedRequest, _: &Faulty| {
        Some(
            Response::builder()
                .header(header::CONTENT_TYPE, OCI_INDEX)
                .body(Body::from("{\"manifests\":7}"))
                .unwrap(),
        )
    };
    let faulty = Faulty::start(RegistrySettings::default(), broken).await;
    let error =
        repository(&faulty, config()).referrers(&subject().1.digest, None).await.unwrap_err();
    assert!(matches!(error, RegistryError::Json { .. }), "{error:?}");
}

#[tokio::test]
async fn a_refused_referrers_api_does_not_exist_if_the_image_can_be_read() {
    for (refusal, refuses_head) in [(401, false), (403, false), (403, true)] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            (seen.is("GET", "/referrers/") || refuses_head && seen.method == "HEAD")
                .then(|| status(refusal))
        })
        .await;
        faulty.add_manifest("image", OCI_MANIFEST, subject().0);
        let found =
            repository(&faulty, config()).referrers(&subject().1.digest, None).await.unwrap();
        assert_eq!((found.descriptors.len(), found.api), (0, false));
    }
}

#[tokio::test]
async fn pages_are_followed_and_filtered() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        seen.is("GET", "/referrers/").then(|| {
            let page: usize =
                seen.path.split("page=").nth(1).map_or(0, |page| page.parse().unwrap());
            let mut other = index(&format!("other{page}")).1;
            other.artifact_type = Some("x/other".into());
            let mut answer = index_answer(&json!([index(&format!("p{page}")).1, other]));
            if page < 4 {
                let next = format!(
                    "<{}?page={}>; rel=\"next\"",
                    seen.path.split('?').next().unwrap(),
                    page + 1
                );
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
    let first = faulty.saw("GET", "/referrers/").remove(0).path;
    assert!(
        first.ends_with("?artifactType=application%2Fvnd.amazon.soci.index.v1%2Bjson"),
        "{first}"
    );
    assert_eq!(
        repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.len(),
        10
    );
}

#[tokio::test]
async fn endless_lists_are_limited() {
    let other = Faulty::honest(RegistrySettings::default()).await;
    let elsewhere = format!("http://{}/v2/a/b/referrers/x", other.host());
    for kind in ["same", "new", "elsewhere", "no URL", "gone"] {
        let elsewhere = elsewhere.clone();
        let faulty = Faulty::start(
            RegistrySettings {
                basic: Some(("u".into(), "p".into())),
                ..RegistrySettings::default()
            },
            move |seen, _| {
                seen.header("authorization")?;
                let count = seen.path.split("n=").nth(1).map_or(0, |n| n.parse::<u32>().unwrap());
                if kind == "gone" && count > 0 {
                    return Some(status(404));
                }
                let mut answer = index_answer(&json!([]));
                let next = match kind {
                    "same" => "<?n=1>; rel=next".to_owned(),
                    "elsewhere" => format!("<{elsewhere}>; rel=next"),
                    "no URL" => "<ftp://x/y?n=1>; rel=next".to_owned(),
                    _ => format!("<?n={}>; rel=next", count + 1),
                };
                answer.headers_mut().insert(header::LINK, next.parse().unwrap());
                Some(answer)
            },
        )
        .await;
        let error = repository(&faulty, with_password(&faulty, "u", "p"))
            .referrers(&subject().1.digest, None)
            .await
            .unwrap_err();
        assert!(matches!(error, RegistryError::Protocol { .. }), "{kind}: {error:?}");
    }
    assert!(other.requests().is_empty());
}
