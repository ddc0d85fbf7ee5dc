//! Hosts that must not be called.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::misleading;
use ociseek_format::digest::Digest;
use ociseek_testkit::hook::{Hook, SECRET, pushed};
use ociseek_testkit::http::post;
use ociseek_testkit::sandbox::Sandbox;
use serde_json::json;

/// A server that must not be called. Counts the connections.
fn victim() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || {
                // A client may ignore an answer that arrives before its request is sent.
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let _ = lines.map_while(Result::ok).find(String::is_empty);
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
                );
            });
        }
    });
    (port, calls)
}

#[test]
fn unlisted_hosts_are_not_contacted() {
    let sandbox = Sandbox::new();
    let (port, calls) = victim();
    let hook = Hook::serve(
        &sandbox,
        &["--allow=registry.example,*.registry.example", "--allow=127.0.0.1:1/team/*"],
    );
    for host in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("127.1:{port}"),
        format!("2130706433:{port}"),
        format!("0177.0.0.1:{port}"),
        format!("0x7f000001:{port}"),
        format!("registry.example@127.0.0.1:{port}"),
        format!("registry.example:x@127.0.0.1:{port}"),
        format!("registry.example#@127.0.0.1:{port}"),
        format!("127。0。0。1:{port}"),
        format!("evilregistry.example:{port}"),
        "169.254.169.254".into(),
        "metadata.google.internal".into(),
        "10.0.0.1".into(),
        "registry.example:22".into(),
        "registry.example.evil.example".into(),
        "127.0.0.1:1".into(),
    ] {
        for body in [
            pushed("", &host, "other/app", &Digest::sha256(b"x")),
            json!({"image": format!("{host}/other/app:v1")}).to_string(),
        ] {
            let (status, text) = hook.post(&body);
            assert!(
                matches!(status, 200 | 400) && !text.contains("\"accepted\":1"),
                "{host}: {text}"
            );
        }
        let (status, text) = post(
            &hook.address(),
            &format!("/?registry={}", host.replace('#', "%23")),
            &[("Authorization", &format!("Bearer {SECRET}"))],
            pushed("", "registry.example", "other/app", &Digest::sha256(b"x")).as_bytes(),
        );
        assert!(matches!(status, 200 | 400) && !text.contains("\"accepted\":1"), "{host}: {text}");
    }
    for repository in
        ["../../x", "%2e%2e/x", "Team/app", "_catalog", "a?b", "a#b", &"a".repeat(300)]
    {
        let (status, text) =
            hook.post(&pushed("", "registry.example", repository, &Digest::sha256(b"x")));
        assert!(
            status == 200 && text.contains("is not a valid repository name"),
            "{repository}: {text}"
        );
    }
    assert_eq!((calls.load(Ordering::SeqCst), hook.events("accepted").len()), (0, 0));
}

#[test]
fn a_listed_registry_cannot_redirect_to_private_addresses() {
    let sandbox = Sandbox::new();
    let (port, calls) = victim();
    let to = |host: &str| format!("http://{host}:{port}/token");
    let mut lying = Vec::new();
    for host in ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "2130706433"] {
        let url = to(host);
        let realm = to(host);
        lying.push(misleading("307 Temporary Redirect", move |_| format!("Location: {url}")));
        lying.push(misleading("401 Unauthorized", move |_| {
            format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\"")
        }));
    }
    let allow = lying.iter().map(|(host, _)| host.as_str()).collect::<Vec<_>>().join(",");
    let hook = Hook::serve(&sandbox, &[&format!("--allow={allow}"), "--workers=8"]);
    for (host, _) in &lying {
        assert_eq!(hook.post(&json!({"image": format!("{host}/a/b:v1")}).to_string()).0, 202);
    }
    hook.until("all are given up", |hook| hook.events("dead-letter").len() == lying.len());
    for line in hook.events("dead-letter") {
        let error = line["error"].as_str().unwrap();
        assert!(error.contains("refused"), "{line}");
    }
    assert!(hook.events("retry").is_empty(), "where we may not go, we may not go later either");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert!(lying.iter().all(|(_, asked)| !asked.lock().unwrap().is_empty()));

    // It can be allowed explicitly.
    let (host, _) = misleading("307 Temporary Redirect", {
        let url = to("127.0.0.1");
        move |_| format!("Location: {url}")
    });
    let open = Hook::serve(&sandbox, &[&format!("--allow={host}"), "--allow-private"]);
    assert_eq!(open.post(&json!({"image": format!("{host}/a/b:v1")}).to_string()).0, 202);
    open.until("it is tried", |hook| !hook.events("dead-letter").is_empty());
    assert_ne!(calls.load(Ordering::SeqCst), 0);
}
