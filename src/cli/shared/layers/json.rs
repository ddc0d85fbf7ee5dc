//! The layers of an image that was indexed, and what its index covers, in JSON.

use serde::Serialize;

use super::text::reason;
use crate::cli::shared::json::milliseconds;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::ops::coverage;
use crate::ops::index::{IndexedLayer, LayerOutcome, Origin};

#[derive(Serialize)]
pub struct Blob {
    media_type: String,
    pub digest: Digest,
    pub size: u64,
}

#[derive(Serialize)]
pub struct IndexRef {
    pub digest: Digest,
    pub size: Option<u64>,
}

#[derive(Serialize)]
pub struct Coverage {
    pub layers: usize,
    pub of_layers: usize,
    bytes: u64,
    pub of_bytes: u64,
    pub percent: f64,
    #[serde(skip)]
    pub shown: String,
}

#[derive(Serialize)]
pub struct Layer {
    #[serde(flatten)]
    pub blob: Blob,
    status: &'static str,
    pub reason: Option<Reason>,
    ztoc: Option<Ztoc>,
    origin: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reused_from: Option<String>,
    seconds: Option<f64>,
}

#[derive(Serialize)]
pub struct Reason {
    pub code: &'static str,
    pub text: String,
}

#[derive(Serialize)]
struct Ztoc {
    digest: Digest,
    size: u64,
    spans: u32,
    entries: u64,
    uncompressed_size: u64,
    gzip_members: Option<u64>,
}

impl Blob {
    pub fn of(descriptor: &Descriptor) -> Blob {
        Blob { media_type: descriptor.media_type.clone(), digest: descriptor.digest, size: descriptor.size }
    }
}

impl IndexRef {
    pub fn of(index: &Descriptor) -> IndexRef {
        IndexRef { digest: index.digest, size: Some(index.size) }
    }
}

impl Coverage {
    pub fn of(coverage: &coverage::Coverage) -> Coverage {
        Coverage {
            layers: coverage.layers,
            of_layers: coverage.of_layers,
            bytes: coverage.bytes,
            of_bytes: coverage.of_bytes,
            percent: coverage.share().percent(),
            shown: coverage.share().to_string(),
        }
    }
}

impl Layer {
    pub fn of(report: &IndexedLayer) -> Layer {
        let blob = Blob::of(&report.descriptor);
        match &report.outcome {
            LayerOutcome::Indexed(facts) => Layer {
                blob,
                status: "indexed",
                reason: None,
                ztoc: Some(Ztoc {
                    digest: facts.digest,
                    size: facts.size,
                    spans: facts.spans,
                    entries: facts.entries,
                    uncompressed_size: facts.uncompressed_size,
                    gzip_members: facts.gzip_members,
                }),
                origin: Some(match &facts.origin {
                    Origin::Read { .. } => "read",
                    Origin::Cache => "cache",
                    Origin::Destination => "destination",
                    Origin::Reused(_) => "reused",
                    Origin::Repeated => "repeated",
                }),
                reused_from: match &facts.origin {
                    Origin::Reused(from) => Some(from.to_string()),
                    _ => None,
                },
                seconds: match facts.origin {
                    Origin::Read { seconds } => Some(milliseconds(seconds)),
                    _ => None,
                },
            },
            LayerOutcome::LeftOut(left_out) => Layer {
                blob,
                status: "left-out",
                reason: Some(Reason { code: left_out.code(), text: reason(left_out) }),
                ztoc: None,
                origin: None,
                reused_from: None,
                seconds: None,
            },
        }
    }
}
