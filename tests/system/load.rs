//! A mount under load: many readers, while requests fail, the registry restarts, the cache is deleted and damaged, and
//! the process is killed and replaced. Every byte that is read is right, and no read hangs.
//!
//! `OCISEEK_LOAD_SECONDS` says how long (`benches/load` runs it for ten minutes), `OCISEEK_LOAD_SEED` by which seed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Response;
use rustix::fs::{Advice, fadvise};
use rustix::process::Signal;
use serde_json::json;

use crate::support::faulty::{Faulty, Nature, ReceivedRequest, body_of, cut, damaged, hang_up, problem, stalls};
use crate::support::mounts::{Clean, Serving, architecture, can_mount, compressed, wait_until};
use crate::support::random::Random;
use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST, Sandbox, ZSTD, gzip, tar};
use crate::support::{holds, number_in};
use ociseek::digest::Digest;
use ociseek::image::Descriptor;

const READERS: usize = 32;
/// One of this many requests fails.
const FAULTY: u64 = 20;
/// What a read takes at most, by `--deadline`; a busy machine adds to it.
const DEADLINE: u64 = 10;
const HANGS: Duration = Duration::from_secs(60);
/// Files in each of the layers, and bytes of each: more than is kept in memory and in the cache.
const FILES: [(usize, usize); 3] = [(24, 4_000_000), (30, 100_000), (6, 300_000)];
/// The most bytes that are read at a time.
const PIECE: u64 = 150_000;

/// What was done, and what was lost.
#[derive(Default)]
struct Counts {
    faults: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    /// Reads that failed while there was no process, or because of a fault that outlasted the deadline.
    failed: AtomicU64,
    wrong: Mutex<Vec<String>>,
    is_over: AtomicBool,
    /// When each reader began what it does now, in milliseconds after the start.
    began: [AtomicU64; READERS],
}

/// A registry with an image of a gzip layer, a second one and a zstd one, and the files in it.
async fn image(sandbox: &Sandbox) -> (Faulty, BTreeMap<PathBuf, Vec<u8>>) {
    let registry = Faulty::honest(Nature { referrers: true, bearer: Some(None), ..Nature::default() }).await;
    let (mut layers, mut diff_ids, mut files) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (seed, (count, size)) in (1..).zip(FILES) {
        let tar = tar(seed, count, size);
        for entry in tar::Archive::new(&tar[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
            files.insert(entry.path().unwrap().into_owned(), content);
        }
        let (kind, blob) = match seed {
            1 => (GZIP, gzip(&tar)),
            3 => (ZSTD, zstd::stream::encode_all(&tar[..], 3).unwrap()),
            _ => (GZIP, compressed(&tar)),
        };
        layers.push(Descriptor::of(kind, &blob));
        diff_ids.push(Digest::sha256(&tar));
        registry.add_blob(blob);
    }
    let rootfs = json!({"type": "layers", "diff_ids": diff_ids});
    let config = json!({"os": "linux", "architecture": architecture(), "rootfs": rootfs});
    let config = config.to_string();
    let of_config = Descriptor::of(OCI_CONFIG, config.as_bytes());
    let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": of_config, "layers": layers});
    registry.add_blob(config);
    registry.add_manifest("v1", OCI_MANIFEST, manifest.to_string());
    let name = format!("{}/a/b:v1", registry.host());
    let mut command = sandbox.command(&["index", "--no-cache", "--min-layer-size=0", "--span-size=64KiB", &name]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (registry, files)
}

/// The answer to a request that fails in one of several ways, each of which passes.
fn fault(kind: u64, seen: &ReceivedRequest, faulty: &Faulty) -> Option<Response<Body>> {
    let (answer, bytes) = match kind {
        0 => hang_up(),
        1 => return Some(problem(503, "UNAVAILABLE", "not now")),
        2 => return Some(problem(429, "TOOMANYREQUESTS", "not now")),
        3 => {
            faulty.revoke_tokens();
            return None;
        }
        _ => body_of(faulty.truth_now(seen)),
    };
    let half = bytes.len() / 2;
    // Half an answer to a request for a part would be announced as the whole.
    let is_whole = answer.status() == 200;
    match kind {
        4 if half > 0 => Some(cut(answer, &bytes, half)),
        5 if is_whole && half > 0 => Some(stalls(&bytes, half)),
        6 if half > 0 => Some(damaged(answer, &bytes)),
        _ => None,
    }
}

/// Reads random parts of random files, each of them right.
fn reader(number: usize, seed: u64, mnt: &Path, files: &BTreeMap<PathBuf, Vec<u8>>, begun: Instant, counts: &Counts) {
    let mut random = Random::new(seed, number as u64 + 1);
    let names: Vec<&PathBuf> = files.keys().collect();
    let mut piece = vec![0; PIECE as usize];
    while !counts.is_over.load(Ordering::Relaxed) {
        let name = names[random.below(names.len() as u64) as usize];
        let (content, at) = (&files[name], random.below(files[name].len() as u64));
        let wanted = (random.below(PIECE) + 1).min(content.len() as u64 - at) as usize;
        counts.began[number].store(begun.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
        let read = File::open(mnt.join(name)).and_then(|file| {
            let read = file.read_at(&mut piece[..wanted], at)?;
            // Else the kernel would soon answer everything from its own cache.
            fadvise(&file, 0, None, Advice::DontNeed).map(|()| read).map_err(Into::into)
        });
        counts.began[number].store(0, Ordering::Relaxed);
        match read {
            Ok(read) if read > 0 && piece[..read] == content[at as usize..][..read] => {
                counts.reads.fetch_add(1, Ordering::Relaxed);
                counts.bytes.fetch_add(read as u64, Ordering::Relaxed);
            }
            Ok(read) => {
                counts.wrong.lock().unwrap().push(format!("{}: {read} bytes at {at}", name.display()));
            }
            Err(_) => {
                counts.failed.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Deletes the files of the cache, or damages some of them, as another program could at any time.
fn damage(cache: &Path, random: &mut Random, deletes: bool) {
    let mut folders = vec![cache.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if deletes {
                let _ = std::fs::remove_file(path);
            } else if let Ok(mut bytes) = std::fs::read(&path)
                && !bytes.is_empty()
            {
                match random.below(8) {
                    0 => bytes.truncate(bytes.len() / 2),
                    1..4 => {
                        let at = random.below(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << random.below(8);
                    }
                    _ => continue,
                }
                let _ = std::fs::write(path, bytes);
            }
        }
    }
}

#[test]
fn every_byte_is_right_under_load_and_faults() {
    if !can_mount() {
        return;
    }
    // Tests that run at the same time come first. Threads and processes inherit this from the thread of the test.
    let _ = rustix::process::nice(10);
    let short = if std::env::var_os("CI").is_some() { 30 } else { 8 };
    let seconds = number_in("OCISEEK_LOAD_SECONDS").unwrap_or(short);
    let seed = number_in("OCISEEK_LOAD_SEED").unwrap_or(1);
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    let (mnt, cache) = (sandbox.path("mnt"), sandbox.path("cache"));
    std::fs::create_dir(&mnt).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let counts = Arc::new(Counts::default());
    let (honest, files) = runtime.block_on(image(&sandbox));
    let (requests, told) = (AtomicU64::new(0), Arc::clone(&counts));
    let registry = runtime.block_on(honest.copy(move |seen, faulty| {
        let mut random = Random::new(seed, requests.fetch_add(1, Ordering::Relaxed) << 8);
        if told.is_over.load(Ordering::Relaxed) || random.below(FAULTY) > 0 {
            return None;
        }
        told.faults.fetch_add(1, Ordering::Relaxed);
        fault(random.below(7), seen, faulty)
    }));
    let name = format!("{}/a/b:v1", registry.host());
    let deadline = format!("--deadline={DEADLINE}");
    let args = ["mount", &deadline, "--cache-dir=cache", "--cache-size=16MiB", "--stall-timeout=2s", &name, "mnt"];
    let start = || Serving::start(&sandbox, &args);
    let mut serving = start();
    let (begun, mut random) = (Instant::now(), Random::new(seed, 0));
    let (restarts, damages, kills) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    // The most descriptors, and the most memory in bytes.
    let mut most = (0, 0);
    std::thread::scope(|scope| {
        for number in 0..READERS {
            let (mnt, files, counts) = (&mnt, &files, &counts);
            scope.spawn(move || reader(number, seed, mnt, files, begun, counts));
        }
        let end = begun + Duration::from_secs(seconds);
        while Instant::now() < end && counts.wrong.lock().unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(200 + random.below(1000)));
            match random.below(8) {
                0 | 1 => {
                    restarts.fetch_add(1, Ordering::Relaxed);
                    runtime.block_on(async { registry.down() });
                    std::thread::sleep(Duration::from_millis(random.below(1500)));
                    runtime.block_on(registry.up());
                }
                deletes @ 2..5 => {
                    damages.fetch_add(1, Ordering::Relaxed);
                    damage(&cache, &mut random, deletes == 2);
                }
                5 => {
                    kills.fetch_add(1, Ordering::Relaxed);
                    serving.child.signal(Signal::KILL);
                    serving.end();
                    let _ = std::process::Command::new("umount").arg("-l").arg(&mnt).status();
                    serving = start();
                }
                _ => {}
            }
            let (descriptors, memory) = holds(serving.child.id());
            most = (most.0.max(descriptors), most.1.max(memory));
            let now = begun.elapsed();
            for began in counts.began.iter().map(|began| began.load(Ordering::Relaxed)).filter(|began| *began > 0) {
                let takes = now.saturating_sub(Duration::from_millis(began));
                // A scope waits for its threads, so a panic would hang with the reader.
                if takes > HANGS {
                    counts.wrong.lock().unwrap().push(format!("a read hangs for {takes:?}: {}", serving.stderr()));
                }
            }
        }
        counts.is_over.store(true, Ordering::Relaxed);
    });
    let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "seed {seed}, {seconds} s: {} reads of {} MiB, {} failed, {} wrong; {} faults, {} restarts of the registry, \
         {} damages to the cache, {} kills; at most {} descriptors and {} MiB",
        number(&counts.reads),
        number(&counts.bytes) >> 20,
        number(&counts.failed),
        counts.wrong.lock().unwrap().len(),
        number(&counts.faults),
        restarts.into_inner(),
        damages.into_inner(),
        kills.into_inner(),
        most.0,
        most.1 >> 20,
    );
    assert_eq!(*counts.wrong.lock().unwrap(), [""; 0]);
    assert!(number(&counts.reads) > 0);
    // Without faults, everything is there and right.
    for (name, content) in &files {
        // What missed the deadline is not waited for again within a second.
        wait_until("a file", || std::fs::read(mnt.join(name)).is_ok_and(|read| read == *content));
    }
    assert!(most.0 < 400, "{} descriptors", most.0);
    assert!(most.1 < 400 << 20, "{} bytes", most.1);
}
