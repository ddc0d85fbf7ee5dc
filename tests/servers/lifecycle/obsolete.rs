//! `ociseek rm --obsolete`.

use serde_json::{Value, json};

use super::{found, image, indexed_by, is_there, lost, registries, subjects, without_api};
use ociseek_testkit::copied::{copied, copied_alone};
use ociseek_testkit::sandbox::{OCI_INDEX, OCI_MANIFEST, Sandbox};
use ociseek_testkit::servers::Server;

/// The reason, status and digest of each finding, sorted.
fn obsolete(sandbox: &Sandbox, options: &[&str], server: &Server) -> Vec<[String; 3]> {
    let repository = format!("{}/a/b", server.host);
    let report = sandbox
        .json(0, &[&["rm", "--obsolete", "--format=json"], options, &[&repository]].concat());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let waste = report["waste"].as_array().unwrap().iter();
    let mut waste: Vec<_> =
        waste.map(|w| ["reason", "status", "digest"].map(|key| text(&w[key]))).collect();
    waste.sort();
    waste
}

fn all(reason: &str, status: &str, digests: &[String]) -> Vec<[String; 3]> {
    let mut all: Vec<_> =
        digests.iter().map(|d| [reason.to_owned(), status.to_owned(), d.clone()]).collect();
    all.sort();
    all
}

/// A copy of the image with indexes under this tool name. Returns its name and the indexes.
fn elsewhere(
    sandbox: &Sandbox,
    server: &Server,
    image: &str,
    maker: &str,
) -> (String, Vec<String>) {
    let place = format!("{}/elsewhere/{}:v1", server.host, maker.replace(' ', "-"));
    copied_alone(sandbox, image, &place);
    let made = indexed_by(sandbox, maker, &place);
    (place, made)
}

/// Adds the same indexes to the image. Indexing it directly would replace other indexes of ours.
fn beside(sandbox: &Sandbox, server: &Server, image: &str, maker: &str) -> Vec<String> {
    let (place, made) = elsewhere(sandbox, server, image, maker);
    copied(sandbox, &place, image);
    made
}

#[test]
fn rm_obsolete_removes_our_older_index_beside_a_newer_one() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let soci = indexed_by(&sandbox, "AWS SOCI CLI v0.2", &image);
        let old = beside(&sandbox, &server, &image, "ociseek v0.0.1");
        let new = beside(&sandbox, &server, &image, "ociseek v0.0.2");
        let three = found(&sandbox, &image);
        assert!(three.iter().all(|indexes| indexes.len() == 3), "{three:?}");

        assert_eq!(
            obsolete(&sandbox, &["--dry-run"], &server),
            all("superseded", "would-remove", &old)
        );
        assert_eq!(found(&sandbox, &image), three);
        assert_eq!(obsolete(&sandbox, &[], &server), all("superseded", "removed", &old));
        for (platform, (soci, new)) in found(&sandbox, &image).iter().zip(soci.iter().zip(&new)) {
            let mut left = [soci.clone(), new.clone()];
            left.sort();
            assert_eq!(*platform, left);
        }
        assert!(old.iter().all(|digest| !is_there(&server, "a/b", digest)));
        let text = sandbox.run(&["rm", "--obsolete", &format!("{}/a/b", server.host)]);
        assert!(text.contains(": 2 image manifests, nothing to remove\n"), "{text}");
    }
}

#[test]
fn rm_obsolete_removes_orphaned_indexes_and_dangling_entries() {
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let soci = indexed_by(&sandbox, "AWS SOCI CLI v0.2", &image);
    let ours = indexed_by(&sandbox, "ociseek v0.0.1", &image);
    let [gone, stays] = <[String; 2]>::try_from(subjects(&sandbox, &image)).unwrap();
    // The image's index and one of its platforms are deleted.
    for digest in [&request_digest(&server, "v1"), &gone] {
        assert_eq!(server.request("DELETE", &format!("/v2/a/b/manifests/{digest}")).0, 202);
    }
    // The other platform's list has an entry for a missing manifest, and one with a wrong type.
    let (_, list) =
        server.request("GET", &format!("/v2/a/b/manifests/{}", stays.replace(':', "-")));
    let mut list: Value = serde_json::from_str(&list).unwrap();
    let lost = lost(&server);
    let entry = |digest: &str| json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": 2, "artifactType": "x/y"});
    list["manifests"].as_array_mut().unwrap().extend([entry(&lost), entry(&stays)]);
    server.put_manifest("a/b", &stays.replace(':', "-"), OCI_INDEX, list.to_string().as_bytes());
    assert_eq!(server.request("DELETE", &format!("/v2/a/b/manifests/{lost}")).0, 202);

    let mut want = all("image-gone", "would-remove", &ours[..1]);
    want.extend(all("not-there", "would-remove", std::slice::from_ref(&lost)));
    assert_eq!(obsolete(&sandbox, &["--dry-run"], &server), want);
    assert!(is_there(&server, "a/b", &ours[0]));
    let mut want = all("image-gone", "removed", &ours[..1]);
    want.extend(all("not-there", "removed", &[lost]));
    assert_eq!(obsolete(&sandbox, &[], &server), want);
    assert_eq!(
        obsolete(&sandbox, &["--any-tool"], &server),
        all("image-gone", "removed", &soci[..1])
    );
    assert!([&ours[0], &soci[0]].iter().all(|digest| !is_there(&server, "a/b", digest)));
    // The image that still exists kept both of its indexes.
    let mut both = [soci[1].clone(), ours[1].clone()];
    both.sort();
    assert_eq!(found(&sandbox, &format!("{}/a/b@{stays}", server.host)), [both]);
    assert_eq!(obsolete(&sandbox, &["--any-tool"], &server), Vec::<[String; 3]>::new());
}

/// The digest that a tag of `a/b` names.
fn request_digest(server: &Server, tag: &str) -> String {
    let (status, body) = server.request("GET", &format!("/v2/a/b/manifests/{tag}"));
    assert_eq!(status, 200);
    ociseek_format::digest::Digest::sha256(body.as_bytes()).to_string()
}

#[test]
fn removing_while_attaching_loses_nothing() {
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let old = indexed_by(&sandbox, "ociseek v0.0.1", &image);
    let new = beside(&sandbox, &server, &image, "ociseek v0.0.2");
    let others = ["x1", "x2"].map(|maker| elsewhere(&sandbox, &server, &image, maker));
    std::thread::scope(|scope| {
        let remover = scope.spawn(|| obsolete(&sandbox, &[], &server));
        for (place, _) in &others {
            let sandbox = &sandbox;
            let image = &image;
            scope.spawn(move || copied(sandbox, place, image));
        }
        assert_eq!(remover.join().unwrap(), all("superseded", "removed", &old));
    });
    for (place, platform) in found(&sandbox, &image).into_iter().enumerate() {
        let mut want =
            vec![new[place].clone(), others[0].1[place].clone(), others[1].1[place].clone()];
        want.sort();
        assert_eq!(platform, want);
    }
}

#[test]
fn obsolete_requires_a_repository() {
    let sandbox = Sandbox::new();
    for place in ["localhost:1/a:v1", "oci:img"] {
        let text = sandbox.run(&["rm", "--obsolete", place]);
        assert!(
            text.contains("--obsolete expects a repository in a registry")
                && text.ends_with("--- status 2 ---"),
            "{text}"
        );
    }
}
