//! `diff`: two ztocs, entry by entry and span by span, or two SOCI indexes, layer by layer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::discover::{DiscoverError, discover, fetch_ztoc};
use super::doctor::NoIndex;
use super::resolve::ResolveError;
use ociseek_format::digest::Digest;
use ociseek_format::image::manifest::OCI_MANIFEST;
use ociseek_format::image::soci::{self, FoundIndex, ZtocRef};
use ociseek_format::image::{Descriptor, Platform};
use ociseek_format::layer::prove::differing;
use ociseek_format::layer::shown;
use ociseek_format::offset::SpanId;
use ociseek_format::progress::Progress;
use ociseek_format::ztoc::{self, Checkpoints, FileMetadata, Ztoc, ZtocError};
use ociseek_store::Source;
use ociseek_store::blob::Target;

/// The maximum number of changes that are listed for a ztoc. Further ones are only counted.
const MOST: usize = 1000;

/// What differs. Programs read [`ChangeCode::word`], which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChangeCode {
    /// The versions of the format differ.
    Version,
    /// Different tools made them.
    Tool,
    /// They say that the layer is compressed differently.
    Compression,
    /// They state different sizes of the blob or the tar.
    Size,
    /// They have different span sizes.
    SpanSize,
    /// They have different numbers of spans.
    Spans,
    /// A span starts elsewhere.
    SpanStart,
    /// A span has another digest.
    SpanDigest,
    /// A checkpoint has another window.
    CheckpointWindow,
    /// A checkpoint starts at another bit.
    CheckpointBits,
    /// An entry is in A only.
    EntryRemoved,
    /// An entry is in B only.
    EntryAdded,
    /// An entry comes earlier in B.
    EntryOrder,
    /// A field of an entry differs.
    EntryField,
    /// The indexes belong to different images.
    Subject,
    /// The indexes list different blobs in addition to ztocs.
    OtherBlobs,
    /// The indexes state different media types of the layer.
    MediaType,
    /// Only A has a ztoc for the layer.
    ZtocRemoved,
    /// Only B has a ztoc for the layer.
    ZtocAdded,
}

impl ChangeCode {
    /// The stable word.
    pub fn word(self) -> &'static str {
        match self {
            ChangeCode::Version => "version",
            ChangeCode::Tool => "tool",
            ChangeCode::Compression => "compression",
            ChangeCode::Size => "size",
            ChangeCode::SpanSize => "span-size",
            ChangeCode::Spans => "spans",
            ChangeCode::SpanStart => "span-start",
            ChangeCode::SpanDigest => "span-digest",
            ChangeCode::CheckpointWindow => "checkpoint-window",
            ChangeCode::CheckpointBits => "checkpoint-bits",
            ChangeCode::EntryRemoved => "entry-removed",
            ChangeCode::EntryAdded => "entry-added",
            ChangeCode::EntryOrder => "entry-order",
            ChangeCode::EntryField => "entry-field",
            ChangeCode::Subject => "subject",
            ChangeCode::OtherBlobs => "other-blobs",
            ChangeCode::MediaType => "media-type",
            ChangeCode::ZtocRemoved => "ztoc-removed",
            ChangeCode::ZtocAdded => "ztoc-added",
        }
    }
}

/// A difference between A and B.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentChange {
    /// What differs.
    pub code: ChangeCode,
    /// The description for people.
    pub text: String,
    /// The span that changed, if it is about one.
    pub span: Option<SpanId>,
    /// The name of the entry that changed, if it is about one.
    pub entry: Option<Box<[u8]>>,
}

/// The differences between two documents.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The listed ones, in the order of the documents.
    pub list: Vec<DocumentChange>,
    /// The number of further differences.
    pub more: u64,
}

impl Changes {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn add(
        &mut self,
        code: ChangeCode,
        text: impl FnOnce() -> String,
        span: Option<SpanId>,
        entry: Option<&[u8]>,
    ) {
        if self.list.len() < MOST {
            self.list.push(DocumentChange {
                code,
                text: text(),
                span,
                entry: entry.map(Into::into),
            });
        } else {
            self.more += 1;
        }
    }

    /// Compares a value that both documents have.
    fn value<T: PartialEq + std::fmt::Display>(
        &mut self,
        code: ChangeCode,
        what: &str,
        a: T,
        b: T,
    ) {
        if a != b {
            self.add(code, || format!("{what}: {a} in A, {b} in B"), None, None);
        }
    }
}

/// The differences between two ztocs.
pub fn ztocs(a: &Ztoc, b: &Ztoc) -> Changes {
    let mut changes = Changes::default();
    let quoted = |text: &[u8]| format!("\"{}\"", text.escape_ascii());
    let compression = |ztoc: &Ztoc| match ztoc.checkpoints {
        Checkpoints::Gzip { .. } => "gzip",
        Checkpoints::Uncompressed { .. } => "uncompressed",
    };
    changes.value(ChangeCode::Version, "format version", quoted(&a.version), quoted(&b.version));
    changes.value(
        ChangeCode::Tool,
        "made by",
        quoted(&a.build_tool_identifier),
        quoted(&b.build_tool_identifier),
    );
    changes.value(ChangeCode::Compression, "the layer is", compression(a), compression(b));
    changes.value(ChangeCode::Size, "bytes of the layer", a.compressed_size.0, b.compressed_size.0);
    changes.value(
        ChangeCode::Size,
        "bytes of the tar",
        a.uncompressed_size.0,
        b.uncompressed_size.0,
    );
    changes.value(
        ChangeCode::SpanSize,
        "span size",
        a.checkpoints.span_size(),
        b.checkpoints.span_size(),
    );
    changes.value(
        ChangeCode::Spans,
        "number of spans",
        a.checkpoints.spans(),
        b.checkpoints.spans(),
    );
    spans(a, b, &mut changes);
    entries(&a.files, &b.files, &mut changes);
    changes
}

fn spans(a: &Ztoc, b: &Ztoc, changes: &mut Changes) {
    let count = a.checkpoints.spans().min(b.checkpoints.spans());
    for span in (0..count).map_while(|span| u32::try_from(span).ok()).map(SpanId) {
        let start_a = a.checkpoints.start(span);
        let start_b = b.checkpoints.start(span);
        if let (Some((in_a, out_a)), Some((in_b, out_b))) = (start_a, start_b)
            && start_a != start_b
        {
            let text = || {
                format!(
                    "span {span} starts at byte {in_a} of the layer and {out_a} of the tar in A, at {in_b} and \
                     {out_b} in B"
                )
            };
            changes.add(ChangeCode::SpanStart, text, Some(span), None);
        }
        let place = span.0 as usize;
        let digest_a = a.span_digests.get(place);
        let digest_b = b.span_digests.get(place);
        if let (Some(in_a), Some(in_b)) = (digest_a, digest_b)
            && in_a != in_b
        {
            changes.add(
                ChangeCode::SpanDigest,
                || format!("span {span} is {in_a} in A, {in_b} in B"),
                Some(span),
                None,
            );
        }
        if let (Checkpoints::Gzip { list: in_a, .. }, Checkpoints::Gzip { list: in_b, .. }) =
            (&a.checkpoints, &b.checkpoints)
            && let (Some(in_a), Some(in_b)) = (in_a.get(place), in_b.get(place))
        {
            if in_a.window != in_b.window {
                let text = || format!("the windows of checkpoint {span} differ");
                changes.add(ChangeCode::CheckpointWindow, text, Some(span), None);
            }
            if in_a.bits != in_b.bits {
                let text = || {
                    format!(
                        "checkpoint {span} starts {} bits early in A, {} in B",
                        in_a.bits, in_b.bits
                    )
                };
                changes.add(ChangeCode::CheckpointBits, text, Some(span), None);
            }
        }
    }
}

/// Entries with the same name are compared in order, because a tar may contain a name twice.
fn entries(a: &[FileMetadata], b: &[FileMetadata], changes: &mut Changes) {
    if a == b {
        return;
    }
    let mut by_name: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    for (place, file) in b.iter().enumerate().rev() {
        by_name.entry(&file.name).or_default().push(place);
    }
    let mut met = vec![false; b.len()];
    let mut furthest = None;
    for file in a {
        let name = &file.name[..];
        let Some(place) = by_name.get_mut(name).and_then(Vec::pop) else {
            changes.add(
                ChangeCode::EntryRemoved,
                || format!("{} is in A only", shown(name)),
                None,
                Some(name),
            );
            continue;
        };
        met[place] = true;
        if furthest.is_some_and(|furthest| place < furthest) {
            changes.add(
                ChangeCode::EntryOrder,
                || format!("{} comes earlier in B", shown(name)),
                None,
                Some(name),
            );
        }
        furthest = furthest.max(Some(place));
        for (field, in_a, in_b) in differing(file, &b[place]) {
            let text = || format!("{}: {field} {in_a} in A, {in_b} in B", shown(name));
            changes.add(ChangeCode::EntryField, text, None, Some(name));
        }
    }
    for (file, _) in b.iter().zip(met).filter(|(_, met)| !met) {
        changes.add(
            ChangeCode::EntryAdded,
            || format!("{} is in B only", shown(&file.name)),
            None,
            Some(&file.name),
        );
    }
}

/// A SOCI index and the store of its ztocs.
pub struct Side {
    source: Source,
    /// Its manifest.
    pub manifest: Descriptor,
    /// The parsed manifest.
    pub index: FoundIndex,
}

ociseek_format::opaque_debug!(Side);

/// The differences between two indexes.
#[derive(Debug)]
pub struct IndexDiff {
    /// Differences between the indexes themselves.
    pub changes: Changes,
    /// For each layer with a ztoc in A or B, in the order of A and then of B: whether they differ.
    pub layers: Vec<LayerDiff>,
}

/// The ztocs of a layer in A and B.
#[derive(Debug)]
pub struct LayerDiff {
    /// The digest of the layer's blob.
    pub layer: Digest,
    /// The ztoc in A.
    pub a: Option<Digest>,
    /// The ztoc in B.
    pub b: Option<Digest>,
    /// The differences between the ztocs. Empty if only one index has a ztoc.
    pub changes: Changes,
}

impl IndexDiff {
    /// Whether the indexes and all their ztocs are equal.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.layers.iter().all(|layer| layer.a == layer.b && layer.changes.is_empty())
    }
}

/// Why two indexes cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum DiffError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error("the image {0} has no usable SOCI index")]
    NoIndex(Digest, NoIndex),
    #[error("ztoc {ztoc} cannot be used")]
    Ztoc { ztoc: Digest, source: ZtocError },
}

/// The index that `root` names by digest, or the one that a reader takes for the image of one
/// platform.
///
/// # Errors
/// If it cannot be read, or the image has none.
pub async fn side(
    source: &Source,
    root: &Target,
    platform: Option<&Platform>,
    progress: &Arc<dyn Progress>,
) -> Result<Side, DiffError> {
    let document =
        source.manifest(root).await.map_err(ResolveError::Find).map_err(DiscoverError::from)?;
    if let Ok(index) = soci::parse(&document.bytes) {
        let manifest = Descriptor::new(OCI_MANIFEST, document.digest, document.bytes.len() as u64);
        return Ok(Side { source: source.clone(), manifest, index });
    }
    let mut image = discover(source, root, platform, None, progress).await?;
    let none = DiffError::NoIndex(image.manifest.digest, NoIndex::of(&image.layers));
    let Some(place) = image.chosen else { return Err(none) };
    let found = image.indexes.swap_remove(place);
    // One that was read has a size.
    let (Ok(content), Some(size)) = (found.content, found.size) else { return Err(none) };
    let manifest = Descriptor::new(OCI_MANIFEST, found.digest, size);
    Ok(Side { source: source.clone(), manifest, index: content.index })
}

/// Compares two indexes. Ztocs with different digests are fetched and compared.
///
/// # Errors
/// If a ztoc cannot be read.
pub async fn indexes(a: &Side, b: &Side) -> Result<IndexDiff, DiffError> {
    let mut changes = Changes::default();
    let none = || "none".to_owned();
    let tool = |side: &Side| {
        side.index.build_tool_identifier.as_ref().map_or_else(none, |tool| format!("{tool:?}"))
    };
    let subject = |side: &Side| {
        side.index.subject.as_ref().map_or_else(none, |subject| subject.digest.to_string())
    };
    changes.value(
        ChangeCode::Version,
        "version",
        a.index.version.number(),
        b.index.version.number(),
    );
    changes.value(ChangeCode::Tool, "made by", tool(a), tool(b));
    changes.value(ChangeCode::Subject, "subject", subject(a), subject(b));
    let others = |side: &Side| {
        side.index.others.iter().map(|blob| blob.digest.to_string()).collect::<Vec<_>>().join(" ")
    };
    changes.value(ChangeCode::OtherBlobs, "other blobs", others(a), others(b));

    let mut layers = Vec::new();
    let mut seen = BTreeSet::new();
    let ztocs_of_a = a.index.by_layer();
    let ztocs_of_b = b.index.by_layer();
    for layer in a
        .index
        .ztocs
        .iter()
        .chain(&b.index.ztocs)
        .map(|ztoc| ztoc.layer)
        .filter(|layer| seen.insert(*layer))
    {
        let in_a = ztocs_of_a.get(&layer).copied();
        let in_b = ztocs_of_b.get(&layer).copied();
        let mut changes = Changes::default();
        match (in_a, in_b) {
            (Some(in_a), Some(in_b)) => {
                changes.value(
                    ChangeCode::MediaType,
                    "media type",
                    &in_a.layer_media_type,
                    &in_b.layer_media_type,
                );
                if in_a.ztoc != in_b.ztoc {
                    let found = ztocs(&read(a, in_a).await?, &read(b, in_b).await?);
                    changes.list.extend(found.list);
                    changes.more += found.more;
                }
            }
            (Some(_), None) => changes.add(
                ChangeCode::ZtocRemoved,
                || "A only has a ztoc for it".to_owned(),
                None,
                None,
            ),
            _ => changes.add(
                ChangeCode::ZtocAdded,
                || "B only has a ztoc for it".to_owned(),
                None,
                None,
            ),
        }
        let digest = |ztoc: Option<&ZtocRef>| ztoc.map(|ztoc| ztoc.ztoc);
        layers.push(LayerDiff { layer, a: digest(in_a), b: digest(in_b), changes });
    }
    Ok(IndexDiff { changes, layers })
}

async fn read(side: &Side, reference: &ZtocRef) -> Result<Ztoc, DiffError> {
    let bytes = fetch_ztoc(&side.source, reference).await?;
    ztoc::decode(&bytes).map_err(|source| DiffError::Ztoc { ztoc: reference.ztoc, source })
}
