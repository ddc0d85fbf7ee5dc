//! SOCI-enabled images.

use super::aws::Moto;
use super::runtime_api::{Bootstrap, RuntimeApi};
use super::{LONG, copied, digest_of, distribution, image, pushed};
use ociseek_testkit::sandbox::Sandbox;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn pushes_get_soci_enabled_images() {
    let (Some(server), Some(moto)) = (distribution(), Moto::start()) else { return };
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[60_000]);
    let Some(digest) = copied(&sandbox, "img", &server, "team/app") else { return };
    let (api, address) = RuntimeApi::start().await;
    let environment =
        [("AWS_ENDPOINT_URL_ECR", moto.url.as_str()), ("OCISEEK_ECR_REGISTRY", &server.host)];
    let function = Bootstrap::start(
        &address,
        &[&environment[..], &[("OCISEEK_KIND", "v1,v2=lazy-{tag}")]].concat(),
    );

    // An image without a tag only gets its index.
    let bare = api.invoke(pushed("team/app", &digest, ""), LONG).await;
    let done = &bare.body["images"][0];
    assert_eq!(
        (&done["status"], &done["enabled"]["reason"]),
        (&json!("indexed"), &json!("no-tag")),
        "{bare:?}"
    );
    let first = api.invoke(pushed("team/app", &digest, "v1"), LONG).await;
    let done = &first.body["images"][0];
    let enabled = digest_of(&server, "team/app", "lazy-v1").await.unwrap();
    let name = format!("{}/team/app:lazy-v1@{enabled}", server.host);
    assert_eq!(
        done["enabled"],
        json!({"image": name, "digest": enabled, "status": "written"}),
        "{first:?}"
    );
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
    let written: Vec<_> = std::fs::read_dir(function.tmp.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(written, ["ociseek"], "only the cache is in /tmp");
}
