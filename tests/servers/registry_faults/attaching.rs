//! Attaching an index: with the API, with the tag schema, and concurrently with others.

use super::*;
use ociseek_testkit::image::image_index;

#[tokio::test]
async fn attaching_uses_the_referrers_api_if_there_is_one() {
    let faulty = Faulty::honest(RegistrySettings::with_referrers()).await;
    let repository = repository(&faulty, config());
    let old = index("old").1.digest;
    assert_eq!(
        attach(&repository, "old", &[]).await.unwrap(),
        AttachReport { attached: AttachMethod::ReferrersApi, not_deleted: vec![] }
    );
    attach(&repository, "new", &[old]).await.unwrap();
    let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
    assert!(found.api);
    assert_eq!(
        found.descriptors.iter().map(|d| d.digest).collect::<Vec<_>>(),
        [index("new").1.digest]
    );
    assert_eq!(faulty.manifest(&tag()), None);
    // The manifest is pushed after the blob.
    let order: Vec<_> = faulty
        .requests()
        .iter()
        .filter(|s| s.method == "PUT")
        .map(|s| s.path.contains("/manifests/"))
        .collect();
    assert_eq!(order, [false, true, true]);
}

/// A registry refuses a list with a manifest that another client has just removed. The list is
/// read and written again, several times, because others may undo the removal. A registry that
/// still refuses it means it.
#[tokio::test]
async fn a_list_that_is_refused_for_a_missing_manifest_is_read_again() {
    for (times, puts) in [(1, 2), (5, 6), (usize::MAX, 9)] {
        let refused = first(times);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            (seen.is("PUT", "/manifests/sha256-") && refused())
                .then(|| problem(400, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry"))
        })
        .await;
        let limits = Limits { settle: Duration::from_millis(1), ..limits() };
        let repository = repository(&faulty, ClientConfig { limits, ..config() });
        let attached = attach(&repository, "x", &[]).await;
        let [read, written] = ["GET", "PUT"].map(|method| {
            let seen = faulty.requests();
            let last = seen.iter().rposition(|seen| seen.is("PUT", "/manifests/sha256-")).unwrap();
            seen[..=last].iter().filter(|seen| seen.is(method, "/manifests/sha256-")).count()
        });
        assert!(written == puts && read >= puts, "read {read} times, written {written} times");
        let status = attached.as_ref().err().and_then(RegistryError::status);
        assert_eq!(status, (times == usize::MAX).then_some(400), "{attached:?}");
    }
}

/// A client that knows nothing of the list deletes a manifest that it names (`crane delete`, `oras
/// manifest delete`), and distribution then refuses every list with it. What is missing is taken
/// off the list; all else stays.
#[tokio::test]
async fn a_manifest_that_was_deleted_without_the_list_is_taken_off_it() {
    let settings = RegistrySettings { complete_lists: true, ..RegistrySettings::default() };
    let faulty = Faulty::honest(settings).await;
    let repository = repository(&faulty, config());
    attach(&repository, "kept", &[]).await.unwrap();
    attach(&repository, "deleted", &[]).await.unwrap();
    let deleted = index("deleted").1.digest;
    faulty.remove_manifest(&deleted.to_string());
    let recorder = Arc::new(Recorder::default());
    let config = ClientConfig { progress: recorder.clone(), ..config() };
    let repository = Client::new(config).unwrap().repository(&faulty.host(), "a/b").unwrap();
    attach(&repository, "new", &[]).await.unwrap();
    let listed = repository.referrers(&subject().1.digest, None).await.unwrap().descriptors;
    let digests: Vec<_> = listed.iter().map(|d| d.digest).collect();
    assert_eq!(digests, [index("kept").1.digest, index("new").1.digest]);
    let warnings = recorder.warnings();
    assert!(
        matches!(&warnings[..], [warning] if warning.contains(&deleted.to_string())),
        "{warnings:?}"
    );
    // A list can also be emptied.
    faulty.remove_manifest(&index("new").1.digest.to_string());
    repository.unlist(&subject().1.digest, &[index("kept").1.digest]).await.unwrap();
    assert!(repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.is_empty());
}

/// Another client deletes our manifest, which it found under an older list, before it is listed.
#[tokio::test]
async fn a_manifest_that_is_deleted_before_it_is_listed_is_pushed_again() {
    let once = first(1);
    let settings = RegistrySettings { complete_lists: true, ..RegistrySettings::default() };
    let faulty = Faulty::start(settings, move |seen, truth| {
        if seen.is("PUT", "/manifests/sha256-") && once() {
            truth.remove_manifest(&index("x").1.digest.to_string());
        }
        None
    })
    .await;
    let repository = repository(&faulty, config());
    attach(&repository, "x", &[]).await.unwrap();
    let listed = repository.referrers(&subject().1.digest, None).await.unwrap().descriptors;
    assert_eq!(listed.iter().map(|d| d.digest).collect::<Vec<_>>(), [index("x").1.digest]);
    assert!(faulty.manifest(&index("x").1.digest.to_string()).is_some());
    assert_eq!(faulty.saw("PUT", "/manifests/sha256:").len(), 2);
}

/// Behind one name there may be several registries, one of which does not have the blobs yet.
/// GHCR loses track of a blob between its upload and the manifest's.
#[tokio::test]
async fn a_manifest_whose_blobs_are_known_late_is_pushed_again() {
    for (times, works, status, code) in [
        (3, true, 400, "MANIFEST_BLOB_UNKNOWN"),
        (4, false, 400, "MANIFEST_BLOB_UNKNOWN"),
        // github.com/infobloxopen/konk/pull/626
        (1, true, 404, "BLOB_UNKNOWN"),
        // github.com/bbartling/open-fdd/issues/260
        (2, true, 404, "MANIFEST_BLOB_UNKNOWN"),
    ] {
        let late = first(times);
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
            (seen.is("PUT", "/manifests/sha256:") && late())
                .then(|| problem(status, code, "blob unknown to registry"))
        })
        .await;
        let attached = attach(&repository(&faulty, config()), "x", &[]).await;
        assert_eq!(attached.is_ok(), works, "{attached:?}");
        assert!(works || attached.unwrap_err().is_blob_unknown());
        assert_eq!(faulty.saw("PUT", "/manifests/sha256:").len(), 4.min(times + 1));
    }
}

/// Sign-in pages and proxies answer everything with 200. Some registries declare empty bodies as
/// HTML.
#[tokio::test]
async fn a_web_page_does_not_confirm_a_push() {
    for (method, part) in
        [("PUT", "/blobs/uploads/"), ("PUT", "/manifests/"), ("DELETE", "/manifests/")]
    {
        let once = first(1);
        let faulty = Faulty::start(RegistrySettings::with_referrers(), move |seen, _| {
            (seen.is(method, part) && once()).then(web_page)
        })
        .await;
        let repository = repository(&faulty, config());
        let (old, replaces) = (index("old"), [index("old").1.digest]);
        faulty.add_manifest(&replaces[0].to_string(), OCI_MANIFEST, old.0);
        let attached = attach(&repository, "new", &replaces).await;
        let is_attached = faulty.manifest(&index("new").1.digest.to_string()).is_some();
        match method {
            // Attached manifests stay attached, and failed deletions are reported.
            "DELETE" => assert!(is_attached && attached.unwrap().not_deleted.len() == 1),
            _ => {
                assert!(
                    matches!(attached, Err(RegistryError::Protocol { .. })),
                    "{method} {part}: {attached:?}"
                );
                assert!(!is_attached);
            }
        }
    }
    let faulty = Faulty::start(RegistrySettings::with_referrers(), |seen, truth| {
        (seen.method == "PUT").then(|| {
            let mut answer = truth.truth_now(seen);
            *answer.status_mut() = axum::http::StatusCode::OK;
            answer
                .headers_mut()
                .insert(header::CONTENT_TYPE, "text/html; charset=utf-8".parse().unwrap());
            answer
        })
    })
    .await;
    attach(&repository(&faulty, config()), "x", &[]).await.unwrap();
}

#[tokio::test]
async fn an_api_without_oci_subject_is_recognized_by_its_list() {
    let faulty = Faulty::start(RegistrySettings::with_referrers(), |seen, truth| {
        seen.is("PUT", "/manifests/").then(|| {
            let mut answer = truth.truth_now(seen);
            answer.headers_mut().remove("oci-subject");
            answer
        })
    })
    .await;
    assert_eq!(
        attach(&repository(&faulty, config()), "x", &[]).await.unwrap().attached,
        AttachMethod::ReferrersApi
    );
    assert_eq!(faulty.manifest(&tag()), None);
}

#[tokio::test]
async fn oci_subject_counts_where_the_list_cannot_be_read_now() {
    for (answer, method) in
        [(500, AttachMethod::ReferrersApi), (404, AttachMethod::TagSchema(tag()))]
    {
        let faulty = Faulty::start(RegistrySettings::with_referrers(), move |seen, _| {
            seen.is("GET", "/referrers/").then(|| status(answer))
        })
        .await;
        let attached = attach(&repository(&faulty, config()), "x", &[]).await.unwrap().attached;
        assert_eq!(attached, method, "{answer}");
    }
}

#[tokio::test]
async fn without_the_api_the_fallback_tag_is_used() {
    let faulty =
        Faulty::honest(RegistrySettings { conditions: true, ..RegistrySettings::default() }).await;
    let repository = repository(&faulty, config());
    let report = attach(&repository, "one", &[]).await.unwrap();
    assert_eq!(
        report,
        AttachReport { attached: AttachMethod::TagSchema(tag()), not_deleted: vec![] }
    );
    attach(&repository, "two", &[]).await.unwrap();
    attach(&repository, "three", &[index("one").1.digest]).await.unwrap();
    // Again: nothing changes, and nothing is written.
    let writes = faulty.saw("PUT", &tag()).len();
    attach(&repository, "three", &[index("one").1.digest]).await.unwrap();
    assert_eq!(faulty.saw("PUT", &tag()).len(), writes);

    let found = repository.referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
    assert!(!found.api);
    assert_eq!(found.descriptors, [index("three").1, index("two").1]);
    assert_eq!(faulty.manifest(&index("one").1.digest.to_string()), None);
    assert!(
        faulty
            .saw("PUT", &tag())
            .iter()
            .all(|put| put.header("if-match").or(put.header("if-none-match")).is_some())
    );
}

#[tokio::test]
async fn an_older_index_that_cannot_be_deleted_is_reported() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        (seen.method == "DELETE").then(|| status(405))
    })
    .await;
    let repository = repository(&faulty, config());
    attach(&repository, "one", &[]).await.unwrap();
    let old = index("one").1.digest;
    // Neither the subject nor the index itself is ever deleted.
    let report = attach(&repository, "two", &[old, subject().1.digest, index("two").1.digest])
        .await
        .unwrap();
    assert_eq!(report.not_deleted, [old]);
    assert_eq!(faulty.saw("DELETE", "").len(), 1);
    let found = repository.referrers(&subject().1.digest, None).await.unwrap();
    assert_eq!(entries(&found.descriptors), ["two"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_attaching_loses_nothing() {
    for (conditions, slow) in [(false, 0), (false, 20), (true, 5)] {
        let settings = RegistrySettings {
            conditions,
            slow_manifests: Duration::from_millis(slow),
            ..RegistrySettings::default()
        };
        let faulty = Faulty::honest(settings).await;
        // Separate clients, which only share the registry.
        let names: Vec<String> = (0..5).map(|i| format!("w{i}")).collect();
        let all: Vec<_> = names
            .iter()
            .map(|name| {
                let repository = repository(&faulty, config());
                let name = name.clone();
                tokio::spawn(async move { attach(&repository, &name, &[]).await })
            })
            .collect();
        for one in all {
            assert_eq!(one.await.unwrap().unwrap().attached, AttachMethod::TagSchema(tag()));
        }
        let found =
            repository(&faulty, config()).referrers(&subject().1.digest, Some(SOCI)).await.unwrap();
        let mut found = entries(&found.descriptors);
        found.sort_unstable();
        assert_eq!(found, names, "conditions {conditions}, slow {slow}");
    }
}

#[tokio::test]
async fn tasks_of_one_client_take_turns() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
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
async fn an_entry_dropped_by_another_writer_is_restored() {
    let once = first(1);
    let stranger = image_index(&[index("stranger").1]).to_string();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        // After our write, another client that had read the list before writes it without our
        // entry.
        if seen.is("GET", &tag()) && truth.manifest(&tag()).is_some() && once() {
            truth.add_manifest(&tag(), OCI_INDEX, stranger.clone());
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
async fn registries_that_refuse_conditions_are_written_to_without_them() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        (seen.header("if-match").is_some() || seen.header("if-none-match").is_some())
            .then(|| status(412))
    })
    .await;
    let repository = repository(&faulty, config());
    attach(&repository, "one", &[]).await.unwrap();
    attach(&repository, "two", &[]).await.unwrap();
    let found = repository.referrers(&subject().1.digest, None).await.unwrap();
    assert_eq!(entries(&found.descriptors), ["one", "two"]);
}

#[tokio::test]
async fn a_change_overwritten_twenty_times_finally_lasts() {
    let others = first(20);
    let ours = index("ours").1.digest.to_string();
    let empty = image_index(&json!([])).to_string();
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        let is_listed = truth
            .manifest(&tag())
            .is_some_and(|list| String::from_utf8_lossy(&list).contains(&ours));
        if seen.is("GET", &tag()) && is_listed && others() {
            truth.add_manifest(&tag(), OCI_INDEX, empty.clone());
        }
        None
    })
    .await;
    let limits = Limits { settle: Duration::from_millis(1), ..limits() };
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    attach(&repository, "ours", &[]).await.unwrap();
    assert_eq!(faulty.saw("PUT", &tag()).len(), 21);
}

#[tokio::test]
async fn writers_that_never_stop_are_an_error() {
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
        if seen.is("GET", &tag()) {
            truth.add_manifest(
                &tag(),
                OCI_INDEX,
                json!({"schemaVersion": 2, "manifests": []}).to_string(),
            );
        }
        None
    })
    .await;
    let limits = Limits { settle: Duration::from_millis(1), ..limits() };
    let repository = repository(&faulty, ClientConfig { limits, ..config() });
    let error = attach(&repository, "ours", &[]).await.unwrap_err();
    assert!(matches!(error, RegistryError::FallbackTag { .. }), "{error:?}");
    assert!(error.to_string().contains("others overwrote our change"), "{error}");
}

#[tokio::test]
async fn a_fallback_tag_on_the_subject_is_left_alone() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_manifest(&tag(), OCI_MANIFEST, subject().0);
    let repository = repository(&faulty, config());
    assert!(repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.is_empty());
    let error = attach(&repository, "x", &[]).await.unwrap_err();
    assert!(error.to_string().contains("it points to the image itself"), "{error}");
    assert_eq!(faulty.manifest(&tag()), Some(subject().0));
    assert!(faulty.saw("PUT", "/manifests/sha256-").is_empty());
    assert!(faulty.saw("DELETE", "").is_empty());
}

#[tokio::test]
async fn a_registry_that_reads_the_fallback_tag_as_the_digest_may_take_a_list() {
    // GitLab answers with the subject although there is no such tag. Whether a push then works is
    // for the registry to say.
    for works in [true, false] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            if seen.is("PUT", "/manifests/sha256-") && !works {
                return Some(status(201));
            }
            let reads_tag =
                seen.is("GET", "/manifests/sha256-") && truth.manifest(&tag()).is_none();
            reads_tag.then(|| {
                let answer = Response::builder().header(header::CONTENT_TYPE, OCI_MANIFEST);
                answer.body(Body::from(subject().0)).unwrap()
            })
        })
        .await;
        faulty.add_manifest("image", OCI_MANIFEST, subject().0);
        let attached = attach(&repository(&faulty, config()), "x", &[]).await;
        assert_eq!(faulty.saw("PUT", "/manifests/sha256-").len(), 1);
        match attached {
            Ok(report) => assert!(works && report.attached == AttachMethod::TagSchema(tag())),
            Err(error) => assert!(
                !works && error.to_string().contains("instead of the pushed index"),
                "{error}"
            ),
        }
    }
}

#[tokio::test]
async fn readings_that_never_agree_end_with_a_warning() {
    // Every other answer comes from a replica that never gets the tag.
    let reads = AtomicUsize::new(0);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let is_read = seen.is("GET", "/manifests/sha256-");
        (is_read && reads.fetch_add(1, Ordering::SeqCst).is_multiple_of(2))
            .then(|| problem(404, "MANIFEST_UNKNOWN", "no"))
    })
    .await;
    let recorder = Arc::new(Recorder::default());
    let limits = Limits { settle: Duration::from_millis(1), ..limits() };
    let repository =
        repository(&faulty, ClientConfig { limits, progress: recorder.clone(), ..config() });
    attach(&repository, "ours", &[]).await.unwrap();
    assert!(faulty.saw("GET", "/manifests/sha256-").len() < 300);
    let warned = |event: &ProgressEvent| matches!(event, ProgressEvent::Warning(text) if text.contains("not every"));
    assert_eq!(recorder.events().iter().filter(|event| warned(event)).count(), 1);
}

#[tokio::test]
async fn a_missing_fallback_tag_that_is_answered_with_403_is_written() {
    for is_readable in [true, false] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, truth| {
            let missing = seen.is("GET", "/manifests/sha256-") && truth.manifest(&tag()).is_none();
            let hidden = !is_readable && seen.path.ends_with(&subject().1.digest.to_string());
            (missing || hidden && !seen.is("PUT", "")).then(|| problem(403, "DENIED", "no"))
        })
        .await;
        faulty.add_manifest("image", OCI_MANIFEST, subject().0);
        let attached = attach(&repository(&faulty, config()), "x", &[]).await;
        assert_eq!(attached.is_ok(), is_readable, "{attached:?}");
    }
}

#[tokio::test]
async fn a_fallback_tag_on_something_else_is_left_alone() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_manifest(&tag(), OCI_MANIFEST, "{\"someones\":\"image\"}");
    let repository = repository(&faulty, config());
    assert!(repository.referrers(&subject().1.digest, None).await.unwrap().descriptors.is_empty());
    let error = attach(&repository, "x", &[]).await.unwrap_err();
    assert!(error.to_string().contains("not to an index of referrers"), "{error}");
    assert_eq!(faulty.manifest(&tag()).unwrap(), "{\"someones\":\"image\"}");
}

#[tokio::test]
async fn a_blob_that_only_seems_to_exist_is_pushed() {
    let faulty = Faulty::start(RegistrySettings::default(), |seen, _| {
        let there =
            || Response::builder().header(header::CONTENT_LENGTH, 2).body(Body::empty()).unwrap();
        seen.is("HEAD", "/blobs/").then(there)
    })
    .await;
    let repository = repository(&faulty, config());
    let error = attach(&repository, "x", &[]).await.unwrap_err();
    assert!(error.is_blob_unknown(), "{error:?}");
    repository
        .push_blob_unchecked(&Descriptor::of(SOCI, b"{}"), Bytes::from_static(b"{}"))
        .await
        .unwrap();
    attach(&repository, "x", &[]).await.unwrap();
}

#[tokio::test]
async fn errors_of_refused_manifests_name_the_reason() {
    for (kind, what) in [
        ("digest", "the content has the digest"),
        ("413", "413 Payload Too Large"),
        ("400", "MANIFEST_INVALID: subject"),
    ] {
        let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
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
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    let (bytes, descriptor) = index("x");
    let error = repository(&faulty, config())
        .attach(&descriptor, bytes.slice(1..), &subject().1, &[])
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::Content { .. }), "{error:?}");
    assert!(faulty.requests().is_empty());
}
