//! Indexing in AWS Lambda: a function with a custom runtime, called with pushes to Amazon ECR.
//!
//! | called with | answers |
//! |---|---|
//! | EventBridge's `ECR Image Action` | the result; an error if the image failed or timed out, so that Lambda retries |
//! | a batch of an SQS queue with such events | the messages to be delivered again, `{"batchItemFailures": [...]}` |
//! | `{"image": "..."}` | what was done, and what is `left`; an error if the image failed |
//!
//! An invocation ends in time: a while before Lambda would end it, it stops reading and attaches
//! what is finished. Between invocations only the registries' tokens are kept, and nothing is
//! written to disk.
//!
//! The runtime is that of the Runtime API of AWS Lambda, version 2018-06-01 (AWS Lambda Developer
//! Guide, "Using the Lambda runtime API for custom runtimes"): request an event, respond, and
//! repeat. It is implemented here because it has only four requests to an address on this machine.
//! The crate lambda_runtime would add 8 crates and 0.2 MB (docs/contributing/dependencies.md), and
//! this program has an HTTP client anyway.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use reqwest::Response;
use reqwest::header::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use url::Url;

use ociseek_store::Cause;
use ociseek_store::registry::{ClientConfig, RegistryError, Status, http_client};

mod function;

pub use function::{Function, Settings};

/// The size limit of an event in bytes. Lambda's own limit is 6 MB (Lambda quotas).
const EVENT: usize = 8 << 20;
/// The time limit for sending our response.
const ANSWER: Duration = Duration::from_secs(10);
const REQUEST_ID: &str = "lambda-runtime-aws-request-id";
const DEADLINE: &str = "lambda-runtime-deadline-ms";
const ARN: &str = "lambda-runtime-invoked-function-arn";
const ERROR_TYPE: &str = "lambda-runtime-function-error-type";
/// A time in the year 2001, in milliseconds since 1970: earlier than Lambda itself, but longer than
/// any function may run.
const EARLIEST: u64 = 1_000_000_000_000;
/// The time limit if the header is missing, which does not happen in Lambda itself.
const NO_DEADLINE: Duration = Duration::from_secs(900);

/// Handles events until the Runtime API has no more. Logs a `tracing` event for each image.
///
/// # Errors
/// If the Runtime API is not available any more.
pub async fn serve(runtime: &Runtime, function: &Function) -> Result<(), RuntimeApiError> {
    loop {
        let invocation = runtime.next().await?;
        let result = function.handle(&invocation).await;
        runtime.answer(&invocation, &result).await?;
    }
}

/// Why the Runtime API is not available. The process of the function ends then, and Lambda starts
/// another.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeApiError {
    #[error("{0:?} is not the address of a Runtime API (AWS_LAMBDA_RUNTIME_API)")]
    Address(String),
    #[error("cannot create an HTTP client")]
    Client(#[from] RegistryError),
    #[error("the Runtime API cannot be reached")]
    Transport(#[source] Cause),
    #[error("the Runtime API returned {0}")]
    Refused(Status),
    #[error("the Runtime API returned an unusable event: {0}")]
    Event(&'static str),
}

/// An event to handle.
#[derive(Debug, Clone)]
pub struct Invocation {
    id: String,
    /// When Lambda ends the invocation.
    pub deadline: Instant,
    /// The account that owns the function.
    pub account: Option<String>,
    /// The JSON of the event.
    pub body: Bytes,
}

/// Lambda's report of a failed invocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// A stable word for the kind of error.
    pub error_type: &'static str,
    /// The error message with its causes.
    pub error_message: String,
}

/// A client of the Runtime API, through which Lambda passes events to a function.
pub struct Runtime {
    http: reqwest::Client,
    base: Url,
}

ociseek_format::opaque_debug!(Runtime);

impl Runtime {
    /// `address` is the value of `AWS_LAMBDA_RUNTIME_API`: `HOST:PORT`, or a whole URL in
    /// cargo-lambda.
    ///
    /// # Errors
    /// If it is not an address.
    pub fn new(address: &str) -> Result<Runtime, RuntimeApiError> {
        let wrong = || RuntimeApiError::Address(address.chars().take(150).collect());
        let place = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        let base = Url::parse(&format!("http://{place}/")).map_err(|_| wrong())?;
        if base.host().is_none()
            || base.query().is_some()
            || base.fragment().is_some()
            || !base.username().is_empty()
        {
            return Err(wrong());
        }
        Ok(Runtime { http: http_client(&ClientConfig::default(), &base)?, base })
    }

    /// Waits for the next event, without a time limit. The function may be frozen in the meantime.
    ///
    /// # Errors
    /// If the Runtime API returns none.
    pub async fn next(&self) -> Result<Invocation, RuntimeApiError> {
        let answer = self.http.get(self.url("invocation/next")?).send().await.map_err(transport)?;
        let mut answer = accepted(answer)?;
        let headers = answer.headers().clone();
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let id = text(REQUEST_ID).ok_or(RuntimeApiError::Event("it has no id"))?;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if id.is_empty() || id.len() > 128 || !id.bytes().all(is_word) {
            return Err(RuntimeApiError::Event("its id is not valid"));
        }
        let left = time_left(&headers, SystemTime::now()).unwrap_or(NO_DEADLINE);
        let deadline = Instant::now() + left;
        let account = text(ARN).and_then(account_of).map(str::to_owned);
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await.map_err(transport)? {
            if body.len() + chunk.len() > EVENT {
                return Err(RuntimeApiError::Event("it is too long"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Invocation { id: id.to_owned(), deadline, account, body: body.freeze() })
    }

    /// Sends the response to an event, or its failure.
    ///
    /// # Errors
    /// If the Runtime API does not accept it.
    pub async fn answer<T: Serialize>(
        &self,
        invocation: &Invocation,
        result: &Result<T, Failure>,
    ) -> Result<(), RuntimeApiError> {
        let (path, body) = match result {
            Ok(answer) => ("response", serde_json::to_vec(answer)),
            Err(failure) => ("error", serde_json::to_vec(failure)),
        };
        let path = format!("invocation/{}/{path}", invocation.id);
        // Our own responses only have strings, numbers and lists, so encoding cannot fail.
        let body = body.unwrap_or_default();
        self.post(&path, result.as_ref().err().map(|failure| failure.error_type), body).await
    }

    /// Reports that the function cannot handle events.
    ///
    /// # Errors
    /// If the Runtime API does not accept the report.
    pub async fn cannot_start(&self, failure: &Failure) -> Result<(), RuntimeApiError> {
        let body = serde_json::to_vec(failure).unwrap_or_default();
        self.post("init/error", Some(failure.error_type), body).await
    }

    async fn post(
        &self,
        path: &str,
        error_type: Option<&'static str>,
        body: Vec<u8>,
    ) -> Result<(), RuntimeApiError> {
        let mut request = self
            .http
            .post(self.url(path)?)
            .timeout(ANSWER)
            .header("content-type", "application/json");
        if let Some(error_type) = error_type {
            request = request.header(ERROR_TYPE, error_type);
        }
        let answer = request.body(body).send().await.map_err(transport)?;
        accepted(answer).map(|_| ())
    }

    fn url(&self, path: &str) -> Result<Url, RuntimeApiError> {
        let base = self.base.as_str().trim_end_matches('/');
        let url = format!("{base}/2018-06-01/runtime/{path}");
        Url::parse(&url).map_err(|_| RuntimeApiError::Address(url))
    }
}

fn transport(error: reqwest::Error) -> RuntimeApiError {
    RuntimeApiError::Transport(error.into())
}

fn accepted(answer: Response) -> Result<Response, RuntimeApiError> {
    if answer.status().is_success() {
        Ok(answer)
    } else {
        Err(RuntimeApiError::Refused(Status::new(answer.status())))
    }
}

/// The time from `now` to the deadline, which Lambda states in milliseconds since 1970. Zero if it
/// has passed. cargo-lambda states the remaining time instead.
fn time_left(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let deadline: u64 = headers.get(DEADLINE)?.to_str().ok()?.parse().ok()?;
    if deadline < EARLIEST {
        return Some(Duration::from_millis(deadline).min(NO_DEADLINE));
    }
    let deadline = UNIX_EPOCH.checked_add(Duration::from_millis(deadline))?;
    Some(deadline.duration_since(now).unwrap_or_default().min(NO_DEADLINE))
}

/// `arn:PARTITION:lambda:REGION:ACCOUNT:function:NAME`
fn account_of(arn: &str) -> Option<&str> {
    arn.split(':').nth(4).filter(|account| ociseek_format::image::ecr::is_account(account))
}

/// The maximum number of messages in a batch (AWS Lambda Developer Guide, "Using Lambda with Amazon
/// SQS").
const MESSAGES: usize = 10_000;

#[derive(Debug)]
enum Input {
    /// The response lists the ids of the failed messages.
    Batch(Vec<Message>),
    Event,
}

/// A message from an SQS queue.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    pub message_id: String,
    /// The event, as text.
    #[serde(default)]
    pub body: String,
    event_source: String,
}

impl Input {
    /// Anything that is not a batch is treated as an event, and left to its parser.
    fn of(body: &[u8]) -> Input {
        #[derive(Deserialize)]
        struct Batch {
            #[serde(rename = "Records")]
            messages: Vec<Message>,
        }
        match serde_json::from_slice(body) {
            // A message without an id cannot be reported as failed, so parsing the batch has failed
            // already.
            Ok(Batch { messages })
                if messages.len() <= MESSAGES
                    && messages.iter().all(|m| m.event_source == "aws:sqs") =>
            {
                Input::Batch(messages)
            }
            _ => Input::Event,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_built_from_the_runtime_address() {
        let next =
            |address| Runtime::new(address).unwrap().url("invocation/next").unwrap().to_string();
        assert_eq!(
            next("127.0.0.1:9001"),
            "http://127.0.0.1:9001/2018-06-01/runtime/invocation/next"
        );
        let named = "http://[::1]:9000/.rt/name/2018-06-01/runtime/invocation/next";
        assert_eq!(
            (next("[::1]:9000/.rt/name").as_str(), next("http://[::1]:9000/.rt/name/").as_str()),
            (named, named)
        );
        for bad in ["", "a b", "x?y", "u@x", "x#y"] {
            assert!(Runtime::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn deadlines_and_accounts_are_read_from_headers() {
        let left = |value: &str| {
            let headers =
                HeaderMap::from_iter([(DEADLINE.parse().unwrap(), value.parse().unwrap())]);
            time_left(&headers, UNIX_EPOCH + Duration::from_secs(1_700_000_000))
        };
        assert_eq!(left("1700000005500"), Some(Duration::from_millis(5500)));
        assert_eq!(left("1699999999999"), Some(Duration::ZERO));
        assert_eq!(left("600000"), Some(Duration::from_secs(600)));
        assert_eq!(left("soon"), None);
        assert_eq!(left("18446744073709551615"), Some(NO_DEADLINE));
        assert_eq!(
            account_of("arn:aws:lambda:us-east-1:123456789012:function:f"),
            Some("123456789012")
        );
        assert_eq!(account_of("arn:aws:lambda:us-east-1::function:f"), None);
        assert_eq!(account_of("x"), None);
    }

    #[test]
    fn batches_are_parsed() {
        let batch =
            br#"{"Records":[{"messageId":"1","body":"{\"image\":\"x\"}","eventSource":"aws:sqs","attributes":{}},
            {"messageId":"2","body":"","eventSource":"aws:sqs"}]}"#;
        let Input::Batch(messages) = Input::of(batch) else { panic!() };
        assert_eq!(messages.len(), 2);
        assert_eq!(
            (messages[0].message_id.as_str(), messages[0].body.as_str()),
            ("1", r#"{"image":"x"}"#)
        );
        for event in [
            &br#"{"image":"x"}"#[..],
            br#"{"Records":[{"eventSource":"aws:s3"}]}"#,
            br#"{"Records":[{"eventSource":"aws:sqs","body":"no id"}]}"#,
            br#"{"Records":{}}"#,
            b"[]",
            b"",
        ] {
            assert!(matches!(Input::of(event), Input::Event), "{}", String::from_utf8_lossy(event));
        }
    }
}
