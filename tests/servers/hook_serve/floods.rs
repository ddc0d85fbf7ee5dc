//! More events than can be handled at once.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{burst, indexed_images, send_all};
use ociseek_testkit::hook::{Hook, SECRET, images, indexes};
use ociseek_testkit::http::stalling_registry;
use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::Server;
use rustix::process::Signal;
use serde_json::json;

#[test]
fn a_thousand_simultaneous_events_index_each_image_once() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let images = images(&server, 8, 150);
    let hook = Hook::serve(
        &sandbox,
        &[&format!("--allow={}", server.host), "--rate=10000", "--workers=4"],
    );
    let begun = Instant::now();
    send_all(&hook, &burst(&server, &images, 1000));
    let sent = begun.elapsed();
    hook.until("all are indexed", |hook| hook.indexed() == images.len());
    println!(
        "1,000 events in {sent:.1?}, 150 images indexed in {:.1?}, peak memory {} MiB",
        begun.elapsed(),
        hook.child.peak_memory() >> 20
    );
    let all = indexed_images(&[&hook]);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), images.len());
    assert_eq!(
        hook.results(),
        [("indexed".to_owned(), images.len())].into(),
        "no image was looked at twice"
    );
    for (repository, digest) in images.iter().step_by(37) {
        assert_eq!(indexes(&sandbox, &format!("{}/{repository}@{digest}", server.host)), 1);
    }
    assert!(hook.child.peak_memory() < 128 << 20, "{} bytes", hook.child.peak_memory());
}

#[test]
fn a_full_queue_is_reported_and_one_repository_cannot_fill_it() {
    let sandbox = Sandbox::new();
    let host = stalling_registry().0;
    let args = [
        &*format!("--allow={host}"),
        "--queue-size=8",
        "--workers=1",
        "--drain-timeout=0",
        "--dead-letter=dead",
    ];
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
    // Images are counted, not notifications.
    let two =
        json!({"repository": "i", "docker_url": format!("{host}/i"), "updated_tags": ["1", "2"]});
    assert_eq!(hook.post(&two.to_string()).0, 503);
    let metrics = hook.get(&format!("/metrics?token={SECRET}")).1;
    assert!(metrics.contains("ociseek_hook_images_total{result=\"full\"} 4\n"), "{metrics}");
    assert_eq!((hook.get("/readyz").0, hook.get("/healthz").0), (503, 200));
    // After a stop without a journal, accepted jobs are in the dead letters.
    hook.child.signal(Signal::TERM);
    assert!(hook.end().success());
    let dead = std::fs::read_to_string(sandbox.path("dead")).unwrap();
    assert_eq!(dead.lines().count(), 9, "{dead}");
    assert!(dead.contains("the service stopped before the job was done"), "{dead}");
}

#[test]
fn excess_notifications_are_told_to_wait() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--rate=1"]);
    let statuses: Vec<u16> =
        (0..15).map(|_| hook.post("{\"image\":\"r.example/a:b\"}").0).collect();
    assert!(statuses.starts_with(&[200; 9]) && statuses.contains(&429), "{statuses:?}");
    assert!(hook.post("{}").1.contains("retry-after: 1") || hook.post("{}").0 == 429);
    assert_eq!(hook.get("/healthz").0, 200);
}
