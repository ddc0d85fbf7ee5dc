//! Google Artifact Registry (Google Cloud docs, "Configure Pub/Sub notifications"), pushed by
//! Pub/Sub ("Push subscriptions"): the event is base64 in an envelope and has the full name of the
//! image.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::{EventError, IgnoreReason, Item, check, cut, split_name};
use crate::image::json::parse_lenient;

#[derive(Deserialize)]
struct Envelope {
    message: Message,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    message_id: Option<String>,
    #[serde(default)]
    data: String,
}

#[derive(Deserialize)]
struct Event {
    action: String,
    /// `HOST/PROJECT/REPOSITORY/IMAGE@DIGEST`.
    digest: Option<String>,
    /// `HOST/PROJECT/REPOSITORY/IMAGE:TAG`.
    tag: Option<String>,
}

pub(super) fn parse(body: &[u8]) -> Result<Vec<Item>, EventError> {
    let Envelope { message } = parse_lenient(body)?;
    let data = BASE64_STANDARD.decode(message.data).map_err(|_| EventError::Base64)?;
    check(&data)?;
    let event: Event = parse_lenient(&data)?;
    Ok(vec![push(message.message_id.as_deref(), &event)])
}

fn push(id: Option<&str>, event: &Event) -> Item {
    if event.action != "INSERT" {
        return Err(IgnoreReason::NotAPush(cut(&event.action)));
    }
    let tagged = event.tag.as_deref().map(|name| split_name(name, id));
    let named = match &event.digest {
        Some(name) => split_name(name, id),
        None => tagged.ok_or(IgnoreReason::Nameless)?,
    };
    let tag = tagged.filter(|tagged| (tagged.registry, tagged.repository) == (named.registry, named.repository));
    super::PushFields { tag: tag.and_then(|tagged| tagged.tag), ..named }.push()
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, Shape, parse};
    use super::*;

    const IMAGE: &str = "us-east1-docker.pkg.example/my-project/my-repo/hello-world";
    const HEX: &str = "f6554b75e3a6ecb5f38c5e21a2a9b67757a360b2dad1bb70c2f3db5ef63dad60";

    fn envelope(data: &str) -> String {
        format!(
            r#"{{"message":{{"attributes":{{}},"data":"{}","messageId":"2070443601311540","message_id":"2070443601311540",
            "publishTime":"2021-02-26T19:13:55.749Z"}},"subscription":"projects/x/subscriptions/y"}}"#,
            BASE64_STANDARD.encode(data)
        )
    }

    #[test]
    fn the_documented_events() {
        for (data, image) in [
            (
                format!(r#"{{"action":"INSERT","digest":"{IMAGE}@sha256:{HEX}","tag":"{IMAGE}:1.1"}}"#),
                format!("{IMAGE}:1.1@sha256:{HEX}"),
            ),
            (format!(r#"{{"action":"INSERT","digest":"{IMAGE}@sha256:{HEX}"}}"#), format!("{IMAGE}@sha256:{HEX}")),
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
        assert!(matches!(parse(&Headers::default(), br#"{"message":{}}"#), Err(EventError::Json(_))));
    }
}
