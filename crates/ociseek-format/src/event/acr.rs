//! Azure Container Registry: its webhook ("Azure Container Registry webhook schema reference"),
//! which has one event in the format of distribution without its envelope, and the same event in
//! the two schemas of Event Grid ("Azure Container Registry as an Event Grid source").

use serde::Deserialize;

use super::distribution::{PushRequest, PushTarget, push};
use super::{Headers, IgnoreReason, Item, cut};

const PUSHED: &str = "Microsoft.ContainerRegistry.ImagePushed";
const VALIDATION: &str = "Microsoft.EventGrid.SubscriptionValidationEvent";
/// Longer than any validation code of Event Grid.
const LONGEST_CODE: usize = 512;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Webhook {
    id: Option<String>,
    action: String,
    target: PushTarget,
    request: PushRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Grid {
    id: Option<String>,
    /// The type in Event Grid's own schema.
    event_type: Option<String>,
    /// The type in the CloudEvents schema.
    r#type: Option<String>,
    data: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    #[serde(flatten)]
    webhook: Webhook,
    #[serde(rename = "validationCode")]
    validation_code: Option<String>,
}

pub(super) fn parse(headers: &Headers, body: &[u8], handshake: &mut Option<String>) -> serde_json::Result<Vec<Item>> {
    if let Some(kind) = headers.ce_type {
        let data: Webhook = serde_json::from_slice(body)?;
        return Ok(vec![grid(headers.ce_id, kind, &data)]);
    }
    let events: Vec<Grid> = match body.trim_ascii_start().starts_with(b"[") {
        true => serde_json::from_slice(body)?,
        false => match serde_json::from_slice::<Grid>(body)? {
            event if event.r#type.is_some() => vec![event],
            _ => {
                let event: Webhook = serde_json::from_slice(body)?;
                return Ok(vec![push(event.id.as_deref(), &event.action, &event.target, &event.request)]);
            }
        },
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

fn grid(id: Option<&str>, kind: &str, data: &Webhook) -> Item {
    if kind != PUSHED {
        return Err(IgnoreReason::NotAPush(cut(kind)));
    }
    push(id, &data.action, &data.target, &data.request)
}

#[cfg(test)]
mod tests {
    use super::super::{Shape, parse};
    use super::*;

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
        let headers = Headers { ce_type: Some(PUSHED), ce_id: Some("831e1650"), ..Headers::default() };
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
        let deleted =
            format!(r#"[{{"eventType":"Microsoft.ContainerRegistry.ImageDeleted","data":{}}}]"#, webhook("push"));
        assert_eq!(ignored(&deleted), [IgnoreReason::NotAPush("Microsoft.ContainerRegistry.ImageDeleted".into())]);
    }
}
