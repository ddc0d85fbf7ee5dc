//! `ociseek rm`.

use serde_json::{Value, json};

use super::{found, image, indexed_by, is_there, lost, registries, subjects, without_api};
use ociseek_testkit::image::image_index;
use ociseek_testkit::sandbox::{OCI_INDEX, OCI_MANIFEST, Sandbox, index};
use ociseek_testkit::servers::{Server, run, tool};

/// The results for each index, by platform, of a run that ends with `status`.
fn removed(sandbox: &Sandbox, status: i32, args: &[&str]) -> Vec<Vec<(String, String)>> {
    let report = sandbox.json(status, &[&["rm", "--format=json"], args].concat());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let indexes = |m: &Value| {
        let indexes = m["indexes"].as_array().unwrap().iter();
        let mut indexes: Vec<_> =
            indexes.map(|i| (text(&i["status"]), text(&i["digest"]))).collect();
        indexes.sort();
        indexes
    };
    report["manifests"].as_array().unwrap().iter().map(indexes).collect()
}

fn one(status: &str, digest: &str) -> (String, String) {
    (status.to_owned(), digest.to_owned())
}

const SOCI: &str = "AWS SOCI CLI v0.2";

#[test]
fn rm_removes_our_indexes_and_those_of_other_tools_only_on_request() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let theirs = indexed_by(&sandbox, SOCI, &image);
        let ours = indexed_by(&sandbox, "ociseek v0.0.1", &image);
        let both = found(&sandbox, &image);
        assert!(both.iter().all(|indexes| indexes.len() == 2), "{both:?}");

        let dry = removed(&sandbox, 0, &["--dry-run", &image]);
        for (platform, (ours, theirs)) in dry.iter().zip(ours.iter().zip(&theirs)) {
            assert_eq!(*platform, [one("kept", theirs), one("would-remove", ours)]);
        }
        assert_eq!(found(&sandbox, &image), both);

        // One platform, then the other.
        assert_eq!(
            removed(&sandbox, 0, &["--platform=linux/arm64", &image]),
            [[one("kept", &theirs[1]), one("removed", &ours[1])]]
        );
        assert_eq!(found(&sandbox, &image), [both[0].clone(), vec![theirs[1].clone()]]);
        let text = sandbox.run(&["rm", &image]);
        let first = &ours[0];
        let name = format!("{image} linux/amd64");
        assert!(
            text.contains(&format!("{name}: removed {first} by \"ociseek v0.0.1\"\n")),
            "{text}"
        );
        assert!(
            text.contains(&format!(
                "{name}: kept {} by \"{SOCI}\": --any-tool removes it too\n",
                theirs[0]
            )),
            "{text}"
        );
        assert!(text.ends_with("--- stderr ---\n--- status 0 ---"), "{text}");
        assert!(ours.iter().all(|digest| !is_there(&server, "a/b", digest)));

        // A named index is removed, whichever tool made it.
        let named = format!("{}/a/b@{}", server.host, theirs[0]);
        assert_eq!(removed(&sandbox, 0, &[&named]), [[one("removed", &theirs[0])]]);
        assert_eq!(
            removed(&sandbox, 0, &["--any-tool", &image]),
            [vec![], vec![one("removed", &theirs[1])]]
        );
        assert_eq!(found(&sandbox, &image), [vec![], Vec::<String>::new()]);
        let none = sandbox.run(&["rm", &image]);
        assert!(
            none.contains("linux/arm64: no index (SOCI version 1 or fine) to remove\n"),
            "{none}"
        );
        // The image is unchanged, and can be indexed again.
        let again = sandbox.json(0, &index(&["--format=json", &image]));
        assert_eq!(again["images"][0]["manifests"][0]["status"], "attached");
    }
}

/// Anyone who may push can list any manifest as an index of the image.
#[test]
fn rm_leaves_fake_indexes() {
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let [mine, other] = <[String; 2]>::try_from(subjects(&sandbox, &image)).unwrap();
    let of_other =
        &indexed_by(&sandbox, "ociseek v0.0.1", &format!("{}/a/b@{other}", server.host))[0];
    let entry = |digest: &str| {
        let (_, body) = server.request("GET", &format!("/v2/a/b/manifests/{digest}"));
        json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": body.len(),
            "artifactType": "application/vnd.amazon.soci.index.v1+json"})
    };
    let missing = lost(&server);
    let list = [entry(&other), entry(of_other), entry(&missing)];
    let list = image_index(&list).to_string();
    server.put_manifest("a/b", &mine.replace(':', "-"), OCI_INDEX, list.as_bytes());
    assert_eq!(server.request("DELETE", &format!("/v2/a/b/manifests/{missing}")).0, 202);

    let mut want = vec![
        one("not-an-index", &other),
        one("not-an-index", of_other),
        one("not-an-index", &missing),
    ];
    want.sort();
    let named = format!("{}/a/b@{mine}", server.host);
    assert_eq!(removed(&sandbox, 0, &["--any-tool", &named]), [want]);
    assert!(is_there(&server, "a/b", &other) && is_there(&server, "a/b", of_other));
    // An image is not an index either.
    let text = sandbox.run(&["rm", "--any-tool", &format!("{}/a/b@{other}", server.host)]);
    assert!(
        text.contains(&format!("removed {of_other}")) && is_there(&server, "a/b", &other),
        "{text}"
    );
}

#[test]
fn a_registry_that_refuses_deletion_is_reported() {
    let Some(server) = Server::distribution_that_keeps() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let ours = indexed_by(&sandbox, "ociseek v0.0.1", &image);
    let text = sandbox.run(&["rm", &image]);
    assert!(text.contains(&format!("unlisted, but could not delete {}", ours[0])), "{text}");
    assert!(
        text.contains("error: 2 of 2 indexes could not be removed: ") && text.contains(": 405 "),
        "{text}"
    );
    assert!(
        text.contains(&format!("hint: {} does not allow deleting manifests", server.host)),
        "{text}"
    );
    assert!(text.ends_with("--- status 1 ---"), "{text}");
    assert_eq!(found(&sandbox, &image), [vec![], Vec::<String>::new()]);
    assert!(is_there(&server, "a/b", &ours[0]));
}

/// The image was deleted, but not its referrers.
#[test]
fn rm_removes_indexes_of_deleted_images() {
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let ours = indexed_by(&sandbox, "ociseek v0.0.1", &image);
    let subject = &subjects(&sandbox, &image)[0];
    assert_eq!(server.request("DELETE", &format!("/v2/a/b/manifests/{subject}")).0, 202);
    let gone = format!("{}/a/b@{subject}", server.host);
    assert_eq!(removed(&sandbox, 0, &[&gone]), [[one("removed", &ours[0])]]);
    assert!(!is_there(&server, "a/b", &ours[0]));
    let text = sandbox.run(&["rm", &gone]);
    assert!(text.contains("cannot find the image") && text.ends_with("--- status 1 ---"), "{text}");
}

/// As many removers and indexers as indexes, all on one list, which only their own care protects.
#[test]
fn removing_while_indexing_loses_nothing() {
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let image = format!("{}/a/b@{}", server.host, subjects(&sandbox, &image)[0]);
    let old: Vec<String> =
        ["x1", "x2"].iter().map(|maker| indexed_by(&sandbox, maker, &image).remove(0)).collect();
    let new: Vec<String> = std::thread::scope(|scope| {
        let removers: Vec<_> = (old.iter())
            .map(|digest| {
                let named = format!("{}/a/b@{digest}", server.host);
                let sandbox = &sandbox;
                scope.spawn(move || removed(sandbox, 0, &[&named]))
            })
            .collect();
        let indexers: Vec<_> = ["x3", "x4"]
            .map(|maker| {
                let sandbox = &sandbox;
                let image = &image;
                scope.spawn(move || indexed_by(sandbox, maker, image).remove(0))
            })
            .into_iter()
            .collect();
        for (remover, digest) in removers.into_iter().zip(&old) {
            assert_eq!(remover.join().unwrap(), [[one("removed", digest)]]);
        }
        let mut new: Vec<String> =
            indexers.into_iter().map(|indexer| indexer.join().unwrap()).collect();
        new.sort();
        new
    });
    assert_eq!(found(&sandbox, &image), [new]);
}

#[test]
fn rm_removes_indexes_from_layouts() {
    let sandbox = Sandbox::with_small_image();
    let theirs = indexed_by(&sandbox, SOCI, "oci:img");
    let ours = indexed_by(&sandbox, "ociseek v0.0.1", "oci:img");
    assert_eq!(
        removed(&sandbox, 0, &["oci:img"]),
        [[one("kept", &theirs[0]), one("removed", &ours[0])]]
    );
    assert_eq!(found(&sandbox, "oci:img:v1"), std::slice::from_ref(&theirs));
    // The image is alone again.
    assert_eq!(removed(&sandbox, 0, &["--any-tool", "oci:img"]), [[one("removed", &theirs[0])]]);
    assert_eq!(found(&sandbox, "oci:img"), [Vec::<String>::new()]);

    let mut archive = tar::Builder::new(std::fs::File::create(sandbox.path("img.tar")).unwrap());
    archive.append_dir_all(".", sandbox.path("img")).unwrap();
    archive.finish().unwrap();
    let text = sandbox.run(&["rm", "oci-archive:img.tar"]);
    assert!(
        text.contains("archives are read-only") && text.ends_with("--- status 2 ---"),
        "{text}"
    );

    // The list that regctl keeps in a layout.
    let Some(regctl) = tool("regctl") else { return };
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let ours = indexed_by(&sandbox, "ociseek v0.0.1", &image);
    let registry = format!("reg={},tls=disabled", server.host);
    let to = sandbox.path("copy");
    let to = format!("ocidir://{}:v1", to.display());
    run(&regctl, &["--host", &registry, "image", "copy", "--referrers", &image, &to]);
    assert_eq!(found(&sandbox, "oci:copy:v1"), [[ours[0].clone()], [ours[1].clone()]]);
    assert_eq!(
        removed(&sandbox, 0, &["oci:copy:v1"]),
        [[one("removed", &ours[0])], [one("removed", &ours[1])]]
    );
    assert_eq!(found(&sandbox, "oci:copy:v1"), [vec![], Vec::<String>::new()]);
}
