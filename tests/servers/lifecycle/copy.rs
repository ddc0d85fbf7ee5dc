//! `ociseek copy`.

use serde_json::{Value, json};

use super::{
    found, image, indexed_by, is_there, lost, pushed_from, registries, subjects, without_api,
};
use crate::support::faulty::{Faulty, RegistrySettings, problem};
use crate::support::sandbox::{
    Layout, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Sandbox, enabled, gzip, index, small_image, tar,
};
use crate::support::servers::{Server, run, tool};

fn copied(sandbox: &Sandbox, from: &str, to: &str) -> Value {
    sandbox.json(0, &["copy", "--format=json", "--progress=none", from, to])
}

/// The numbers of blobs that existed, were mounted, and were streamed.
fn blobs(report: &Value) -> [u64; 3] {
    ["there", "mounted", "streamed"].map(|how| report["blobs"][how].as_u64().unwrap())
}

/// Adds an index for the image's first platform, and a referrer of that index. Returns both
/// digests.
fn with_referrers(sandbox: &Sandbox, server: &Server, image: &str) -> [String; 2] {
    let ours = indexed_by(sandbox, "ociseek v0.0.1", image).remove(0);
    let (_, bytes) = server.request("GET", &format!("/v2/a/b/manifests/{ours}"));
    let subject = json!({"mediaType": OCI_MANIFEST, "digest": ours, "size": bytes.len()});
    // The config of an index is an empty object, so it exists.
    let index: Value = serde_json::from_str(&bytes).unwrap();
    let mut config = index["config"].clone();
    config["mediaType"] = "application/vnd.example.signature".into();
    let signature = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [],
        "subject": subject, "annotations": {"who": "me"}});
    let bytes = signature.to_string();
    let digest = ociseek::digest::Digest::sha256(signature.to_string().as_bytes());
    server.put_manifest("a/b", &digest.to_string(), OCI_MANIFEST, bytes.as_bytes());
    if server.request("GET", &format!("/v2/a/b/referrers/{ours}")).0 == 404 {
        let entry = json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": bytes.len(),
            "artifactType": "application/vnd.example.signature", "annotations": {"who": "me"}});
        let list =
            json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]}).to_string();
        server.put_manifest("a/b", &ours.replace(':', "-"), OCI_INDEX, list.as_bytes());
    }
    [ours, digest.to_string()]
}

/// The referrers of `subject` and their referrers, according to oras.
fn seen_by_oras(subject: &str) -> Option<Vec<String>> {
    let tree = run(
        &tool("oras")?,
        &["discover", "--plain-http", "--format", "json", "--depth", "3", subject],
    );
    fn digests(tree: &Value, found: &mut Vec<String>) {
        for referrer in tree["referrers"].as_array().into_iter().flatten() {
            found.push(referrer["digest"].as_str().unwrap().to_owned());
            digests(referrer, found);
        }
    }
    let mut found = Vec::new();
    digests(&serde_json::from_str(&tree).unwrap(), &mut found);
    Some(found)
}

#[test]
fn images_are_copied_with_all_referrers() {
    let all: Vec<Server> = registries().collect();
    let [olareg, distribution] = &all[..] else { return };
    for (from, to) in [(olareg, distribution), (distribution, olareg)] {
        let Some((sandbox, image)) = image(from) else { return };
        let referrers = with_referrers(&sandbox, from, &image);
        let subject = subjects(&sandbox, &image).remove(0);
        let indexes = found(&sandbox, &image);

        // To another registry: everything is streamed.
        let there = format!("{}/copy/one:v1", to.host);
        let report = copied(&sandbox, &image, &there);
        let [at_hand, mounted, streamed] = blobs(&report);
        assert_eq!((at_hand, mounted, report["manifests"].as_u64()), (0, 0, Some(3)), "{report}");
        assert!(streamed >= 5 && report["bytes_streamed"].as_u64().unwrap() > 100_000, "{report}");
        assert_eq!(
            report["referrers"].as_array().unwrap().len(),
            3,
            "two indexes and a signature of one"
        );
        assert_eq!(
            (found(&sandbox, &there), subjects(&sandbox, &there)),
            (indexes.clone(), subjects(&sandbox, &image))
        );
        let Some(seen) = seen_by_oras(&format!("{}/copy/one@{subject}", to.host)) else { return };
        assert_eq!(seen, referrers);

        // Again: there is nothing to do, and nothing changes.
        let again = copied(&sandbox, &image, &there);
        assert_eq!((blobs(&again), &again["digest"]), ([streamed, 0, 0], &report["digest"]));

        // Within the registry: everything is mounted.
        let near = format!("{}/copy/two:v2", to.host);
        assert_eq!(blobs(&copied(&sandbox, &there, &near)), [0, streamed, 0]);
        assert_eq!(found(&sandbox, &near), indexes);

        // To a layout and back to the original repository.
        copied(&sandbox, &near, "oci:out");
        assert_eq!(found(&sandbox, "oci:out:v2"), indexes);
        let back = format!("{}/copy/back:v3", from.host);
        assert_eq!(copied(&sandbox, "oci:out:v2", &back)["digest"], report["digest"]);
        assert_eq!(seen_by_oras(&format!("{}/copy/back@{subject}", from.host)).unwrap(), referrers);

        let alone = format!("{}/copy/alone:v1", to.host);
        let text = sandbox.run(&["copy", "--no-referrers", "--progress=none", &image, &alone]);
        assert!(
            text.contains("3 manifests, 0 referrers; ") && text.ends_with("--- status 0 ---"),
            "{text}"
        );
        assert_eq!(found(&sandbox, &alone), [vec![], Vec::<String>::new()]);
    }
}

/// regctl and oras copy the same content.
#[test]
fn copies_match_those_of_regctl_and_oras() {
    let (Some(regctl), Some(oras)) = (tool("regctl"), tool("oras")) else { return };
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    indexed_by(&sandbox, "ociseek v0.0.1", &image);
    let at = |tag: &str| format!("{}/copy/{tag}:v1", server.host);
    let registry = format!("reg={},tls=disabled", server.host);
    run(&regctl, &["--host", &registry, "image", "copy", "--referrers", &image, &at("regctl")]);
    run(&oras, &["cp", "-r", "--from-plain-http", "--to-plain-http", &image, &at("oras")]);
    copied(&sandbox, &image, &at("ours"));
    let ours = found(&sandbox, &at("ours"));
    assert!(ours.iter().all(|indexes| indexes.len() == 1), "{ours:?}");
    assert_eq!(found(&sandbox, &at("regctl")), ours);
    assert_eq!(found(&sandbox, &at("oras")), ours);
}

#[test]
fn soci_enabled_images_are_copied() {
    let Some(server) = without_api() else { return };
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.json(0, &index(&["--format=json", "oci:img"]));
    enabled(&sandbox);
    let Some(image) = pushed_from(&sandbox, "enabled", &server, "a/b:v1") else { return };
    let to = format!("{}/c:v1", server.host);
    assert_eq!(copied(&sandbox, &image, &to)["manifests"], 3);
    let versions = |image: &str| {
        sandbox.json(0, &["inspect", "--format=json", image])["manifests"][0]["indexes"].clone()
    };
    assert_eq!(versions(&to), versions(&image));
    assert_eq!(versions(&to)[0]["version"], 2);
}

#[test]
fn incomplete_copies_get_no_tag() {
    let Some(server) = without_api() else { return };
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(crate::support::sandbox::GZIP, &gzip(&tar(1, 1, 1000)));
    let image = layout.image("amd64", std::slice::from_ref(&layer));
    layout.tag(image, "v1");
    let file = sandbox
        .path("img")
        .join("blobs/sha256")
        .join(&layer["digest"].as_str().unwrap()["sha256:".len()..]);
    let whole = std::fs::read(&file).unwrap();
    let to = format!("{}/a:v1", server.host);
    // With the right size but other content; then missing.
    std::fs::write(&file, vec![0; whole.len()]).unwrap();
    let damaged = sandbox.run(&["copy", "--progress=none", "oci:img:v1", &to]);
    std::fs::remove_file(&file).unwrap();
    let missing = sandbox.run(&["copy", "--progress=none", "oci:img:v1", &to]);
    for text in [damaged, missing] {
        assert!(
            text.contains("error: cannot copy blob") && text.ends_with("--- status 1 ---"),
            "{text}"
        );
    }
    assert!(!is_there(&server, "a", "v1"));
    std::fs::write(&file, whole).unwrap();
    copied(&sandbox, "oci:img:v1", &to);
    assert!(is_there(&server, "a", "v1"));
}

/// Anyone who may push can list any manifests as referrers. Only actual referrers of the image are
/// copied.
#[test]
fn hostile_lists_of_referrers_are_refused() {
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let [mine, other] = <[String; 2]>::try_from(subjects(&sandbox, &image)).unwrap();
    let missing = lost(&server);
    let entry = |digest: &str| {
        json!({
            "mediaType": OCI_MANIFEST, "digest": digest, "size": 2, "artifactType": OCI_CONFIG,
        })
    };
    let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry(&other), entry(&missing)]});
    server.put_manifest("a/b", &mine.replace(':', "-"), OCI_INDEX, list.to_string().as_bytes());
    assert_eq!(server.request("DELETE", &format!("/v2/a/b/manifests/{missing}")).0, 202);
    let by_digest = format!("{}/a/b@{mine}", server.host);
    let text =
        sandbox.run(&["copy", "--progress=none", &by_digest, &format!("{}/c:v1", server.host)]);
    assert!(
        text.contains("1 manifest, 0 referrers") && text.ends_with("--- status 0 ---"),
        "{text}"
    );
    for digest in [&other, &missing] {
        assert!(
            text.contains(&format!(
                "warning: {digest} is listed as a referrer but was not copied: "
            )),
            "{text}"
        );
    }
    assert!(!is_there(&server, "c", &other));

    // The destination must have a tag, and the message says which one the source has.
    let text = sandbox.run(&["copy", &image, &format!("{}/c", server.host)]);
    assert!(text.contains(&format!("/c has no tag: write {}/c:", server.host)), "{text}");
    let text = sandbox.run(&["copy", &by_digest, &format!("{}/c", server.host)]);
    assert!(text.contains("/c has no tag: write ") && text.ends_with("--- status 2 ---"), "{text}");
    let text = sandbox.run(&["copy", &image, "oci-archive:out.tar"]);
    assert!(
        text.contains("archives are read-only") && text.ends_with("--- status 2 ---"),
        "{text}"
    );
}

/// Another manifest that refers to `image`, of the type `kind` with `layers`. Its config is `{}`.
fn attached(faulty: &Faulty, image: &[u8], kind: &str, layers: &Value) -> String {
    let digest = ociseek::digest::Digest::sha256;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": kind, "layers": layers,
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest(b"{}"), "size": 2},
        "subject": {"mediaType": OCI_MANIFEST, "digest": digest(image), "size": image.len()},
    });
    faulty.add_manifest("referrer", OCI_MANIFEST, manifest.to_string()).to_string()
}

fn referrers_of(report: &Value) -> Vec<&str> {
    report["referrers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["digest"].as_str().unwrap())
        .collect()
}

/// A registry need not check what a manifest says of its blobs. Anyone who may push a referrer
/// decides that.
#[tokio::test(flavor = "multi_thread")]
async fn referrers_with_other_blobs_than_they_say_are_left_out() {
    let faulty =
        Faulty::honest(RegistrySettings { referrers: true, ..RegistrySettings::default() }).await;
    let layer = faulty.add_image("v1", &tar(1, 2, 40_000));
    let image = faulty.manifest("v1").unwrap();
    let size = faulty.blob(&layer).unwrap().len();
    let config = faulty.add_blob("{}");
    let missing = ociseek::digest::Digest::sha256(b"not there");
    let attach = |kind: &str, layers: Value| attached(&faulty, &image, kind, &layers);
    let good =
        attach("application/good", json!([{"mediaType": "x/y", "digest": layer, "size": size}]));
    attach("application/x", json!([{"mediaType": "x/y", "digest": layer, "size": size + 1}]));
    attach("application/x", json!([{"mediaType": "x/y", "digest": config, "size": 1}]));
    attach("application/x", json!([{"mediaType": "x/y", "digest": missing, "size": 1}]));
    let sandbox = Sandbox::new();
    let report = tokio::task::block_in_place(|| {
        copied(&sandbox, &format!("{}/a/b:v1", faulty.host()), "oci:out:v1")
    });
    assert_eq!(referrers_of(&report), [good.as_str()]);
}

/// Anyone who may push a referrer decides whether other registries accept it: some limit sizes and
/// types. The image and all else are copied. An index or a signature that is refused is an error.
#[tokio::test(flavor = "multi_thread")]
async fn referrers_that_the_destination_refuses_are_left_out() {
    let with_api = RegistrySettings { referrers: true, ..RegistrySettings::default() };
    let from = Faulty::honest(with_api.clone()).await;
    from.add_image("v1", &tar(1, 2, 40_000));
    let image = from.manifest("v1").unwrap();
    from.add_blob("{}");
    let blob = from.add_blob("too large");
    let attach = |kind: &str, layers: Value| attached(&from, &image, kind, &layers);
    let good = attach("application/good", json!([]));
    let refused = attach("application/refused", json!([]));
    let large =
        attach("application/large", json!([{"mediaType": "x/y", "digest": blob, "size": 9}]));
    let to = Faulty::start(with_api.clone(), move |seen, _| {
        let body = String::from_utf8_lossy(&seen.body);
        let is_manifest = seen.is("PUT", "/manifests/");
        if is_manifest && (body.contains("application/refused") || body.contains("index.v1")) {
            return Some(problem(415, "MANIFEST_INVALID", "no such type here"));
        }
        (!is_manifest && body.contains("too large"))
            .then(|| problem(413, "SIZE_INVALID", "too large"))
    })
    .await;
    let sandbox = Sandbox::new();
    let source = format!("{}/a/b:v1", from.host());
    let copy = format!("{}/a/b:v1", to.host());
    let text =
        tokio::task::block_in_place(|| sandbox.run(&["copy", "--progress=none", &source, &copy]));
    assert!(
        text.contains("1 manifest, 1 referrer;") && text.ends_with("--- status 0 ---"),
        "{text}"
    );
    for (digest, why) in [(&refused, "no such type here"), (&large, "too large")] {
        let warning = format!("warning: {digest} is listed as a referrer but was not copied: ");
        assert!(text.contains(&warning) && text.contains(why), "{text}");
    }
    assert!(to.manifest("v1").is_some() && to.manifest(&good).is_some());

    attach("application/vnd.amazon.soci.index.v1+json", json!([]));
    let text =
        tokio::task::block_in_place(|| sandbox.run(&["copy", "--progress=none", &source, &copy]));
    assert!(
        text.contains("the destination rejected manifest ") && text.ends_with("--- status 1 ---"),
        "{text}"
    );
}
