//! What `ociseek convert --format json` prints: one document, of which fields are added but never changed or removed.
//!
//! | field | |
//! |---|---|
//! | `tool` | this program and its version, such as `ociseek v0.1.0` |
//! | `source`, `destination` | SRC and DST, in full |
//! | `status` | `written`, `already-there` or `dry-run` |
//! | `source_digest` | digest of the manifest or image index that SRC stands for |
//! | `digest`, `size` | of the SOCI-enabled image; the digest is the one to sign |
//! | `replaced` | what DST named before (or, with `dry-run`, names), if it was something else; else null |
//! | `images` | one object for each image that was to be indexed |
//! | `bytes_read` | bytes of layers that were read to index them |
//! | `bytes_compared` | bytes of layers that were compared with ztocs that were reused |
//! | `bytes_copied` | bytes of blobs that were copied from SRC |
//! | `bytes_written` | bytes of ztocs and manifests that were written |
//! | `seconds` | time taken |
//!
//! An image:
//!
//! | field | |
//! |---|---|
//! | `platform` | as its SOCI index states it: `architecture`, `os`, and `os.version`, `os.features`, `variant` where there are any |
//! | `source_manifest` | digest of its manifest in SRC |
//! | `manifest` | digest of its new manifest |
//! | `index` | null, or `digest` and `size` of its SOCI index |
//! | `coverage`, `layers` | as `ociseek index --format json` has them ([`super::super::json`]) |

use serde::Serialize;

use crate::cli::shared::json::milliseconds;
use crate::cli::shared::layers::json::{Coverage, IndexRef, Layer};
use crate::digest::Digest;
use crate::image::Platform;
use crate::ops::TOOL_IDENTIFIER;
use crate::ops::convert::{Converted, ConvertedImage, Outcome};
use crate::ops::versions::EnabledResult;

#[derive(Serialize)]
pub struct Document {
    tool: &'static str,
    source: String,
    destination: String,
    status: &'static str,
    source_digest: Digest,
    digest: Digest,
    size: u64,
    replaced: Option<Digest>,
    images: Vec<Image>,
    bytes_read: u64,
    bytes_compared: u64,
    bytes_copied: u64,
    bytes_written: u64,
    seconds: f64,
}

/// A SOCI-enabled image, as `ociseek index` tells of it.
#[derive(Serialize)]
pub struct Enabled {
    pub name: String,
    pub status: &'static str,
    pub digest: Option<Digest>,
    replaced: Option<Digest>,
    pub images: Vec<Image>,
}

#[derive(Serialize)]
pub struct Image {
    platform: Platform,
    source_manifest: Digest,
    manifest: Digest,
    index: Option<IndexRef>,
    pub coverage: Coverage,
    layers: Vec<Layer>,
}

impl Enabled {
    pub fn of(name: String, result: &EnabledResult) -> Enabled {
        let none = |name, status| Enabled { name, status, digest: None, replaced: None, images: Vec::new() };
        match result {
            EnabledResult::Converted(done) => {
                let (status, replaced) = outcome(&done.outcome);
                let images = done.images.iter().map(Image::of).collect();
                Enabled { name, status, digest: Some(done.digest), replaced, images }
            }
            EnabledResult::NothingToIndex { .. } => none(name, "nothing-to-index"),
            EnabledResult::OutOfTime { .. } => none(name, "out-of-time"),
        }
    }
}

/// The status, and what the name stood for before.
pub fn outcome(outcome: &Outcome) -> (&'static str, Option<Digest>) {
    match outcome {
        Outcome::Written { replaced } => ("written", *replaced),
        Outcome::AlreadyThere => ("already-there", None),
        Outcome::DryRun { replaces } => ("dry-run", *replaces),
    }
}

impl Document {
    pub fn of(source: String, destination: String, done: &Converted, seconds: f64) -> Document {
        let (status, replaced) = outcome(&done.outcome);
        Document {
            tool: TOOL_IDENTIFIER,
            source,
            destination,
            status,
            source_digest: done.source,
            digest: done.digest,
            size: done.size,
            replaced,
            images: done.images.iter().map(Image::of).collect(),
            bytes_read: done.bytes_read,
            bytes_compared: done.bytes_compared,
            bytes_copied: done.bytes_copied,
            bytes_written: done.bytes_written,
            seconds: milliseconds(seconds),
        }
    }
}

impl Image {
    fn of(image: &ConvertedImage) -> Image {
        Image {
            platform: image.platform.clone(),
            source_manifest: image.was,
            manifest: image.manifest,
            index: image.index.as_ref().map(IndexRef::of),
            coverage: Coverage::of(&image.coverage),
            layers: image.layers.iter().map(Layer::of).collect(),
        }
    }
}
