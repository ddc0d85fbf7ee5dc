//! The Nth request of a mount fails, once or from then on: each read is right or fails with EIO,
//! none hangs, all is right when the fault is over, and the mount can be unmounted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;

use super::{Image, KINDS, place, read_all, read_in_time, read_without_fault, unmount};
use ociseek_testkit::fault_plan::{Fault, Plan, Point};
use ociseek_testkit::fault_points::{KERNEL_READS, MISSED, Points};
use ociseek_testkit::mounts::{MountProcess, can_mount};
use ociseek_testkit::sandbox::Sandbox;

const AT_ONCE: usize = 8;
/// Points in CI.
const SAMPLE: usize = 30;
/// Files of the image, and bytes of each: several spans, and several requests of the kernel.
const FILES: (usize, usize) = (3, 6_000_000);

/// An image, and how many requests it takes to mount it and to read it if all is well.
struct Sound {
    image: Image,
    mounting: usize,
    requests: usize,
}

fn mount(sandbox: &Sandbox, args: &[String]) -> Result<MountProcess, String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    MountProcess::try_start(sandbox, &args).map_err(|(status, stderr)| match status.code() {
        Some(1) if stderr.contains("error: ") => stderr,
        _ => format!("WRONG {status}: {stderr}"),
    })
}

fn sound(runtime: &Runtime, kind: &str) -> Sound {
    let image = Image::new(runtime, kind, FILES);
    let copy = runtime.block_on(image.registry.copy(|_, _| None));
    let (sandbox, args) = place(&copy);
    let serving = mount(&sandbox, &args).unwrap();
    let mounting = copy.requests().len();
    assert_eq!((image.files.len(), read_all(&sandbox.path("mnt"), &image.files)), (FILES.0, Ok(0)));
    unmount(&sandbox, serving).unwrap();
    let is_read = |document: &String| copy.saw("GET", document).len() > 1;
    assert!(image.document.as_ref().is_none_or(is_read), "{:?}", copy.requests());
    let requests = copy.requests().len();
    println!("{kind}: {requests} requests, {mounting} of them until it is mounted");
    Sound { image, mounting, requests }
}

/// How a point ended; what was wrong there.
fn attempt(
    runtime: &Runtime,
    Point { fault, lasts, at, .. }: Point,
    sound: &Sound,
) -> Result<String, String> {
    let plan = Arc::new(Plan { fault, at, lasts, ..Plan::default() });
    let planned = Arc::clone(&plan);
    let registry = runtime
        .block_on(sound.image.registry.copy(move |seen, faulty| planned.answer(seen, faulty)));
    let (sandbox, args) = place(&registry);
    let mnt = sandbox.path("mnt");
    let first = mount(&sandbox, &args);
    let failed = match &first {
        Ok(_) => read_in_time(mnt.clone(), &sound.image.files)?,
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
        Err(_) => {
            mount(&sandbox, &args).map_err(|e| format!("not mounted without the fault: {e}"))?
        }
    };
    read_without_fault(&mnt, &sound.image.files)
        .map_err(|e| format!("{e}: {}", serving.stderr()))?;
    unmount(&sandbox, serving)?;
    Ok(end.to_owned())
}

#[test]
fn reads_through_the_kernel_are_right_or_fail() {
    if !can_mount() {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let sounds = KINDS.map(|kind| sound(&runtime, kind));
    let mut points = Points::of(KERNEL_READS);
    for (kind, sound) in sounds.iter().enumerate() {
        // Mounting retries for up to half a minute for each document: `tests/servers` have faults
        // that last there. And a registry that is down stays so.
        let is_tried = |point: &Point| {
            if point.lasts { point.at >= sound.mounting } else { point.fault != Fault::Down }
        };
        points.add(KINDS[kind], Point::all(kind, sound.requests).filter(is_tried));
    }
    let (points, score) = points.chosen(SAMPLE);
    let next = AtomicUsize::new(0);
    let score = Mutex::new(score);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(&point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = attempt(&runtime, point, &sounds[point.kind]);
                    score
                        .lock()
                        .unwrap()
                        .count(&format!("{}, {point:?}", KINDS[point.kind]), outcome);
                }
            });
        }
    });
    score.into_inner().unwrap().conclude();
}
