//! The Nth access of a mount to its cache fails, or is cut short: every read is right all the same.
//! Or the process is killed there, or the power fails: the next mount with that cache reads
//! everything right.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{Files, HANGS, Image, KINDS, place, read_in_time, read_without_fault, unmount};
use ociseek_testkit::fault_points::{
    CACHE_OF_MOUNT, Harness, KILLS_AT_CACHE, MISSED, POWER_OF_MOUNT, Points,
};
use ociseek_testkit::inject::{FAILURES, Fault, Injector, KILLS, Report, started_through};
use ociseek_testkit::mounts::{MountProcess, can_mount};
use ociseek_testkit::power::{self, POWER_FAILURES, is_power_failure};
use ociseek_testkit::sandbox::Sandbox;

const AT_ONCE: usize = 4;
/// Points in CI.
const SAMPLE: usize = 24;
const SAMPLE_OF_KILLS: usize = 16;
const SAMPLE_OF_POWER: usize = 12;
/// Files of the image, and bytes of each.
const FILES: (usize, usize) = (4, 250_000);
/// Less than that, so that entries are evicted.
const CACHE_SIZE: &str = "--cache-size=640KiB";

struct Point {
    /// The number of the kind.
    kind: usize,
    fault: Fault,
    at: usize,
}

/// A folder with an empty cache, and a mount that has not begun.
struct Site {
    sandbox: Sandbox,
    args: Vec<String>,
    report: Report,
}

impl Site {
    fn new(image: &Image) -> Site {
        let (sandbox, mut args) = place(&image.registry);
        args.insert(1, CACHE_SIZE.to_owned());
        std::fs::create_dir(sandbox.path("cache")).unwrap();
        Site { sandbox, args, report: Report::new() }
    }

    fn mnt(&self) -> PathBuf {
        self.sandbox.path("mnt")
    }

    /// Mounts with a fault. The error has the exit code, if the process was not killed.
    fn mount(
        &self,
        injector: &Injector,
        fault: Fault,
        at: usize,
    ) -> Result<MountProcess, (Option<i32>, String)> {
        let through = injector.through(&self.sandbox.path("cache"), fault, at, &self.report);
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let command = started_through(&through, self.sandbox.command(&args));
        MountProcess::try_spawn(command).map_err(|(status, stderr)| (status.code(), stderr))
    }

    /// Mounts in place of what a killed process left.
    fn mount_again(&self) -> Result<MountProcess, String> {
        let args: Vec<&str> = self.args.iter().map(String::as_str).chain(["--replace"]).collect();
        MountProcess::try_start(&self.sandbox, &args)
            .map_err(|(status, stderr)| format!("{status}: {stderr}"))
    }
}

/// Reads all files, as far as the process lives.
fn read_until_killed(mnt: &Path, files: &Files) -> Result<(), String> {
    for (name, content) in files.iter() {
        match std::fs::read(mnt.join(name)) {
            Ok(read) if read == *content => {}
            Ok(_) => return Err(format!("{name}: wrong bytes")),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::IO) => return Ok(()),
                _ => return Err(format!("{name}: {error}")),
            },
        }
    }
    Ok(())
}

/// How a point ended; what was wrong there.
fn attempt(
    injector: &Injector,
    &Point { fault, at, .. }: &Point,
    image: &Image,
) -> Result<String, String> {
    let site = Site::new(image);
    let first = site.mount(injector, fault, at);
    let kills = KILLS.contains(&fault) || is_power_failure(fault);
    let is_killed = match first {
        Err((None, _)) if kills => true,
        Err((code, stderr)) => return Err(format!("not mounted: {code:?}, {stderr}")),
        Ok(mut serving) if kills => {
            let (sender, receiver) = mpsc::channel();
            let mnt = site.mnt();
            let files = Arc::clone(&image.files);
            std::thread::spawn(move || sender.send(read_until_killed(&mnt, &files)));
            receiver.recv_timeout(HANGS).map_err(|_| "a read hangs".to_owned())??;
            // A dead mount stays, for the next one to replace.
            if serving.child.ended().is_none() {
                let _ = rustix::mount::unmount(site.mnt(), UnmountFlags::DETACH);
            }
            match serving.end().code() {
                None => true,
                Some(0) => false,
                Some(code) => return Err(format!("exit code {code}: {}", serving.stderr())),
            }
        }
        Ok(serving) => {
            let failed = read_in_time(site.mnt(), &image.files)?;
            if failed > 0 {
                return Err(format!("reads failed: {}", serving.stderr()));
            }
            unmount(&site.sandbox, serving)?;
            false
        }
    };
    if is_power_failure(fault) {
        power::fail(&site.sandbox.path("cache"), &site.report, fault);
    }
    let (_, hit) = site.report.read()?;
    let again = || {
        let serving = site.mount_again()?;
        read_without_fault(&site.mnt(), &image.files)
            .map_err(|e| format!("{e}: {}", serving.stderr()))?;
        unmount(&site.sandbox, serving)
    };
    again().map_err(|e| format!("{hit}: with that cache: {e}"))?;
    let result = if is_killed {
        "killed, then right"
    } else if hit.is_empty() {
        MISSED
    } else {
        "right"
    };
    Ok(result.to_owned())
}

/// How many accesses of each class there are if all is well.
fn counted(injector: &Injector, image: &Image) -> [(&'static str, usize); 2] {
    ["writes", "reads"].map(|class| {
        let site = Site::new(image);
        let serving =
            site.mount(injector, (class, "count"), 0).map_err(|(_, stderr)| stderr).unwrap();
        assert_eq!(read_in_time(site.mnt(), &image.files), Ok(0));
        unmount(&site.sandbox, serving).unwrap();
        (class, site.report.read().unwrap().0)
    })
}

fn try_all(harness: Harness, faults: &[Fault], sample: usize) {
    if !can_mount() {
        return;
    }
    let Some(injector) = Injector::new() else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let images = KINDS.map(|kind| Image::new(&runtime, kind, FILES));
    let mut points = Points::of(harness);
    for (kind, image) in images.iter().enumerate() {
        let counts = counted(&injector, image);
        println!("{}: {counts:?}", KINDS[kind]);
        let count = |class: &str| counts.iter().find(|(counted, _)| *counted == class).unwrap().1;
        let at_each = |&fault: &Fault| (0..count(fault.0)).map(move |at| Point { kind, fault, at });
        points.add(KINDS[kind], faults.iter().flat_map(at_each));
    }
    let (points, score) = points.chosen(sample);
    let next = AtomicUsize::new(0);
    let score = Mutex::new(score);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = attempt(&injector, point, &images[point.kind]);
                    let name = format!("{}, {:?} at {}", KINDS[point.kind], point.fault, point.at);
                    score.lock().unwrap().count(&name, outcome);
                }
            });
        }
    });
    score.into_inner().unwrap().conclude();
}

#[test]
fn a_failing_cache_fails_no_read() {
    try_all(CACHE_OF_MOUNT, &FAILURES, SAMPLE);
}

#[test]
fn the_cache_of_a_killed_mount_is_sound() {
    try_all(KILLS_AT_CACHE, &KILLS, SAMPLE_OF_KILLS);
}

#[test]
fn a_power_failure_leaves_a_sound_cache() {
    try_all(POWER_OF_MOUNT, &POWER_FAILURES, SAMPLE_OF_POWER);
}
