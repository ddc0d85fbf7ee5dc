//! Secrets in errors, addresses, proxies and logins.

use std::os::unix::fs::PermissionsExt;

use super::*;
use ociseek_testkit::passes;

#[tokio::test]
async fn errors_contain_no_secrets() {
    let store = Faulty::start(RegistrySettings::default(), |_, _| Some(status(500))).await;
    let to = format!("http://{}/x?X-Amz-Signature=hunter2", store.host());
    let settings = RegistrySettings {
        bearer: Some(Some(("u".into(), "hunter2".into()))),
        ..RegistrySettings::default()
    };
    let faulty = Faulty::start(settings, move |seen, _| {
        (seen.is("GET", "/v2/") && seen.header("authorization").is_some())
            .then(|| redirect(307, &to))
    })
    .await;
    let config = with_password(&faulty, "u", "hunter2");
    assert!(!format!("{:?}", config.credentials).contains("hunter2"));
    let error = repository(&faulty, config).manifest(&Target::Tag("t".into())).await.unwrap_err();
    let all = everything(&error);
    assert!(
        !all.contains("hunter2") && !all.contains("token-1") && !all.contains("Signature"),
        "{all}"
    );
    assert!(all.contains(&format!("GET http://{}/x: 500", store.host())), "{all}");
}

#[tokio::test]
async fn ipv6_literals_are_accepted() {
    let faulty = Faulty::at("[::1]:0", RegistrySettings::default(), |_, _| None).await;
    faulty.add_blob("x");
    let host = format!("[::1]:{}", faulty.address.port());
    let repository = Client::new(config()).unwrap().repository(&host, "a/b").unwrap();
    assert_eq!(repository.blob_bytes(&Descriptor::of("x/y", b"x"), 1).await.unwrap(), "x");
    assert_eq!(faulty.requests()[0].header("host"), Some(host.as_str()));
}

#[tokio::test]
async fn plain_http_is_used_for_localhost_or_on_request() {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob("x");
    let blob = Descriptor::of("x/y", b"x");
    // A setting for TLS may be meant for another registry.
    let insecure = || ClientConfig { insecure_skip_tls_verify: true, ..config() };
    for (plain_http, works) in [(None, true), (Some(true), true), (Some(false), false)] {
        let found = repository(&faulty, ClientConfig { plain_http, ..insecure() })
            .blob_bytes(&blob, 1)
            .await;
        assert_eq!(found.is_ok(), works, "{plain_http:?}: {found:?}");
    }
}

/// Runs a test of this file in a process with these variables, because they apply to a whole
/// process.
fn in_child(test: &str, variables: &[(&str, &str)]) {
    let mut child = ociseek_testkit::this_test(module_path!(), test);
    child.arg("--ignored");
    for name in [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ] {
        child.env_remove(name);
    }
    passes(child.envs(variables.iter().copied()));
}

#[tokio::test]
async fn proxies_are_read_from_the_environment() {
    let proxy = Faulty::start(
        RegistrySettings { basic: None, ..RegistrySettings::default() },
        |seen, truth| {
            seen.is("GET", "/blobs/")
                .then(|| truth.get_blob(seen, &Digest::sha256(b"x").to_string()))
        },
    )
    .await;
    proxy.add_blob("x");
    let url = format!("http://pu:pp@{}", proxy.host());
    let run = move || {
        in_child(
            "child_with_a_proxy",
            &[
                ("HTTP_PROXY", &url),
                ("NO_PROXY", "10.0.0.0/8,direct.invalid,ported.invalid:80"),
                ("HTTPS_PROXY", "htp://pu:pp@h"),
            ],
        )
    };
    tokio::task::spawn_blocking(run)
        .await
        .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
    let seen = proxy.requests();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("host"), Some("registry.invalid"));
    assert_eq!(seen[0].header("proxy-authorization"), Some(basic("pu", "pp").as_str()));
}

#[tokio::test]
#[ignore = "run by proxies_are_read_from_the_environment, in a process of its own"]
async fn child_with_a_proxy() {
    let limits = Limits { tries: 1, ..limits() };
    let client = Client::new(ClientConfig { plain_http: Some(true), limits, ..config() }).unwrap();
    let get = |host: &str| {
        let repository = client.repository(host, "a/b").unwrap();
        async move { repository.blob_bytes(&Descriptor::of("x/y", b"x"), 1).await }
    };
    assert_eq!(get("registry.invalid").await.unwrap(), "x");
    get("direct.invalid").await.unwrap_err();
    get("ported.invalid").await.unwrap_err();
    // An unusable proxy is not ignored.
    let client = Client::new(ClientConfig { plain_http: Some(false), ..config() }).unwrap();
    let error = client
        .repository("registry.invalid", "a/b")
        .unwrap()
        .blob_bytes(&Descriptor::of("x/y", b"x"), 1)
        .await;
    let error = error.unwrap_err();
    assert!(
        error.proxy_variable() == Some("HTTPS_PROXY") && !everything(&error).contains("pp@"),
        "{error:?}"
    );
    // Hosts on this machine are accessed without the proxy.
    let local = Faulty::honest(RegistrySettings::default()).await;
    local.add_blob("x");
    get(&local.host()).await.unwrap();
}

#[tokio::test]
async fn credentials_of_docker_login_are_found() {
    let settings = RegistrySettings {
        bearer: Some(Some(("u".into(), "p".into()))),
        ..RegistrySettings::default()
    };
    for kind in ["auth", "identitytoken", "registrytoken"] {
        let faulty = Faulty::start(settings.clone(), |seen, truth| {
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
        let path = dir.path().to_str().unwrap().to_owned();
        let host = faulty.host();
        let run = move || {
            in_child("child_with_a_login", &[("DOCKER_CONFIG", &path), ("TEST_REGISTRY", &host)])
        };
        tokio::task::spawn_blocking(run)
            .await
            .unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
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
#[ignore = "run by credentials_of_docker_login_are_found, in a process of its own"]
async fn child_with_a_login() {
    let host = std::env::var("TEST_REGISTRY").unwrap();
    let config = ClientConfig { credentials: CredentialSource::Ambient, ..config() };
    let repository = Client::new(config).unwrap().repository(&host, "a/b").unwrap();
    assert_eq!(repository.blob_bytes(&Descriptor::of("x/y", b"x"), 1).await.unwrap(), "x");
}

/// A registry that takes a password until it changes, and answers `refusal` to the old one.
async fn expiring(
    refusal: u16,
    bearer: bool,
    password: &Arc<std::sync::Mutex<&'static str>>,
) -> Faulty {
    let password = Arc::clone(password);
    Faulty::start(RegistrySettings::default(), move |seen, truth| {
        let password = *password.lock().unwrap();
        let shown = seen.header("authorization").unwrap_or_default();
        if seen.path.starts_with("/token") {
            return Some(if shown == basic("AWS", password) {
                json_answer(200, &json!({"token": password, "expires_in": 43200}))
            } else {
                status(refusal)
            });
        }
        if shown == if bearer { format!("Bearer {password}") } else { basic("AWS", password) } {
            return None;
        }
        // Latin-1, which is not UTF-8.
        let mut challenge = if bearer {
            format!("Bearer realm=\"http://{}/token\",service=\"", truth.host()).into_bytes()
        } else {
            b"Basic realm=\"".to_vec()
        };
        challenge.extend(b"caf\xe9\"");
        let mut answer =
            problem(if shown.is_empty() { 401 } else { refusal }, "DENIED", "token has expired");
        if shown.is_empty() || refusal == 401 {
            let challenge = axum::http::HeaderValue::from_bytes(&challenge).unwrap();
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        Some(answer)
    })
    .await
}

#[test]
fn logins_that_expire_are_looked_up_again() {
    let dir = tempfile::tempdir().unwrap();
    for program in ["docker-credential-test", "provider"] {
        let program = dir.path().join(program);
        std::fs::write(&program, "#!/bin/sh\nexec cat \"$DOCKER_CONFIG/answer\"\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let dir = dir.path().to_str().unwrap();
    let path = format!("{dir}:{}", std::env::var("PATH").unwrap());
    let variables = [("DOCKER_CONFIG", dir), ("PATH", &path)];
    in_child("the_login_in_docker_config_changes", &variables);
}

#[tokio::test]
#[ignore = "run by logins_that_expire_are_looked_up_again"]
async fn the_login_in_docker_config_changes() {
    const HOUR: Duration = Duration::from_secs(3600);
    let dir = std::path::PathBuf::from(std::env::var("DOCKER_CONFIG").unwrap());
    // A file is read again at each refusal. A program is asked again after a while.
    for (first, then, stale, is_renewed) in [
        ("file", "file", HOUR, true),
        ("helper", "helper", Duration::ZERO, true),
        ("helper", "helper", HOUR, false),
        ("provider", "provider", Duration::ZERO, true),
        ("provider", "provider", HOUR, false),
        ("provider", "file", HOUR, true),
    ] {
        for (refusal, bearer) in [(401, false), (403, false), (401, true), (403, true), (400, true)]
        {
            let password = Arc::new(std::sync::Mutex::new("one"));
            let faulty = expiring(refusal, bearer, &password).await;
            faulty.add_blob("x");
            let store = |place: &str, password: &str| {
                let login = json!({"username": "AWS", "password": password});
                let (config, answer) = match place {
                    "file" => (json!({"auths": {faulty.host(): login}}), json!({})),
                    "helper" => (
                        json!({"credsStore": "test"}),
                        json!({"Username": "AWS", "Secret": password}),
                    ),
                    _ => (
                        json!({}),
                        json!({
                            "kind": "CredentialProviderResponse",
                            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                            "auth": {faulty.host(): login},
                        }),
                    ),
                };
                std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
                std::fs::write(dir.join("answer"), answer.to_string()).unwrap();
            };
            store(first, "one");
            let limits = Limits { stale, ..limits() };
            let providers = json!({"kind": "CredentialProviderConfig", "providers": [{
                "name": "provider",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "matchImages": [faulty.host()],
            }]});
            std::fs::write(dir.join("providers.json"), providers.to_string()).unwrap();
            let providers = CredentialProviders::open(&dir.join("providers.json"), &dir).unwrap();
            let credentials = if first == "provider" {
                CredentialSource::Node(providers)
            } else {
                CredentialSource::Ambient
            };
            let config = ClientConfig { credentials, limits, ..config() };
            let repository = repository(&faulty, config);
            let blob = Descriptor::of("x/y", b"x");
            repository.blob_bytes(&blob, 1).await.unwrap();

            // Both change.
            *password.lock().unwrap() = "two";
            store(then, "two");
            let asked = || faulty.saw("GET", "/blobs/").len();
            let before = asked();
            let again = repository.blob_bytes(&blob, 1).await;
            let case = format!("{refusal} {bearer} {first} {then}: {again:?}");
            assert_eq!(again.is_ok(), is_renewed, "{case}");
            assert_eq!(asked() - before, if is_renewed { 2 } else { 1 }, "{case}");

            // Only the registry's changes: there is nothing else to show it.
            *password.lock().unwrap() = "three";
            let before = asked();
            let error = repository.blob_bytes(&blob, 1).await.unwrap_err();
            assert_eq!((error.status(), asked() - before), (Some(refusal), 1), "{case}");
        }
    }
}

#[test]
fn messages_name_the_place_of_a_rejected_login() {
    let dir = tempfile::tempdir().unwrap();
    in_child(
        "the_login_in_docker_config_is_rejected",
        &[("DOCKER_CONFIG", dir.path().to_str().unwrap())],
    );
}

#[tokio::test]
#[ignore = "run by messages_name_the_place_of_a_rejected_login"]
async fn the_login_in_docker_config_is_rejected() {
    let file = std::path::Path::new(&std::env::var("DOCKER_CONFIG").unwrap()).join("config.json");
    for bearer in [false, true] {
        let faulty = expiring(401, bearer, &Arc::new(std::sync::Mutex::new("other"))).await;
        let login = json!({"auths": {faulty.host(): {"username": "AWS", "password": "hunter2"}}});
        std::fs::write(&file, login.to_string()).unwrap();
        let config = ClientConfig { credentials: CredentialSource::Ambient, ..config() };
        let error =
            repository(&faulty, config).manifest(&Target::Tag("t".into())).await.unwrap_err();
        assert_eq!(error.rejected(), Some(CredentialOrigin::Stored));
        assert_eq!(error.rejected_place(), file.to_str());
    }
}
