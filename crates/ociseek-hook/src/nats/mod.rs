//! A queue that many processes share: a work queue of NATS JetStream (NATS docs, "JetStream",
//! "Streams", "Consumers").
//!
//! It uses two streams, which are created if they do not exist. `NAME` holds the jobs (subject
//! `NAME.jobs`); each is removed after its index was attached and the job acknowledged.
//! `NAME-parked` holds the jobs that were given up (subject `NAME.parked`), with the reason, for
//! people to examine. Messages are delivered at least once. An image is nevertheless indexed only
//! once, because of its digest and because of the `Nats-Msg-Id`, by which the server drops jobs
//! that are already in the queue.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RawMessageErrorKind, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, Event};
use bytes::Bytes;
use percent_encoding::percent_decode_str;

use super::job::{Job, Unit};
use ociseek_store::Cause;

mod work;

pub use work::Worker;

use url::Url;

/// How long the server remembers published messages to detect duplicates.
const DUPLICATES: Duration = Duration::from_secs(600);
/// How many times an image can be published and completed while the server remembers it.
const TIMES_KNOWN: usize = 20;
/// The maximum number of waiting jobs. Further ones are refused, and their senders are told.
const WAITING: i64 = 1_000_000;
/// The maximum number of parked jobs.
const PARKED: i64 = 100_000;
const PARKED_AGE: Duration = Duration::from_secs(30 * 86_400);
/// The time limit for connecting, and for the response to a call.
const ANSWER: Duration = Duration::from_secs(10);

/// Why a call of the queue failed. Messages contain no password.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    #[error("cannot connect to the queue at {server}")]
    Connect { server: String, source: Cause },
    #[error("cannot get the queue's {what} {name}")]
    Setup { what: &'static str, name: String, source: Cause },
    /// A message sent now would be delivered after the connection is back, although its sender got
    /// an error.
    #[error("the connection to the queue is broken")]
    Away,
    #[error("the queue did not accept the job")]
    Publish(#[source] Cause),
    #[error("cannot look up a job in the queue")]
    Look(#[source] Cause),
}

/// The result of publishing a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// It waits for a worker.
    New,
    /// The same image is in the queue and not done.
    Duplicate,
}

/// A change of an established connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionChange {
    /// It was lost; the client tries to reconnect.
    Lost,
    /// It works again.
    Back,
}

impl std::fmt::Display for ConnectionChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ConnectionChange::Lost => "lost the connection to the queue; reconnecting",
            ConnectionChange::Back => "reconnected to the queue",
        })
    }
}

/// A connection to the queue; cheap to clone. Reconnects automatically.
#[derive(Clone)]
pub struct NatsQueue {
    jetstream: Context,
    name: String,
    unit: Unit,
    /// How many times the connection was lost.
    losses: Arc<AtomicU64>,
}

ociseek_format::opaque_debug!(NatsQueue);

impl NatsQueue {
    /// Connects, and creates the streams if they do not exist. `on_change` is called when the
    /// connection is lost and when it is back.
    ///
    /// # Errors
    /// If the server does not respond, or the streams cannot be created.
    pub async fn connect(
        url: &QueueUrl,
        on_change: impl Fn(ConnectionChange) + Send + Sync + 'static,
    ) -> Result<NatsQueue, NatsError> {
        let losses = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&losses);
        let is_lost = AtomicBool::new(false);
        let changed = move |event| {
            match event {
                Event::Disconnected if !is_lost.swap(true, Ordering::SeqCst) => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    on_change(ConnectionChange::Lost);
                }
                Event::Connected if is_lost.swap(false, Ordering::SeqCst) => {
                    on_change(ConnectionChange::Back)
                }
                _ => {}
            }
            std::future::ready(())
        };
        let options =
            ConnectOptions::new().name("ociseek").connection_timeout(ANSWER).require_tls(url.tls);
        let options = options.event_callback(changed);
        let options = match &url.login {
            Some((user, Some(password))) => {
                options.user_and_password(user.clone(), password.clone())
            }
            Some((token, None)) => options.token(token.clone()),
            None => options,
        };
        let failed = |error: async_nats::ConnectError| NatsError::Connect {
            server: url.server.clone(),
            source: error.into(),
        };
        let client = options.connect(&url.server).await.map_err(failed)?;
        let mut jetstream = jetstream::new(client);
        jetstream.set_timeout(ANSWER);
        let queue = NatsQueue { jetstream, name: url.stream.clone(), unit: Unit::Image, losses };
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
            made.map_err(|error| NatsError::Setup { what: "stream", name, source: error.into() })?;
        }
        Ok(queue)
    }

    /// The same queue. `unit` decides which jobs are the same.
    #[must_use]
    pub fn with_unit(self, unit: Unit) -> NatsQueue {
        NatsQueue { unit, ..self }
    }

    /// Adds a job to the queue, unless it is already there. Returns after the server has stored it
    /// on disk.
    ///
    /// # Errors
    /// If the server is not reachable or has no space. Then the job is not in the queue.
    pub async fn publish(&self, job: &Job) -> Result<PublishOutcome, NatsError> {
        if !self.is_connected() {
            return Err(NatsError::Away);
        }
        let message = || PublishMessage::build().payload(Bytes::from(job.to_json()));
        // A tag may name another image by the time it is published again.
        if job.image.digest.is_some() {
            let key = job.key(self.unit);
            let mut id = key.clone();
            for _ in 0..TIMES_KNOWN {
                let known = self.send(message().message_id(&id)).await?;
                let Some(sequence) = known else { return Ok(PublishOutcome::New) };
                if self.holds(sequence).await? {
                    return Ok(PublishOutcome::Duplicate);
                }
                // The server still remembers it, but it was completed, perhaps with a failure, and
                // should be tried again. Other publishers that notice this derive the same id.
                id = format!("{key} after {sequence}");
            }
        }
        self.send(message()).await.map(|_| PublishOutcome::New)
    }

    /// Sends a message to the jobs. Returns the sequence number of an earlier message with the same
    /// id, if the server dropped this one.
    async fn send(&self, message: PublishMessage) -> Result<Option<u64>, NatsError> {
        let failed = |error: jetstream::context::PublishError| NatsError::Publish(error.into());
        let sent = self.jetstream.send_publish(self.jobs(), message).await.map_err(failed)?;
        let acknowledged = sent.await.map_err(failed)?;
        Ok(acknowledged.duplicate.then_some(acknowledged.sequence))
    }

    /// Whether the job with this sequence number is not done.
    async fn holds(&self, sequence: u64) -> Result<bool, NatsError> {
        let stream = self.jetstream.get_stream_no_info(&self.name).await;
        let stream = stream.map_err(|error| NatsError::Look(error.into()))?;
        match stream.get_raw_message(sequence).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(false),
            Err(error) => Err(NatsError::Look(error.into())),
        }
    }

    /// Whether the server is connected.
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

/// `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][/STREAM]`, or `tls://`.
#[derive(Clone, PartialEq, Eq)]
pub struct QueueUrl {
    /// Scheme, host and port.
    server: String,
    tls: bool,
    /// User and password, or only a token.
    login: Option<(String, Option<String>)>,
    stream: String,
}

/// Why a text is not a [`QueueUrl`]. Messages do not include the text, which may contain a
/// password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueUrlError {
    #[error("expected nats://HOST[:PORT][/STREAM], or tls://")]
    Url,
    #[error("a stream name has at most 64 letters, digits, - and _")]
    Stream,
    #[error("user and password must be percent-encoded UTF-8")]
    Login,
}

impl FromStr for QueueUrl {
    type Err = QueueUrlError;

    fn from_str(text: &str) -> Result<QueueUrl, QueueUrlError> {
        let url = Url::parse(text).map_err(|_| QueueUrlError::Url)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(QueueUrlError::Url)?;
        if !matches!(url.scheme(), "nats" | "tls")
            || url.query().is_some()
            || url.fragment().is_some()
        {
            return Err(QueueUrlError::Url);
        }
        let stream = match url.path().trim_start_matches('/') {
            "" => "ociseek",
            stream => stream,
        };
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if stream.len() > 64 || !stream.bytes().all(is_word) {
            return Err(QueueUrlError::Stream);
        }
        let decoded = |text| {
            let text = percent_decode_str(text).decode_utf8().map_err(|_| QueueUrlError::Login)?;
            Ok(text.into_owned())
        };
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => Some((decoded(user)?, password.map(decoded).transpose()?)),
        };
        let server = format!("{}://{host}:{}", url.scheme(), url.port().unwrap_or(4222));
        Ok(QueueUrl { server, tls: url.scheme() == "tls", login, stream: stream.to_owned() })
    }
}

/// Omits the login.
impl fmt::Display for QueueUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.stream)
    }
}

impl fmt::Debug for QueueUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_urls_are_validated() {
        let parsed = |text: &str| text.parse::<QueueUrl>().unwrap();
        assert_eq!(parsed("nats://127.0.0.1").to_string(), "nats://127.0.0.1:4222/ociseek");
        let all = parsed("tls://us%40er:p%3Aw@[::1]:4333/my-stream");
        assert_eq!(all.to_string(), "tls://[::1]:4333/my-stream");
        assert_eq!(
            (all.tls, all.login.clone()),
            (true, Some(("us@er".into(), Some("p:w".into()))))
        );
        assert_eq!(parsed("nats://token@h").login, Some(("token".into(), None)));
        assert!(!format!("{all:?}").contains("p:w"));
        for bad in [
            "",
            "h:4222",
            "http://h",
            "nats://",
            "nats://h/a/b",
            "nats://h/a.b",
            "nats://h/a?x",
            "nats://%ff@h",
        ] {
            assert!(bad.parse::<QueueUrl>().is_err(), "{bad}");
        }
    }
}
