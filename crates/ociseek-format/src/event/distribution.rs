//! distribution (docker-registry), events v1 and v2 (distribution docs, "Work with notifications"),
//! which differ only in fields that are not read here. The same endpoint receives events of blobs,
//! pulls, mounts and deletions.

use serde::Deserialize;

use super::{IgnoreReason, Item, PushFields, cut, image_media_type};

#[derive(Deserialize)]
struct Envelope {
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    id: Option<String>,
    action: String,
    #[serde(default)]
    target: PushTarget,
    #[serde(default)]
    request: PushRequest,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PushTarget {
    media_type: Option<String>,
    digest: Option<String>,
    #[serde(default)]
    repository: String,
    tag: Option<String>,
}

#[derive(Default, Deserialize)]
pub(super) struct PushRequest {
    /// The registry's name as the pushing client addressed it.
    host: Option<String>,
}

pub(super) fn parse(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let Envelope { events } = serde_json::from_slice(body)?;
    Ok(events.iter().map(|event| push(event.id.as_deref(), &event.action, &event.target, &event.request)).collect())
}

pub(super) fn push(id: Option<&str>, action: &str, target: &PushTarget, request: &PushRequest) -> Item {
    if action != "push" {
        return Err(IgnoreReason::NotAPush(cut(action)));
    }
    image_media_type(target.media_type.as_deref(), None)?;
    let registry = request.host.as_deref().filter(|host| !host.is_empty());
    PushFields {
        id,
        registry,
        repository: &target.repository,
        tag: target.tag.as_deref(),
        digest: target.digest.as_deref(),
    }
    .push()
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, PushEvent, Shape, parse};
    use super::*;

    /// The body of a captured request. The files have its headers too.
    fn body(capture: &str) -> Vec<u8> {
        let capture: serde_json::Value = serde_json::from_str(capture).unwrap();
        capture["body"].to_string().into_bytes()
    }

    #[test]
    fn captured_pushes_of_both_versions() {
        for (capture, port) in [
            (include_str!("payloads/distribution-2.8.2-push.json"), 5530),
            (include_str!("payloads/distribution-3.1.2-push.json"), 5531),
        ] {
            let events = parse(&Headers::default(), &body(capture)).unwrap();
            assert_eq!((events.shape, events.ignored), (Shape::Distribution, vec![]));
            let [PushEvent { id, registry, repository, tag, digest }] = &events.pushes[..] else { panic!() };
            assert!(id.is_some());
            assert_eq!(registry.as_deref(), Some(format!("127.0.0.1:{port}").as_str()));
            assert_eq!((repository.as_str(), tag.as_deref()), ("test/app", Some("v1")));
            assert!(digest.unwrap().to_string().starts_with("sha256:f6554b75"));
        }
    }

    #[test]
    fn a_captured_deletion_is_ignored() {
        let body = body(include_str!("payloads/distribution-3.1.2-delete.json"));
        let events = parse(&Headers::default(), &body).unwrap();
        assert_eq!((events.pushes, events.ignored), (vec![], vec![IgnoreReason::NotAPush("delete".into())]));
    }

    #[test]
    fn an_envelope_may_hold_several_events_and_an_invalid_one() {
        let event = |action: &str, repository: &str, media_type: &str| {
            format!(
                r#"{{"id":"{repository}","action":"{action}","target":{{"repository":"{repository}","tag":"t","mediaType":
                "{media_type}","more":[{{}}]}},"request":{{"host":"r.example"}}}}"#
            )
        };
        let manifest = "application/vnd.docker.distribution.manifest.v2+json";
        let events = [
            event("push", "a", manifest),
            event("push", "b", "application/octet-stream"),
            event("pull", "c", manifest),
            event("mount", "d", "application/octet-stream"),
            event("push", "../../e", manifest),
            event("push", "f", ""),
        ];
        let events = parse(&Headers::default(), format!("{{\"events\":[{}]}}", events.join(",")).as_bytes()).unwrap();
        let pushed: Vec<_> = events.pushes.iter().map(|push| push.repository.as_str()).collect();
        assert_eq!(pushed, ["a", "f"]);
        assert_eq!(
            events.ignored,
            [
                IgnoreReason::NotAnImage("application/octet-stream".into()),
                IgnoreReason::NotAPush("pull".into()),
                IgnoreReason::NotAPush("mount".into()),
                IgnoreReason::Malformed("../../e".into(), "repository name"),
            ]
        );
    }
}
