//! `ociseek hook lambda`: the program as `bootstrap`, with a Runtime API of ours, and with real
//! registries instead of ECR's.

pub mod aws;
mod big;
mod emulator;
mod enabled;
mod events;
mod faults;
mod limits;
pub mod runtime_api;
mod time;
mod tokens;

use std::time::Duration;

use aws::Moto;
use ociseek_format::digest::Digest;
use ociseek_store::blob::Target;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource};
use ociseek_testkit::faulty::{Faulty, RegistrySettings, problem};
use ociseek_testkit::sandbox::{GZIP, Layout, Sandbox, gzip, tar};
use ociseek_testkit::servers::{Server, copied_by_skopeo, htpasswd};
use runtime_api::ACCOUNT;
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);

/// An event of EventBridge.
fn pushed(repository: &str, digest: &str, tag: &str) -> Value {
    json!({"version": "0", "id": "13cde686-328b-6117-af20-0e5566167482", "detail-type": "ECR Image Action",
        "source": "aws.ecr", "account": ACCOUNT, "time": "2019-11-16T01:54:34Z", "region": "us-west-2", "resources": [],
        "detail": {"result": "SUCCESS", "repository-name": repository, "image-digest": digest, "action-type": "PUSH",
            "image-tag": tag}})
}

/// Events as messages of a queue. The first has the id `m0`.
fn batch(events: &[String]) -> Value {
    let messages = events.iter().enumerate().map(|(n, body)| {
        json!({"messageId": format!("m{n}"), "receiptHandle": "x", "body": body,
            "attributes": {"ApproximateReceiveCount": "1"}, "messageAttributes": {}, "md5OfBody": "x",
            "eventSource": "aws:sqs",
            "eventSourceARN": format!("arn:aws:sqs:us-west-2:{ACCOUNT}:q"), "awsRegion": "us-west-2"})
    });
    json!({"Records": messages.collect::<Vec<_>>()})
}

fn failures(answer: &Value) -> Vec<&str> {
    let failures = answer["batchItemFailures"].as_array().unwrap();
    failures.iter().map(|failure| failure["itemIdentifier"].as_str().unwrap()).collect()
}

/// distribution, which requires moto's token.
fn distribution() -> Option<Server> {
    let line = htpasswd("AWS", Moto::PASSWORD)?;
    Server::distribution("127.0.0.1:0", |dir| {
        std::fs::write(dir.join("htpasswd"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: {}}}}}\n", dir.join("htpasswd").display())
    })
}

/// Copies the image `v1` of a layout to `app:v1` of a registry. Returns its digest.
fn copied(sandbox: &Sandbox, layout: &str, server: &Server, repository: &str) -> Option<String> {
    let image = format!("{}/{repository}:v1", server.host);
    let creds = format!("--dest-creds=AWS:{}", Moto::PASSWORD);
    copied_by_skopeo(&sandbox.path(layout), &image, &[&creds])?;
    let index = std::fs::read(sandbox.path(layout).join("index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    Some(index["manifests"][0]["digest"].as_str().unwrap().to_owned())
}

/// A layout with an image of gzip layers, each with a file of the given size.
fn image(sandbox: &Sandbox, layout: &str, sizes: &[usize]) {
    let mut made = Layout::new(&sandbox.path(layout));
    let layers: Vec<Value> = sizes
        .iter()
        .enumerate()
        .map(|(n, size)| made.blob(GZIP, &gzip(&tar(n as u64 + 1, 1, *size))))
        .collect();
    let image = made.image("amd64", &layers);
    made.tag(image, "v1");
}

/// The indexes that ociseek finds on an image, without the function's own login.
fn indexes(sandbox: &Sandbox, image: &str) -> Vec<String> {
    let creds = format!("AWS:{}", Moto::PASSWORD);
    let seen = sandbox.json(0, &["list", "--format=json", "--creds", &creds, image]);
    let indexes = seen["images"][0]["manifests"][0]["indexes"].as_array().unwrap();
    indexes.iter().map(|index| index["digest"].as_str().unwrap().to_owned()).collect()
}

/// The digest that a tag names.
async fn digest_of(server: &Server, repository: &str, tag: &str) -> Option<String> {
    let registry = server.host.clone();
    let user = "AWS".to_owned();
    let password = Moto::PASSWORD.to_owned();
    let credentials = CredentialSource::Only { registry, user, password };
    let client = Client::new(ClientConfig { credentials, ..ClientConfig::default() }).unwrap();
    let repository = client.repository(&server.host, repository).unwrap();
    match repository.manifest(&Target::Tag(tag.to_owned())).await {
        Ok(document) => Some(document.digest.to_string()),
        Err(error) => {
            assert!(error.is_not_found(), "{error}");
            None
        }
    }
}

/// A registry that requires `password`, with a small image `app:v1`.
async fn registry(password: &str, deletes: bool) -> (Faulty, String) {
    let settings = RegistrySettings {
        referrers: true,
        basic: Some(("AWS".into(), password.into())),
        ..RegistrySettings::default()
    };
    let registry = Faulty::start(settings, move |seen, _| {
        (seen.method == "DELETE" && !deletes)
            .then(|| problem(405, "UNSUPPORTED", "The operation is unsupported."))
    })
    .await;
    registry.add_image("v1", &tar(1, 1, 50_000));
    let digest = Digest::sha256(&registry.manifest("v1").unwrap()).to_string();
    (registry, digest)
}
