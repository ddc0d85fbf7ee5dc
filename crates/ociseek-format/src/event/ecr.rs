//! Amazon ECR through EventBridge (Amazon ECR docs, "Amazon ECR events and EventBridge"). The
//! registry's host name is built from account and region.

use serde::Deserialize;

use super::{IgnoreReason, Item, PushFields, cut, image_media_type};
use crate::image::ecr::{EcrRegistry, is_account};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Event {
    id: Option<String>,
    detail_type: String,
    #[serde(default)]
    account: String,
    #[serde(default)]
    region: String,
    #[serde(default)]
    detail: Detail,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Detail {
    result: String,
    action_type: String,
    repository_name: String,
    image_digest: Option<String>,
    /// Empty if the image was pushed by digest.
    image_tag: Option<String>,
    manifest_media_type: Option<String>,
    artifact_media_type: Option<String>,
}

pub(super) fn parse(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: Event = serde_json::from_slice(body)?;
    Ok(vec![push(&event)])
}

fn push(event: &Event) -> Item {
    let Event { detail, account, region, .. } = event;
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

    /// The documented event with a complete digest: the one in the documentation lacks four digits.
    fn documented() -> String {
        include_str!("payloads/ecr-event.json")
            .replace("7f5b2640fe6fb4f46592dfd3410c4a79dac4f89e4782432e0378abcd1234", HEX)
    }

    #[test]
    fn the_documented_event() {
        let events = parse(&Headers::default(), documented().as_bytes()).unwrap();
        assert_eq!((events.shape, events.ignored), (Shape::Ecr, vec![]));
        let [push] = &events.pushes[..] else { panic!() };
        assert_eq!(push.id.as_deref(), Some("13cde686-328b-6117-af20-0e5566167482"));
        let image = format!("123456789012.dkr.ecr.us-west-2.amazonaws.com/my-repository-name:latest@sha256:{HEX}");
        assert_eq!(push.image(None).unwrap().to_string(), image);
        let untagged = documented().replace("\"latest\"", "\"\"");
        assert_eq!(parse(&Headers::default(), untagged.as_bytes()).unwrap().pushes[0].tag, None);
        let china = documented().replace("us-west-2", "cn-north-1");
        let registry = parse(&Headers::default(), china.as_bytes()).unwrap().pushes[0].registry.clone();
        assert_eq!(registry.as_deref(), Some("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"));
    }

    #[test]
    fn other_events_are_ignored() {
        let with = |from: &str, to: &str| documented().replace(from, to);
        let index = |artifact_type: &str| {
            let ours = format!(r#""artifact-media-type":"{artifact_type}","action-type":"PUSH""#);
            (with("\"action-type\":\"PUSH\"", &ours), IgnoreReason::NotAnImage(artifact_type.to_owned()))
        };
        for (body, ignored) in [
            (with("\"PUSH\"", "\"DELETE\""), IgnoreReason::NotAPush("DELETE".into())),
            (with("SUCCESS", "FAILURE"), IgnoreReason::Failed("FAILURE".into())),
            (with("ECR Image Action", "ECR Image Scan"), IgnoreReason::NotAPush("ECR Image Scan".into())),
            index(INDEX_V1),
            index(INDEX_V2),
            index(FINE_INDEX),
            (with("123456789012", "evil.example/1"), IgnoreReason::Malformed("evil.example/1".into(), "AWS account")),
            (with("us-west-2", "x.evil.example"), IgnoreReason::Malformed("x.evil.example".into(), "AWS region")),
        ] {
            assert_eq!(parse(&Headers::default(), body.as_bytes()).unwrap().ignored, [ignored]);
        }
        let short = parse(&Headers::default(), include_bytes!("payloads/ecr-event.json")).unwrap();
        assert!(matches!(short.ignored[..], [IgnoreReason::Malformed(_, "digest")]));
    }
}
