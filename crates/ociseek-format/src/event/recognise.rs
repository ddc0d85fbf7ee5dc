//! Recognises the source of an event by its top-level keys, after checking the limits.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{EventError, Headers, MAX_BODY, MAX_DEPTH, Shape};
use crate::image::json::parse_lenient;

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
pub(super) fn recognise(headers: &Headers, body: &[u8]) -> Result<Shape, EventError> {
    check(body)?;
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
        _ => shapes.iter().find(|(there, _)| *there).map(|(_, shape)| *shape).ok_or(EventError::Unknown),
    }
}

fn of_cloud_event(kind: &str) -> Option<Shape> {
    let kinds =
        [("zotregistry.", Shape::Zot), ("harbor.", Shape::Harbor), ("Microsoft.ContainerRegistry.", Shape::Acr)];
    kinds.iter().find(|(prefix, _)| kind.starts_with(prefix)).map(|(_, shape)| *shape)
}

/// Checks the limits before anything is parsed.
pub(super) fn check(body: &[u8]) -> Result<(), EventError> {
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
