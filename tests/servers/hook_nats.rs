//! `ociseek hook serve --queue` and `hook worker` with a real JetStream.
#![cfg(feature = "nats")]

use ociseek_testkit::hook;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, AckKind};
use axum::http::header;
use futures_util::StreamExt;

use ociseek_hook::job::Job;
use ociseek_hook::nats::{NatsQueue, PublishOutcome};
use ociseek_store::blob::Target;
use ociseek_testkit::PATIENCE;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, problem};
use ociseek_testkit::hook::{Hook, assert_documented, images, indexes, pushed};
use ociseek_testkit::http::{exchange, post, stalling_registry};
use ociseek_testkit::image::Image;
use ociseek_testkit::nats_relay::{Harm, NatsRelay, Sent};
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, Sandbox, tar};
use ociseek_testkit::servers::{Server, free_port, repository, tool};
use rustix::process::Signal;
use serde_json::json;

/// nats-server with JetStream in a directory of its own.
pub struct Nats {
    child: ChildProcess,
    pub url: String,
    dir: tempfile::TempDir,
    pub port: u16,
}

impl Nats {
    pub fn start() -> Option<Nats> {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let child = Nats::spawn(dir.path(), port)?;
        Some(Nats { child, url: format!("nats://127.0.0.1:{port}/test"), dir, port })
    }

    fn spawn(dir: &std::path::Path, port: u16) -> Option<ChildProcess> {
        // Debian installs it outside the users' search path.
        let known = std::path::Path::new("/usr/sbin/nats-server");
        let program = if known.is_file() { known.to_owned() } else { tool("nats-server")? };
        let mut command = Command::new(program);
        command
            .args([
                "--jetstream",
                "--addr",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--store_dir",
            ])
            .arg(dir);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Some(ChildProcess::listening(&mut command, &format!("127.0.0.1:{port}")))
    }

    /// Kills it, and restarts it with the data on its disk.
    pub fn restart(&mut self) {
        self.child.kill();
        self.child = Nats::spawn(self.dir.path(), self.port).unwrap();
    }

    /// Stops it gracefully.
    fn stop(&mut self) {
        self.child.signal(Signal::TERM);
        self.child.end();
    }

    /// Waits until a stream has this many messages.
    async fn until(&self, stream: &str, messages: u64) {
        let begun = Instant::now();
        while self.messages(stream).await != messages {
            assert!(
                begun.elapsed() < PATIENCE,
                "{stream} has {} messages",
                self.messages(stream).await
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The number of messages in a stream.
    async fn messages(&self, stream: &str) -> u64 {
        let client = async_nats::connect(format!("nats://127.0.0.1:{}", self.port)).await.unwrap();
        let mut stream = async_nats::jetstream::new(client).get_stream(stream).await.unwrap();
        stream.info().await.unwrap().state.messages
    }
}

fn worker(sandbox: &Sandbox, nats: &Nats, registry: &str, more: &[&str]) -> Hook {
    let queue = format!("--queue={}", nats.url);
    let allow = format!("--allow={registry}");
    let args = [&["worker", &queue, &allow, "--workers=2", "--no-cache"], more].concat();
    Hook::start(sandbox, &args)
}

/// How many times each image was indexed.
fn times(hooks: &[Hook]) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for line in
        hooks.iter().flat_map(|hook| hook.events("job")).filter(|line| line["result"] == "indexed")
    {
        *times.entry(line["image"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    times
}

#[tokio::test]
async fn workers_index_every_image_even_if_one_is_killed() {
    let (Some(mut nats), Some(server)) = (Nats::start(), Server::olareg(|_, _| Vec::new())) else {
        return;
    };
    let sandbox = Sandbox::new();
    let images = images(&server, 8, 200);
    let queue = format!("--queue={}", nats.url);
    let serve =
        Hook::serve(&sandbox, &[&queue, &format!("--allow={}", server.host), "--rate=10000"]);
    // Two of three events are sent twice, as by a registry that lost the first response; half of
    // them before there are workers.
    let send = |from: usize, to: usize| {
        for (number, (repository, digest)) in images.iter().enumerate().take(to).skip(from) {
            for again in 0..=usize::from(number % 3 > 0) {
                let body = pushed(&format!("{number} {again}"), &server.host, repository, digest);
                let (status, text) = serve.post(&body);
                assert!(matches!(status, 200 | 202), "{text}");
            }
        }
    };
    send(0, 100);
    assert_eq!(nats.messages("test").await, 100, "each image stands in the queue once");
    nats.restart();
    let silence = ["--silence=6"];
    let workers: Vec<Hook> =
        (0..3).map(|_| worker(&sandbox, &nats, &server.host, &silence)).collect();
    serve.until("it has found the server again", |hook| hook.get("/readyz").0 == 200);
    send(100, 200);
    // In the middle, when it has finished some jobs and is running others.
    workers[0].until("it is at work", |hook| hook.indexed() >= 3);
    workers[0].child.signal(Signal::KILL);
    let begun = Instant::now();
    while nats.messages("test").await > 0 {
        assert!(begun.elapsed() < PATIENCE, "{} jobs are left", nats.messages("test").await);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!(
        "200 images by three workers, the last of the killed one's after {:.1?}",
        begun.elapsed()
    );
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(nats.messages("test-parked").await, 0);
    for (repository, digest) in &images {
        assert_eq!(
            indexes(&sandbox, &format!("{}/{repository}@{digest}", server.host)),
            1,
            "{repository}@{digest}"
        );
    }
    // The images of the killed worker may have been attached without acknowledgement. Then they are
    // found to be done.
    let times = times(&workers);
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    assert!(workers[0].indexed() < 200 && workers[1].indexed() > 0 && workers[2].indexed() > 0);
    let told: BTreeSet<_> = times.keys().collect();
    println!("{} told as indexed, {} by the one that was killed", told.len(), workers[0].indexed());
}

#[tokio::test]
async fn failed_jobs_are_parked_with_their_reason_and_others_continue() {
    let (Some(nats), Some(server)) = (Nats::start(), Server::olareg(|_, _| Vec::new())) else {
        return;
    };
    let sandbox = Sandbox::new();
    let good = images(&server, 1, 1);
    let garbage = b"\x1f\x8b\x08 and then no gzip at all, however often one looks";
    let image = Image::new(&json!({}), [(GZIP, garbage.to_vec())]);
    let broken = image.push(&server, "team/app0", &[]);

    let queue = NatsQueue::connect(&nats.url.parse().unwrap(), |_| {}).await.unwrap();
    let job = |name: &str| Job { image: name.parse().unwrap() };
    let poison = job(&format!("{}/team/app0@{broken}", server.host));
    assert_eq!(queue.publish(&poison).await.unwrap(), PublishOutcome::New);
    assert_eq!(queue.publish(&poison).await.unwrap(), PublishOutcome::Duplicate);
    let stranger = job(&format!("127.0.0.1:1/team/app0@{broken}"));
    queue.publish(&stranger).await.unwrap();
    let client = async_nats::connect(format!("nats://127.0.0.1:{}", nats.port)).await.unwrap();
    client.publish("test.jobs", "{\"registry\": \"../x\"}".into()).await.unwrap();
    client.flush().await.unwrap();
    queue.publish(&job(&format!("{}/{}@{}", server.host, good[0].0, good[0].1))).await.unwrap();

    let mut hook = worker(&sandbox, &nats, &server.host, &["--dead-letter=dead"]);
    hook.until("all are settled", |hook| {
        hook.indexed() == 1 && hook.events("dead-letter").len() == 3
    });
    let begun = Instant::now();
    while (nats.messages("test").await, nats.messages("test-parked").await) != (0, 3) {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let stream = async_nats::jetstream::new(client).get_stream("test-parked").await.unwrap();
    let mut reasons = Vec::new();
    for sequence in 1..=3 {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let record: serde_json::Value = serde_json::from_slice(&message.payload).unwrap();
        reasons.push(record["error"].as_str().unwrap().to_owned());
    }
    for want in ["is broken", "not allowed by --allow", "is not the JSON of a job"] {
        assert!(reasons.iter().any(|reason| reason.contains(want)), "{want}: {reasons:?}");
    }
    hook.child.signal(Signal::TERM);
    assert!(hook.end().success());
    assert_eq!(hook.events("stopped").len(), 1);

    // The server still remembers the image, but a new request is queued again.
    assert_eq!(queue.publish(&poison).await.unwrap(), PublishOutcome::New);
    assert_eq!(queue.publish(&poison).await.unwrap(), PublishOutcome::Duplicate);
    assert_eq!(nats.messages("test").await, 1);
    let hook = worker(&sandbox, &nats, &server.host, &[]);
    hook.until("it is parked again", |hook| hook.events("dead-letter").len() == 1);
    nats.until("test-parked", 4).await;
    assert_eq!(queue.publish(&poison).await.unwrap(), PublishOutcome::New, "and again");
}

/// `IP:PORT` of a worker's own endpoints.
fn own_address(worker: &Hook) -> String {
    worker.until("it works", |worker| !worker.events("working").is_empty());
    worker.events("working")[0]["address"].as_str().unwrap().to_owned()
}

fn get(address: &str, path: &str) -> (u16, String) {
    exchange(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes(),
    )
}

#[tokio::test]
async fn a_worker_survives_a_queue_outage_and_stops_without_the_queue() {
    let (Some(mut nats), Some(server)) = (Nats::start(), Server::olareg(|_, _| Vec::new())) else {
        return;
    };
    let sandbox = Sandbox::new();
    let images = images(&server, 1, 1);
    let mut hook =
        worker(&sandbox, &nats, &server.host, &["--listen=127.0.0.1:0", "--drain-timeout=1"]);
    let address = own_address(&hook);
    assert_eq!((get(&address, "/healthz").0, get(&address, "/readyz").0), (200, 200));

    // A line when the connection is lost, a line when it is back, and jobs run as before.
    nats.child.kill();
    hook.until("it is seen", |hook| hook.events("queue").len() == 1);
    assert_eq!((get(&address, "/healthz").0, get(&address, "/readyz").0), (200, 503));
    nats.restart();
    hook.until("it is back", |hook| hook.events("queue").len() == 2);
    assert_eq!(get(&address, "/readyz").0, 200);
    let queue = NatsQueue::connect(&nats.url.parse().unwrap(), |_| {}).await.unwrap();
    let (repository, digest) = &images[0];
    let job = Job { image: format!("{}/{repository}@{digest}", server.host).parse().unwrap() };
    queue.publish(&job).await.unwrap();
    hook.until("it is indexed", |hook| hook.indexed() == 1);
    let (status, text) = get(&address, "/metrics");
    assert!(
        status == 200 && text.contains("ociseek_hook_jobs_total{result=\"indexed\"} 1"),
        "{text}"
    );

    // This time the server closes the connections gracefully, and stays away.
    nats.stop();
    hook.until("it is seen", |hook| hook.events("queue").len() == 3);
    hook.child.signal(Signal::TERM);
    assert!(hook.end().success());
    assert_documented(&hook.log());
    let lines = hook.events("queue");
    let levels: Vec<_> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["warn", "info", "warn"], "{lines:?}");
    assert!(
        lines[0]["error"].as_str().unwrap().starts_with("lost the connection to the queue"),
        "{lines:?}"
    );
    assert_eq!(lines[1]["message"], "reconnected to the queue");
}

/// A job is not to blame if it takes longer than its workers live.
#[tokio::test]
async fn orderly_stops_do_not_count_as_tries() {
    let Some(nats) = Nats::start() else { return };
    let sandbox = Sandbox::new();
    let host = stalling_registry().0;
    let queue = NatsQueue::connect(&nats.url.parse().unwrap(), |_| {}).await.unwrap();
    let job = Job { image: format!("{host}/a:v1").parse().unwrap() };
    queue.publish(&job).await.unwrap();
    for _ in 0..7 {
        let mut hook =
            worker(&sandbox, &nats, &host, &["--listen=127.0.0.1:0", "--drain-timeout=0"]);
        let address = own_address(&hook);
        hook.until("it is in hand", |hook| {
            assert!(hook.events("dead-letter").is_empty(), "{:?}", hook.log());
            get(&address, "/metrics").1.contains("ociseek_hook_running 1")
        });
        hook.child.signal(Signal::TERM);
        assert!(hook.end().success());
    }
    assert_eq!((nats.messages("test").await, nats.messages("test-parked").await), (1, 0));
}

/// The server counts deliveries, and not how many of them failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_fails_at_the_third_delivery_is_asked_again() {
    let Some(nats) = Nats::start() else { return };
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let registry = Faulty::start(RegistrySettings::with_referrers(), move |_, _| {
        // For longer than anybody waits, so that the try ends.
        let mut busy = problem(503, "UNAVAILABLE", "not now");
        busy.headers_mut().insert(header::RETRY_AFTER, 86_400.into());
        failing.load(Ordering::SeqCst).then_some(busy)
    })
    .await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let sandbox = Sandbox::new();
    let host = registry.host();
    let queue = NatsQueue::connect(&nats.url.parse().unwrap(), |_| {}).await.unwrap();
    queue.publish(&Job { image: format!("{host}/a/b:v1").parse().unwrap() }).await.unwrap();

    // As if two workers had not got it.
    let client = async_nats::connect(format!("nats://127.0.0.1:{}", nats.port)).await.unwrap();
    let stream = jetstream::new(client).get_stream("test").await.unwrap();
    let config = pull::Config {
        durable_name: Some("workers".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await.unwrap();
    for _ in 0..2 {
        let mut batch =
            consumer.fetch().max_messages(1).expires(PATIENCE).messages().await.unwrap();
        batch.next().await.unwrap().unwrap().ack_with(AckKind::Nak(None)).await.unwrap();
    }

    let hook = worker(&sandbox, &nats, &host, &["--retry-wait=1"]);
    hook.until("it is to be tried again", |hook| {
        assert!(hook.events("dead-letter").is_empty(), "{:?}", hook.log());
        !hook.events("retry").is_empty()
    });
    assert_eq!(hook.events("retry")[0]["tries"], 3);
    fails.store(false, Ordering::SeqCst);
    hook.until("it is indexed", |hook| hook.indexed() == 1);
    nats.until("test", 0).await;
    assert_eq!(nats.messages("test-parked").await, 0);
}

/// An answer that is not the server's confirmation.
#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledgement_that_nobody_serves_is_told() {
    let Some(nats) = Nats::start() else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let sandbox = Sandbox::new();
    let host = registry.host();
    let acknowledgement = Sent { kind: "+ACK".to_owned(), number: 1, is_answered: true };
    let relay =
        NatsRelay::new(nats.port, "test", Some((acknowledgement, Harm::NoResponders))).await;
    relay.arm();
    let (queue, allow) =
        (format!("--queue=nats://127.0.0.1:{}/test", relay.port), format!("--allow={host}"));
    let hook = Hook::start(&sandbox, &["worker", &queue, &allow, "--no-cache", "--silence=3"]);
    let queue = NatsQueue::connect(&nats.url.parse().unwrap(), |_| {}).await.unwrap();
    queue.publish(&Job { image: format!("{host}/a/b:v1").parse().unwrap() }).await.unwrap();
    hook.until("it is told", |hook| !hook.events("queue").is_empty());
    let error = hook.events("queue")[0]["error"].as_str().unwrap().to_owned();
    assert!(
        error.starts_with("cannot acknowledge a job, so it will be delivered again: no responders"),
        "{error}"
    );
    // The next delivery finds that it is done. NATS may know of it before the log is read.
    nats.until("test", 0).await;
    hook.until("both deliveries", |hook| hook.count("job") >= 2);
    assert_eq!(hook.indexed(), 1, "{:?}", hook.log());
}

#[tokio::test]
async fn the_service_reports_an_unreachable_queue() {
    let Some(mut nats) = Nats::start() else { return };
    let sandbox = Sandbox::new();
    let text = sandbox.run(&[
        "hook",
        "worker",
        "--allow=r.example",
        "--queue=nats://u:hunter2@127.0.0.1:1",
    ]);
    assert!(
        text.contains("cannot connect to the queue at nats://127.0.0.1:1")
            && !text.contains("hunter2"),
        "{text}"
    );
    assert_eq!(text.matches("Connection refused").count(), 1, "{text}");
    let hook = Hook::serve(&sandbox, &[&format!("--queue={}", nats.url), "--allow=r.example"]);
    let event = |name: &str| json!({"image": format!("r.example/{name}:v1")}).to_string();
    assert_eq!(hook.post(&event("a")).0, 202);
    nats.child.kill();
    hook.until("it is seen", |hook| hook.get("/readyz").0 == 503);
    let (status, text) = hook.post(&event("b"));
    assert!(status == 503 && text.contains("retry-after: 30"), "{text}");
    nats.restart();
    hook.until("it is back", |hook| hook.get("/readyz").0 == 200);
    assert_eq!(
        post(
            &hook.address(),
            "/",
            &[("Authorization", &format!("Bearer {}", hook::SECRET))],
            event("b").as_bytes()
        )
        .0,
        202
    );
    assert_eq!(nats.messages("test").await, 2);
}

/// Images that were pushed before the service ran.
#[tokio::test(flavor = "multi_thread")]
async fn backfill_queues_images_without_an_index() {
    let (Some(nats), Some(server)) = (Nats::start(), Server::olareg(|_, _| Vec::new())) else {
        return;
    };
    let sandbox = Sandbox::new();
    let repository = repository(&server.host, "team/app0", None);
    for (number, (name, digest)) in images(&server, 1, 10).iter().enumerate() {
        let document = repository.manifest(&Target::Digest(*digest)).await.unwrap();
        server.put_manifest(name, &format!("v{number}"), OCI_MANIFEST, &document.bytes);
    }
    let place = format!("{}/team/app0", server.host);
    let queue = format!("--queue={}", nats.url);
    let options = ["--min-layer-size=0", "--span-size=16KiB", "--no-cache"];
    let backfill = |total: &str| {
        let said = sandbox.run(&[&["backfill", &queue, &place], &options[..]].concat());
        assert!(said.contains(total) && said.ends_with("--- status 0 ---"), "{said}");
    };
    sandbox.json(0, &[&["index", "--format=json", &format!("{place}:v0")], &options[..]].concat());
    // A job that is published again soon afterwards is not queued twice.
    for _ in 0..2 {
        backfill("10 images: 1 already-indexed, 9 queued");
        assert_eq!(nats.messages("test").await, 9);
    }
    let _worker = worker(&sandbox, &nats, &server.host, &[]);
    let begun = Instant::now();
    while nats.messages("test").await > 0 {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    backfill("10 images: 10 already-indexed");
}

/// Each tag is queued, because each gets its own SOCI-enabled image.
#[tokio::test(flavor = "multi_thread")]
async fn workers_write_soci_enabled_images_for_each_tag() {
    let (Some(nats), Some(server)) = (Nats::start(), Server::olareg(|_, _| Vec::new())) else {
        return;
    };
    let sandbox = Sandbox::new();
    let repository = repository(&server.host, "team/app0", None);
    let (name, digest) = images(&server, 1, 1).remove(0);
    let document = repository.manifest(&Target::Digest(digest)).await.unwrap();
    for tag in ["v1", "v2"] {
        server.put_manifest(&name, tag, OCI_MANIFEST, &document.bytes);
    }
    let place = format!("{}/{name}", server.host);
    let queue = format!("--queue={}", nats.url);
    let allow = format!("--allow={}", server.host);
    let template = "--kind=v1,v2=lazy-{tag}";
    let backfill = |total: &str| {
        let options = [
            "backfill",
            &queue,
            &place,
            template,
            "--min-layer-size=0",
            "--span-size=16KiB",
            "--no-cache",
        ];
        let said = sandbox.run(&options);
        assert!(said.contains(total) && said.ends_with("--- status 0 ---"), "{said}");
    };
    backfill("2 images: 2 queued");
    // The service adds the same job, which is already queued.
    let serve = Hook::serve(&sandbox, &[&queue, &allow, template]);
    for tag in ["v1", "v2"] {
        let (status, text) =
            serve.post(&json!({"image": format!("{place}:{tag}@{digest}")}).to_string());
        assert!(status == 200 && text.contains("\"duplicates\":1"), "{text}");
    }
    assert_eq!(nats.messages("test").await, 2);
    let worker = worker(&sandbox, &nats, &server.host, &[template]);
    worker.until("both are done", |worker| worker.events("job").len() == 2);
    nats.until("test", 0).await;
    for line in worker.events("job") {
        let tag = &line["image"].as_str().unwrap()[place.len() + 1..][..2];
        let enabled =
            repository.manifest(&Target::Tag(format!("lazy-{tag}"))).await.unwrap().digest;
        let want = json!({"image": format!("{place}:lazy-{tag}@{enabled}"), "digest": enabled, "status": "written"});
        assert_eq!(line["enabled"], want, "{line}");
    }
    backfill("4 images: 2 already-indexed, 2 skipped");
}
