//! The JSON output of `ociseek try`.

use serde::Serialize;

use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{
    self, Coded, CoverageJson, DigestText, Manifest, milliseconds, utf8,
};
use crate::cli::trial::answer::{self, TrialAnswer};
use ociseek_ops::report::{self as facts, Lazy};
use ociseek_rootfs::record::Touch;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Trial<'a> {
    /// The full name of IMAGE.
    image: String,
    manifest: Manifest,
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    /// The SOCI index that is used, or null.
    index: Option<Index<'a>>,
    /// The fine index through which `ociseek mount` and `bundle` would read it, or null.
    fine: Option<Fine<'a>>,
    /// By the SOCI index.
    coverage: CoverageJson,
    totals: Totals,
    /// The hundred largest layers, from the bottom up.
    layers: Vec<Layer<'a>>,
    /// The number of smaller layers that are not listed.
    layers_left_out: usize,
    /// The largest files, the largest first.
    largest: Vec<File<'a>>,
    /// What startup reads; null if that is not known.
    start: Option<Start<'a>>,
    /// What it fetches: with the actual spans of the SOCI index, and estimates for other span
    /// sizes. Empty if it is not known what it reads.
    sizes: Vec<Fetch>,
    /// From where it is known what startup reads.
    startup: StartupJson,
    /// The ways to start the image, and what each fetches until the container is ready.
    ways: Vec<WayJson>,
    link: LinkJson,
    /// Whether to load the image lazily: `lazy`, `pull-whole`, `not-indexable`, `not-linux` or
    /// `unknown`, with the sentence that says so.
    answer: Coded,
    /// The command to run next, or null.
    next: Option<String>,
    /// The first reads of each file, or of some of its bytes. Empty if no container ran.
    touches: Vec<Read<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StartupJson {
    /// `run`: a container ran. `recorded`: from --profile. `estimated`: only the files that the
    /// command needs at least.
    from: &'static str,
    /// Why no container ran, or null.
    why: Option<String>,
    /// The exit status of the container; null if it was ended when it was ready, or did not run.
    status: Option<u8>,
    /// Whether it became ready. If not, it failed, or did not do what --until-port or
    /// --until-output asked for, and `ways` counts only what it read until then. Null if it did not
    /// run.
    is_ready: Option<bool>,
    /// How long it ran, or null.
    seconds: Option<f64>,
    /// What was fetched of the layers meanwhile, in bytes, or null. It may be in the cache.
    fetched_bytes: Option<u64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WayJson {
    /// `whole`, `soci`, `fine`, or `recorded`: a fine index with the recorded startup.
    kind: &'static str,
    /// Bytes of layers and of the index.
    bytes: u64,
    /// Their share of the size of all layers: from 0 to 1, or more.
    share: f64,
    /// Whether the image lacks that index.
    is_estimate: bool,
    /// Seconds by the measured or assumed link, and by --link.
    seconds: f64,
    seconds_by_other_link: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LinkJson {
    bits_per_second: u64,
    /// Whether it was measured while the image was read. Otherwise 100 Mbit/s is assumed.
    is_measured: bool,
    /// That of --link.
    other_bits_per_second: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Read<'a> {
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
    fn of(touch: &'a Touch) -> Read<'a> {
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

impl StartupJson {
    fn of(startup: &answer::Startup) -> StartupJson {
        let nothing = StartupJson {
            from: "",
            why: None,
            status: None,
            is_ready: None,
            seconds: None,
            fetched_bytes: None,
        };
        match startup {
            answer::Startup::Ran(ran) => StartupJson {
                from: "run",
                status: ran.status,
                is_ready: Some(ran.is_ready()),
                seconds: Some(milliseconds(ran.seconds)),
                fetched_bytes: Some(ran.fetched),
                ..nothing
            },
            answer::Startup::Recorded => StartupJson { from: "recorded", ..nothing },
            answer::Startup::Estimated { why } => {
                StartupJson { from: "estimated", why: why.clone(), ..nothing }
            }
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index<'a> {
    digest: DigestText,
    /// Size of its manifest in bytes, or null if unknown.
    size: Option<u64>,
    /// 1 or 2.
    version: u8,
    /// The tool that made it, or null.
    made_by: Option<&'a str>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ReportedFine"))]
struct Fine<'a> {
    digest: DigestText,
    /// Size of its manifest in bytes, or null if unknown.
    size: Option<u64>,
    /// The tool that made it, or null.
    made_by: Option<&'a str>,
    coverage: CoverageJson,
    /// Size of its documents in bytes.
    bytes: u64,
    /// How many of these bytes are fetched before startup.
    start_bytes: u64,
    /// The digest of the profile that it was built with, or null.
    profile: Option<DigestText>,
    /// What the recorded startup fetches by it; null if that is not known. `checkpoint_bytes` are
    /// those of its documents.
    fetch: Option<Fetch>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Totals {
    /// Size of the layers' tars in bytes. Here and below, a layer that occurs twice counts once.
    uncompressed_size: u64,
    /// Number of regular files in the flattened image.
    files: u64,
    /// Size of their content in bytes.
    file_bytes: u64,
    /// Files that upper layers replace or remove.
    shadowed: Shadowed,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Shadowed {
    files: u64,
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer<'a> {
    /// Counted from 0 at the bottom.
    number: usize,
    media_type: &'a str,
    digest: DigestText,
    /// Size of the blob in bytes.
    size: u64,
    /// The number of a lower layer with the same blob, which has its groups; or null.
    same_as: Option<usize>,
    /// Whether the index covers it.
    lazy: bool,
    /// Why the index does not cover it, or null.
    reason: Option<Coded>,
    /// The command that created it, or null.
    created_by: Option<&'a str>,
    uncompressed_size: u64,
    span_size: u64,
    spans: u32,
    /// Number of files with content in the layer's tar.
    files: u64,
    /// Those that upper layers replace or remove.
    shadowed: Shadowed,
    /// What the recorded startup needs of the layer; null if that is not known.
    read: Option<SpansRead>,
    /// Its spans, in groups of adjacent ones if there are many.
    groups: Vec<Group<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SpansRead {
    spans: u32,
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Group<'a> {
    /// The numbers of its first and its last span.
    first: u32,
    last: u32,
    /// Size in the blob in bytes; for a layer that is decoded as a whole, size in its tar.
    size: u64,
    /// Size in the tar in bytes.
    uncompressed_size: u64,
    /// How many of its spans the recorded startup needs.
    read: u32,
    /// Number of files with at least one byte in it.
    files: u64,
    /// The largest of these files; those that startup reads come first.
    largest: Vec<GroupFile<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct GroupFile<'a> {
    /// The path in the layer's tar.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    size: u64,
    /// Whether the recorded startup reads it.
    read: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct File<'a> {
    /// Path from the root of the image, without a leading slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    size: u64,
    /// The number of its layer.
    layer: u32,
    /// Whether the recorded startup reads it; null if that is not known.
    read: Option<bool>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Start<'a> {
    files: u64,
    /// Bytes of layers that it fetches with the actual spans, including layers that are pulled
    /// completely.
    bytes: u64,
    /// Number of recorded files that this image does not have.
    missing: u64,
    /// Some of these files.
    missing_files: Vec<Named<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Named<'a> {
    /// Path from the root of the image, without a leading slash.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Fetch {
    /// Span size in bytes of the tar; null for the actual spans. All others are estimates.
    span_size: Option<u64>,
    /// Number of spans in all layers that are read lazily.
    spans: u64,
    /// Size of the checkpoints in the ztocs of these layers, in bytes.
    checkpoint_bytes: u64,
    /// Number of spans that startup needs, and their size in the blobs in bytes.
    read_spans: u64,
    read_bytes: u64,
    /// An upper bound for these bytes: their size if each file that startup reads were read to
    /// its end, within the spans that it needs now. Null if that makes no difference.
    read_bytes_at_most: Option<u64>,
    /// Bytes of layers that are pulled completely.
    whole_bytes: u64,
    /// An upper bound for the sum of these bytes.
    total_bytes: u64,
}

/// The printed document.
///
/// # Errors
/// Never for this document.
pub(super) fn text(answer: &TrialAnswer<'_>) -> Result<String, CliError> {
    let report = answer.report;
    let way = |way: answer::Way| WayJson {
        kind: way.kind.code(),
        bytes: way.bytes,
        share: (way.bytes as f64 / answer.size().max(1) as f64 * 1e4).round() / 1e4,
        is_estimate: way.is_estimate,
        seconds: milliseconds(way.seconds(answer.link.speed)),
        seconds_by_other_link: milliseconds(way.seconds(answer.other_link)),
    };
    json::text(Trial {
        startup: StartupJson::of(&answer.startup),
        ways: answer.ways().into_iter().map(way).collect(),
        link: LinkJson {
            bits_per_second: answer.link.speed,
            is_measured: answer.link.is_measured,
            other_bits_per_second: answer.other_link,
        },
        answer: Coded { code: answer.advice().code(), text: answer.sentence() },
        next: answer.next(),
        touches: answer.touches.iter().map(Read::of).collect(),
        image: answer.image.to_string(),
        manifest: Manifest::of(&report.manifest),
        platform: report.platform.as_ref().map(ToString::to_string),
        index: report.index.as_ref().ok().map(|index| Index {
            digest: index.digest.into(),
            size: index.size,
            version: index.version,
            made_by: index.tool.as_deref(),
        }),
        fine: report.fine.as_ref().map(|fine| Fine {
            digest: fine.digest.into(),
            size: fine.size,
            made_by: fine.tool.as_deref(),
            coverage: CoverageJson::of(&fine.coverage),
            bytes: fine.bytes,
            start_bytes: fine.start_bytes,
            profile: fine.profile.map(DigestText::from),
            fetch: fine.fetch.as_ref().map(Fetch::of),
        }),
        coverage: CoverageJson::of(&report.coverage),
        totals: Totals {
            uncompressed_size: report.totals.plain,
            files: report.totals.files,
            file_bytes: report.totals.file_bytes,
            shadowed: Shadowed::of(report.totals.shadowed),
        },
        layers: report.layers.iter().map(Layer::of).collect(),
        layers_left_out: report.layers_left_out,
        largest: report.largest.iter().map(File::of).collect(),
        start: report.start.as_ref().map(|start| Start {
            files: start.files,
            bytes: start.bytes,
            missing: start.missing,
            missing_files: start.missing_paths.iter().map(|path| Named::of(path)).collect(),
        }),
        sizes: report.sizes.iter().map(Fetch::of).collect(),
    })
}

impl Shadowed {
    fn of(shadowed: facts::ShadowedFiles) -> Shadowed {
        Shadowed { files: shadowed.files, bytes: shadowed.bytes }
    }
}

impl<'a> Layer<'a> {
    fn of(layer: &'a facts::LayerBreakdown) -> Layer<'a> {
        Layer {
            number: layer.number.0 as usize,
            media_type: &layer.descriptor.media_type,
            digest: layer.descriptor.digest.into(),
            size: layer.descriptor.size,
            same_as: layer.same_as.map(|same| same.0 as usize),
            lazy: layer.lazy == Lazy::Yes,
            reason: match layer.lazy {
                Lazy::Yes => None,
                Lazy::No(why) => Some(Coded { code: why.code(), text: why.to_string() }),
            },
            created_by: layer.created_by.as_deref(),
            uncompressed_size: layer.plain,
            span_size: layer.span_size,
            spans: layer.spans,
            files: layer.files,
            shadowed: Shadowed::of(layer.shadowed),
            read: layer.read.map(|read| SpansRead { spans: read.spans, bytes: read.bytes }),
            groups: layer.groups.iter().map(Group::of).collect(),
        }
    }
}

impl<'a> Group<'a> {
    fn of(group: &'a facts::Group) -> Group<'a> {
        let file = |file: &'a facts::GroupFile| {
            let (path, path_b64) = utf8(&file.path);
            GroupFile { path, path_b64, size: file.size, read: file.read }
        };
        Group {
            first: group.spans.start.0,
            last: group.spans.end.0 - 1,
            size: group.bytes,
            uncompressed_size: group.plain,
            read: group.read,
            files: group.files,
            largest: group.largest.iter().map(file).collect(),
        }
    }
}

impl<'a> Named<'a> {
    fn of(path: &'a [u8]) -> Named<'a> {
        let (path, path_b64) = utf8(path);
        Named { path, path_b64 }
    }
}

impl<'a> File<'a> {
    fn of(file: &'a facts::LargeFile) -> File<'a> {
        let (path, path_b64) = utf8(&file.path);
        File { path, path_b64, size: file.size, layer: file.layer.0, read: file.read }
    }
}

impl Fetch {
    fn of(fetch: &facts::Fetch) -> Fetch {
        Fetch {
            span_size: fetch.span_size,
            spans: fetch.spans,
            checkpoint_bytes: fetch.checkpoints,
            read_spans: fetch.read,
            read_bytes: fetch.bytes,
            read_bytes_at_most: fetch.at_most,
            whole_bytes: fetch.whole,
            total_bytes: fetch.total(),
        }
    }
}
