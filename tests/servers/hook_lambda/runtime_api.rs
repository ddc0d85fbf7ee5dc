//! AWS Lambda from the view of a function: a Runtime API of ours, and the program under the name
//! `bootstrap`.

use std::collections::{HashMap, VecDeque};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use bytes::Bytes;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{Notify, oneshot};

use crate::support::child_process::ChildProcess;

/// The account that owns the function, which is also moto's.
pub const ACCOUNT: &str = "123456789012";

/// How the API fails, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// The event that is asked for is refused with status 500, or breaks off.
    NextRefused,
    NextCut,
    /// The same of the taking of the function's answer; when it breaks off, it was taken.
    AnswerRefused,
    AnswerCut,
}

/// What came of an event.
#[derive(Debug)]
pub struct Answer {
    /// Whether it is a response instead of an error.
    pub ok: bool,
    pub body: Value,
    pub took: Duration,
}

#[derive(Default)]
struct Calls {
    waiting: VecDeque<(String, Value, Duration)>,
    running: HashMap<String, oneshot::Sender<(bool, Value)>>,
    count: usize,
    cannot_start: Vec<Value>,
    failing: Option<Failing>,
}

#[derive(Clone, Default)]
pub struct RuntimeApi {
    calls: Arc<Mutex<Calls>>,
    new: Arc<Notify>,
}

impl RuntimeApi {
    /// The API and its address.
    pub async fn start() -> (RuntimeApi, String) {
        let api = RuntimeApi::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app = axum::Router::new().fallback(handle).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (api, address)
    }

    /// Calls the function, which Lambda would end after `limit`.
    pub async fn invoke(&self, event: Value, limit: Duration) -> Answer {
        let (done, answered) = oneshot::channel();
        let begun = Instant::now();
        {
            let mut calls = self.calls.lock().unwrap();
            calls.count += 1;
            let id = format!("8476a536-e9f4-11e8-9739-{:012}", calls.count);
            calls.waiting.push_back((id.clone(), event, limit));
            calls.running.insert(id, done);
        }
        self.new.notify_one();
        let patience = limit + Duration::from_secs(20);
        let (ok, body) = tokio::time::timeout(patience, answered).await.expect("the function answers").unwrap();
        Answer { ok, body, took: begun.elapsed() }
    }

    /// Puts an event there for whoever asks first. Nobody waits for what comes of it.
    pub fn put(&self, event: Value, limit: Duration) {
        {
            let mut calls = self.calls.lock().unwrap();
            calls.count += 1;
            let id = format!("8476a536-e9f4-11e8-9739-{:012}", calls.count);
            calls.waiting.push_back((id, event, limit));
        }
        self.new.notify_one();
    }

    /// The next call of this kind fails.
    pub fn fail(&self, failing: Failing) {
        self.calls.lock().unwrap().failing = Some(failing);
    }

    /// Whether the next call fails so; it is the only one then.
    fn fails(&self, failing: Failing) -> bool {
        self.calls.lock().unwrap().failing.take_if(|next| *next == failing).is_some()
    }

    pub fn cannot_start(&self) -> Vec<Value> {
        self.calls.lock().unwrap().cannot_start.clone()
    }
}

async fn handle(State(api): State<RuntimeApi>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 16 << 20).await.unwrap();
    let path = head.uri.path().strip_prefix("/2018-06-01/runtime/").unwrap().to_owned();
    if path == "invocation/next" {
        let (id, event, limit) = loop {
            if let Some(next) = api.calls.lock().unwrap().waiting.pop_front() {
                break next;
            }
            api.new.notified().await;
        };
        if api.fails(Failing::NextRefused) {
            return Response::builder().status(500).body(Body::from(r#"{"errorMessage":"not now"}"#)).unwrap();
        }
        let event = event.to_string();
        let body = match api.fails(Failing::NextCut) {
            true => broken(&event),
            false => Body::from(event),
        };
        let deadline = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + limit;
        return Response::builder()
            .header("Lambda-Runtime-Aws-Request-Id", id)
            .header("Lambda-Runtime-Deadline-Ms", deadline.as_millis().to_string())
            .header("Lambda-Runtime-Invoked-Function-Arn", format!("arn:aws:lambda:us-west-2:{ACCOUNT}:function:f"))
            .header("Lambda-Runtime-Trace-Id", "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=1")
            .header("Content-Type", "application/json")
            .body(body)
            .unwrap();
    }
    if path.starts_with("invocation/") {
        if api.fails(Failing::AnswerRefused) {
            return Response::builder().status(500).body(Body::empty()).unwrap();
        }
        if api.fails(Failing::AnswerCut) {
            // The connection ends without a word.
            std::panic::resume_unwind(Box::new(()));
        }
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let mut calls = api.calls.lock().unwrap();
    match path.split('/').collect::<Vec<_>>()[..] {
        ["init", "error"] => calls.cannot_start.push(body),
        ["invocation", id, what @ ("response" | "error")] => {
            let typed = head.headers.contains_key("lambda-runtime-function-error-type");
            assert_eq!(typed, what == "error");
            if let Some(waiting) = calls.running.remove(id) {
                waiting.send((what == "response", body)).unwrap();
            }
        }
        _ => panic!("{path}"),
    }
    Response::builder().status(202).body(Body::from(r#"{"status":"OK"}"#)).unwrap()
}

/// Half of it, and then the connection ends.
fn broken(content: &str) -> Body {
    let half = Bytes::copy_from_slice(&content.as_bytes()[..content.len() / 2]);
    Body::from_stream(futures_util::stream::iter([Ok(half), Err(std::io::Error::other("cut"))]))
}

/// The program as Lambda runs it: by its name, in a folder that it cannot write, with what Lambda
/// puts into the environment.
pub struct Bootstrap {
    pub child: ChildProcess,
    log: Arc<Mutex<Vec<Value>>>,
    /// The function's `/tmp`.
    pub tmp: tempfile::TempDir,
}

impl Bootstrap {
    pub fn start(runtime_api: &str, environment: &[(&str, &str)]) -> Bootstrap {
        let tmp = tempfile::tempdir().unwrap();
        let mut command = Command::new(crate::support::sandbox::shipped());
        command.arg0("/var/task/bootstrap").current_dir("/").env_clear();
        for (name, value) in [
            ("AWS_LAMBDA_RUNTIME_API", runtime_api),
            ("AWS_REGION", "us-west-2"),
            ("AWS_ACCESS_KEY_ID", "ASIAIOSFODNN7EXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            ("AWS_SESSION_TOKEN", "IQoJb3JpZ2luX2VjEXAMPLE"),
            ("TMPDIR", tmp.path().to_str().unwrap()),
            ("OCISEEK_MIN_LAYER_SIZE", "0"),
        ] {
            command.env(name, value);
        }
        command.envs(environment.iter().copied());
        let mut child = ChildProcess::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let stdout = tokio::process::ChildStdout::from_std(child.stdout()).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        tokio::spawn(async move {
            let mut stdout = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = stdout.next_line().await {
                lines.lock().unwrap().push(serde_json::from_str(&line).expect("each line is JSON"));
            }
        });
        Bootstrap { child, log, tmp }
    }

    /// The first `lines` lines of its log. Waits for them, because a response may arrive before the
    /// line that was written earlier.
    pub async fn logged(&self, lines: usize) -> Vec<Value> {
        for _ in 0..1000 {
            if self.log.lock().unwrap().len() >= lines {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.log.lock().unwrap().clone()
    }
}
