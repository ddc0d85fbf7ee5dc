//! `ociseek index` with real registries: without the referrers API, with it, and with a password.

use std::path::Path;
use std::process::Stdio;

use ociseek_testkit::image::image_index;
use ociseek_testkit::sandbox::{
    GZIP, Layout, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Sandbox, gzip, index, tar,
};
use ociseek_testkit::servers::{Server, copied_by_skopeo, htpasswd, run, tool};
use serde_json::{Value, json};

#[path = "../../examples/push_index.rs"]
#[allow(dead_code, reason = "it is a program")]
mod push_index;

/// Copies two platforms to `a/b:v1` of a registry. `more` are arguments for skopeo.
pub fn copied(server: &Server, more: &[&str]) -> Option<(Sandbox, String)> {
    let sandbox = Sandbox::with_two_platforms();
    let image = format!("{}/a/b:v1", server.host);
    copied_by_skopeo(&sandbox.path("img"), &image, more)?;
    Some((sandbox, image))
}

fn statuses(report: &Value) -> Vec<&str> {
    let manifests = report["images"][0]["manifests"].as_array().unwrap().iter();
    manifests.map(|m| m["status"].as_str().unwrap()).collect()
}

/// Attaches an index, finds it, and replaces it by one with other options. The digests equal those
/// in a layout.
fn attach_and_attach_again(server: &Server, how: &str) {
    let Some((sandbox, image)) = copied(server, &[]) else { return };
    let first = sandbox.json(0, &index(&["--format=json", &image]));
    assert_eq!(statuses(&first), ["attached", "attached"]);
    let manifest = &first["images"][0]["manifests"][0];
    assert_eq!(manifest["attached"], how);
    let subject = manifest["manifest"]["digest"].as_str().unwrap();
    let tag = (how == "tag-schema").then(|| subject.replace(':', "-"));
    assert_eq!(manifest["tag"].as_str(), tag.as_deref());
    let again = sandbox.json(0, &index(&["--format=json", &image]));
    assert_eq!(statuses(&again), ["already-there", "already-there"]);
    assert_eq!((&again["bytes_read"], &again["bytes_written"]), (&Value::from(0), &Value::from(0)));

    let by_digest = format!("{}/a/b@{subject}", server.host);
    let other = [
        "index",
        "--format=json",
        "--no-cache",
        "--min-layer-size=0",
        "--build-tool-identifier=test",
        &by_digest,
    ];
    let other = sandbox.json(0, &other);
    assert_eq!(statuses(&other), ["attached"]);
    assert_eq!(other["images"][0]["manifests"][0]["replaced"][0], manifest["index"]["digest"]);

    let layout = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    assert_eq!(layout["images"][0]["manifests"][0]["index"]["digest"], manifest["index"]["digest"]);
}

#[test]
fn a_registry_without_the_referrers_api() {
    let Some(server) = Server::distribution("127.0.0.1:0", |_| String::new()) else { return };
    attach_and_attach_again(&server, "tag-schema");
}

#[test]
fn a_registry_with_the_referrers_api() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    attach_and_attach_again(&server, "referrers-api");
}

#[test]
fn a_registry_that_requires_a_password() {
    let Some(line) = htpasswd("u", "s3cret") else { return };
    let sections = |dir: &Path| {
        std::fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let Some(server) = Server::distribution("127.0.0.1:0", sections) else { return };
    let Some((sandbox, image)) = copied(&server, &["--dest-creds=u:s3cret"]) else { return };
    for (wrong, todo) in [
        (
            index(&[&image]),
            format!("run docker login {}, or use --creds USER:PASSWORD", server.host),
        ),
        (
            index(&["--creds=u:hunter2", &image]),
            "the user name or password in --creds was rejected".into(),
        ),
    ] {
        let text = sandbox.run(&wrong);
        let hint = format!("hint: 401 from {}: {todo}\n", server.host);
        assert!(text.contains(&hint) && text.ends_with("--- status 1 ---"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let mut command = sandbox.command(&index(&["-q", "--creds=u", "--password-stdin", &image]));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"s3cret\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 2);
}

/// A registry that refuses deletion keeps a fine index that was replaced: readers take the one with
/// a recorded start, or the newer one, and a second run has nothing to do.
#[test]
fn the_best_fine_index_is_read_if_replaced_ones_stay() {
    let servers = [
        Server::olareg(|_, _| vec!["--api-delete=false".into()]),
        Server::distribution_that_keeps(),
    ];
    for server in servers.into_iter().flatten() {
        let Some((sandbox, image)) = copied(&server, &[]) else { return };
        let image = image.as_str();
        for (name, file) in [("one", "dir1/file0"), ("two", "dir1/file1")] {
            let read = json!({"ms": 1.0, "path": file, "layer": "sha256:0", "offset": 0, "size": 4096, "spans": []});
            std::fs::write(sandbox.path(name), read.to_string()).unwrap();
        }
        let run = |more: &[&str]| {
            let options = ["--format=json", "--kind=fine", "--platform=linux/amd64"];
            let report = sandbox.json(0, &index(&[&options, more, &[image]].concat()));
            let fine = report["images"][0]["manifests"][0]["fine"].clone();
            (fine["status"].clone(), fine["index"]["digest"].clone(), report["bytes_read"] != 0)
        };
        let chosen = || {
            let report = sandbox.doctor(image);
            let fine = report["manifests"][0]["fine"].as_array().unwrap().clone();
            let chosen: Vec<Value> =
                fine.iter().filter(|fine| fine["chosen"] == true).cloned().collect();
            assert_eq!(chosen.len(), 1, "{report:#}");
            chosen[0]["digest"].clone()
        };
        let attached = Value::from("attached");
        let mut before = Value::Null;
        for profile in [None, Some("--profile=one"), Some("--profile=two")] {
            let (status, digest, _) = run(profile.as_slice());
            assert_eq!((&status, &chosen()), (&attached, &digest), "{profile:?}");
            assert_ne!(digest, before);
            let again = run(profile.as_slice());
            assert_eq!(again, (Value::from("already-there"), digest.clone(), false), "{profile:?}");
            before = digest;
        }
        // What readers take is what stays.
        assert_eq!(run(&[]).1, before);
        assert_eq!(run(&["--existing=keep"]).1, before);
    }
}

#[test]
fn a_missing_image_is_reported() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let text = Sandbox::new().run(&index(&[&format!("{}/a/b:v1", server.host)]));
    assert!(text.contains("cannot find the image") && text.contains("hint: 404 from"), "{text}");
    assert!(text.ends_with("--- status 1 ---"), "{text}");
    let Some((sandbox, _)) = copied(&server, &[]) else { return };
    let image = format!("{}/a/b", server.host);
    for missing in [&format!("{image}:v2"), &image] {
        let text = sandbox.run(&index(&[missing]));
        assert!(text.contains(&format!("check the tag (ociseek list {image} lists")), "{text}");
    }
}

/// Anyone who may push can write the list of referrers under the tag of an image's digest. A listed
/// manifest is only deleted if it is a SOCI index of that image.
#[test]
fn replacing_deletes_only_indexes_of_the_image() {
    let Some(server) = Server::distribution("127.0.0.1:0", |_| String::new()) else { return };
    let Some(skopeo) = tool("skopeo") else { return };
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    for (seed, tag) in [(1, "mine"), (2, "prod")] {
        let layer = layout.blob(GZIP, &gzip(&tar(seed, 1, 50_000)));
        let image = layout.image("amd64", &[layer]);
        layout.tag(image, tag);
        let to = format!("docker://{}/a/b:{tag}", server.host);
        let from = format!("oci:{}:{tag}", sandbox.path("img").display());
        run(&skopeo, &["copy", "--quiet", "--dest-tls-verify=false", &from, &to]);
    }
    let image = |tag: &str| format!("{}/a/b:{tag}", server.host);
    let attached =
        |args: &[&str]| sandbox.json(0, &index(args))["images"][0]["manifests"][0].clone();
    let old = attached(&["--format=json", &image("mine")]);
    let prod = attached(&["--format=json", &image("prod")]);
    assert_eq!(
        (&old["status"], &prod["status"]),
        (&Value::from("attached"), &Value::from("attached"))
    );

    let listed = |descriptor: &Value| {
        json!({
            "mediaType": OCI_MANIFEST, "digest": descriptor["digest"], "size": descriptor["size"],
            "artifactType": "application/vnd.amazon.soci.index.v1+json",
        })
    };
    let strangers = [&prod["manifest"], &prod["index"]];
    let list = image_index(&[listed(strangers[0]), listed(strangers[1]), listed(&old["index"])]);
    let tag = old["manifest"]["digest"].as_str().unwrap().replace(':', "-");
    server.put_manifest("a/b", &tag, OCI_INDEX, list.to_string().as_bytes());

    let other = [
        "index",
        "--build-tool-identifier=test",
        "--min-layer-size=0",
        "--no-cache",
        &image("mine"),
    ];
    let skipped = sandbox.run(&other);
    for line in [
        format!(
            "{} is listed first among the SOCI indexes of this image and was left unchanged: the manifest is not a \
             SOCI index: its config is \"{OCI_CONFIG}\"",
            strangers[0]["digest"].as_str().unwrap()
        ),
        format!(
            "it is the index of another image manifest, {}",
            prod["manifest"]["digest"].as_str().unwrap()
        ),
    ] {
        assert!(skipped.contains(&line), "{skipped}");
    }
    assert!(!skipped.contains("--existing"), "{skipped}");

    let replaced = attached(&["--format=json", "--existing=replace", &image("mine")]);
    assert_eq!(replaced["replaced"].as_array().map(Vec::len), Some(1), "{replaced}");
    let others: Vec<&Value> =
        replaced["others"].as_array().unwrap().iter().map(|other| &other["digest"]).collect();
    assert_eq!(others, strangers.map(|stranger| &stranger["digest"]));
    // The other image is unchanged.
    let again = sandbox.json(0, &index(&["--format=json", &image("prod")]));
    assert_eq!(statuses(&again), ["already-there"]);
}

/// examples/push_index.rs does the same as `ociseek index` without options.
#[tokio::test(flavor = "multi_thread")]
async fn the_example_pushes_an_index() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let Some((sandbox, image)) = copied(&server, &[]) else { return };
    let lines = push_index::push_index(&image).await.unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.contains(": attached sha256:")), "{lines:?}");
    let again = push_index::push_index(&image).await.unwrap();
    assert_eq!(again, lines.iter().map(|line| line.replace("attached", "has")).collect::<Vec<_>>());
    let by_program =
        sandbox.json(0, &["index", "--format=json", "--no-cache", "--min-layer-size=0", &image]);
    assert_eq!(statuses(&by_program), ["already-there", "already-there"]);
}
