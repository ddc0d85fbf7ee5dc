//! The JSON output of `ociseek copy`.

use serde::Serialize;

use crate::cli::shared::json::{DigestText, milliseconds};
use ociseek_ops::copy::CopyReport;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Copy {
    /// The full names of SOURCE and DESTINATION.
    source: String,
    destination: String,
    /// The digest of the manifest or image index that was copied.
    digest: DigestText,
    /// Number of manifests and image indexes, without referrers.
    manifests: usize,
    referrers: Vec<Referrer>,
    blobs: Blobs,
    bytes_streamed: u64,
    seconds: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Referrer {
    digest: DigestText,
    /// The manifest that it refers to.
    subject: DigestText,
    artifact_type: Option<String>,
}

/// How many blobs were copied, and how.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Blobs {
    there: usize,
    mounted: usize,
    streamed: usize,
}

impl Copy {
    pub(crate) fn of(source: String, destination: &str, report: &CopyReport, seconds: f64) -> Copy {
        let referrers = report.referrers.iter().map(|one| Referrer {
            digest: one.digest.into(),
            subject: one.subject.into(),
            artifact_type: one.artifact_type.clone(),
        });
        let blobs = &report.blobs;
        Copy {
            source,
            destination: destination.to_owned(),
            digest: report.digest.into(),
            manifests: report.manifests,
            referrers: referrers.collect(),
            blobs: Blobs { there: blobs.present, mounted: blobs.mounted, streamed: blobs.streamed },
            bytes_streamed: blobs.bytes,
            seconds: milliseconds(seconds),
        }
    }
}
