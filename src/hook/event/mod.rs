//! The push notifications of registries: one file for each shape, bytes in, images out.
//!
//! | shape | who sends it | says registry | says digest |
//! |---|---|---|---|
//! | [`Shape::Distribution`] | distribution (events v1 and v2) | yes | yes |
//! | [`Shape::Zot`] | zot (CloudEvents, binary and structured) | no | yes |
//! | [`Shape::Harbor`] | Harbor (its own format and CloudEvents) | yes | yes |
//! | [`Shape::Quay`] | Quay | yes | no |
//! | [`Shape::Github`] | GitHub packages | yes | yes |
//! | [`Shape::Acr`] | Azure (webhook and Event Grid) | yes | yes |
//! | [`Shape::ArtifactRegistry`] | Google (Pub/Sub push) | yes | yes |
//! | [`Shape::Ecr`] | Amazon (EventBridge) | yes | yes |
//! | [`Shape::DockerHub`] | Docker Hub | yes | no |
//! | [`Shape::Jfrog`] | JFrog Artifactory | no | yes |
//! | [`Shape::Direct`] | people: `{"image": "..."}` | yes | either |
//!
//! Events come from strangers. A body has at most [`MAX_BODY`] bytes and [`MAX_DEPTH`] levels and names at most [`MAX_EVENTS`]
//! images; names, tags and digests pass the same grammars as those of the command line. Fields that are not known are passed
//! over: registries add some with every version. An event that cannot be used does not spoil the others in its body, since
//! registries send a body that was refused again and again.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::digest::Digest;
use crate::image::{Reference, is_registry, is_repository, is_tag, soci};

mod acr;
mod artifact_registry;
mod direct;
mod distribution;
mod docker_hub;
mod ecr;
mod github;
mod harbor;
mod jfrog;
mod quay;
mod zot;

pub(crate) use ecr::domain as ecr_domain;

/// The largest body that is read, in bytes.
pub const MAX_BODY: usize = 1 << 20;
/// How deep a body may nest.
pub const MAX_DEPTH: usize = 64;
/// How many images a body may name.
pub const MAX_EVENTS: usize = 1000;
/// The longest id of an event that is remembered, in bytes.
const MAX_ID: usize = 256;

/// Whose event it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    Distribution,
    Zot,
    Harbor,
    Quay,
    Github,
    Acr,
    ArtifactRegistry,
    Ecr,
    DockerHub,
    Jfrog,
    Direct,
}

impl Shape {
    pub const ALL: [Shape; 11] = [
        Shape::Distribution,
        Shape::Zot,
        Shape::Harbor,
        Shape::Quay,
        Shape::Github,
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

/// The headers of a notification that mean something to a parser.
#[derive(Debug, Clone, Copy, Default)]
pub struct Headers<'a> {
    /// `X-GitHub-Event`.
    pub github_event: Option<&'a str>,
    /// `X-GitHub-Delivery`: the id of the event.
    pub github_delivery: Option<&'a str>,
    /// `Ce-Type` and `Ce-Id` of a CloudEvent in binary mode (CloudEvents HTTP binding, 3.1).
    pub ce_type: Option<&'a str>,
    pub ce_id: Option<&'a str>,
}

impl<'a> Headers<'a> {
    /// Those that `get` finds by their name in lower case.
    pub fn new(get: impl Fn(&str) -> Option<&'a str>) -> Headers<'a> {
        Headers {
            github_event: get("x-github-event"),
            github_delivery: get("x-github-delivery"),
            ce_type: get("ce-type"),
            ce_id: get("ce-id"),
        }
    }
}

/// An image that was pushed, as the event tells it. Every part has passed its grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushEvent {
    /// The event's own name; the same event sent again has the same.
    pub id: Option<String>,
    /// `HOST` or `HOST:PORT` in lower case. None: the event does not say where it comes from.
    pub registry: Option<String>,
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<Digest>,
}

impl PushEvent {
    /// The image; `registry` is taken where it is given, whatever the event says. None: nobody says which registry.
    pub fn image(&self, registry: Option<&str>) -> Option<Reference> {
        let registry = registry.or(self.registry.as_deref())?.to_owned();
        Some(Reference { registry, repository: self.repository.clone(), tag: self.tag.clone(), digest: self.digest })
    }
}

/// Why an event asks for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    #[error("{0:?} is no push")]
    NotAPush(String),
    #[error("the push did not succeed ({0:?})")]
    Failed(String),
    #[error("{0:?} was pushed, which is no manifest of an image")]
    NotAnImage(String),
    #[error("{0:?} is no {1}")]
    Malformed(String, &'static str),
    #[error("it names neither a tag nor a digest")]
    Nameless,
    #[error("the body names more than {MAX_EVENTS} images")]
    TooMany,
}

/// What a body says.
#[derive(Debug, PartialEq, Eq)]
pub struct Events {
    pub shape: Shape,
    pub pushes: Vec<PushEvent>,
    /// What else stands in it.
    pub ignored: Vec<Ignored>,
    /// Event Grid asks a new subscriber to say this word back (Azure, "Endpoint validation with Event Grid event schema").
    pub handshake: Option<String>,
}

/// Why a body is no notification.
#[derive(Debug, thiserror::Error)]
pub enum EventError {
    #[error("the body has more than {MAX_BODY} bytes")]
    TooLarge,
    #[error("the body nests more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("the body is no JSON of a known event")]
    Json(#[source] serde_json::Error),
    #[error("the message's data is not base64")]
    Base64,
    #[error("the body is no event of any registry that is known here")]
    Unknown,
}

type Item = Result<PushEvent, Ignored>;

/// Reads a notification.
///
/// # Errors
/// When the body is none. What it says of single images, wrong or not, is no error.
pub fn parse(headers: &Headers, body: &[u8]) -> Result<Events, EventError> {
    let shape = recognise(headers, body)?;
    let mut handshake = None;
    let items = match shape {
        Shape::Distribution => distribution::parse(body),
        Shape::Zot => zot::parse(headers, body),
        Shape::Harbor => harbor::parse(body),
        Shape::Quay => quay::parse(body),
        Shape::Github => github::parse(headers, body),
        Shape::Acr => acr::parse(headers, body, &mut handshake),
        Shape::ArtifactRegistry => artifact_registry::parse(body)?,
        Shape::Ecr => ecr::parse(body),
        Shape::DockerHub => docker_hub::parse(body),
        Shape::Jfrog => jfrog::parse(body),
        Shape::Direct => direct::parse(body),
    };
    let mut events = Events { shape, pushes: Vec::new(), ignored: Vec::new(), handshake };
    for item in items.map_err(EventError::Json)? {
        match item {
            Ok(push) if events.pushes.len() < MAX_EVENTS => events.pushes.push(push),
            Ok(_) => {
                events.ignored.push(Ignored::TooMany);
                break;
            }
            Err(ignored) => events.ignored.push(ignored),
        }
    }
    Ok(events)
}

/// What the keys at the top of a body tell: which are there, and what the telling ones say.
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

fn recognise(headers: &Headers, body: &[u8]) -> Result<Shape, EventError> {
    check(body)?;
    if headers.github_event.is_some() {
        return Ok(Shape::Github);
    }
    if let Some(kind) = headers.ce_type {
        return of_cloud_event(kind).ok_or(EventError::Unknown);
    }
    // Event Grid's own schema is a list of events, and nobody else's is.
    if body.trim_ascii_start().starts_with(b"[") {
        return Ok(Shape::Acr);
    }
    let probe: Probe = serde_json::from_slice(body).map_err(EventError::Json)?;
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
        _ => shapes.iter().find(|(there, _)| *there).map(|(_, shape)| *shape).ok_or(EventError::Unknown),
    }
}

fn of_cloud_event(kind: &str) -> Option<Shape> {
    let kinds =
        [("zotregistry.", Shape::Zot), ("harbor.", Shape::Harbor), ("Microsoft.ContainerRegistry.", Shape::Acr)];
    kinds.iter().find(|(prefix, _)| kind.starts_with(prefix)).map(|(_, shape)| *shape)
}

/// The limits, before anything is parsed.
fn check(body: &[u8]) -> Result<(), EventError> {
    if body.len() > MAX_BODY {
        return Err(EventError::TooLarge);
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
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

/// What an event says of an image, not yet looked at.
#[derive(Debug, Default, Clone, Copy)]
struct Told<'a> {
    id: Option<&'a str>,
    registry: Option<&'a str>,
    repository: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

impl Told<'_> {
    /// Holds what was told to the grammars. Empty tags and digests are none.
    fn push(self) -> Item {
        let malformed = |value: &str, what| Ignored::Malformed(cut(value), what);
        if let Some(registry) = self.registry.filter(|registry| !is_registry(registry)) {
            return Err(malformed(registry, "registry host"));
        }
        if !is_repository(self.repository) {
            return Err(malformed(self.repository, "repository name"));
        }
        let tag = self.tag.filter(|tag| !tag.is_empty());
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(malformed(tag, "tag"));
        }
        let digest = match self.digest.filter(|digest| !digest.is_empty()) {
            Some(digest) => Some(digest.parse().map_err(|_| malformed(digest, "digest"))?),
            None => None,
        };
        if tag.is_none() && digest.is_none() {
            return Err(Ignored::Nameless);
        }
        Ok(PushEvent {
            // What is too long to be remembered is handled as if it had no name.
            id: self.id.filter(|id| !id.is_empty() && id.len() <= MAX_ID).map(str::to_owned),
            registry: self.registry.map(str::to_ascii_lowercase),
            repository: self.repository.to_owned(),
            tag: tag.map(str::to_owned),
            digest,
        })
    }
}

/// Splits `HOST/REPOSITORY[:TAG][@DIGEST]`. The first part is a host, whatever it looks like.
fn split_name<'a>(name: &'a str, id: Option<&'a str>) -> Told<'a> {
    let (named, digest) = name.split_once('@').map_or((name, None), |(named, digest)| (named, Some(digest)));
    let (registry, rest) = named.split_once('/').map_or((None, named), |(host, rest)| (Some(host), rest));
    let (repository, tag) = rest.split_once(':').map_or((rest, None), |(repository, tag)| (repository, Some(tag)));
    Told { id, registry, repository, tag, digest }
}

/// A media type that an image's manifest or index has; events of blobs have others, and those of our own indexes a telling
/// artifact type. An event that says nothing of it may be anyone's.
fn image_media_type(media_type: Option<&str>, artifact_type: Option<&str>) -> Result<(), Ignored> {
    if let Some(ours) = artifact_type.filter(|artifact_type| [soci::INDEX_V1, soci::INDEX_V2].contains(artifact_type)) {
        return Err(Ignored::NotAnImage(ours.to_owned()));
    }
    let manifest = |media_type: &str| media_type.contains(".manifest.") || media_type.contains(".index.");
    match media_type.filter(|media_type| !media_type.is_empty() && !manifest(media_type)) {
        Some(other) => Err(Ignored::NotAnImage(cut(other))),
        None => Ok(()),
    }
}

/// What a stranger wrote, short enough for a log line.
fn cut(text: &str) -> String {
    text.chars().take(150).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_come_before_parsing() {
        let large = vec![b' '; MAX_BODY + 1];
        assert!(matches!(parse(&Headers::default(), &large), Err(EventError::TooLarge)));
        let nested = |depth: usize| format!("{{\"image\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(matches!(parse(&Headers::default(), nested(65).as_bytes()), Err(EventError::TooDeep)));
        assert!(matches!(parse(&Headers::default(), nested(64).as_bytes()), Err(EventError::Json(_))));
        let endless = "[".repeat(100_000);
        assert!(matches!(parse(&Headers::default(), endless.as_bytes()), Err(EventError::TooDeep)));
        // Brackets in strings are no depth, and an escaped quote does not end one.
        let text = format!(r#"{{"image":"a.b/c:d","x":"\"{}"}}"#, "[".repeat(1000));
        assert_eq!(parse(&Headers::default(), text.as_bytes()).unwrap().pushes.len(), 1);
    }

    #[test]
    fn what_is_no_event() {
        for body in
            ["", "x", "{", "{}", "null", "\"x\"", "{\"image\":1}", "{\"events\":{}}", "{\"x\":[1]}", "\u{feff}{}"]
        {
            assert!(parse(&Headers::default(), body.as_bytes()).is_err(), "{body}");
        }
        assert!(parse(&Headers::default(), b"{\"image\":\"\xff\"}").is_err());
        let strange = Headers { ce_type: Some("com.example.x"), ..Headers::default() };
        assert!(matches!(parse(&strange, b"{}"), Err(EventError::Unknown)));
    }

    #[test]
    fn names_pass_the_grammar_or_are_ignored() {
        let told = Told { registry: Some("R.example:5000"), repository: "a/b", tag: Some("t"), ..Told::default() };
        assert_eq!(told.push().unwrap().registry.as_deref(), Some("r.example:5000"));
        let digest = format!("sha256:{}", "0".repeat(64));
        let bad = [
            Told { repository: "../../x", ..told },
            Told { repository: "%2e%2e", ..told },
            Told { repository: "A/b", ..told },
            Told { repository: "", ..told },
            Told { repository: "a?b", ..told },
            Told { repository: "a#b", ..told },
            Told { repository: "_catalog", ..told },
            Told { tag: Some("$(x)"), ..told },
            Told { tag: Some(&digest), ..told },
            Told { digest: Some("latest"), ..told },
            Told { digest: Some("sha256:../../x"), ..told },
            Told { registry: Some("u@r.example"), ..told },
            Told { registry: Some("r.example/x"), ..told },
            Told { registry: Some("r。example"), ..told },
            Told { registry: Some(""), ..told },
        ];
        for told in bad {
            assert!(matches!(told.push(), Err(Ignored::Malformed(..))), "{told:?}");
        }
        let long = "a".repeat(300);
        assert!(Told { repository: &long, ..told }.push().is_err());
        assert_eq!(Told { tag: Some(""), digest: Some(""), ..told }.push(), Err(Ignored::Nameless));
        assert_eq!(Told { id: Some(&long), ..told }.push().unwrap().id, None);
    }

    #[test]
    fn a_body_names_a_bounded_number_of_images() {
        let event =
            r#"{"id":"1","action":"push","target":{"repository":"a","tag":"t"},"request":{"host":"r.example"}}"#;
        let body = format!("{{\"events\":[{}]}}", vec![event; MAX_EVENTS + 5].join(","));
        let events = parse(&Headers::default(), body.as_bytes()).unwrap();
        assert_eq!((events.pushes.len(), events.ignored), (MAX_EVENTS, vec![Ignored::TooMany]));
    }

    #[test]
    fn the_registry_that_the_operator_names_is_stronger() {
        let push = split_name("localhost/a/b:t", None).push().unwrap();
        assert_eq!(push.image(None).unwrap().registry, "localhost");
        assert_eq!(push.image(Some("registry:5000")).unwrap().registry, "registry:5000");
        assert_eq!(PushEvent { registry: None, ..push }.image(None), None);
    }
}
