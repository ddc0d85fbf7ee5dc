//! A queue that many share: a work queue of NATS JetStream (NATS docs, "JetStream", "Streams", "Consumers").
//!
//! There are two streams, which are made if they are not there. `NAME` holds the jobs (subject `NAME.jobs`): each is removed when
//! its index is attached and that was acknowledged. `NAME-parked` holds those that were given up (subject `NAME.parked`) with the
//! reason, for people to look at. Delivery is at least once; that an image is indexed once is its digest's doing, and the
//! `Nats-Msg-Id`, by which the server drops what was published a moment ago.

use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use bytes::Bytes;

use super::job::Job;

mod url;
mod work;

pub use url::{QueueUrl, QueueUrlError};

/// For how long the server knows what was published, and drops it when it comes again.
const DUPLICATES: Duration = Duration::from_secs(600);
/// Jobs that may wait. What comes on top is refused, which whoever sends it is told.
const WAITING: i64 = 1_000_000;
/// How many parked jobs are kept, and how long.
const PARKED: i64 = 100_000;
const PARKED_AGE: Duration = Duration::from_secs(30 * 86_400);
/// To a connection, and to the answer of a call.
const ANSWER: Duration = Duration::from_secs(10);

/// Why the queue did not do what was asked. No message holds a password.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("cannot connect to the queue at {server}")]
    Connect { server: String, source: async_nats::ConnectError },
    #[error("the queue's {what} {name} cannot be had")]
    Setup { what: &'static str, name: String, source: async_nats::Error },
    /// What were sent now would be sent when the connection is back, although its sender was told that it failed.
    #[error("the connection to the queue is broken")]
    Away,
    #[error("the queue does not take the job")]
    Publish(#[source] jetstream::context::PublishError),
}

/// What became of a job that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    New,
    /// The same image was published a moment ago.
    Duplicate,
}

/// A connection to the queue; cheap to clone. It is made anew when it breaks.
#[derive(Clone)]
pub struct Queue {
    jetstream: Context,
    name: String,
}

impl Queue {
    /// Connects, and makes the streams if they are not there.
    ///
    /// # Errors
    /// When nobody answers there, or the streams cannot be made.
    pub async fn connect(url: &QueueUrl) -> Result<Queue, QueueError> {
        let options = ConnectOptions::new().name("ociseek").connection_timeout(ANSWER).require_tls(url.tls);
        let options = match &url.login {
            Some((user, Some(password))) => options.user_and_password(user.clone(), password.clone()),
            Some((token, None)) => options.token(token.clone()),
            None => options,
        };
        let failed = |source| QueueError::Connect { server: url.server.clone(), source };
        let client = options.connect(&url.server).await.map_err(failed)?;
        let mut jetstream = jetstream::new(client);
        jetstream.set_timeout(ANSWER);
        let queue = Queue { jetstream, name: url.stream.clone() };
        let jobs = Config {
            name: queue.name.clone(),
            subjects: vec![queue.jobs()],
            retention: RetentionPolicy::WorkQueue,
            discard: DiscardPolicy::New,
            max_messages: WAITING,
            duplicate_window: DUPLICATES,
            ..Config::default()
        };
        let parked = Config {
            name: queue.parked_stream(),
            subjects: vec![queue.parked()],
            max_messages: PARKED,
            max_age: PARKED_AGE,
            ..Config::default()
        };
        for config in [jobs, parked] {
            let name = config.name.clone();
            let made = queue.jetstream.get_or_create_stream(config).await;
            made.map_err(|error| QueueError::Setup { what: "stream", name, source: error.into() })?;
        }
        Ok(queue)
    }

    /// Puts a job into the queue. Returns when the server has it on its disk.
    ///
    /// # Errors
    /// When the server is not there, or has no room: then the job is not in the queue.
    pub async fn publish(&self, job: &Job) -> Result<Published, QueueError> {
        if !self.is_connected() {
            return Err(QueueError::Away);
        }
        let mut message = PublishMessage::build().payload(Bytes::from(job.to_json()));
        // A tag may name another image by the time it is published again.
        if job.image.digest.is_some() {
            message = message.message_id(job.key());
        }
        let sent = self.jetstream.send_publish(self.jobs(), message).await.map_err(QueueError::Publish)?;
        let acknowledged = sent.await.map_err(QueueError::Publish)?;
        Ok(if acknowledged.duplicate { Published::Duplicate } else { Published::New })
    }

    /// Whether the server is there.
    pub fn is_connected(&self) -> bool {
        self.jetstream.client().connection_state() == async_nats::connection::State::Connected
    }

    fn jobs(&self) -> String {
        format!("{}.jobs", self.name)
    }

    fn parked(&self) -> String {
        format!("{}.parked", self.name)
    }

    fn parked_stream(&self) -> String {
        format!("{}-parked", self.name)
    }
}
