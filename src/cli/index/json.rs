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

use crate::cli::convert::json::Enabled;
use crate::cli::shared::json::{Failure, milliseconds};
use crate::cli::shared::layers::json::{Blob, Coverage, IndexRef, Layer};
use crate::cli::shared::layers::text::shortfall_text;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::ops::convert::Converted;
use crate::ops::coverage;
use crate::ops::index::{
    IndexedImage, IndexedLayer, IndexedManifest, ManifestResult, OtherIndex, Refused, RefusedManifest, Shortfall,
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
struct Other {
    digest: Digest,
    tool: Option<String>,
    listed_first: bool,
    unusable: Option<String>,
}

#[derive(Serialize)]
pub struct Short {
    code: &'static str,
    pub text: String,
    layer: Option<Digest>,
}

impl Image {
    /// What was made of it; `error` says why that is not all.
    pub fn made(image: String, made: &Made, enabled: Option<Enabled>, error: Option<Failure>, seconds: f64) -> Image {
        let index = made.index.as_ref();
        let converted = made.enabled.as_ref().and_then(|enabled| match &enabled.result {
            EnabledResult::Converted(converted) => Some(&**converted),
            EnabledResult::NothingToIndex { .. } | EnabledResult::OutOfTime { .. } => None,
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

impl Short {
    fn of(shortfall: &Shortfall) -> Short {
        let text = shortfall_text(shortfall);
        match shortfall {
            Shortfall::LeftOut { layer, .. } => Short { code: "left-out", text, layer: Some(layer.digest) },
            Shortfall::Coverage { .. } => Short { code: "coverage", text, layer: None },
        }
    }
}
