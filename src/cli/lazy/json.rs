//! What is mounted, and figures on its reads: for `--format json`, `--stats` and `ociseek trace`.

use serde::Serialize;

use super::Opened;
use crate::cli::shared::json::{DigestText, IndexRef, Manifest};
use crate::rootfs::content::{ContentStats, StartStats};
use crate::rootfs::layers::How;
use crate::store::Traffic;

/// What was read of an image.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Figures {
    /// The IMAGE, in full.
    image: String,
    manifest: Manifest,
    /// The SOCI index that was used, or null.
    index: Option<IndexRef>,
    /// The fine index that was used, or null.
    fine_index: Option<IndexRef>,
    /// From the bottom up.
    layers: Vec<Layer>,
    content: Content,
    phases: Phases,
}

/// Requests to the registry and the bytes of their answers, by what they were for. Redirects and tokens count.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Phases {
    /// To know what the image holds: manifests, the config, indexes.
    opening: Phase,
    /// What the fine index records of a start, whoever asked first.
    start: StartPhase,
    /// Everything else that was read.
    reading: Phase,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Phase {
    requests: u64,
    /// Of the answers' bodies.
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StartPhase {
    requests: u64,
    /// Of the answers' bodies.
    bytes: u64,
    /// Spans that were fetched before anybody asked for them.
    spans: u64,
    /// Compressed bytes of those spans that nobody has read.
    unread_bytes: u64,
    /// It was given up: too much was not read, or could not be had.
    stopped: bool,
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
    /// The document of the image's fine index.
    Fine,
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
    /// Bytes of layers, and of the windows to decode them with, that came from the store.
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

impl Phases {
    fn of(opening: &Traffic, all: &Traffic, content: &ContentStats, start: &StartStats) -> Phases {
        let StartStats { spans, unread_bytes, stopped } = *start;
        let (requests, bytes) = (content.start_requests, content.start_bytes);
        let rest = |all: u64, opening: u64, start: u64| all.saturating_sub(opening).saturating_sub(start);
        Phases {
            opening: Phase { requests: opening.requests, bytes: opening.bytes },
            start: StartPhase { requests, bytes, spans, unread_bytes, stopped },
            reading: Phase {
                requests: rest(all.requests, opening.requests, requests),
                bytes: rest(all.bytes, opening.bytes, bytes),
            },
        }
    }
}

/// `mount` and `bundle`, once the files are there.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Ready {
    /// Where the image is mounted, or the directory of the bundle.
    pub dir: String,
    #[serde(flatten)]
    pub figures: Figures,
    pub seconds_to_mount: f64,
}

impl Figures {
    pub(crate) fn of(opened: &Opened) -> Figures {
        let image = &opened.image;
        let layers = image.layers.iter().map(|layer| Layer {
            digest: layer.descriptor.digest.into(),
            size: layer.descriptor.size,
            how: match layer.how {
                How::Fine => ReadBy::Fine,
                How::Index => ReadBy::Index,
                How::Local => ReadBy::Local,
                How::Whole => ReadBy::Whole,
            },
            bytes_read: layer.bytes_read,
        });
        let stats = image.content.stats();
        let fine = image.fine.as_ref().filter(|_| image.layers.iter().any(|layer| layer.how == How::Fine));
        Figures {
            image: opened.name.clone(),
            manifest: Manifest::of(&image.manifest),
            index: image.index.as_ref().map(IndexRef::found),
            fine_index: fine.map(IndexRef::fine),
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
            phases: Phases::of(&image.opening, &image.source.traffic(), &stats, &image.content.start_stats()),
        }
    }
}
