//! The events of registries that anyone can run: distribution, zot, Harbor, Quay, JFrog.

use serde::Deserialize;
use serde_json::Value;

use super::{Headers, IgnoreReason, Item, PushFields, cut, image_media_type, split_name};

#[derive(Deserialize)]
struct DistributionEvents {
    events: Vec<DistributionEvent>,
}

#[derive(Deserialize)]
struct DistributionEvent {
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

/// distribution (docker-registry), events v1 and v2 (distribution docs, "Work with notifications"),
/// which differ only in fields that are not read here. The same endpoint receives events of blobs,
/// pulls, mounts and deletions.
pub(super) fn distribution(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let DistributionEvents { events } = serde_json::from_slice(body)?;
    Ok(events
        .iter()
        .map(|event| {
            distribution_push(event.id.as_deref(), &event.action, &event.target, &event.request)
        })
        .collect())
}

pub(super) fn distribution_push(
    id: Option<&str>,
    action: &str,
    target: &PushTarget,
    request: &PushRequest,
) -> Item {
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

#[derive(Deserialize)]
struct ZotEvent {
    id: Option<String>,
    r#type: String,
    data: ZotData,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ZotData {
    name: String,
    /// A tag or the digest.
    reference: Option<String>,
    digest: Option<String>,
    media_type: Option<String>,
}

/// zot's event recorder (zot docs, "Events"): CloudEvents. Its HTTP sink uses binary mode
/// (attributes in headers, the body is the data), its NATS sink structured mode (attributes next to
/// the data). They do not name their registry.
pub(super) fn zot(headers: &Headers, body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let ZotEvent { id, r#type, data } = match headers.ce_type {
        Some(kind) => ZotEvent {
            id: headers.ce_id.map(str::to_owned),
            r#type: kind.to_owned(),
            data: serde_json::from_slice(body)?,
        },
        None => serde_json::from_slice(body)?,
    };
    Ok(vec![zot_push(id.as_deref(), &r#type, &data)])
}

fn zot_push(id: Option<&str>, kind: &str, data: &ZotData) -> Item {
    if kind != "zotregistry.image.updated" {
        return Err(IgnoreReason::NotAPush(cut(kind)));
    }
    image_media_type(data.media_type.as_deref(), None)?;
    let tag = data.reference.as_deref().filter(|reference| !reference.contains(':'));
    PushFields { id, registry: None, repository: &data.name, tag, digest: data.digest.as_deref() }
        .push()
}

#[derive(Deserialize)]
struct HarborEvent {
    /// The id of a CloudEvent.
    id: Option<String>,
    r#type: String,
    event_data: Option<HarborData>,
    data: Option<HarborData>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HarborData {
    resources: Vec<HarborResource>,
    repository: HarborRepository,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HarborRepository {
    repo_full_name: String,
}

#[derive(Deserialize)]
struct HarborResource {
    digest: Option<String>,
    /// The digest, if the artifact has no tag.
    tag: Option<String>,
    resource_url: Option<String>,
}

/// Harbor (Harbor docs, "Configure Webhook Notifications"): its default format and CloudEvents. The
/// registry is part of each resource's URL.
pub(super) fn harbor(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: HarborEvent = serde_json::from_slice(body)?;
    if !matches!(event.r#type.as_str(), "PUSH_ARTIFACT" | "harbor.artifact.pushed") {
        return Ok(vec![Err(IgnoreReason::NotAPush(cut(&event.r#type)))]);
    }
    let HarborData { resources, repository } = event.event_data.or(event.data).unwrap_or_default();
    // With one id for several images, the second would look like a repeated delivery of the first.
    let id = event.id.as_deref().filter(|_| resources.len() == 1);
    Ok(resources
        .iter()
        .map(|resource| harbor_push(id, resource, &repository.repo_full_name))
        .collect())
}

fn harbor_push(id: Option<&str>, resource: &HarborResource, repository: &str) -> Item {
    let url = resource.resource_url.as_deref().map(without_scheme);
    let registry = url.and_then(|url| split_name(url, None).registry);
    let tag = resource.tag.as_deref().filter(|tag| !tag.contains(':'));
    PushFields { id, registry, repository, tag, digest: resource.digest.as_deref() }.push()
}

/// Without `https://`, which some names have (argoproj/argo-cd#27884).
fn without_scheme(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, rest)| rest)
}

#[derive(Deserialize)]
struct QuayEvent {
    /// `HOST/NAMESPACE/NAME`.
    docker_url: String,
    repository: String,
    /// A list of tags, or in old versions a map from tags to image ids.
    #[serde(default)]
    updated_tags: Value,
}

/// Quay's `repo_push` (Quay docs, "Repository notifications"). Its events have neither a digest nor
/// an id, and list the tags of an image.
pub(super) fn quay(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: QuayEvent = serde_json::from_slice(body)?;
    let registry = event.docker_url.split_once('/').map(|(host, _)| host);
    let push = |tag: &str| {
        PushFields {
            registry,
            repository: &event.repository,
            tag: Some(tag),
            ..PushFields::default()
        }
        .push()
    };
    Ok(match &event.updated_tags {
        Value::Array(tags) => tags.iter().filter_map(Value::as_str).map(push).collect(),
        Value::Object(tags) => tags.keys().map(|tag| push(tag)).collect(),
        _ => Vec::new(),
    })
}

#[derive(Deserialize)]
struct JfrogEvent {
    domain: String,
    #[serde(default)]
    event_type: String,
    #[serde(default)]
    data: JfrogData,
    /// The platform's URL. Docker may know the registry by another name.
    jpd_origin: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JfrogData {
    repo_key: String,
    image_name: String,
    /// `IMAGE/TAG/manifest.json`, also where `image_name` is the last part of the image's name.
    path: String,
    tag: Option<String>,
    /// Hex digits without the algorithm.
    sha256: Option<String>,
}

/// JFrog Artifactory (JFrog docs, "Webhooks: Docker event types"). The image is named as in the
/// repository path method, `HOST/REPO_KEY/IMAGE`, with the host of the platform's URL
/// (akuity/kargo#4498) unless the service has another one.
pub(super) fn jfrog(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let JfrogEvent { domain, event_type, data, jpd_origin } = serde_json::from_slice(body)?;
    if domain != "docker" || event_type != "pushed" {
        return Ok(vec![Err(IgnoreReason::NotAPush(cut(&format!("{domain} {event_type}"))))]);
    }
    let image = data.path.rsplitn(3, '/').nth(2).filter(|image| image.ends_with(&data.image_name));
    let repository = format!("{}/{}", data.repo_key, image.unwrap_or(&data.image_name));
    let registry = jpd_origin.as_deref().map(without_scheme);
    let registry = registry.and_then(|url| url.split('/').next()).filter(|host| !host.is_empty());
    let digest = data.sha256.filter(|hex| !hex.is_empty()).map(|hex| format!("sha256:{hex}"));
    let fields = PushFields {
        registry,
        repository: &repository,
        tag: data.tag.as_deref(),
        digest: digest.as_deref(),
        ..PushFields::default()
    };
    Ok(vec![fields.push()])
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
            let [PushEvent { id, registry, repository, tag, digest }] = &events.pushes[..] else {
                panic!()
            };
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
        assert_eq!(
            (events.pushes, events.ignored),
            (vec![], vec![IgnoreReason::NotAPush("delete".into())])
        );
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
        let events =
            parse(&Headers::default(), format!("{{\"events\":[{}]}}", events.join(",")).as_bytes())
                .unwrap();
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

    #[test]
    fn captured_pushes_in_both_modes() {
        let sink: serde_json::Value =
            serde_json::from_str(include_str!("payloads/zot-2.1.20-http-sink.json")).unwrap();
        let header = |name: &str| {
            let headers = sink["headers"].as_object().unwrap();
            headers
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name))
                .and_then(|(_, value)| value.as_str())
        };
        let binary = parse(&Headers::new(header), sink["body"].to_string().as_bytes()).unwrap();
        let payload = include_bytes!("payloads/zot-2.1.20-nats-payload.json");
        let structured = parse(&Headers::default(), payload).unwrap();
        assert_eq!(binary, structured);
        assert_eq!(binary.shape, Shape::Zot);
        let [PushEvent { id, registry: None, repository, tag, digest }] = &binary.pushes[..] else {
            panic!()
        };
        assert_eq!(id.as_deref(), Some("95af9bcd-5805-4850-9697-e10c5304eb01"));
        assert_eq!((repository.as_str(), tag.as_deref()), ("test/app", Some("v1")));
        assert!(digest.unwrap().to_string().starts_with("sha256:f6554b75"));
    }

    #[test]
    fn other_events_of_zot_are_ignored() {
        for kind in [
            "zotregistry.image.deleted",
            "zotregistry.repository.created",
            "zotregistry.image.lint_failed",
        ] {
            let headers = Headers { ce_type: Some(kind), ..Headers::default() };
            assert_eq!(
                parse(&headers, b"{\"name\":\"a\"}").unwrap().ignored,
                [IgnoreReason::NotAPush(kind.into())]
            );
        }
    }

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
        assert_eq!(
            push.image(None).unwrap().to_string(),
            format!("harbor.example/library/debian:v1@sha256:{HEX}")
        );
        let events = parse(&Headers::default(), body("harbor.scan.completed").as_bytes()).unwrap();
        assert_eq!(events.ignored, [IgnoreReason::NotAPush("harbor.scan.completed".into())]);
    }

    #[test]
    fn the_documented_event_and_the_old_one() {
        for tags in [r#"["latest","v2"]"#, r#"{"latest":"0c2cd0","v2":"0c2cd0"}"#] {
            let body = format!(
                r#"{{"name":"repository","repository":"mynamespace/repository","namespace":"mynamespace","docker_url":
                "quay.example/mynamespace/repository","homepage":"https://quay.example/x","updated_tags":{tags}}}"#
            );
            let events = parse(&Headers::default(), body.as_bytes()).unwrap();
            assert_eq!((events.shape, &events.ignored[..]), (Shape::Quay, &[][..]));
            let images: Vec<_> =
                events.pushes.iter().map(|push| push.image(None).unwrap().to_string()).collect();
            assert_eq!(
                images,
                [
                    "quay.example/mynamespace/repository:latest",
                    "quay.example/mynamespace/repository:v2"
                ]
            );
        }
        let body = br#"{"repository":"a/b","docker_url":"quay.example/a/b","updated_tags":null}"#;
        assert!(parse(&Headers::default(), body).unwrap().pushes.is_empty());
    }

    #[test]
    fn the_documented_event_of_jfrog() {
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
        assert_eq!(
            image.to_string(),
            format!("jfrog.example/docker-local/hello/world:latest@sha256:{hex}")
        );
        assert_eq!(events.pushes[0].image(None), Err(IgnoreReason::NoRegistry));
        let events = parse(&Headers::default(), body("deleted").as_bytes()).unwrap();
        assert_eq!(events.ignored, [IgnoreReason::NotAPush("docker deleted".into())]);
    }
    #[test]
    fn images_of_jfrog_may_be_deep() {
        let hex = "f6554b75e3a6ecb5f38c5e21a2a9b67757a360b2dad1bb70c2f3db5ef63dad60";
        for (path, name, image) in [
            ("foo/bar/busybox/latest/manifest.json", "busybox", "foo/bar/busybox"),
            ("foo/bar/busybox/latest/list.manifest.json", "foo/bar/busybox", "foo/bar/busybox"),
            ("busybox/latest/manifest.json", "busybox", "busybox"),
            ("manifest.json", "busybox", "busybox"),
            ("other/latest/manifest.json", "busybox", "busybox"),
        ] {
            let body = serde_json::json!({"domain": "docker", "event_type": "pushed", "data": {
                "repo_key": "r", "path": path, "image_name": name, "tag": "latest", "sha256": hex,
            }, "jpd_origin": "https://trial.jfrog.example/"});
            let events = parse(&Headers::default(), body.to_string().as_bytes()).unwrap();
            let named = |host| events.pushes[0].image(host).unwrap().to_string();
            let expected = |host: &str| format!("{host}/r/{image}:latest@sha256:{hex}");
            assert_eq!(named(None), expected("trial.jfrog.example"), "{path}");
            assert_eq!(named(Some("docker.example")), expected("docker.example"), "{path}");
        }
    }

    #[test]
    fn harbors_urls_may_have_a_scheme() {
        for url in ["hub.example/a/b:v1", "https://hub.example/a/b:v1"] {
            let body = serde_json::json!({"type": "PUSH_ARTIFACT", "event_data": {
                "resources": [{"tag": "v1", "resource_url": url}],
                "repository": {"repo_full_name": "a/b"},
            }});
            let events = parse(&Headers::default(), body.to_string().as_bytes()).unwrap();
            let image = events.pushes[0].image(None).unwrap();
            assert_eq!(image.to_string(), "hub.example/a/b:v1");
        }
    }
}
