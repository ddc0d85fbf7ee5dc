//! The Nth access to a file below the sandbox fails, is cut short, or kills the process, or the
//! power fails there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

use futures_util::{StreamExt, stream};
use ociseek_format::digest::Digest;

use super::before::{Registries, Templates, image_digest, registry_settings};
use super::jobs::{Ended, Job, ON_DISK, Place};
use super::whole::{layouts_whole, whole};
use ociseek_testkit::fault_points::{FILES, Harness, KILLS_AT_FILES, MISSED, POWER, Points};
use ociseek_testkit::faulty::Faulty;
use ociseek_testkit::inject::{FAILURES, Fault, Injector, KILLS, Report};
use ociseek_testkit::power::{self, POWER_FAILURES, is_power_failure};
use ociseek_testkit::sandbox::Sandbox;

/// How many runs are active at the same time.
const AT_ONCE: usize = 4;
/// The number of points tested in CI.
const SAMPLE: usize = 100;
const SAMPLE_OF_KILLS: usize = 50;
const SAMPLE_OF_POWER: usize = 60;

#[derive(Clone, Copy)]
struct Point {
    job: Job,
    fault: Fault,
    at: usize,
}

/// The state that all points share.
struct Ground {
    injector: Injector,
    templates: Templates,
    registries: Registries,
    image: Digest,
}

/// The registry and folder of a point.
struct Site {
    registry: Faulty,
    sandbox: Arc<Sandbox>,
    report: Report,
}

impl Site {
    async fn new(ground: &Ground, job: &Job) -> Site {
        let registry = ground.registries.before(job).copy(|_, _| None).await;
        Site { registry, sandbox: Arc::new(ground.templates.sandbox(job)), report: Report::new() }
    }

    /// Runs a job. With None, without the injector.
    async fn run(
        &self,
        ground: &Ground,
        job: Job,
        fault: Option<(Fault, usize)>,
        posts: bool,
    ) -> Ended {
        let sandbox = Arc::clone(&self.sandbox);
        let host = self.registry.host();
        let image = ground.image;
        let through = fault.map_or_else(Vec::new, |(fault, at)| {
            ground.injector.through(sandbox.dir.path(), fault, at, &self.report)
        });
        let pid = Arc::new(AtomicI32::new(0));
        let run =
            move || job.run(&Place { sandbox: &sandbox, host: &host, image, through }, posts, &pid);
        tokio::task::spawn_blocking(run).await.unwrap()
    }

    fn whole(&self) -> Result<(), String> {
        whole(&self.registry)?;
        layouts_whole(&self.sandbox)
    }

    fn result(&self, job: &Job, ended: &Ended) -> BTreeMap<String, String> {
        job.result(&self.registry, &self.sandbox, ended)
    }

    /// Temporary files that nobody will use again.
    fn left_over(&self) -> Vec<PathBuf> {
        let is_temporary = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(".tmp") || name.starts_with(".ociseek-")
        };
        self.sandbox.files("").into_iter().map(|(path, _)| path).filter(is_temporary).collect()
    }
}

/// The result of a point. The error says what is wrong.
async fn attempt(
    ground: &Ground,
    point: Point,
    sound: &BTreeMap<String, String>,
) -> Result<String, String> {
    let Point { job, fault, at } = point;
    let (class, mode) = fault;
    let site = Site::new(ground, &job).await;
    let first = site.run(ground, job, Some((fault, at)), true).await;
    let (_, hit) = site
        .report
        .read()
        .map_err(|e| format!("{e}, exit code {:?}: {}", first.code, first.stderr))?;
    let of = |what: String| format!("{hit}: {what}\n{}", first.stderr);
    first.judge().map_err(of)?;
    let loses_power = is_power_failure(fault);
    if loses_power {
        power::fail(site.sandbox.dir.path(), &site.report, fault);
    }
    site.whole().map_err(|e| of(format!("after the fault: {e}")))?;
    let is_right = site.result(&job, &first) == *sound;
    if first.code == Some(0) && !is_right {
        return Err(of(format!("success, but {:#?}\nnot {sound:#?}", site.result(&job, &first))));
    }
    // Short reads and writes are not failures, and the program works without a cache.
    let must_succeed = mode == "short" || mode == "eio" && hit.contains("/.cache/");
    if must_succeed && first.code != Some(0) {
        return Err(of(format!("exit code {:?}", first.code)));
    }
    let is_clean = first.code.is_none()
        || loses_power
        || hit.starts_with("unlink")
        || site.left_over().is_empty();
    if !is_clean {
        return Err(of(format!("left over: {:?}", site.left_over())));
    }
    if first.code == Some(0) && loses_power && is_right {
        return Ok(format!("{class} {mode}, after success: right"));
    }
    if first.code == Some(0) && !loses_power {
        return Ok(if hit.is_empty() {
            MISSED.to_owned()
        } else {
            format!("{class} {mode}: right")
        });
    }
    let posts = first.code.is_some() || !first.is_accepted;
    let second = site.run(ground, job, None, posts).await;
    let result = site.result(&job, &second);
    // Killed after its last access, it has done its work. A ztoc that is there is not replaced
    // without --force.
    let is_refused = is_right
        && second.code == Some(1)
        && second.stderr.contains("error: ztoc already exists\n");
    if second.code != Some(0) && !is_refused || result != *sound {
        let code = second.code;
        let errors = second.stderr;
        return Err(of(format!(
            "the second run: {code:?}, {result:#?}\nnot {sound:#?}\n{errors}\nfirst:"
        )));
    }
    site.whole().map_err(|e| of(format!("after the second run: {e}")))?;
    Ok(first.code.map_or_else(
        || format!("{class} {mode}: killed, then right"),
        |code| format!("{class} {mode}: exit code {code}, then right"),
    ))
}

/// Tests each fault at each access of each job.
async fn try_all(
    harness: Harness,
    jobs: impl IntoIterator<Item = Job>,
    faults: &[Fault],
    sample: usize,
) {
    let Some(injector) = Injector::new() else { return };
    let [_, (_, settings)] = registry_settings();
    let templates = Templates::new();
    let registries = Registries::new(settings).await;
    let ground = Ground { injector, templates, registries, image: image_digest() };
    let mut sounds = Vec::new();
    let mut points = Points::of(harness);
    for job in jobs {
        let mut counts = BTreeMap::new();
        for class in ["writes", "reads"] {
            let site = Site::new(&ground, &job).await;
            let nothing_done = site.result(&job, &Ended::default());
            let ended = site.run(&ground, job, Some(((class, "count"), 0)), true).await;
            assert_eq!(ended.code, Some(0), "{}: {}", job.name, ended.stderr);
            site.whole().unwrap();
            counts.insert(class, site.report.read().unwrap().0);
            if class == "reads" {
                let sound = site.result(&job, &ended);
                assert_eq!(sound == nothing_done, job.only_reads(), "{}: {sound:#?}", job.name);
                sounds.push(sound);
            }
        }
        // verify writes what it proved, to the cache only.
        assert_ne!(counts["writes"], 0, "{}: {counts:?}", job.name);
        // The power may also fail when all is done.
        let counted = |fault: Fault| counts[fault.0] + usize::from(is_power_failure(fault));
        let at_each = |&fault: &Fault| (0..counted(fault)).map(move |at| Point { job, fault, at });
        points
            .add(job.name, faults.iter().flat_map(at_each).map(|point| (point, sounds.len() - 1)));
    }
    let (points, mut score) = points.chosen(sample);
    let ground = &ground;
    let sounds = &sounds;
    let outcomes: Vec<_> = stream::iter(points)
        .map(|(point, sound)| async move { (point, attempt(ground, point, &sounds[sound]).await) })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for (Point { job, fault, at }, outcome) in outcomes {
        score.count(&format!("{}, {fault:?} at {at}", job.name), outcome);
    }
    score.conclude();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_file_access_costs_at_most_another_run() {
    try_all(FILES, ON_DISK, &FAILURES, SAMPLE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_at_a_file_access_leaves_nothing_incomplete() {
    let jobs = ON_DISK.into_iter().filter(|job| !job.only_reads());
    try_all(KILLS_AT_FILES, jobs, &KILLS, SAMPLE_OF_KILLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_failure_costs_at_most_another_run() {
    let jobs = ON_DISK.into_iter().filter(|job| !job.only_reads());
    try_all(POWER, jobs, &POWER_FAILURES, SAMPLE_OF_POWER).await;
}
