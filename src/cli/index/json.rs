//! The JSON output of `ociseek index`.

use serde::Serialize;

use crate::cli::convert::json::Enabled;
use crate::cli::shared::json::{
    CoverageJson, DigestText, Failure, FineDocument, IndexRef, Manifest as ManifestRef, digests,
    milliseconds,
};
use crate::cli::shared::layers::{Layer, Prefetched, shortfall_text};
use ociseek_format::image::{Descriptor, coverage};
use ociseek_ops::convert::ConvertReport;
use ociseek_ops::index::{
    IndexedFine, IndexedImage, IndexedManifest, LayerReport, ManifestResult, OtherIndex,
    RefusedImage, RefusedManifest, Shortfall,
};
use ociseek_ops::versions::{EnabledResult, VersionsResult};
use ociseek_store::blob::AttachMethod;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Indexing {
    /// One object for each IMAGE, in the order of the command line.
    pub images: Vec<Image>,
    /// Bytes of layer blobs that were read.
    pub bytes_read: u64,
    /// Bytes that were uploaded, or written into a layout.
    pub bytes_written: u64,
    pub seconds: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Image {
    /// The full name of IMAGE.
    pub image: String,
    pub status: ImageStatus,
    /// The digest of the manifest or image index of IMAGE; null if it failed.
    pub digest: Option<DigestText>,
    /// One object for each platform's manifest; empty after a failure, unless --strict or
    /// --min-coverage was not met.
    pub manifests: Vec<Manifest>,
    pub error: Option<Failure>,
    /// The SOCI-enabled image that --kind v2=TAG requests; otherwise missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<Enabled>,
    /// The layers that were not finished before --timeout.
    pub left: Vec<DigestText>,
    pub bytes_read: u64,
    /// Bytes of other layers that were compared with ztocs and fine documents before reusing these;
    /// present only if it is not 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_compared: u64,
    pub bytes_written: u64,
    pub seconds: f64,
}

#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum ImageStatus {
    Ok,
    Failed,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Manifest {
    /// Such as `linux/arm64`; null if the image does not state it.
    pub platform: Option<String>,
    manifest: ManifestRef,
    #[serde(flatten)]
    pub outcome: IndexOutcome,
    /// SOCI indexes of other makers.
    others: Vec<Other>,
    /// What the index covers; if refused, what it would have covered, or what the index that stays
    /// covers.
    pub coverage: CoverageJson,
    /// The prefetch list of an index that was built; null if it has none, or if no index was built.
    pub prefetch: Option<Prefetched>,
    /// The fine index; null if none was requested.
    pub fine: Option<Fine>,
    /// Unmet requirements of --strict and --min-coverage.
    pub shortfalls: Vec<Short>,
    /// The layers in the order of the image.
    pub layers: Vec<Layer>,
}

#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Status {
    Attached,
    DryRun,
    /// Exactly this index already existed.
    AlreadyThere,
    /// Another index was kept.
    Kept,
    /// No layer can be indexed.
    NothingToIndex,
    /// Time ran out before any layer was finished.
    OutOfTime,
    /// No SOCI index is made because of --kind fine.
    NotAsked,
    /// Nothing was attached, because a platform falls short of --strict or --min-coverage.
    Refused,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum How {
    ReferrersApi,
    TagSchema,
    Layout,
}

// The result for an index of either kind. (A doc comment would describe the type it is flattened
// into.)
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct IndexOutcome {
    pub status: Status,
    /// Null if there is none.
    pub index: Option<IndexRef>,
    /// For `already-there`, what the blobs of the index were compared with: `listed` is nothing,
    /// only their existence was checked; `cached` is what this machine once built from the layers;
    /// `built` is what this run built. Null otherwise.
    checked: Option<&'static str>,
    /// How the index was attached, if it was.
    attached: Option<How>,
    /// The fallback tag, if the index is listed under one.
    tag: Option<String>,
    /// The indexes of the same kind whose place it took (or, in a dry run, would take).
    replaced: Vec<DigestText>,
    /// Those of them that could not be deleted.
    not_deleted: Vec<DigestText>,
}

/// A fine index that was made or found.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "MadeFine"))]
pub(crate) struct Fine {
    #[serde(flatten)]
    pub outcome: IndexOutcome,
    coverage: CoverageJson,
    /// The digest of the profile that it was built with, or null.
    profile: Option<DigestText>,
    /// Its documents, in the order of the image's layers.
    documents: Vec<Document>,
}

/// The document of a layer.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "MadeDocument"))]
struct Document {
    /// The digest of its layer.
    layer: DigestText,
    #[serde(flatten)]
    document: FineDocument,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Other {
    digest: DigestText,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Whether it is listed before ours, so consumers take it.
    listed_first: bool,
    /// Why it cannot be used, or null.
    unusable: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Short {
    code: ShortCode,
    pub text: String,
    /// The layer that is left out.
    layer: Option<DigestText>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum ShortCode {
    /// --strict: a layer is left out for a reason other than its size.
    LeftOut,
    /// --min-coverage is not reached.
    Coverage,
}

impl Image {
    /// The outputs. `error` says why they are not complete.
    pub(crate) fn made(
        image: String,
        made: &VersionsResult,
        enabled: Option<Enabled>,
        error: Option<Failure>,
        seconds: f64,
    ) -> Image {
        let index = made.index.as_ref();
        let converted = made.enabled.as_ref().and_then(|enabled| match &enabled.result {
            EnabledResult::Converted(converted) => Some(&**converted),
            EnabledResult::NothingToIndex { .. } | EnabledResult::OutOfTime { .. } => None,
        });
        let sum = |of_index: fn(&IndexedImage) -> u64, of_image: fn(&ConvertReport) -> u64| {
            index.map_or(0, of_index) + converted.map_or(0, of_image)
        };
        let digest =
            index.map(|index| index.digest).or(converted.map(|converted| converted.source));
        Image {
            image,
            status: if error.is_some() { ImageStatus::Failed } else { ImageStatus::Ok },
            digest: digest.map(DigestText::from),
            manifests: index
                .map_or_else(Vec::new, |index| index.manifests.iter().map(Manifest::of).collect()),
            error,
            enabled,
            left: index.map_or_else(Vec::new, |index| {
                digests(index.left.iter().map(|layer| &layer.digest))
            }),
            bytes_read: sum(|index| index.bytes_read, |image| image.bytes_read),
            bytes_compared: sum(|index| index.bytes_compared, |image| image.bytes_compared),
            bytes_written: sum(
                |index| index.bytes_written,
                |image| image.bytes_copied + image.bytes_written,
            ),
            seconds: milliseconds(seconds),
        }
    }

    /// It could be indexed, but falls short of a requirement.
    pub(crate) fn refused(
        image: String,
        refused: &RefusedImage,
        error: Failure,
        seconds: f64,
    ) -> Image {
        Image {
            manifests: refused.manifests.iter().map(Manifest::refused).collect(),
            bytes_read: refused.bytes_read,
            bytes_compared: 0,
            ..Image::failed(image, error, seconds)
        }
    }

    pub(crate) fn failed(image: String, error: Failure, seconds: f64) -> Image {
        Image {
            image,
            status: ImageStatus::Failed,
            digest: None,
            manifests: Vec::new(),
            error: Some(error),
            enabled: None,
            left: Vec::new(),
            bytes_read: 0,
            bytes_compared: 0,
            bytes_written: 0,
            seconds: milliseconds(seconds),
        }
    }
}

impl IndexOutcome {
    fn of(result: &ManifestResult) -> IndexOutcome {
        let (status, index) = match result {
            ManifestResult::Attached { index, .. } => (Status::Attached, Some(IndexRef::of(index))),
            ManifestResult::DryRun { index, .. } => (Status::DryRun, Some(IndexRef::of(index))),
            ManifestResult::AlreadyThere { index, .. } => {
                (Status::AlreadyThere, Some(IndexRef::of(index)))
            }
            ManifestResult::Kept { index, .. } => (Status::Kept, Some(IndexRef::of(index))),
            ManifestResult::NothingToIndex => (Status::NothingToIndex, None),
            ManifestResult::OutOfTime => (Status::OutOfTime, None),
            ManifestResult::NotRequested => (Status::NotAsked, None),
        };
        let (attached, tag) = match result {
            ManifestResult::Attached { how: AttachMethod::ReferrersApi, .. } => {
                (Some(How::ReferrersApi), None)
            }
            ManifestResult::Attached { how: AttachMethod::TagSchema(tag), .. } => {
                (Some(How::TagSchema), Some(tag.clone()))
            }
            ManifestResult::Attached { how: AttachMethod::Layout, .. } => (Some(How::Layout), None),
            _ => (None, None),
        };
        let (replaced, not_deleted) = match result {
            ManifestResult::Attached { replaced, not_deleted, .. } => {
                (digests(replaced), digests(not_deleted))
            }
            ManifestResult::DryRun { replaces, .. } => (digests(replaces), Vec::new()),
            _ => (Vec::new(), Vec::new()),
        };
        let checked = match result {
            ManifestResult::AlreadyThere { check, .. } => Some(check.code()),
            _ => None,
        };
        IndexOutcome {
            checked,
            attached,
            tag,
            replaced,
            not_deleted,
            ..IndexOutcome::unattached(status, index)
        }
    }

    fn unattached(status: Status, index: Option<IndexRef>) -> IndexOutcome {
        IndexOutcome {
            status,
            index,
            checked: None,
            attached: None,
            tag: None,
            replaced: Vec::new(),
            not_deleted: Vec::new(),
        }
    }
}

impl Fine {
    fn of(report: &IndexedFine) -> Fine {
        let documents = report.documents.iter().map(|document| Document {
            layer: document.layer.into(),
            document: FineDocument::of(document),
        });
        Fine {
            outcome: IndexOutcome::of(&report.result),
            coverage: CoverageJson::of(&report.coverage),
            profile: report.profile.map(DigestText::from),
            documents: documents.collect(),
        }
    }
}

impl Manifest {
    fn of(report: &IndexedManifest) -> Manifest {
        let outcome = IndexOutcome::of(&report.result);
        let other = |o: &OtherIndex| Other {
            digest: o.digest.into(),
            tool: o.tool.clone(),
            listed_first: o.listed_first,
            unusable: o.unusable.clone(),
        };
        Manifest {
            others: report.others.iter().map(other).collect(),
            prefetch: report.prefetch.as_ref().map(Prefetched::of),
            fine: report.fine.as_ref().map(Fine::of),
            ..Manifest::new(
                outcome,
                &report.platform,
                &report.manifest,
                &report.coverage,
                &report.layers,
            )
        }
    }

    fn refused(report: &RefusedManifest) -> Manifest {
        let outcome =
            IndexOutcome::unattached(Status::Refused, report.stays.as_ref().map(IndexRef::of));
        Manifest {
            shortfalls: report.shortfalls.iter().map(Short::of).collect(),
            ..Manifest::new(
                outcome,
                &report.platform,
                &report.manifest,
                &report.coverage,
                &report.layers,
            )
        }
    }

    fn new(
        outcome: IndexOutcome,
        platform: &Option<String>,
        manifest: &Descriptor,
        coverage: &coverage::Coverage,
        layers: &[LayerReport],
    ) -> Manifest {
        Manifest {
            platform: platform.clone(),
            manifest: ManifestRef::of(manifest),
            outcome,
            others: Vec::new(),
            coverage: CoverageJson::of(coverage),
            prefetch: None,
            fine: None,
            shortfalls: Vec::new(),
            layers: layers.iter().map(Layer::of).collect(),
        }
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Short {
    fn of(shortfall: &Shortfall) -> Short {
        let text = shortfall_text(shortfall);
        match shortfall {
            Shortfall::LeftOut { layer, .. } => {
                Short { code: ShortCode::LeftOut, text, layer: Some(layer.digest.into()) }
            }
            Shortfall::Coverage { .. } => Short { code: ShortCode::Coverage, text, layer: None },
        }
    }
}
