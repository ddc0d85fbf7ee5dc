//! All commands that change the indexes of an image, at the same time on one image: `index` of each
//! kind, `rm`, `rm --obsolete`, `convert`, and two hooks that know nothing of each other. Whatever
//! their order, a further run leaves everything consistent, and nothing of other images is lost.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::fine::{fine_in, inspected};
use super::{found, image, indexed_by, is_there, registries, subjects};
use ociseek_testkit::hook::Hook;
use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::Server;

/// How many times all of them run.
const ROUNDS: usize = 3;
const SMALL: [&str; 4] = ["--span-size=16KiB", "--min-layer-size=1KiB", "--no-cache", "--jobs=2"];
/// The error of a change to a list that is a tag, if others were faster each time. Then nothing was
/// changed.
const LOST_THE_RACE: &str = "others overwrote our change";

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn digests(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry["digest"].as_str()?.to_owned()))
        .collect()
}

/// The referrers of each of an image's platforms, as the registry lists them: by its API, or under
/// the fallback tag.
fn listed(server: &Server, subjects: &[String]) -> Vec<Vec<String>> {
    let list = |subject: &String| {
        let by_api = server.request("GET", &format!("/v2/a/b/referrers/{subject}"));
        let (status, body) = match by_api.0 {
            200 => by_api,
            _ => server.request("GET", &format!("/v2/a/b/manifests/{}", subject.replace(':', "-"))),
        };
        let mut listed =
            if status == 200 { digests(&parsed(&body)["manifests"]) } else { Vec::new() };
        listed.sort();
        listed
    };
    subjects.iter().map(list).collect()
}

fn digest_of(server: &Server, tag: &str) -> Option<String> {
    let (status, body) = server.request("GET", &format!("/v2/a/b/manifests/{tag}"));
    (status == 200).then(|| ociseek_format::digest::Digest::sha256(body.as_bytes()).to_string())
}

/// Checks that all manifests and layers of the image exist, and that `indexes` indexes verify.
fn assert_whole(sandbox: &Sandbox, image: &str, indexes: usize) {
    let said = sandbox.run(&["verify", image]);
    assert_eq!(said.matches(": ok (").count(), indexes, "{image}: {said}");
    assert!(!said.contains("wrong") && !said.contains("error: "), "{image}: {said}");
}

/// Checks that every tag leads to manifests and blobs that exist, through lists and subjects.
fn assert_tags_are_complete(server: &Server) {
    let (_, tags) = server.request("GET", "/v2/a/b/tags/list");
    let mut left: Vec<String> = serde_json::from_value(parsed(&tags)["tags"].clone()).unwrap();
    assert!(left.iter().any(|tag| tag == "v1-soci"), "{left:?}");
    let mut seen = BTreeSet::new();
    while let Some(reference) = left.pop() {
        let (status, body) = server.request("GET", &format!("/v2/a/b/manifests/{reference}"));
        assert_eq!(status, 200, "{reference} is missing: {body}");
        let manifest = parsed(&body);
        for blob in [digests(&json!([manifest["config"]])), digests(&manifest["layers"])].concat() {
            assert_eq!(
                server.request("HEAD", &format!("/v2/a/b/blobs/{blob}")).0,
                200,
                "{blob} of {reference}"
            );
        }
        let more =
            [digests(&manifest["manifests"]), digests(&json!([manifest["subject"]]))].concat();
        left.extend(more.into_iter().filter(|digest| seen.insert(digest.clone())));
    }
}

/// The number of the hook's jobs that have ended.
fn ended(hook: &Hook) -> usize {
    hook.events("job").len() + hook.events("dead-letter").len()
}

/// Runs the commands and a job of each hook at the same time.
fn all_at_once(sandbox: &Sandbox, hooks: &[Hook], image: &str, commands: &[&[&str]]) {
    std::thread::scope(|scope| {
        for &args in commands {
            scope.spawn(move || {
                let small: &[&str] =
                    if matches!(args[0], "index" | "convert") { &SMALL } else { &[] };
                let said = sandbox.run(&[args, small].concat());
                let is_done = said.ends_with("--- status 0 ---");
                assert!(is_done || said.contains(LOST_THE_RACE), "{args:?}: {said}");
            });
        }
        let jobs: Vec<usize> = hooks.iter().map(ended).collect();
        for hook in hooks {
            let (status, text) = hook.post(&json!({"image": image}).to_string());
            assert_eq!(status, 202, "{text}");
        }
        for (hook, jobs) in hooks.iter().zip(jobs) {
            hook.until("the end of the job", |hook| ended(hook) > jobs);
        }
    });
    for job in hooks.iter().flat_map(|hook| hook.events("dead-letter")) {
        assert!(job["error"].as_str().unwrap().contains(LOST_THE_RACE), "{job}");
    }
}

#[test]
fn concurrent_commands_and_hooks_lose_nothing() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let place = format!("{}/a/b", server.host);
        // Another image, with indexes by ociseek and others, which must not be affected.
        ociseek_testkit::sandbox::small_image(&sandbox.path("other"));
        let Some(other) = super::pushed_from(&sandbox, "other", &server, "a/b:other") else {
            return;
        };
        indexed_by(&sandbox, "AWS SOCI CLI v0.2", &other);
        indexed_by(&sandbox, "somebody", &other);
        let others = found(&sandbox, &other);
        let before = digest_of(&server, "v1");
        let of_others = listed(&server, &subjects(&sandbox, &other));
        let by_v2 = format!("{place}:v1-soci");
        let converted = format!("{place}:converted");
        let allow = format!("--allow={}", server.host);
        let hooks = [(); 2].map(|()| {
            Hook::serve(&sandbox, &[&*allow, "--kind=v1,v2={tag}-soci,fine", "--retry-wait=1"])
        });

        for _ in 0..ROUNDS {
            let commands: [&[&str]; 7] = [
                &["index", &image],
                &["index", "--kind=v1,v2={tag}-soci,fine", &image],
                &["index", "--kind=v1,fine", &image],
                &["index", "--existing=replace", &image],
                &["convert", "--fine", &image, &converted],
                &["rm", &image],
                &["rm", "--obsolete", &place],
            ];
            all_at_once(&sandbox, &hooks, &image, &commands);
            // SOCI-enabled images do not depend on indexes that can be removed, so they are
            // complete at once.
            assert_whole(&sandbox, &converted, 4);
            if let Some(digest) = digest_of(&server, "v1-soci") {
                assert_whole(&sandbox, &by_v2, 4);
                assert_eq!(
                    Some(digest),
                    digest_of(&server, "converted"),
                    "the same image by both names"
                );
            }
            assert_eq!(digest_of(&server, "v1"), before, "the image keeps its tag");
            assert_eq!(found(&sandbox, &other), others);
            assert_whole(&sandbox, &other, 2);
        }

        let args = ["index", "--kind=v1,v2={tag}-soci,fine", "--format=json", &image];
        let report = sandbox.json(0, &[&args[..], &SMALL].concat());
        let made = |of: fn(&Value) -> &Value| -> Vec<Vec<String>> {
            let manifests = report["images"][0]["manifests"].as_array().unwrap();
            manifests.iter().map(|manifest| digests(&json!([of(manifest)["index"]]))).collect()
        };
        let ours = made(|manifest| manifest);
        let fine = made(|manifest| &manifest["fine"]);
        assert_eq!(found(&sandbox, &image), ours, "one index for each platform, and no other");
        assert_eq!(fine_in(&inspected(&sandbox, &image)), fine, "and one fine index");
        assert_eq!(
            report["images"][0]["enabled"]["digest"].as_str(),
            digest_of(&server, "v1-soci").as_deref()
        );
        assert_eq!(digest_of(&server, "v1-soci"), digest_of(&server, "converted"));
        assert_whole(&sandbox, &image, 4);
        let subjects_of = |image: &str| subjects(&sandbox, image);
        let both = ours.iter().zip(&fine).map(|(soci, fine)| [&soci[..], fine].concat());
        let mut both: Vec<Vec<String>> = both.collect();
        both.iter_mut().for_each(|digests| digests.sort());
        assert_eq!(listed(&server, &subjects_of(&image)), both);
        assert!(both.iter().flatten().all(|digest| is_there(&server, "a/b", digest)), "{both:?}");
        assert_eq!(listed(&server, &subjects_of(&other)), of_others);
        assert_tags_are_complete(&server);
        let said = sandbox.run(&["rm", "--obsolete", "--dry-run", &place]);
        assert!(said.contains("nothing to remove"), "{said}");
    }
}
