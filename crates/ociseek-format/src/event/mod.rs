//! Parses the push notifications of registries, with a function for each format: `software` has
//! those of registries that anyone can run, `clouds` those of Azure, Google and Amazon, and `hubs`
//! those of Docker Hub, GitHub, Gitea and Forgejo.
//!
//! | shape | who sends it | says registry | says digest |
//! |---|---|---|---|
//! | [`Shape::Distribution`] | distribution (events v1 and v2) | yes | yes |
//! | [`Shape::Zot`] | zot (CloudEvents, binary and structured) | no | yes |
//! | [`Shape::Harbor`] | Harbor (its own format and CloudEvents) | yes | yes |
//! | [`Shape::Quay`] | Quay | yes | no |
//! | [`Shape::Github`] | GitHub packages | yes | yes |
//! | [`Shape::Gitea`] | Gitea and Forgejo packages | yes | either |
//! | [`Shape::Acr`] | Azure (webhook and Event Grid) | yes | yes |
//! | [`Shape::ArtifactRegistry`] | Google (Pub/Sub push) | yes | yes |
//! | [`Shape::Ecr`] | Amazon (EventBridge) | yes | yes |
//! | [`Shape::DockerHub`] | Docker Hub | yes | no |
//! | [`Shape::Jfrog`] | JFrog Artifactory | no | yes |
//! | [`Shape::Direct`] | people: `{"image": "..."}` | yes | either |
//!
//! Events are untrusted. A body has at most [`MAX_BODY`] bytes and [`MAX_DEPTH`] levels and names
//! at most [`MAX_EVENTS`] images. Names, tags and digests must match the same grammars as on the
//! command line. Unknown fields are ignored, because registries add some with every version. An
//! event that cannot be used does not affect the others in its body, because registries send a
//! refused body again and again.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::digest::Digest;
use crate::image::json::parse_lenient;
use crate::image::{JsonFault, Reference};
use crate::printable::exact_size;
use fields::{PushFields, image_media_type, split_name};

mod clouds;
mod fields;
mod hubs;
mod software;

/// The size limit of a body in bytes.
pub const MAX_BODY: usize = 1 << 20;
/// The maximum nesting depth of a body.
pub const MAX_DEPTH: usize = 64;
/// The maximum number of images in a body.
pub const MAX_EVENTS: usize = 1000;
/// The maximum length of an event id that is remembered, in bytes.
const MAX_ID: usize = 256;

/// The source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// CNCF distribution, events of version 1 and 2.
    Distribution,
    /// zot, in CloudEvents.
    Zot,
    /// Harbor, in its own format or as a CloudEvent.
    Harbor,
    /// Quay.
    Quay,
    /// GitHub packages.
    Github,
    /// Gitea and Forgejo packages.
    Gitea,
    /// Azure Container Registry, by webhook or Event Grid.
    Acr,
    /// Google Artifact Registry, through Pub/Sub.
    ArtifactRegistry,
    /// Amazon ECR, through EventBridge.
    Ecr,
    /// Docker Hub.
    DockerHub,
    /// JFrog Artifactory.
    Jfrog,
    /// `{"image": "..."}`: ociseek's own format, for people and scripts.
    Direct,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 12] = [
        Shape::Distribution,
        Shape::Zot,
        Shape::Harbor,
        Shape::Quay,
        Shape::Github,
        Shape::Gitea,
        Shape::Acr,
        Shape::ArtifactRegistry,
        Shape::Ecr,
        Shape::DockerHub,
        Shape::Jfrog,
        Shape::Direct,
    ];

    /// A stable word for logs and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Shape::Distribution => "distribution",
            Shape::Zot => "zot",
            Shape::Harbor => "harbor",
            Shape::Quay => "quay",
            Shape::Github => "github",
            Shape::Gitea => "gitea",
            Shape::Acr => "acr",
            Shape::ArtifactRegistry => "artifact-registry",
            Shape::Ecr => "ecr",
            Shape::DockerHub => "docker-hub",
            Shape::Jfrog => "jfrog",
            Shape::Direct => "direct",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// The headers of a notification that parsers need.
#[derive(Debug, Clone, Copy, Default)]
pub struct Headers<'a> {
    /// `X-GitHub-Event`.
    pub github_event: Option<&'a str>,
    /// `X-GitHub-Delivery`: the id of the event.
    pub github_delivery: Option<&'a str>,
    /// `X-Gitea-Event` or `X-Forgejo-Event`. Both send `X-GitHub-Event`, too.
    pub gitea_event: Option<&'a str>,
    /// `Ce-Type` of a CloudEvent in binary mode (CloudEvents HTTP binding, 3.1).
    pub ce_type: Option<&'a str>,
    /// `Ce-Id`: the id of a CloudEvent.
    pub ce_id: Option<&'a str>,
}

impl<'a> Headers<'a> {
    /// Collects the headers with `get`, which takes names in lower case.
    pub fn new(get: impl Fn(&str) -> Option<&'a str>) -> Headers<'a> {
        Headers {
            github_event: get("x-github-event"),
            github_delivery: get("x-github-delivery"),
            gitea_event: get("x-gitea-event").or_else(|| get("x-forgejo-event")),
            ce_type: get("ce-type"),
            ce_id: get("ce-id"),
        }
    }
}

/// A pushed image, according to its event. Every part was checked against its grammar, but not
/// whether together they are the name of an image: [`PushEvent::image`] does that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushEvent {
    /// The id of the event. The same event has the same id when it is sent again.
    pub id: Option<String>,
    /// `HOST` or `HOST:PORT` in lower case. None if the event does not name its registry.
    pub registry: Option<String>,
    /// The repository, without its registry.
    pub repository: String,
    /// The pushed tag, if the event names one.
    pub tag: Option<String>,
    /// The digest of the manifest, if the event has one.
    pub digest: Option<Digest>,
}

impl PushEvent {
    /// The image. `registry` overrides the registry of the event.
    ///
    /// # Errors
    /// If neither registry is known, or if the image's name would be read as another image, or as
    /// none.
    pub fn image(&self, registry: Option<&str>) -> Result<Reference, IgnoreReason> {
        let registry =
            registry.or(self.registry.as_deref()).ok_or(IgnoreReason::NoRegistry)?.to_owned();
        let repository = self.repository.clone();
        let tag = self.tag.clone();
        let image = Reference { registry, repository, tag, digest: self.digest };
        if image.is_canonical() {
            Ok(image)
        } else {
            Err(IgnoreReason::Malformed(cut(&image.to_string()), "image name"))
        }
    }
}

/// Why an event needs no work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum IgnoreReason {
    #[error("{0:?} is not a push")]
    NotAPush(String),
    #[error("the push did not succeed ({0:?})")]
    Failed(String),
    #[error("{0:?} was pushed, which is not an image manifest")]
    NotAnImage(String),
    #[error("{0:?} is not a valid {1}")]
    Malformed(String, &'static str),
    #[error("it names neither a tag nor a digest")]
    Nameless,
    #[error("the event does not name its registry")]
    NoRegistry,
    #[error("the body names more than {MAX_EVENTS} images")]
    TooMany,
}

/// The content of a notification.
#[derive(Debug, PartialEq, Eq)]
pub struct Events {
    /// The source of the notification.
    pub shape: Shape,
    /// The pushed images, in the order of the body.
    pub pushes: Vec<PushEvent>,
    /// The other events of the body.
    pub ignored: Vec<IgnoreReason>,
    /// The code that Event Grid expects a new subscriber to return (Azure, "Endpoint validation
    /// with Event Grid event schema").
    pub handshake: Option<String>,
}

/// Why a body is not a notification.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum EventError {
    #[error("the body is larger than {}", exact_size(MAX_BODY as u64))]
    TooLarge,
    #[error("the body is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("the body is not the JSON of a known event")]
    Json(#[from] JsonFault),
    #[error("the message's data is not base64")]
    Base64,
    #[error("the body is not an event of any supported registry")]
    Unknown,
}

type Item = Result<PushEvent, IgnoreReason>;

/// Parses a notification.
///
/// # Errors
/// If the body is not a notification. Invalid data of single images is not an error.
pub fn parse(headers: &Headers, body: &[u8]) -> Result<Events, EventError> {
    let shape = recognise(headers, body)?;
    let mut handshake = None;
    let items = match shape {
        Shape::Distribution => software::distribution(body),
        Shape::Zot => software::zot(headers, body),
        Shape::Harbor => software::harbor(body),
        Shape::Quay => software::quay(body),
        Shape::Github => hubs::github(headers, body),
        Shape::Gitea => hubs::gitea(headers, body),
        Shape::Acr => clouds::acr(headers, body, &mut handshake),
        Shape::ArtifactRegistry => Ok(clouds::artifact_registry(body)?),
        Shape::Ecr => clouds::ecr(body),
        Shape::DockerHub => hubs::docker_hub(body),
        Shape::Jfrog => software::jfrog(body),
        Shape::Direct => direct(body),
    };
    let mut events = Events { shape, pushes: Vec::new(), ignored: Vec::new(), handshake };
    for item in items.map_err(JsonFault::from)? {
        match item {
            Ok(push) if events.pushes.len() < MAX_EVENTS => events.pushes.push(push),
            Ok(_) => {
                events.ignored.push(IgnoreReason::TooMany);
                break;
            }
            Err(ignored) => events.ignored.push(ignored),
        }
    }
    Ok(events)
}

/// Untrusted text, cut short enough for a log line.
fn cut(text: &str) -> String {
    text.chars().take(150).collect()
}

/// The top-level keys of a body, with the values of those that identify its source.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Probe {
    events: Option<IgnoredAny>,
    specversion: Option<IgnoredAny>,
    r#type: Option<String>,
    #[serde(rename = "detail-type")]
    detail_type: Option<IgnoredAny>,
    event_data: Option<IgnoredAny>,
    docker_url: Option<IgnoredAny>,
    registry_package: Option<IgnoredAny>,
    package: Option<IgnoredAny>,
    target: Option<IgnoredAny>,
    message: Option<IgnoredAny>,
    push_data: Option<IgnoredAny>,
    domain: Option<IgnoredAny>,
    image: Option<IgnoredAny>,
}

/// The source of an event. Checks the limits first.
fn recognise(headers: &Headers, body: &[u8]) -> Result<Shape, EventError> {
    check(body)?;
    if headers.gitea_event.is_some() {
        return Ok(Shape::Gitea);
    }
    if headers.github_event.is_some() {
        return Ok(Shape::Github);
    }
    if let Some(kind) = headers.ce_type {
        return of_cloud_event(kind).ok_or(EventError::Unknown);
    }
    // Only Event Grid's own schema is a list of events.
    if body.trim_ascii_start().starts_with(b"[") {
        return Ok(Shape::Acr);
    }
    let probe: Probe = parse_lenient(body)?;
    let shapes = [
        (probe.events.is_some(), Shape::Distribution),
        (probe.event_data.is_some(), Shape::Harbor),
        (probe.detail_type.is_some(), Shape::Ecr),
        (probe.docker_url.is_some(), Shape::Quay),
        (probe.registry_package.is_some() || probe.package.is_some(), Shape::Github),
        (probe.push_data.is_some(), Shape::DockerHub),
        (probe.target.is_some(), Shape::Acr),
        (probe.domain.is_some(), Shape::Jfrog),
        (probe.message.is_some(), Shape::ArtifactRegistry),
        (probe.image.is_some(), Shape::Direct),
    ];
    match (probe.specversion, probe.r#type) {
        (Some(_), Some(kind)) => of_cloud_event(&kind).ok_or(EventError::Unknown),
        _ => shapes
            .iter()
            .find(|(is_present, _)| *is_present)
            .map(|(_, shape)| *shape)
            .ok_or(EventError::Unknown),
    }
}

fn of_cloud_event(kind: &str) -> Option<Shape> {
    let kinds = [
        ("zotregistry.", Shape::Zot),
        ("harbor.", Shape::Harbor),
        ("Microsoft.ContainerRegistry.", Shape::Acr),
    ];
    kinds.iter().find(|(prefix, _)| kind.starts_with(prefix)).map(|(_, shape)| *shape)
}

/// Checks the limits before anything is parsed.
fn check(body: &[u8]) -> Result<(), EventError> {
    if body.len() > MAX_BODY {
        return Err(EventError::TooLarge);
    }
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in body {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(EventError::TooDeep);
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct DirectEvent {
    image: String,
}

/// `{"image": "REGISTRY/REPOSITORY[:TAG][@DIGEST]"}`, for people, scripts, and tests of an
/// installation. The name is parsed as on the command line, so one without a registry refers to
/// Docker Hub.
fn direct(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let DirectEvent { image } = serde_json::from_slice(body)?;
    Ok(vec![direct_push(&image)])
}

fn direct_push(image: &str) -> Item {
    let reference: Reference =
        image.parse().map_err(|_| IgnoreReason::Malformed(cut(image), "image name"))?;
    let Reference { registry, repository, tag, digest } = &reference;
    let digest = digest.map(|digest| digest.to_string());
    let registry = Some(registry.as_str());
    let tag = tag.as_deref();
    let digest = digest.as_deref();
    PushFields { id: None, registry, repository, tag, digest }.push()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_checked_before_parsing() {
        let large = vec![b' '; MAX_BODY + 1];
        assert!(matches!(parse(&Headers::default(), &large), Err(EventError::TooLarge)));
        let nested = |depth: usize| {
            format!("{{\"image\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1))
        };
        assert!(matches!(
            parse(&Headers::default(), nested(65).as_bytes()),
            Err(EventError::TooDeep)
        ));
        assert!(matches!(
            parse(&Headers::default(), nested(64).as_bytes()),
            Err(EventError::Json(_))
        ));
        let endless = "[".repeat(100_000);
        assert!(matches!(parse(&Headers::default(), endless.as_bytes()), Err(EventError::TooDeep)));
        // Brackets in strings do not count as nesting, and an escaped quote does not end a string.
        let text = format!(r#"{{"image":"a.b/c:d","x":"\"{}"}}"#, "[".repeat(1000));
        assert_eq!(parse(&Headers::default(), text.as_bytes()).unwrap().pushes.len(), 1);
    }

    #[test]
    fn invalid_notifications_are_refused() {
        for body in [
            "",
            "x",
            "{",
            "{}",
            "null",
            "\"x\"",
            "{\"image\":1}",
            "{\"events\":{}}",
            "{\"x\":[1]}",
            "\u{feff}{}",
        ] {
            assert!(parse(&Headers::default(), body.as_bytes()).is_err(), "{body}");
        }
        assert!(parse(&Headers::default(), b"{\"image\":\"\xff\"}").is_err());
        let strange = Headers { ce_type: Some("com.example.x"), ..Headers::default() };
        assert!(matches!(parse(&strange, b"{}"), Err(EventError::Unknown)));
    }

    #[test]
    fn the_number_of_images_in_a_body_is_limited() {
        let event = r#"{"id":"1","action":"push","target":{"repository":"a","tag":"t"},"request":{"host":"r.example"}}"#;
        let body = format!("{{\"events\":[{}]}}", vec![event; MAX_EVENTS + 5].join(","));
        let events = parse(&Headers::default(), body.as_bytes()).unwrap();
        assert_eq!(
            (events.pushes.len(), events.ignored),
            (MAX_EVENTS, vec![IgnoreReason::TooMany])
        );
    }

    #[test]
    fn a_configured_registry_overrides_that_of_the_event() {
        let push = split_name("localhost/a/b:t", None).push().unwrap();
        assert_eq!(push.image(None).unwrap().registry, "localhost");
        assert_eq!(push.image(Some("registry:5000")).unwrap().registry, "registry:5000");
        let long = PushEvent { repository: "a".repeat(250), ..push.clone() };
        assert!(matches!(
            long.image(Some("registry:5000")),
            Err(IgnoreReason::Malformed(_, "image name"))
        ));
        // `team/a/b` is an image of Docker Hub.
        assert!(matches!(push.image(Some("team")), Err(IgnoreReason::Malformed(_, "image name"))));
        assert_eq!(PushEvent { registry: None, ..push }.image(None), Err(IgnoreReason::NoRegistry));
    }

    #[test]
    fn an_image() {
        let events = parse(&Headers::default(), br#"{"image":"R.example:5000/a/b:t"}"#).unwrap();
        assert_eq!(events.shape, Shape::Direct);
        assert_eq!(events.pushes[0].image(None).unwrap().to_string(), "r.example:5000/a/b:t");
        let events = parse(&Headers::default(), br#"{"image":"http://x/y"}"#).unwrap();
        assert!(matches!(events.ignored[..], [IgnoreReason::Malformed(_, "image name")]));
        // In lower case, `r` is not a registry's host: `r/a/b` is an image of Docker Hub.
        let events = parse(&Headers::default(), br#"{"image":"R/a/b:t"}"#).unwrap();
        assert!(matches!(
            events.pushes[0].image(None),
            Err(IgnoreReason::Malformed(_, "image name"))
        ));
    }
}
