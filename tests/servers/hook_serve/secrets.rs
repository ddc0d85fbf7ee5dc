//! The secret: who is refused without it, and how it is kept.

use std::os::unix::fs::PermissionsExt;

use ociseek_testkit::hook::{Hook, SECRET};
use ociseek_testkit::http::{exchange, post};
use ociseek_testkit::in_own_mounts;
use ociseek_testkit::sandbox::{Sandbox, program};
use ociseek_testkit::servers::skip;
use serde_json::json;

#[test]
fn metrics_require_the_secret() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--metrics-listen=127.0.0.1:0"]);
    let get = |address: &str, path: &str, header: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{header}\r\n");
        exchange(address, request.as_bytes())
    };
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    let (status, text) = get(&hook.address(), "/metrics", "");
    assert!(status == 401 && !text.contains("ociseek_hook"), "{text}");
    assert_eq!(
        get(&hook.address(), "/metrics", "Authorization: Bearer wrong-wrong-wrong\r\n").0,
        401
    );
    let (status, text) = get(&hook.address(), "/metrics", &bearer);
    assert!(
        status == 200 && text.contains("ociseek_hook_requests_total{code=\"401\"} 2"),
        "{text}"
    );
    assert_eq!((hook.get("/healthz").0, hook.get("/readyz").0), (200, 200));

    let own = hook.events("listening")[0]["metrics"].as_str().unwrap().to_owned();
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(get(&own, path, "").0, 200, "{path}");
    }
    assert_eq!(post(&own, "/", &[("Authorization", &format!("Bearer {SECRET}"))], b"{}").0, 404);
}

#[test]
fn a_web_page_cannot_send_notifications_to_a_service_without_a_secret() {
    let sandbox = Sandbox::new();
    let args = ["hook", "serve", "--listen=127.0.0.1:0", "--allow=127.0.0.1:1"];
    let hook = Hook::spawn(&mut sandbox.command(&args));
    let body = json!({"image": "127.0.0.1:1/a:v1"}).to_string();
    for header in
        [("Origin", "https://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site")]
    {
        let headers = [("Content-Type", "text/plain"), header];
        let (status, text) = post(&hook.address(), "/", &headers, body.as_bytes());
        assert!(
            status == 403 && text.contains("requests from web pages are refused"),
            "{header:?} {text}"
        );
    }
    assert!(hook.events("accepted").is_empty());
    assert_eq!(
        post(&hook.address(), "/", &[("Content-Type", "text/plain")], body.as_bytes()).0,
        202
    );
}

#[test]
fn the_service_does_not_start_without_a_secret() {
    let sandbox = Sandbox::new();
    let started =
        |args: &[&str]| sandbox.run(&[&["hook", "serve", "--allow=r.example"], args].concat());
    let text = started(&["--listen=0.0.0.0:0"]);
    assert!(text.contains("without a secret, anyone who can reach 0.0.0.0:0"), "{text}");
    assert!(
        text.contains("hint: use --secret-file") && text.ends_with("--- status 1 ---"),
        "{text}"
    );
    let file = sandbox.path("secret");
    std::fs::write(&file, SECRET).unwrap();
    for (mode, want) in [
        (0o644, "other users can read this secret (mode 644)"),
        (0o444, "chmod 600"),
        (0o660, "other users can write this secret (mode 660)"),
    ] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let text = started(&["--secret-file=secret"]);
        assert!(text.contains(want) && text.ends_with("--- status 1 ---"), "{text}");
    }
    std::fs::write(&file, "short").unwrap();
    // Its group may read it, as in Kubernetes with a group for the secret.
    for mode in [0o600, 0o400, 0o640, 0o440] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let text = started(&["--secret-file=secret"]);
        assert!(
            text.contains("a secret is too short: 5 of at least 16 characters"),
            "{mode:o}: {text}"
        );
    }
    assert!(started(&["--allow=http://x"]).ends_with("--- status 2 ---"));
    let text = sandbox.run(&["hook", "serve"]);
    assert!(
        text.contains("--allow") && text.ends_with("--- status 2 ---"),
        "nothing is allowed by itself: {text}"
    );
}

/// In the folder of a container runtime, everyone in the container may read a secret, and nobody
/// can change that.
#[test]
fn secrets_mounted_by_docker_and_kubernetes_are_accepted() {
    let in_a_namespace = |script: &str| in_own_mounts(&format!("set -e; {script}")).output();
    if !in_a_namespace("mount -t tmpfs none /mnt").is_ok_and(|output| output.status.success()) {
        return skip("no mount namespace can be made");
    }
    for (mounts, path) in [
        ("mount -t tmpfs none /run; mkdir /run/secrets; cd /run/secrets", "/run/secrets/link"),
        ("mount -t tmpfs none /mnt; cd /mnt", "/mnt/link"),
    ] {
        // A symbolic link and a read-only mount, as made by Kubernetes.
        let script = format!(
            "{mounts}; mkdir data; printf short > data/secret; chmod 444 data/secret; ln -s data/secret link; cd /; \
             test {path} = /run/secrets/link || mount -o remount,ro /mnt; \
             exec {} hook serve --allow r.example --secret-file {path}",
            program()
        );
        let said = String::from_utf8(in_a_namespace(&script).unwrap().stderr).unwrap();
        assert!(said.contains("a secret is too short: 5 of"), "{path}: {said}");
    }
}
