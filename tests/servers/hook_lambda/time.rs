//! Images that take more time than a call has.

use std::time::Duration;

use super::aws::Moto;
use super::runtime_api::{Bootstrap, RuntimeApi};
use super::{LONG, batch, copied, digest_of, distribution, failures, image, indexes, pushed};
use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::throttle::throttled;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn finished_layers_are_attached_in_time_and_the_next_call_adds_the_rest() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start()) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[100_000, 7_000_000, 200_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "app") else { return };
    let slow = throttled(&server.host, 700_000);
    let (api, address) = RuntimeApi::start().await;
    let _function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL_ECR", &moto.url), ("OCISEEK_ECR_REGISTRY", &slow)],
    );

    let limit = Duration::from_secs(7);
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
    assert!(
        done["bytes_read"].as_u64().unwrap() < 7_100_000,
        "only the layer that was left is read: {done}"
    );
    assert_eq!(
        indexes(&sandbox, &image),
        [done["indexes"][0].as_str().unwrap()],
        "the complete one alone"
    );
}

/// With an index, finished work is kept, and the image is written when it is complete. Without one,
/// it is made in a single call or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_soci_enabled_image_may_need_several_calls() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start()) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[100_000, 7_000_000, 200_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "app") else { return };
    let slow = throttled(&server.host, 1_000_000);
    let environment =
        [("AWS_ENDPOINT_URL_ECR", moto.url.as_str()), ("OCISEEK_ECR_REGISTRY", &slow)];
    let limit = Duration::from_secs(5);
    let image = format!("{}/app:v1", server.host);
    {
        let (api, address) = RuntimeApi::start().await;
        let _alone = Bootstrap::start(
            &address,
            &[&environment[..], &[("OCISEEK_KIND", "v2={tag}-soci")]].concat(),
        );
        let alone = api.invoke(pushed("app", &digest, "v1"), limit).await;
        assert_eq!((alone.ok, &alone.body["errorType"]), (false, &json!("TimeWasUp")), "{alone:?}");
        let message = alone.body["errorMessage"].as_str().unwrap();
        assert!(message.contains("a longer timeout or more memory"), "{message}");
    }
    let (api, address) = RuntimeApi::start().await;
    let _both = Bootstrap::start(
        &address,
        &[&environment[..], &[("OCISEEK_KIND", "v1,v2={tag}-soci")]].concat(),
    );
    let told = api.invoke(json!({"image": format!("{slow}/app:v1")}), limit).await;
    let done = &told.body["images"][0];
    assert_eq!(
        (&done["status"], &done["enabled"]["status"]),
        (&json!("sparse"), &json!("out-of-time")),
        "{told:?}"
    );
    assert_eq!(
        (indexes(&sandbox, &image).len(), digest_of(&server, "app", "v1-soci").await),
        (1, None)
    );
    let from_a_queue = api.invoke(batch(&[pushed("app", &digest, "v1").to_string()]), limit).await;
    assert_eq!(failures(&from_a_queue.body), ["m0"]);

    let last = api.invoke(pushed("app", &digest, "v1"), LONG).await;
    let done = &last.body["images"][0];
    assert_eq!(
        (&done["status"], &done["enabled"]["status"]),
        (&json!("indexed"), &json!("written")),
        "{last:?}"
    );
    assert!(
        done["bytes_read"].as_u64().unwrap() < 7_100_000,
        "only the layer that was left is read: {done}"
    );
    assert_eq!(
        digest_of(&server, "app", "v1-soci").await.as_deref(),
        done["enabled"]["digest"].as_str()
    );
}
