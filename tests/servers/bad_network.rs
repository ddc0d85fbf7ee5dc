//! A bad network between the hook and a real registry: every image is indexed in the end, by one
//! job, although some pushes are reported twice, and the hook then holds little more than at the
//! beginning.
//!
//! `OCISEEK_PUSHES` says how many pushes there are, `OCISEEK_NETWORK_SEED` by which seed the
//! network is bad.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ociseek_format::digest::Digest;
use ociseek_format::image::soci;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource};
use ociseek_testkit::hook::{Hook, pushed};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::relay::Relay;
use ociseek_testkit::sandbox::{GZIP, Sandbox, gzip, tar};
use ociseek_testkit::servers::Server;
use ociseek_testkit::{holds, number_in};
use serde_json::Value;

const REPOSITORIES: usize = 7;
/// After this many pushes, one is reported again.
const REPEATED: usize = 8;
/// How many jobs wait at a time.
const AHEAD: usize = 10;
/// How long a job may take, on a busy machine: three tries, and what stalls.
const JOB: Duration = Duration::from_secs(240);

/// Pushes the image `number`, which has a layer of its own.
fn push(server: &Server, number: usize) -> (String, Digest) {
    let repository = format!("team/app{}", number % REPOSITORIES);
    let layer = gzip(&tar(number as u64, 2, 30_000));
    let digest = Image::new(&config(&[]), [(GZIP, layer)]).push(server, &repository, &[]);
    (repository, digest)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_image_is_indexed_once_over_a_bad_network() {
    let Some(server) = Server::distribution("127.0.0.1:0", |_| String::new()) else { return };
    let pushes = number_in("OCISEEK_PUSHES").unwrap_or(24) as usize;
    let seed = number_in("OCISEEK_NETWORK_SEED").unwrap_or(1);
    let relay = Relay::start(&server.host, seed);
    let sandbox = Sandbox::new();
    let args = [
        "serve",
        "--listen=127.0.0.1:0",
        "--retry-wait=1",
        "--min-layer-size=0",
        "--span-size=16KiB",
    ];
    let allow = format!("--allow={}", relay.host);
    let limits = ["--stall-timeout=2s", "--retry-for=20s", "--rate=1000", &allow];
    let hook = Hook::spawn(&mut sandbox.command(&[&["hook"], &args[..], &limits].concat()));
    let begun = Instant::now();
    let mut images = Vec::new();
    let mut early = None;
    let mut accepted = 0;
    let ended = |hook: &Hook| hook.count("job") + hook.count("dead-letter");
    for number in 0..pushes {
        images.push(push(&server, number));
        let (repository, digest) = &images[number];
        let (status, text) =
            hook.post(&pushed(&number.to_string(), &relay.host, repository, digest));
        assert_eq!(status, 202, "{text}");
        accepted += 1;
        if number % REPEATED == 0 {
            let (repository, digest) = &images[number / 2];
            let (status, text) =
                hook.post(&pushed(&format!("{number} again"), &relay.host, repository, digest));
            // After ten minutes it may be a job again, which finds the index.
            assert!([200, 202].contains(&status), "{text}");
            accepted += usize::from(status == 202);
        }
        let since = Instant::now();
        while ended(&hook) + AHEAD < accepted {
            assert!(since.elapsed() < JOB, "jobs do not end: {:?}", hook.log().last());
            std::thread::sleep(Duration::from_millis(20));
        }
        if number == pushes / 4 {
            early = Some(holds(hook.child.id()));
        }
    }
    let since = Instant::now();
    while ended(&hook) < accepted {
        assert!(since.elapsed() < JOB, "jobs do not end: {:?}", hook.log().last());
        std::thread::sleep(Duration::from_millis(20));
    }
    let ((few, little), (descriptors, memory)) = (early.unwrap(), holds(hook.child.id()));
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let state = &relay.state;
    println!(
        "seed {seed}: {pushes} pushes in {} s: {accepted} jobs: {:?}, {} retries; {} connections, {} cut, {} held up, \
         {} stalled, {} damaged; descriptors {few}, then {descriptors}; memory {} MiB, then {} MiB",
        begun.elapsed().as_secs(),
        hook.results(),
        hook.count("retry"),
        of(&state.connections),
        of(&state.cuts),
        of(&state.delays),
        of(&state.stalls),
        of(&state.damages),
        little >> 20,
        memory >> 20,
    );
    assert_eq!(hook.events("dead-letter"), Vec::<Value>::new());
    let jobs = hook.events("job");
    let retries = hook.events("retry");
    assert_eq!(jobs.len(), accepted);
    for (repository, digest) in &images {
        let image = format!("{}/{repository}@{digest}", relay.host);
        let of_image = jobs.iter().filter(|job| job["image"] == image);
        let results: Vec<&Value> = of_image.map(|job| &job["result"]).collect();
        let [first, later @ ..] = &results[..] else { panic!("{image} has no job") };
        // A try that fails after it has attached the index leaves nothing to do for the next one.
        let was_retried = || retries.iter().any(|retry| retry["image"] == image);
        let is_indexed = *first == "indexed" || *first == "already-indexed" && was_retried();
        assert!(
            is_indexed && later.iter().all(|result| *result == "already-indexed"),
            "{image}: {results:?}"
        );
    }
    // Without the relay.
    let config =
        ClientConfig { credentials: CredentialSource::Anonymous, ..ClientConfig::default() };
    let client = Client::new(config).unwrap();
    let mut indexed = BTreeMap::new();
    for (repository, digest) in &images {
        let repository = client.repository(&server.host, repository).unwrap();
        let found = repository.referrers(digest, Some(soci::INDEX_V1)).await.unwrap();
        *indexed.entry(found.descriptors.len()).or_insert(0) += 1;
    }
    assert_eq!(indexed, BTreeMap::from([(1, pushes)]));
    assert!(descriptors < few + 24, "{few} descriptors, then {descriptors}");
    assert!(memory < little + (64 << 20), "{little} bytes, then {memory}");
}
