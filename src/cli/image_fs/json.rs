//! The JSON about mounts and their reads: for `--format json` and `--stats-file`.

use serde::Serialize;

use crate::cli::image_fs::OpenedImage;
use crate::cli::shared::json::{DigestText, IndexRef, Manifest};
use ociseek_rootfs::content::{ContentStats, StartStats};
use ociseek_rootfs::layers::LayerAccess;
use ociseek_store::Traffic;

/// Statistics on reading an image.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Figures {
    /// The full name of IMAGE.
    image: String,
    manifest: Manifest,
    /// The SOCI index that was used, or null.
    index: Option<IndexRef>,
    /// The fine index that was used, or null.
    fine_index: Option<IndexRef>,
    /// Who vouches for the files, at least: `proven`, `signed`, `bound`, `named` or `repository`.
    trust: &'static str,
    /// The layers from the bottom up.
    layers: Vec<Layer>,
    content: Content,
    phases: Phases,
}

/// Requests to the registry and the size of the responses, by purpose. Redirects and tokens count.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Phases {
    /// To open the image: manifests, the config, indexes.
    opening: Phase,
    /// The startup that the fine index records, whether or not a read requested it first.
    start: StartPhase,
    /// Everything else that was read.
    reading: Phase,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Phase {
    requests: u64,
    /// Size of the response bodies.
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StartPhase {
    requests: u64,
    /// Size of the response bodies.
    bytes: u64,
    /// Number of spans that were fetched before they were requested.
    spans: u64,
    /// Compressed size of those spans that were not read.
    unread_bytes: u64,
    /// Whether fetching waits or has ended because too much was not read or not available.
    stopped: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    digest: DigestText,
    /// Size of the blob in bytes.
    size: u64,
    how: ReadBy,
    /// Who vouches for its files.
    trust: &'static str,
    /// Bytes that were read to open it.
    bytes_read: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum ReadBy {
    /// The document in the image's fine index.
    Fine,
    /// The ztoc in the image's SOCI index.
    Index,
    /// A layer map that was built on this machine, now or earlier.
    Local,
    /// The blob is decoded from start to end, and its tar is cached.
    Whole,
}

/// Statistics since the image was opened.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Content {
    /// Requests for layers or parts of them, without redirects and tokens.
    requests: u64,
    /// Bytes of layers, and of the windows for decoding them, that came from the store.
    bytes_fetched: u64,
    spans_decoded: u64,
    /// Number of parts of spans served from memory.
    memory_hits: u64,
    /// Number of parts of spans served from the cache on disk.
    disk_hits: u64,
    /// Number of requests that were repeated because they failed or returned wrong bytes.
    retries: u64,
    /// Number of failed reads.
    errors: u64,
    /// Size of all layers in the store, in bytes.
    image_bytes: u64,
}

/// The document of `mount --stats-file` and `bundle --stats-file`.
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
        let requests = content.start_requests;
        let bytes = content.start_bytes;
        let rest =
            |all: u64, opening: u64, start: u64| all.saturating_sub(opening).saturating_sub(start);
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

/// The document of `mount` and `bundle` after mounting.
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
    pub(crate) fn of(opened: &OpenedImage) -> Figures {
        let image = &opened.image;
        let layers = image.layers.iter().map(|layer| Layer {
            digest: layer.descriptor.digest.into(),
            size: layer.descriptor.size,
            how: match layer.how {
                LayerAccess::Fine => ReadBy::Fine,
                LayerAccess::Index => ReadBy::Index,
                LayerAccess::Local => ReadBy::Local,
                LayerAccess::Whole => ReadBy::Whole,
            },
            trust: layer.trust.code(),
            bytes_read: layer.bytes_read,
        });
        let stats = image.content.stats();
        let fine = image
            .fine
            .as_ref()
            .filter(|_| image.layers.iter().any(|layer| layer.how == LayerAccess::Fine));
        Figures {
            image: opened.name.clone(),
            manifest: Manifest::of(&image.manifest),
            index: image.index.as_ref().map(IndexRef::found),
            fine_index: fine.map(IndexRef::fine),
            trust: image.trust().code(),
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
            phases: Phases::of(
                &image.opening,
                &image.source.traffic(),
                &stats,
                &image.content.start_stats(),
            ),
        }
    }
}
