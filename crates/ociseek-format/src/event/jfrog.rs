//! JFrog Artifactory (JFrog docs, "Webhooks: Docker event types"). Its events do not name the
//! registry's host. The image is named as in the repository path method, `HOST/REPO_KEY/IMAGE`.

use serde::Deserialize;

use super::{IgnoreReason, Item, PushFields, cut};

#[derive(Deserialize)]
struct Event {
    domain: String,
    #[serde(default)]
    event_type: String,
    #[serde(default)]
    data: Data,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    repo_key: String,
    image_name: String,
    tag: Option<String>,
    /// Hex digits without the algorithm.
    sha256: Option<String>,
}

pub(super) fn parse(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let Event { domain, event_type, data } = serde_json::from_slice(body)?;
    if domain != "docker" || event_type != "pushed" {
        return Ok(vec![Err(IgnoreReason::NotAPush(cut(&format!("{domain} {event_type}"))))]);
    }
    let repository = format!("{}/{}", data.repo_key, data.image_name);
    let digest = data.sha256.filter(|hex| !hex.is_empty()).map(|hex| format!("sha256:{hex}"));
    let fields = PushFields {
        repository: &repository,
        tag: data.tag.as_deref(),
        digest: digest.as_deref(),
        ..PushFields::default()
    };
    Ok(vec![fields.push()])
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, Shape, parse};
    use super::*;

    #[test]
    fn the_documented_event() {
        let hex = "f6554b75e3a6ecb5f38c5e21a2a9b67757a360b2dad1bb70c2f3db5ef63dad60";
        let body = |event: &str| {
            format!(
                r#"{{"domain":"docker","event_type":"{event}","data":{{"repo_key":"docker-local","path":
                "hello/world/latest/manifest.json","name":"manifest.json","sha256":"{hex}","size":1134,"image_name":"hello/world",
                "tag":"latest","platforms":[]}},"subscription_key":"test","source":"jfrog/user"}}"#
            )
        };
        let events = parse(&Headers::default(), body("pushed").as_bytes()).unwrap();
        assert_eq!(events.shape, Shape::Jfrog);
        let image = events.pushes[0].image(Some("jfrog.example")).unwrap();
        assert_eq!(image.to_string(), format!("jfrog.example/docker-local/hello/world:latest@sha256:{hex}"));
        assert_eq!(events.pushes[0].image(None), Err(IgnoreReason::NoRegistry));
        let events = parse(&Headers::default(), body("deleted").as_bytes()).unwrap();
        assert_eq!(events.ignored, [IgnoreReason::NotAPush("docker deleted".into())]);
    }
}
