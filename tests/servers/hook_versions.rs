//! `--kind v1,v2=TAG` and `--kind v2=TAG` of `hook serve`, `hook worker` and `backfill`:
//! SOCI-enabled images for tags of images, from real registries' events, and for tags that move.

use std::sync::atomic::{AtomicBool, Ordering};

use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use ociseek_testkit::faulty::{Faulty, RegistrySettings, problem};
use ociseek_testkit::hook::{Hook, SECRET, indexes};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, Sandbox, gzip, tar};
use ociseek_testkit::servers::{Server, copied_by_skopeo, free_port, tool};

const SMALL: [&str; 3] = ["--min-layer-size=0", "--span-size=16KiB", "--no-cache"];
/// A template whose tags do not look special.
const TEMPLATE: &str = "--kind=v1,v2=lazy-{tag}";

/// An image with one layer.
fn image(seed: u64) -> Image {
    Image::new(&config(&[]), [(GZIP, gzip(&tar(seed, 2, 20_000)))])
}

/// Pushes an image to a repository, under its digest or these tags. Returns its digest.
fn push(server: &Server, repository: &str, seed: u64, tags: &[&str]) -> Digest {
    image(seed).push(server, repository, tags)
}

/// The tags of a repository, without those of referrers lists.
fn tags(server: &Server, repository: &str) -> Vec<String> {
    let list: Value =
        serde_json::from_str(&server.request("GET", &format!("/v2/{repository}/tags/list")).1)
            .unwrap();
    let tags = list["tags"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap().to_owned());
    let mut tags: Vec<String> = tags.filter(|tag| !tag.starts_with("sha256-")).collect();
    tags.sort();
    tags
}

/// The digest that a tag names.
fn digest_of(server: &Server, repository: &str, tag: &str) -> String {
    Digest::sha256(server.request("GET", &format!("/v2/{repository}/manifests/{tag}")).1.as_bytes())
        .to_string()
}

/// The digest of the SOCI-enabled image that `ociseek index` would write.
fn enabled_digest(sandbox: &Sandbox, image: &str) -> Value {
    let args =
        ["index", "--dry-run", "--kind=v2={digest}", "--format=json", "--progress=none", image];
    sandbox.json(0, &[&args[..], &SMALL].concat())["images"][0]["enabled"]["digest"].take()
}

fn event(image: &str) -> String {
    json!({"image": image}).to_string()
}

/// The log line of the only job for an image.
fn job(hook: &Hook, image: &str) -> Value {
    let is_it = |line: &Value| line["image"] == image;
    hook.until("the end of the job", |hook| hook.events("job").iter().any(is_it));
    hook.events("job").into_iter().find(is_it).unwrap()
}

/// A real client pushes an image for two platforms, and the registry reports every manifest,
/// including ours.
#[test]
fn pushes_get_both_versions_and_our_own_are_ignored() {
    let (Some(_), Some(_)) = (tool("skopeo"), tool("docker-registry")) else { return };
    let sandbox = Sandbox::with_two_platforms();
    let host = format!("127.0.0.1:{}", free_port());
    let hook = Hook::serve(&sandbox, &[&format!("--allow={host}"), TEMPLATE, "--no-cache"]);
    let told = hook.address();
    let server = Server::distribution(&host, |_| {
        format!(
            "notifications: {{endpoints: [{{name: ociseek, url: 'http://{told}/', timeout: 5s, threshold: 3, \
             backoff: 1s, \
             headers: {{Authorization: ['Bearer {SECRET}']}}}}]}}\n"
        )
    });
    let Some(server) = server else { return };
    let image = format!("{host}/a/b:v1");
    let Some(()) = copied_by_skopeo(&sandbox.path("img"), &image, &[]) else { return };

    let digest = digest_of(&server, "a/b", "v1");
    let line = job(&hook, &format!("{image}@{digest}"));
    let enabled = digest_of(&server, "a/b", "lazy-v1");
    assert_eq!(line["result"], "indexed", "{line}");
    let want = json!({"image": format!("{host}/a/b:lazy-v1@{enabled}"), "digest": enabled, "status": "written"});
    assert_eq!(line["enabled"], want);
    // The manifest of each platform is pushed by digest, so it gets an index, but there is no tag
    // for a SOCI-enabled image.
    let is_child = |line: &Value| line["enabled"]["reason"] == "no-tag";
    hook.until("both platforms", |hook| {
        hook.events("job").iter().filter(|line| is_child(line)).count() == 2
    });
    let children: Vec<Value> = hook.events("job").into_iter().filter(is_child).collect();
    assert!(children.iter().all(|line| line["indexes"][0]["index"].is_string()), "{children:?}");

    // The last event is for the image index and its tag. Its content shows that there is nothing to
    // do.
    let ours = job(&hook, &format!("{host}/a/b:lazy-v1@{enabled}"));
    assert_eq!((&ours["result"], &ours["reason"]), (&json!("skipped"), &json!("soci-enabled")));
    hook.until("nothing is left to do", |hook| {
        let metrics = hook.get(&format!("/metrics?token={SECRET}")).1;
        metrics.contains("ociseek_hook_queued 0") && metrics.contains("ociseek_hook_running 0")
    });
    assert_eq!(tags(&server, "a/b"), ["lazy-v1", "v1"]);
    let metrics = hook.get(&format!("/metrics?token={SECRET}")).1;
    assert!(metrics.contains("ociseek_hook_enabled_total{result=\"written\"} 1\n"), "{metrics}");
    for name in ["v1", "lazy-v1"] {
        let verified = sandbox.run(&["verify", &format!("{host}/a/b:{name}")]);
        assert_eq!(verified.matches(": ok (2 of 2 layers").count(), 2, "{verified}");
    }
}

#[test]
fn each_tag_gets_a_soci_enabled_image_and_an_untagged_image_only_an_index() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let app = format!("{}/team/app", server.host);
    let hook =
        Hook::serve(&sandbox, &[&format!("--allow={}", server.host), TEMPLATE, "--no-cache"]);
    let digest = push(&server, "team/app", 1, &["v1", "v2"]);
    for tag in ["v1", "v2"] {
        assert_eq!(hook.post(&event(&format!("{app}:{tag}@{digest}"))).0, 202);
    }
    let jobs = ["v1", "v2"].map(|tag| job(&hook, &format!("{app}:{tag}@{digest}")));
    let enabled = digest_of(&server, "team/app", "lazy-v1");
    for (line, tag) in jobs.iter().zip(["v1", "v2"]) {
        assert_eq!(line["enabled"]["image"], format!("{app}:lazy-{tag}@{enabled}"), "{line}");
        assert_eq!(
            (&line["result"], &line["enabled"]["status"]),
            (&json!("indexed"), &json!("written"))
        );
    }
    let read: Vec<u64> = jobs.iter().map(|line| line["bytes_read"].as_u64().unwrap()).collect();
    // Without a cache, the attached index of the first job is no source for the image of the
    // second.
    assert!(
        read.iter().all(|bytes| (1..50_000).contains(bytes)),
        "each job reads the layer once: {read:?}"
    );

    // Again, as after a roll-back of the tag: it is examined, and everything exists.
    assert_eq!(hook.post(&event(&format!("{app}:v1@{digest}"))).0, 202);
    hook.until("it was looked at", |hook| hook.results().contains_key("already-indexed"));
    let again = hook.events("job").pop().unwrap();
    assert_eq!(
        (&again["enabled"]["status"], &again["bytes_written"]),
        (&json!("already-there"), &json!(0))
    );
    assert_eq!(again["enabled"]["digest"], enabled);
    assert_eq!(again["enabled"]["checked"], "listed", "there is no cache to compare it with");

    let bare = push(&server, "team/app", 2, &[]);
    let (status, answer) = hook.post(&event(&format!("{app}@{bare}")));
    assert!(
        status == 202 && answer.contains("no SOCI-enabled image: {tag} in lazy-{tag} has no value"),
        "{answer}"
    );
    let line = job(&hook, &format!("{app}@{bare}"));
    assert_eq!(
        (&line["result"], &line["enabled"]["status"]),
        (&json!("indexed"), &json!("skipped")),
        "{line}"
    );
    assert_eq!(line["enabled"]["reason"], "no-tag");
    assert_eq!(indexes(&sandbox, &format!("{app}@{bare}")), 1);

    // A tag of another image is never overwritten, whatever the template gives.
    let mine = push(&server, "team/app", 3, &["v3"]);
    let other = push(&server, "team/app", 4, &["lazy-v3"]);
    assert_eq!(hook.post(&event(&format!("{app}:v3@{mine}"))).0, 202);
    let line = job(&hook, &format!("{app}:v3@{mine}"));
    assert_eq!(
        (&line["result"], &line["enabled"]["reason"]),
        (&json!("indexed"), &json!("tag-taken")),
        "{line}"
    );
    assert_eq!(digest_of(&server, "team/app", "lazy-v3"), other.to_string());
    assert_eq!(tags(&server, "team/app"), ["lazy-v1", "lazy-v2", "lazy-v3", "v1", "v2", "v3"]);
}

#[test]
fn version_2_only_attaches_no_index() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let app = format!("{}/team/app", server.host);
    let hook = Hook::serve(
        &sandbox,
        &[&format!("--allow={}", server.host), "--kind=v2={tag}-2", "--no-cache"],
    );
    let digest = push(&server, "team/app", 1, &["v1"]);
    let (status, answer) = hook.post(&event(&format!("{app}@{digest}")));
    assert!(
        status == 200
            && answer.contains("\"ignored\":1")
            && answer.contains("no SOCI-enabled image"),
        "{answer}"
    );
    assert_eq!(hook.post(&event(&format!("{app}:v1@{digest}"))).0, 202);
    let line = job(&hook, &format!("{app}:v1@{digest}"));
    assert_eq!((&line["result"], &line["indexes"]), (&json!("indexed"), &Value::Null), "{line}");
    assert_eq!(line["enabled"]["digest"], digest_of(&server, "team/app", "v1-2"));
    assert!(line["bytes_read"].as_u64().unwrap() > 0, "{line}");
    assert_eq!(indexes(&sandbox, &format!("{app}:v1")), 0);
    let said = sandbox.run(&["hook", "serve", "--allow=r.example", "--kind=v1,v2={tag}"]);
    assert!(
        said.contains("{tag} is the image's own tag") && said.ends_with("--- status 2 ---"),
        "{said}"
    );
}

/// Adds an image to a faulty registry, under a tag.
fn add(registry: &Faulty, tag: &str, seed: u64) -> Digest {
    image(seed).add_to(registry, tag).digest
}

/// The digest that a tag names.
fn named(registry: &Faulty, tag: &str) -> Option<String> {
    registry.manifest(tag).map(|bytes| Digest::sha256(&bytes).to_string())
}

/// The event names an older image. Its index is attached, but the SOCI-enabled image is made for
/// the tag's current image: at the start of the work, and if the tag moves during it.
#[tokio::test(flavor = "multi_thread")]
async fn a_soci_enabled_image_follows_its_tag() {
    for (moves_before, template) in
        [(true, TEMPLATE), (false, TEMPLATE), (false, "--kind=v2=lazy-{tag}")]
    {
        let newer = image(2).manifest;
        let moved = AtomicBool::new(moves_before);
        let layer = image(1).descriptors()[0].digest.to_string();
        let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, registry| {
            if seen.is("GET", &layer) && !moved.swap(true, Ordering::SeqCst) {
                registry.add_manifest("v1", OCI_MANIFEST, newer.clone());
            }
            None
        })
        .await;
        let older = add(&registry, "v1", 1);
        let newer = add(&registry, "newer", 2);
        if moves_before {
            add(&registry, "v1", 2);
        }
        let host = registry.host();
        let work = move || {
            let sandbox = Sandbox::new();
            let want = enabled_digest(&sandbox, &format!("{host}/app@{newer}"));
            let hook = Hook::serve(&sandbox, &[&format!("--allow={host}"), template, "--no-cache"]);
            let name = format!("{host}/app:v1@{older}");
            assert_eq!(hook.post(&event(&name)).0, 202);
            (job(&hook, &name), want)
        };
        let (line, want) = tokio::task::spawn_blocking(work).await.unwrap();
        assert_eq!(
            (&line["result"], &line["digest"]),
            (&json!("indexed"), &json!(older)),
            "{line}"
        );
        assert_eq!(
            (&line["enabled"]["digest"], &line["enabled"]["status"]),
            (&want, &json!("written")),
            "{line}"
        );
        assert_eq!(named(&registry, "lazy-v1").as_deref(), want.as_str());
        assert_eq!(named(&registry, "v1"), Some(newer.to_string()), "the image keeps its tag");
    }
}

/// The index is attached, and the job fails with the name that cannot be written.
#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_the_image_that_cannot_be_written() {
    let registry = Faulty::start(RegistrySettings::with_referrers(), |seen, _| {
        seen.is("PUT", "/manifests/lazy-v1").then(|| problem(403, "DENIED", "the tag is immutable"))
    })
    .await;
    let digest = add(&registry, "v1", 1);
    let host = registry.host();
    let work = move || {
        let sandbox = Sandbox::new();
        let hook = Hook::serve(&sandbox, &[&format!("--allow={host}"), TEMPLATE, "--no-cache"]);
        assert_eq!(hook.post(&event(&format!("{host}/app:v1@{digest}"))).0, 202);
        hook.until("it is given up", |hook| hook.events("dead-letter").len() == 1);
        let error = hook.events("dead-letter")[0]["error"].as_str().unwrap().to_owned();
        let want = format!("cannot write the SOCI-enabled image {host}/app:lazy-v1: ");
        assert!(error.starts_with(&want) && error.contains("the tag is immutable"), "{error}");
        assert_eq!(indexes(&sandbox, &format!("{host}/app:v1")), 1);
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// Runs `backfill` with small sizes and the arguments `more`. Returns its lines by tag.
fn backfill(sandbox: &Sandbox, place: &str, more: &[&str]) -> Vec<(String, Value)> {
    backfill_with(sandbox, place, &[&SMALL[..], more].concat())
}

fn backfill_with(sandbox: &Sandbox, place: &str, options: &[&str]) -> Vec<(String, Value)> {
    let args = [&["backfill", "--format=json"], options, &[place]].concat();
    let output = sandbox.command(&args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let tag = |line: &Value| line["image"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    let mut lines: Vec<(String, Value)> = lines.map(|line| (tag(&line), line)).collect();
    lines.sort_by(|(one, _), (two, _)| one.cmp(two));
    lines
}

/// Tag, status, and the result for the SOCI-enabled image or the reason why there is none.
fn seen(lines: &[(String, Value)]) -> Vec<[&str; 3]> {
    lines
        .iter()
        .map(|(tag, line)| {
            let enabled = &line["enabled"];
            let of_enabled =
                enabled["reason"]["code"].as_str().or_else(|| enabled["status"].as_str());
            let more = of_enabled.or_else(|| line["reason"].as_str()).unwrap_or_default();
            [tag.as_str(), line["status"].as_str().unwrap(), more]
        })
        .collect()
}

#[test]
fn backfill_adds_missing_versions_once() {
    let servers =
        [Server::olareg(|_, _| Vec::new()), Server::distribution("127.0.0.1:0", |_| String::new())];
    for server in servers.into_iter().flatten() {
        let sandbox = Sandbox::new();
        let place = format!("{}/team/app", server.host);
        push(&server, "team/app", 1, &["v1", "v2"]);
        // An ordinary image with the name that another one's SOCI-enabled image would get.
        let ordinary = push(&server, "team/app", 2, &["v1-soci"]).to_string();
        let both = |more: &[&str]| {
            backfill(&sandbox, &place, &[&["--kind=v1,v2={tag}-soci", "--jobs=4"], more].concat())
        };

        for _ in 0..2 {
            let lines = both(&["--dry-run"]);
            let want = [
                ["v1", "pending", ""],
                ["v1-soci", "pending", "pending"],
                ["v2", "pending", "pending"],
            ];
            assert_eq!(seen(&lines), want);
            assert_eq!(lines[2].1["enabled"]["image"], format!("{place}:v2-soci"));
        }
        let lines = both(&["--state=state"]);
        let want = [
            ["v1", "indexed", "tag-taken"],
            ["v1-soci", "indexed", "written"],
            ["v2", "indexed", "written"],
        ];
        let (ours, others): (Vec<_>, Vec<_>) =
            seen(&lines).into_iter().partition(|[tag, ..]| ["v1", "v1-soci", "v2"].contains(tag));
        // Either tag of an image may come first. The second one has nothing to index.
        assert!(
            ours[0] == want[0] || ours[0] == ["v1", "already-indexed", "tag-taken"],
            "{lines:?}"
        );
        assert_eq!(ours[1..], want[1..]);
        assert!(
            others
                .iter()
                .all(|[_, status, reason]| (*status, *reason) == ("skipped", "soci-enabled")),
            "{lines:?}"
        );
        let enabled = digest_of(&server, "team/app", "v2-soci");
        assert_eq!(
            lines.iter().find(|(tag, _)| tag == "v2").unwrap().1["enabled"]["digest"],
            enabled
        );
        assert_eq!(
            digest_of(&server, "team/app", "v1-soci"),
            ordinary,
            "a source is never written over"
        );
        let read: u64 = lines.iter().map(|(_, line)| line["bytes_read"].as_u64().unwrap()).sum();
        assert!(read < 140_000, "each layer is read once for each tag: {read}");

        // Again, with the content of the registry, and with the state file.
        let skipped =
            [["v1-soci-soci", "skipped", "soci-enabled"], ["v2-soci", "skipped", "soci-enabled"]];
        let lines = both(&[]);
        let want = [
            ["v1", "already-indexed", "tag-taken"],
            ["v1-soci", "already-indexed", "already-there"],
            skipped[0],
            ["v2", "already-indexed", "already-there"],
            skipped[1],
        ];
        assert_eq!(seen(&lines), want);
        assert!(
            lines.iter().all(|(_, line)| line["bytes_written"] == 0 && line["bytes_read"] == 0),
            "{lines:?}"
        );
        let dry = both(&["--dry-run"]);
        let statuses: Vec<&str> = seen(&dry).iter().map(|[_, status, _]| *status).collect();
        assert_eq!(
            statuses,
            ["already-indexed", "already-indexed", "skipped", "already-indexed", "skipped"]
        );
        let known = both(&["--state=state"]);
        let known = seen(&known);
        assert!(
            ["v1", "v1-soci", "v2"].iter().all(|tag| known.contains(&[tag, "done-before", ""])),
            "{known:?}"
        );
        let other = sandbox.run(&["backfill", "--kind=v1,v2={tag}-other", "--state=state", &place]);
        assert!(
            other.contains("was written with other options") && other.ends_with("--- status 1 ---"),
            "{other}"
        );

        // If a tag moves, only that tag is processed.
        push(&server, "team/app", 3, &["v2"]);
        let lines = both(&["--dry-run"]);
        assert_eq!(seen(&lines)[3], ["v2", "pending", "pending"]);
        let lines = both(&["--state=state"]);
        assert_eq!(seen(&lines)[3], ["v2", "indexed", "written"]);
        assert_eq!(lines[3].1["enabled"]["replaced"], enabled);
        assert_eq!(seen(&both(&[]))[3], ["v2", "already-indexed", "already-there"]);

        // For people.
        let text =
            sandbox.run(&[&["backfill", "--kind=v1,v2={tag}-soci", &place], &SMALL[..]].concat());
        let enabled = digest_of(&server, "team/app", "v2-soci");
        assert!(text.contains(&format!(": {place}:v2-soci@{enabled} already-there\n")), "{text}");
        assert!(
            text.contains(": no ")
                && text.contains("is not a SOCI-enabled image, and was left unchanged"),
            "{text}"
        );
    }
}

/// For an image with both versions, only the requested one counts.
#[test]
fn backfill_with_version_2_only_ignores_version_1() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let place = format!("{}/team/app", server.host);
    push(&server, "team/app", 1, &["v1"]);
    assert_eq!(seen(&backfill(&sandbox, &place, &[])), [["v1", "indexed", ""]]);
    let only = |more: &[&str]| backfill(&sandbox, &place, &[&["--kind=v2={tag}-2"], more].concat());
    assert_eq!(seen(&only(&["--dry-run"])), [["v1", "pending", "pending"]]);
    let done = only(&[]);
    assert_eq!(seen(&done)[0], ["v1", "indexed", "written"]);
    assert_ne!(
        done[0].1["bytes_read"], 0,
        "an attached index is the word of everybody who can push"
    );
    assert_eq!(seen(&only(&["--dry-run"]))[0], ["v1", "already-indexed", ""]);
    assert_eq!(seen(&only(&[]))[0], ["v1", "already-indexed", "already-there"]);
    // With a cache it is known what its ztocs should be.
    let source = format!("{place}:v1");
    let target = format!("{place}:v1-3");
    sandbox.json(0, &[&["convert", "--format=json", &source, &target], &SMALL[..2]].concat());
    let again = backfill_with(&sandbox, &place, &[&["--kind=v2={tag}-2"], &SMALL[..2]].concat());
    let enabled = &again.iter().find(|(tag, _)| tag == "v1").unwrap().1["enabled"];
    assert_eq!(
        (&enabled["status"], &enabled["checked"]),
        (&json!("already-there"), &json!("cached")),
        "{enabled}"
    );
    // An image that was converted with a prefetch list counts as the same image, and is kept.
    let list = ["--prefetch-file=dir1/file0", "--progress=none", "--quiet"];
    let source = format!("{place}:v1");
    let target = format!("{place}:v1-2");
    let said = sandbox.run(&[&["convert", &source, &target], &list[..], &SMALL].concat());
    assert!(said.ends_with("--- status 0 ---"), "{said}");
    let with_list = digest_of(&server, "team/app", "v1-2");
    assert_ne!(done[0].1["enabled"]["digest"], with_list);
    let again = only(&[]);
    assert_eq!(seen(&again)[0], ["v1", "already-indexed", "already-there"]);
    assert_eq!(again[0].1["enabled"]["checked"], "listed", "anyone may have written the list");
    assert_eq!(digest_of(&server, "team/app", "v1-2"), with_list);
}

/// As for an index of version 1. The registry is only asked for the blobs.
#[tokio::test(flavor = "multi_thread")]
async fn a_soci_enabled_image_that_lost_a_ztoc_is_written_again() {
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let digest = add(&registry, "v1", 1);
    let work = move || {
        let sandbox = Sandbox::new();
        let template = "--kind=v2=lazy-{tag}";
        let place = format!("{}/a/b", registry.host());
        let [image, enabled] = ["v1", "lazy-v1"].map(|tag| format!("{place}:{tag}"));
        let dry =
            [&["convert", "--dry-run", "--format=json", &image, &enabled], &SMALL[..]].concat();
        let ztoc = sandbox.json(0, &dry)["manifests"][0]["layers"][0]["ztoc"]["digest"].take();
        let ztoc: Digest = ztoc.as_str().unwrap().parse().unwrap();
        let status = |more: &[&str]| {
            let lines = backfill(&sandbox, &place, &[&[template], more].concat());
            let (_, mut line) = lines.into_iter().find(|(tag, _)| tag == "v1").unwrap();
            (line["status"].as_str().unwrap().to_owned(), line["enabled"]["status"].take())
        };
        assert_eq!(status(&[]), ("indexed".to_owned(), json!("written")));
        let reads = registry.saw("GET", &ztoc.to_string()).len();
        assert_eq!(status(&["--dry-run"]), ("already-indexed".to_owned(), Value::Null));
        assert_eq!(registry.saw("GET", &ztoc.to_string()).len(), reads, "the ztoc is not read");

        registry.remove_blob(&ztoc);
        assert_eq!(status(&["--dry-run"]).0, "pending");
        assert_eq!(status(&[]), ("indexed".to_owned(), json!("written")));
        assert!(registry.blob(&ztoc).is_some());
        assert_eq!(status(&[]), ("already-indexed".to_owned(), json!("already-there")));

        registry.remove_blob(&ztoc);
        let hook = Hook::serve(
            &sandbox,
            &[&format!("--allow={}", registry.host()), template, "--no-cache"],
        );
        assert_eq!(hook.post(&event(&format!("{image}@{digest}"))).0, 202);
        let line = job(&hook, &format!("{image}@{digest}"));
        assert_eq!(
            (&line["result"], &line["enabled"]["status"]),
            (&json!("indexed"), &json!("written")),
            "{line}"
        );
        assert!(registry.blob(&ztoc).is_some());
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}
