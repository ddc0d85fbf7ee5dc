//! The Nth request of a mount fails, once or from then on, while its files are read through the kernel: each read is
//! right or fails with EIO, none hangs, all is right when the fault is over, and the mount can be unmounted.
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
use tokio::runtime::Runtime;

use crate::support::fault_plan::{Fault, Plan, Point, QUICK, STALLS};
use crate::support::fault_points::{Score, chosen};
use crate::support::faulty::{Faulty, Nature};
use crate::support::mounts::{self, Clean, Serving, can_mount, mounts_below, wait_until};
use crate::support::sandbox::{Sandbox, tar};

const AT_ONCE: usize = 8;
/// Points in CI.
const SAMPLE: usize = 30;
/// Files of the image, and bytes of each: several spans, and several requests of the kernel.
const FILES: (usize, usize) = (3, 6_000_000);
/// What is read at a time.
const PIECE: usize = 1_000_000;
/// What takes longer hangs. A read takes three seconds at most, by `--deadline`; a busy machine adds to it.
const HANGS: Duration = Duration::from_secs(60);
/// By what the image is read.
const KINDS: [&str; 2] = ["SOCI index", "no index"];

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

fn mount(sandbox: &Sandbox, args: &[String; 7]) -> Result<Serving, String> {
    let args = args.each_ref().map(String::as_str);
    Serving::try_start(sandbox, &args).map_err(|(status, stderr)| match status.code() {
        Some(1) if stderr.contains("error: ") => stderr,
        _ => format!("WRONG {status}: {stderr}"),
    })
}

/// How many reads failed, all of them with EIO. Who gets an error reads one more piece, and gives up.
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
fn unmount(sandbox: &Sandbox, mut serving: Serving) -> Result<(), String> {
    // A program that another thread starts at this moment has the files that were open until it runs.
    let unmounted = || !matches!(rustix::mount::unmount(sandbox.path("mnt"), UnmountFlags::empty()), Err(Errno::BUSY));
    wait_until("the mount is not busy", unmounted);
    let status = serving.end();
    let left = mounts_below(sandbox.dir.path());
    match status.code() {
        Some(0) if left.is_empty() => Ok(()),
        _ => Err(format!("after unmounting: {status}, {left:?}, {}", serving.stderr())),
    }
}

fn sound(runtime: &Runtime, kind: &str) -> Sound {
    let tar = tar(1, FILES.0, FILES.1);
    let nature = Nature { referrers: true, bearer: Some(None), ..Nature::default() };
    let registry = runtime.block_on(Faulty::honest(nature));
    registry.add_image("v1", &tar);
    if kind == "SOCI index" {
        mounts::index(&Sandbox::new(), &format!("{}/a/b:v1", registry.host()));
    }
    let copy = runtime.block_on(registry.copy(|_, _| None));
    let (sandbox, args) = place(&copy);
    let _clean = Clean(&sandbox);
    let serving = mount(&sandbox, &args).unwrap();
    let mounting = copy.requests().len();
    let sound = Sound { registry, files: Arc::new(files(&tar)), mounting, requests: 0 };
    assert_eq!((sound.files.len(), read_all(&sandbox.path("mnt"), &sound.files)), (FILES.0, Ok(0)));
    unmount(&sandbox, serving).unwrap();
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
    let _clean = Clean(&sandbox);
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
        _ if !is_hit => "read with fewer requests",
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
fn a_read_through_the_kernel_is_right_or_fails_whatever_request_does() {
    if !can_mount() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let sounds = KINDS.map(|kind| sound(&runtime, kind));
    let mut points = Vec::new();
    for (kind, sound) in sounds.iter().enumerate() {
        for at in 0..sound.requests {
            let faults = QUICK.into_iter().chain(STALLS);
            points.extend(faults.flat_map(|fault| [false, true].map(|lasts| Point { kind, fault, lasts, at })));
        }
    }
    // Mounting retries for up to half a minute for each document: `tests/servers` have faults that last there. And a
    // registry that is down stays so.
    points.retain(|point| match point.lasts {
        true => point.at >= sounds[point.kind].mounting,
        false => point.fault != Fault::Down,
    });
    let total = points.len();
    let points = chosen(points, SAMPLE);
    println!("reads through the kernel: {} of {total}", points.len());
    let (next, score) = (AtomicUsize::new(0), Mutex::new(Score::default()));
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
    score.into_inner().unwrap().conclude("reads through the kernel");
}
