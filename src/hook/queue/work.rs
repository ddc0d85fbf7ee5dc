//! Taking jobs out of the queue: one at a time for each slot, acknowledged when all is done.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::{AckKind, Message};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Queue, QueueError};
use crate::hook::job::Job;
use crate::hook::log::now;
use crate::hook::runner::{Outcome, Runner};
use crate::ops::discover::causes;

/// The workers' name to the server: they share one consumer, and a job goes to one of them.
const CONSUMER: &str = "workers";
/// A worker that was silent for so long is taken for dead, and its job goes to another.
const SILENCE: Duration = Duration::from_secs(30);
/// A worker that is busy says so this often.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often a job is handed out before it is parked unseen: workers that die of it must come to an end.
const DELIVERIES: i64 = 5;
/// Jobs that all workers together may have in hand.
const IN_HAND: i64 = 10_000;
/// How long the server is asked for a job before it is asked anew.
const ASK: Duration = Duration::from_secs(20);
/// Before the server is asked again when it could not be.
const PAUSE: Duration = Duration::from_secs(2);

/// Where a worker is between being told to stop and stopping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Working,
    /// No new job.
    Ending,
    /// Jobs in hand go back.
    Over,
}

impl Queue {
    /// Works on jobs, `slots` at a time, until `stop`; then ends those in hand, or hands them back after `drain`.
    ///
    /// # Errors
    /// When the consumer cannot be made.
    pub async fn work(
        &self,
        runner: Arc<Runner>,
        slots: usize,
        drain: Duration,
        stop: impl Future<Output = ()>,
    ) -> Result<(), QueueError> {
        let consumer = self.consumer().await?;
        let (phase, phases) = watch::channel(Phase::Working);
        let mut workers = JoinSet::new();
        for _ in 0..slots.max(1) {
            let slot = Slot { queue: self.clone(), runner: Arc::clone(&runner), phases: phases.clone() };
            let consumer = consumer.clone();
            workers.spawn(async move { slot.run(&consumer).await });
        }
        stop.await;
        runner.log.info("stopping", json!({}));
        phase.send_replace(Phase::Ending);
        let all = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(drain, all).await.is_err() {
            phase.send_replace(Phase::Over);
            while workers.join_next().await.is_some() {}
        }
        // What was said last must have been sent.
        let _ = self.jetstream.client().flush().await;
        runner.log.info("stopped", json!({}));
        Ok(())
    }

    async fn consumer(&self) -> Result<Consumer<pull::Config>, QueueError> {
        let setup =
            |source: async_nats::Error| QueueError::Setup { what: "consumer", name: CONSUMER.to_owned(), source };
        let stream = self.jetstream.get_stream(&self.name).await.map_err(|error| setup(error.into()))?;
        let config = pull::Config {
            durable_name: Some(CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: SILENCE,
            // We count for ourselves, so that nothing is dropped unseen.
            max_deliver: -1,
            max_ack_pending: IN_HAND,
            ..pull::Config::default()
        };
        stream.get_or_create_consumer(CONSUMER, config).await.map_err(|error| setup(error.into()))
    }

    /// Keeps what was given up for people to look at. True: the server has it.
    async fn park(&self, record: &Value) -> bool {
        let sent = self.jetstream.publish(self.parked(), Bytes::from(record.to_string())).await;
        match sent {
            Ok(sent) => sent.await.is_ok(),
            Err(_) => false,
        }
    }
}

struct Slot {
    queue: Queue,
    runner: Arc<Runner>,
    phases: watch::Receiver<Phase>,
}

impl Slot {
    async fn run(self, consumer: &Consumer<pull::Config>) {
        loop {
            let asked = tokio::select! {
                biased;
                () = reached(self.phases.clone(), Phase::Ending) => return,
                asked = next(consumer) => asked,
            };
            match asked {
                Ok(Some(message)) => self.handle(&message).await,
                Ok(None) => {}
                Err(error) => {
                    self.runner.log.warn("queue", json!({"error": error.to_string()}));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn handle(&self, message: &Message) {
        let deliveries = message.info().map_or(1, |info| info.delivered);
        let job = match Job::from_json(&message.payload) {
            Ok(job) => job,
            Err(error) => {
                let text: String = String::from_utf8_lossy(&message.payload).chars().take(1000).collect();
                let record = json!({"time": now(), "payload": text, "error": causes(&error)});
                self.runner.log.error("dead-letter", record.clone());
                return self.settle(message, Some(&record)).await;
            }
        };
        let tries = u32::try_from(deliveries).unwrap_or(u32::MAX);
        let outcome = if deliveries > DELIVERIES {
            self.runner.give_up(&job, tries - 1, "no worker that had it came to an end with it")
        } else {
            match self.work(message, &job, tries).await {
                Some(outcome) => outcome,
                // Another worker may begin at once.
                None => return self.say(message, AckKind::Nak(None)).await,
            }
        };
        match outcome {
            Outcome::Done(_) => self.settle(message, None).await,
            Outcome::Again(wait) => self.say(message, AckKind::Nak(Some(wait))).await,
            Outcome::Dead(reason) => {
                let record = json!({"time": now(), "job": job, "tries": tries, "error": reason});
                self.settle(message, Some(&record)).await;
            }
        }
    }

    /// Does the job, and lets the server know that somebody is at it. None: there was no time to end it.
    async fn work(&self, message: &Message, job: &Job, tries: u32) -> Option<Outcome> {
        let run = AssertUnwindSafe(self.runner.run(job, tries)).catch_unwind();
        let mut run = std::pin::pin!(run);
        let mut over = std::pin::pin!(reached(self.phases.clone(), Phase::Over));
        loop {
            tokio::select! {
                outcome = &mut run => {
                    return Some(outcome.unwrap_or_else(|_| self.runner.give_up(job, tries, "ociseek panicked")));
                }
                () = &mut over => return None,
                () = tokio::time::sleep(HEARTBEAT) => self.say(message, AckKind::Progress).await,
            }
        }
    }

    /// The job leaves the queue; where there is a record it is parked first. If the server cannot be told, it comes again.
    async fn settle(&self, message: &Message, parked: Option<&Value>) {
        if let Some(record) = parked
            && !self.queue.park(record).await
        {
            return self.say(message, AckKind::Nak(Some(SILENCE))).await;
        }
        if let Err(error) = message.double_ack().await {
            self.runner.log.warn("queue", json!({"error": error.to_string()}));
        }
    }

    async fn say(&self, message: &Message, what: AckKind) {
        if let Err(error) = message.ack_with(what).await {
            self.runner.log.warn("queue", json!({"error": error.to_string()}));
        }
    }
}

async fn reached(mut phases: watch::Receiver<Phase>, phase: Phase) {
    // The sender lives as long as there are workers.
    let _ = phases.wait_for(|now| *now >= phase).await;
}

/// One job, if there is one before long.
async fn next(consumer: &Consumer<pull::Config>) -> Result<Option<Message>, async_nats::Error> {
    let mut batch = consumer.fetch().max_messages(1).expires(ASK).messages().await?;
    batch.next().await.transpose()
}
