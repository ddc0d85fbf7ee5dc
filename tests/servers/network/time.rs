//! Runs that are stopped for a while, as on a laptop that is closed, and clocks that jump.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::child_process::ChildProcess;
use crate::support::faulty::{Faulty, Nature};
use crate::support::hook::{Hook, pushed};
use crate::support::sandbox::{Sandbox, index, tar};
use crate::support::servers::skip;
use ociseek::digest::Digest;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_stopped_goes_on() {
    let slow = Nature { referrers: true, slow_blobs: Duration::from_millis(500), ..Nature::default() };
    let registry = Faulty::honest(slow).await;
    registry.add_image("v1", &tar(1, 2, 60_000));
    let (sandbox, image) = (Sandbox::new(), format!("{}/a/b:v1", registry.host()));
    let mut command = sandbox.command(&index(&["--stall-timeout=2s", "--retry-for=5s", &image]));
    let mut child = ChildProcess::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    for blobs in 1..3 {
        while registry.saw("GET", "/blobs/").len() < blobs && child.ended().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.signal(Signal::STOP);
        // Longer than it waits for an answer.
        tokio::time::sleep(Duration::from_millis(3000)).await;
        child.signal(Signal::CONT);
    }
    let ended = tokio::task::block_in_place(|| child.end());
    assert!(ended.success(), "{}", std::io::read_to_string(child.stderr()).unwrap());
}

/// The library that gives a program another clock.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

#[test]
fn a_hook_survives_clocks_that_jump() {
    if !Path::new(FAKETIME).exists() {
        return skip("faketime is not installed");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let nature = Nature { referrers: true, bearer: Some(None), ..Nature::default() };
    let registry = runtime.block_on(Faulty::honest(nature));
    let (sandbox, clock) = (Sandbox::new(), "clock");
    let (allow, journal) = (format!("--allow={}", registry.host()), "--journal=journal");
    let args = ["hook", "serve", "--listen=127.0.0.1:0", "--min-layer-size=0", "--retry-wait=1", &allow, journal];
    let start = |fakes: bool| {
        let mut command = sandbox.command(&args);
        if fakes {
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", sandbox.path(clock));
            command.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
        Hook::spawn(&mut command)
    };
    std::fs::write(sandbox.path(clock), "+0").unwrap();
    let push = |hook: &Hook, number: u64| {
        registry.add_image("v1", &tar(number, 2, 30_000));
        let digest = Digest::sha256(&registry.manifest("v1").unwrap());
        let (status, text) = hook.post(&pushed(&number.to_string(), &registry.host(), "a/b", &digest));
        assert_eq!(status, 202, "{text}");
    };
    let mut hook = start(true);
    for (number, jump) in (1..).zip(["+0", "+2d", "-400d", "+3650d", "+0"]) {
        std::fs::write(sandbox.path(clock), jump).unwrap();
        push(&hook, number);
        hook.until("an index", |hook| hook.indexed() as u64 == number);
    }
    let years: Vec<_> = hook.log().iter().map(|line| line["time"].as_str().unwrap()[..4].to_owned()).collect();
    assert!(years.iter().min() < years.iter().max(), "the clock did not jump: {years:?}");
    hook.child.kill();
    // With the right clock again: what was done is not done again.
    let hook = start(false);
    push(&hook, 9);
    hook.until("an index", |hook| hook.indexed() == 1);
    assert_eq!(hook.results(), [("indexed".to_owned(), 1)].into());
}
