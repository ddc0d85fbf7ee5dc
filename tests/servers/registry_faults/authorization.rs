//! Tokens and passwords: which servers receive them, and how many times.

use super::*;

#[tokio::test]
async fn one_token_serves_all_waiting_requests() {
    let faulty =
        Faulty::honest(RegistrySettings { bearer: Some(None), ..RegistrySettings::default() })
            .await;
    let blob = content(1000);
    faulty.add_blob(blob.clone());
    let repository = repository(&faulty, config());
    let reads: Vec<_> = (0..16)
        .map(|_| {
            let repository = repository.clone();
            let blob = descriptor(&blob);
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
async fn a_learned_challenge_serves_other_repositories_with_their_own_tokens() {
    let faulty =
        Faulty::honest(RegistrySettings { bearer: Some(None), ..RegistrySettings::default() })
            .await;
    faulty.add_blob("x");
    let client = Client::new(config()).unwrap();
    let blob = Descriptor::of("x/y", b"x");
    for name in ["one/a", "two"] {
        client.repository(&faulty.host(), name).unwrap().blob_bytes(&blob, 1).await.unwrap();
    }
    let two = client.repository(&faulty.host(), "two").unwrap();
    two.push_blob(&Descriptor::of("x/y", b"z"), Bytes::from_static(b"z")).await.unwrap();
    let story: Vec<_> = faulty
        .requests()
        .iter()
        .map(|s| format!("{} {}", s.method, s.path.split(['&', ',']).next_back().unwrap()))
        .collect();
    let at = |name: &str| format!("GET /v2/{name}/blobs/{}", Digest::sha256(b"x"));
    assert_eq!(
        story[..3],
        [at("one/a"), "GET scope=repository%3Aone%2Fa%3Apull".to_owned(), at("one/a")]
    );
    assert_eq!(story[3..5], ["GET scope=repository%3Atwo%3Apull".to_owned(), at("two")]);
    let tokens = faulty.saw("GET", "/token");
    assert_eq!(tokens.len(), 3);
    assert!(tokens[2].path.ends_with("scope=repository%3Atwo%3Apull%2Cpush"), "{}", tokens[2].path);
    assert_eq!(faulty.requests().len(), 3 + 2 + 1 + 3);
}

#[tokio::test]
async fn a_token_that_expires_during_a_transfer_is_renewed() {
    let blob = content(300_000);
    let whole = blob.clone();
    let once = first(1);
    let faulty = Faulty::start(
        RegistrySettings { bearer: Some(None), ..RegistrySettings::default() },
        move |seen, truth| {
            let cut_off =
                seen.is("GET", "/blobs/") && seen.header("authorization").is_some() && once();
            cut_off.then(|| {
                truth.revoke_tokens();
                cut(Response::new(Body::empty()), &whole, 100_000)
            })
        },
    )
    .await;
    faulty.add_blob(blob.clone());
    assert_eq!(read(&repository(&faulty, config()), &descriptor(&blob)).await.unwrap(), blob);
    let gets = faulty.saw("GET", "/blobs/");
    let story: Vec<_> =
        gets.iter().map(|get| (get.header("authorization"), get.header("range"))).collect();
    assert_eq!(
        story,
        [
            (None, None),
            (Some("Bearer token-1"), None),
            (Some("Bearer token-1"), Some("bytes=100000-299999")),
            (Some("Bearer token-2"), Some("bytes=100000-299999")),
        ]
    );
}

#[tokio::test]
async fn a_token_that_never_helps_is_renewed_once() {
    let faulty = Faulty::start(
        RegistrySettings { bearer: Some(None), ..RegistrySettings::default() },
        |seen, truth| {
            if seen.is("GET", "/blobs/") {
                truth.revoke_tokens();
            }
            None
        },
    )
    .await;
    let repository = repository(&faulty, config());
    let error = repository.blob(&descriptor(&content(1))).await.err().unwrap();
    assert!(error.is_unauthorized(), "{error:?}");
    assert_eq!((faulty.saw("GET", "/blobs/").len(), faulty.saw("GET", "/token").len()), (2, 1));
}

#[tokio::test]
async fn token_responses_of_all_kinds_are_handled() {
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
        let faulty = Faulty::start(
            RegistrySettings { bearer: Some(None), ..RegistrySettings::default() },
            move |seen, truth| {
                if seen.is("GET", "/token") {
                    return Some(Response::new(Body::from(answer)));
                }
                (seen.header("authorization") == Some("Bearer T"))
                    .then(|| truth.get_blob(seen, &Digest::sha256(b"x").to_string()))
            },
        )
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
async fn passwords_are_sent_to_the_token_service_and_rejections_are_reported() {
    let settings = RegistrySettings {
        bearer: Some(Some(("u".into(), "p:q".into()))),
        ..RegistrySettings::default()
    };
    let faulty = Faulty::honest(settings).await;
    faulty.add_blob("x");
    let blob = Descriptor::of("x/y", b"x");
    repository(&faulty, with_password(&faulty, "u", "p:q")).blob_bytes(&blob, 1).await.unwrap();
    let token = &faulty.saw("GET", "/token")[0];
    assert_eq!(token.header("authorization"), Some(basic("u", "p:q").as_str()));
    assert!(
        faulty
            .saw("GET", "/blobs/")
            .iter()
            .all(|get| get.header("authorization") != Some(&basic("u", "p:q")))
    );

    let error = repository(&faulty, with_password(&faulty, "u", "hunter2"))
        .blob_bytes(&blob, 1)
        .await
        .unwrap_err();
    assert!(error.is_unauthorized(), "{error:?}");
    assert_eq!(error.to_string(), format!("cannot get a token for {}", faulty.host()));
    assert_eq!((error.rejected(), error.token_service()), (Some(CredentialOrigin::Given), None));
    let all = everything(&error);
    assert!(
        all.contains("wrong password")
            && !all.contains("hunter2")
            && !all.contains(&basic("u", "hunter2")),
        "{all}"
    );
}

#[tokio::test]
async fn basic_authorization_is_sent_only_on_request() {
    let faulty = Faulty::honest(RegistrySettings {
        basic: Some(("u".into(), "p".into())),
        ..RegistrySettings::default()
    })
    .await;
    faulty.add_blob("x");
    let blob = Descriptor::of("x/y", b"x");
    let right = repository(&faulty, with_password(&faulty, "u", "p"));
    right.blob_bytes(&blob, 1).await.unwrap();
    right.blob_bytes(&blob, 1).await.unwrap();
    let shown: Vec<_> =
        faulty.requests().iter().map(|seen| seen.header("authorization").is_some()).collect();
    assert_eq!(shown, [false, true, true]);

    for (config, requests) in [(with_password(&faulty, "u", "hunter2"), 2), (config(), 1)] {
        let before = faulty.requests().len();
        let error = repository(&faulty, config).blob_bytes(&blob, 1).await.unwrap_err();
        assert!(error.is_unauthorized(), "{error:?}");
        assert!(error.to_string().contains("UNAUTHORIZED: authentication required"), "{error}");
        assert_eq!(
            error.rejected(),
            (requests == 2).then_some(CredentialOrigin::Given),
            "{error:?}"
        );
        assert_eq!(faulty.requests().len() - before, requests);
    }
}

#[tokio::test]
async fn a_401_without_a_challenge_is_final() {
    let faulty = Faulty::start(RegistrySettings::default(), |_, _| Some(status(401))).await;
    let error = repository(&faulty, with_password(&faulty, "u", "p"))
        .manifest(&Target::Tag("t".into()))
        .await
        .unwrap_err();
    assert!(error.is_unauthorized(), "{error:?}");
    let asked = faulty.requests();
    assert_eq!(
        asked.iter().map(|seen| &*seen.path).collect::<Vec<_>>(),
        ["/v2/a/b/manifests/t", "/v2/"]
    );
    assert!(asked.iter().all(|seen| seen.header("authorization").is_none()));
}

/// A registry may hide what a login could read, and ask for the login at its root alone. Without a
/// login, and for what is really missing, its answer counts.
#[tokio::test]
async fn a_login_is_used_where_only_the_root_asks_for_one() {
    for hidden in [401, 403, 404] {
        let faulty = Faulty::start(
            RegistrySettings {
                basic: Some(("u".into(), "p".into())),
                ..RegistrySettings::default()
            },
            move |seen, _| {
                (seen.header("authorization").is_none() && seen.path != "/v2/")
                    .then(|| status(hidden))
            },
        )
        .await;
        let blob = Descriptor::of("x/y", b"x");
        let target = Target::Tag("t".into());
        faulty.add_blob("x");
        faulty.add_manifest("t", OCI_MANIFEST, subject().0);
        let open = repository(&faulty, with_password(&faulty, "u", "p"));
        assert_eq!(open.manifest(&target).await.unwrap().bytes, subject().0, "{hidden}");
        assert_eq!(open.blob_bytes(&blob, 1).await.unwrap(), "x");
        attach(&open, "x", &[]).await.unwrap();
        let missing = open.manifest(&Target::Tag("gone".into())).await.unwrap_err();
        assert!(missing.is_not_found(), "{missing:?}");
        assert_eq!(faulty.saw("GET", "/v2/").iter().filter(|seen| seen.path == "/v2/").count(), 1);
        let closed = repository(&faulty, config()).manifest(&target).await.unwrap_err();
        assert_eq!(closed.status(), Some(hidden));
    }
}

/// A token service may move a path, but not to another host, which would see the password.
#[tokio::test]
async fn a_token_service_may_redirect_to_itself() {
    let other = Faulty::honest(RegistrySettings::default()).await;
    for (to, is_followed) in
        [("/token/".to_owned(), true), (format!("http://{}/token/", other.host()), false)]
    {
        let faulty = Faulty::start(
            RegistrySettings { bearer: Some(None), ..RegistrySettings::default() },
            move |seen, truth| {
                let query = seen.path.strip_prefix("/token?")?;
                if query.contains("&moved=") {
                    return Some(truth.truth_now(seen));
                }
                Some(redirect(301, &format!("{}?{query}&moved=1", to.replace("/token/", "/token"))))
            },
        )
        .await;
        faulty.add_manifest("t", OCI_MANIFEST, subject().0);
        let found = repository(&faulty, with_password(&faulty, "u", "p"))
            .manifest(&Target::Tag("t".into()))
            .await;
        assert_eq!(found.is_ok(), is_followed, "{found:?}");
    }
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn credentials_are_not_sent_to_unsafe_token_services() {
    let other = Faulty::honest(RegistrySettings::default()).await;
    for realm in [
        "http://169.254.169.254/token".to_owned(),
        "https://169.254.169.254/token".to_owned(),
        "http://registry.example/token".to_owned(),
        format!("http://u:p@{}/token", other.host()),
        "ftp://127.0.0.1/token".to_owned(),
        "/token".to_owned(),
    ] {
        let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
        let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
            Some(
                Response::builder()
                    .status(401)
                    .header(header::WWW_AUTHENTICATE, &challenge)
                    .body(Body::empty())
                    .unwrap(),
            )
        })
        .await;
        let error = repository(&faulty, with_password(&faulty, "u", "p"))
            .manifest(&Target::Tag("t".into()))
            .await
            .unwrap_err();
        let RegistryError::Token { source, .. } = &error else { panic!("{realm}: {error:?}") };
        assert!(matches!(**source, RegistryError::Detour { .. }), "{realm}: {error:?}");
        assert_eq!(faulty.requests().len(), 1);
    }
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn redirects_of_a_token_service_are_not_followed() {
    let other =
        Faulty::honest(RegistrySettings { bearer: Some(None), ..RegistrySettings::default() })
            .await;
    let to = format!("http://{}/token", other.host());
    let settings = RegistrySettings {
        bearer: Some(Some(("u".into(), "p".into()))),
        ..RegistrySettings::default()
    };
    let faulty = Faulty::start(settings, move |seen, _| {
        seen.is("GET", "/token").then(|| redirect(307, &to))
    })
    .await;
    let error = repository(&faulty, with_password(&faulty, "u", "p"))
        .manifest(&Target::Tag("t".into()))
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(307));
    assert!(other.requests().is_empty());
}

#[tokio::test]
async fn sending_a_password_to_a_foreign_token_service_warns_once() {
    let other = Faulty::honest(RegistrySettings {
        bearer: Some(Some(("u".into(), "p".into()))),
        ..RegistrySettings::default()
    })
    .await;
    let realm = format!("http://localhost:{}/token", other.address.port());
    let challenge = format!("Bearer realm=\"{realm}\",service=\"s\"");
    let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
        let answer = Response::builder().status(401).header(header::WWW_AUTHENTICATE, &challenge);
        Some(answer.body(Body::empty()).unwrap())
    })
    .await;
    for (password, rejected) in
        [("p", CredentialOrigin::Granted), ("hunter2", CredentialOrigin::Given)]
    {
        let recorder = Arc::new(Recorder::default());
        let config =
            ClientConfig { progress: recorder.clone(), ..with_password(&faulty, "u", password) };
        let client = Client::new(config).unwrap();
        for name in ["a", "b"] {
            let repository = client.repository(&faulty.host(), name).unwrap();
            let error = repository.manifest(&Target::Tag("t".into())).await.unwrap_err();
            assert_eq!(error.rejected(), Some(rejected), "{error:?}");
            let service = (rejected == CredentialOrigin::Given).then_some("localhost");
            assert_eq!(error.token_service(), service, "{error:?}");
        }
        let told =
            ProgressEvent::TokenService { registry: faulty.host(), host: "localhost".into() };
        assert_eq!(recorder.events(), [told]);
    }
    // Without a password, none is reported.
    let recorder = Arc::new(Recorder::default());
    let anyone = repository(&faulty, ClientConfig { progress: recorder.clone(), ..config() });
    anyone.manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert!(recorder.events().is_empty());
}
