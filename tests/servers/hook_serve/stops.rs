//! Services that stop or are killed, and the journal by which the next one continues.

use std::collections::BTreeSet;

use super::{burst, indexed_images, send_all};
use ociseek_format::digest::Digest;
use ociseek_testkit::hook::{Hook, SECRET, images, indexes, pushed};
use ociseek_testkit::in_memory;
use ociseek_testkit::sandbox::{Sandbox, shown};
use ociseek_testkit::servers::{Server, free_port};
use rustix::process::Signal;

/// However the service ends, accepted jobs are done: here or after the next start.
fn nothing_is_lost(signal: Signal, drain: &str, all_before_the_end: bool) {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let images = images(&server, 4, 60);
    let allow = format!("--allow={}", server.host);
    let drain = format!("--drain-timeout={drain}");
    // On a busy disk, the events would take longer than the jobs.
    let memory = tempfile::tempdir_in(in_memory()).unwrap();
    let journal = format!("--journal={}", memory.path().join("journal").display());
    let args = [&*allow, &drain, &journal, "--rate=10000", "--workers=2"];
    let mut first = Hook::serve(&sandbox, &args);
    send_all(&first, &burst(&server, &images, 120));
    first.until("it is in the middle of it", |hook| hook.indexed() >= 5);
    first.child.signal(signal);
    let status = first.end();
    assert_eq!(status.success(), signal == Signal::TERM, "{status}");
    assert_eq!(
        first.indexed() == images.len(),
        all_before_the_end,
        "{} were done",
        first.indexed()
    );
    let second = Hook::serve(&sandbox, &args);
    second.until("the rest is indexed", |hook| {
        let done =
            hook.events("job").into_iter().map(|line| line["image"].as_str().unwrap().to_owned());
        let all: BTreeSet<_> = indexed_images(&[&first]).into_iter().chain(done).collect();
        all.len() == images.len()
    });
    assert!(second.events("dead-letter").is_empty() && first.events("dead-letter").is_empty());
    for (repository, digest) in images.iter().step_by(7) {
        assert_eq!(indexes(&sandbox, &format!("{}/{repository}@{digest}", server.host)), 1);
    }
}

/// Two services do not write one journal: the second one says so, and the first one's jobs are
/// done.
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
    first.until_recorded(&sandbox.path("journal"), 2);
    // A process that was killed holds nothing.
    first.child.signal(Signal::KILL);
    let second = Hook::serve(&sandbox, &args);
    second.until("it listens", |hook| {
        hook.events("listening").first().is_some_and(|line| line["queued"] == 0)
    });
}

#[test]
fn a_stopped_service_finishes_its_work_in_time() {
    nothing_is_lost(Signal::TERM, "50", true);
}

#[test]
fn a_service_stopped_without_time_continues_at_the_next_start() {
    nothing_is_lost(Signal::TERM, "0", false);
}

#[test]
fn a_killed_service_continues_at_the_next_start() {
    nothing_is_lost(Signal::KILL, "0", false);
}

/// A try that failed before the service was stopped counts, so restarts do not give a job more
/// tries.
#[test]
fn restarts_give_a_failing_job_no_more_tries() {
    let sandbox = Sandbox::new();
    let host = format!("127.0.0.1:{}", free_port());
    let allow = format!("--allow={host}");
    let serve = || {
        Hook::serve(
            &sandbox,
            &[&allow, "--journal=journal", "--retry-wait=3600", "--drain-timeout=50"],
        )
    };
    for tries in 1..=2 {
        let mut hook = serve();
        if tries == 1 {
            assert_eq!(
                hook.post(&pushed("1", &host, "app", &Digest::sha256(b"never pushed"))).0,
                202
            );
        }
        hook.until("its try has failed", |hook| {
            hook.events("retry").first().is_some_and(|line| line["tries"] == tries)
        });
        hook.child.signal(Signal::TERM);
        assert!(hook.end().success());
        assert!(hook.events("dead-letter").is_empty());
    }
    let last = serve();
    last.until("it is given up", |hook| {
        hook.events("dead-letter").first().is_some_and(|line| line["tries"] == 3)
    });
}
