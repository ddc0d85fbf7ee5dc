//! ECR's own API: moto's, which has realistic data, and a small one of ours, which records its
//! requests.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{body_of, cut, hang_up, json_answer, web_page};
use ociseek_testkit::servers::{free_port, python_tool};

/// moto's server, which emulates AWS.
pub struct Moto {
    pub url: String,
    _child: ChildProcess,
}

impl Moto {
    /// The password that it returns for its only account.
    pub const PASSWORD: &str = "123456789012-auth-token";

    pub fn start() -> Option<Moto> {
        let mut command = Command::new(python_tool("moto_server")?);
        let port = free_port();
        command
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let address = format!("127.0.0.1:{port}");
        Some(Moto {
            url: format!("http://{address}"),
            _child: ChildProcess::listening(&mut command, &address),
        })
    }
}

/// A call that was made.
#[derive(Debug, Clone)]
pub struct Call {
    pub target: String,
    pub headers: HeaderMap,
    pub body: Value,
}

#[derive(Clone)]
pub struct FakeEcr {
    pub url: String,
    password: Arc<Mutex<String>>,
    calls: Arc<Mutex<Vec<Call>>>,
    failing: Arc<Mutex<(u32, EcrFailing)>>,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EcrFailing {
    /// Status 500.
    #[default]
    Busy,
    /// Status 400, by which AWS states that there are too many calls.
    Throttled,
    /// Status 400, because the role may not ask.
    Denied,
    /// The connection ends without an answer.
    Reset,
    /// It does not answer.
    Silent,
    /// The answer breaks off.
    Cut,
    /// A wrong byte, so that it is not JSON.
    Garbled,
    /// A proxy's sign-in page, with status 200.
    WebPage,
    NoToken,
    /// A token that is not valid base64.
    BadToken,
}

impl FakeEcr {
    /// It returns tokens that are valid for twelve hours.
    pub async fn start(password: &str) -> FakeEcr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let fake = FakeEcr {
            url: format!("http://{}", listener.local_addr().unwrap()),
            password: Arc::new(Mutex::new(password.into())),
            calls: Arc::default(),
            failing: Arc::default(),
        };
        let app = axum::Router::new().fallback(answer).with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        fake
    }

    pub fn change_password(&self, password: &str) {
        *self.password.lock().unwrap() = password.into();
    }

    /// The next `times` calls fail.
    pub fn fail(&self, failing: EcrFailing, times: u32) {
        *self.failing.lock().unwrap() = (times, failing);
    }

    /// How this call fails.
    fn failing(&self) -> Option<EcrFailing> {
        let (left, failing) = &mut *self.failing.lock().unwrap();
        *left = left.checked_sub(1)?;
        Some(*failing)
    }

    pub fn calls(&self, target: &str) -> Vec<Call> {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|call| call.target.ends_with(target))
            .cloned()
            .collect()
    }
}

async fn answer(State(fake): State<FakeEcr>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/"));
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let target = head.headers["x-amz-target"].to_str().unwrap().to_owned();
    let body: Value = serde_json::from_slice(&body).unwrap();
    fake.calls.lock().unwrap().push(Call { target: target.clone(), headers: head.headers, body });
    assert!(target.ends_with(".GetAuthorizationToken"), "{target}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let token = BASE64_STANDARD.encode(format!("AWS:{}", fake.password.lock().unwrap()));
    let authorized = |token: &str| {
        let data = json!({"authorizationToken": token, "expiresAt": now + 43_200.0, "proxyEndpoint": "https://x"});
        json_answer(200, &json!({"authorizationData": [data]}))
    };
    let whole = authorized(&token);
    match fake.failing() {
        None => whole,
        Some(EcrFailing::Busy) => json_answer(500, &json!({"__type": "ServerException"})),
        Some(EcrFailing::Throttled) => {
            json_answer(400, &json!({"__type": "ThrottlingException", "message": "Rate exceeded"}))
        }
        Some(EcrFailing::Denied) => json_answer(400, &json!({"__type": "AccessDeniedException"})),
        Some(EcrFailing::Reset) => hang_up(),
        Some(EcrFailing::Silent) => std::future::pending().await,
        Some(EcrFailing::Cut) => {
            let (answer, body) = body_of(whole);
            cut(answer, &body, body.len() / 2)
        }
        Some(EcrFailing::Garbled) => {
            let (answer, body) = body_of(whole);
            answer.map(|_| Body::from([b"[", &body[1..]].concat()))
        }
        Some(EcrFailing::WebPage) => web_page(),
        Some(EcrFailing::NoToken) => json_answer(200, &json!({"authorizationData": []})),
        Some(EcrFailing::BadToken) => authorized(&format!("*{}", &token[1..])),
    }
}
