//! Errors that suggest what to do.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::push;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::sandbox::{PLAIN, Sandbox, index, shown, tar};
use ociseek_testkit::servers::Server;
use rustix::process::Signal;

/// A server that reads a request on each connection and sends the next of these responses; then the
/// last one repeatedly.
fn answering(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                for answer in answers {
                    let mut buffer = [0; 4096];
                    if !stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                        return;
                    }
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
        }
    });
    address
}

const ECR: &str = "123456789012.dkr.ecr.eu-west-1.amazonaws.com";

#[test]
fn an_expired_ecr_password_gets_a_hint() {
    let login = format!(
        "aws ecr get-login-password --region eu-west-1 | docker login --username AWS --password-stdin {ECR}"
    );
    let unauthorized =
        answering(&["HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"]);
    let expired =
        answering(&["HTTP/1.1 403 Forbidden\r\nContent-Length: 103\r\nConnection: close\r\n\r\n\
         {\"errors\":[{\"code\":\"DENIED\",\
         \"message\":\"Your authorization token has expired. Reauthenticate and try a\"}]}"]);
    for (proxy, want) in [
        (
            unauthorized,
            format!("hint: 401 from {ECR}: run {login}, or use --creds USER:PASSWORD\n"),
        ),
        (expired, format!("hint: 403 from {ECR}: ECR passwords expire after 12 hours: {login}\n")),
    ] {
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(&["index", "--plain-http", &format!("{ECR}/a/b:v1")]);
        let text = shown(command.env("HTTP_PROXY", format!("http://{proxy}")));
        assert!(text.contains(&want) && text.ends_with("--- status 1 ---"), "{text}");
    }
}

#[test]
fn wrong_use_of_tls_gets_a_hint() {
    let proxy = answering(&["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n"]);
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["index", "registry.invalid/a/b:v1"]);
    let text = shown(command.env("HTTPS_PROXY", format!("http://{proxy}")));
    assert!(
        text.contains("hint: registry.invalid seems to speak plain HTTP: use --plain-http\n"),
        "{text}"
    );

    let Some(server) = Server::distribution_with_tls() else { return };
    let sandbox = Sandbox::with_small_image();
    let Some(image) = push(&sandbox, "img", &server, &[]) else { return };
    let text = sandbox.run(&index(&[&image]));
    let hint = format!(
        "hint: {} seems to speak TLS: use --plain-http=false, and --ca-file FILE",
        server.host
    );
    assert!(text.contains(&hint) && text.ends_with("--- status 1 ---"), "{text}");
    let text = sandbox.run(&index(&[
        "--ca-file",
        server.dir.path().join("ca.pem").to_str().unwrap(),
        &image,
    ]));
    assert!(text.ends_with("--- status 0 ---"), "{text}");
}

#[test]
fn a_list_of_platforms_gets_a_hint_for_single_platform_commands() {
    let sandbox = Sandbox::with_small_image();
    let variable = ("OCISEEK_PLATFORM", "linux/amd64,linux/arm64");
    for command in [&["ls", "oci:img"][..], &["cat", "oci:img", "/x"]] {
        let text = shown(sandbox.command(command).env(variable.0, variable.1));
        assert!(
            text.contains("several platforms, but this command takes one: use --platform"),
            "{text}"
        );
        assert!(text.ends_with("--- status 2 ---"), "{text}");
    }
    let text = shown(
        sandbox.command(&["ls", "--platform=linux/amd64", "oci:img"]).env(variable.0, variable.1),
    );
    assert!(!text.ends_with("--- status 2 ---"), "{text}");
}

#[test]
fn verify_quick_reports_what_it_skips() {
    let sandbox = Sandbox::new();
    let mut layout = ociseek_testkit::sandbox::Layout::new(&sandbox.path("img"));
    let mut large = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(65 << 20);
    header.set_mode(0o644);
    large.append_data(&mut header, "zeros", std::io::repeat(0).take(65 << 20)).unwrap();
    let layer = layout.blob(PLAIN, &large.into_inner().unwrap());
    let image = layout.image("amd64", &[layer]);
    layout.tag(image, "v1");
    sandbox.run(&["index", "--no-cache", "--span-size=128MiB", "oci:img"]);
    let text = sandbox.run(&["verify", "--quick", "oci:img"]);
    assert!(
        text.contains("note: 1 span was not read: --quick skips spans larger than 64.0 MiB"),
        "{text}"
    );
    // The config of these images has no diff IDs, which verification reports.
    assert!(
        text.contains("ok (1 of 1 layer, 0 of 1 span") && text.ends_with("--- status 3 ---"),
        "{text}"
    );
    let report = sandbox.json(3, &["verify", "--quick", "--format=json", "oci:img"]);
    assert_eq!(report["manifests"][0]["indexes"][0]["layers"][0]["spans_too_large"], 1, "{report}");
    let text = sandbox.run(&["verify", "oci:img"]);
    assert!(!text.contains("not read"), "{text}");
}

/// A registry that never answers the end of an upload. The program is stopped while it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_open_upload_is_cancelled_at_a_signal() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let registry = Faulty::start(RegistrySettings::default(), |seen, truth| {
            if !seen.is("PUT", "/blobs/uploads/") {
                return None;
            }
            let begun = Instant::now();
            while truth.saw("DELETE", "/blobs/uploads/").is_empty()
                && begun.elapsed() < Duration::from_secs(20)
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            None
        })
        .await;
        registry.add_image("v1", &tar(1, 4, 50_000));
        let sandbox = Sandbox::new();
        let mut command =
            sandbox.command_that_hangs_up(&index(&[&format!("{}/a/b:v1", registry.host())]));
        let mut child = ChildProcess::spawn(
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()),
        );
        let begun = Instant::now();
        while registry.saw("PUT", "/blobs/uploads/").is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20) && child.ended().is_none());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.signal(signal);
        let ended = tokio::task::block_in_place(|| child.end());
        assert_eq!(ended.code(), Some(status));
        assert_eq!(std::io::read_to_string(child.stderr()).unwrap(), "error: interrupted\n");
        let cancelled = registry.saw("DELETE", "/blobs/uploads/");
        assert_eq!(
            cancelled.len(),
            1,
            "{:?}",
            registry.requests().iter().map(|s| &s.path).collect::<Vec<_>>()
        );
        assert!(registry.saw("PUT", "/manifests/").is_empty());
    }
}
