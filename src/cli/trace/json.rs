//! The JSON output of `ociseek trace`.

use serde::Serialize;

use crate::cli::lazy::json::Figures;
use crate::cli::shared::json::{DigestText, utf8};
use ociseek_rootfs::record::Touch;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Trace<'a> {
    #[serde(flatten)]
    pub figures: Figures,
    /// The exit status of the container.
    pub status: u8,
    /// How long the container ran.
    pub seconds: f64,
    /// What a start needs of the image, whatever the caches already had.
    pub needed: Needed,
    /// The first reads of each file, or of some of its bytes.
    pub touches: Vec<Read<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Needed {
    pub files: u64,
    pub spans: u64,
    /// Size in the layers' blobs. A layer that the SOCI index does not cover counts completely,
    /// because it is read before the start.
    pub bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Read<'a> {
    /// Milliseconds since the image was mounted.
    ms: f64,
    /// Path from the root of the image, without a leading slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    layer: DigestText,
    /// Offset in the file in bytes.
    offset: u64,
    /// Number of bytes.
    size: u64,
    /// The numbers of the layer's spans that it needed.
    spans: Vec<u32>,
}

impl<'a> Read<'a> {
    pub(crate) fn of(touch: &'a Touch) -> Read<'a> {
        let (path, path_b64) = utf8(&touch.path.0);
        Read {
            ms: touch.milliseconds(),
            path,
            path_b64,
            layer: touch.layer.into(),
            offset: touch.offset,
            size: touch.size,
            spans: touch.spans.iter().map(|span| span.0).collect(),
        }
    }
}
