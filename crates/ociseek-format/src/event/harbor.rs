//! Harbor (Harbor docs, "Configure Webhook Notifications"): its default format and CloudEvents. The
//! registry is part of each resource's URL.

use serde::Deserialize;

use super::{IgnoreReason, Item, PushFields, cut, split_name};

#[derive(Deserialize)]
struct Event {
    /// The id of a CloudEvent.
    id: Option<String>,
    r#type: String,
    event_data: Option<Data>,
    data: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    resources: Vec<Resource>,
    repository: Repository,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Repository {
    repo_full_name: String,
}

#[derive(Deserialize)]
struct Resource {
    digest: Option<String>,
    /// The digest, if the artifact has no tag.
    tag: Option<String>,
    resource_url: Option<String>,
}

pub(super) fn parse(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: Event = serde_json::from_slice(body)?;
    if !matches!(event.r#type.as_str(), "PUSH_ARTIFACT" | "harbor.artifact.pushed") {
        return Ok(vec![Err(IgnoreReason::NotAPush(cut(&event.r#type)))]);
    }
    let Data { resources, repository } = event.event_data.or(event.data).unwrap_or_default();
    // With one id for several images, the second would look like a repeated delivery of the first.
    let id = event.id.as_deref().filter(|_| resources.len() == 1);
    Ok(resources.iter().map(|resource| push(id, resource, &repository.repo_full_name)).collect())
}

fn push(id: Option<&str>, resource: &Resource, repository: &str) -> Item {
    let registry = resource.resource_url.as_deref().and_then(|url| split_name(url, None).registry);
    let tag = resource.tag.as_deref().filter(|tag| !tag.contains(':'));
    PushFields { id, registry, repository, tag, digest: resource.digest.as_deref() }.push()
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, PushEvent, Shape, parse};
    use super::*;

    const HEX: &str = "f6554b75e3a6ecb5f38c5e21a2a9b67757a360b2dad1bb70c2f3db5ef63dad60";

    #[test]
    fn the_documented_default_format() {
        let body = format!(
            r#"{{"type":"PUSH_ARTIFACT","occur_at":1680501893,"operator":"harbor-jobservice","event_data":{{"resources":[
            {{"digest":"sha256:{HEX}","tag":"sha256:{HEX}","resource_url":"harbor.example:8443/library/debian@sha256:{HEX}"}},
            {{"digest":"sha256:{HEX}","tag":"latest","resource_url":"harbor.example:8443/library/debian:latest"}}],
            "repository":{{"date_created":1586922308,"name":"debian","namespace":"library","repo_full_name":"library/debian",
            "repo_type":"public"}}}}}}"#
        );
        let events = parse(&Headers::default(), body.as_bytes()).unwrap();
        assert_eq!((events.shape, events.ignored), (Shape::Harbor, vec![]));
        let image = |tag: Option<&str>| PushEvent {
            id: None,
            registry: Some("harbor.example:8443".into()),
            repository: "library/debian".into(),
            tag: tag.map(str::to_owned),
            digest: Some(format!("sha256:{HEX}").parse().unwrap()),
        };
        assert_eq!(events.pushes, [image(None), image(Some("latest"))]);
    }

    #[test]
    fn the_documented_cloud_event() {
        let body = |kind: &str| {
            format!(
                r#"{{"specversion":"1.0","id":"4b2f89a6-548d-4c12-9993-a1f5790b97d2","requestid":"d1cb8e0a","source":
                "/projects/1/webhook/policies/3","type":"{kind}","datacontenttype":"application/json","time":
                "2023-04-03T06:31:24Z","data":{{"resources":[{{"digest":"sha256:{HEX}","tag":"v1","resource_url":
                "harbor.example/library/debian:v1"}}],"repository":{{"repo_full_name":"library/debian"}}}},"operator":"x"}}"#
            )
        };
        let events = parse(&Headers::default(), body("harbor.artifact.pushed").as_bytes()).unwrap();
        let [push] = &events.pushes[..] else { panic!() };
        assert_eq!(push.id.as_deref(), Some("4b2f89a6-548d-4c12-9993-a1f5790b97d2"));
        assert_eq!(push.image(None).unwrap().to_string(), format!("harbor.example/library/debian:v1@sha256:{HEX}"));
        let events = parse(&Headers::default(), body("harbor.scan.completed").as_bytes()).unwrap();
        assert_eq!(events.ignored, [IgnoreReason::NotAPush("harbor.scan.completed".into())]);
    }
}
