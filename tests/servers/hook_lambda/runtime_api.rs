//! AWS Lambda from the view of a function: a Runtime API of ours, and the program under the name
//! `bootstrap`.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, Response, header};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{body_of, cut, hang_up};
use ociseek_testkit::sandbox::program;

/// The account that owns the function, which is also moto's.
pub const ACCOUNT: &str = "123456789012";

/// How the API fails at a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// It takes no connections, until [`RuntimeApi::up`].
    Down,
    /// Status 500.
    Refused,
    /// The connection ends, and the request had no effect.
    Reset,
    /// The connection ends after the request took effect.
    Lost,
    /// The body of the response breaks off.
    Cut,
    /// The body of the response is not JSON.
    Garbled,
    /// The event has no id.
    NoId,
    /// The API does not answer, and the request has no effect.
    Silent,
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
    /// The requests of the function so far.
    requests: Vec<String>,
    failing: Option<(usize, Failing)>,
}

#[derive(Clone)]
pub struct RuntimeApi {
    calls: Arc<Mutex<Calls>>,
    new: Arc<Notify>,
    address: SocketAddr,
    listening: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// An event that the function was called with.
pub struct Invoked {
    id: String,
    event: Value,
    limit: Duration,
    /// Whether it is a response instead of an error, and its body.
    pub answered: oneshot::Receiver<(bool, Value)>,
}

impl RuntimeApi {
    /// The API and its address.
    pub async fn start() -> (RuntimeApi, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let api = RuntimeApi {
            calls: Arc::default(),
            new: Arc::default(),
            address,
            listening: Arc::default(),
        };
        api.listen(listener);
        (api, address.to_string())
    }

    fn listen(&self, listener: TcpListener) {
        let app = axum::Router::new().fallback(handle).with_state(self.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        *self.listening.lock().unwrap() = Some(serving);
    }

    /// Takes no more connections. Those that it has go on.
    async fn down(&self) {
        let serving = self.listening.lock().unwrap().take().unwrap();
        serving.abort();
        // Then the listener is gone.
        let _ = serving.await;
    }

    /// Takes connections again, after [`Failing::Down`].
    pub async fn up(&self) {
        if self.listening.lock().unwrap().is_none() {
            self.listen(TcpListener::bind(self.address).await.unwrap());
        }
    }

    /// Calls the function, which Lambda would end after `limit`.
    pub async fn invoke(&self, event: Value, limit: Duration) -> Answer {
        let begun = Instant::now();
        let invoked = self.begin(event, limit);
        let patience = limit + Duration::from_secs(20);
        let answered = tokio::time::timeout(patience, invoked.answered).await;
        let (ok, body) = answered.expect("the function answers").unwrap();
        Answer { ok, body, took: begun.elapsed() }
    }

    /// Calls the function without waiting for its answer.
    pub fn begin(&self, event: Value, limit: Duration) -> Invoked {
        let (done, answered) = oneshot::channel();
        let id = {
            let mut calls = self.calls.lock().unwrap();
            calls.count += 1;
            let id = format!("8476a536-e9f4-11e8-9739-{:012}", calls.count);
            calls.waiting.push_back((id.clone(), event.clone(), limit));
            calls.running.insert(id.clone(), done);
            id
        };
        self.new.notify_one();
        Invoked { id, event, limit, answered }
    }

    /// Sends an event again, unless it still waits for a function.
    pub fn again(&self, invoked: &Invoked) {
        let Invoked { id, event, limit, .. } = invoked;
        let mut calls = self.calls.lock().unwrap();
        if !calls.waiting.iter().any(|(waiting, ..)| waiting == id) {
            calls.waiting.push_back((id.clone(), event.clone(), *limit));
        }
        drop(calls);
        self.new.notify_one();
    }

    /// Request `at` of the functions fails, counted from 0.
    pub async fn fail(&self, at: usize, failing: Failing) {
        self.calls.lock().unwrap().failing = Some((at, failing));
        if (at, failing) == (0, Failing::Down) {
            self.down().await;
        }
    }

    /// The requests of the functions so far: `next`, `response`, `error`.
    pub fn requests(&self) -> Vec<String> {
        self.calls.lock().unwrap().requests.clone()
    }

    pub fn cannot_start(&self) -> Vec<Value> {
        self.calls.lock().unwrap().cannot_start.clone()
    }
}

async fn handle(State(api): State<RuntimeApi>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 16 << 20).await.unwrap();
    let path = head.uri.path().strip_prefix("/2018-06-01/runtime/").unwrap().to_owned();
    let (failing, is_last) = {
        let mut calls = api.calls.lock().unwrap();
        let number = calls.requests.len();
        calls.requests.push(path.rsplit('/').next().unwrap().to_owned());
        let failing = calls.failing.filter(|(at, _)| *at == number).map(|(_, failing)| failing);
        (failing, calls.failing == Some((number + 1, Failing::Down)))
    };
    match failing {
        Some(Failing::Refused) => return answer(500, r#"{"errorMessage":"not now"}"#),
        Some(Failing::Reset) => hang_up(),
        Some(Failing::Silent) => std::future::pending().await,
        _ => {}
    }
    let mut response = match path.as_str() {
        "invocation/next" => api.next().await,
        _ => api.take(&path, &head.headers, &body),
    };
    if is_last {
        api.down().await;
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    match failing {
        Some(Failing::Lost) => hang_up(),
        Some(Failing::Cut) => {
            let (response, body) = body_of(response);
            cut(response, &body, body.len() / 2)
        }
        Some(Failing::Garbled) => response.map(|_| Body::from("<html>\0\u{feff}")),
        Some(Failing::NoId) => {
            response.headers_mut().remove(REQUEST_ID);
            response
        }
        _ => response,
    }
}

const REQUEST_ID: &str = "Lambda-Runtime-Aws-Request-Id";

fn answer(status: u16, body: &str) -> Response<Body> {
    Response::builder().status(status).body(Body::from(body.to_owned())).unwrap()
}

impl RuntimeApi {
    /// The next event, when there is one.
    async fn next(&self) -> Response<Body> {
        let (id, event, limit) = loop {
            if let Some(next) = self.calls.lock().unwrap().waiting.pop_front() {
                break next;
            }
            self.new.notified().await;
        };
        let deadline = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + limit;
        Response::builder()
            .header(REQUEST_ID, id)
            .header("Lambda-Runtime-Deadline-Ms", deadline.as_millis().to_string())
            .header(
                "Lambda-Runtime-Invoked-Function-Arn",
                format!("arn:aws:lambda:us-west-2:{ACCOUNT}:function:f"),
            )
            .header("Lambda-Runtime-Trace-Id", "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Sampled=1")
            .header("Content-Type", "application/json")
            .body(Body::from(event.to_string()))
            .unwrap()
    }

    /// Takes what the function made of an event, or why it cannot start.
    fn take(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Response<Body> {
        let body: Value = serde_json::from_slice(body).unwrap();
        let mut calls = self.calls.lock().unwrap();
        match path.split('/').collect::<Vec<_>>()[..] {
            ["init", "error"] => calls.cannot_start.push(body),
            ["invocation", id, what @ ("response" | "error")] => {
                let typed = headers.contains_key("lambda-runtime-function-error-type");
                assert_eq!(typed, what == "error");
                if let Some(waiting) = calls.running.remove(id) {
                    waiting.send((what == "response", body)).unwrap();
                }
            }
            _ => panic!("{path}"),
        }
        answer(202, r#"{"status":"OK"}"#)
    }
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
        let mut command = Command::new(program());
        command.arg0("/var/task/bootstrap").current_dir("/").env_clear();
        for (name, value) in [
            ("AWS_LAMBDA_RUNTIME_API", runtime_api),
            ("AWS_REGION", "us-west-2"),
            ("AWS_ACCESS_KEY_ID", "ASIAIOSFODNN7EXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            ("AWS_SESSION_TOKEN", "IQoJb3JpZ2luX2VjEXAMPLE"),
            ("TMPDIR", tmp.path().to_str().unwrap()),
            ("OCISEEK_MIN_LAYER_SIZE", "0"),
            ("OCISEEK_KIND", "v1"),
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
