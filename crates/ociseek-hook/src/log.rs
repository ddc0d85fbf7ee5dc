//! The log of the services: the events that `hook serve`, `hook worker` and `hook lambda` share,
//! and their form as lines of JSON (docs/hook-operations.md, "The log").
//!
//! Names in events were checked against their grammars, errors contain no secrets, and no other
//! part of a request is logged.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tracing::{info, warn};

use super::job::{JobResult, Products};
use crate::logging::{Line, level_word};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_format::time::Time;
use ociseek_ops::index::{IndexedManifest, ManifestResult};

/// The `tracing` target of the services' events.
pub const TARGET: &str = "ociseek::hook";

/// An event as a line of JSON, without the newline.
pub fn json_line(line: &Line<'_>) -> String {
    let mut text = Map::new();
    text.insert("time".into(), now().into());
    text.insert("level".into(), level_word(line.level).into());
    text.insert("target".into(), line.target.into());
    text.insert("event".into(), line.event.into());
    text.extend(line.fields.clone());
    ociseek_format::printable::json_line(&text).unwrap_or_default()
}

/// Logs the warnings of the registry client and of indexing, and which token services receive
/// logins.
#[derive(Debug)]
pub struct LogProgress;

impl Progress for LogProgress {
    fn report(&self, event: ProgressEvent) {
        match event {
            ProgressEvent::Warning(message) => warn!(name: "warning", target: TARGET, message),
            ProgressEvent::TokenService { registry, host } => {
                info!(name: "token-service", target: TARGET, registry, host)
            }
            _ => {}
        }
    }
}

/// Logs the result of a job.
pub fn job(image: Option<&str>, done: &JobResult, took: Option<Duration>) {
    let products = done.products();
    let json = |value: Value| Some(value.to_string());
    let index = products.and_then(|products| products.index.as_ref());
    let not_deleted = products.map(not_deleted).filter(|digests| !digests.is_empty());
    let skipped = match done {
        JobResult::Skipped(skipped) => Some(skipped),
        _ => None,
    };
    info!(
        name: "job", target: TARGET,
        image,
        result = done.code(),
        digest = done.digest().map(|digest| digest.to_string()),
        indexes.json = products.filter(|products| products.index.is_some()).and_then(|of| json(indexes(of))),
        enabled.json = products.and_then(|products| json(products.enabled.as_ref()?.to_json())),
        left.json = index.and_then(|image| json(image.left.iter().map(|layer| layer.digest.to_string()).collect())),
        not_deleted.json = not_deleted.and_then(|digests| json(json!(digests))),
        bytes_read = products.map(|products| products.bytes_read),
        bytes_written = products.map(|products| products.bytes_written),
        reason = skipped.map(|skipped| skipped.code()),
        message = skipped.map(|skipped| skipped.to_string()),
        seconds = took.map(seconds),
    );
}

/// The indexes that an image has after a job, each with its platform.
fn indexes(products: &Products) -> Value {
    let manifests = products.index.iter().flat_map(|image| &image.manifests);
    let indexes = manifests.filter_map(|manifest| {
        let (index, fine) =
            (manifest.result.index(), manifest.fine.as_ref().and_then(|fine| fine.result.index()));
        let mut one = json!({"platform": manifest.platform});
        for (key, digest) in [("index", index), ("fine", fine)] {
            if let Some(digest) = digest {
                one[key] = json!(digest);
            }
        }
        (index.is_some() || fine.is_some()).then_some(one)
    });
    indexes.collect()
}

/// The replaced indexes that still exist, because we must not delete them or the registry does not
/// support it.
pub fn not_deleted(products: &Products) -> Vec<ociseek_format::digest::Digest> {
    let manifests = products.index.iter().flat_map(|image| &image.manifests);
    let stuck = manifests.flat_map(IndexedManifest::results).filter_map(|result| match result {
        ManifestResult::Attached { not_deleted, .. } => Some(not_deleted),
        _ => None,
    });
    stuck.flatten().copied().collect()
}

/// Seconds, with millisecond precision.
pub fn seconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1000.0).round() / 1000.0
}

/// The current time in RFC 3339, in UTC, with millisecond precision.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = Time { seconds: since.as_secs() as i64, nanos: since.subsec_millis() * 1_000_000 };
    time.to_rfc3339().unwrap_or_default()
}
