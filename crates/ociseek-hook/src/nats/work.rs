//! Takes jobs out of the queue, one at a time for each slot, and acknowledges them after they are
//! done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{AckKind, Message};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, error, info, warn};

use super::{NatsError, NatsQueue};
use crate::http::Monitored;
use crate::job::Job;
use crate::log::{TARGET, now};
use crate::runner::{JobOutcome, Runner};
use ociseek_format::progress::causes;

/// The name of the workers for the server. They share a consumer, so each job goes to only one of
/// them.
const CONSUMER: &str = "workers";
/// How many times a job is delivered before it is parked untried, in case it kills the workers. The
/// server also counts deliveries that no worker received, so transient failures are retried up to
/// this number. They are not counted separately: a message that is delivered again has the same
/// headers as before, and a message that is published again would be delivered without a wait.
const DELIVERIES: u32 = 5;
/// The header of a returned job: how many times it was tried.
const TRIES: &str = "Ociseek-Tries";
/// The maximum number of jobs in progress, all workers together.
const IN_HAND: i64 = 10_000;
/// How long to wait for a job in one request to the server.
const ASK: Duration = Duration::from_secs(20);
/// How long returning unfinished jobs to the queue may take.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// The wait before a job that could not be parked is delivered again.
const NOT_PARKED: Duration = Duration::from_secs(30);
/// The wait before the server is asked again after a failure.
const PAUSE: Duration = Duration::from_secs(2);

/// The phases of stopping a worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Working,
    /// Start no new jobs.
    Ending,
    /// Return running jobs.
    Over,
}

/// A process that runs the jobs of a queue.
pub struct Worker {
    queue: NatsQueue,
    consumer: Consumer<pull::Config>,
    runner: Arc<Runner>,
    running: AtomicU64,
    stopping: AtomicBool,
    /// Whether a failure to get jobs was reported.
    failing: AtomicBool,
}

ociseek_format::opaque_debug!(Worker);

impl Worker {
    /// If this is the first worker of the queue, `silence` is set for all workers: one that is
    /// silent for so long counts as dead, and its job is delivered to another.
    ///
    /// # Errors
    /// If the consumer cannot be created.
    pub async fn new(
        queue: NatsQueue,
        runner: Arc<Runner>,
        silence: Duration,
    ) -> Result<Worker, NatsError> {
        let consumer = queue.consumer(silence).await?;
        let [stopping, failing] = [false, false].map(AtomicBool::new);
        Ok(Worker { queue, consumer, runner, running: AtomicU64::new(0), stopping, failing })
    }

    /// Runs jobs, `slots` at a time, until `stop`. Then waits up to `drain` for running ones, and
    /// returns the rest to the queue. Ends even if the server is not reachable.
    pub async fn work(
        self: &Arc<Self>,
        slots: usize,
        drain: Duration,
        stop: impl Future<Output = ()>,
    ) {
        let heartbeat = self.consumer.cached_info().config.ack_wait / 3;
        let (phase, phases) = watch::channel(Phase::Working);
        let mut workers = JoinSet::new();
        for _ in 0..slots.max(1) {
            let slot = Slot { worker: Arc::clone(self), phases: phases.clone(), heartbeat };
            workers.spawn(slot.run());
        }
        stop.await;
        self.stopping.store(true, Ordering::SeqCst);
        info!(name: "stopping", target: TARGET, running = self.running.load(Ordering::SeqCst));
        phase.send_replace(Phase::Ending);
        let mut all = std::pin::pin!(async { while workers.join_next().await.is_some() {} });
        if timeout(drain, &mut all).await.is_err() {
            phase.send_replace(Phase::Over);
            let _ = timeout(LAST_WORDS, all).await;
        }
        // The last messages must be sent before the process ends. Without a connection this would
        // wait for one.
        if self.queue.is_connected() {
            let _ = timeout(LAST_WORDS, self.queue.jetstream.client().flush()).await;
        }
        info!(name: "stopped", target: TARGET, left = self.running.load(Ordering::SeqCst));
    }
}

impl Monitored for Worker {
    fn is_ready(&self) -> bool {
        !self.stopping.load(Ordering::SeqCst) && self.queue.is_connected()
    }

    fn metrics(&self) -> String {
        self.runner.metrics.text(&[
            ("ociseek_hook_running", "Jobs in progress", self.running.load(Ordering::SeqCst)),
            (
                "ociseek_hook_connected",
                "Whether the queue is connected",
                self.queue.is_connected().into(),
            ),
        ])
    }
}

impl NatsQueue {
    async fn consumer(&self, silence: Duration) -> Result<Consumer<pull::Config>, NatsError> {
        let setup = |source: async_nats::Error| NatsError::Setup {
            what: "consumer",
            name: CONSUMER.to_owned(),
            source,
        };
        let stream =
            self.jetstream.get_stream(&self.name).await.map_err(|error| setup(error.into()))?;
        let config = pull::Config {
            durable_name: Some(CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: silence,
            // Attempts are counted here, so that no job is dropped unseen.
            max_deliver: -1,
            max_ack_pending: IN_HAND,
            ..pull::Config::default()
        };
        stream.get_or_create_consumer(CONSUMER, config).await.map_err(|error| setup(error.into()))
    }

    /// Stores a job that was given up, for people to examine. Returns whether the server has stored
    /// it.
    async fn park(&self, record: &Value) -> bool {
        let sent = self.jetstream.publish(self.parked(), Bytes::from(record.to_string())).await;
        match sent {
            Ok(sent) => sent.await.is_ok(),
            Err(_) => false,
        }
    }
}

struct Slot {
    worker: Arc<Worker>,
    phases: watch::Receiver<Phase>,
    /// How often to report that the job is in progress.
    heartbeat: Duration,
}

impl Slot {
    async fn run(self) {
        loop {
            let asked = tokio::select! {
                biased;
                () = reached(self.phases.clone(), Phase::Ending) => return,
                asked = self.next() => asked,
            };
            if let Some(message) = asked {
                self.worker.running.fetch_add(1, Ordering::SeqCst);
                self.handle(&message).await;
                self.worker.running.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// The next job, if one arrives soon.
    async fn next(&self) -> Option<Message> {
        let Worker { queue, consumer, failing, .. } = &*self.worker;
        let losses = queue.losses.load(Ordering::SeqCst);
        match fetch(consumer).await {
            Ok(message) => {
                failing.store(false, Ordering::SeqCst);
                message
            }
            Err(error) => {
                tokio::time::sleep(PAUSE).await;
                // A lost connection is reported elsewhere, so consequential failures are not.
                let is_lost =
                    !queue.is_connected() || queue.losses.load(Ordering::SeqCst) != losses;
                if !is_lost && !failing.swap(true, Ordering::SeqCst) {
                    warn!(name: "queue", target: TARGET, error = format!("cannot get a job: {}", plain(&error)));
                }
                None
            }
        }
    }

    async fn handle(&self, message: &Message) {
        let Worker { runner, .. } = &*self.worker;
        let deliveries = message.info().map_or(1, |info| info.delivered);
        let job = match Job::from_json(&message.payload) {
            Ok(job) => job,
            Err(error) => {
                let text: String =
                    String::from_utf8_lossy(&message.payload).chars().take(1000).collect();
                let why = causes(&error);
                error!(name: "dead-letter", target: TARGET, payload = text, error = why);
                let record = json!({"time": now(), "payload": text, "error": why});
                return self.settle(message, Some(&record)).await;
            }
        };
        debug!(name: "received", target: TARGET, image = job.image.to_string(), deliveries);
        let before =
            message.headers.as_ref().and_then(|headers| headers.get(TRIES)?.as_str().parse().ok());
        let tries =
            u32::try_from(deliveries).unwrap_or(u32::MAX).saturating_add(before.unwrap_or(0));
        let (tries, outcome) = if tries > DELIVERIES {
            (tries - 1, JobOutcome::Dead("no worker finished it".into()))
        } else {
            match self.work(message, &job, tries).await {
                Some(outcome) => (tries, outcome),
                None => return self.hand_back(message, tries - 1).await,
            }
        };
        match outcome {
            JobOutcome::Done(_) => self.settle(message, None).await,
            JobOutcome::Again(wait) => self.say(message, AckKind::Nak(Some(wait))).await,
            JobOutcome::Dead(reason) => {
                runner.give_up(&job, tries, &reason);
                let mut record =
                    json!({"time": now(), "job": job, "tries": tries, "error": reason.error});
                if let Some(hint) = reason.hint {
                    record["hint"] = hint.into();
                }
                self.settle(message, Some(&record)).await;
            }
        }
    }

    /// Runs a job and reports to the server that it is in progress. None if it was stopped before
    /// its end.
    async fn work(&self, message: &Message, job: &Job, tries: u32) -> Option<JobOutcome> {
        let Worker { runner, .. } = &*self.worker;
        let mut run = std::pin::pin!(runner.run(job, tries, DELIVERIES));
        let mut over = std::pin::pin!(reached(self.phases.clone(), Phase::Over));
        loop {
            tokio::select! {
                outcome = &mut run => return Some(outcome),
                () = &mut over => return None,
                () = tokio::time::sleep(self.heartbeat) => self.say(message, AckKind::Progress).await,
            }
        }
    }

    /// Returns a job to the queue if its try does not count, with the number of those that do. The
    /// server only counts deliveries, so this publishes a new message and acknowledges the old one.
    /// The job moves to the end of the queue.
    async fn hand_back(&self, message: &Message, tries: u32) {
        let Worker { queue, .. } = &*self.worker;
        debug!(name: "handed-back", target: TARGET, tries);
        // Without a connection, the server notices the silence.
        if !queue.is_connected() {
            return;
        }
        let again = PublishMessage::build()
            .payload(message.payload.clone())
            .header(TRIES, tries.to_string().as_str());
        match queue.send(again).await {
            Ok(_) => self.settle(message, None).await,
            // If the queue is full, for example, the try counts.
            Err(_) => self.say(message, AckKind::Nak(None)).await,
        }
    }

    /// Removes a job from the queue; if there is a record, it is parked first. If the server cannot
    /// be reached, the job is delivered again.
    async fn settle(&self, message: &Message, parked: Option<&Value>) {
        if let Some(record) = parked
            && !self.worker.queue.park(record).await
        {
            return self.say(message, AckKind::Nak(Some(NOT_PARKED))).await;
        }
        if let Err(error) = self.acknowledge(message).await {
            let error = format!(
                "cannot acknowledge a job, so it will be delivered again: {}",
                plain(&error)
            );
            warn!(name: "queue", target: TARGET, error);
        }
    }

    /// Acknowledges a job, and waits for the server's confirmation. The client's `double_ack`
    /// accepts any answer, even a notice that nobody serves the subject.
    async fn acknowledge(&self, message: &Message) -> Result<(), async_nats::Error> {
        let subject = message.reply.clone().ok_or("the message has no reply subject")?;
        let answer =
            self.worker.queue.jetstream.client().request(subject, AckKind::Ack.into()).await?;
        answer.status.map_or(Ok(()), |status| Err(format!("the answer is {status}").into()))
    }

    async fn say(&self, message: &Message, what: AckKind) {
        if let Err(error) = message.ack_with(what).await {
            let error = format!("cannot report a job's progress to the queue: {}", plain(&error));
            warn!(name: "queue", target: TARGET, error);
        }
    }
}

async fn reached(mut phases: watch::Receiver<Phase>, phase: Phase) {
    // The sender exists as long as there are workers.
    let _ = phases.wait_for(|now| *now >= phase).await;
}

async fn fetch(consumer: &Consumer<pull::Config>) -> Result<Option<Message>, async_nats::Error> {
    let mut batch = consumer.fetch().max_messages(1).expires(ASK).messages().await?;
    batch.next().await.transpose()
}

/// The client's error message. It includes the server's text in Rust's debug format: `409,
/// Some("Server Shutdown")`.
fn plain(error: &async_nats::Error) -> String {
    error.to_string().replace(", Some(\"", " ").replace("\")", "").replace(", None", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_reported_in_plain_words() {
        let said = |text: &str| plain(&text.to_owned().into());
        let from = "error while processing messages from the stream: 409";
        assert_eq!(
            said(&format!("{from}, Some(\"Server Shutdown\")")),
            format!("{from} Server Shutdown")
        );
        assert_eq!(said(&format!("{from}, None")), from);
        assert_eq!(said("timed out"), "timed out");
    }
}
