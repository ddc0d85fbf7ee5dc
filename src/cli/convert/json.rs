//! The JSON output of `ociseek convert`, and of `ociseek index` for a SOCI-enabled image.

use serde::Serialize;

use crate::cli::shared::json::{CoverageJson, DigestText, IndexRef, Manifest, milliseconds};
use crate::cli::shared::layers::{Layer, Prefetched};
use ociseek_format::digest::Digest;
use ociseek_ops::convert::{ConvertReport, ConvertStatus, ConvertedImage};
use ociseek_ops::versions::EnabledResult;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Conversion {
    /// The full names of SRC and DST.
    source: String,
    destination: String,
    status: Status,
    /// The digest of the manifest or image index of SRC.
    source_digest: DigestText,
    /// The digest of the SOCI-enabled image, which is the one to sign.
    digest: DigestText,
    /// Size of the new image index in bytes.
    size: u64,
    /// The digest that DST named before, or still names in a dry run; null if there was none or it
    /// is the same.
    replaced: Option<DigestText>,
    /// The images to be indexed, one for each platform.
    manifests: Vec<Platform>,
    /// Bytes of layers that were read to index them.
    bytes_read: u64,
    /// Bytes of layers that were compared with reused ztocs.
    bytes_compared: u64,
    /// Bytes of blobs that were copied from SRC.
    bytes_copied: u64,
    /// Bytes of ztocs and manifests that were written.
    bytes_written: u64,
    seconds: f64,
}

/// A SOCI-enabled image in the report of `ociseek index`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Enabled {
    /// Its full name.
    pub name: String,
    pub status: Status,
    /// Null if it was not made.
    pub digest: Option<DigestText>,
    /// The digest that the name had before; null if there was none or it is the same.
    replaced: Option<DigestText>,
    pub manifests: Vec<Platform>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Status {
    Written,
    /// DST already was this image.
    AlreadyThere,
    DryRun,
    /// `index` only: no layer can be indexed, so there is no SOCI-enabled image.
    NothingToIndex,
    /// `index` only: time ran out before all layers were indexed.
    OutOfTime,
}

/// The image of one platform.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Platform {
    /// Such as `linux/arm64`.
    pub platform: String,
    /// Its manifest in SRC.
    source_manifest: Manifest,
    /// Its new manifest.
    manifest: Manifest,
    /// Null if none of the layers can be indexed, or with --kind fine.
    index: Option<IndexRef>,
    /// The fine index that the new manifest names; null if none was requested, or none can be made.
    fine: Option<IndexRef>,
    /// Of the SOCI index, or of the fine index if that is the only one.
    pub coverage: CoverageJson,
    /// The prefetch list of the SOCI index; null if it has none.
    prefetch: Option<Prefetched>,
    /// With a fine index alone, only the layers without a fine document.
    pub layers: Vec<Layer>,
}

impl Enabled {
    pub(crate) fn of(name: String, result: &EnabledResult) -> Enabled {
        let none = |name, status| Enabled {
            name,
            status,
            digest: None,
            replaced: None,
            manifests: Vec::new(),
        };
        match result {
            EnabledResult::Converted(done) => {
                let (status, replaced) = outcome(&done.outcome);
                let manifests = done.images.iter().map(Platform::of).collect();
                let replaced = replaced.map(DigestText::from);
                Enabled { name, status, digest: Some(done.digest.into()), replaced, manifests }
            }
            EnabledResult::NothingToIndex { .. } => none(name, Status::NothingToIndex),
            EnabledResult::OutOfTime { .. } => none(name, Status::OutOfTime),
        }
    }
}

/// The status, and the digest that the name had before.
fn outcome(outcome: &ConvertStatus) -> (Status, Option<Digest>) {
    match outcome {
        ConvertStatus::Written { replaced } => (Status::Written, *replaced),
        ConvertStatus::AlreadyThere => (Status::AlreadyThere, None),
        ConvertStatus::DryRun { replaces } => (Status::DryRun, *replaces),
    }
}

impl Conversion {
    pub(crate) fn of(
        source: String,
        destination: String,
        done: &ConvertReport,
        seconds: f64,
    ) -> Conversion {
        let (status, replaced) = outcome(&done.outcome);
        Conversion {
            source,
            destination,
            status,
            source_digest: done.source.into(),
            digest: done.digest.into(),
            size: done.size,
            replaced: replaced.map(DigestText::from),
            manifests: done.images.iter().map(Platform::of).collect(),
            bytes_read: done.bytes_read,
            bytes_compared: done.bytes_compared,
            bytes_copied: done.bytes_copied,
            bytes_written: done.bytes_written,
            seconds: milliseconds(seconds),
        }
    }
}

impl Platform {
    fn of(image: &ConvertedImage) -> Platform {
        Platform {
            platform: image.platform.to_string(),
            source_manifest: Manifest::named(image.was),
            manifest: Manifest::named(image.manifest),
            index: image.index.as_ref().map(IndexRef::of),
            fine: image.fine.as_ref().map(IndexRef::of),
            coverage: CoverageJson::of(&image.coverage),
            prefetch: image.prefetch.as_ref().map(Prefetched::of),
            layers: image.layers.iter().map(Layer::of).collect(),
        }
    }
}
