//! Fine indexes and documents in the output of `list`, `inspect` and `index`.

use serde::Serialize;

use super::json::{CoverageJson, DigestText, Failure};
use ociseek_format::image::fine::FineRef;
use ociseek_ops::discover::FineSummary;

/// A fine index.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Fine {
    /// The digest of its manifest.
    digest: DigestText,
    /// Size of its manifest in bytes, or null if unknown.
    size: Option<u64>,
    found_by: &'static str,
    /// Whether ociseek reads the image through this index.
    chosen: bool,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Null if it cannot be used, like the next two fields.
    coverage: Option<CoverageJson>,
    /// Size of its documents in bytes.
    bytes: Option<u64>,
    /// How many of these bytes are fetched before a start.
    start_bytes: Option<u64>,
    /// The digest of the recorded reads that it was built with, or null.
    profile: Option<DigestText>,
    /// Why it cannot be used, or null.
    error: Option<Failure>,
}

/// A layer's document in a fine index.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FineDocument {
    digest: DigestText,
    size: u64,
    /// Size of its head in bytes: the layer's files and spans.
    head_size: u64,
    /// Size of its head and the parts for a recorded start, in bytes.
    start_size: u64,
}

impl FineDocument {
    pub(crate) fn of(document: &FineRef) -> FineDocument {
        FineDocument {
            digest: document.document.into(),
            size: document.size,
            head_size: document.head_size,
            start_size: document.start_size,
        }
    }
}

impl Fine {
    pub(crate) fn each(found: &[FineSummary]) -> Vec<Fine> {
        found.iter().map(Fine::of).collect()
    }

    fn of(found: &FineSummary) -> Fine {
        let content = found.content.as_ref().ok();
        Fine {
            digest: found.digest.into(),
            size: found.size,
            found_by: found.via.code(),
            chosen: found.chosen,
            tool: content.and_then(|content| content.tool.clone()),
            coverage: content.map(|content| CoverageJson::of(&content.coverage)),
            bytes: content.map(|content| content.bytes),
            start_bytes: content.map(|content| content.start_bytes),
            profile: content.and_then(|content| content.profile).map(DigestText::from),
            error: found.content.as_ref().err().map(|why| Failure::of_text(why)),
        }
    }
}
