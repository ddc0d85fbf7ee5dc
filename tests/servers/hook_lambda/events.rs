//! Events and batches: what is indexed, passed over and reported as failed.

use super::aws::{FakeEcr, Moto};
use super::runtime_api::{ACCOUNT, Bootstrap, RuntimeApi};
use super::{LONG, batch, copied, distribution, failures, image, indexes, pushed, registry};
use ociseek_format::digest::Digest;
use ociseek_testkit::hook::assert_documented;
use ociseek_testkit::sandbox::{GZIP, Layout, Sandbox, gzip, tar};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn pushes_are_indexed_once_and_our_own_are_ignored() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start()) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[200_000, 50_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "team/app") else { return };
    let (api, address) = RuntimeApi::start().await;
    let function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL_ECR", &moto.url), ("OCISEEK_ECR_REGISTRY", &server.host)],
    );

    let first = api.invoke(pushed("team/app", &digest, "v1"), LONG).await;
    assert!(first.ok, "{first:?}");
    let done = &first.body["images"][0];
    assert_eq!(
        (&done["status"], &done["digest"], &done["left"]),
        (&json!("indexed"), &json!(digest), &json!([]))
    );
    assert_eq!(
        done["image"],
        format!("{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com/team/app:v1@{digest}")
    );
    let index = done["indexes"][0].as_str().unwrap().to_owned();
    // The log has the same words as that of the service.
    let line = &function.logged(1).await[0];
    assert_eq!(
        (&line["event"], &line["level"], &line["target"]),
        (&json!("job"), &json!("info"), &json!("ociseek::hook"))
    );
    assert_eq!(
        (&line["image"], &line["result"], &line["digest"]),
        (&done["image"], &done["status"], &done["digest"])
    );
    assert_eq!(line["indexes"][0]["index"], json!(index), "each with its platform: {line}");
    for same in ["left", "bytes_read", "bytes_written"] {
        assert_eq!(line[same], done[same], "{same}");
    }
    assert!(line["seconds"].is_f64() && line["time"].is_string(), "{line}");
    assert_eq!(
        indexes(&sandbox, &format!("{}/team/app:v1", server.host)),
        std::slice::from_ref(&index)
    );

    // The same again, by tag, from a caller that waits for the response.
    let again = api.invoke(json!({"image": format!("{}/team/app:v1", server.host)}), LONG).await;
    assert_eq!(again.body["images"][0]["status"], "already-indexed");
    assert_eq!(again.body["images"][0]["bytes_written"], 0);

    // Our own pushes cause events too: for the index by digest, and for the tag that lists it.
    let tag = digest.replace(':', "-");
    let own = pushed("team/app", &index, "");
    let listed = pushed("team/app", &digest, &tag);
    for event in [own, listed] {
        let skipped = api.invoke(event, LONG).await;
        assert_eq!(
            (skipped.ok, &skipped.body["images"][0]["status"]),
            (true, &json!("skipped")),
            "{skipped:?}"
        );
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

    let written: Vec<_> = std::fs::read_dir(function.tmp.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(written, ["ociseek"], "only the cache is in /tmp");
    let log = function.logged(7).await;
    let results: Vec<&str> = log.iter().map(|line| line["result"].as_str().unwrap()).collect();
    let want =
        ["indexed", "already-indexed", "skipped", "skipped", "already-indexed", "ignored", "gone"];
    assert_eq!(results, want, "{log:?}");
    assert!(!format!("{log:?}").contains("auth-token"), "no token stands in the log");
    assert_documented(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_failed_messages_of_a_batch_are_retried() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start()) else { return };
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
    let _function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL", &moto.url), ("OCISEEK_ECR_REGISTRY", &server.host)],
    );

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
async fn an_index_that_cannot_be_deleted_is_reported() {
    let (registry, digest) = registry("p", false).await;
    let ecr = FakeEcr::start("p").await;
    let (api, address) = RuntimeApi::start().await;
    let environment =
        [("AWS_ENDPOINT_URL_ECR", ecr.url.as_str()), ("OCISEEK_ECR_REGISTRY", &registry.host())];
    let old =
        Bootstrap::start(&address, &[&environment[..], &[("OCISEEK_SPAN_SIZE", "16KiB")]].concat());
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

#[test]
fn outside_of_lambda_the_error_explains_the_command() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(&["hook", "lambda"]);
    assert!(
        said.contains("not running as an AWS Lambda function")
            && said.ends_with("--- status 1 ---"),
        "{said}"
    );
}
