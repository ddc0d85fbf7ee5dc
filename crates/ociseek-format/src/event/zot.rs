//! zot's event recorder (zot docs, "Events"): CloudEvents. Its HTTP sink uses binary mode
//! (attributes in headers, the body is the data), its NATS sink structured mode (attributes next to
//! the data). They do not name their registry.

use serde::Deserialize;

use super::{Headers, IgnoreReason, Item, PushFields, cut, image_media_type};

#[derive(Deserialize)]
struct Structured {
    id: Option<String>,
    r#type: String,
    data: Data,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Data {
    name: String,
    /// A tag or the digest.
    reference: Option<String>,
    digest: Option<String>,
    media_type: Option<String>,
}

pub(super) fn parse(headers: &Headers, body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let Structured { id, r#type, data } = match headers.ce_type {
        Some(kind) => Structured {
            id: headers.ce_id.map(str::to_owned),
            r#type: kind.to_owned(),
            data: serde_json::from_slice(body)?,
        },
        None => serde_json::from_slice(body)?,
    };
    Ok(vec![push(id.as_deref(), &r#type, &data)])
}

fn push(id: Option<&str>, kind: &str, data: &Data) -> Item {
    if kind != "zotregistry.image.updated" {
        return Err(IgnoreReason::NotAPush(cut(kind)));
    }
    image_media_type(data.media_type.as_deref(), None)?;
    let tag = data.reference.as_deref().filter(|reference| !reference.contains(':'));
    PushFields { id, registry: None, repository: &data.name, tag, digest: data.digest.as_deref() }.push()
}

#[cfg(test)]
mod tests {
    use super::super::{PushEvent, Shape, parse};
    use super::*;

    #[test]
    fn captured_pushes_in_both_modes() {
        let sink: serde_json::Value = serde_json::from_str(include_str!("payloads/zot-2.1.20-http-sink.json")).unwrap();
        let header = |name: &str| {
            let headers = sink["headers"].as_object().unwrap();
            headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).and_then(|(_, value)| value.as_str())
        };
        let binary = parse(&Headers::new(header), sink["body"].to_string().as_bytes()).unwrap();
        let payload = include_bytes!("payloads/zot-2.1.20-nats-payload.json");
        let structured = parse(&Headers::default(), payload).unwrap();
        assert_eq!(binary, structured);
        assert_eq!(binary.shape, Shape::Zot);
        let [PushEvent { id, registry: None, repository, tag, digest }] = &binary.pushes[..] else { panic!() };
        assert_eq!(id.as_deref(), Some("95af9bcd-5805-4850-9697-e10c5304eb01"));
        assert_eq!((repository.as_str(), tag.as_deref()), ("test/app", Some("v1")));
        assert!(digest.unwrap().to_string().starts_with("sha256:f6554b75"));
    }

    #[test]
    fn other_events_are_ignored() {
        for kind in ["zotregistry.image.deleted", "zotregistry.repository.created", "zotregistry.image.lint_failed"] {
            let headers = Headers { ce_type: Some(kind), ..Headers::default() };
            assert_eq!(parse(&headers, b"{\"name\":\"a\"}").unwrap().ignored, [IgnoreReason::NotAPush(kind.into())]);
        }
    }
}
