//! The JSON output of `ociseek backfill`: one object per line.

use serde::Serialize;

use super::time;
use crate::cli::shared::json::{Coded, DigestText, Failure, digests, milliseconds};
use ociseek_hook::backfill::{ImageOutcome, ImageReport};
use ociseek_hook::enabled::{EnableOutcome, EnabledImage};
use ociseek_hook::job::{JobResult, Products};

/// The result for an image, or for a list of repositories or tags that failed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Line<'a> {
    /// A stable word.
    status: &'static str,
    /// Its name.
    image: &'a str,
    digest: Option<DigestText>,
    /// Why it is skipped (a stable word), or null.
    reason: Option<&'static str>,
    /// When an `old` image was created, in RFC 3339; otherwise null.
    created: Option<String>,
    /// The time before which images are `old`, in RFC 3339; null for other images.
    since: Option<String>,
    error: Option<Failure>,
    /// The SOCI-enabled image, if --kind v2=TAG requests one; otherwise null.
    enabled: Option<Enabled>,
    /// The layers that were not finished in time.
    left: Vec<DigestText>,
    /// Bytes of layers that were read.
    bytes_read: u64,
    bytes_written: u64,
    seconds: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Enabled {
    /// Its full name; null if there is no tag for it.
    image: Option<String>,
    digest: Option<DigestText>,
    /// `pending` (in a dry run), `written`, `already-there`, `nothing-to-index`, `out-of-time` or
    /// `skipped`.
    status: &'static str,
    /// For `already-there`, what its ztocs and fine documents were compared with, as in the JSON of
    /// `index`; null otherwise.
    checked: Option<&'static str>,
    /// The digest that the name had before; null if there was none or it is the same.
    replaced: Option<DigestText>,
    /// Why it was not made, or null.
    reason: Option<Coded>,
    /// Number of layers that were not finished in time.
    left: usize,
}

impl Enabled {
    fn pending(image: String) -> Enabled {
        let (status, image) = ("pending", Some(image));
        Enabled { image, digest: None, status, checked: None, replaced: None, reason: None, left: 0 }
    }

    fn of(enabled: &EnabledImage) -> Enabled {
        let replaced = match &enabled.result {
            EnableOutcome::Written { replaced, .. } => *replaced,
            _ => None,
        };
        Enabled {
            image: enabled.reference().map(|name| name.to_string()),
            digest: enabled.digest().map(DigestText::from),
            status: enabled.status(),
            checked: enabled.checked(),
            replaced: replaced.map(DigestText::from),
            reason: enabled.reason().map(|(code, text)| Coded { code, text }),
            left: match &enabled.result {
                EnableOutcome::OutOfTime { left } => *left,
                _ => 0,
            },
        }
    }
}

impl<'a> Line<'a> {
    pub(crate) fn of(code: &'static str, report: &'a ImageReport, products: Option<&Products>) -> Line<'a> {
        let left = products.and_then(|products| products.index.as_ref()).map(|image| &image.left);
        let (created, since) = match &report.result {
            Ok(ImageOutcome::Old { created, since }) => (Some(time(*created)), Some(time(*since))),
            _ => (None, None),
        };
        Line {
            status: code,
            image: &report.name,
            digest: report.digest.map(DigestText::from),
            reason: match &report.result {
                Ok(ImageOutcome::Done(JobResult::Skipped(skipped))) => Some(skipped.code()),
                _ => None,
            },
            created,
            since,
            error: report.result.as_ref().err().map(|error| Failure::of(error)),
            enabled: match &report.result {
                Ok(ImageOutcome::Pending { enabled: Some(name) }) => Some(Enabled::pending(name.to_string())),
                _ => products.and_then(|products| products.enabled.as_ref()).map(Enabled::of),
            },
            left: left.map_or_else(Vec::new, |left| digests(left.iter().map(|layer| &layer.digest))),
            bytes_read: products.map_or(0, |products| products.bytes_read),
            bytes_written: products.map_or(0, |products| products.bytes_written),
            seconds: milliseconds(report.seconds),
        }
    }
}
