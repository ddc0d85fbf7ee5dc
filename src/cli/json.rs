//! What `ociseek index --format json` prints: one document, of which fields are added but never changed or removed.
//!
//! The document:
//!
//! | field | |
//! |---|---|
//! | `tool` | this program and its version, such as `ociseek v0.1.0` |
//! | `images` | one object for each IMAGE, in the order of the command line |
//! | `bytes_read` | bytes of layer blobs that were read |
//! | `bytes_written` | bytes that were uploaded, or written into a layout |
//! | `seconds` | time taken |
//!
//! An image:
//!
//! | field | |
//! |---|---|
//! | `image` | the IMAGE, in full |
//! | `status` | `ok` or `failed` |
//! | `digest` | digest of the manifest or image index that the image's name stands for; null if failed |
//! | `manifests` | one object for each platform's manifest; empty if failed, unless it was refused for falling short of --strict or --min-coverage |
//! | `error` | null, or `message` (the causes in one line), `causes` (them one by one), and `hint` (or null) |
//! | `bytes_read`, `bytes_written`, `seconds` | as above |
//! | `bytes_compared` | bytes of other layers that were compared with ztocs before these were reused; there only if it is not 0 |
//! | `enabled` | the SOCI-enabled image that --v2 or --v2-only asks for; else not there |
//! | `left` | digests of the layers for which `--timeout` did not suffice |
//!
//! A SOCI-enabled image:
//!
//! | field | |
//! |---|---|
//! | `name` | its name, in full |
//! | `status` | `written`, `already-there`, `dry-run`, `nothing-to-index` or `out-of-time` (there is none, or none yet) |
//! | `digest`, `replaced`, `images` | as `ociseek convert --format json` has them; null, null and empty if there is none |
//!
//! A manifest:
//!
//! | field | |
//! |---|---|
//! | `platform` | such as `linux/arm64`; null if the image does not say |
//! | `manifest` | `media_type`, `digest` and `size` in bytes of the image manifest |
//! | `status` | `attached`; `dry-run`; `already-there`; `kept` (another index was left alone); `nothing-to-index`; `out-of-time`; `refused` (nothing was attached, since a platform falls short of --strict or --min-coverage) |
//! | `index` | null, or `digest`, `size` (null if kept, or if refused: one that is there and stays) of the SOCI index |
//! | `attached` | null, or how: `referrers-api`, `tag-schema` or `layout` |
//! | `tag` | the tag of the tag schema, else null |
//! | `replaced` | digests of the indexes whose place it took (or, with `dry-run`, would take) |
//! | `not_deleted` | those of them that could not be deleted |
//! | `others` | SOCI indexes of other makers: `digest`, `tool` (or null), `listed_first` (consumers take it then) |
//! | `coverage` | what the index covers: `layers`, `of_layers`, `bytes` and `of_bytes` of compressed blobs, `percent` of these, cut after two decimals, so that only all is 100; if refused, what it would have covered, or what the index that stays covers |
//! | `shortfalls` | demands of --strict and --min-coverage that it does not meet: `code` (`left-out` or `coverage`), `text`, `layer` (its digest, or null) |
//! | `layers` | one object for each layer, in the image's order; empty if they were not looked at |
//!
//! A layer:
//!
//! | field | |
//! |---|---|
//! | `media_type`, `digest`, `size` | of the layer's blob, in bytes |
//! | `status` | `indexed` or `left-out` |
//! | `reason` | null, or `code` (a stable word) and `text`. `out-of-time`: another run goes on with it; `needs-more-time`: no layer was done in the time that was given, and another run needs more of it |
//! | `ztoc` | null, or `digest`, `size` in bytes, `spans`, `entries`, `uncompressed_size`, `gzip_members` (0: a plain tar; null: not known) |
//! | `origin` | how the ztoc was come by: `read`, `cache`, `destination` (an index that is replaced had it), `reused` (another image's index had it, or another index of this image), `repeated` (the same layer earlier in the image); null if left out |
//! | `reused_from` | the image, or the digest of the index, that the ztoc was reused from; there only if `origin` is `reused` |
//! | `seconds` | time to read and index it; null unless `origin` is `read` |

use serde::Serialize;

use super::convert_json::Enabled;
use super::size::{ByteSize, human};
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::ops::convert::Converted;
use crate::ops::coverage;
use crate::ops::index::{
    IndexedImage, IndexedLayer, IndexedManifest, LayerOutcome, LeftOut, ManifestResult, Origin, OtherIndex, Refused,
    RefusedManifest, Shortfall,
};
use crate::ops::versions::{EnabledResult, Made};
use crate::store::blob::Attached;

#[derive(Serialize)]
pub struct Document {
    pub tool: &'static str,
    pub images: Vec<Image>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub seconds: f64,
}

#[derive(Serialize)]
pub struct Image {
    pub image: String,
    pub status: &'static str,
    pub digest: Option<Digest>,
    pub manifests: Vec<Manifest>,
    pub error: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<Enabled>,
    pub left: Vec<Digest>,
    pub bytes_read: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_compared: u64,
    pub bytes_written: u64,
    pub seconds: f64,
}

#[derive(Serialize)]
pub struct Failure {
    pub message: String,
    pub causes: Vec<String>,
    pub hint: Option<String>,
}

#[derive(Serialize)]
pub struct Manifest {
    pub platform: Option<String>,
    manifest: Blob,
    pub status: &'static str,
    pub index: Option<IndexRef>,
    attached: Option<&'static str>,
    tag: Option<String>,
    replaced: Vec<Digest>,
    not_deleted: Vec<Digest>,
    others: Vec<Other>,
    pub coverage: Coverage,
    pub shortfalls: Vec<Short>,
    pub layers: Vec<Layer>,
}

#[derive(Serialize)]
pub struct Blob {
    media_type: String,
    pub digest: Digest,
    pub size: u64,
}

#[derive(Serialize)]
pub struct IndexRef {
    pub digest: Digest,
    size: Option<u64>,
}

#[derive(Serialize)]
struct Other {
    digest: Digest,
    tool: Option<String>,
    listed_first: bool,
    unusable: Option<String>,
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
pub struct Short {
    code: &'static str,
    pub text: String,
    layer: Option<Digest>,
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

impl Image {
    /// What was made of it; `error` says why that is not all.
    pub fn made(image: String, made: &Made, enabled: Option<Enabled>, error: Option<Failure>, seconds: f64) -> Image {
        let index = made.index.as_ref();
        let converted = made.enabled.as_ref().and_then(|enabled| match &enabled.result {
            EnabledResult::Converted(converted) => Some(&**converted),
            EnabledResult::NothingToIndex { .. } | EnabledResult::OutOfTime => None,
        });
        let sum = |of_index: fn(&IndexedImage) -> u64, of_image: fn(&Converted) -> u64| {
            index.map_or(0, of_index) + converted.map_or(0, of_image)
        };
        Image {
            image,
            status: if error.is_some() { "failed" } else { "ok" },
            digest: index.map(|index| index.digest).or(converted.map(|converted| converted.source)),
            manifests: index.map_or_else(Vec::new, |index| index.manifests.iter().map(Manifest::of).collect()),
            error,
            enabled,
            left: index.map_or_else(Vec::new, |index| index.left.iter().map(|layer| layer.digest).collect()),
            bytes_read: sum(|index| index.bytes_read, |image| image.bytes_read),
            bytes_compared: sum(|index| index.bytes_compared, |image| image.bytes_compared),
            bytes_written: sum(|index| index.bytes_written, |image| image.bytes_copied + image.bytes_written),
            seconds: milliseconds(seconds),
        }
    }

    /// It could be indexed, but falls short of what was asked for.
    pub fn refused(image: String, refused: &Refused, error: Failure, seconds: f64) -> Image {
        Image {
            manifests: refused.manifests.iter().map(Manifest::refused).collect(),
            bytes_read: refused.bytes_read,
            bytes_compared: 0,
            ..Image::failed(image, error, seconds)
        }
    }

    pub fn failed(image: String, error: Failure, seconds: f64) -> Image {
        Image {
            image,
            status: "failed",
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

impl Manifest {
    fn of(report: &IndexedManifest) -> Manifest {
        let mut manifest = Manifest::new(&report.platform, &report.manifest, &report.coverage, &report.layers);
        let other = |o: &OtherIndex| Other {
            digest: o.digest,
            tool: o.tool.clone(),
            listed_first: o.listed_first,
            unusable: o.unusable.clone(),
        };
        manifest.others = report.others.iter().map(other).collect();
        match &report.result {
            ManifestResult::Attached { index, how, replaced, not_deleted } => {
                manifest.status = "attached";
                manifest.index = Some(IndexRef::of(index));
                (manifest.attached, manifest.tag) = match how {
                    Attached::ReferrersApi => (Some("referrers-api"), None),
                    Attached::TagSchema(tag) => (Some("tag-schema"), Some(tag.clone())),
                    Attached::Layout => (Some("layout"), None),
                };
                manifest.replaced.clone_from(replaced);
                manifest.not_deleted.clone_from(not_deleted);
            }
            ManifestResult::DryRun { index, replaces } => {
                manifest.status = "dry-run";
                manifest.index = Some(IndexRef::of(index));
                manifest.replaced.clone_from(replaces);
            }
            ManifestResult::AlreadyThere { index, .. } => {
                manifest.status = "already-there";
                manifest.index = Some(IndexRef::of(index));
            }
            ManifestResult::Kept { index, .. } => {
                manifest.status = "kept";
                manifest.index = Some(IndexRef { digest: *index, size: None });
            }
            ManifestResult::NothingToIndex => manifest.status = "nothing-to-index",
            ManifestResult::OutOfTime => manifest.status = "out-of-time",
        }
        manifest
    }

    fn refused(report: &RefusedManifest) -> Manifest {
        let mut manifest = Manifest::new(&report.platform, &report.manifest, &report.coverage, &report.layers);
        manifest.status = "refused";
        manifest.index = report.stays.map(|digest| IndexRef { digest, size: None });
        manifest.shortfalls = report.shortfalls.iter().map(Short::of).collect();
        manifest
    }

    fn new(
        platform: &Option<String>,
        manifest: &Descriptor,
        coverage: &coverage::Coverage,
        layers: &[IndexedLayer],
    ) -> Manifest {
        Manifest {
            platform: platform.clone(),
            manifest: Blob::of(manifest),
            status: "",
            index: None,
            attached: None,
            tag: None,
            replaced: Vec::new(),
            not_deleted: Vec::new(),
            others: Vec::new(),
            coverage: Coverage::of(coverage),
            shortfalls: Vec::new(),
            layers: layers.iter().map(Layer::of).collect(),
        }
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
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

impl Short {
    fn of(shortfall: &Shortfall) -> Short {
        let text = shortfall_text(shortfall);
        match shortfall {
            Shortfall::LeftOut { layer, .. } => Short { code: "left-out", text, layer: Some(layer.digest) },
            Shortfall::Coverage { .. } => Short { code: "coverage", text, layer: None },
        }
    }
}

/// A demand that is not met, for people, in one line.
pub fn shortfall_text(shortfall: &Shortfall) -> String {
    match shortfall {
        Shortfall::LeftOut { layer, reason: left_out } => {
            let why = left_out.as_ref().map_or_else(|| "the index that is there has no ztoc for it".to_owned(), reason);
            format!("layer {} is left out: {why}", layer.digest)
        }
        Shortfall::Coverage { is, least, min_layer_size } => {
            let (missing, all) = (human(is.of_bytes - is.bytes), human(is.of_bytes));
            let which = match min_layer_size {
                0 => "in layers".to_owned(),
                least => format!("in layers of at least {}", ByteSize(*least)),
            };
            format!("{} of {all} {which} is covered, less than {least}: {missing} is missing", is.share())
        }
    }
}

/// The reason for people, in one line.
pub fn reason(left_out: &LeftOut) -> String {
    match left_out {
        LeftOut::Small { least } => format!("smaller than {}", ByteSize(*least)),
        LeftOut::Kind { reason, .. } => reason.clone(),
        LeftOut::Unservable(verdict) => verdict.reason.clone(),
        LeftOut::OutOfTime { stuck: false } => "the time was up; another run goes on with it".to_owned(),
        LeftOut::OutOfTime { stuck: true } => {
            "the time was up before any layer was done; it needs a longer --timeout".to_owned()
        }
    }
}

impl Blob {
    fn of(descriptor: &Descriptor) -> Blob {
        Blob { media_type: descriptor.media_type.clone(), digest: descriptor.digest, size: descriptor.size }
    }
}

impl IndexRef {
    pub fn of(index: &Descriptor) -> IndexRef {
        IndexRef { digest: index.digest, size: Some(index.size) }
    }
}

/// Seconds with three digits behind the point: more would be noise.
pub fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
