//! What registries answer to those who write, as public reports of 2025 and 2026 describe it. Each
//! row has its source.

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use ociseek_format::image::Descriptor;
use serde_json::json;

use super::reports::{config, repository, tag};
use ociseek_testkit::faulty::{Faulty, RegistrySettings, index_answer, json_answer, problem};
use ociseek_testkit::image::image_index;
use ociseek_testkit::sandbox::{OCI_INDEX, OCI_MANIFEST, Sandbox, tar};

/// Amazon ECR keeps what a broken request has sent, and refuses to begin the same upload anew.
#[tokio::test]
async fn an_interrupted_upload_is_not_begun_anew_in_its_session() {
    let source = "github.com/apple/containerization/issues/790";
    let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
        let id = request.path.split("/uploads/").nth(1)?.split(['?', '/']).next()?.to_owned();
        if id.is_empty() || request.body.is_empty() {
            return None;
        }
        let sent = registry.requests().into_iter();
        let sent = sent.filter(|it| it.path.contains(&id) && !it.body.is_empty()).count();
        match (id.as_str(), sent) {
            ("u1", 1) => Some(problem(503, "UNAVAILABLE", "interrupted")),
            ("u1", _) => Some(problem(
                416,
                "BLOB_UPLOAD_INVALID",
                "First byte of the layer part is 0 instead of 11304960",
            )),
            _ => None,
        }
    })
    .await;
    let content = Bytes::from(vec![7; 100_000]);
    let blob = Descriptor::of("x/y", &content);
    let pushed = repository(&registry, config()).push_blob(&blob, content.clone()).await;
    assert!(pushed.is_ok(), "{source}: {:?}", pushed.err());
    assert_eq!(registry.blob(&blob.digest), Some(content), "{source}");
}

/// Too many deletions: wait as the registry says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_may_be_limited() {
    let source = "github.com/fabiocicerchia/nginx-lua/pull/220";
    let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
        let many = registry.saw("DELETE", "/manifests/").len() % 2 == 1;
        (request.method == "DELETE" && request.path.contains("/manifests/") && many).then(|| {
            let mut answer = json_answer(429, &json!({"detail": "Rate limit exceeded"}));
            answer.headers_mut().insert("retry-after", "1".parse().unwrap());
            answer
        })
    })
    .await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:v1", registry.host());
    for args in [&["index", "--min-layer-size=0", &image][..], &["rm", &image]] {
        let text = tokio::task::block_in_place(|| sandbox.run(args));
        assert!(text.ends_with("--- status 0 ---"), "{source}: {text}");
    }
    assert!(registry.saw("DELETE", "/manifests/").len() >= 2, "{source}");
}

/// zot does not let a tag go from an index to a manifest or back: its reason is shown.
#[tokio::test]
async fn a_registry_may_refuse_another_media_type_for_a_tag() {
    let source = "github.com/project-zot/zot/issues/3005";
    let registry = Faulty::start(RegistrySettings::default(), |request, _| {
        let body = r#"{"errors":[{"code":"MANIFEST_INVALID","message":"manifest invalid","detail":{"description":"cannot change media-type"}}]}"#;
        request.is("PUT", "/manifests/v1").then(|| {
            Response::builder().status(400).body(Body::from(body)).unwrap()
        })
    })
    .await;
    let repository = repository(&registry, config());
    let manifest = Bytes::from(json!({"schemaVersion": 2, "layers": []}).to_string());
    let error = repository.push_manifest(&tag(), OCI_MANIFEST, manifest).await.unwrap_err();
    let text = ociseek_format::progress::causes(&error);
    assert!(text.contains("cannot change media-type"), "{source}: {text}");
    assert_eq!(registry.saw("PUT", "/manifests/").len(), 1, "{source}");
}

/// A registry with the image `image`, and with `v1`, an index of it and of its attestation as
/// BuildKit makes it since 0.32.
async fn attested() -> Faulty {
    let registry = Faulty::honest(RegistrySettings::default()).await;
    registry.add_image("image", &tar(1, 4, 50_000));
    let image = registry.manifest("image").unwrap();
    let of = |kind: &str, bytes: &[u8]| json!(Descriptor::of(kind, bytes));
    registry.add_blob("{}");
    registry.add_blob("{\"_type\":\"x\"}");
    let attestation = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "subject": of(OCI_MANIFEST, &image),
        "artifactType": "application/vnd.docker.attestation.manifest.v1+json",
        "config": of("application/vnd.oci.empty.v1+json", b"{}"),
        "layers": [of("application/vnd.in-toto+json", b"{\"_type\":\"x\"}")],
    });
    let attestation = attestation.to_string();
    registry.add_manifest("attestation", OCI_MANIFEST, attestation.clone());
    let mut entries = [of(OCI_MANIFEST, &image), of(OCI_MANIFEST, attestation.as_bytes())];
    entries[0]["platform"] = json!({"os": "linux", "architecture": "amd64"});
    entries[1]["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    entries[1]["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest",
        "vnd.docker.reference.digest": entries[0]["digest"]});
    let index = image_index(&entries);
    registry.add_manifest("v1", OCI_INDEX, index.to_string());
    registry
}

/// Registries that take images, and refuse their attestations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_converted_without_an_attestation_that_is_refused() {
    for (source, status, code, message) in [
        (
            "github.com/koordinator-sh/koordinator/pull/3194 (Aliyun)",
            403,
            "DENIED",
            "unknown manifest class for application/vnd.oci.empty.v1+json",
        ),
        (
            "github.com/aws/containers-roadmap/issues/2783",
            405,
            "UNSUPPORTED",
            "Invalid parameter at 'ImageManifest' failed to satisfy constraint: 'Invalid JSON syntax'",
        ),
        (
            "github.com/magda-io/magda/pull/3769 (GitLab)",
            404,
            "MANIFEST_BLOB_UNKNOWN",
            "blob unknown to registry",
        ),
    ] {
        let from = attested().await;
        let to = Faulty::start(RegistrySettings::default(), move |request, _| {
            let is_artifact = request.body.windows(13).any(|part| part == b"vnd.oci.empty");
            (request.is("PUT", "/manifests/") && is_artifact)
                .then(|| problem(status, code, message))
        })
        .await;
        let sandbox = Sandbox::new();
        let names = [&from, &to].map(|registry| format!("{}/a/b:v1", registry.host()));
        let args = ["convert", "--min-layer-size=0", &names[0], &names[1]];
        let text = tokio::task::block_in_place(|| sandbox.run(&args));
        assert!(text.ends_with("--- status 0 ---"), "{source}: {text}");
        assert!(text.contains("refuses") && text.contains(message), "{source}: {text}");
        let index = String::from_utf8(to.manifest("v1").unwrap().to_vec()).unwrap();
        assert!(!index.contains("attestation-manifest"), "{source}: {index}");
    }
}

/// A login that may not push at all is another matter: nothing is left out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_may_not_push_is_no_reason_to_leave_something_out() {
    let from = attested().await;
    let to = Faulty::start(RegistrySettings::default(), |request, _| {
        request
            .is("PUT", "/manifests/")
            .then(|| problem(403, "DENIED", "requested access is denied"))
    })
    .await;
    let sandbox = Sandbox::new();
    let names = [&from, &to].map(|registry| format!("{}/a/b:v1", registry.host()));
    let args = ["convert", "--min-layer-size=0", &names[0], &names[1]];
    let text = tokio::task::block_in_place(|| sandbox.run(&args));
    assert!(text.ends_with("--- status 1 ---"), "{text}");
    assert!(text.contains("requested access is denied") && !text.contains("omits"), "{text}");
}

/// Amazon ECR has refused manifests with a subject by 405. It is not read-only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_manifest_does_not_make_a_registry_read_only() {
    let source = "github.com/aws/containers-roadmap/issues/2783";
    let registry = Faulty::start(RegistrySettings::default(), |request, _| {
        let message = "Invalid parameter at 'ImageManifest' failed to satisfy constraint";
        request.is("PUT", "/manifests/").then(|| problem(405, "UNSUPPORTED", message))
    })
    .await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:v1", registry.host());
    let args = ["index", "--min-layer-size=0", &image];
    let text = tokio::task::block_in_place(|| sandbox.run(&args));
    assert!(text.contains("UNSUPPORTED: Invalid parameter at 'ImageManifest'"), "{source}: {text}");
    assert!(!text.contains("read-only"), "{source}: {text}");
}

/// A registry that stores other bytes than it was sent: its digest is another one.
#[tokio::test]
async fn a_manifest_that_is_stored_otherwise_is_an_error() {
    let source = "github.com/bazel-contrib/rules_oci/issues/803 (DigitalOcean)";
    let other = ociseek_format::digest::Digest::sha256(b"other");
    let registry = Faulty::start(RegistrySettings::default(), move |request, _| {
        request.is("PUT", "/manifests/").then(|| {
            let answer = Response::builder().status(201);
            answer.header("docker-content-digest", other.to_string()).body(Body::empty()).unwrap()
        })
    })
    .await;
    let manifest = Bytes::from(json!({"schemaVersion": 2, "layers": []}).to_string());
    let repository = repository(&registry, config());
    let error = repository.push_manifest(&tag(), OCI_MANIFEST, manifest.clone()).await.unwrap_err();
    let text = ociseek_format::progress::causes(&error);
    let ours = ociseek_format::digest::Digest::sha256(&manifest);
    assert!(text.contains(&ours.to_string()), "{source}: {text}");
    assert!(text.contains(&other.to_string()), "{source}: {text}");
}

fn indexed(registry: &Faulty) -> String {
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:v1", registry.host());
    let args = ["index", "--min-layer-size=0", "--no-cache", &image];
    tokio::task::block_in_place(|| sandbox.run(&args))
}

/// Quay shows a list of referrers from a cache for a minute. An index that is made again in that
/// time is the same one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_list_of_referrers_makes_no_second_index() {
    let source = "github.com/quay/quay/issues/6510";
    let registry = Faulty::start(RegistrySettings::with_referrers(), |request, _| {
        request.is("GET", "/referrers/").then(|| index_answer(&json!([])))
    })
    .await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let mut counts = Vec::new();
    for _ in 0..2 {
        let text = indexed(&registry);
        assert!(text.ends_with("--- status 0 ---"), "{source}: {text}");
        counts.push(registry.manifests().len());
    }
    assert_eq!(counts[0], counts[1], "{source}");
}

/// A registry that limits lists of referrers more than anything else: nobody takes that for an
/// empty list.
#[tokio::test]
async fn a_limited_list_of_referrers_is_not_empty() {
    let source = "github.com/giantswarm/retagger/pull/1239";
    let registry = Faulty::start(RegistrySettings::with_referrers(), |request, registry| {
        let is_early = registry.saw("GET", "/referrers/").len() < 3;
        (request.is("GET", "/referrers/") && is_early)
            .then(|| problem(429, "TOOMANYREQUESTS", "referrers: 1000 in 60 s"))
    })
    .await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let image = registry.manifest("v1").unwrap();
    let subject = json!(Descriptor::of(OCI_MANIFEST, &image));
    let bundle = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "subject": subject,
        "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json", "layers": []});
    registry.add_manifest("bundle", OCI_MANIFEST, bundle.to_string());
    let digest = ociseek_format::digest::Digest::sha256(&image);
    let listed = repository(&registry, config()).referrers(&digest, None).await;
    let listed = listed.unwrap_or_else(|error| panic!("{source}: {error:?}"));
    assert_eq!((listed.descriptors.len(), listed.api), (1, true), "{source}");
}

/// Entries that cosign 3 has written into the list under a tag without their type stay as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_others_stay_in_the_list_under_a_tag() {
    let source = "github.com/kyverno/kyverno/pull/16754";
    let registry = Faulty::honest(RegistrySettings::default()).await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let bundle = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": []}).to_string();
    let entry = |kind: serde_json::Value| {
        let mut entry = json!(Descriptor::of(OCI_MANIFEST, bundle.as_bytes()));
        entry["artifactType"] = kind;
        entry
    };
    registry.add_manifest("bundle", OCI_MANIFEST, bundle.clone());
    let image = ociseek_format::digest::Digest::sha256(&registry.manifest("v1").unwrap());
    let name = image.to_string().replace(':', "-");
    for kind in [json!(""), json!("application/vnd.oci.empty.v1+json")] {
        let theirs = entry(kind);
        let list = image_index(&[&theirs]);
        registry.add_manifest(&name, OCI_INDEX, list.to_string());
        let text = indexed(&registry);
        assert!(text.ends_with("--- status 0 ---"), "{source}: {text}");
        let list: serde_json::Value =
            serde_json::from_slice(&registry.manifest(&name).unwrap()).unwrap();
        let entries = list["manifests"].as_array().unwrap();
        assert_eq!(entries.len(), 2, "{source}: {list}");
        assert!(entries.contains(&theirs), "{source}: {list}");
    }
}
