//! `hook worker` and `hook serve` with a queue: the Nth message to NATS is lost, late, refused or
//! answered with an error, or its connection breaks there. No job that was accepted is lost: it is
//! done, with one index attached in the end, or it is parked with the reason. The process ends with
//! status 0 when it is told to; one that cannot start ends with status 1.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::http::header;
use futures_util::{StreamExt, stream};
use ociseek_format::digest::Digest;
use ociseek_hook::job::Job;
use ociseek_hook::nats::PublishOutcome;
use rustix::process::Signal;
use serde_json::Value;
use tokio::task::block_in_place;

use super::before::{Registries, registry_settings};
use super::jobs::{Ended, JOBS};
use super::queue::{Ground, log, url, worker};
use super::whole::whole;
use ociseek_testkit::fault_points::{MESSAGES, MISSED, Points};
use ociseek_testkit::faulty::{no_response, problem};
use ociseek_testkit::hook::{Hook, pushed};
use ociseek_testkit::nats_relay::{ALONE, ANSWERED, Harm, NatsRelay, Sent};
use ociseek_testkit::sandbox::Sandbox;

/// Most points wait most of the time.
const AT_ONCE: usize = 16;
/// Points in CI.
const SAMPLE: usize = 24;
/// For each step. A request for a job that is lost takes 25 s, a job that cannot be parked comes
/// again after 30 s.
const PATIENCE: Duration = Duration::from_secs(150);
/// How long a message may take to come after everything is done: the next request for a job.
const LAST: Duration = Duration::from_secs(3);
/// A registry that no worker may contact.
const STRANGER: &str = "127.0.0.1:1";

#[derive(Debug, Clone, Copy)]
enum Run {
    /// A worker fails at a job, does it slowly at the second try, and parks another one.
    Works,
    /// A worker is stopped during a job, and returns it.
    Returns,
    /// The service gets an event twice, and another one.
    Serves,
}

/// What a run comes to unless something fails: its messages, and what is attached to the image.
type Sound = (Vec<Sent>, BTreeMap<String, String>);

struct Point<'a> {
    ground: &'a Ground,
    /// The name of the queue.
    queue: String,
    relay: NatsRelay,
    sandbox: Sandbox,
    begun: Instant,
    /// How many times the process could not start.
    failed_starts: usize,
    /// How many times the job was parked.
    parked: usize,
}

impl Point<'_> {
    fn job(&self, host: &str) -> Job {
        Job { image: format!("{host}/a/b@{}", self.ground.image).parse().unwrap() }
    }

    /// The time of this step is not over.
    fn in_time(&self, hook: &Hook) -> Result<(), String> {
        let is_over = self.begun.elapsed() > PATIENCE;
        if is_over { Err(format!("it takes too long: {}", log(hook))) } else { Ok(()) }
    }

    /// Starts it again if it has ended, which is right if it could not start.
    fn keep(&mut self, hook: &mut Hook, start: impl FnOnce(&Self) -> Hook) -> Result<(), String> {
        self.in_time(hook)?;
        if let Some(status) = hook.child.ended() {
            let had_started =
                ["working", "listening"].iter().any(|event| !hook.events(event).is_empty());
            if status.code() != Some(1)
                || had_started
                || self.failed_starts > 0
                || !self.relay.has_hit()
            {
                return Err(format!("it ended with {status}: {}", log(hook)));
            }
            self.failed_starts += 1;
            *hook = start(self);
        }
        Ok(())
    }

    async fn stop(&self, hook: &mut Hook) -> Result<(), String> {
        let begun = Instant::now();
        while !self.relay.has_hit() && begun.elapsed() < LAST {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        hook.child.signal(Signal::TERM);
        let status = block_in_place(|| hook.end());
        if !status.success() || hook.events("stopped").len() != 1 {
            return Err(format!("it was stopped and ended with {status}: {}", log(hook)));
        }
        if hook.log().iter().any(|line| line["event"] == "no JSON") {
            return Err(format!("a line of the log is no JSON: {:#?}", hook.log()));
        }
        Ok(())
    }

    /// Returns what is attached to the image.
    async fn works(&mut self) -> Result<BTreeMap<String, String>, String> {
        let ground = self.ground;
        let [fails, pauses] = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
        let failing = Arc::clone(&fails);
        let pausing = Arc::clone(&pauses);
        let registry = ground.registries.before(&ground.job).copy(move |seen, _| {
            if failing.load(Ordering::SeqCst) {
                // For longer than anybody waits, so that the try ends.
                let mut busy = problem(503, "UNAVAILABLE", "not now");
                busy.headers_mut().insert(header::RETRY_AFTER, 86_400.into());
                return Some(busy);
            }
            // For longer than the third of `--silence` after which a worker reports that it is
            // alive.
            if seen.is("GET", "/blobs/") && pausing.swap(false, Ordering::SeqCst) {
                block_in_place(|| std::thread::sleep(Duration::from_millis(1500)));
            }
            None
        });
        let registry = registry.await;
        let host = registry.host();
        let own = ground.queue(&self.queue).await;
        for job in [self.job(&host), self.job(STRANGER)] {
            assert_eq!(own.publish(&job).await.unwrap(), PublishOutcome::New);
        }
        let start =
            |point: &Self| worker(&point.sandbox, point.relay.port, &point.queue, &host, &[]);
        self.relay.arm();
        let mut hook = start(self);
        loop {
            self.keep(&mut hook, start)?;
            if !hook.events("retry").is_empty() {
                fails.store(false, Ordering::SeqCst);
            }
            if ground.messages(&self.queue).await == 0 {
                let (ours, strange): (Vec<Value>, Vec<Value>) = ground
                    .parked(&self.queue)
                    .await
                    .into_iter()
                    .partition(|record| record["job"]["registry"] == *host);
                // The one that could not be acknowledged may be there twice.
                let is_told =
                    strange.iter().all(|record| record["error"] == "not allowed by --allow");
                if !(1..=2).contains(&strange.len()) || !is_told || ours.len() > 1 {
                    return Err(format!("parked: {strange:?} and {ours:?}: {}", log(&hook)));
                }
                if ours.len() == self.parked {
                    break;
                }
                // Deliveries that did not arrive count too. It is published again, by somebody who
                // has read why.
                if ours[0]["error"].as_str().is_none_or(str::is_empty) {
                    return Err(format!("parked without a reason: {}", log(&hook)));
                }
                self.parked += 1;
                own.publish(&self.job(&host)).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.stop(&mut hook).await?;
        self.attached(&registry)
    }

    async fn returns(&mut self) -> Result<BTreeMap<String, String>, String> {
        let ground = self.ground;
        let [is_silent, was_asked] = [true, false].map(|flag| Arc::new(AtomicBool::new(flag)));
        let silent = Arc::clone(&is_silent);
        let asked = Arc::clone(&was_asked);
        let registry = ground.registries.before(&ground.job).copy(move |_, _| {
            asked.store(true, Ordering::SeqCst);
            silent.load(Ordering::SeqCst).then(no_response)
        });
        let registry = registry.await;
        let host = registry.host();
        let own = ground.queue(&self.queue).await;
        assert_eq!(own.publish(&self.job(&host)).await.unwrap(), PublishOutcome::New);
        let mut hook =
            worker(&self.sandbox, self.relay.port, &self.queue, &host, &["--drain-timeout=0"]);
        while !was_asked.load(Ordering::SeqCst) {
            self.in_time(&hook)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.relay.arm();
        hook.child.signal(Signal::TERM);
        let status = block_in_place(|| hook.end());
        if !status.success() {
            return Err(format!("it was stopped and ended with {status}: {}", log(&hook)));
        }
        is_silent.store(false, Ordering::SeqCst);
        let mut next = worker(&self.sandbox, ground.port, &self.queue, &host, &[]);
        while ground.messages(&self.queue).await > 0 {
            self.in_time(&next)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.stop(&mut next).await?;
        if ground.messages(&format!("{}-parked", self.queue)).await > 0 {
            return Err(format!("it was parked: {}", log(&next)));
        }
        self.attached(&registry)
    }

    async fn serves(&mut self) -> Result<BTreeMap<String, String>, String> {
        let start = |point: &Self| {
            let queue = format!("--queue={}", url(point.relay.port, &point.queue));
            Hook::serve(&point.sandbox, &[&queue, &format!("--allow={STRANGER}")])
        };
        self.relay.arm();
        let mut hook = start(self);
        while hook.events("listening").is_empty() {
            self.keep(&mut hook, start)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let another = Digest::sha256(b"another");
        for (number, digest) in [self.ground.image, self.ground.image, another].iter().enumerate() {
            let event = pushed(&number.to_string(), STRANGER, "a/b", digest);
            // As a registry does it.
            loop {
                self.in_time(&hook)?;
                match block_in_place(|| hook.post(&event)) {
                    (200 | 202, _) => break,
                    (503, _) => tokio::time::sleep(Duration::from_millis(200)).await,
                    (status, text) => {
                        return Err(format!("event {number}: {status} {text}: {}", log(&hook)));
                    }
                }
            }
        }
        self.stop(&mut hook).await?;
        match self.ground.messages(&self.queue).await {
            2 => Ok(BTreeMap::new()),
            found => Err(format!("{found} jobs of 2 images are in the queue: {}", log(&hook))),
        }
    }

    fn attached(
        &self,
        registry: &ociseek_testkit::faulty::Faulty,
    ) -> Result<BTreeMap<String, String>, String> {
        whole(registry)?;
        let ended =
            Ended { code: Some(0), stdout: Vec::new(), stderr: String::new(), is_accepted: true };
        Ok(self.ground.job.result(registry, &self.sandbox, &ended))
    }
}

/// How a point ended, and the messages with what was attached; what was wrong there.
async fn attempt(
    ground: &Ground,
    number: usize,
    run: Run,
    harm: Option<(Sent, Harm)>,
    sound: Option<&Sound>,
) -> Result<(String, Sound), String> {
    let queue = format!("{run:?}{number}");
    let is_harmed = harm.is_some();
    let relay = NatsRelay::new(ground.port, &queue, harm).await;
    let sandbox = Sandbox::new();
    let begun = Instant::now();
    let mut point = Point { ground, queue, relay, sandbox, begun, failed_starts: 0, parked: 0 };
    let result = match run {
        Run::Works => point.works().await,
        Run::Returns => point.returns().await,
        Run::Serves => point.serves().await,
    }?;
    if let Some((_, want)) = sound
        && result != *want
    {
        return Err(format!("{result:#?}\nnot {want:#?}"));
    }
    ground.forget(&point.queue).await;
    let end = match (is_harmed && !point.relay.has_hit(), point.parked, point.failed_starts) {
        (true, ..) => MISSED,
        (_, 0, 0) => "done",
        (_, 0, _) => "could not start, then done",
        _ => "parked, then done",
    };
    Ok((end.to_owned(), (point.relay.sent(), result)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_is_lost_whichever_message_to_nats_fails() {
    let [_, (_, settings)] = registry_settings();
    let registries = Arc::new(Registries::new(settings).await);
    let job = JOBS.into_iter().find(|job| job.name == "hook serve").unwrap();
    let Some(ground) = Ground::new(&registries, job).await else { return };
    let mut sounds = Vec::new();
    let mut points = Points::of(MESSAGES);
    let mut kinds = BTreeMap::<String, usize>::new();
    for (number, run) in [Run::Works, Run::Returns, Run::Serves].into_iter().enumerate() {
        let (end, sound) = attempt(&ground, 0, run, None, None).await.unwrap();
        assert_eq!(end, "done", "{run:?}");
        for sent in &sound.0 {
            *kinds.entry(sent.kind.clone()).or_default() += 1;
            let more = if sent.is_answered { &ANSWERED[..] } else { &[] };
            points.add(
                &sent.kind,
                ALONE.iter().chain(more).map(|harm| (number, run, sent.clone(), *harm)),
            );
        }
        sounds.push(sound);
    }
    println!("messages to NATS: {kinds:?}");
    for kind in [
        "STREAM.CREATE.STREAM",
        "CONSUMER.CREATE.STREAM.workers",
        "CONSUMER.MSG.NEXT.STREAM.workers",
    ] {
        assert!(kinds.contains_key(&format!("$JS.API.{kind}")), "{kind}");
    }
    for kind in ["CONNECT", "STREAM.jobs", "STREAM.parked", "+ACK", "-NAK", "+WPI", "SUB", "UNSUB"]
    {
        assert!(kinds.contains_key(kind), "{kind}");
    }
    let (points, mut score) = points.chosen(SAMPLE);
    let ground = &ground;
    let sounds = &sounds;
    let outcomes: Vec<_> = stream::iter(points.into_iter().enumerate())
        .map(|(number, (at, run, sent, harm))| async move {
            let outcome =
                attempt(ground, number + 1, run, Some((sent.clone(), harm)), Some(&sounds[at]))
                    .await;
            (
                format!("{run:?}: {harm:?} at {} {}", sent.kind, sent.number),
                outcome.map(|(end, _)| end),
            )
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for (point, outcome) in outcomes {
        score.count(&point, outcome);
    }
    score.conclude();
}
