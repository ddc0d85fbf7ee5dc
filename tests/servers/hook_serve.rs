//! `ociseek hook serve` with events from real registries, with forged events, and under floods.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::hook::{
    Hook, PATIENCE, SECRET, answer, assert_documented, exchange, images, indexes, post, pushed, put_blob, stalling,
};
use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST, Sandbox, shown, small_image};
use crate::support::servers::{Server, free_port, run, skip, tool};
use hmac::{Hmac, KeyInit, Mac};
use ociseek::digest::Digest;
use serde_json::json;
use sha2::Sha256;
use tokio::net::TcpSocket;

/// A registry that notifies `hook` of every push.
fn telling(program: &str, host: &str, hook: &str) -> Option<Server> {
    Server::distribution_by(program, host, |_| {
        format!(
            "notifications: {{endpoints: [{{name: ociseek, url: 'http://{hook}/', timeout: 5s, threshold: 3, \
             backoff: 1s, \
             headers: {{Authorization: ['Bearer {SECRET}']}}}}]}}\n"
        )
    })
}

/// A real client pushes an image, and the service indexes it without being called.
fn a_push_is_indexed(program: &str, client: &str) {
    let (Some(_), Some(client_path)) = (tool(program), tool(client)) else { return };
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let host = format!("127.0.0.1:{}", free_port());
    let hook = Hook::serve(&sandbox, &[&format!("--allow={host}")]);
    let Some(_registry) = telling(program, &host, &hook.address()) else { return };
    let (layout, image) = (sandbox.path("img"), format!("{host}/a/b:v1"));
    let pushed = Instant::now();
    match client {
        "skopeo" => {
            let (from, to) = (format!("oci:{}:v1", layout.display()), format!("docker://{image}"));
            run(&client_path, &["copy", "--quiet", "--all", "--dest-tls-verify=false", &from, &to]);
        }
        _ => {
            run(&client_path, &["push", "--insecure", layout.to_str().unwrap(), &image]);
        }
    }
    hook.until("an index", |hook| hook.indexed() == 1);
    println!("{program}: indexed {:.1} s after the push began", pushed.elapsed().as_secs_f64());
    assert_eq!(indexes(&sandbox, &image), 1);

    // Our own pushes are reported too: of the index, and of the tag under which it is listed. After
    // that there are no events.
    hook.until("the event of the index", |hook| hook.results().contains_key("skipped"));
    let mut before = hook.log().len();
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(100));
        if hook.log().len() != before {
            (before, quiet) = (hook.log().len(), Instant::now());
        }
    }
    assert_eq!(hook.results(), [("indexed".to_owned(), 1), ("skipped".to_owned(), 1)].into());
    let skipped = hook.events("job").into_iter().find(|line| line["result"] == "skipped").unwrap();
    assert_eq!(skipped["reason"], "not-an-image", "{skipped}");
    assert_documented(&hook.log());
    assert_eq!(indexes(&sandbox, &image), 1);
    let (status, metrics) = hook.get(&format!("/metrics?token={SECRET}"));
    assert_eq!(status, 200);
    assert!(metrics.contains("ociseek_hook_jobs_total{result=\"indexed\"} 1"), "{metrics}");
    assert!(metrics.contains("ociseek_hook_events_total{shape=\"distribution\"}"), "{metrics}");

    // A SOCI-enabled image has layers like any other, and each of its manifests is reported. None
    // is indexed again.
    let name = format!("{host}/a/b:lazy");
    let converted = sandbox.run(&["convert", "--no-cache", "--min-layer-size=0", "--quiet", &image, &name]);
    assert!(converted.starts_with("sha256:") && converted.ends_with("--- status 0 ---"), "{converted}");
    let enabled = |hook: &Hook| hook.events("job").iter().filter(|line| line["reason"] == "soci-enabled").count();
    hook.until("the events of the image and of its manifest", |hook| enabled(hook) == 2);
    assert_eq!((hook.results()["indexed"], hook.results().get("dead")), (1, None));
}

#[test]
fn distribution_2_8_tells_of_a_push_by_skopeo() {
    a_push_is_indexed("docker-registry", "skopeo");
}

#[test]
fn distribution_3_1_tells_of_a_push_by_crane() {
    a_push_is_indexed("distribution3", "crane");
}

/// A restarted service, which remembers nothing, reads and writes nothing.
#[test]
fn both_kinds_of_index_are_written_once() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let (repository, digest) = images(&server, 1, 1).remove(0);
    let serve = || Hook::serve(&sandbox, &[&format!("--allow={}", server.host), "--fine", "--no-cache"]);
    let image = format!("{}/{repository}@{digest}", server.host);
    let tell = |hook: &Hook| assert_eq!(hook.post(&pushed("one", &server.host, &repository, &digest)).0, 202);
    let inspect = || sandbox.json(0, &["inspect", "--format=json", &image])["manifests"][0].take();

    let hook = serve();
    tell(&hook);
    hook.until("an index", |hook| hook.indexed() == 1);
    let job = hook.events("job").remove(0);
    let has = inspect();
    assert_eq!(
        (&has["indexes"][0]["digest"], &has["fine"][0]["digest"]),
        (&job["indexes"][0]["index"], &job["indexes"][0]["fine"])
    );
    assert!(job["indexes"][0]["fine"].is_string() && job["bytes_written"] != 0, "{job}");

    drop(hook);
    let hook = serve();
    tell(&hook);
    hook.until("it was looked at", |hook| hook.results().contains_key("already-indexed"));
    let job = hook.events("job").pop().unwrap();
    assert_eq!((&job["bytes_read"], &job["bytes_written"]), (&json!(0), &json!(0)), "{job}");
    assert_eq!(inspect(), has);
    assert_documented(&hook.log());
}

fn signature(body: &str) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap().chain_update(body).finalize().into_bytes();
    mac.iter().fold("sha256=".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[test]
fn forged_replayed_and_broken_requests() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--client-timeout=3"]);
    let address = hook.address();
    let digest = Digest::sha256(b"x");
    let body = |id: &str| pushed(id, "127.0.0.1:1", "a/b", &digest);
    let bearer = format!("Bearer {SECRET}");
    let one = body("one");
    let (good, bad) = (signature(&one), signature("something else"));
    for (path, headers, want) in [
        ("/", &[][..], 401),
        ("/", &[("Authorization", "Bearer wrong-wrong-wrong-wrong")], 401),
        ("/", &[("Authorization", "Bearer")], 401),
        ("/?token=wrong", &[], 401),
        ("/", &[("X-Hub-Signature-256", &*bad)], 401),
        ("/", &[("X-Hub-Signature-256", &*bad), ("Authorization", &*bearer)], 401),
        ("/", &[("X-Hub-Signature-256", &*good)], 202),
        ("/", &[("Authorization", &*bearer)], 200),
        (&format!("/events?token={SECRET}"), &[], 200),
        ("/", &[("Authorization", &*bearer), ("Content-Encoding", "gzip")], 415),
        ("/?registry=http://x", &[("Authorization", &*bearer)], 400),
    ] {
        let (status, text) = post(&address, path, headers, one.as_bytes());
        assert_eq!(status, want, "{path} {headers:?} {text}");
    }
    let (_, text) = hook.post(&one);
    assert!(text.contains("\"duplicates\":1"), "{text}");
    assert_eq!(hook.events("accepted").len(), 1, "the same event, sent five times");

    let deep = format!("{{\"events\":{}", "[".repeat(100_000));
    for wrong in ["", "{", "null", "{\"x\":1}", "{\"events\":1}", "\u{feff}{}", &deep] {
        assert_eq!(hook.post(wrong).0, 400, "{}", &wrong[..wrong.len().min(50)]);
    }
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\n");
    let (status, _) = exchange(&address, format!("{head}Content-Length: 999999999999\r\n\r\n").as_bytes());
    assert_eq!(status, 413, "told by its length");
    let chunk = format!("10000\r\n{}\r\n", "[".repeat(0x10000));
    let (status, _) =
        exchange(&address, format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(40)).as_bytes());
    assert_eq!(status, 413, "told by itself");
    // An unauthenticated client is not even asked for its body.
    let (status, _) = exchange(&address, b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n");
    assert_eq!(status, 401);
    let (status, _) = exchange(&address, b"DELETE / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 405);

    // A body that is sent byte by byte is abandoned after a while. Other clients are served in the
    // meantime.
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.write_all(format!("{head}Content-Length: 500000\r\n\r\n").as_bytes()).unwrap();
    let begun = Instant::now();
    let mut writer = slow.try_clone().unwrap();
    std::thread::spawn(move || {
        while begun.elapsed() < PATIENCE && writer.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let mut header = TcpStream::connect(&address).unwrap();
    header.set_read_timeout(Some(PATIENCE)).unwrap();
    header.write_all(b"POST / HT").unwrap();
    assert_eq!(hook.get("/healthz").0, 200);
    assert_eq!(hook.get("/readyz").0, 200);
    assert_eq!(header.read(&mut [0; 100]).unwrap(), 0, "a header that does not come ends the connection");
    assert_eq!(answer(slow).0, 408);

    let log = format!("{:?}", hook.log());
    assert!(!log.contains(SECRET) && hook.events("no JSON").is_empty(), "{log}");
}

/// Clients that use all connections, send requests continuously, and accept no responses.
#[tokio::test]
async fn connections_whose_answers_nobody_takes_come_to_an_end() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--client-timeout=1"]);
    let address = hook.address().parse().unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n".repeat(2000);
    let mut held = Vec::new();
    for number in 0..512 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(if number % 2 == 0 { "127.0.0.2:0" } else { "127.0.0.3:0" }.parse().unwrap()).unwrap();
        let stream = socket.connect(address).await.unwrap();
        let _ = stream.try_write(requests.as_bytes());
        held.push(stream);
    }
    let (status, text) = tokio::task::spawn_blocking(move || (hook.get("/healthz"), hook).0).await.unwrap();
    assert_eq!(status, 200, "{text}");
    drop(held);
}

#[test]
fn what_is_counted_is_told_to_those_who_know_the_secret() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--metrics-listen=127.0.0.1:0"]);
    let get = |address: &str, path: &str, header: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{header}\r\n");
        exchange(address, request.as_bytes())
    };
    let bearer = format!("Authorization: Bearer {SECRET}\r\n");
    let (status, text) = get(&hook.address(), "/metrics", "");
    assert!(status == 401 && !text.contains("ociseek_hook"), "{text}");
    assert_eq!(get(&hook.address(), "/metrics", "Authorization: Bearer wrong-wrong-wrong\r\n").0, 401);
    let (status, text) = get(&hook.address(), "/metrics", &bearer);
    assert!(status == 200 && text.contains("ociseek_hook_requests_total{code=\"401\"} 2"), "{text}");
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
    for header in [("Origin", "https://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site")] {
        let headers = [("Content-Type", "text/plain"), header];
        let (status, text) = post(&hook.address(), "/", &headers, body.as_bytes());
        assert!(status == 403 && text.contains("requests from web pages are refused"), "{header:?} {text}");
    }
    assert!(hook.events("accepted").is_empty());
    assert_eq!(post(&hook.address(), "/", &[("Content-Type", "text/plain")], body.as_bytes()).0, 202);
}

#[test]
fn an_event_whose_job_failed_is_taken_when_it_comes_again() {
    let sandbox = Sandbox::new();
    let (host, _) = misleading("403 Forbidden", |_| "X: y".into());
    let hook = Hook::serve(&sandbox, &[&format!("--allow={host}")]);
    let event = |repository: &str| pushed("the same id", &host, repository, &Digest::sha256(b"x"));
    for times in 1..=2 {
        let (status, text) = hook.post(&event("a"));
        assert!(status == 202 && text.contains("\"accepted\":1"), "{text}");
        hook.until("it is given up", |hook| hook.events("dead-letter").len() == times);
        // The line is written just before the event is forgotten.
        hook.until("it is over", |hook| hook.get(&format!("/metrics?token={SECRET}")).1.contains("running 0"));
    }
    let (status, text) = hook.post(&event("b"));
    assert!(status == 202 && text.contains("\"accepted\":1"), "another repository's event: {text}");
}

/// Without optimisation, as in Cargo's profile `release`, a job needs more stack than threads have
/// by default.
#[test]
fn the_stack_of_a_job_does_not_depend_on_what_threads_have_by_default() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let (repository, digest) = images(&server, 1, 1).remove(0);
    let sandbox = Sandbox::new();
    let allow = format!("--allow={}", server.host);
    let mut command = sandbox.command(&["hook", "serve", "--listen=127.0.0.1:0", &allow, "--min-layer-size=0"]);
    let hook = Hook::spawn(command.env("OCISEEK_HOOK_SECRET", SECRET).env("RUST_MIN_STACK", "524288"));
    hook.post(&pushed("1", &server.host, &repository, &digest));
    hook.until("an index", |hook| hook.indexed() == 1);
}

#[test]
fn azure_asks_first_and_is_answered() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1"]);
    let body =
        r#"[{"eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]"#;
    let (status, text) = hook.post(body);
    assert!(status == 200 && text.ends_with("{\"validationResponse\":\"512d38b6\"}\n"), "{text}");
    let asked =
        b"OPTIONS / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nWebHook-Request-Origin: eventgrid.azure.net\r\n\r\n";
    let (status, text) = exchange(&hook.address(), asked);
    assert!(status == 200 && text.contains("webhook-allowed-origin: eventgrid.azure.net"), "{text}");
}

#[test]
fn it_does_not_start_unprotected() {
    let sandbox = Sandbox::new();
    let started = |args: &[&str]| sandbox.run(&[&["hook", "serve", "--allow=r.example"], args].concat());
    let text = started(&["--listen=0.0.0.0:0"]);
    assert!(text.contains("without a secret, anyone who can reach 0.0.0.0:0"), "{text}");
    assert!(text.contains("hint: use --secret-file") && text.ends_with("--- status 1 ---"), "{text}");
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
        assert!(text.contains("a secret has 5 characters; at least 16 are required"), "{mode:o}: {text}");
    }
    assert!(started(&["--allow=http://x"]).ends_with("--- status 2 ---"));
    let text = sandbox.run(&["hook", "serve"]);
    assert!(text.contains("--allow") && text.ends_with("--- status 2 ---"), "nothing is allowed by itself: {text}");
}

/// In the folder of a container runtime, everyone in the container may read a secret, and nobody
/// can change that.
#[test]
fn secrets_as_docker_and_kubernetes_mount_them() {
    let in_a_namespace = |script: &str| Command::new("unshare").args(["--mount", "sh", "-ec", script]).output();
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
            env!("CARGO_BIN_EXE_ociseek")
        );
        let said = String::from_utf8(in_a_namespace(&script).unwrap().stderr).unwrap();
        assert!(said.contains("a secret has 5 characters"), "{path}: {said}");
    }
}

/// A server that must not be called. Counts the connections.
fn victim() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, calls) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}");
        }
    });
    (port, calls)
}

/// A registry that adds a header to every response and sets its status.
fn misleading(
    status: &'static str,
    header: impl Fn(&str) -> String + Send + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, asked) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap_or(0);
            let line = String::from_utf8_lossy(&head[..read]).lines().next().unwrap_or_default().to_owned();
            let header = header(&line);
            seen.lock().unwrap().push(line);
            let _ = write!(stream, "HTTP/1.1 {status}\r\n{header}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    (host, asked)
}

#[test]
fn hosts_that_are_not_on_the_list_are_not_called() {
    let sandbox = Sandbox::new();
    let (port, calls) = victim();
    let hook = Hook::serve(&sandbox, &["--allow=registry.example,*.registry.example", "--allow=127.0.0.1:1/team/*"]);
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
            assert!(matches!(status, 200 | 400) && !text.contains("\"accepted\":1"), "{host}: {text}");
        }
        let (status, text) = post(
            &hook.address(),
            &format!("/?registry={}", host.replace('#', "%23")),
            &[("Authorization", &format!("Bearer {SECRET}"))],
            pushed("", "registry.example", "other/app", &Digest::sha256(b"x")).as_bytes(),
        );
        assert!(matches!(status, 200 | 400) && !text.contains("\"accepted\":1"), "{host}: {text}");
    }
    for repository in ["../../x", "%2e%2e/x", "Team/app", "_catalog", "a?b", "a#b", &"a".repeat(300)] {
        let (status, text) = hook.post(&pushed("", "registry.example", repository, &Digest::sha256(b"x")));
        assert!(status == 200 && text.contains("is not a valid repository name"), "{repository}: {text}");
    }
    assert_eq!((calls.load(Ordering::SeqCst), hook.events("accepted").len()), (0, 0));
}

#[test]
fn a_registry_on_the_list_cannot_send_us_to_private_addresses() {
    let sandbox = Sandbox::new();
    let (port, calls) = victim();
    let to = |host: &str| format!("http://{host}:{port}/token");
    let mut lying = Vec::new();
    for host in ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "2130706433"] {
        let (url, realm) = (to(host), to(host));
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

/// Sends bodies from eight threads. Temporary refusals are repeated, as registries do.
fn send_all(hook: &Hook, bodies: &[String]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(body) = bodies.get(next.fetch_add(1, Ordering::SeqCst)) {
                    loop {
                        match hook.post(body) {
                            (200 | 202, _) => break,
                            (429 | 503, text) => assert!(text.contains("retry-after: "), "{text}"),
                            (_, text) => panic!("{text}"),
                        }
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            });
        }
    });
}

fn burst(server: &Server, images: &[(String, Digest)], events: usize) -> Vec<String> {
    // Neighbours differ, and each image occurs several times.
    let event = |number: usize| {
        let (repository, digest) = &images[number * 7 % images.len()];
        pushed(&format!("event {number}"), &server.host, repository, digest)
    };
    (0..events).map(event).collect()
}

fn indexed_images(hooks: &[&Hook]) -> Vec<String> {
    let jobs = hooks.iter().flat_map(|hook| hook.events("job"));
    jobs.filter(|line| line["result"] == "indexed").map(|line| line["image"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_thousand_events_at_once_index_each_image_once() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let images = images(&server, 8, 150);
    let hook = Hook::serve(&sandbox, &[&format!("--allow={}", server.host), "--rate=10000", "--workers=4"]);
    let begun = Instant::now();
    send_all(&hook, &burst(&server, &images, 1000));
    let sent = begun.elapsed();
    hook.until("all are indexed", |hook| hook.indexed() == images.len());
    println!(
        "1,000 events in {sent:.1?}, 150 images indexed in {:.1?}, peak memory {} MiB",
        begun.elapsed(),
        hook.peak_memory() >> 20
    );
    let all = indexed_images(&[&hook]);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), images.len());
    assert_eq!(hook.results(), [("indexed".to_owned(), images.len())].into(), "no image was looked at twice");
    for (repository, digest) in images.iter().step_by(37) {
        assert_eq!(indexes(&sandbox, &format!("{}/{repository}@{digest}", server.host)), 1);
    }
    assert!(hook.peak_memory() < 128 << 20, "{} bytes", hook.peak_memory());
}

#[test]
fn a_full_queue_says_so_and_one_repository_cannot_fill_it() {
    let (sandbox, host) = (Sandbox::new(), stalling());
    let args =
        [&*format!("--allow={host}"), "--queue-size=8", "--workers=1", "--drain-timeout=0", "--dead-letter=dead"];
    let mut hook = Hook::serve(&sandbox, &args);
    let send = |image: &str| hook.post(&json!({"image": format!("{host}/{image}")}).to_string());
    assert_eq!(send("a:1").0, 202);
    hook.until("it is being worked on", |hook| {
        hook.get(&format!("/metrics?token={SECRET}")).1.contains("ociseek_hook_running 1")
    });
    assert_eq!((send("a:2").0, send("a:2").0, send("a:3").0), (202, 200, 202));
    let (status, text) = send("a:4");
    assert!(status == 429 && text.contains("retry-after: 10"), "{text}");
    for name in ["b", "c", "d", "e", "f", "g"] {
        assert_eq!(send(&format!("{name}:1")).0, 202);
    }
    let (status, text) = send("h:1");
    assert!(status == 503 && text.contains("retry-after: 30"), "{text}");
    assert_eq!((hook.get("/readyz").0, hook.get("/healthz").0), (503, 200));
    // After a stop without a journal, accepted jobs are in the dead letters.
    hook.signal("-TERM");
    assert!(hook.end().success());
    let dead = std::fs::read_to_string(sandbox.path("dead")).unwrap();
    assert_eq!(dead.lines().count(), 9, "{dead}");
    assert!(dead.contains("the service stopped before the job was done"), "{dead}");
}

#[test]
fn too_many_notifications_a_second_are_told_to_wait() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--rate=1"]);
    let statuses: Vec<u16> = (0..15).map(|_| hook.post("{\"image\":\"r.example/a:b\"}").0).collect();
    assert!(statuses.starts_with(&[200; 9]) && statuses.contains(&429), "{statuses:?}");
    assert!(hook.post("{}").1.contains("retry-after: 1") || hook.post("{}").0 == 429);
    assert_eq!(hook.get("/healthz").0, 200);
}

/// However the service ends, accepted jobs are done: here or after the next start.
fn nothing_is_lost(signal: &str, drain: &str, all_before_the_end: bool) {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let images = images(&server, 4, 60);
    let (allow, drain) = (format!("--allow={}", server.host), format!("--drain-timeout={drain}"));
    let args = [&*allow, &drain, "--journal=journal", "--rate=10000", "--workers=2"];
    let mut first = Hook::serve(&sandbox, &args);
    send_all(&first, &burst(&server, &images, 120));
    first.until("it is in the middle of it", |hook| hook.indexed() >= 5);
    first.signal(signal);
    let status = first.end();
    assert_eq!(status.success(), signal == "-TERM", "{status}");
    assert_eq!(first.indexed() == images.len(), all_before_the_end, "{} were done", first.indexed());
    let second = Hook::serve(&sandbox, &args);
    second.until("the rest is indexed", |hook| {
        let done = hook.events("job").into_iter().map(|line| line["image"].as_str().unwrap().to_owned());
        let all: BTreeSet<_> = indexed_images(&[&first]).into_iter().chain(done).collect();
        all.len() == images.len()
    });
    assert!(second.events("dead-letter").is_empty() && first.events("dead-letter").is_empty());
    for (repository, digest) in images.iter().step_by(7) {
        assert_eq!(indexes(&sandbox, &format!("{}/{repository}@{digest}", server.host)), 1);
    }
}

/// Two services do not write one journal: the second one says so, and the first one's jobs are done.
#[test]
fn a_journal_belongs_to_one_service() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let images = images(&server, 1, 2);
    let allow = format!("--allow={}", server.host);
    let args = [&*allow, "--journal=journal"];
    let first = Hook::serve(&sandbox, &args);
    send_all(&first, &burst(&server, &images[..1], 1));
    let refused = ["hook", "serve", "--listen=127.0.0.1:0", &allow, "--journal=journal"];
    let mut refused = sandbox.command(&refused);
    let said = shown(refused.env("OCISEEK_HOOK_SECRET", SECRET));
    assert_eq!(
        said,
        "--- stderr ---\nerror: journal journal: cannot be locked: another ociseek process uses it\n--- status 1 ---"
    );
    send_all(&first, &burst(&server, &images[1..], 1));
    first.until("both are indexed", |hook| hook.indexed() == 2);
    // A process that was killed holds nothing.
    first.signal("-KILL");
    let second = Hook::serve(&sandbox, &args);
    second.until("it listens", |hook| hook.events("listening").first().is_some_and(|line| line["queued"] == 0));
}

#[test]
fn stopped_in_the_middle_with_time_it_ends_its_work() {
    nothing_is_lost("-TERM", "50", true);
}

#[test]
fn stopped_in_the_middle_without_time_it_goes_on_at_the_next_start() {
    nothing_is_lost("-TERM", "0", false);
}

#[test]
fn killed_in_the_middle_it_goes_on_at_the_next_start() {
    nothing_is_lost("-KILL", "0", false);
}

#[test]
fn what_fails_for_a_while_is_tried_again_and_what_is_broken_is_not() {
    let sandbox = Sandbox::new();
    let host = format!("127.0.0.1:{}", free_port());
    let allow = format!("--allow={host}");
    let hook = Hook::serve(&sandbox, &[&allow, "--dead-letter=dead", "--max-image-size=1MiB", "--retry-wait=3"]);
    let digest = Digest::sha256(b"never pushed");
    assert_eq!(hook.post(&pushed("1", &host, "team/app0", &digest)).0, 202);
    hook.until("it cannot be reached", |hook| hook.events("retry").len() == 1);

    let Some(server) = Server::distribution(&host, |_| String::new()) else { return };
    let good = images(&server, 1, 1);
    let of = |digest: Digest, size: u64| json!({"mediaType": GZIP, "digest": digest, "size": size});
    let config = json!({"mediaType": OCI_CONFIG, "digest": Digest::sha256(b"{}"), "size": 2});
    let put = |layers: serde_json::Value, subject: serde_json::Value| {
        let mut manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers});
        if !subject.is_null() {
            manifest["subject"] = subject;
        }
        manifest.to_string()
    };
    let large = put(json!([of(Digest::sha256(b"large"), 2 << 20)]), json!(null));
    let attached =
        put(json!([of(Digest::sha256(b"x"), 5)]), json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": 7}));
    // Real registries check that blobs exist. These manifests name missing blobs, so a server of
    // ours has them.
    let odd = serving(vec![large.clone(), attached.clone()]);
    let second = Hook::serve(&sandbox, &[&format!("--allow={odd}"), "--max-image-size=1MiB"]);
    for manifest in [&large, &attached] {
        let event = pushed("", &odd, "a", &Digest::sha256(manifest.as_bytes()));
        assert_eq!(second.post(&event).0, 202);
    }
    second.until("both are left alone", |hook| hook.results().get("skipped") == Some(&2));
    let reasons: BTreeSet<String> = second.events("job").iter().map(|line| line["reason"].to_string()).collect();
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

/// A registry with only these manifests.
fn serving(manifests: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let read = stream.read(&mut head).unwrap_or(0);
            let line = String::from_utf8_lossy(&head[..read]).lines().next().unwrap_or_default().to_owned();
            let found = manifests.iter().find(|manifest| line.contains(&Digest::sha256(manifest.as_bytes()).hex()));
            let (status, body) = found.map_or(("404 Not Found", ""), |manifest| ("200 OK", manifest));
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: {OCI_MANIFEST}\r\nContent-Length: {length}\r\nConnection: \
                 close\r\n\r\n{body}"
            );
        }
    });
    host
}
