//! cargo-lambda, an independent emulator.

use std::process::{Command, Stdio};

use super::aws::FakeEcr;
use super::runtime_api::{ACCOUNT, Bootstrap};
use super::{batch, failures, pushed, registry};
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::servers::{free_port, python_tool};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn the_function_runs_under_cargo_lambda() {
    let Some(program) = python_tool("cargo-lambda") else { return };
    let (registry, digest) = registry("p", true).await;
    let ecr = FakeEcr::start("p").await;
    // It needs a crate around it, although it builds nothing.
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/main.rs"), "fn main() {}").unwrap();
    std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"f\"\nversion = \"0.1.0\"\n")
        .unwrap();
    let port = free_port();
    let mut emulator = Command::new(program);
    emulator.args(["lambda", "watch", "--only-lambda-apis", "--ignore-changes"]);
    emulator.args(["-A", "127.0.0.1", "-P", &port.to_string()]).current_dir(dir.path());
    emulator.stdout(Stdio::null()).stderr(Stdio::null());
    let _emulator = ChildProcess::listening(&mut emulator, &format!("127.0.0.1:{port}"));
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
        let curl = tokio::process::Command::new("curl")
            .args(["-s", "-m", "60", "-d", &event.to_string(), &url])
            .output();
        serde_json::from_slice::<Value>(&curl.await.unwrap().stdout).unwrap()
    };
    let first = invoke(pushed("app", &digest, "v1")).await;
    assert_eq!(first["images"][0]["status"], "indexed", "{first}");
    let again = invoke(batch(&[pushed("app", &digest, "v1").to_string(), "x".to_owned()])).await;
    assert_eq!(failures(&again), ["m1"]);
    let error = invoke(json!({"image": "docker.io/library/debian"})).await;
    assert_eq!(error["errorType"], "ImageFailed");
}
