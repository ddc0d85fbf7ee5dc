//! A mount under load: many readers, while requests fail, the registry restarts, the cache is
//! deleted and damaged, and the process is killed and replaced. Every byte that is read is right,
//! no read hangs, and no process holds more and more. The mounts read by a SOCI index and by a fine
//! index with a recorded start in turns.
//!
//! `OCISEEK_LOAD_SECONDS` says how long (`benches/load` runs it for ten minutes),
//! `OCISEEK_LOAD_SEED` by which seed.

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

use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_testkit::faulty::{
    Faulty, ReceivedRequest, RegistrySettings, body_of, cut, damaged, hang_up, problem, stalls,
};
use ociseek_testkit::mounts::{MountProcess, architecture, can_mount, compressed, wait_until};
use ociseek_testkit::random::Random;
use ociseek_testkit::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST, Sandbox, ZSTD, gzip, tar};
use ociseek_testkit::{holds, number_in};

const READERS: usize = 32;
/// One of this many requests fails.
const FAULTY: u64 = 20;
/// The fault that revokes all tokens.
const REVOKES: u64 = 3;
/// Less time than this is never between two of them.
const REFUSED: Duration = Duration::from_secs(2);
/// `--deadline`, in seconds.
const DEADLINE: u64 = 10;
/// The kernel makes several requests of a read, one after the other. Each waits for the deadline,
/// and once more if its layer must be opened another way, or if the kernel asks again for what
/// failed. A busy machine adds to it.
const HANGS: Duration = Duration::from_secs(6 * DEADLINE);
/// By what the image is read. Each is a tag.
const KINDS: [&str; 2] = ["soci", "fine"];
/// Files in each of the layers, and bytes of each: more than is kept in memory and in the cache.
const FILES: [(usize, usize); 3] = [(24, 4_000_000), (30, 100_000), (6, 300_000)];
/// The most bytes that are read at a time.
const PIECE: u64 = 150_000;

/// Between two looks at what the process holds.
const LOOK: Duration = Duration::from_millis(100);
/// A process that was looked at less often is still filling its memory with content.
const SETTLED: usize = 60;
/// How much more a process may hold in the last third of its life than in the first one: a
/// descriptor for each reader, and twice the content that a mount keeps in memory (docs/limits.md),
/// which it may still be filling.
const MORE: Held = Held { descriptors: READERS, memory: 128 << 20 };

/// What a process holds.
#[derive(Default, Clone, Copy)]
struct Held {
    descriptors: usize,
    /// In bytes.
    memory: u64,
}

impl Held {
    fn most<'a>(all: impl IntoIterator<Item = &'a Held>) -> Held {
        all.into_iter().fold(Held::default(), |most, held| Held {
            descriptors: most.descriptors.max(held.descriptors),
            memory: most.memory.max(held.memory),
        })
    }
}

/// What a process held, at each look.
#[derive(Default)]
struct Life(Vec<Held>);

impl Life {
    /// Looks at a process for this long.
    fn watch(&mut self, process: u32, time: Duration) {
        let end = Instant::now() + time;
        loop {
            let (descriptors, memory) = holds(process);
            self.0.push(Held { descriptors, memory });
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// How much more it held in the last third of its life than in the first one, if it lived for
    /// long enough.
    fn growth(&self) -> Option<Held> {
        let third = self.0.len() / 3;
        let [early, late] = [&self.0[..third], &self.0[self.0.len() - third..]].map(Held::most);
        (self.0.len() >= SETTLED).then(|| Held {
            descriptors: late.descriptors.saturating_sub(early.descriptors),
            memory: late.memory.saturating_sub(early.memory),
        })
    }
}

/// What was done, and what was lost.
#[derive(Default)]
struct Counts {
    faults: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    /// Reads that failed while there was no process, or because of a fault that outlasted the
    /// deadline.
    failed: AtomicU64,
    /// The longest time of a read, in milliseconds.
    longest: AtomicU64,
    wrong: Mutex<Vec<String>>,
    is_over: AtomicBool,
    /// When each reader began what it does now, in milliseconds after the start.
    began: [AtomicU64; READERS],
}

/// The reads of a start, as `mount --record` writes them: of each large file, and of ten others.
fn recorded_start() -> String {
    let large =
        (0..FILES[0].0).flat_map(|file| [0, 2_000_000].map(|at| (format!("dir1/file{file}"), at)));
    let others = (0..10).map(|file| (format!("dir2/file{file}"), 0));
    let line = |(path, offset): (String, u64)| {
        json!({"ms": 1.0, "path": path, "layer": "sha256:0", "offset": offset, "size": 100_000, "spans": []})
            .to_string()
    };
    large.chain(others).map(line).collect::<Vec<_>>().join("\n")
}

/// A registry with an image of a gzip layer, a second one and a zstd one, under a tag of each kind,
/// and its files.
async fn image(sandbox: &Sandbox) -> (Faulty, BTreeMap<PathBuf, Vec<u8>>) {
    let registry = Faulty::honest(RegistrySettings {
        referrers: true,
        bearer: Some(None),
        ..RegistrySettings::default()
    })
    .await;
    let mut layers = Vec::new();
    let mut diff_ids = Vec::new();
    let mut files = BTreeMap::new();
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
    registry.add_blob(config);
    std::fs::write(sandbox.path("start"), recorded_start()).unwrap();
    for kind in KINDS {
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": of_config, "layers": layers,
            "annotations": {"kind": kind},
        });
        registry.add_manifest(kind, OCI_MANIFEST, manifest.to_string());
        let name = format!("{}/a/b:{kind}", registry.host());
        let args = ["index", "--no-cache", "--min-layer-size=0", "--span-size=64KiB", &name];
        let fine: &[&str] =
            if kind == "fine" { &["--kind=v1,fine", "--profile=start"] } else { &[] };
        let mut command = sandbox.command(&[&args, fine].concat());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    (registry, files)
}

/// Ends the readers, also when the test fails: a scope waits for its threads.
struct EndReaders<'a>(&'a Counts);

impl Drop for EndReaders<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// The answer to a request that fails in one of several ways, each of which passes.
fn fault(kind: u64, seen: &ReceivedRequest, faulty: &Faulty) -> Option<Response<Body>> {
    let (answer, bytes) = match kind {
        0 => hang_up(),
        1 => return Some(problem(503, "UNAVAILABLE", "not now")),
        2 => return Some(problem(429, "TOOMANYREQUESTS", "not now")),
        REVOKES => {
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
fn reader(
    number: usize,
    seed: u64,
    mnt: &Path,
    files: &BTreeMap<PathBuf, Vec<u8>>,
    begun: Instant,
    counts: &Counts,
) {
    let mut random = Random::new(seed, number as u64 + 1);
    let names: Vec<&PathBuf> = files.keys().collect();
    let mut piece = vec![0; PIECE as usize];
    while !counts.is_over.load(Ordering::Relaxed) {
        let name = names[random.below(names.len() as u64) as usize];
        let content = &files[name];
        let at = random.below(files[name].len() as u64);
        let wanted = (random.below(PIECE) + 1).min(content.len() as u64 - at) as usize;
        counts.began[number].store(begun.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
        let read = File::open(mnt.join(name)).and_then(|file| {
            let read = file.read_at(&mut piece[..wanted], at)?;
            // Else the kernel would soon answer everything from its own cache.
            fadvise(&file, 0, None, Advice::DontNeed).map(|()| read).map_err(Into::into)
        });
        let began = counts.began[number].swap(0, Ordering::Relaxed);
        let took = (begun.elapsed().as_millis() as u64 + 1).saturating_sub(began);
        counts.longest.fetch_max(took, Ordering::Relaxed);
        match read {
            Ok(read) if read > 0 && piece[..read] == content[at as usize..][..read] => {
                counts.reads.fetch_add(1, Ordering::Relaxed);
                counts.bytes.fetch_add(read as u64, Ordering::Relaxed);
            }
            Ok(read) => {
                counts
                    .wrong
                    .lock()
                    .unwrap()
                    .push(format!("{}: {read} bytes at {at}", name.display()));
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
    // Tests that run at the same time come first. Threads and processes inherit this from the
    // thread of the test.
    let _ = rustix::process::nice(10);
    let short = if std::env::var_os("CI").is_some() { 30 } else { 8 };
    let seconds = number_in("OCISEEK_LOAD_SECONDS").unwrap_or(short);
    let seed = number_in("OCISEEK_LOAD_SEED").unwrap_or(1);
    let sandbox = Sandbox::new();
    let mnt = sandbox.path("mnt");
    let cache = sandbox.path("cache");
    std::fs::create_dir(&mnt).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let counts = Arc::new(Counts::default());
    let (honest, files) = runtime.block_on(image(&sandbox));
    let requests = AtomicU64::new(0);
    let revoked = Mutex::new(None::<Instant>);
    let told = Arc::clone(&counts);
    let registry = runtime.block_on(honest.copy(move |seen, faulty| {
        let mut random = Random::new(seed, requests.fetch_add(1, Ordering::Relaxed) << 8);
        if told.is_over.load(Ordering::Relaxed) || random.below(FAULTY) > 0 {
            return None;
        }
        let kind = random.below(7);
        // A client that is refused with a new token too gives up.
        if kind == REVOKES
            && (revoked.lock().unwrap())
                .replace(Instant::now())
                .is_some_and(|at| at.elapsed() < REFUSED)
        {
            return None;
        }
        told.faults.fetch_add(1, Ordering::Relaxed);
        fault(kind, seen, faulty)
    }));
    let deadline = format!("--deadline={DEADLINE}");
    let options =
        ["mount", &deadline, "--cache-dir=cache", "--cache-size=16MiB", "--stall-timeout=2s"];
    let start = |kind: &str| {
        let name = format!("{}/a/b:{kind}", registry.host());
        MountProcess::start(&sandbox, &[&options[..], &[&*name, "mnt"]].concat())
    };
    let mut kinds = KINDS.into_iter().cycle();
    let mut next = || start(kinds.next().unwrap());
    let mut serving = next();
    let mut life = Life::default();
    let mut lives = Vec::new();
    let begun = Instant::now();
    let mut random = Random::new(seed, 0);
    let restarts = AtomicUsize::new(0);
    let damages = AtomicUsize::new(0);
    let kills = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..READERS {
            let mnt = &mnt;
            let files = &files;
            let counts = &counts;
            scope.spawn(move || reader(number, seed, mnt, files, begun, counts));
        }
        let _end = EndReaders(&counts);
        let end = begun + Duration::from_secs(seconds);
        // The last process lives for a third of the time.
        let last_kill = begun + Duration::from_secs(seconds) * 2 / 3;
        // On a busy machine looks take longer, and the last process must settle all the same.
        let is_short = |life: &Life| seconds >= 30 && life.0.len() < SETTLED;
        while (Instant::now() < end || is_short(&life)) && counts.wrong.lock().unwrap().is_empty() {
            life.watch(serving.child.id(), Duration::from_millis(200 + random.below(1000)));
            match random.below(8) {
                0 | 1 => {
                    restarts.fetch_add(1, Ordering::Relaxed);
                    runtime.block_on(async { registry.down() });
                    life.watch(serving.child.id(), Duration::from_millis(random.below(1500)));
                    runtime.block_on(registry.up());
                }
                deletes @ 2..5 => {
                    damages.fetch_add(1, Ordering::Relaxed);
                    damage(&cache, &mut random, deletes == 2);
                }
                5 if Instant::now() < last_kill => {
                    kills.fetch_add(1, Ordering::Relaxed);
                    serving.child.signal(Signal::KILL);
                    serving.end();
                    let _ = std::process::Command::new("umount").arg("-l").arg(&mnt).status();
                    serving = next();
                    lives.push(std::mem::take(&mut life));
                }
                _ => {}
            }
            let now = begun.elapsed();
            for began in counts
                .began
                .iter()
                .map(|began| began.load(Ordering::Relaxed))
                .filter(|began| *began > 0)
            {
                let takes = now.saturating_sub(Duration::from_millis(began));
                // A scope waits for its threads, so a panic would hang with the reader.
                if takes > HANGS {
                    counts
                        .wrong
                        .lock()
                        .unwrap()
                        .push(format!("a read hangs for {takes:?}: {}", serving.stderr()));
                }
            }
        }
    });
    lives.push(life);
    let most = Held::most(lives.iter().flat_map(|life| &life.0));
    let growths: Vec<Held> = lives.iter().filter_map(Life::growth).collect();
    let growth = Held::most(&growths);
    let oldest = lives.iter().max_by_key(|life| life.0.len()).unwrap();
    let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "seed {seed}, {seconds} s: {} reads of {} MiB, {} failed, {} wrong, the longest took {} ms; {} faults, {} \
         restarts of the registry, {} damages to the cache, {} kills; at most {} descriptors and {} MiB; {} of {} \
         processes compared, at most {} more descriptors and {} MiB more, {} MiB more in the one with {} looks",
        number(&counts.reads),
        number(&counts.bytes) >> 20,
        number(&counts.failed),
        counts.wrong.lock().unwrap().len(),
        number(&counts.longest),
        number(&counts.faults),
        restarts.into_inner(),
        damages.into_inner(),
        kills.into_inner(),
        most.descriptors,
        most.memory >> 20,
        growths.len(),
        lives.len(),
        growth.descriptors,
        growth.memory >> 20,
        oldest.growth().map_or(0, |growth| growth.memory >> 20),
        oldest.0.len(),
    );
    assert_eq!(*counts.wrong.lock().unwrap(), [""; 0]);
    assert!(number(&counts.reads) > 0);
    // Without faults, everything is there and right.
    for kind in KINDS {
        drop(serving);
        serving = start(kind);
        for (name, content) in &files {
            // What missed the deadline is not waited for again within a second.
            wait_until("a file", || {
                std::fs::read(mnt.join(name)).is_ok_and(|read| read == *content)
            });
        }
    }
    assert!(most.descriptors < 400, "{} descriptors", most.descriptors);
    assert!(most.memory < 400 << 20, "{} bytes", most.memory);
    assert!(seconds < 30 || !growths.is_empty(), "no process lived for long enough");
    assert!(growth.descriptors <= MORE.descriptors, "{} more descriptors", growth.descriptors);
    assert!(growth.memory <= MORE.memory, "{} more bytes", growth.memory);
}
