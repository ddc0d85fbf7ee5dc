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

use crate::support::child_process::ChildProcess;
use crate::support::servers::{free_port, python_tool};

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
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        let address = format!("127.0.0.1:{port}");
        Some(Moto { url: format!("http://{address}"), _child: ChildProcess::listening(&mut command, &address) })
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
    failing: Arc<Mutex<u32>>,
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

    /// The next `times` calls fail as if the service were busy.
    pub fn fail(&self, times: u32) {
        *self.failing.lock().unwrap() = times;
    }

    pub fn calls(&self, target: &str) -> Vec<Call> {
        self.calls.lock().unwrap().iter().filter(|call| call.target.ends_with(target)).cloned().collect()
    }
}

async fn answer(State(fake): State<FakeEcr>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/"));
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let target = head.headers["x-amz-target"].to_str().unwrap().to_owned();
    let body: Value = serde_json::from_slice(&body).unwrap();
    fake.calls.lock().unwrap().push(Call { target: target.clone(), headers: head.headers, body });
    {
        let mut failing = fake.failing.lock().unwrap();
        if *failing > 0 {
            *failing -= 1;
            return Response::builder().status(500).body(Body::from(r#"{"__type":"ServerException"}"#)).unwrap();
        }
    }
    let answer = match target.rsplit('.').next().unwrap() {
        "GetAuthorizationToken" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
            let token = BASE64_STANDARD.encode(format!("AWS:{}", fake.password.lock().unwrap()));
            json!({"authorizationData": [
                {"authorizationToken": token, "expiresAt": now + 43_200.0, "proxyEndpoint": "https://x"}]})
        }
        other => panic!("{other}"),
    };
    Response::new(Body::from(answer.to_string()))
}
