//! Runs that are stopped for a while, as on a laptop that is closed, and clocks that jump.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use ociseek_format::digest::Digest;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::hook::{Hook, pushed};
use ociseek_testkit::sandbox::{Sandbox, index, tar};
use ociseek_testkit::servers::faketime;

/// Runs `index` with a slow registry, and stops it twice while it waits for a blob, each time for
/// longer than it waits for an answer. It succeeds.
async fn stopped_twice(settings: RegistrySettings) -> Faulty {
    let slow = Duration::from_millis(500);
    let has_tokens = settings.bearer.is_some();
    let registry =
        Faulty::honest(RegistrySettings { referrers: true, slow_blobs: slow, ..settings }).await;
    registry.add_image("v1", &tar(1, 2, 60_000));
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:v1", registry.host());
    let mut command = sandbox.command(&index(&["--stall-timeout=2s", "--retry-for=5s", &image]));
    let mut child = ChildProcess::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()));
    // A request with a token that has expired does not wait for a blob: the process then renews its
    // token, and if it were stopped with the new one in hand, that would expire too.
    let waits = |stop: usize| {
        let reads = registry.saw("GET", "/blobs/");
        let tokens: BTreeSet<_> = reads.iter().map(|read| read.header("authorization")).collect();
        reads.len() >= stop && (!has_tokens || tokens.len() >= stop)
    };
    for stop in 1..3 {
        while !waits(stop) && child.ended().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        child.signal(Signal::STOP);
        tokio::time::sleep(Duration::from_millis(3000)).await;
        child.signal(Signal::CONT);
    }
    let ended = tokio::task::block_in_place(|| child.end());
    assert!(ended.success(), "{}", std::io::read_to_string(child.stderr()).unwrap());
    registry
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_continues_later() {
    stopped_twice(RegistrySettings::default()).await;
}

/// The process takes its token to be valid for a minute, the shortest time that a registry may
/// state, so only the registry notices that it has expired meanwhile. The same happens on a laptop
/// that is closed, whose monotonic clock stands still.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_continues_with_a_new_token() {
    let token_lifetime = Some(Duration::from_secs(2));
    let settings =
        RegistrySettings { bearer: Some(None), token_lifetime, ..RegistrySettings::default() };
    let registry = stopped_twice(settings).await;
    let reads = registry.saw("GET", "/blobs/");
    let tokens: BTreeSet<_> = reads.iter().map(|read| read.header("authorization")).collect();
    assert!(tokens.len() >= 2 && !tokens.contains(&None), "{tokens:?}");
}

#[test]
fn a_hook_survives_clock_jumps() {
    let Some(faketime) = faketime() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let settings =
        RegistrySettings { referrers: true, bearer: Some(None), ..RegistrySettings::default() };
    let registry = runtime.block_on(Faulty::honest(settings));
    let sandbox = Sandbox::new();
    let clock = "clock";
    let allow = format!("--allow={}", registry.host());
    let journal = "--journal=journal";
    let args = [
        "hook",
        "serve",
        "--listen=127.0.0.1:0",
        "--min-layer-size=0",
        "--retry-wait=1",
        &allow,
        journal,
    ];
    let start = |fakes: bool| {
        let mut command = sandbox.command(&args);
        if fakes {
            command
                .envs(faketime)
                .env("FAKETIME_TIMESTAMP_FILE", sandbox.path(clock))
                .env("FAKETIME_NO_CACHE", "1");
        }
        Hook::spawn(&mut command)
    };
    std::fs::write(sandbox.path(clock), "+0").unwrap();
    let push = |hook: &Hook, number: u64| {
        registry.add_image("v1", &tar(number, 2, 30_000));
        let digest = Digest::sha256(&registry.manifest("v1").unwrap());
        let (status, text) =
            hook.post(&pushed(&number.to_string(), &registry.host(), "a/b", &digest));
        assert_eq!(status, 202, "{text}");
    };
    let mut hook = start(true);
    for (number, jump) in (1..).zip(["+0", "+2d", "-400d", "+3650d", "+0"]) {
        std::fs::write(sandbox.path(clock), jump).unwrap();
        push(&hook, number);
        hook.until("an index", |hook| hook.indexed() as u64 == number);
    }
    let years: Vec<_> =
        hook.log().iter().map(|line| line["time"].as_str().unwrap()[..4].to_owned()).collect();
    assert!(years.iter().min() < years.iter().max(), "the clock did not jump: {years:?}");
    hook.until_recorded(&sandbox.path("journal"), 5);
    hook.child.kill();
    // With the right clock again: what was done is not done again.
    let hook = start(false);
    push(&hook, 9);
    hook.until("an index", |hook| hook.indexed() == 1);
    assert_eq!(hook.results(), [("indexed".to_owned(), 1)].into());
}
