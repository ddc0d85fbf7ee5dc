//! The Nth request fails in each way that networks and registries fail, or the process is killed
//! there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use ociseek::digest::Digest;

use super::jobs::{Ended, JOBS, Job, Place, Registries, Templates, image_digest, natures, whole};
use super::{Score, chosen};
use crate::support::faulty::{Faulty, Seen, body_of, cut, damaged, hang_up, problem, silence, stalls, web_page};
use crate::support::sandbox::Sandbox;

/// How many runs are active at the same time. Most of them wait.
const AT_ONCE: usize = 16;
/// Points in CI.
const SAMPLE: usize = 140;
const SAMPLE_OF_STALLS: usize = 60;
const SAMPLE_OF_KILLS: usize = 60;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// The response is truncated.
    Cut,
    /// The connection is closed, and the request had no effect.
    Reset,
    /// The connection is closed after the request was executed.
    Lost,
    TooMany,
    Internal,
    Unavailable,
    /// A byte of the body is wrong; without a body, the status is.
    Wrong,
    /// A proxy's sign-in page, with status 200.
    WebPage,
    /// All tokens become invalid.
    Expired,
    Denied,
    /// The response stops, and the connection stays open.
    Stall,
    /// There is no answer, and the connection stays.
    Silence,
    /// From here on nobody answers, and new connections are refused.
    Down,
    /// kill -9, before or after the request is executed.
    Kill {
        done: bool,
    },
}

pub const QUICK: [Fault; 10] = [
    Fault::Cut,
    Fault::Reset,
    Fault::Lost,
    Fault::TooMany,
    Fault::Internal,
    Fault::Unavailable,
    Fault::Wrong,
    Fault::WebPage,
    Fault::Expired,
    Fault::Denied,
];
/// A run waits before it goes on: see `WAITS`.
pub const STALLS: [Fault; 3] = [Fault::Stall, Fault::Silence, Fault::Down];
pub const KILLS: [Fault; 2] = [Fault::Kill { done: false }, Fault::Kill { done: true }];

/// The requests of a run, and the fault of one of them.
#[derive(Default)]
pub struct Plan {
    pub fault: Fault,
    pub at: usize,
    /// All requests from that one on have the fault.
    pub lasts: bool,
    pub asked: AtomicUsize,
    /// From now on all is well.
    pub is_over: AtomicBool,
    pub pid: Arc<AtomicI32>,
}

impl Plan {
    pub fn answer(&self, seen: &Seen, faulty: &Faulty) -> Option<Response<Body>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let lasts = self.lasts || self.fault == Fault::Down;
        let is_hit = number == self.at || lasts && number > self.at;
        if !is_hit || self.is_over.load(Ordering::SeqCst) {
            return None;
        }
        let again = |status, code| {
            let mut answer = problem(status, code, "not now");
            answer.headers_mut().insert(header::RETRY_AFTER, "0".parse().unwrap());
            Some(answer)
        };
        match self.fault {
            Fault::None => None,
            Fault::Reset => hang_up(),
            Fault::Down => {
                if number == self.at {
                    faulty.down();
                }
                hang_up()
            }
            Fault::Silence => Some(silence()),
            Fault::Lost => {
                faulty.truth_now(seen);
                hang_up()
            }
            Fault::Cut | Fault::Stall => {
                let (answer, bytes) = body_of(faulty.truth_now(seen));
                match (self.fault, bytes.len()) {
                    (Fault::Cut, 0) => hang_up(),
                    (Fault::Cut, length) => Some(cut(answer, &bytes, length / 2)),
                    (_, length) => {
                        let mut stalled = stalls(&Bytes::from([&bytes[..], b" "].concat()), length / 2);
                        // Else a part of a blob would be announced as the whole.
                        if answer.status() == axum::http::StatusCode::PARTIAL_CONTENT {
                            *stalled.status_mut() = answer.status();
                            let range = answer.headers()[header::CONTENT_RANGE].clone();
                            stalled.headers_mut().insert(header::CONTENT_RANGE, range);
                            stalled.headers_mut().insert(header::CONTENT_LENGTH, length.into());
                        }
                        Some(stalled)
                    }
                }
            }
            Fault::TooMany => again(429, "TOOMANYREQUESTS"),
            Fault::Unavailable => again(503, "UNAVAILABLE"),
            Fault::Internal => Some(problem(500, "UNKNOWN", "something is broken")),
            Fault::Denied => Some(problem(403, "DENIED", "not allowed")),
            Fault::WebPage => Some(web_page()),
            Fault::Expired => {
                faulty.revoke_tokens();
                None
            }
            Fault::Wrong => {
                let (mut answer, bytes) = body_of(faulty.truth_now(seen));
                if bytes.is_empty() {
                    *answer.status_mut() = axum::http::StatusCode::RESET_CONTENT;
                    return Some(answer);
                }
                Some(damaged(answer, &bytes))
            }
            Fault::Kill { done } => {
                if done {
                    faulty.truth_now(seen);
                }
                let pid = loop {
                    match rustix::process::Pid::from_raw(self.pid.load(Ordering::SeqCst)) {
                        Some(pid) => break pid,
                        None => std::thread::yield_now(),
                    }
                };
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                hang_up()
            }
        }
    }
}

/// A point: a job in a registry, and the fault of one of its requests.
#[derive(Clone, Copy)]
struct Point {
    job: Job,
    nature: usize,
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
    async fn new(point: Point, (registries, templates): (&Registries, &Templates), image: Digest) -> Planned {
        let Point { job, fault, at, .. } = point;
        let plan = Arc::new(Plan { fault, at, ..Plan::default() });
        let planned = Arc::clone(&plan);
        let registry = registries.before(&job).copy(move |seen, faulty| planned.answer(seen, faulty)).await;
        let sandbox = Arc::new(templates.sandbox(&job));
        Planned { registry, plan, sandbox, image }
    }

    async fn run(&self, job: Job, posts: bool) -> Ended {
        let (sandbox, host, pid) = (Arc::clone(&self.sandbox), self.registry.host(), Arc::clone(&self.plan.pid));
        let image = self.image;
        let run = move || job.run(&Place { sandbox: &sandbox, host: &host, image, through: Vec::new() }, posts, &pid);
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
    let ended = planned.run(point.job, true).await;
    assert_eq!(ended.code, Some(0), "{}: {}", point.job.name, ended.stderr);
    whole(&planned.registry).unwrap();
    let result = point.job.result(&planned.registry, &planned.sandbox, &ended);
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
    if first.code == Some(0) {
        let result = job.result(&planned.registry, &planned.sandbox, &first);
        if result != sound.result {
            return Err(format!("success, but {result:#?}\nnot {:#?}\n{}", sound.result, first.stderr));
        }
        return Ok("right".to_owned());
    }
    planned.plan.is_over.store(true, Ordering::SeqCst);
    planned.registry.up().await;
    // A job that was accepted is in the journal, unless it failed.
    let second = planned.run(job, first.code.is_some() || !first.is_accepted).await;
    let result = job.result(&planned.registry, &planned.sandbox, &second);
    if second.code != Some(0) || result != sound.result {
        let (code, first, second) = (second.code, first.stderr, second.stderr);
        return Err(format!(
            "the second run: {code:?}, {result:#?}\nnot {:#?}\n{first}\nsecond:\n{second}",
            sound.result
        ));
    }
    whole(&planned.registry).map_err(|e| format!("after the second run: {e}"))?;
    Ok(first.code.map_or_else(|| "killed, then right".to_owned(), |code| format!("exit code {code}, then right")))
}

/// Tries all jobs in both kinds of registry, with a fault of each kind at each request.
async fn try_all(what: &str, faults: &[Fault], sample: usize) {
    let (image, templates) = (image_digest(), Templates::new());
    let mut registries = Vec::new();
    for (_, nature) in natures() {
        registries.push(Registries::new(nature).await);
    }
    let (mut sounds, mut points) = (Vec::new(), Vec::new());
    for (nature, registry) in registries.iter().enumerate() {
        for job in JOBS {
            let point = Point { job, nature, fault: Fault::None, at: 0 };
            let sound = sound(point, (registry, &templates), image).await;
            let each = (0..sound.requests).flat_map(|at| faults.iter().map(move |&fault| Point { fault, at, ..point }));
            points.extend(each.map(|point| (point, sounds.len())));
            sounds.push(sound);
        }
    }
    let total = points.len();
    let points = chosen(points, sample);
    println!("{what}: {} of {total}", points.len());
    let (registries, templates, sounds) = (&registries, &templates, &sounds);
    let outcomes: Vec<_> = stream::iter(points)
        .map(|(point, sound)| async move {
            let before = (&registries[point.nature], templates);
            (point, attempt(point, before, image, &sounds[sound]).await)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut score = Score::default();
    for (Point { job, nature, fault, at }, outcome) in outcomes {
        score.count(&format!("{}, {}, {fault:?} at request {at}", job.name, natures()[nature].0), outcome);
    }
    score.conclude(what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_fails_costs_no_more_than_another_run() {
    try_all("requests that fail", &QUICK, SAMPLE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_at_a_request_leaves_nothing_half_done() {
    try_all("kills at requests", &KILLS, SAMPLE_OF_KILLS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_stops_answering_costs_no_more_than_another_run() {
    try_all("registries that stop answering", &STALLS, SAMPLE_OF_STALLS).await;
}
