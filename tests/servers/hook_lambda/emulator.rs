//! cargo-lambda, an independent emulator.

use std::time::Duration;

use super::aws::FakeEcr;
use super::runtime_api::{ACCOUNT, Bootstrap};
use super::{batch, failures, pushed, registry};
use crate::support::servers;
use serde_json::{Value, json};

/// An independent emulator.
#[tokio::test(flavor = "multi_thread")]
async fn under_cargo_lambda() {
    let home = std::env::var_os("HOME").map(std::path::PathBuf::from).unwrap_or_default();
    let emulator = home.join(".cache/ociseek-tools/python/bin/cargo-lambda");
    if !emulator.is_file() {
        return servers::skip("cargo-lambda is not installed");
    }
    let (registry, digest) = registry("p", true).await;
    let ecr = FakeEcr::start("p").await;
    // It needs a crate around it, although it builds nothing.
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/main.rs"), "fn main() {}").unwrap();
    std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"f\"\nversion = \"0.1.0\"\n").unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut emulator = tokio::process::Command::new(emulator)
        .args(["lambda", "watch", "--only-lambda-apis", "--ignore-changes", "-A", "127.0.0.1", "-P", &port.to_string()])
        .current_dir(dir.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(emulator.try_wait().unwrap().is_none(), "cargo-lambda ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let _function = Bootstrap::start(
        &format!("http://127.0.0.1:{port}/.rt/f"),
        &[
            ("AWS_ENDPOINT_URL_ECR", &ecr.url),
            ("OCISEEK_ECR_REGISTRY", &registry.host()),
            ("OCISEEK_ECR_ACCOUNTS", ACCOUNT),
        ],
    );
    let invoke = async |event: Value| {
        let url = format!("http://127.0.0.1:{port}/2015-03-31/functions/f/invocations");
        let curl =
            tokio::process::Command::new("curl").args(["-s", "-m", "60", "-d", &event.to_string(), &url]).output();
        serde_json::from_slice::<Value>(&curl.await.unwrap().stdout).unwrap()
    };
    let first = invoke(pushed("app", &digest, "v1")).await;
    assert_eq!(first["images"][0]["status"], "indexed", "{first}");
    let again = invoke(batch(&[pushed("app", &digest, "v1").to_string(), "x".to_owned()])).await;
    assert_eq!(failures(&again), ["m1"]);
    let error = invoke(json!({"image": "docker.io/library/debian"})).await;
    assert_eq!(error["errorType"], "ImageFailed");
}
