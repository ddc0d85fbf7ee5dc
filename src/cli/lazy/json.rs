//! Figures on the reads of a mount, for `--stats` and `ociseek trace`.

use serde::Serialize;

use super::Opened;
use crate::cli::shared::json::{DigestText, IndexRef, Manifest};
use crate::rootfs::layers::How;

/// What was read of an image.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Figures {
    /// The IMAGE, in full.
    image: String,
    manifest: Manifest,
    /// The SOCI index that was used, or null.
    index: Option<IndexRef>,
    /// From the bottom up.
    layers: Vec<Layer>,
    content: Content,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    digest: DigestText,
    /// Bytes of the blob.
    size: u64,
    how: ReadBy,
    /// Bytes that were read to open it.
    bytes_read: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum ReadBy {
    /// The ztoc of the image's SOCI index.
    Index,
    /// A layer map that was made here, now or earlier.
    Local,
    /// It is decoded from front to back, and its tar is cached.
    Whole,
}

/// What was done since the image was opened.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Content {
    /// For layers or parts of them. Redirects and tokens do not count.
    requests: u64,
    /// Bytes of layers that came from the store.
    bytes_fetched: u64,
    spans_decoded: u64,
    /// Parts of spans that were served from memory.
    memory_hits: u64,
    /// Parts of spans that were served from the cache on disk.
    disk_hits: u64,
    /// Requests that were repeated since they failed or brought wrong bytes.
    retries: u64,
    /// Reads that failed.
    errors: u64,
    /// Bytes of all layers as the store holds them.
    image_bytes: u64,
}

/// `mount --stats` and `bundle --stats`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Stats {
    #[serde(flatten)]
    pub figures: Figures,
    pub seconds_to_mount: f64,
    pub seconds_mounted: f64,
}

impl Figures {
    pub(crate) fn of(opened: &Opened) -> Figures {
        let image = &opened.image;
        let layers = image.layers.iter().map(|layer| Layer {
            digest: layer.descriptor.digest.into(),
            size: layer.descriptor.size,
            how: match layer.how {
                How::Index => ReadBy::Index,
                How::Local => ReadBy::Local,
                How::Whole => ReadBy::Whole,
            },
            bytes_read: layer.bytes_read,
        });
        let stats = image.content.stats();
        Figures {
            image: opened.name.clone(),
            manifest: Manifest::of(&image.manifest),
            index: image.index.as_ref().map(|index| IndexRef::named(index.digest)),
            layers: layers.collect(),
            content: Content {
                requests: stats.requests,
                bytes_fetched: stats.bytes_fetched,
                spans_decoded: stats.spans_decoded,
                memory_hits: stats.memory_hits,
                disk_hits: stats.disk_hits,
                retries: stats.retries,
                errors: stats.errors,
                image_bytes: stats.image_bytes,
            },
        }
    }
}
