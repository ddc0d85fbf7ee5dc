//! SIGINT and SIGTERM while the program waits for a registry that does not respond, or for a file.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use ociseek_format::digest::Digest;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::http::stalling_registry;
use ociseek_testkit::sandbox::{self, Sandbox};
use rustix::process::Signal;

/// Waits until the program has ended. Returns its status and standard error.
fn end(child: &mut ChildProcess) -> (Option<i32>, String) {
    (child.end().code(), std::io::read_to_string(child.stderr()).unwrap())
}

#[test]
fn an_interrupted_index_attaches_nothing() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let sandbox = Sandbox::new();
        let (address, requests) = stalling_registry();
        let image = format!("{address}/a/b:v1");
        let mut command = sandbox.command(&["index", "--min-layer-size=0", &image]);
        let mut child = ChildProcess::spawn(
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()),
        );
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|request: &String| {
            request.contains("/blobs/sha256:") && request.contains(&Digest::sha256(b"layer").hex())
        }) {
            seen.push(
                requests.recv_timeout(Duration::from_secs(20)).expect("the layer is asked for"),
            );
        }
        child.signal(signal);
        assert_eq!(end(&mut child), (Some(code), "error: interrupted\n".to_owned()));
        seen.extend(requests.try_iter());
        assert!(
            seen.iter().all(|request| request.starts_with("GET") || request.starts_with("HEAD")),
            "{seen:?}"
        );
        assert!(sandbox.files(".cache").iter().all(|(_, content)| content.is_empty()));
    }
}

#[test]
fn an_interrupted_ztoc_is_not_written() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(&["ztoc", "create", "-", "--output", "z"]);
        let mut child = ChildProcess::spawn(
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()),
        );
        // If the program reads more than a pipe holds, it has started, and its signal handlers are
        // installed.
        let mut stdin = child.stdin();
        stdin.write_all(&sandbox::tar(1, 1, 1 << 20)[..600 << 10]).unwrap();
        child.signal(signal);
        assert_eq!(end(&mut child), (Some(code), "error: interrupted\n".to_owned()));
        drop(stdin);
        assert!(sandbox.files("").is_empty());
    }
}

/// A pipe that nobody writes to, where a file is expected.
#[test]
fn a_signal_ends_the_wait_for_a_file() {
    let sandbox = Sandbox::new();
    let pipe = sandbox.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut waiting = sandbox.command(&["index", "--profile=pipe", "oci:x"]).spawn().unwrap();
    let pid = waiting.id().to_string();
    // The mask of the signals that it handles (proc_pid_status(5)), and then it opens the file.
    let handles_term = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << 14 != 0
    };
    while !handles_term() {
        assert_eq!(waiting.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(waiting.wait().unwrap().code(), Some(143));
}
