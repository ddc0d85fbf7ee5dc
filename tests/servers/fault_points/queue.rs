//! `hook worker`: the Nth request to the registry fails, or the process is killed at it, or its
//! connection to NATS breaks there, or NATS is killed and restarted. The job is done once in the
//! end, or it is parked with the reason; it is never lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use futures_util::{StreamExt, stream};
use ociseek_format::digest::Digest;
use ociseek_hook::job::Job as QueueJob;
use ociseek_hook::nats::{NatsQueue, PublishOutcome};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::before::{Registries, image_digest, registry_settings};
use super::jobs::{Ended, JOBS, Job, SMALL, WAITS};
use super::whole::whole;
use crate::hook_nats::Nats;
use ociseek_testkit::PATIENCE;
use ociseek_testkit::fault_plan::{Fault, KILLS, Plan, QUICK, STALLS};
use ociseek_testkit::fault_points::{Points, QUEUE, QUEUE_RESTARTS};
use ociseek_testkit::hook::Hook;
use ociseek_testkit::sandbox::Sandbox;

const AT_ONCE: usize = 8;
/// Points in CI, and those of them at which NATS restarts.
const SAMPLE: usize = 48;
const RESTARTS: usize = 6;
/// How long connections to NATS are refused.
const AWAY: Duration = Duration::from_millis(1500);

/// What happens at a request to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Request(Fault),
    /// The connection to NATS is closed; the next one works at once, or after a while.
    Cut {
        away: bool,
    },
    /// NATS is killed, and restarted with what is on its disk.
    Restart,
}

/// A way to NATS that can be cut.
struct Relay {
    port: u16,
    cuts: watch::Sender<()>,
    is_away: Arc<AtomicBool>,
}

impl Relay {
    async fn new(server: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cuts, cut) = watch::channel(());
        let is_away = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&is_away);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                if refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let mut cut = cut.clone();
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Relay { port, cuts, is_away }
    }

    fn cut(&self, away: bool) {
        self.is_away.store(away, Ordering::SeqCst);
        self.cuts.send_replace(());
        let is_away = Arc::clone(&self.is_away);
        tokio::spawn(async move {
            tokio::time::sleep(AWAY).await;
            is_away.store(false, Ordering::SeqCst);
        });
    }
}

/// What all points share.
pub struct Ground {
    nats: Arc<Mutex<Nats>>,
    pub port: u16,
    jetstream: jetstream::Context,
    pub registries: Arc<Registries>,
    pub image: Digest,
    /// What a job comes to.
    pub job: Job,
}

impl Ground {
    pub async fn new(registries: &Arc<Registries>, job: Job) -> Option<Ground> {
        let nats = Nats::start()?;
        let image = image_digest();
        let port = nats.port;
        let nats = Arc::new(Mutex::new(nats));
        let client = async_nats::connect(format!("nats://127.0.0.1:{port}")).await.unwrap();
        let jetstream = jetstream::new(client);
        let registries = Arc::clone(registries);
        Some(Ground { nats, port, jetstream, registries, image, job })
    }

    pub async fn messages(&self, stream: &str) -> u64 {
        let begun = Instant::now();
        // Under load an answer may come too late.
        loop {
            if let Ok(mut stream) = self.jetstream.get_stream(stream).await
                && let Ok(info) = stream.info().await
            {
                return info.state.messages;
            }
            assert!(begun.elapsed() < PATIENCE, "no stream {stream}");
        }
    }

    /// The records of the jobs that were parked.
    pub async fn parked(&self, queue: &str) -> Vec<Value> {
        let name = format!("{queue}-parked");
        let messages = self.messages(&name).await;
        let mut records = Vec::new();
        let stream = self.jetstream.get_stream(name).await.unwrap();
        for number in 1..=messages {
            let record = stream.get_raw_message(number).await.unwrap();
            records.push(serde_json::from_slice(&record.payload).unwrap());
        }
        records
    }

    /// Another connection to a queue.
    pub async fn queue(&self, name: &str) -> NatsQueue {
        NatsQueue::connect(&url(self.port, name).parse().unwrap(), |_| {}).await.unwrap()
    }

    pub async fn forget(&self, queue: &str) {
        for name in [queue.to_owned(), format!("{queue}-parked")] {
            let _ = self.jetstream.delete_stream(name).await;
        }
    }
}

pub fn url(port: u16, queue: &str) -> String {
    format!("nats://127.0.0.1:{port}/{queue}")
}

pub fn log(hook: &Hook) -> String {
    hook.log().iter().map(|line| format!("{line}\n")).collect()
}

pub fn worker(sandbox: &Sandbox, port: u16, queue: &str, registry: &str, more: &[&str]) -> Hook {
    let queue = format!("--queue={}", url(port, queue));
    let allow = format!("--allow={registry}");
    let args = ["hook", "worker", &queue, &allow, "--workers=1", "--retry-wait=1", "--silence=3"];
    Hook::spawn(sandbox.command(&[&args[..], &SMALL, more].concat()).envs(WAITS))
}

/// How many requests a job takes, and what it comes to, unless something fails.
type Sound = (usize, std::collections::BTreeMap<String, String>);

/// How a point ended, and the number of requests with what was attached; what was wrong there.
async fn attempt(
    ground: &Ground,
    number: usize,
    trouble: Trouble,
    at: usize,
    sound: Option<&Sound>,
) -> Result<(String, Sound), String> {
    let queue = format!("p{number}");
    let relay = Arc::new(Relay::new(ground.port).await);
    let fault = if let Trouble::Request(fault) = trouble { fault } else { Fault::None };
    let plan = Arc::new(Plan { fault, at, ..Plan::default() });
    let planned = Arc::clone(&plan);
    let way = Arc::clone(&relay);
    let nats = Arc::clone(&ground.nats);
    let registry = ground.registries.before(&ground.job).copy(move |seen, faulty| {
        let number = planned.asked.load(Ordering::SeqCst);
        if let (Trouble::Cut { away }, true) = (trouble, number == at) {
            way.cut(away);
        }
        if trouble == Trouble::Restart && number == at {
            tokio::task::block_in_place(|| nats.lock().unwrap().restart());
        }
        planned.answer(seen, faulty)
    });
    let registry = registry.await;
    let sandbox = Sandbox::new();
    let host = registry.host();
    let job = QueueJob { image: format!("{host}/a/b@{}", ground.image).parse().unwrap() };
    let own = ground.queue(&queue).await;
    assert_eq!(own.publish(&job).await.unwrap(), PublishOutcome::New);

    let mut hook = worker(&sandbox, relay.port, &queue, &host, &[]);
    plan.pid.store(hook.child.id() as i32, Ordering::SeqCst);
    let begun = Instant::now();
    let mut killed = false;
    let mut parked = false;
    loop {
        if begun.elapsed() > PATIENCE {
            return Err(format!("the job is still in the queue: {}", log(&hook)));
        }
        if let Some(status) = hook.child.ended() {
            if killed || !matches!(trouble, Trouble::Request(Fault::Kill { .. })) {
                return Err(format!("the worker ended with {status}: {}", log(&hook)));
            }
            killed = true;
            plan.is_over.store(true, Ordering::SeqCst);
            hook = worker(&sandbox, relay.port, &queue, &host, &[]);
        }
        // A registry that is away for good would only be waited for.
        if fault == Fault::Down && !hook.events("retry").is_empty() {
            plan.is_over.store(true, Ordering::SeqCst);
            registry.up().await;
        }
        if ground.messages(&queue).await == 0 {
            if parked || ground.messages(&format!("{queue}-parked")).await == 0 {
                break;
            }
            // It is published again, by somebody who has read why.
            parked = true;
            if ground.parked(&queue).await[0]["error"].as_str().is_none_or(str::is_empty) {
                return Err(format!("parked without a reason: {}", log(&hook)));
            }
            whole(&registry).map_err(|e| format!("when it was parked: {e}"))?;
            plan.is_over.store(true, Ordering::SeqCst);
            registry.up().await;
            own.publish(&job).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    whole(&registry).map_err(|e| format!("in the end: {e}"))?;
    let ended =
        Ended { code: Some(0), stdout: Vec::new(), stderr: String::new(), is_accepted: true };
    let result = ground.job.result(&registry, &sandbox, &ended);
    if let Some((_, want)) = sound
        && result != *want
    {
        return Err(format!("{result:#?}\nnot {want:#?}\n{:#?}", hook.log()));
    }
    if ground.messages(&format!("{queue}-parked")).await != u64::from(parked) {
        return Err(format!("parked more than once: {:#?}", hook.log()));
    }
    if hook.log().iter().any(|line| line["event"] == "no JSON") {
        return Err(format!("a line of the log is no JSON: {:#?}", hook.log()));
    }
    ground.forget(&queue).await;
    let end = match (killed, parked) {
        (true, _) => "killed, then done",
        (_, true) => "parked, then done",
        _ => "done",
    };
    Ok((end.to_owned(), (plan.asked.load(Ordering::SeqCst), result)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_job_is_done_once_whatever_fails() {
    let [_, (_, settings)] = registry_settings();
    let registries = Arc::new(Registries::new(settings).await);
    let job = JOBS.into_iter().find(|job| job.name == "hook serve").unwrap();
    let Some(ground) = Ground::new(&registries, job).await else { return };
    let none = Trouble::Request(Fault::None);
    let (end, sound) = attempt(&ground, 0, none, usize::MAX, None).await.unwrap();
    assert!(end == "done" && !sound.1.is_empty(), "{end}: {sound:?}");
    let faults = [&QUICK[..], &STALLS, &KILLS].concat().into_iter().map(Trouble::Request);
    let troubles: Vec<Trouble> =
        faults.chain([false, true].map(|away| Trouble::Cut { away })).collect();
    let mut points = Points::of(QUEUE);
    let mut restarts = Points::of(QUEUE_RESTARTS);
    points.add(
        "a job",
        (0..sound.0).flat_map(|at| troubles.iter().map(move |&trouble| (at, trouble))),
    );
    restarts.add("a job", (0..sound.0).map(|at| (at, Trouble::Restart)));
    let (points, mut score) = points.chosen(SAMPLE - RESTARTS);
    let (restarts, mut score_of_restarts) = restarts.chosen(RESTARTS);
    let points = [points, restarts].concat();
    let shared = &ground;
    let sound = &sound;
    let registries = &registries;
    let outcomes: Vec<_> = stream::iter(points.into_iter().enumerate())
        .map(|(number, (at, trouble))| async move {
            // A restart would hit the others.
            let own = match trouble {
                Trouble::Restart => Ground::new(registries, job).await,
                _ => None,
            };
            let ground = own.as_ref().unwrap_or(shared);
            let outcome = attempt(ground, number + 1, trouble, at, Some(sound)).await;
            (at, trouble, outcome.map(|(end, _)| end))
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for (at, trouble, outcome) in outcomes {
        let score = if trouble == Trouble::Restart { &mut score_of_restarts } else { &mut score };
        score.count(&format!("{trouble:?} at request {at}"), outcome);
    }
    score.conclude();
    score_of_restarts.conclude();
}
