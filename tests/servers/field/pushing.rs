//! What registries answer to those who write, as public reports of 2025 and 2026 describe it. Each
//! row has its source.

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use ociseek_format::image::Descriptor;
use serde_json::json;

use super::reports::{config, repository, tag};
use crate::support::faulty::{Faulty, RegistrySettings, json_answer, problem};
use crate::support::sandbox::{OCI_MANIFEST, Sandbox, tar};

/// GHCR loses track of a blob between its upload and the manifest's: status, code, and how often.
#[tokio::test]
async fn a_manifest_whose_blobs_are_not_known_yet_is_put_again() {
    for (source, code, times) in [
        ("github.com/infobloxopen/konk/pull/626", "BLOB_UNKNOWN", 1),
        ("github.com/bbartling/open-fdd/issues/260", "MANIFEST_BLOB_UNKNOWN", 2),
    ] {
        let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
            let puts = registry.saw("PUT", "/manifests/").len();
            (request.is("PUT", "/manifests/") && puts <= times)
                .then(|| problem(404, code, "unknown blob"))
        })
        .await;
        let repository = repository(&registry, config());
        let blob = Descriptor::of("x/y", b"{}");
        repository.push_blob(&blob, Bytes::from_static(b"{}")).await.unwrap();
        let of = json!({"mediaType": "x/y", "digest": blob.digest, "size": 2});
        let manifest =
            json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": of, "layers": []});
        let manifest = Bytes::from(manifest.to_string());
        let pushed = repository.push_manifest(&tag(), OCI_MANIFEST, manifest.clone()).await;
        assert!(pushed.is_ok(), "{source}: {:?}", pushed.err());
        assert_eq!(registry.manifest("v1"), Some(manifest), "{source}");
    }
}

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
