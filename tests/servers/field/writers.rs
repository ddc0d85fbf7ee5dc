//! Two who write the same tag, and registries whose HEAD says something else than their GET. Each
//! row has its source.

use axum::body::Body;
use axum::http::Response;
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::{is_fine_index, is_soci_index};
use ociseek_format::image::go::decode_index;
use tokio::task::block_in_place;

use ociseek_testkit::faulty::{Faulty, ReceivedRequest, RegistrySettings, first, problem, status};
use ociseek_testkit::sandbox::{OCI_INDEX, Sandbox, tar};

const BACKFILL: &[&str] = &["backfill", "--kind=v2={tag}-soci", "--min-layer-size=0"];

fn backfill(registry: &Faulty) -> String {
    let sandbox = Sandbox::new();
    let repository = format!("{}/a/b", registry.host());
    block_in_place(|| sandbox.run(&[BACKFILL, &[&repository]].concat()))
}

/// Whether the image of a tag names a SOCI index, and a fine index.
fn kinds(registry: &Faulty, tag: &str) -> (bool, bool) {
    let entries = decode_index(&registry.manifest(tag).unwrap()).unwrap().manifests;
    (entries.iter().any(is_soci_index), entries.iter().any(is_fine_index))
}

/// Someone writes an image with a fine index under the tag while this one is being written. Neither
/// index is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_of_a_tag_lose_no_kind_of_index() {
    let source = "github.com/lensapp/lens-sandbox/pull/415 (no conditional PUT)";
    for is_service in [true, false] {
        let is_first = first(1);
        let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
            let other = registry.manifest("other")?;
            if request.is("PUT", "/manifests/sha256:") && is_first() {
                registry.add_manifest("v1-soci", OCI_INDEX, other);
            }
            None
        })
        .await;
        registry.add_image("v1", &tar(1, 4, 50_000));
        let sandbox = Sandbox::new();
        let image = |tag: &str| format!("{}/a/b:{tag}", registry.host());
        let [from, made, to] = ["v1", "made", "v1-soci"].map(image);
        let fine = ["convert", "--kind=fine", "--min-layer-size=0", &from, &made];
        let said = block_in_place(|| sandbox.run(&fine));
        assert!(said.ends_with("--- status 0 ---"), "{source}: {said}");
        assert_eq!(kinds(&registry, "made"), (false, true));
        registry.add_manifest("other", OCI_INDEX, registry.manifest("made").unwrap());
        registry.remove_manifest("made");
        if is_service {
            let said = backfill(&registry);
            assert_eq!(kinds(&registry, "v1-soci"), (true, true), "{source}: {said}");
        } else {
            let said =
                block_in_place(|| sandbox.run(&["convert", "--min-layer-size=0", &from, &to]));
            assert!(said.contains("meanwhile, which was left unchanged"), "{source}: {said}");
            assert_eq!(kinds(&registry, "v1-soci"), (false, true), "{source}: {said}");
        }
    }
}

/// HEAD says that a tag is free, and GET shows an image there. It is not replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_is_free_only_if_get_says_so() {
    let source = "github.com/goharbor/harbor/issues/22609 (HEAD of a proxy)";
    let registry = Faulty::start(RegistrySettings::default(), |request, _| {
        request.is("HEAD", "/manifests/v1-soci").then(|| status(404))
    })
    .await;
    registry.add_image("v1-soci", &tar(2, 2, 30_000));
    let there = registry.manifest("v1-soci");
    registry.add_image("v1", &tar(1, 4, 50_000));
    let said = backfill(&registry);
    assert_eq!(registry.manifest("v1-soci"), there, "{source}: {said}");
    assert!(said.contains("not a SOCI-enabled image"), "{source}: {said}");
}

fn stated(digest: &str) -> Response<Body> {
    let answer = Response::builder().header("docker-content-digest", digest);
    answer.header("content-type", OCI_INDEX).body(Body::empty()).unwrap()
}

/// HEAD states a digest that nobody can get: a cache, or that of another form of the manifest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_not_gone_because_of_what_head_states() {
    let source = "github.com/containerd/containerd/issues/2840";
    let registry = Faulty::start(RegistrySettings::default(), |request, _| {
        let stale = Digest::sha256(b"stale").to_string();
        request.is("HEAD", "/manifests/v1").then(|| stated(&stale))
    })
    .await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let said = backfill(&registry);
    assert!(said.ends_with("--- status 0 ---"), "{source}: {said}");
    assert_eq!(kinds(&registry, "v1-soci"), (true, false), "{source}: {said}");
}

/// A registry that knows its manifests by tags alone. What was read by the tag is the image.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_only_its_tag_shows_is_not_gone() {
    let source = "github.com/moby/moby/issues/41749";
    let by_digest = |request: &ReceivedRequest, _: &Faulty| {
        (request.method != "PUT" && request.path.contains("/manifests/sha256:"))
            .then(|| problem(404, "MANIFEST_UNKNOWN", "unknown"))
    };
    let registry = Faulty::start(RegistrySettings::default(), by_digest).await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let said = backfill(&registry);
    assert!(said.ends_with("--- status 0 ---"), "{source}: {said}");
    assert_eq!(kinds(&registry, "v1-soci"), (true, false), "{source}: {said}");
}
