//! Single answers of registries that public reports describe. Each row has its source.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::Response;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_store::blob::Target;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits, Repository};
use serde_json::json;

use ociseek_testkit::faulty::{
    Faulty, ReceivedRequest, RegistrySettings, json_answer, redirect, status, web_page,
};
use ociseek_testkit::sandbox::{OCI_MANIFEST, Sandbox, tar};

/// What a registry answers a request for a manifest with.
struct Refusal {
    source: &'static str,
    status: u16,
    body: &'static str,
    /// What the error says.
    says: &'static str,
    /// What the hint must not say.
    not: &'static str,
}

const LOGIN: &str = "docker login";
const NAME: &str = "check the name";

const REFUSALS: &[Refusal] = &[
    Refusal {
        source: "github.com/distribution/distribution/issues/773",
        status: 501,
        body: r#"{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":"filesystem: no space left on device"}]}"#,
        says: "501 Not Implemented UNKNOWN: unknown error: filesystem: no space left on device",
        not: LOGIN,
    },
    Refusal {
        source: "github.com/moby/buildkit/issues/7007",
        status: 404,
        body: r#"{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"blob unknown to registry","detail":{"digest":"sha256:00"}}]}"#,
        says: r#"MANIFEST_BLOB_UNKNOWN: blob unknown to registry: {"digest":"sha256:00"}"#,
        not: NAME,
    },
    Refusal {
        source: "github.com/GoogleContainerTools/jib/issues/1445",
        status: 400,
        body: r#"{"errors":[{"code":"MANIFEST_INVALID","message":"manifest invalid","detail":{"description":"Circuit Breaker Threshold Reached, Breaking Operation."}}]}"#,
        says: "Circuit Breaker Threshold Reached",
        not: LOGIN,
    },
    Refusal {
        source: "github.com/goharbor/harbor/issues/11508",
        status: 403,
        body: r#"{"errors":[{"code":"DENIED","message":"adding 5.0 MiB of storage resource, which when updated to current usage will exceed the configured upper limit: quota"}]}"#,
        says: "DENIED: adding 5.0 MiB of storage resource",
        not: LOGIN,
    },
    Refusal {
        source: "github.com/goharbor/harbor/issues/18897",
        status: 403,
        body: "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><Error>\
            <Code>AccountSizeOverQuota</Code><Message>The account permission has been restricted \
            as account storage usage is over quota.\nRequestId:1</Message></Error>",
        says: "403 Forbidden AccountSizeOverQuota: The account permission has been restricted",
        not: LOGIN,
    },
    Refusal {
        source: "docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html",
        status: 403,
        body: "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>AccessDenied</Code>\
            <Message>User is not authorized to perform kms:Decrypt</Message>\
            <RequestId>1</RequestId></Error>",
        says: "AccessDenied: User is not authorized to perform kms:Decrypt",
        not: "xml",
    },
    Refusal {
        source: "cloud.google.com/apis/design/errors",
        status: 403,
        body: "{\n  \"error\": {\n    \"code\": 403,\n    \"message\": \"Permission \
            artifactregistry.repositories.downloadArtifacts denied\",\n\
            \"status\": \"PERMISSION_DENIED\"\n  }\n}",
        says: "PERMISSION_DENIED: Permission artifactregistry.repositories.downloadArtifacts denied",
        not: "{",
    },
    Refusal {
        source: "github.com/repsyio/repsy/pull/360",
        status: 400,
        body: r#"{"errors":[{"code":"MANIFEST_INVALID","message":"manifestLayersInvalid","detail":null}]}"#,
        says: "MANIFEST_INVALID: manifestLayersInvalid",
        not: "null",
    },
    Refusal {
        source: "www.rfc-editor.org/rfc/rfc9457",
        status: 403,
        body: r#"{"type":"https://gw.example/blocked","title":"Forbidden","status":403,"detail":"No pull right for team"}"#,
        says: "403 Forbidden: Forbidden: No pull right for team",
        not: "gw.example",
    },
    Refusal {
        source: "github.com/fastapi/fastapi (its HTTPException, as gateways have it)",
        status: 403,
        body: r#"{"detail":"Not enough permissions"}"#,
        says: "403 Forbidden: Not enough permissions",
        not: "{",
    },
    Refusal {
        source: "github.com/cesanta/docker_auth/issues/174",
        status: 400,
        body: "<html>\n<body>\n<p>Client sent an HTTP request to an HTTPS server</p>",
        says: "400 Bad Request: Client sent an HTTP request to an HTTPS server",
        not: LOGIN,
    },
    Refusal {
        source: "github.com/jfrog/artifactory-docker-examples/issues/168",
        status: 400,
        body: r#"{"errors":[{"status":400,"message":"Unsupported docker repository request for 'v2'"}]}"#,
        says: "400 Bad Request: Unsupported docker repository request for 'v2'",
        not: LOGIN,
    },
    Refusal {
        source: "github.com/jfrog/jenkins-jfrog-plugin/issues/124 (Xray)",
        status: 403,
        body: r#"{"errors":[{"status":403,"message":"Artifact download request rejected: a/b/v1/manifest.json was not downloaded due to the download blocking policy configured in Xray for b."}]}"#,
        says: "due to the download blocking policy configured in Xray",
        not: LOGIN,
    },
    Refusal {
        source: "github.com/podman-container-tools/skopeo/issues/2723 (HAProxy)",
        status: 400,
        body: "<html><body><h1>400 Bad request</h1>\nYour browser sent an invalid request.\n</body></html>\n",
        says: "400 Bad request",
        not: "<h1>",
    },
    Refusal {
        source: "github.com/goharbor/harbor/issues/22353",
        status: 413,
        body: "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n</html>",
        says: "413 Payload Too Large: 413 Request Entity Too Large",
        not: LOGIN,
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_registrys_own_reason_is_shown() {
    let sandbox = Sandbox::new();
    for refusal in REFUSALS {
        let Refusal { source, status, body, says, not } = refusal;
        let answer = || {
            let body = Body::from(*body);
            Response::builder().status(*status).body(body).unwrap()
        };
        let lie = move |request: &ReceivedRequest, _: &Faulty| {
            request.is("GET", "/manifests/").then(answer)
        };
        let registry = Faulty::start(RegistrySettings::default(), lie).await;
        let image = format!("{}/a/b:v1", registry.host());
        let text = tokio::task::block_in_place(|| sandbox.run(&["ls", &image]));
        assert!(text.contains(says), "{source}: {text}");
        let hint = text.split("hint: ").nth(1).unwrap_or_default();
        assert!(!hint.contains(not), "{source}: {text}");
        assert!(text.ends_with("--- status 1 ---"), "{source}: {text}");
    }
}

fn limits() -> Limits {
    Limits { first_wait: Duration::from_millis(2), ..Limits::default() }
}

pub(super) fn config() -> ClientConfig {
    ClientConfig {
        credentials: CredentialSource::Anonymous,
        limits: limits(),
        ..ClientConfig::default()
    }
}

pub(super) fn repository(registry: &Faulty, config: ClientConfig) -> Repository {
    Client::new(config).unwrap().repository(&registry.host(), "a/b").unwrap()
}

pub(super) fn tag() -> Target {
    Target::Tag("v1".to_owned())
}

/// A registry that answers the first request for a manifest like this.
async fn once(
    settings: RegistrySettings,
    answer: impl Fn() -> Response<Body> + Send + Sync + 'static,
) -> Faulty {
    let registry = Faulty::start(settings, move |request, registry| {
        let is_first = registry.saw("GET", "/manifests/").len() == 1;
        (request.is("GET", "/manifests/") && is_first).then(&answer)
    })
    .await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    registry
}

#[tokio::test]
async fn a_wait_may_be_a_time_or_nonsense() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (source, header, value) in [
        ("github.com/docker/hub-feedback/issues/2459", "retry-after", (now + 1).to_string()),
        ("docs.docker.com (X-Retry-After)", "x-retry-after", (now + 1).to_string()),
        ("milliseconds", "retry-after", ((now + 1) * 1000).to_string()),
        ("a time that is over", "retry-after", (now - 1000).to_string()),
        ("nobody waits for 31 years", "retry-after", "999999999".to_owned()),
        ("github.com/dependabot/cli/issues/380", "retry-after", "880.092µs".to_owned()),
        ("github.com/falcosecurity/plugins/issues/1069", "retry-after", "1.16676ms".to_owned()),
    ] {
        let registry = once(RegistrySettings::default(), move || {
            Response::builder()
                .status(429)
                .header(header, value.as_bytes())
                .body(Body::from("toomanyrequests: retry-after: 1.16676ms, allowed: 44000/minute"))
                .unwrap()
        })
        .await;
        let read = repository(&registry, config()).manifest(&tag()).await;
        assert!(read.is_ok(), "{source}: {:?}", read.err());
    }
}

/// hyper takes 100 lines by default. Go counts their bytes alone.
#[tokio::test]
async fn answers_may_have_many_header_lines() {
    let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
        let content = registry.manifest("v1").filter(|_| request.is("GET", "/manifests/"))?;
        let answer = Response::builder().header("content-type", OCI_MANIFEST);
        let many = (0..300).fold(answer, |answer, n| answer.header(format!("x-trace-{n}"), "1"));
        Some(many.body(Body::from(content)).unwrap())
    })
    .await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    assert!(repository(&registry, config()).manifest(&tag()).await.is_ok());
}

/// A mirror that has lost the content, or that shows a page to log in.
#[tokio::test]
async fn the_registry_is_asked_if_a_mirror_answers_with_something_else() {
    let page = |_: &ReceivedRequest| Some(web_page());
    let empty = |_: &ReceivedRequest| Some(status(200));
    let blobs = |request: &ReceivedRequest| {
        request.is("GET", "/blobs/").then(|| Response::new(Body::from("other")))
    };
    type Answer = fn(&ReceivedRequest) -> Option<Response<Body>>;
    for (source, answer) in [
        ("github.com/containerd/containerd/issues/7400", page as Answer),
        ("github.com/containerd/containerd/issues/9552", empty),
        ("a cache with other blobs", blobs),
    ] {
        let registry = Faulty::honest(RegistrySettings::default()).await;
        let layer = registry.add_image("v1", &tar(1, 2, 30_000));
        let mirror = registry.copy(move |request, _| answer(request)).await;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(registry.host());
        std::fs::create_dir(&folder).unwrap();
        let hosts = format!("[host.\"http://{}\"]\n", mirror.host());
        std::fs::write(folder.join("hosts.toml"), hosts).unwrap();
        let hosts_dir = Some(dir.path().to_owned());
        let repository = repository(&registry, ClientConfig { hosts_dir, ..config() });
        for target in [tag(), Target::Digest(Digest::sha256(&registry.manifest("v1").unwrap()))] {
            let found = repository.manifest(&target).await;
            let found = found.unwrap_or_else(|error| panic!("{source}: {error:?}"));
            assert_eq!(found.bytes, registry.manifest("v1").unwrap(), "{source}");
        }
        let blob = Descriptor::of("x/y", &registry.blob(&layer).unwrap());
        let read = repository.blob_bytes(&blob, blob.size).await;
        assert!(read.is_ok(), "{source}: {:?}", read.err());
        assert!(!mirror.saw("GET", "/manifests/").is_empty(), "{source}");
    }
}

/// nvcr.io names another token service once a token has expired, which gives strangers none.
#[tokio::test]
async fn a_token_comes_from_the_first_service_if_the_next_gives_none() {
    let source = "github.com/NVIDIA/nvidia-container-toolkit/issues/1945";
    let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
        let host = registry.host();
        let challenge = |realm: &str| {
            let value = format!("Bearer realm=\"http://{host}/{realm}\",service=\"registry\"");
            let answer = Response::builder().status(401).header("www-authenticate", value);
            answer.body(Body::empty()).unwrap()
        };
        let issued = registry.saw("GET", "/proxy_auth").len();
        if request.path.starts_with("/proxy_auth") {
            return Some(json_answer(200, &json!({"token": format!("t{issued}")})));
        }
        if request.path.starts_with("/other") {
            return Some(json_answer(200, &json!({"token": ""})));
        }
        match request.header("authorization") {
            None => Some(challenge("proxy_auth")),
            // The first one has expired.
            Some("Bearer t1") if registry.saw("GET", "/manifests/").len() > 2 => {
                Some(challenge("other"))
            }
            Some(_) => None,
        }
    })
    .await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let repository = repository(&registry, config());
    for _ in 0..2 {
        let read = repository.manifest(&tag()).await;
        assert!(read.is_ok(), "{source}: {:?}", read.err());
    }
    assert_eq!(registry.saw("GET", "/other").len(), 1);
}

/// A token service that answers a redirect within its host keeps the login there.
#[tokio::test]
async fn a_token_service_may_redirect_within_its_host() {
    let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
        let host = registry.host();
        if request.path.starts_with("/token2") {
            return Some(json_answer(200, &json!({"access_token": "t"})));
        }
        if request.path.starts_with("/token") {
            return Some(redirect(308, &request.path.replace("/token", "/token2")));
        }
        let is_known = request.header("authorization") == Some("Bearer t");
        let value = format!("Bearer realm=\"http://{host}/token\"");
        let answer = Response::builder().status(401).header("www-authenticate", value);
        (!is_known).then(|| answer.body(Body::empty()).unwrap())
    })
    .await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    assert!(repository(&registry, config()).manifest(&tag()).await.is_ok());
}
