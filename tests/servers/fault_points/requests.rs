//! The Nth request fails in each way that networks and registries fail, or the process is killed
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{StreamExt, stream};
use ociseek_format::digest::Digest;

use super::before::{Registries, Templates, image_digest, registry_settings};
use super::jobs::{Ended, JOBS, Job, Place};
use super::whole::whole;
use ociseek_testkit::fault_plan::{Fault, KILLS, Plan, QUICK, STALLS};
use ociseek_testkit::fault_points::{Harness, KILLS_AT_REQUESTS, MISSED, Points, REQUESTS, STOPS};
use ociseek_testkit::faulty::Faulty;
use ociseek_testkit::sandbox::Sandbox;

/// How many runs are active at the same time. Most of them wait.
const AT_ONCE: usize = 16;
/// Points in CI.
const SAMPLE: usize = 140;
const SAMPLE_OF_STALLS: usize = 60;
const SAMPLE_OF_KILLS: usize = 60;

/// A point: a job in a registry, and the fault of one of its requests.
#[derive(Clone, Copy)]
struct Point {
    job: Job,
    settings: usize,
    fault: Fault,
    at: usize,
}

/// A registry in which a request fails.
struct Planned {
    registry: Faulty,
    plan: Arc<Plan>,
    sandbox: Arc<Sandbox>,
    image: Digest,
}

impl Planned {
    async fn new(
        point: Point,
        (registries, templates): (&Registries, &Templates),
        image: Digest,
    ) -> Planned {
        let Point { job, fault, at, .. } = point;
        let plan = Arc::new(Plan { fault, at, ..Plan::default() });
        let planned = Arc::clone(&plan);
        let registry =
            registries.before(&job).copy(move |seen, faulty| planned.answer(seen, faulty)).await;
        let sandbox = Arc::new(templates.sandbox(&job));
        Planned { registry, plan, sandbox, image }
    }

    async fn run(&self, job: Job, posts: bool) -> Ended {
        let sandbox = Arc::clone(&self.sandbox);
        let host = self.registry.host();
        let pid = Arc::clone(&self.plan.pid);
        let image = self.image;
        let run = move || {
            job.run(
                &Place { sandbox: &sandbox, host: &host, image, through: Vec::new() },
                posts,
                &pid,
            )
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    }
}

/// The result of a job without faults, and its number of requests.
struct Sound {
    result: BTreeMap<String, String>,
    requests: usize,
}

async fn sound(point: Point, before: (&Registries, &Templates), image: Digest) -> Sound {
    let planned = Planned::new(point, before, image).await;
    let result = |ended: &Ended| point.job.result(&planned.registry, &planned.sandbox, ended);
    let nothing_done = result(&Ended::default());
    let ended = planned.run(point.job, true).await;
    assert_eq!(ended.code, Some(0), "{}: {}", point.job.name, ended.stderr);
    whole(&planned.registry).unwrap();
    let result = result(&ended);
    assert_eq!(result == nothing_done, point.job.only_reads(), "{}: {result:#?}", point.job.name);
    Sound { result, requests: planned.plan.asked.load(Ordering::SeqCst) }
}

/// The result of a point. The error says what is wrong.
async fn attempt(
    point: Point,
    before: (&Registries, &Templates),
    image: Digest,
    sound: &Sound,
) -> Result<String, String> {
    let Point { job, .. } = point;
    let planned = Planned::new(point, before, image).await;
    let first = planned.run(job, true).await;
    first.judge()?;
    whole(&planned.registry).map_err(|e| format!("after the fault: {e}\n{}", first.stderr))?;
    // A registry may refuse to delete what was replaced. The report says so, and the next run
    // deletes it.
    let is_refused = String::from_utf8_lossy(&first.stdout).contains(" (it could not be deleted)");
    if first.code == Some(0) && !is_refused {
        let result = job.result(&planned.registry, &planned.sandbox, &first);
        if result != sound.result {
            return Err(format!(
                "success, but {result:#?}\nnot {:#?}\n{}",
                sound.result, first.stderr
            ));
        }
        let is_hit = planned.plan.asked.load(Ordering::SeqCst) > point.at;
        return Ok(if is_hit { "right" } else { MISSED }.to_owned());
    }
    planned.plan.is_over.store(true, Ordering::SeqCst);
    planned.registry.up().await;
    // A job that was accepted is in the journal, unless it failed.
    let second = planned.run(job, first.code.is_some() || !first.is_accepted).await;
    let result = job.result(&planned.registry, &planned.sandbox, &second);
    if second.code != Some(0) || result != sound.result {
        let code = second.code;
        let first = first.stderr;
        let second = second.stderr;
        return Err(format!(
            "the second run: {code:?}, {result:#?}\nnot {:#?}\n{first}\nsecond:\n{second}",
            sound.result
        ));
    }
    whole(&planned.registry).map_err(|e| format!("after the second run: {e}"))?;
    Ok(first.code.map_or_else(
        || "killed, then right".to_owned(),
        |code| format!("exit code {code}, then right"),
    ))
}

/// Tries all jobs in both kinds of registry, with a fault of each kind at each request.
async fn try_all(harness: Harness, faults: &[Fault], sample: usize) {
    let image = image_digest();
    let templates = Templates::new();
    let mut registries = Vec::new();
    for (_, settings) in registry_settings() {
        registries.push(Registries::new(settings).await);
    }
    let mut sounds = Vec::new();
    let mut points = Points::of(harness);
    for (settings, registry) in registries.iter().enumerate() {
        for job in JOBS {
            let point = Point { job, settings, fault: Fault::None, at: 0 };
            let sound = sound(point, (registry, &templates), image).await;
            let each = (0..sound.requests)
                .flat_map(|at| faults.iter().map(move |&fault| Point { fault, at, ..point }));
            points.add(job.name, each.map(|point| (point, sounds.len())));
            sounds.push(sound);
        }
    }
    let (points, mut score) = points.chosen(sample);
    let registries = &registries;
    let templates = &templates;
    let sounds = &sounds;
    let outcomes: Vec<_> = stream::iter(points)
        .map(|(point, sound)| async move {
            let before = (&registries[point.settings], templates);
            (point, attempt(point, before, image, &sounds[sound]).await)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for (Point { job, settings, fault, at }, outcome) in outcomes {
        score.count(
            &format!(
                "{}, {}, {fault:?} at request {at}",
                job.name,
                registry_settings()[settings].0
            ),
            outcome,
        );
    }
    score.conclude();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_costs_at_most_another_run() {
    try_all(REQUESTS, &QUICK, SAMPLE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_at_a_request_leaves_nothing_incomplete() {
    try_all(KILLS_AT_REQUESTS, &KILLS, SAMPLE_OF_KILLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_stops_responding_costs_at_most_another_run() {
    try_all(STOPS, &STALLS, SAMPLE_OF_STALLS).await;
}
