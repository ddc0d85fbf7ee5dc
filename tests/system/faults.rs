//! The Nth request of a mount fails, once or from then on, while its files are read through the
//! kernel: each read is right or fails with EIO, none hangs, all is right when the fault is over,
//! and the mount can be unmounted.
//!
//! `OCISEEK_FAULT_POINTS` says which points, as for the tests in `tests/servers/fault_points`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::support::fault_plan::{Fault, Plan, Point};
use crate::support::fault_points::{KERNEL_READS, MISSED, Points};
use crate::support::faulty::{Faulty, RegistrySettings};
use crate::support::mounts::{self, MountProcess, UnmountOnDrop, can_mount, mounts_below, wait_until};
use crate::support::sandbox::{Sandbox, tar};

const AT_ONCE: usize = 8;
/// Points in CI.
const SAMPLE: usize = 30;
/// Files of the image, and bytes of each: several spans, and several requests of the kernel.
const FILES: (usize, usize) = (3, 6_000_000);
/// What is read at a time.
const PIECE: usize = 1_000_000;
/// What takes longer hangs. A read takes three seconds at most, by `--deadline`; a busy machine
/// adds to it.
const HANGS: Duration = Duration::from_secs(60);
/// By what the image is read.
const KINDS: [&str; 3] = ["SOCI index", "fine index with a recorded start", "no index"];

/// An image, its files, and how many requests it takes to mount it and to read it if all is well.
struct Sound {
    registry: Faulty,
    files: Arc<Vec<(String, Vec<u8>)>>,
    mounting: usize,
    requests: usize,
}

/// The files of a tar.
fn files(tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(tar).entries().unwrap() {
        let mut entry = entry.unwrap();
        let (path, mut content) = (entry.path().unwrap().display().to_string(), Vec::new());
        std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
        if entry.header().entry_type().is_file() {
            files.push((path, content));
        }
    }
    files
}

/// A sandbox with an empty directory `mnt`, and the arguments of `mount`.
fn place(registry: &Faulty) -> (Sandbox, [String; 7]) {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let name = format!("{}/a/b:v1", registry.host());
    let options = ["--deadline=3", "--stall-timeout=1s", "--retry-for=1s", "--cache-dir=cache"];
    let [deadline, stall, retry, cache] = options.map(str::to_owned);
    (sandbox, ["mount".to_owned(), deadline, stall, retry, cache, name, "mnt".to_owned()])
}

fn mount(sandbox: &Sandbox, args: &[String; 7]) -> Result<MountProcess, String> {
    let args = args.each_ref().map(String::as_str);
    MountProcess::try_start(sandbox, &args).map_err(|(status, stderr)| match status.code() {
        Some(1) if stderr.contains("error: ") => stderr,
        _ => format!("WRONG {status}: {stderr}"),
    })
}

/// How many reads failed, all of them with EIO. Who gets an error reads one more piece, and gives
/// up.
fn read_all(mnt: &Path, files: &[(String, Vec<u8>)]) -> Result<usize, String> {
    let mut failed = 0;
    for (name, content) in files {
        let file = File::open(mnt.join(name)).map_err(|e| format!("{name}: {e}"))?;
        for at in (0..content.len()).step_by(PIECE) {
            let wanted = &content[at..(at + PIECE).min(content.len())];
            let mut piece = vec![0; wanted.len()];
            match file.read_exact_at(&mut piece, at as u64) {
                Ok(()) if piece == wanted => {}
                Ok(()) => return Err(format!("{name}: wrong bytes at {at}")),
                Err(e) if e.raw_os_error() != Some(Errno::IO.raw_os_error()) => return Err(format!("{name}: {e}")),
                Err(_) if failed == 1 => return Ok(2),
                Err(_) => failed += 1,
            }
        }
    }
    Ok(failed)
}

/// As [`read_all`], on a thread that is left behind if it hangs.
fn read_in_time(mnt: PathBuf, sound: &Sound) -> Result<usize, String> {
    let (sender, receiver) = mpsc::channel();
    let files = Arc::clone(&sound.files);
    std::thread::spawn(move || sender.send(read_all(&mnt, &files)));
    receiver.recv_timeout(HANGS).map_err(|_| "a read hangs".to_owned())?
}

/// Reads all until nothing fails. What missed the deadline is not waited for again within a second.
fn read_without_fault(mnt: &Path, sound: &Sound) -> Result<(), String> {
    let begun = Instant::now();
    while read_in_time(mnt.to_owned(), sound)? > 0 {
        if begun.elapsed() > HANGS {
            return Err("without the fault, reads still fail".to_owned());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Unmounts it; the process ends well, and nothing is left.
fn unmount(sandbox: &Sandbox, mut serving: MountProcess) -> Result<(), String> {
    // A program that another thread starts at this moment has the files that were open until it
    // runs.
    let unmounted = || !matches!(rustix::mount::unmount(sandbox.path("mnt"), UnmountFlags::empty()), Err(Errno::BUSY));
    wait_until("the mount is not busy", unmounted);
    let status = serving.end();
    let left = mounts_below(sandbox.dir.path());
    match status.code() {
        Some(0) if left.is_empty() => Ok(()),
        _ => Err(format!("after unmounting: {status}, {left:?}, {}", serving.stderr())),
    }
}

/// Attaches a fine index to the image, with a start that reads the second file and then the end of
/// the first. Returns the digest of its document.
fn fine_index(name: &str) -> String {
    let sandbox = Sandbox::new();
    let read = |file: &str, offset: usize| {
        let path = format!("dir1/{file}");
        json!({"ms": 1.0, "path": path, "layer": "sha256:0", "offset": offset, "size": PIECE, "spans": []}).to_string()
    };
    let start = [read("file1", 0), read("file0", FILES.1 - PIECE)].join("\n");
    std::fs::write(sandbox.path("start.jsonl"), start).unwrap();
    let args = ["index", "--format=json", "--fine-only", "--profile=start.jsonl", "--min-layer-size=0", "--no-cache"];
    let report = sandbox.json(0, &[&args[..], &[name]].concat());
    let document = &report["images"][0]["manifests"][0]["fine"]["documents"][0];
    assert!(document["start_size"].as_u64() > document["head_size"].as_u64(), "{document}");
    document["digest"].as_str().unwrap().to_owned()
}

fn sound(runtime: &Runtime, kind: &str) -> Sound {
    let tar = tar(1, FILES.0, FILES.1);
    let settings = RegistrySettings { referrers: true, bearer: Some(None), ..RegistrySettings::default() };
    let registry = runtime.block_on(Faulty::honest(settings));
    registry.add_image("v1", &tar);
    let name = format!("{}/a/b:v1", registry.host());
    let document = match kind {
        "SOCI index" => {
            mounts::index(&Sandbox::new(), &name);
            None
        }
        "no index" => None,
        _ => Some(fine_index(&name)),
    };
    let copy = runtime.block_on(registry.copy(|_, _| None));
    let (sandbox, args) = place(&copy);
    let _unmount = UnmountOnDrop(&sandbox);
    let serving = mount(&sandbox, &args).unwrap();
    let mounting = copy.requests().len();
    let sound = Sound { registry, files: Arc::new(files(&tar)), mounting, requests: 0 };
    assert_eq!((sound.files.len(), read_all(&sandbox.path("mnt"), &sound.files)), (FILES.0, Ok(0)));
    unmount(&sandbox, serving).unwrap();
    assert!(document.is_none_or(|document| copy.saw("GET", &document).len() > 1), "{:?}", copy.requests());
    let requests = copy.requests().len();
    println!("{kind}: {requests} requests, {mounting} of them until it is mounted");
    Sound { requests, ..sound }
}

/// How a point ended; what was wrong there.
fn attempt(runtime: &Runtime, Point { fault, lasts, at, .. }: Point, sound: &Sound) -> Result<String, String> {
    let plan = Arc::new(Plan { fault, at, lasts, ..Plan::default() });
    let planned = Arc::clone(&plan);
    let registry = runtime.block_on(sound.registry.copy(move |seen, faulty| planned.answer(seen, faulty)));
    let (sandbox, args) = place(&registry);
    let _unmount = UnmountOnDrop(&sandbox);
    let mnt = sandbox.path("mnt");
    let first = mount(&sandbox, &args);
    let failed = match &first {
        Ok(_) => read_in_time(mnt.clone(), sound)?,
        Err(why) if why.starts_with("WRONG") => return Err(why.clone()),
        Err(_) => 0,
    };
    let is_hit = plan.asked.load(Ordering::SeqCst) > at;
    plan.is_over.store(true, Ordering::SeqCst);
    runtime.block_on(registry.up());
    let end = match (&first, failed) {
        _ if !is_hit => MISSED,
        (Err(_), _) => "not mounted, then right",
        (Ok(_), 0) => "right",
        (Ok(_), _) => "EIO, then right",
    };
    let serving = match first {
        Ok(serving) => serving,
        Err(_) => mount(&sandbox, &args).map_err(|e| format!("not mounted without the fault: {e}"))?,
    };
    read_without_fault(&mnt, sound).map_err(|e| format!("{e}: {}", serving.stderr()))?;
    unmount(&sandbox, serving)?;
    Ok(end.to_owned())
}

#[test]
fn reads_through_the_kernel_are_right_or_fail() {
    if !can_mount() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let sounds = KINDS.map(|kind| sound(&runtime, kind));
    let mut points = Points::of(KERNEL_READS);
    for (kind, sound) in sounds.iter().enumerate() {
        // Mounting retries for up to half a minute for each document: `tests/servers` have faults
        // that last there. And a registry that is down stays so.
        let is_tried = |point: &Point| match point.lasts {
            true => point.at >= sound.mounting,
            false => point.fault != Fault::Down,
        };
        points.add(KINDS[kind], Point::all(kind, sound.requests).filter(is_tried));
    }
    let (points, score) = points.chosen(SAMPLE);
    let (next, score) = (AtomicUsize::new(0), Mutex::new(score));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(&point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = attempt(&runtime, point, &sounds[point.kind]);
                    score.lock().unwrap().count(&format!("{}, {point:?}", KINDS[point.kind]), outcome);
                }
            });
        }
    });
    score.into_inner().unwrap().conclude();
}
