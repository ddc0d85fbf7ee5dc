//! `ociseek backfill` on real registries with many repositories and tags, and on one that lies
//! about its content.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::time::Time;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, json_answer};
use ociseek_testkit::image::{Image, config, image_index};
use ociseek_testkit::sandbox::{GZIP, OCI_INDEX, OCI_MANIFEST, Sandbox, ZSTD, gzip, tar};
use ociseek_testkit::servers::{Server, faketime};
use serde_json::{Value, json};

/// More than a page of the lists.
const MANY: usize = 120;

fn image(seed: u64, created: &str) -> Image {
    let config = json!({"os": "linux", "architecture": "amd64", "created": created});
    Image::new(&config, [(GZIP, gzip(&tar(seed, 1, 20_000)))])
}

/// Runs `backfill` with small sizes and the arguments `more`.
fn backfill(sandbox: &Sandbox, status: i32, more: &[&str]) -> (Vec<Value>, String) {
    backfill_with(sandbox, status, more, |_| {})
}

/// Likewise, after `change` has changed the command.
fn backfill_with(
    sandbox: &Sandbox,
    status: i32,
    more: &[&str],
    change: impl FnOnce(&mut Command),
) -> (Vec<Value>, String) {
    let common = ["backfill", "--format=json", "--min-layer-size=0", "--span-size=16KiB"];
    let mut command = sandbox.command(&[&common[..], more].concat());
    change(&mut command);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    let lines = String::from_utf8(output.stdout).unwrap();
    (lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), stderr)
}

fn count(lines: &[Value], status: &str) -> usize {
    lines.iter().filter(|line| line["status"] == status).count()
}

/// Tests `backfill` with many repositories, one with many tags, and manifests that are not images.
///
/// olareg has no catalog, so its repositories are named explicitly.
fn many(server: &Server, has_catalog: bool) {
    let recent = image(1, "2026-01-31T00:00:00Z");
    let old = image(2, "2020-01-31T00:00:00Z");
    for n in 0..MANY {
        recent.push(server, &format!("many/app{n}"), &["v1"]);
    }
    let tags: Vec<String> = (0..MANY).map(|n| format!("v{n}")).collect();
    recent.push(server, "team/app", &tags.iter().map(String::as_str).collect::<Vec<_>>());
    old.push(server, "team/app", &["old"]);
    let chart = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [], "config": Descriptor::new(
        "application/vnd.cncf.helm.config.v1+json", Digest::sha256(&recent.config), recent.config.len() as u64)});
    server.put_manifest("team/app", "chart", OCI_MANIFEST, chart.to_string().as_bytes());
    let cut = Bytes::from(gzip(&tar(3, 1, 20_000))).slice(..9000);
    Image::new(&config(&[]), [(GZIP, cut)]).push(server, "other/broken", &["v1"]);
    let host = server.host.clone();
    let mut places = vec![host.clone()];
    if !has_catalog {
        let all = (0..MANY).map(|n| format!("{host}/many/app{n}"));
        places =
            all.chain(["team/app", "other/broken"].map(|name| format!("{host}/{name}"))).collect();
    }
    let sandbox = Sandbox::new();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let all = |status, more: &[&str]| backfill(&sandbox, status, &[more, &places].concat());
    let team = |status, more: &[&str]| all(status, &[more, &["--filter=team/*"]].concat()).0;

    // A dry run writes nothing, twice.
    for _ in 0..2 {
        let lines = team(0, &["--dry-run", "--no-cache"]);
        assert_eq!((count(&lines, "pending"), count(&lines, "same-as-before")), (2, MANY - 1));
        assert_eq!((count(&lines, "skipped"), lines.len()), (1, MANY + 2));
    }
    // Selected by age.
    let text =
        sandbox.run(&["backfill", "--dry-run", "--since=2025-06-01", &format!("{host}/team/app")]);
    assert!(
        text.contains(": created 2020-01-31T00:00:00Z, before 2025-06-01T00:00:00Z\n"),
        "{text}"
    );
    let lines = team(0, &["--since=2025-06-01", "--state=team.state"]);
    assert_eq!((count(&lines, "indexed"), count(&lines, "old")), (1, 1));
    // Recorded images are not examined again, others are.
    let lines = team(0, &["--state=team.state"]);
    assert_eq!(
        (count(&lines, "indexed"), count(&lines, "already-indexed"), count(&lines, "done-before")),
        (1, 0, MANY + 1)
    );
    let (_, stderr) = all(1, &["--state=team.state", "--platform=linux/arm64"]);
    assert!(stderr.contains("team.state was written with other options"), "{stderr}");

    // All images, one of which fails: each has its line.
    let (lines, stderr) = all(1, &["--jobs=4"]);
    assert_eq!(
        (count(&lines, "indexed"), count(&lines, "already-indexed"), count(&lines, "failed")),
        (MANY, 2, 1)
    );
    let failed = lines.iter().find(|line| line["status"] == "failed").unwrap();
    assert!(failed["image"].as_str().unwrap().ends_with("/other/broken:v1"));
    assert!(failed["error"]["message"].as_str().unwrap().contains("is broken"), "{failed}");
    assert!(stderr.contains(&format!("1 of {} images failed", lines.len())), "{stderr}");
    // A layer that all images share is read once.
    let read: u64 = lines.iter().map(|line| line["bytes_read"].as_u64().unwrap()).sum();
    assert!(read < 30_000, "{read}");

    // Again, with only the registry's content as memory.
    let (lines, _) = all(1, &["--no-cache"]);
    assert_eq!((count(&lines, "indexed"), count(&lines, "already-indexed")), (0, MANY + 2));
    assert!(lines.iter().all(|line| line["bytes_written"] == 0));

    // Unless they should be rebuilt.
    let one = format!("{host}/many/app7");
    let (lines, _) = backfill(&sandbox, 0, &["--existing=replace", "--no-cache", &one]);
    assert!(lines[0]["bytes_read"].as_u64().unwrap() > 0, "{lines:?}");
    let (lines, _) = backfill(&sandbox, 0, &["--existing=keep", "--no-cache", &one]);
    assert_eq!(count(&lines, "already-indexed"), 1);

    // Output for people, for a single repository.
    let text = sandbox.run(&[
        "backfill",
        "--min-layer-size=0",
        "--span-size=16KiB",
        &format!("{host}/many/app7"),
    ]);
    let expected = format!("already-indexed {host}/many/app7:v1@sha256:");
    assert!(text.starts_with(&expected), "{text}");
    assert!(
        text.contains("1 image: 1 already-indexed; read 0 B, in ")
            && text.ends_with("--- status 0 ---"),
        "{text}"
    );
}

#[test]
fn a_registry_without_the_referrers_api() {
    let Some(server) = Server::distribution("127.0.0.1:0", |_| String::new()) else { return };
    many(&server, true);
}

#[test]
fn a_registry_with_the_referrers_api() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    many(&server, false);
}

/// `--since 30d` is counted back from this machine's clock, right or wrong. The line of each image
/// that is left out has both times, so a wrong clock shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_duration_is_counted_back_from_the_clock() {
    const DAY: i64 = 86_400;
    let Some(faketime) = faketime() else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let days_ago =
        move |days: i64| Time { seconds: now - days * DAY, nanos: 0 }.to_rfc3339().unwrap();
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    for (number, days) in [(1, 10), (2, 100), (3, 2000)] {
        image(number, &days_ago(days)).add_to(&registry, &format!("made-{days}-days-ago"));
    }
    let sandbox = Sandbox::new();
    let place = format!("{}/a/b", registry.host());
    let work = move || {
        for (days, old) in [(0, &[100, 2000][..]), (-400, &[2000]), (3650, &[10, 100, 2000])] {
            let (lines, _) =
                backfill_with(&sandbox, 0, &["--dry-run", "--since=30d", &place], |command| {
                    command.envs(faketime).env("FAKETIME", format!("{days:+}d"));
                });
            let told = lines.iter().filter(|line| line["status"] == "old").map(|line| {
                let [image, created, since] =
                    ["image", "created", "since"].map(|key| line[key].as_str().unwrap());
                // The run itself takes some seconds.
                assert!(
                    *days_ago(30 - days) <= *since && *since < *days_ago(29 - days),
                    "{days}: {line}"
                );
                (image.to_owned(), created.to_owned())
            });
            let expected =
                old.iter().map(|age| (format!("{place}:made-{age}-days-ago"), days_ago(*age)));
            assert_eq!(
                told.collect::<BTreeSet<_>>(),
                expected.collect::<BTreeSet<_>>(),
                "{days}: {lines:?}"
            );
            assert_eq!(count(&lines, "pending"), 3 - old.len(), "{days}: {lines:?}");
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// A registry that answers `path` with `list` and a link to `next`.
async fn lying<const N: usize>(
    answers: [(&'static str, &'static str, Option<&'static str>); N],
) -> Faulty {
    Faulty::start(RegistrySettings::default(), move |seen, _| {
        let (_, list, next) = answers.iter().find(|(path, ..)| seen.is("GET", path))?;
        let mut answer = json_answer(200, &serde_json::from_str::<Value>(list).unwrap());
        if let Some(next) = next {
            answer.headers_mut().insert("link", format!("<{next}>; rel=\"next\"").parse().unwrap());
        }
        Some(answer)
    })
    .await
}

async fn failed(registry: &Faulty) -> Vec<String> {
    let host = registry.host();
    let work = move || {
        let (lines, _) = backfill(&Sandbox::new(), 1, &["--no-cache", &host]);
        lines
            .iter()
            .filter(|line| line["status"] == "failed")
            .map(|line| line["error"]["message"].as_str().unwrap().to_owned())
            .collect()
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_lists_are_refused() {
    // The host of a link does not count.
    let elsewhere =
        lying([("_catalog", r#"{"repositories":[]}"#, Some("http://169.254.169.254/latest"))])
            .await;
    assert!(
        failed(&elsewhere).await[0]
            .contains(&format!("GET http://{}/latest: 404", elsewhere.host()))
    );
    let scheme = lying([("_catalog", r#"{"repositories":[]}"#, Some("file:///etc/passwd"))]).await;
    assert!(
        failed(&scheme).await[0].contains("the link to the next page of the list is not a URL")
    );

    let endless = lying([("_catalog", r#"{"repositories":[]}"#, Some("/v2/_catalog?n=100"))]).await;
    assert!(failed(&endless).await[0].contains("the list does not end"));
    assert!(endless.saw("GET", "_catalog").len() < 5);

    let names = r#"{"repositories":["../../etc","a?b","A","x%2fy","_catalog"]}"#;
    let names = lying([("_catalog", names, None)]).await;
    assert_eq!(failed(&names).await, ["5 names in the list are not valid"]);
    assert_eq!(names.requests().len(), 1);

    let tags = lying([
        ("_catalog", r#"{"repositories":["a"]}"#, None),
        ("/a/tags/list", r#"{"tags":["../x","$(x)"]}"#, None),
    ])
    .await;
    assert_eq!(failed(&tags).await, ["2 names in the list are not valid"]);
    assert_eq!(tags.requests().len(), 2);

    // Each page is different, and all are empty.
    let page = AtomicUsize::new(0);
    let empty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let number = page.fetch_add(1, Ordering::SeqCst);
        let mut answer =
            seen.is("GET", "_catalog").then(|| json_answer(200, &json!({"repositories": []})))?;
        answer
            .headers_mut()
            .insert("link", format!("</v2/_catalog?last={number}>; rel=\"next\"").parse().unwrap());
        Some(answer)
    })
    .await;
    assert!(
        failed(&empty).await[0].contains("the list does not end: 1000 pages in a row are empty")
    );

    // Many registries do not allow listing their catalog.
    let closed = Faulty::start(RegistrySettings::default(), |seen, _| {
        seen.is("GET", "_catalog")
            .then(|| Response::builder().status(404).body(Body::empty()).unwrap())
    })
    .await;
    assert!(failed(&closed).await[0].starts_with("cannot list the repositories: "));
}

/// A failed list is not an image, and has a hint.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_list_is_reported_once() {
    for (status, hint) in
        [(404, "name the repositories to index, HOST/REPOSITORY"), (401, "docker login")]
    {
        let closed = Faulty::start(RegistrySettings::default(), move |seen, _| {
            seen.is("GET", "_catalog")
                .then(|| Response::builder().status(status).body(Body::empty()).unwrap())
        })
        .await;
        let host = closed.host();
        let work = move || Sandbox::new().run(&["backfill", "--no-cache", &host]);
        let said = tokio::task::spawn_blocking(work).await.unwrap();
        assert!(
            said.contains("error: 1 list cannot be read\n") && said.contains("\n0 images, in "),
            "{said}"
        );
        assert!(
            said.contains("hint: ") && said.contains(hint) && said.ends_with("--- status 1 ---"),
            "{said}"
        );
    }
}

/// Whatever its tag: the image index is recognized by the index in it, a platform's manifest by its
/// annotation.
#[tokio::test(flavor = "multi_thread")]
async fn soci_enabled_images_are_skipped() {
    let registry = Faulty::start(RegistrySettings::with_referrers(), |seen, _| {
        seen.is("GET", "/app/tags/list")
            .then(|| json_answer(200, &json!({"tags": ["whole", "part"]})))
    })
    .await;
    let image = image(1, "2026-01-31T00:00:00Z");
    image.add_to(&registry, "image");
    let soci = Descriptor::of(OCI_MANIFEST, b"{}");
    let mut part: Value = serde_json::from_slice(&image.manifest).unwrap();
    part["annotations"] = json!({"com.amazon.soci.index-digest": soci.digest});
    let part = part.to_string();
    let listed = |descriptor: Descriptor, key: &str, value: Value| {
        let mut listed = serde_json::to_value(descriptor).unwrap();
        listed[key] = value;
        listed
    };
    // Its manifest does not name the SOCI index. Listing one is sufficient.
    let manifests = [
        listed(
            Descriptor::of(OCI_MANIFEST, &image.manifest),
            "platform",
            json!({"os": "linux", "architecture": "amd64"}),
        ),
        listed(soci, "artifactType", "application/vnd.amazon.soci.index.v2+json".into()),
    ];
    let whole = image_index(&manifests);
    registry.add_manifest("part", OCI_MANIFEST, part);
    registry.add_manifest("whole", OCI_INDEX, whole.to_string());
    let place = format!("{}/app", registry.host());
    let work = move || {
        for more in [&[][..], &["--dry-run"], &["--existing=replace"]] {
            let (lines, _) = backfill(&Sandbox::new(), 0, &[more, &[&place]].concat());
            let reasons: Vec<&Value> = lines.iter().map(|line| &line["reason"]).collect();
            assert_eq!(reasons, ["soci-enabled", "soci-enabled"], "{more:?} {lines:?}");
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// Each reason for skipping is reported, and the dry run reports the same as the real one.
#[tokio::test(flavor = "multi_thread")]
async fn skipped_images_have_the_right_reason() {
    let registry = Faulty::start(RegistrySettings::with_referrers(), |seen, _| {
        seen.is("GET", "/app/tags/list")
            .then(|| json_answer(200, &json!({"tags": ["small", "zstd", "both"]})))
    })
    .await;
    let small = (GZIP, gzip(&tar(1, 1, 20_000)));
    let zstd = (ZSTD, b"zstd".to_vec());
    for (tag, layers) in
        [("small", vec![&small]), ("zstd", vec![&zstd]), ("both", vec![&small, &zstd])]
    {
        Image::new(&config(&[]), layers.into_iter().cloned()).add_to(&registry, tag);
    }
    let place = format!("{}/app", registry.host());
    let work = move || {
        let told = |sandbox: &Sandbox, more: &[&str]| {
            let said = sandbox
                .command(&[&["backfill", "--format=json", "--jobs=1"], more].concat())
                .output()
                .unwrap();
            let lines = String::from_utf8(said.stdout).unwrap();
            let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines
                .map(|line| [line["status"].to_string(), line["reason"].to_string()])
                .collect::<Vec<_>>()
        };
        let sandbox = Sandbox::new();
        let want = ["layers-too-small", "not-servable", "not-servable"];
        let want = want.map(|reason| ["\"skipped\"".to_owned(), format!("\"{reason}\"")]);
        assert_eq!(told(&sandbox, &["--dry-run", &place]), want);
        assert_eq!(told(&sandbox, &[&place]), want);
        let said = sandbox.run(&["backfill", "--jobs=1", &place]);
        assert!(said.contains(": all of its layers are smaller than 10MiB"), "{said}");
        assert!(
            said.contains(": none of its layers can be served lazily (too-small, zstd)"),
            "{said}"
        );
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// Their fine index is attached, and an image is written that names one.
#[tokio::test(flavor = "multi_thread")]
async fn images_of_zstd_layers_are_done_once() {
    let registry = Faulty::start(RegistrySettings::with_referrers(), |seen, _| {
        seen.is("GET", "/app/tags/list").then(|| json_answer(200, &json!({"tags": ["v1"]})))
    })
    .await;
    let content = tar(5, 4, 300_000);
    let layer = zstd::encode_all(&content[..], 3).unwrap();
    Image::new(&config(&[content]), [(ZSTD, layer)]).add_to(&registry, "v1");
    let place = format!("{}/app", registry.host());
    let work = move || {
        for status in ["indexed", "already-indexed"] {
            let sandbox = Sandbox::new();
            let (lines, _) =
                backfill(&sandbox, 0, &["--kind=v1,v2={tag}-soci,fine", "--no-cache", &place]);
            let found: Vec<&Value> = lines.iter().map(|line| &line["status"]).collect();
            assert_eq!(found, [status], "{lines:?}");
            for tag in ["v1", "v1-soci"] {
                let verified = sandbox.run(&["verify", "--no-cache", &format!("{place}:{tag}")]);
                assert!(
                    verified.contains("1 of 1 layer") && verified.ends_with("--- status 0 ---"),
                    "{verified}"
                );
            }
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[test]
fn a_tag_is_refused_as_the_root() {
    let said = Sandbox::new().run(&["backfill", "localhost:5000/app:v1"]);
    assert!(
        said.contains("expected a registry, or a repository without a tag")
            && said.ends_with("--- status 2 ---"),
        "{said}"
    );
}

/// Five tags of one image: what is known already is not fetched again. Registries count GETs of
/// manifests as pulls, and limit them.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_fetched_once() {
    let tags = ["v1", "v1.2", "v1.2.3", "latest", "stable"];
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    for tag in tags {
        image(1, "2026-01-31T00:00:00Z").add_to(&registry, tag);
    }
    let place = format!("{}/app", registry.host());
    let work = move || {
        let sandbox = Sandbox::new();
        // The number of all requests, and of GETs of manifests.
        let sent = |kind: &str, more: &[&str], statuses: &[(&str, usize)]| {
            let before = registry.requests().len();
            let kind = format!("--kind={kind}");
            let (lines, _) =
                backfill(&sandbox, 0, &[more, &[&kind, "--no-cache", &place]].concat());
            for (status, number) in statuses {
                assert_eq!(count(&lines, status), *number, "{lines:?}");
            }
            let requests = registry.requests().split_off(before);
            let fetched = requests.iter().filter(|request| request.is("GET", "/manifests/"));
            (requests.len(), fetched.count())
        };
        let runs = [
            // The image, and what a client without the referrers API may have attached.
            sent("v1", &["--state=s"], &[("indexed", 1), ("same-as-before", 4)]),
            sent("v1", &["--state=s"], &[("done-before", 5)]),
            // Its index, too.
            sent("v1", &[], &[("already-indexed", 1), ("same-as-before", 4)]),
            // The image alone: the new tags are free, which a GET of each confirms.
            sent("v2={tag}-soci", &[], &[("indexed", 5), ("skipped", 0)]),
            // The image, and the new one with its SOCI index.
            sent("v2={tag}-soci", &[], &[("already-indexed", 5), ("skipped", 5)]),
        ];
        assert_eq!(runs, [(18, 2), (6, 0), (13, 3), (87, 6), (44, 3)]);
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}
