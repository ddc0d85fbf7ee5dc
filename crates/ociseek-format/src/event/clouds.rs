//! The events of the registries of Azure, Google and Amazon.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::software::{PushRequest, PushTarget, distribution_push};
use super::{
    EventError, Headers, IgnoreReason, Item, PushFields, check, cut, image_media_type, split_name,
};
use crate::image::ecr::{EcrRegistry, is_account};
use crate::image::json::parse_lenient;

const PUSHED: &str = "Microsoft.ContainerRegistry.ImagePushed";
const VALIDATION: &str = "Microsoft.EventGrid.SubscriptionValidationEvent";
/// Longer than any validation code of Event Grid.
const LONGEST_CODE: usize = 512;

#[derive(Default, Deserialize)]
#[serde(default)]
struct AcrWebhook {
    id: Option<String>,
    action: String,
    target: PushTarget,
    request: PushRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GridEvent {
    id: Option<String>,
    /// The type in Event Grid's own schema.
    event_type: Option<String>,
    /// The type in the CloudEvents schema.
    r#type: Option<String>,
    data: Option<GridData>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GridData {
    #[serde(flatten)]
    webhook: AcrWebhook,
    #[serde(rename = "validationCode")]
    validation_code: Option<String>,
}

/// Azure Container Registry: its webhook ("Azure Container Registry webhook schema reference"),
/// which has one event in the format of distribution without its envelope, and the same event in
/// the two schemas of Event Grid ("Azure Container Registry as an Event Grid source").
pub(super) fn acr(
    headers: &Headers,
    body: &[u8],
    handshake: &mut Option<String>,
) -> serde_json::Result<Vec<Item>> {
    if let Some(kind) = headers.ce_type {
        let data: AcrWebhook = serde_json::from_slice(body)?;
        return Ok(vec![grid(headers.ce_id, kind, &data)]);
    }
    let events: Vec<GridEvent> = if body.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice(body)?
    } else {
        match serde_json::from_slice::<GridEvent>(body)? {
            event if event.r#type.is_some() => vec![event],
            _ => {
                let event: AcrWebhook = serde_json::from_slice(body)?;
                return Ok(vec![distribution_push(
                    event.id.as_deref(),
                    &event.action,
                    &event.target,
                    &event.request,
                )]);
            }
        }
    };
    let mut items = Vec::with_capacity(events.len());
    for event in events {
        let kind = event.event_type.or(event.r#type).unwrap_or_default();
        let data = event.data.unwrap_or_default();
        if kind == VALIDATION {
            *handshake = data.validation_code.filter(|code| code.len() <= LONGEST_CODE);
        } else {
            items.push(grid(event.id.as_deref(), &kind, &data.webhook));
        }
    }
    Ok(items)
}

fn grid(id: Option<&str>, kind: &str, data: &AcrWebhook) -> Item {
    if kind != PUSHED {
        return Err(IgnoreReason::NotAPush(cut(kind)));
    }
    distribution_push(id, &data.action, &data.target, &data.request)
}

#[derive(Deserialize)]
struct PubSubEnvelope {
    message: PubSubMessage,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PubSubMessage {
    message_id: Option<String>,
    #[serde(default)]
    data: String,
}

#[derive(Deserialize)]
struct ArtifactRegistryEvent {
    action: String,
    /// `HOST/PROJECT/REPOSITORY/IMAGE@DIGEST`.
    digest: Option<String>,
    /// `HOST/PROJECT/REPOSITORY/IMAGE:TAG`.
    tag: Option<String>,
}

/// Google Artifact Registry (Google Cloud docs, "Configure Pub/Sub notifications"), pushed by
/// Pub/Sub ("Push subscriptions"): the event is base64 in an envelope and has the full name of the
/// image.
pub(super) fn artifact_registry(body: &[u8]) -> Result<Vec<Item>, EventError> {
    let PubSubEnvelope { message } = parse_lenient(body)?;
    let data = BASE64_STANDARD.decode(message.data).map_err(|_| EventError::Base64)?;
    check(&data)?;
    let event: ArtifactRegistryEvent = parse_lenient(&data)?;
    Ok(vec![artifact_registry_push(message.message_id.as_deref(), &event)])
}

fn artifact_registry_push(id: Option<&str>, event: &ArtifactRegistryEvent) -> Item {
    if event.action != "INSERT" {
        return Err(IgnoreReason::NotAPush(cut(&event.action)));
    }
    let tagged = event.tag.as_deref().map(|name| split_name(name, id));
    let named = match &event.digest {
        Some(name) => split_name(name, id),
        None => tagged.ok_or(IgnoreReason::Nameless)?,
    };
    let tag = tagged.filter(|tagged| {
        (tagged.registry, tagged.repository) == (named.registry, named.repository)
    });
    super::PushFields { tag: tag.and_then(|tagged| tagged.tag), ..named }.push()
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct EcrEvent {
    id: Option<String>,
    detail_type: String,
    #[serde(default)]
    account: String,
    #[serde(default)]
    region: String,
    #[serde(default)]
    detail: EcrDetail,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct EcrDetail {
    result: String,
    action_type: String,
    repository_name: String,
    image_digest: Option<String>,
    /// Empty if the image was pushed by digest.
    image_tag: Option<String>,
    manifest_media_type: Option<String>,
    artifact_media_type: Option<String>,
}

/// Amazon ECR through EventBridge (Amazon ECR docs, "Amazon ECR events and EventBridge"). The
/// registry's host name is built from account and region.
pub(super) fn ecr(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: EcrEvent = serde_json::from_slice(body)?;
    Ok(vec![ecr_push(&event)])
}

fn ecr_push(event: &EcrEvent) -> Item {
    let EcrEvent { detail, account, region, .. } = event;
    if event.detail_type != "ECR Image Action" {
        return Err(IgnoreReason::NotAPush(cut(&event.detail_type)));
    }
    if detail.action_type != "PUSH" {
        return Err(IgnoreReason::NotAPush(cut(&detail.action_type)));
    }
    if detail.result != "SUCCESS" {
        return Err(IgnoreReason::Failed(cut(&detail.result)));
    }
    image_media_type(detail.manifest_media_type.as_deref(), detail.artifact_media_type.as_deref())?;
    if !is_account(account) {
        return Err(IgnoreReason::Malformed(cut(account), "AWS account"));
    }
    let registry = EcrRegistry::private(account, region);
    let registry = registry.ok_or_else(|| IgnoreReason::Malformed(cut(region), "AWS region"))?;
    let host = registry.host();
    PushFields {
        id: event.id.as_deref(),
        registry: Some(&host),
        repository: &detail.repository_name,
        tag: detail.image_tag.as_deref(),
        digest: detail.image_digest.as_deref(),
    }
    .push()
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, Shape, parse};
    use super::*;
    use crate::image::fine::FINE_INDEX;
    use crate::image::soci::{INDEX_V1, INDEX_V2};

    const HEX: &str = "f6554b75e3a6ecb5f38c5e21a2a9b67757a360b2dad1bb70c2f3db5ef63dad60";

    fn webhook(action: &str) -> String {
        format!(
            r#"{{"id":"cb8c3971-9adc-488b-xxxx-43cbb4974ff5","timestamp":"2017-11-17T16:52:01.343145347Z","action":"{action}",
            "target":{{"mediaType":"application/vnd.docker.distribution.manifest.v2+json","size":524,"digest":"sha256:{HEX}",
            "length":524,"repository":"hello-world","tag":"v1"}},"request":{{"id":"3cbb6949-7549-4fa1-xxxx-a6d5451dffc7","host":
            "myregistry.example","method":"PUT","useragent":"docker/17.09.0-ce"}}}}"#
        )
    }

    fn pushed(body: &str) -> Vec<String> {
        let events = parse(&Headers::default(), body.as_bytes()).unwrap();
        assert_eq!((events.shape, events.handshake), (Shape::Acr, None));
        events.pushes.iter().map(|push| push.image(None).unwrap().to_string()).collect()
    }

    #[test]
    fn the_documented_webhook_and_both_schemas_of_event_grid() {
        let image = format!("myregistry.example/hello-world:v1@sha256:{HEX}");
        assert_eq!(pushed(&webhook("push")), std::slice::from_ref(&image));
        let own = format!(
            r#"[{{"id":"831e1650","topic":"/subscriptions/x","subject":"hello-world:v1","eventType":"{PUSHED}","eventTime":
            "2018-04-25T21:39:47.6549614Z","data":{},"dataVersion":"1.0","metadataVersion":"1"}},
            {{"id":"831e1651","eventType":"{PUSHED}","data":{}}}]"#,
            webhook("push"),
            webhook("push")
        );
        assert_eq!(pushed(&own), [image.clone(), image.clone()]);
        let cloud = format!(
            r#"{{"id":"831e1650","source":"/subscriptions/x","subject":"hello-world:v1","type":"{PUSHED}","time":
            "2018-04-25T21:39:47.6549614Z","data":{},"specversion":"1.0"}}"#,
            webhook("push")
        );
        assert_eq!(pushed(&cloud), std::slice::from_ref(&image));
        let headers =
            Headers { ce_type: Some(PUSHED), ce_id: Some("831e1650"), ..Headers::default() };
        let binary = parse(&headers, webhook("push").as_bytes()).unwrap();
        assert_eq!(binary.pushes[0].id.as_deref(), Some("831e1650"));
    }

    #[test]
    fn event_grid_validation_is_answered_with_its_code() {
        let body = format!(
            r#"[{{"id":"2d1781af","topic":"/x","subject":"","data":{{"validationCode":"512d38b6","validationUrl":"https://x"}},
            "eventType":"{VALIDATION}","eventTime":"2018-01-25T22:12:19Z","metadataVersion":"1","dataVersion":"2"}}]"#
        );
        let events = parse(&Headers::default(), body.as_bytes()).unwrap();
        assert_eq!((events.handshake.as_deref(), events.pushes), (Some("512d38b6"), vec![]));
    }

    #[test]
    fn deletions_charts_and_quarantines_are_ignored() {
        let ignored = |body: &str| parse(&Headers::default(), body.as_bytes()).unwrap().ignored;
        assert_eq!(ignored(&webhook("delete")), [IgnoreReason::NotAPush("delete".into())]);
        assert_eq!(ignored(&webhook("chart_push")), [IgnoreReason::NotAPush("chart_push".into())]);
        let deleted = format!(
            r#"[{{"eventType":"Microsoft.ContainerRegistry.ImageDeleted","data":{}}}]"#,
            webhook("push")
        );
        assert_eq!(
            ignored(&deleted),
            [IgnoreReason::NotAPush("Microsoft.ContainerRegistry.ImageDeleted".into())]
        );
    }

    const IMAGE: &str = "us-east1-docker.pkg.example/my-project/my-repo/hello-world";
    fn envelope(data: &str) -> String {
        format!(
            r#"{{"message":{{"attributes":{{}},"data":"{}","messageId":"2070443601311540","message_id":"2070443601311540",
            "publishTime":"2021-02-26T19:13:55.749Z"}},"subscription":"projects/x/subscriptions/y"}}"#,
            BASE64_STANDARD.encode(data)
        )
    }

    #[test]
    fn the_documented_events_of_artifact_registry() {
        for (data, image) in [
            (
                format!(
                    r#"{{"action":"INSERT","digest":"{IMAGE}@sha256:{HEX}","tag":"{IMAGE}:1.1"}}"#
                ),
                format!("{IMAGE}:1.1@sha256:{HEX}"),
            ),
            (
                format!(r#"{{"action":"INSERT","digest":"{IMAGE}@sha256:{HEX}"}}"#),
                format!("{IMAGE}@sha256:{HEX}"),
            ),
            (format!(r#"{{"action":"INSERT","tag":"{IMAGE}:1.1"}}"#), format!("{IMAGE}:1.1")),
        ] {
            let events = parse(&Headers::default(), envelope(&data).as_bytes()).unwrap();
            assert_eq!((events.shape, events.ignored), (Shape::ArtifactRegistry, vec![]));
            assert_eq!(events.pushes[0].id.as_deref(), Some("2070443601311540"));
            assert_eq!(events.pushes[0].image(None).unwrap().to_string(), image);
        }
        let deleted = format!(r#"{{"action":"DELETE","digest":"{IMAGE}@sha256:{HEX}"}}"#);
        let events = parse(&Headers::default(), envelope(&deleted).as_bytes()).unwrap();
        assert_eq!(events.ignored, [IgnoreReason::NotAPush("DELETE".into())]);
    }

    #[test]
    fn embedded_messages_have_the_same_limits() {
        let deep = envelope(&"[".repeat(1000));
        assert!(matches!(parse(&Headers::default(), deep.as_bytes()), Err(EventError::TooDeep)));
        let odd = br#"{"message":{"data":"not base64!"}}"#;
        assert!(matches!(parse(&Headers::default(), odd), Err(EventError::Base64)));
        assert!(matches!(
            parse(&Headers::default(), br#"{"message":{}}"#),
            Err(EventError::Json(_))
        ));
    }

    /// The documented event with a complete digest: the one in the documentation lacks four digits.
    fn documented() -> String {
        include_str!("payloads/ecr-event.json")
            .replace("7f5b2640fe6fb4f46592dfd3410c4a79dac4f89e4782432e0378abcd1234", HEX)
    }

    #[test]
    fn the_documented_event_of_ecr() {
        let events = parse(&Headers::default(), documented().as_bytes()).unwrap();
        assert_eq!((events.shape, events.ignored), (Shape::Ecr, vec![]));
        let [push] = &events.pushes[..] else { panic!() };
        assert_eq!(push.id.as_deref(), Some("13cde686-328b-6117-af20-0e5566167482"));
        let image = format!(
            "123456789012.dkr.ecr.us-west-2.amazonaws.com/my-repository-name:latest@sha256:{HEX}"
        );
        assert_eq!(push.image(None).unwrap().to_string(), image);
        let untagged = documented().replace("\"latest\"", "\"\"");
        assert_eq!(parse(&Headers::default(), untagged.as_bytes()).unwrap().pushes[0].tag, None);
        let china = documented().replace("us-west-2", "cn-north-1");
        let registry =
            parse(&Headers::default(), china.as_bytes()).unwrap().pushes[0].registry.clone();
        assert_eq!(registry.as_deref(), Some("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"));
    }

    #[test]
    fn other_events_of_ecr_are_ignored() {
        let with = |from: &str, to: &str| documented().replace(from, to);
        let index = |artifact_type: &str| {
            let ours = format!(r#""artifact-media-type":"{artifact_type}","action-type":"PUSH""#);
            (
                with("\"action-type\":\"PUSH\"", &ours),
                IgnoreReason::NotAnImage(artifact_type.to_owned()),
            )
        };
        for (body, ignored) in [
            (with("\"PUSH\"", "\"DELETE\""), IgnoreReason::NotAPush("DELETE".into())),
            (with("SUCCESS", "FAILURE"), IgnoreReason::Failed("FAILURE".into())),
            (
                with("ECR Image Action", "ECR Image Scan"),
                IgnoreReason::NotAPush("ECR Image Scan".into()),
            ),
            index(INDEX_V1),
            index(INDEX_V2),
            index(FINE_INDEX),
            (
                with("123456789012", "evil.example/1"),
                IgnoreReason::Malformed("evil.example/1".into(), "AWS account"),
            ),
            (
                with("us-west-2", "x.evil.example"),
                IgnoreReason::Malformed("x.evil.example".into(), "AWS region"),
            ),
        ] {
            assert_eq!(parse(&Headers::default(), body.as_bytes()).unwrap().ignored, [ignored]);
        }
        let short = parse(&Headers::default(), include_bytes!("payloads/ecr-event.json")).unwrap();
        assert!(matches!(short.ignored[..], [IgnoreReason::Malformed(_, "digest")]));
    }
}
