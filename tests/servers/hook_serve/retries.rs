//! Jobs that fail: which are tried again, and which are given up.

use std::collections::BTreeSet;
use std::io::Write;

use super::misleading;
use ociseek_format::digest::Digest;
use ociseek_testkit::hook::{Hook, SECRET, images, pushed, put_blob};
use ociseek_testkit::http::answering;
use ociseek_testkit::image::{image_index, image_manifest};
use ociseek_testkit::sandbox::{GZIP, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Sandbox};
use ociseek_testkit::servers::{Server, free_port};
use serde_json::json;

#[test]
fn an_event_is_accepted_again_after_its_job_failed() {
    let sandbox = Sandbox::new();
    let (host, _) = misleading("403 Forbidden", |_| "X: y".into());
    let hook = Hook::serve(&sandbox, &[&format!("--allow={host}")]);
    let event = |repository: &str| pushed("the same id", &host, repository, &Digest::sha256(b"x"));
    for times in 1..=2 {
        let (status, text) = hook.post(&event("a"));
        assert!(status == 202 && text.contains("\"accepted\":1"), "{text}");
        hook.until("it is given up", |hook| hook.events("dead-letter").len() == times);
        // The line is written just before the event is forgotten.
        hook.until("it is over", |hook| {
            hook.get(&format!("/metrics?token={SECRET}")).1.contains("running 0")
        });
    }
    let (status, text) = hook.post(&event("b"));
    assert!(status == 202 && text.contains("\"accepted\":1"), "another repository's event: {text}");
}

#[test]
fn transient_failures_are_retried_and_permanent_ones_are_not() {
    let sandbox = Sandbox::new();
    let host = format!("127.0.0.1:{}", free_port());
    let allow = format!("--allow={host}");
    let hook = Hook::serve(
        &sandbox,
        &[&allow, "--dead-letter=dead", "--max-image-size=1MiB", "--retry-wait=3"],
    );
    let digest = Digest::sha256(b"never pushed");
    assert_eq!(hook.post(&pushed("1", &host, "team/app0", &digest)).0, 202);
    hook.until("it cannot be reached", |hook| hook.events("retry").len() == 1);

    let Some(server) = Server::distribution(&host, |_| String::new()) else { return };
    let good = images(&server, 1, 1);
    let of = |digest: Digest, size: u64| json!({"mediaType": GZIP, "digest": digest, "size": size});
    let config = json!({"mediaType": OCI_CONFIG, "digest": Digest::sha256(b"{}"), "size": 2});
    let put = |layers: serde_json::Value, subject: serde_json::Value| {
        let mut manifest = image_manifest(&config, &layers);
        if !subject.is_null() {
            manifest["subject"] = subject;
        }
        manifest.to_string()
    };
    let large = put(json!([of(Digest::sha256(b"large"), 2 << 20)]), json!(null));
    let attached = put(
        json!([of(Digest::sha256(b"x"), 5)]),
        json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": 7}),
    );
    // Real registries check that blobs exist. These manifests name missing blobs, so a server of
    // ours has them.
    let odd = serving(vec![large.clone(), attached.clone()]);
    let second = Hook::serve(&sandbox, &[&format!("--allow={odd}"), "--max-image-size=1MiB"]);
    for manifest in [&large, &attached] {
        let event = pushed("", &odd, "a", &Digest::sha256(manifest.as_bytes()));
        assert_eq!(second.post(&event).0, 202);
    }
    second.until("both are left alone", |hook| hook.results().get("skipped") == Some(&2));
    let reasons: BTreeSet<String> =
        second.events("job").iter().map(|line| line["reason"].to_string()).collect();
    assert_eq!(reasons, ["\"too-large\"".to_owned(), "\"has-a-subject\"".to_owned()].into());

    assert_eq!(hook.post(&pushed("2", &host, &good[0].0, &good[0].1)).0, 202);
    hook.until("the good one is indexed", |hook| hook.indexed() == 1);
    hook.until("the other is gone", |hook| hook.results().contains_key("gone"));
    assert_eq!(hook.results(), [("indexed".to_owned(), 1), ("gone".to_owned(), 1)].into());
    assert_eq!(std::fs::read_to_string(sandbox.path("dead")).unwrap(), "");

    let garbage = b"\x1f\x8b\x08 and then no gzip at all, however often one looks";
    put_blob(&host, "team/app0", garbage);
    put_blob(&host, "team/app0", b"{}");
    let broken = put(json!([of(Digest::sha256(garbage), garbage.len() as u64)]), json!(null));
    let digest = Digest::sha256(broken.as_bytes());
    server.put_manifest("team/app0", &digest.to_string(), OCI_MANIFEST, broken.as_bytes());
    assert_eq!(hook.post(&pushed("3", &host, "team/app0", &digest)).0, 202);
    hook.until("it is given up", |hook| hook.events("dead-letter").len() == 1);
    let dead: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(sandbox.path("dead")).unwrap()).unwrap();
    assert_eq!((&dead["tries"], &dead["job"]["digest"]), (&json!(1), &json!(digest)));
    assert!(dead["error"].as_str().unwrap().contains("is broken"), "{dead}");
    let retries = hook.events("retry");
    assert_eq!((retries.len(), &retries[0]["again_in"]), (1, &json!(3.0)));
}

#[test]
fn an_image_of_other_platforms_is_skipped() {
    let sandbox = Sandbox::new();
    let entry = |architecture: &str| {
        let platform = json!({"os": "linux", "architecture": architecture});
        json!({"mediaType": OCI_MANIFEST, "digest": Digest::sha256(b"x"), "size": 7, "platform": platform})
    };
    let manifests = [entry("amd64"), entry("arm64")];
    let image = image_index(&manifests).to_string();
    let host = serving(vec![image.clone()]);
    let hook = Hook::serve(&sandbox, &[&format!("--allow={host}"), "--platform=linux/s390x"]);
    assert_eq!(hook.post(&pushed("1", &host, "a", &Digest::sha256(image.as_bytes()))).0, 202);
    hook.until("it is left alone", |hook| hook.results().get("skipped") == Some(&1));
    let line = hook.events("job").remove(0);
    assert_eq!(line["reason"], "other-platforms", "{line}");
    assert!(
        ["linux/s390x", "linux/amd64", "linux/arm64"]
            .iter()
            .all(|name| line.to_string().contains(name)),
        "{line}"
    );
}

/// A registry with only these manifests.
fn serving(manifests: Vec<String>) -> String {
    let address = answering(move |request, stream| {
        let found = manifests
            .iter()
            .find(|manifest| request.contains(&Digest::sha256(manifest.as_bytes()).hex()));
        let (status, body) = found.map_or(("404 Not Found", ""), |manifest| ("200 OK", manifest));
        let length = body.len();
        let kind = if body.contains(OCI_INDEX) { OCI_INDEX } else { OCI_MANIFEST };
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: \
             close\r\n\r\n{body}"
        );
    });
    address.to_string()
}
