//! Logins, tokens and redirects of registries in public reports of 2025 and 2026. Each row has its
//! source.

use axum::body::Body;
use axum::http::{HeaderValue, Response};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_store::registry::{ClientConfig, CredentialSource};
use serde_json::json;

use super::reports::{config, repository, tag};
use ociseek_testkit::faulty::{
    Faulty, ReceivedRequest, RegistrySettings, basic, json_answer, problem, redirect,
};
use ociseek_testkit::sandbox::{Sandbox, tar};

/// How a registry asks for a token. `HOST` stands for its own.
struct Challenge {
    source: &'static str,
    header: &'static str,
    /// Parts of the request to the token service.
    asked: &'static [&'static str],
}

const OURS: &str = "scope=repository%3Aa%2Fb%3Apull";

const CHALLENGES: &[Challenge] = &[
    Challenge {
        source: "github.com/jdx/mise/pull/11132",
        header: r#"Bearer realm="http://HOST/token?a=1,b=2",service="s",scope="repository:a/b:pull""#,
        asked: &["/token?a=1,b=2&service=s", OURS],
    },
    Challenge {
        source: "github.com/SgtSilvio/gradle-oci/pull/141 (Amazon ECR Public)",
        header: r#"Bearer realm="http://HOST/token/",service="public.ecr.aws",scope="aws""#,
        asked: &["/token/?service=public.ecr.aws", "scope=aws"],
    },
    Challenge {
        source: "github.com/podman-container-tools/container-libs/pull/1130",
        header: r#"Bearer realm="http://HOST/token",scope="repository:a/b:pull,push repository:x/y:pull""#,
        asked: &["scope=repository%3Aa%2Fb%3Apull%2Cpush", "scope=repository%3Ax%2Fy%3Apull"],
    },
    Challenge {
        source: "github.com/artifact-keeper/artifact-keeper/pull/821",
        header: r#"Bearer realm="http://HOST/token",service="keeper""#,
        asked: &["service=keeper", OURS],
    },
    Challenge {
        source: "github.com/nicholas-fedor/watchtower/pull/1895 (Google Artifact Registry)",
        header: r#"Bearer realm="http://HOST/token""#,
        asked: &["/token?", OURS],
    },
    Challenge {
        source: "github.com/apple/containerization/pull/155",
        header: r#"Bearer  realm="http://HOST/token",  service="s" , scope="repository:a/b:pull""#,
        asked: &["service=s", OURS],
    },
    Challenge {
        source: "github.com/apple/container/issues/454 (Gitea)",
        header: r#"Bearer realm="http://HOST/token",service="container_registry",scope="*""#,
        asked: &["service=container_registry", "scope=*"],
    },
    Challenge {
        source: "github.com/project-zot/zot/issues/1125",
        header: r#"Bearer realm="http://HOST/token",service="s",scope="repository::pull""#,
        asked: &["service=s", OURS],
    },
    Challenge {
        source: "github.com/regclient/regclient/pull/28",
        header: r#"Bearer realm="http://HOST/token",scope="""#,
        asked: &["/token?"],
    },
];

fn unauthorized(challenge: &str) -> Response<Body> {
    let mut answer = problem(401, "UNAUTHORIZED", "authentication required");
    answer.headers_mut().insert("www-authenticate", HeaderValue::try_from(challenge).unwrap());
    answer
}

#[tokio::test]
async fn tokens_are_asked_for_as_the_registry_says() {
    for Challenge { source, header, asked } in CHALLENGES {
        let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
            if request.path.starts_with("/token") {
                return Some(json_answer(200, &json!({"token": "t"})));
            }
            let is_known = request.header("authorization") == Some("Bearer t");
            (!is_known).then(|| unauthorized(&header.replace("HOST", &registry.host())))
        })
        .await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let read = repository(&registry, config()).manifest(&tag()).await;
        assert!(read.is_ok(), "{source}: {:?}", read.err());
        let path = &registry.saw("GET", "/token")[0].path;
        assert!(asked.iter().all(|part| path.contains(part)), "{source}: {path}");
    }
}

/// Amazon ECR as a pull-through cache has no token service, and asks for the login itself. So does
/// Harbor behind a login of its own.
#[tokio::test]
async fn a_registry_may_have_no_token_service() {
    for (source, header) in [
        (
            "github.com/conda/rattler/pull/2628",
            r#"Basic realm="https://ecr.example/",service="ecr""#,
        ),
        ("github.com/microsoft/vscode-containers/issues/370", r#"Basic realm="harbor""#),
    ] {
        let registry = Faulty::start(RegistrySettings::default(), |request, _| {
            let is_known = request.header("authorization") == Some(&*basic("AWS", "secret"));
            (!is_known).then(|| unauthorized(header))
        })
        .await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let credentials = CredentialSource::Only {
            registry: registry.host(),
            user: "AWS".to_owned(),
            password: "secret".to_owned(),
        };
        let read =
            repository(&registry, ClientConfig { credentials, ..config() }).manifest(&tag()).await;
        assert!(read.is_ok(), "{source}: {:?}", read.err());
        assert!(registry.saw("GET", "/token").is_empty(), "{source}");
    }
}

/// A registry that asks for a password, and refuses the one that it gets: it is said whose it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_said_to_be_wrong() {
    let source = "github.com/apple/container/issues/1538";
    let settings = RegistrySettings {
        basic: Some(("u".to_owned(), "right".to_owned())),
        ..RegistrySettings::default()
    };
    let registry = Faulty::honest(settings).await;
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:v1", registry.host());
    let text = tokio::task::block_in_place(|| sandbox.run(&["ls", "--creds=u:wrong", &image]));
    let hint = "the user name or password in --creds was rejected";
    assert!(text.contains(hint), "{source}: {text}");
    assert!(!text.contains("Bearer"), "{source}: {text}");
}

/// A token that the registry has forgotten, and that its service issues again with the same text. A
/// token that is always refused is an error, not a loop.
#[tokio::test]
async fn a_refused_token_is_asked_for_once_more() {
    for is_forgotten in [true, false] {
        let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
            if request.path.starts_with("/token") {
                return Some(json_answer(200, &json!({"token": "the same"})));
            }
            let asked = registry.saw("GET", "/token").len();
            let shown = registry.requests();
            let shown = shown.iter().filter(|it| it.header("authorization").is_some()).count();
            let is_known = request.header("authorization").is_some()
                && (shown == 1 || is_forgotten && asked > 1);
            let challenge = format!("Bearer realm=\"http://{}/token\"", registry.host());
            (!is_known).then(|| unauthorized(&challenge))
        })
        .await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let repository = repository(&registry, config());
        assert!(repository.manifest(&tag()).await.is_ok());
        let read = repository.manifest(&tag()).await;
        assert_eq!(read.is_ok(), is_forgotten, "{:?}", read.err());
        assert_eq!(registry.saw("GET", "/token").len(), 2);
        let requests = registry.saw("GET", "/manifests/v1");
        let shown = requests.iter().filter(|it| it.header("authorization").is_some()).count();
        assert_eq!(shown, 3);
        let blob = Descriptor::of("x/y", b"x");
        let pushed = repository.push_blob(&blob, bytes::Bytes::from_static(b"x")).await;
        assert_eq!(pushed.is_ok(), is_forgotten, "{:?}", pushed.err());
        assert!(registry.requests().len() < 20, "{}", registry.requests().len());
    }
}

/// A name with a tag and a digest: the digest counts, and the tag is nowhere in the requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_counts_more_than_a_tag() {
    let source = "github.com/jdx/mise/pull/11979";
    let settings = RegistrySettings { bearer: Some(None), ..RegistrySettings::default() };
    let registry = Faulty::honest(settings).await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let digest = Digest::sha256(&registry.manifest("v1").unwrap());
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:other@{digest}", registry.host());
    let text = tokio::task::block_in_place(|| sandbox.run(&["ls", &image]));
    assert!(text.ends_with("--- status 0 ---"), "{source}: {text}");
    assert!(registry.saw("GET", "other").is_empty(), "{source}: {:?}", registry.requests());
    assert!(registry.saw("GET", "/token")[0].path.contains(OURS), "{source}");
}

/// A token service at another host that refuses the login: the error says where the login went.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_service_at_another_host_is_named() {
    let source = "github.com/google/go-containerregistry/issues/2193";
    let tokens = Faulty::start(RegistrySettings::default(), |_, _| {
        Some(problem(401, "UNAUTHORIZED", "wrong"))
    })
    .await;
    let realm = format!("http://localhost:{}/token", tokens.address.port());
    let registry = Faulty::start(RegistrySettings::default(), move |_, _| {
        Some(unauthorized(&format!("Bearer realm=\"{realm}\",service=\"s\"")))
    })
    .await;
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:v1", registry.host());
    let text = tokio::task::block_in_place(|| sandbox.run(&["ls", "--creds=u:hunter2", &image]));
    assert!(text.contains("its token service, localhost"), "{source}: {text}");
    assert!(text.contains("in --creds was rejected"), "{source}: {text}");
    assert!(!text.contains("hunter2"), "{source}: {text}");
}

/// Keys of Google are files of several lines. docker sends them as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_may_be_a_file_of_several_lines() {
    let source = "cloud.google.com/artifact-registry/docs/docker/authentication (_json_key)";
    let key = "{\n  \"type\": \"service_account\",\n  \"private_key\": \"x\"\n}";
    for (user, is_taken) in [("_json_key", true), ("_json_key_base64", true), ("u", false)] {
        let settings = RegistrySettings {
            basic: Some((user.to_owned(), key.to_owned())),
            ..RegistrySettings::default()
        };
        let registry = Faulty::honest(settings).await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.path("key.json"), format!("{key}\n")).unwrap();
        let image = format!("{}/a/b:v1", registry.host());
        let mut command = sandbox.command(&["ls", "--creds", user, "--password-stdin", &image]);
        command.stdin(std::fs::File::open(sandbox.path("key.json")).unwrap());
        let output = tokio::task::block_in_place(|| command.output().unwrap());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_taken, "{source}: {said}");
        assert!(is_taken || said.contains("a password is one line"), "{source}: {said}");
    }
}

/// A password that is refused is not sent again.
#[tokio::test]
async fn a_refused_password_is_sent_once() {
    let registry =
        Faulty::start(RegistrySettings::default(), |_, _| Some(unauthorized(r#"Basic realm="x""#)))
            .await;
    let credentials = CredentialSource::Only {
        registry: registry.host(),
        user: "u".to_owned(),
        password: "p".to_owned(),
    };
    let read =
        repository(&registry, ClientConfig { credentials, ..config() }).manifest(&tag()).await;
    assert_eq!(read.unwrap_err().status(), Some(401));
    let shown = |it: &&ReceivedRequest| it.header("authorization").is_some();
    assert_eq!(registry.requests().iter().filter(shown).count(), 1);
}

/// A registry that redirects to another one with a token service of its own. The other one is read
/// as a stranger: the login belongs to the first.
#[tokio::test]
async fn a_registry_may_redirect_to_another_one_with_its_own_tokens() {
    let source = "github.com/opencontainers/distribution-spec/pull/607";
    let tokens = Some(None);
    let settings = RegistrySettings { bearer: tokens, ..RegistrySettings::default() };
    let other = Faulty::honest(settings).await;
    let layer = other.add_image("v1", &tar(1, 2, 30_000));
    let place = other.host();
    let registry = Faulty::start(RegistrySettings::default(), move |request, _| {
        (request.header("authorization") == Some(&*basic("u", "p")))
            .then(|| redirect(307, &format!("http://{place}{}", request.path)))
            .or_else(|| Some(unauthorized(r#"Basic realm="x""#)))
    })
    .await;
    let credentials = CredentialSource::Only {
        registry: registry.host(),
        user: "u".to_owned(),
        password: "p".to_owned(),
    };
    let repository = repository(&registry, ClientConfig { credentials, ..config() });
    let read = repository.manifest(&tag()).await;
    assert!(read.is_ok(), "{source}: {:?}", read.err());
    let blob = Descriptor::of("x/y", &other.blob(&layer).unwrap());
    for _ in 0..3 {
        let read = repository.blob_bytes(&blob, blob.size).await;
        assert!(read.is_ok(), "{source}: {:?}", read.err());
    }
    // A token that is no longer valid is replaced.
    other.revoke_tokens();
    assert!(repository.blob_bytes(&blob, blob.size).await.is_ok());
    let asked = other.saw("GET", "/token").len();
    assert!((2..=3).contains(&asked), "{asked}");
    for request in other.requests() {
        let shown = request.header("authorization").unwrap_or("Bearer");
        assert!(shown.starts_with("Bearer"), "{shown}");
    }
}

/// A token that no service gives, and one that is refused, end with the refusal.
#[tokio::test]
async fn a_redirect_to_what_is_private_is_an_error() {
    let nobody = RegistrySettings {
        bearer: Some(Some(("someone".to_owned(), "else".to_owned()))),
        ..RegistrySettings::default()
    };
    let other = Faulty::honest(nobody).await;
    other.add_image("v1", &tar(1, 2, 30_000));
    let place = other.host();
    let registry = Faulty::start(RegistrySettings::default(), move |request, _| {
        Some(redirect(307, &format!("http://{place}{}", request.path)))
    })
    .await;
    let read = repository(&registry, config()).manifest(&tag()).await;
    assert_eq!(read.unwrap_err().status(), Some(401));
    assert!(other.requests().len() < 10, "{}", other.requests().len());
}

/// Any request may be redirected: the list of tags, referrers, a manifest, a part of a blob.
#[tokio::test]
async fn every_request_that_reads_may_be_redirected() {
    let source = "github.com/opencontainers/distribution-spec/pull/607";
    let other = Faulty::honest(RegistrySettings::with_referrers()).await;
    let layer = other.add_image("v1", &tar(1, 2, 30_000));
    let place = other.host();
    let registry = Faulty::start(RegistrySettings::default(), move |request, _| {
        Some(redirect(302, &format!("http://{place}{}", request.path)))
    })
    .await;
    let repository = repository(&registry, config());
    let manifest = repository.manifest(&tag()).await;
    let manifest = manifest.unwrap_or_else(|error| panic!("{source}: {error:?}"));
    let page = repository.tags(None).await.unwrap().next_page().await;
    assert_eq!(page.unwrap().unwrap().names, ["v1"], "{source}");
    let referrers = repository.referrers(&Digest::sha256(&manifest.bytes), None).await;
    assert!(referrers.unwrap().api, "{source}");
    let blob = Descriptor::of("x/y", &other.blob(&layer).unwrap());
    assert!(repository.blob_part(&blob, 100..200, false).await.is_ok(), "{source}");
}

/// Where a redirect for a blob leads, if it leads anywhere.
#[tokio::test]
async fn redirects_to_other_schemes_are_refused() {
    let source = "github.com/oras-project/oras-dotnet/pull/423";
    for (location, is_followed) in [
        ("/elsewhere/blob", true),
        ("//HOST/elsewhere/blob", true),
        ("elsewhere/blob", true),
        ("?elsewhere/blob", true),
        ("javascript:alert(1)", false),
        ("file:///etc/passwd", false),
        ("ftp://HOST/elsewhere/blob", false),
        ("http://u:p@HOST/elsewhere/blob", false),
        ("ht!tp://[bad", false),
        ("http://[bad", false),
    ] {
        let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
            if request.path.contains("elsewhere/blob") {
                return Some(Response::new(Body::from("x")));
            }
            let location = location.replace("HOST", &registry.host());
            request.is("GET", "/blobs/").then(|| redirect(307, &location))
        })
        .await;
        let blob = Descriptor::of("x/y", b"x");
        let read = repository(&registry, config()).blob_bytes(&blob, 1).await;
        assert_eq!(read.is_ok(), is_followed, "{source}, {location}: {read:?}");
    }
}

/// What a redirect's URL has is sent as it is: a signature may cover the text. Go does it so.
#[tokio::test]
async fn redirects_are_followed_to_the_letter() {
    for target in [
        "/s/%2e%2e/b?sig=a%2Fb%2f+c",
        "/s/b?name*=UTF-8''x&sig='1'",
        "/s/%2E/b%20c?sig=~!*()%27",
        "/s/b'c?sig=1",
    ] {
        for host in ["http://HOST", "", "//HOST"] {
            let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
                if request.path.starts_with("/s") {
                    let is_right = request.path == target && request.header("range").is_some();
                    let status = if is_right { 206 } else { 403 };
                    let answer = Response::builder().status(status);
                    let answer = answer.header("content-range", "bytes 1-2/4");
                    return Some(answer.body(Body::from("bc")).unwrap());
                }
                let host = host.replace("HOST", &registry.host());
                request.is("GET", "/blobs/").then(|| redirect(307, &format!("{host}{target}")))
            })
            .await;
            let blob = Descriptor::of("x/y", b"abcd");
            let repository = repository(&registry, config());
            for _ in 0..2 {
                let part = repository.blob_part(&blob, 1..3, false).await;
                let mut part = part.unwrap_or_else(|error| panic!("{host}{target}: {error:?}"));
                assert_eq!(part.next().await.unwrap().unwrap(), "bc");
            }
            let asked = registry.requests().iter().filter(|it| it.path == target).count();
            assert_eq!(asked, 2, "{host}{target}: {:?}", registry.requests());
        }
    }
}

/// An identity token that has expired: the error names the place of the login, and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_identity_token_is_named() {
    let source = "github.com/smol-machines/smolvm/pull/1068";
    let settings = RegistrySettings {
        bearer: Some(Some(("u".to_owned(), "p".to_owned()))),
        ..RegistrySettings::default()
    };
    let registry = Faulty::honest(settings).await;
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path(".docker")).unwrap();
    let auths = json!({"auths": {registry.host(): {"identitytoken": "expired"}}});
    std::fs::write(sandbox.path(".docker/config.json"), auths.to_string()).unwrap();
    let image = format!("{}/a/b:v1", registry.host());
    let text = tokio::task::block_in_place(|| sandbox.run(&["ls", &image]));
    for part in ["401", ".docker/config.json", "docker login"] {
        assert!(text.contains(part), "{source}: {part}: {text}");
    }
}
