//! What registries answer to those who read, in public reports of 2025 and 2026. Each row has its
//! source.

use axum::body::Body;
use axum::http::Response;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use serde_json::{Value, json};

use super::reports::{config, repository, tag};
use ociseek_testkit::faulty::{
    Faulty, ReceivedRequest, RegistrySettings, index_answer, json_answer, problem, redirect,
    web_page,
};
use ociseek_testkit::image::image_index;
use ociseek_testkit::sandbox::{OCI_INDEX, OCI_MANIFEST, Sandbox, tar};

type Lie = fn(&ReceivedRequest, &Faulty) -> Option<Response<Body>>;

/// What a registry sends where a part of a blob was asked for, and whether it can be used. Other
/// bytes than those of the blob never come out.
const PARTS: &[(&str, Lie, bool)] = &[
    ("github.com/artifact-keeper/artifact-keeper/issues/3586", whole, true),
    // Like the first, but it says that it is a part.
    ("github.com/containerd/containerd/pull/12291", unnamed_part, false),
    // A part under the status of the whole: its Content-Range tells.
    ("github.com/dragonflyoss/client/pull/1874", part_as_whole, true),
];

fn whole(request: &ReceivedRequest, registry: &Faulty) -> Option<Response<Body>> {
    let mut plain = request.clone();
    plain.headers.remove("range");
    request.is("GET", "/blobs/").then(|| registry.truth_now(&plain))
}

fn unnamed_part(request: &ReceivedRequest, registry: &Faulty) -> Option<Response<Body>> {
    let mut answer = whole(request, registry)?;
    *answer.status_mut() = 206.try_into().unwrap();
    Some(answer)
}

fn part_as_whole(request: &ReceivedRequest, registry: &Faulty) -> Option<Response<Body>> {
    let mut answer = request.is("GET", "/blobs/").then(|| registry.truth_now(request))?;
    *answer.status_mut() = 200.try_into().unwrap();
    Some(answer)
}

#[tokio::test]
async fn parts_of_blobs_are_right_or_refused() {
    for (source, lie, is_read) in PARTS {
        let registry = Faulty::start(RegistrySettings::default(), lie).await;
        let content = registry.blob(&registry.add_image("v1", &tar(1, 2, 30_000))).unwrap();
        let blob = Descriptor::of("x/y", &content);
        let part = repository(&registry, config()).blob_part(&blob, 1000..2000, false).await;
        let mut bytes = Vec::new();
        let read: Result<(), _> = async {
            let mut part = part?;
            while let Some(piece) = part.next().await? {
                bytes.extend(piece);
            }
            Ok::<(), ociseek_store::registry::RegistryError>(())
        }
        .await;
        assert_eq!(read.is_ok(), *is_read, "{source}: {read:?}");
        assert!(content[1000..2000].starts_with(&bytes), "{source}");
        assert_eq!(bytes.len() == 1000, *is_read, "{source}: {}", bytes.len());
    }
}

fn linked(manifests: &Value, link: &str) -> Response<Body> {
    let mut answer = index_answer(manifests);
    answer.headers_mut().insert("link", format!("<{link}>; rel=\"next\"").parse().unwrap());
    answer
}

/// The pages of a list of referrers: the links, and how many are found. None for an error: a list
/// that is cut short would hide what is there.
const REFERRERS: &[(&str, &str, Lie, Option<usize>)] = &[
    ("github.com/google/go-containerregistry/pull/2446", "?page=2", ok_page, Some(2)),
    ("github.com/google/go-containerregistry/pull/2446", "PATH?page=2", ok_page, Some(2)),
    ("github.com/google/go-containerregistry/pull/2446", "?page=2", lost_page, None),
    ("github.com/google/go-containerregistry/pull/2446", "?page=2", web_page_as_page, None),
    ("github.com/google/go-containerregistry/pull/2446", "PATH", ok_page, None),
    (
        "github.com/github/artifact-attestations-opa-provider/issues/196",
        "http://registry.internal:5000PATH?page=2",
        ok_page,
        Some(2),
    ),
    // The path of the registry behind a proxy.
    ("github.com/goharbor/harbor/pull/23237", "/v2/b/referrers/DIGEST?page=2", ok_page, Some(2)),
];

fn ok_page(_: &ReceivedRequest, _: &Faulty) -> Option<Response<Body>> {
    Some(index_answer(&json!([referrer(2)])))
}

fn lost_page(_: &ReceivedRequest, _: &Faulty) -> Option<Response<Body>> {
    Some(problem(403, "DENIED", "no"))
}

fn web_page_as_page(_: &ReceivedRequest, _: &Faulty) -> Option<Response<Body>> {
    Some(web_page())
}

fn referrer(number: u8) -> Value {
    let digest = Digest::sha256(&[number]);
    json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": 1, "artifactType": "x/y"})
}

#[tokio::test]
async fn referrers_come_in_pages() {
    for (source, link, second, count) in REFERRERS {
        let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
            if !request.path.starts_with("/v2/a/b/referrers/") {
                return None;
            }
            if request.path.contains("page=2") {
                return second(request, registry);
            }
            let path = request.path.split('?').next().unwrap();
            let digest = path.rsplit('/').next().unwrap();
            let link = link.replace("PATH", path).replace("DIGEST", digest);
            Some(linked(&json!([referrer(1)]), &link))
        })
        .await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let subject = Digest::sha256(&registry.manifest("v1").unwrap());
        let listed = repository(&registry, config()).referrers(&subject, None).await;
        let found = listed.as_ref().ok().map(|listed| listed.descriptors.len());
        assert_eq!(found, *count, "{source}, {link}: {:?}", listed.err());
    }
}

/// GHCR answers by a redirect to a page of its web site, which is not there.
#[tokio::test]
async fn a_redirect_to_a_missing_page_is_no_list_of_referrers() {
    let source = "github.com/project-zot/zot/issues/4060";
    let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
        if request.path.starts_with("/-/") {
            let answer = Response::builder().status(404).header("content-type", "text/plain");
            return Some(answer.body(Body::from("Not Found")).unwrap());
        }
        let page = format!("http://{}/-/v2/packages/container/package/x", registry.host());
        request.is("GET", "/referrers/").then(|| redirect(303, &page))
    })
    .await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let subject = Digest::sha256(&registry.manifest("v1").unwrap());
    let list = image_index(&[referrer(1)]);
    let name = subject.to_string().replace(':', "-");
    registry.add_manifest(&name, OCI_INDEX, list.to_string());
    let listed = repository(&registry, config()).referrers(&subject, None).await;
    let listed = listed.unwrap_or_else(|error| panic!("{source}: {error:?}"));
    assert_eq!((listed.descriptors.len(), listed.api), (1, false), "{source}");
}

/// What a client that accepts too little gets.
#[tokio::test]
async fn manifests_are_asked_for_in_every_format() {
    for (source, wanted, otherwise) in [
        (
            "github.com/NotGlop/docker-drag/issues/41 (container-registry.oracle.com)",
            OCI_INDEX,
            (|| {
                problem(
                    404,
                    "MANIFEST_UNKNOWN",
                    "OCI index found, but accept header does not support OCI indexes",
                )
            }) as fn() -> Response<Body>,
        ),
        ("github.com/eclipse-che/che-plugin-registry/pull/2082 (Quay)", OCI_MANIFEST, || {
            let kind = "application/vnd.docker.distribution.manifest.v1+prettyjws";
            let answer = Response::builder().header("content-type", kind);
            answer.body(Body::from(r#"{"schemaVersion":1,"fsLayers":[]}"#)).unwrap()
        }),
    ] {
        let registry = Faulty::start(RegistrySettings::default(), move |request, _| {
            let accepted = request.headers.get_all("accept").iter();
            let accepted: Vec<_> = accepted.filter_map(|value| value.to_str().ok()).collect();
            (request.is("GET", "/manifests/") && !accepted.join(",").contains(wanted))
                .then(otherwise)
        })
        .await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let repository = repository(&registry, config());
        let found = repository.manifest(&tag()).await;
        let found = found.unwrap_or_else(|error| panic!("{source}: {error:?}"));
        let target = ociseek_store::blob::Target::Digest(Digest::sha256(&found.bytes));
        assert!(repository.manifest(&target).await.is_ok(), "{source}");
    }
}

/// Pages of tags: the links after the first page (`PATH` stands for the list's), and all tags, or
/// None for an error.
const TAGS: &[(&str, &[&str], Option<usize>)] = &[
    ("github.com/git-pkgs/proxy/pull/280", &["PATH?last=a", "PATH?last=b"], Some(3)),
    ("github.com/git-pkgs/proxy/pull/280", &["list?last=a", "?last=b"], Some(3)),
    (
        "github.com/CybercentreCanada/assemblyline-core/pull/1147 (ACR)",
        &["https://name.azurecr.example/v2/a/b/tags/list?n=1000&last=a"],
        Some(2),
    ),
    ("github.com/gadievron/raptor/pull/495", &["PATH?last=a", "PATH?last=a"], None),
    (
        "github.com/sonatype/nexus-public/issues/1011",
        &["/repository/docker/v2/a/b/tags/list?last=a"],
        Some(2),
    ),
    (
        "github.com/renovatebot/renovate/issues/15080 (a virtual repository of Artifactory)",
        &["/v2/b/tags/list?n=1&last=1"],
        Some(2),
    ),
];

#[tokio::test]
async fn tags_come_in_pages() {
    for (source, links, count) in TAGS {
        let registry = Faulty::start(RegistrySettings::default(), move |request, registry| {
            if !request.path.starts_with("/v2/a/b/tags/list") {
                return None;
            }
            let page = registry.saw("GET", "/tags/list").len();
            let tags = json!({"name": "a/b", "tags": [format!("t{page}")]});
            let mut answer = json_answer(200, &tags);
            if let Some(link) = links.get(page - 1) {
                let link = link.replace("PATH", "/v2/a/b/tags/list");
                let link = format!("<{link}>; rel=\"next\"");
                answer.headers_mut().insert("link", link.parse().unwrap());
            }
            Some(answer)
        })
        .await;
        let mut names = repository(&registry, config()).tags(None).await.unwrap();
        let mut tags = Vec::new();
        let end = loop {
            match names.next_page().await {
                Ok(Some(page)) => tags.extend(page.names),
                Ok(None) => break Some(tags.len()),
                Err(_) => break None,
            }
        };
        assert_eq!(end, *count, "{source}, {links:?}: {tags:?}");
    }
}

/// A page may repeat what the one before it had, if a tag is written meanwhile.
#[tokio::test]
async fn a_tag_that_is_listed_twice_is_one() {
    let registry = Faulty::start(RegistrySettings::default(), |request, _| {
        let tags = json!({"name": "a/b", "tags": ["v1", "v2", "v1"]});
        request.is("GET", "/tags/list").then(|| json_answer(200, &tags))
    })
    .await;
    let tags = ociseek_ops::list::tags(&repository(&registry, config())).await.unwrap();
    assert_eq!(tags.iter().map(|tag| &*tag.name).collect::<Vec<_>>(), ["v1", "v2"]);
}

/// A proxy of Nexus loses the attestations of an image. They are not needed to index it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attestations_that_cannot_be_read_do_not_stop_an_index() {
    let source = "github.com/sonatype/nexus-public/issues/1070";
    let registry = Faulty::start(RegistrySettings::default(), |request, registry| {
        let lost = registry.manifest("lost").map(|lost| Digest::sha256(&lost).to_string())?;
        (request.method != "PUT" && request.path.ends_with(&lost))
            .then(|| problem(404, "MANIFEST_UNKNOWN", "unknown"))
    })
    .await;
    registry.add_image("amd64", &tar(1, 4, 50_000));
    let image = registry.manifest("amd64").unwrap();
    let of = |bytes: &[u8]| json!({"mediaType": OCI_MANIFEST, "digest": Digest::sha256(bytes), "size": bytes.len()});
    let mut first = of(&image);
    first["platform"] = json!({"os": "linux", "architecture": "amd64"});
    let attestation =
        json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [], "config": of(b"{}")});
    let attestation = attestation.to_string();
    registry.add_manifest("lost", OCI_MANIFEST, attestation.clone());
    let mut second = of(attestation.as_bytes());
    second["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    second["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest",
        "vnd.docker.reference.digest": Digest::sha256(&image)});
    let index = image_index(&[first, second]);
    registry.add_manifest("v1", OCI_INDEX, index.to_string());
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:v1", registry.host());
    for args in [&["index", "--min-layer-size=0", &image][..], &["ls", &image]] {
        let text = tokio::task::block_in_place(|| sandbox.run(args));
        assert!(text.ends_with("--- status 0 ---"), "{source}: {text}");
    }
}
