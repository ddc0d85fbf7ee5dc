//! ECR's tokens, and the credentials that they are asked for with.

use super::aws::{EcrFailing, FakeEcr};
use super::runtime_api::{ACCOUNT, Bootstrap, RuntimeApi};
use super::{LONG, pushed, registry};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_requested_once_and_sent_only_to_ecr() {
    let (registry, digest) = registry("first", true).await;
    let ecr = FakeEcr::start("first").await;
    let (api, address) = RuntimeApi::start().await;
    let _function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.host())],
    );
    // A busy service is asked again.
    ecr.fail(EcrFailing::Busy, 2);
    for _ in 0..3 {
        let answer = api.invoke(pushed("app", &digest, "v1"), LONG).await;
        assert!(answer.ok, "{answer:?}");
    }
    let calls = ecr.calls("GetAuthorizationToken");
    assert_eq!(calls.len(), 3, "two that failed, and one");
    let authorization = calls[2].headers["authorization"].to_str().unwrap();
    assert!(
        authorization.starts_with("AWS4-HMAC-SHA256 Credential=ASIAIOSFODNN7EXAMPLE/"),
        "{authorization}"
    );
    assert!(authorization.contains(
        "/us-west-2/ecr/aws4_request, SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, "
    ));
    assert_eq!(calls[2].headers["x-amz-security-token"], "IQoJb3JpZ2luX2VjEXAMPLE");
    assert_eq!(
        calls[2].headers["x-amz-target"],
        "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
    );
    assert_eq!(calls[2].body, json!({}));
}

/// FIPS and dual-stack hosts belong to the account's registry too, but not hosts that only look
/// similar.
#[tokio::test(flavor = "multi_thread")]
async fn every_host_of_ecr_is_recognized() {
    let (registry, _) = registry("p", true).await;
    let ecr = FakeEcr::start("p").await;
    let (api, address) = RuntimeApi::start().await;
    let _function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.host())],
    );
    for host in [
        "dkr.ecr.us-east-1.amazonaws.com",
        "dkr.ecr-fips.us-east-1.amazonaws.com",
        "dkr-ecr.us-east-1.on.aws",
    ] {
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
async fn a_rejected_token_is_renewed() {
    let (registry, digest) = registry("new", true).await;
    let ecr = FakeEcr::start("old").await;
    let (api, address) = RuntimeApi::start().await;
    let function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.host())],
    );
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
async fn a_function_without_credentials_reports_it() {
    let (api, address) = RuntimeApi::start().await;
    let mut function = Bootstrap::start(&address, &[("AWS_SECRET_ACCESS_KEY", "")]);
    let code = tokio::task::block_in_place(|| function.child.end()).code();
    assert_eq!(code, Some(1));
    assert_eq!(api.cannot_start()[0]["errorMessage"], "AWS_SECRET_ACCESS_KEY is not set");
}
