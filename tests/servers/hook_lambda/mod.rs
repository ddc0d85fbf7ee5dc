//! `ociseek hook lambda`: the program as `bootstrap`, with a Runtime API of ours, and with real
//! registries instead of ECR's.

mod aws;
mod big;
mod faults;
mod limits;
mod runtime_api;

use crate::support::hook::assert_documented;
use crate::support::servers;
use std::time::Duration;

use crate::support::faulty::{Faulty, Nature, problem};
use crate::support::sandbox::{GZIP, Layout, OCI_CONFIG, OCI_MANIFEST, Sandbox, gzip, tar};
use crate::support::servers::{Server, htpasswd, run, tool};
use crate::support::throttle::throttled;
use aws::{FakeEcr, Moto};
use ociseek::digest::Digest;
use ociseek::image::Descriptor;
use ociseek::store::blob::Target;
use ociseek::store::registry::{Client, ClientConfig, CredentialSource};
use runtime_api::{ACCOUNT, Bootstrap, RuntimeApi};
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
    let skopeo = tool("skopeo")?;
    let from = format!("oci:{}:v1", sandbox.path(layout).display());
    let to = format!("docker://{}/{repository}:v1", server.host);
    let creds = format!("AWS:{}", Moto::PASSWORD);
    run(&skopeo, &["copy", "--quiet", "--all", "--dest-tls-verify=false", "--dest-creds", &creds, &from, &to]);
    let index = std::fs::read(sandbox.path(layout).join("index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    Some(index["manifests"][0]["digest"].as_str().unwrap().to_owned())
}

/// A layout with an image of gzip layers, each with a file of the given size.
fn image(sandbox: &Sandbox, layout: &str, sizes: &[usize]) {
    let mut made = Layout::new(&sandbox.path(layout));
    let layers: Vec<Value> =
        sizes.iter().enumerate().map(|(n, size)| made.blob(GZIP, &gzip(&tar(n as u64 + 1, 1, *size)))).collect();
    let image = made.image("amd64", &layers);
    made.tag(image, "v1");
}

/// The indexes that ociseek finds on an image, without the function's own login.
fn indexes(sandbox: &Sandbox, image: &str) -> Vec<String> {
    let creds = format!("AWS:{}", Moto::PASSWORD);
    let seen = sandbox.json(0, &["inspect", "--format=json", "--creds", &creds, image]);
    let indexes = seen["manifests"][0]["indexes"].as_array().unwrap();
    indexes.iter().map(|index| index["digest"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pushes_are_indexed_once_and_our_own_are_passed_over() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start().await) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[200_000, 50_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "team/app") else { return };
    let (api, address) = RuntimeApi::start().await;
    let function =
        Bootstrap::start(&address, &[("AWS_ENDPOINT_URL_ECR", &moto.url), ("OCISEEK_ECR_REGISTRY", &server.host)]);

    let first = api.invoke(pushed("team/app", &digest, "v1"), LONG).await;
    assert!(first.ok, "{first:?}");
    let done = &first.body["images"][0];
    assert_eq!((&done["status"], &done["digest"], &done["left"]), (&json!("indexed"), &json!(digest), &json!([])));
    assert_eq!(done["image"], format!("{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com/team/app:v1@{digest}"));
    let index = done["indexes"][0].as_str().unwrap().to_owned();
    // The log has the same words as that of the service.
    let line = &function.logged(1).await[0];
    assert_eq!(
        (&line["event"], &line["level"], &line["target"]),
        (&json!("job"), &json!("info"), &json!("ociseek::hook"))
    );
    assert_eq!((&line["image"], &line["result"], &line["digest"]), (&done["image"], &done["status"], &done["digest"]));
    assert_eq!(line["indexes"][0]["index"], json!(index), "each with its platform: {line}");
    for same in ["left", "bytes_read", "bytes_written"] {
        assert_eq!(line[same], done[same], "{same}");
    }
    assert!(line["seconds"].is_f64() && line["time"].is_string(), "{line}");
    assert_eq!(indexes(&sandbox, &format!("{}/team/app:v1", server.host)), std::slice::from_ref(&index));

    // The same again, by tag, from a caller that waits for the response.
    let again = api.invoke(json!({"image": format!("{}/team/app:v1", server.host)}), LONG).await;
    assert_eq!(again.body["images"][0]["status"], "already-indexed");
    assert_eq!(again.body["images"][0]["bytes_written"], 0);

    // Our own pushes cause events too: for the index by digest, and for the tag that lists it.
    let tag = digest.replace(':', "-");
    let (own, listed) = (pushed("team/app", &index, ""), pushed("team/app", &digest, &tag));
    for event in [own, listed] {
        let skipped = api.invoke(event, LONG).await;
        assert_eq!((skipped.ok, &skipped.body["images"][0]["status"]), (true, &json!("skipped")), "{skipped:?}");
    }
    // The tag alone does not make an image SOCI-enabled.
    let ordinary = api.invoke(pushed("team/app", &digest, "v1-soci"), LONG).await;
    assert_eq!(ordinary.body["images"][0]["status"], "already-indexed", "{ordinary:?}");
    // Deletions, and images that no longer exist.
    let mut deleted = pushed("team/app", &digest, "v1");
    deleted["detail"]["action-type"] = json!("DELETE");
    assert_eq!(api.invoke(deleted, LONG).await.body["images"][0]["status"], "ignored");
    let gone = api.invoke(pushed("team/app", &Digest::sha256(b"gone").to_string(), ""), LONG).await;
    assert_eq!((gone.ok, &gone.body["images"][0]["status"]), (true, &json!("gone")));

    assert_eq!(std::fs::read_dir(function.tmp.path()).unwrap().count(), 0, "nothing is written to /tmp");
    let log = function.logged(7).await;
    let results: Vec<&str> = log.iter().map(|line| line["result"].as_str().unwrap()).collect();
    let want = ["indexed", "already-indexed", "skipped", "skipped", "already-indexed", "ignored", "gone"];
    assert_eq!(results, want, "{log:?}");
    assert!(!format!("{log:?}").contains("auth-token"), "no token stands in the log");
    assert_documented(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_only_what_failed_comes_again() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start().await) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "good", &[60_000]);
    let Some(good) = copied(&sandbox, "good", &server, "good") else { return };
    // A truncated layer, which skopeo copies unchanged.
    let mut broken = Layout::new(&sandbox.path("broken"));
    let whole = gzip(&tar(7, 1, 60_000));
    let layer = broken.blob(GZIP, &whole[..whole.len() / 2]);
    let manifest = broken.image("amd64", &[layer]);
    broken.tag(manifest, "v1");
    let Some(broken) = copied(&sandbox, "broken", &server, "broken") else { return };
    let (api, address) = RuntimeApi::start().await;
    let _function =
        Bootstrap::start(&address, &[("AWS_ENDPOINT_URL", &moto.url), ("OCISEEK_ECR_REGISTRY", &server.host)]);

    let foreign = json!({"version": "0", "id": "x", "detail-type": "Object Created", "source": "aws.s3",
        "account": ACCOUNT, "region": "us-west-2", "detail": {"bucket": {"name": "b"}}});
    let elsewhere = pushed("good", &good, "v1").to_string().replace(ACCOUNT, "210987654321");
    let answer = api
        .invoke(
            batch(&[
                pushed("good", &good, "v1").to_string(),
                pushed("broken", &broken, "v1").to_string(),
                foreign.to_string(),
                "no JSON".to_owned(),
                pushed("good", &good, "v1").to_string(),
                elsewhere,
                json!({"image": "docker.io/library/debian:12"}).to_string(),
                json!({"events": [{"action": "push", "target": {"repository": "good", "tag": "v1"},
                    "request": {"host": "evil.example"}}]})
                .to_string(),
            ]),
            LONG,
        )
        .await;
    assert!(answer.ok);
    // Failed: the broken image, the message without an event, another account's registry, another
    // registry.
    assert_eq!(failures(&answer.body), ["m1", "m3", "m5", "m6"]);
    assert_eq!(indexes(&sandbox, &format!("{}/good:v1", server.host)).len(), 1);
    assert_eq!(indexes(&sandbox, &format!("{}/broken:v1", server.host)).len(), 0);

    let alone = api.invoke(pushed("broken", &broken, "v1"), LONG).await;
    assert!(!alone.ok);
    assert_eq!(alone.body["errorType"], "ImageFailed");
    let message = alone.body["errorMessage"].as_str().unwrap();
    assert!(message.contains("is broken"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_time_is_up_what_is_done_is_attached_and_the_next_call_does_the_rest() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start().await) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[100_000, 7_000_000, 200_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "app") else { return };
    let slow = throttled(&server.host, 1_000_000);
    let (api, address) = RuntimeApi::start().await;
    let _function = Bootstrap::start(&address, &[("AWS_ENDPOINT_URL_ECR", &moto.url), ("OCISEEK_ECR_REGISTRY", &slow)]);

    let limit = Duration::from_secs(5);
    let first = api.invoke(pushed("app", &digest, "v1"), limit).await;
    assert!(first.took < limit, "{first:?}");
    assert!(!first.ok, "{first:?}");
    assert_eq!(first.body["errorType"], "TimeWasUp");
    let image = format!("{}/app:v1", server.host);
    let sparse = indexes(&sandbox, &image);
    assert_eq!(sparse.len(), 1);

    // A message from a queue is repeated. A caller that passes an image gets the number of
    // remaining layers.
    let again = api.invoke(batch(&[pushed("app", &digest, "v1").to_string()]), limit).await;
    assert_eq!((again.ok, failures(&again.body)), (true, vec!["m0"]));
    let told = api.invoke(json!({"image": format!("{slow}/app:v1")}), limit).await;
    assert!(told.ok && told.took < limit, "{told:?}");
    assert_eq!(told.body["images"][0]["status"], "sparse");
    assert_eq!(told.body["images"][0]["left"].as_array().unwrap().len(), 1);
    assert_eq!(indexes(&sandbox, &image), sparse, "nothing new, nothing written");

    let last = api.invoke(pushed("app", &digest, "v1"), LONG).await;
    assert!(last.ok, "{last:?}");
    let done = &last.body["images"][0];
    assert_eq!((&done["status"], &done["left"]), (&json!("indexed"), &json!([])));
    assert!(done["bytes_read"].as_u64().unwrap() < 7_100_000, "only the layer that was left is read: {done}");
    assert_eq!(indexes(&sandbox, &image), [done["indexes"][0].as_str().unwrap()], "the complete one alone");
}

/// The digest that a tag names.
async fn digest_of(server: &Server, repository: &str, tag: &str) -> Option<String> {
    let (registry, user, password) = (server.host.clone(), "AWS".to_owned(), Moto::PASSWORD.to_owned());
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

#[tokio::test(flavor = "multi_thread")]
async fn soci_enabled_images_of_pushes() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start().await) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[60_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "team/app") else { return };
    let (api, address) = RuntimeApi::start().await;
    let environment = [("AWS_ENDPOINT_URL_ECR", moto.url.as_str()), ("OCISEEK_ECR_REGISTRY", &server.host)];
    let function = Bootstrap::start(&address, &[&environment[..], &[("OCISEEK_V2", "lazy-{tag}")]].concat());

    // An image without a tag only gets its index.
    let bare = api.invoke(pushed("team/app", &digest, ""), LONG).await;
    let done = &bare.body["images"][0];
    assert_eq!((&done["status"], &done["enabled"]["reason"]), (&json!("indexed"), &json!("no-tag")), "{bare:?}");
    let first = api.invoke(pushed("team/app", &digest, "v1"), LONG).await;
    let done = &first.body["images"][0];
    let enabled = digest_of(&server, "team/app", "lazy-v1").await.unwrap();
    let name = format!("{}/team/app:lazy-v1@{enabled}", server.host);
    assert_eq!(done["enabled"], json!({"image": name, "digest": enabled, "status": "written"}), "{first:?}");
    assert_eq!((&done["status"], &done["bytes_read"]), (&json!("indexed"), &json!(0)), "{first:?}");
    let again = api.invoke(json!({"image": format!("{}/team/app:v1", server.host)}), LONG).await;
    assert_eq!(again.body["images"][0]["status"], "already-indexed", "{again:?}");
    assert_eq!(again.body["images"][0]["enabled"]["status"], "already-there", "{again:?}");
    // Our own push, by tag and by digest.
    for tag in ["lazy-v1", ""] {
        let ours = api.invoke(pushed("team/app", &enabled, tag), LONG).await;
        assert_eq!(ours.body["images"][0]["status"], "skipped", "{ours:?}");
    }
    let log = function.logged(5).await;
    assert_eq!(log[1]["enabled"]["image"], name);
    assert_eq!(std::fs::read_dir(function.tmp.path()).unwrap().count(), 0, "nothing is written to /tmp");
}

/// With an index, finished work is kept, and the image is written when it is complete. Without one,
/// it is made in a single call or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_soci_enabled_image_that_needs_more_than_a_call() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start().await) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[100_000, 7_000_000, 200_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "app") else { return };
    let slow = throttled(&server.host, 1_000_000);
    let environment = [("AWS_ENDPOINT_URL_ECR", moto.url.as_str()), ("OCISEEK_ECR_REGISTRY", &slow)];
    let limit = Duration::from_secs(5);
    let image = format!("{}/app:v1", server.host);
    {
        let (api, address) = RuntimeApi::start().await;
        let _alone = Bootstrap::start(&address, &[&environment[..], &[("OCISEEK_V2_ONLY", "{tag}-soci")]].concat());
        let alone = api.invoke(pushed("app", &digest, "v1"), limit).await;
        assert_eq!((alone.ok, &alone.body["errorType"]), (false, &json!("TimeWasUp")), "{alone:?}");
        let message = alone.body["errorMessage"].as_str().unwrap();
        assert!(message.contains("OCISEEK_V2 instead of OCISEEK_V2_ONLY"), "{message}");
    }
    let (api, address) = RuntimeApi::start().await;
    let _both = Bootstrap::start(&address, &[&environment[..], &[("OCISEEK_V2", "{tag}-soci")]].concat());
    let told = api.invoke(json!({"image": format!("{slow}/app:v1")}), limit).await;
    let done = &told.body["images"][0];
    assert_eq!((&done["status"], &done["enabled"]["status"]), (&json!("sparse"), &json!("out-of-time")), "{told:?}");
    assert_eq!((indexes(&sandbox, &image).len(), digest_of(&server, "app", "v1-soci").await), (1, None));
    let from_a_queue = api.invoke(batch(&[pushed("app", &digest, "v1").to_string()]), limit).await;
    assert_eq!(failures(&from_a_queue.body), ["m0"]);

    let last = api.invoke(pushed("app", &digest, "v1"), LONG).await;
    let done = &last.body["images"][0];
    assert_eq!((&done["status"], &done["enabled"]["status"]), (&json!("indexed"), &json!("written")), "{last:?}");
    assert!(done["bytes_read"].as_u64().unwrap() < 7_100_000, "only the layer that was left is read: {done}");
    assert_eq!(digest_of(&server, "app", "v1-soci").await.as_deref(), done["enabled"]["digest"].as_str());
}

/// A registry that requires `password`, with a small image `app:v1`.
async fn registry(password: &str, deletes: bool) -> (Faulty, String) {
    let nature = Nature { referrers: true, basic: Some(("AWS".into(), password.into())), ..Nature::default() };
    let registry = Faulty::start(nature, move |seen, _| {
        (seen.method == "DELETE" && !deletes).then(|| problem(405, "UNSUPPORTED", "The operation is unsupported."))
    })
    .await;
    let layer = gzip(&tar(1, 1, 50_000));
    let config = json!({"os": "linux", "architecture": "amd64"}).to_string();
    let (config, layer) = (Descriptor::of(OCI_CONFIG, config.as_bytes()), Descriptor::of(GZIP, &layer));
    registry.add_blob(gzip(&tar(1, 1, 50_000)));
    registry.add_blob(json!({"os": "linux", "architecture": "amd64"}).to_string());
    let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [layer]});
    let digest = registry.add_manifest("v1", OCI_MANIFEST, manifest.to_string());
    (registry, digest.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_once_signed_and_shown_to_ecr_alone() {
    let (registry, digest) = registry("first", true).await;
    let ecr = FakeEcr::start("first").await;
    let (api, address) = RuntimeApi::start().await;
    let _function =
        Bootstrap::start(&address, &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.host())]);
    // A busy service is asked again.
    ecr.fail(2);
    for _ in 0..3 {
        let answer = api.invoke(pushed("app", &digest, "v1"), LONG).await;
        assert!(answer.ok, "{answer:?}");
    }
    let calls = ecr.calls("GetAuthorizationToken");
    assert_eq!(calls.len(), 3, "two that failed, and one");
    let authorization = calls[2].headers["authorization"].to_str().unwrap();
    assert!(authorization.starts_with("AWS4-HMAC-SHA256 Credential=ASIAIOSFODNN7EXAMPLE/"), "{authorization}");
    assert!(authorization.contains(
        "/us-west-2/ecr/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, "
    ));
    assert_eq!(calls[2].headers["x-amz-security-token"], "IQoJb3JpZ2luX2VjEXAMPLE");
    assert_eq!(calls[2].headers["x-amz-target"], "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken");
    assert_eq!(calls[2].body, json!({}));
}

/// FIPS and dual-stack hosts belong to the account's registry too, but not hosts that only look
/// similar.
#[tokio::test(flavor = "multi_thread")]
async fn every_host_of_ecr_is_known() {
    let (registry, _) = registry("p", true).await;
    let ecr = FakeEcr::start("p").await;
    let (api, address) = RuntimeApi::start().await;
    let _function =
        Bootstrap::start(&address, &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.host())]);
    for host in ["dkr.ecr.us-east-1.amazonaws.com", "dkr.ecr-fips.us-east-1.amazonaws.com", "dkr-ecr.us-east-1.on.aws"]
    {
        let answer = api.invoke(json!({"image": format!("{ACCOUNT}.{host}/app:v1")}), LONG).await;
        assert!(answer.ok, "{host}: {answer:?}");
    }
    for host in ["dkr.ecr.us-east-1.on.aws", "dkr-ecr.us-east-1.on.aws.evil.example"] {
        let answer = api.invoke(json!({"image": format!("{ACCOUNT}.{host}/app:v1")}), LONG).await;
        assert!(
            !answer.ok && format!("{:?}", answer.body).contains("not an Amazon ECR registry"),
            "{host}: {answer:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_is_asked_for_anew() {
    let (registry, digest) = registry("new", true).await;
    let ecr = FakeEcr::start("old").await;
    let (api, address) = RuntimeApi::start().await;
    let function =
        Bootstrap::start(&address, &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.host())]);
    let refused = api.invoke(pushed("app", &digest, "v1"), LONG).await;
    assert!(!refused.ok);
    assert!(refused.body["errorMessage"].as_str().unwrap().contains("401"), "{refused:?}");
    ecr.change_password("new");
    assert!(api.invoke(pushed("app", &digest, "v1"), LONG).await.ok);
    assert_eq!(ecr.calls("GetAuthorizationToken").len(), 2);
    let said = format!("{:?} {refused:?}", function.logged(2).await);
    assert!(!said.contains("AWS:") && !said.contains("QVdTO"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_may_not_be_deleted_is_told() {
    let (registry, digest) = registry("p", false).await;
    let ecr = FakeEcr::start("p").await;
    let (api, address) = RuntimeApi::start().await;
    let environment = [("AWS_ENDPOINT_URL_ECR", ecr.url.as_str()), ("OCISEEK_ECR_REGISTRY", &registry.host())];
    let old = Bootstrap::start(&address, &[&environment[..], &[("OCISEEK_SPAN_SIZE", "16KiB")]].concat());
    let first = api.invoke(pushed("app", &digest, "v1"), LONG).await;
    drop(old);
    // The killed function still waits for an event at the API, and the next event is for the new
    // one.
    let (api, address) = RuntimeApi::start().await;
    let _new = Bootstrap::start(&address, &environment);
    let second = api.invoke(pushed("app", &digest, "v1"), LONG).await;
    assert!(second.ok, "{second:?}");
    assert_eq!(second.body["images"][0]["not_deleted"], first.body["images"][0]["indexes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_without_credentials_says_so() {
    let (api, address) = RuntimeApi::start().await;
    let mut function = Bootstrap::start(&address, &[("AWS_SECRET_ACCESS_KEY", "")]);
    for _ in 0..200 {
        if function.has_ended().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(function.has_ended(), Some(1));
    assert_eq!(api.cannot_start()[0]["errorMessage"], "AWS_SECRET_ACCESS_KEY is not set");
}

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

#[test]
fn outside_of_lambda_it_says_what_it_is_for() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&["hook", "lambda"]);
    assert!(said.contains("not running as an AWS Lambda function") && said.ends_with("--- status 1 ---"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_of_2_gib_takes_less_than_256_mib_of_memory() {
    let registry = big::registry("p", 2048).await;
    let ecr = FakeEcr::start("p").await;
    let (api, address) = RuntimeApi::start().await;
    let function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.registry.host())],
    );
    let answer = api.invoke(pushed("app", &registry.digest, "v1"), Duration::from_secs(600)).await;
    assert!(answer.ok, "{answer:?}");
    assert_eq!(answer.body["images"][0]["status"], "indexed");
    assert!(answer.body["images"][0]["bytes_read"].as_u64().unwrap() >= 2 << 30);
    let peak = function.peak_mib();
    println!("a layer of 2 GiB in {:.1} s, {peak} MiB at the peak", answer.took.as_secs_f64());
    assert!(peak < 256, "{peak} MiB");
}
