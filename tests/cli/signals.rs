//! SIGINT and SIGTERM while the program waits for a registry that does not respond.

use crate::support::sandbox;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST, Sandbox};
use ociseek::digest::Digest;
use serde_json::json;

/// A registry with one image, which only sends the first bytes of a layer. Reports each request
/// line.
fn stalling_registry() -> (String, Receiver<String>) {
    let layer = json!({"mediaType": GZIP, "digest": Digest::sha256(b"layer"), "size": 50_000_000});
    let config = json!({"mediaType": OCI_CONFIG, "digest": Digest::sha256(b"{}"), "size": 2});
    let manifest =
        json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [layer]}).to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (manifest, sender) = (manifest.clone(), sender.clone());
            std::thread::spawn(move || serve(stream, &manifest, &sender));
        }
    });
    (address, requests)
}

fn serve(mut stream: TcpStream, manifest: &str, requests: &Sender<String>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            head.push(line);
        }
        let request = head[0].trim().to_owned();
        let stalls = request.contains(&Digest::sha256(b"layer").to_string()) && request.contains("/blobs/");
        let answer = if request.contains("/manifests/") && !request.contains("/manifests/sha256-") {
            let (digest, length) = (Digest::sha256(manifest.as_bytes()), manifest.len());
            let headers = format!("Content-Type: {OCI_MANIFEST}\r\nDocker-Content-Digest: {digest}");
            format!("HTTP/1.1 200 OK\r\n{headers}\r\nContent-Length: {length}\r\n\r\n{manifest}")
        } else if stalls {
            "HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n\x1f".to_owned()
        } else {
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()
        };
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
        // The test must not send a signal before the program reads the layer.
        let _ = requests.send(request);
    }
}

fn send(signal: &str, child: &Child) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Waits a limited time for the program to exit. Returns its status and standard error.
fn end(mut child: Child) -> (Option<i32>, String) {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(10) {
            child.kill().unwrap();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_interrupted_index_attaches_nothing() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let sandbox = Sandbox::new();
        let (address, requests) = stalling_registry();
        let image = format!("{address}/a/b:v1");
        let mut command = sandbox.command(&["index", "--min-layer-size=0", &image]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|request: &String| {
            request.contains("/blobs/sha256:") && request.contains(&Digest::sha256(b"layer").hex())
        }) {
            seen.push(requests.recv_timeout(Duration::from_secs(20)).expect("the layer is asked for"));
        }
        send(signal, &child);
        assert_eq!(end(child), (Some(code), "error: interrupted\n".to_owned()));
        seen.extend(requests.try_iter());
        assert!(seen.iter().all(|request| request.starts_with("GET") || request.starts_with("HEAD")), "{seen:?}");
        assert!(sandbox.files(".cache").iter().all(|(_, content)| content.is_empty()));
    }
}

#[test]
fn an_interrupted_ztoc_is_not_written() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(&["ztoc", "create", "-", "--output", "z"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // If the program reads more than a pipe holds, it has started, and its signal handlers are
        // installed.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&sandbox::tar(1, 1, 1 << 20)[..600 << 10]).unwrap();
        send(signal, &child);
        assert_eq!(end(child), (Some(code), "error: interrupted\n".to_owned()));
        drop(stdin);
        assert!(sandbox.files("").is_empty());
    }
}
