//! All commands that change the indexes of an image, at the same time on one image: `index`, `index
//! --v2`, `rm`, `prune` and `convert`. Whatever their order, a further run leaves everything
//! consistent, and nothing of other images is lost.

use serde_json::Value;

use super::{found, image, indexed_by, is_there, registries, subjects};
use crate::support::sandbox::Sandbox;
use crate::support::servers::Server;

/// How many times all of them run.
const ROUNDS: usize = 3;
const SMALL: [&str; 4] = ["--span-size=16KiB", "--min-layer-size=1KiB", "--no-cache", "--jobs=2"];

/// The manifests in the fallback tags of an image's platforms. Empty if the registry has the API.
fn listed_in_tags(server: &Server, subjects: &[String]) -> Vec<Vec<String>> {
    let list = |subject: &String| {
        let (status, body) = server.request("GET", &format!("/v2/a/b/manifests/{}", subject.replace(':', "-")));
        let list: Value = serde_json::from_str(&body).unwrap_or_default();
        let entries = list["manifests"].as_array().filter(|_| status == 200);
        let mut digests: Vec<String> =
            entries.into_iter().flatten().map(|entry| entry["digest"].as_str().unwrap().to_owned()).collect();
        digests.sort();
        digests
    };
    subjects.iter().map(list).collect()
}

fn digest_of(server: &Server, tag: &str) -> Option<String> {
    let (status, body) = server.request("GET", &format!("/v2/a/b/manifests/{tag}"));
    (status == 200).then(|| ociseek::digest::Digest::sha256(body.as_bytes()).to_string())
}

/// Checks that all manifests and layers of the image exist, and that `indexes` indexes verify.
fn assert_whole(sandbox: &Sandbox, image: &str, indexes: usize) {
    let said = sandbox.run(&["verify", image]);
    assert_eq!(said.matches(": ok (").count(), indexes, "{image}: {said}");
    assert!(!said.contains("wrong") && !said.contains("error: "), "{image}: {said}");
}

#[test]
fn index_convert_rm_and_prune_at_once_lose_nothing() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let place = format!("{}/a/b", server.host);
        // Another image, with indexes by ociseek and others, which must not be affected.
        crate::support::sandbox::small_image(&sandbox.path("other"));
        let Some(other) = super::pushed_from(&sandbox, "other", &server, "a/b:other") else { return };
        indexed_by(&sandbox, "AWS SOCI CLI v0.2", &other);
        indexed_by(&sandbox, "somebody", &other);
        let (others, before) = (found(&sandbox, &other), digest_of(&server, "v1"));
        let of_others = listed_in_tags(&server, &subjects(&sandbox, &other));
        let (by_v2, converted) = (format!("{place}:v1-soci"), format!("{place}:converted"));

        for round in 0..ROUNDS {
            let commands: [&[&str]; 6] = [
                &["index", &image],
                &["index", "--v2={tag}-soci", &image],
                &["index", "--existing=replace", &image],
                &["convert", &image, &converted],
                &["rm", &image],
                &["prune", "--delete", &place],
            ];
            std::thread::scope(|scope| {
                for args in commands {
                    let sandbox = &sandbox;
                    scope.spawn(move || {
                        let small: &[&str] = if matches!(args[0], "index" | "convert") { &SMALL } else { &[] };
                        let said = sandbox.run(&[args, small].concat());
                        // If the list is a tag, others may be faster each time. Then nothing was
                        // changed.
                        let lost_the_race = said.contains("others overwrote our change");
                        let is_done = said.ends_with("--- status 0 ---");
                        assert!(is_done || lost_the_race, "round {round}: {args:?}: {said}");
                    });
                }
            });
            // SOCI-enabled images do not depend on indexes that can be removed, so they are
            // complete at once.
            assert_whole(&sandbox, &converted, 2);
            if let Some(digest) = digest_of(&server, "v1-soci") {
                assert_whole(&sandbox, &by_v2, 2);
                assert_eq!(Some(digest), digest_of(&server, "converted"), "the same image by both names");
            }
            assert_eq!(digest_of(&server, "v1"), before, "the image keeps its tag");
            assert_eq!(found(&sandbox, &other), others);
            assert_whole(&sandbox, &other, 2);
        }

        let args = ["index", "--v2={tag}-soci", "--format=json", &image];
        let report = sandbox.json(0, &[&args[..], &SMALL].concat());
        let manifests = report["images"][0]["manifests"].as_array().unwrap();
        let ours: Vec<Vec<String>> =
            manifests.iter().map(|m| vec![m["index"]["digest"].as_str().unwrap().to_owned()]).collect();
        assert_eq!(found(&sandbox, &image), ours, "one index for each platform, and no other");
        assert_eq!(report["images"][0]["enabled"]["digest"].as_str(), digest_of(&server, "v1-soci").as_deref());
        assert_eq!(digest_of(&server, "v1-soci"), digest_of(&server, "converted"));
        assert_whole(&sandbox, &image, 2);
        let subjects_of = |image: &str| subjects(&sandbox, image);
        let listed = listed_in_tags(&server, &subjects_of(&image));
        assert!(listed == ours || listed.iter().all(Vec::is_empty), "{listed:?}");
        assert!(ours.iter().flatten().all(|digest| is_there(&server, "a/b", digest)), "{ours:?}");
        assert_eq!(listed_in_tags(&server, &subjects_of(&other)), of_others);
        let said = sandbox.run(&["prune", &place]);
        assert!(said.contains("nothing to remove"), "{said}");
    }
}
