//! The layers of an indexed image in JSON.

use serde::Serialize;

use super::text::reason;
use crate::cli::shared::json::{Coded, DigestText, milliseconds};
use ociseek_ops::index::{LayerOutcome, LayerReport, Origin};

/// A layer of an indexed image.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Layer {
    pub media_type: String,
    pub digest: DigestText,
    /// Size of the blob in bytes.
    pub size: u64,
    status: Status,
    /// Why it is left out, or null.
    pub reason: Option<Coded>,
    /// Null if it is left out.
    ztoc: Option<Ztoc>,
    /// The source of the ztoc; null if the layer is left out.
    origin: Option<CameBy>,
    /// The image, or the digest of the index, from which the ztoc was reused; present only then.
    #[serde(skip_serializing_if = "Option::is_none")]
    reused_from: Option<String>,
    /// Time to read and index the layer; null if it was not read.
    seconds: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Indexed,
    LeftOut,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum CameBy {
    /// The layer was read.
    Read,
    /// The ztoc is from this machine's cache.
    Cache,
    /// An existing index had the ztoc, whether it is kept or replaced.
    Destination,
    /// Another image's index had the ztoc, or another index of this image.
    Reused,
    /// The same layer occurs earlier in the image.
    Repeated,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Ztoc {
    digest: DigestText,
    /// Size in bytes.
    size: u64,
    /// Null if the ztoc was not read because its index already existed, like the next two fields.
    spans: Option<u32>,
    entries: Option<u64>,
    uncompressed_size: Option<u64>,
    /// 0 for a plain tar; null if unknown.
    gzip_members: Option<u64>,
}

impl Layer {
    pub(crate) fn of(report: &LayerReport) -> Layer {
        let layer = |status, reason, ztoc, origin| Layer {
            media_type: report.descriptor.media_type.clone(),
            digest: report.descriptor.digest.into(),
            size: report.descriptor.size,
            status,
            reason,
            ztoc,
            origin,
            reused_from: None,
            seconds: None,
        };
        match &report.outcome {
            LayerOutcome::Indexed(facts) => {
                let ztoc = Ztoc {
                    digest: facts.digest.into(),
                    size: facts.size,
                    spans: Some(facts.spans),
                    entries: Some(facts.entries),
                    uncompressed_size: Some(facts.uncompressed_size),
                    gzip_members: facts.gzip_members,
                };
                let origin = match &facts.origin {
                    Origin::Read { .. } => CameBy::Read,
                    Origin::Cache => CameBy::Cache,
                    Origin::Destination => CameBy::Destination,
                    Origin::Reused(_) => CameBy::Reused,
                    Origin::Repeated => CameBy::Repeated,
                };
                Layer {
                    reused_from: match &facts.origin {
                        Origin::Reused(from) => Some(from.to_string()),
                        _ => None,
                    },
                    seconds: match facts.origin {
                        Origin::Read { seconds } => Some(milliseconds(seconds)),
                        _ => None,
                    },
                    ..layer(Status::Indexed, None, Some(ztoc), Some(origin))
                }
            }
            LayerOutcome::Listed { ztoc, size } => {
                let ztoc = Ztoc {
                    digest: ztoc.into(),
                    size: *size,
                    spans: None,
                    entries: None,
                    uncompressed_size: None,
                    gzip_members: None,
                };
                layer(Status::Indexed, None, Some(ztoc), Some(CameBy::Destination))
            }
            LayerOutcome::LeftOut(left_out) => {
                let reason = Coded { code: left_out.code(), text: reason(left_out) };
                layer(Status::LeftOut, Some(reason), None, None)
            }
        }
    }
}
