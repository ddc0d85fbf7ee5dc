//! The findings about an image's indexes: problems and noteworthy facts. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::TOOL_IDENTIFIER;
use crate::cache_fit::LargerThanCache;
use crate::consumers::{BrokenDocument, BrokenZtoc, Effect, Pieces};
use crate::discover::{DiscoveredImage, DiscoveryMethod, FoundIndexRef, Note};
use crate::inspect::InspectedImage;
use crate::maker;
use ociseek_format::digest::Digest;
use ociseek_format::image::soci::Version;
use ociseek_format::image::{Descriptor, LayerKind, NotIndexed, Platform};
use ociseek_format::progress::causes;

/// The smallest size of an image for which Fargate's documentation recommends lazy loading, in
/// bytes: 250 MiB.
const WORTHWHILE: u64 = 250 << 20;

/// A finding about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// No SOCI index is attached. With a usable fine index it is not a problem.
    NoIndex { why: NoIndex, has_fine: bool },
    /// Referrers cannot be listed, with the reason.
    NotListed(String),
    /// The manifest's annotation for an index of version 2 is not a digest.
    OddAnnotation(String),
    /// Several indexes of version 1, in the listed order.
    Several(Vec<Digest>),
    /// An index that nobody can use, with the reason.
    Unusable { index: Digest, version: Version, why: String },
    /// A fault of an entry in an index.
    Note { index: Digest, note: Note },
    /// An index names blobs that the store does not have.
    LostBlobs { index: Digest, blobs: Vec<Digest> },
    /// A ztoc that a reader takes is damaged or belongs to another layer.
    BrokenZtoc(BrokenZtoc),
    /// The store lacks a layer of the image.
    LostLayer(Digest),
    /// The store lacks the image's config.
    LostConfig(Digest),
    /// Indexes that refer to the image index, where no consumer looks.
    OnImageIndex(Vec<Digest>),
    /// There is an index of version 1, but none of version 2.
    OnlyV1,
    /// The index was made by another version of this program.
    OtherVersion { index: Digest, tool: String },
    /// The index was made by another tool. None if it names none.
    Foreign { index: Digest, tool: Option<String> },
    /// A layer is not in the index that a reader takes.
    Uncovered {
        layer: Digest,
        size: u64,
        /// None if it depends on its content, or on the options with which the index was made.
        why: Option<NotIndexed>,
    },
    /// The layers are so small, all together in bytes, that lazy loading gains little.
    SmallImage(u64),
    /// No fine index is attached, and there could be one. Whether there is a SOCI index.
    NoFine { is_indexed: bool },
    /// A fine index that nobody can use; why.
    UnusableFine { index: Digest, why: String },
    /// A document of the fine index that a reader takes is missing, damaged or another layer's.
    BrokenDocument(BrokenDocument),
    /// The fine index that a reader takes was built without a recorded start.
    NoStart(Digest),
    /// A cache does not hold the image.
    LargerThanCache(LargerThanCache),
}

/// Whether an image without an index could have one. Every command judges by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoIndex {
    /// It could have one.
    Possible,
    /// All layers are smaller than the default minimum size.
    Small,
    /// No layer is indexed by default, and not all because of their size.
    Impossible {
        /// How many layers for each reason.
        reasons: BTreeMap<&'static str, usize>,
        /// Whether a layer could be indexed if it were gzip.
        has_large_zstd: bool,
    },
}

impl NoIndex {
    /// The judgement on an image with these layers.
    pub fn of(layers: &[Descriptor]) -> NoIndex {
        let mut reasons: BTreeMap<&'static str, usize> = BTreeMap::new();
        for layer in layers {
            match why_not(layer) {
                None => return NoIndex::Possible,
                Some(why) => *reasons.entry(why.code()).or_default() += 1,
            }
        }
        if reasons.keys().all(|code| *code == SMALL) && !reasons.is_empty() {
            NoIndex::Small
        } else {
            let is_large_zstd = |layer: &Descriptor| {
                layer.size >= NotIndexed::MIN_LAYER_SIZE
                    && LayerKind::of(&layer.media_type) == LayerKind::Zstd
            };
            NoIndex::Impossible { reasons, has_large_zstd: layers.iter().any(is_large_zstd) }
        }
    }
}

impl fmt::Display for NoIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoIndex::Possible => f.write_str("the image has no SOCI index"),
            NoIndex::Small => f.write_str(
                "the image has no SOCI index: its layers are all smaller than 10 MiB, and faster to pull whole than \
                 to mount",
            ),
            NoIndex::Impossible { reasons, .. } => {
                f.write_str("the image has no SOCI index, and none of its layers can be indexed")?;
                for (place, (code, count)) in reasons.iter().enumerate() {
                    let word = if *code == SMALL { "smaller than 10 MiB" } else { code };
                    write!(f, "{} {count} {word}", if place == 0 { ":" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

/// The code of a layer that is left out because of its size.
const SMALL: &str = "too-small";

impl Finding {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Finding::NoIndex { .. } => "no-index",
            Finding::NotListed(_) => "not-listed",
            Finding::OddAnnotation(_) => "odd-annotation",
            Finding::Several(_) => "several-indexes",
            Finding::Unusable { .. } => "unusable-index",
            Finding::Note { note, .. } => note.code().word(),
            Finding::LostBlobs { .. } => "missing-blobs",
            Finding::BrokenZtoc(_) => "broken-ztoc",
            Finding::LostLayer(_) => "missing-layer",
            Finding::LostConfig(_) => "missing-config",
            Finding::OnImageIndex(_) => "on-image-index",
            Finding::OnlyV1 => "only-version-1",
            Finding::OtherVersion { .. } => "other-version",
            Finding::Foreign { .. } => "foreign-index",
            Finding::Uncovered { why, .. } => uncovered_code(*why),
            Finding::SmallImage(_) => "small-image",
            Finding::NoFine { .. } => "no-fine-index",
            Finding::UnusableFine { .. } => "unusable-fine-index",
            Finding::BrokenDocument(_) => "broken-fine-document",
            Finding::NoStart(_) => "no-recorded-start",
            Finding::LargerThanCache(_) => "larger-than-cache",
        }
    }

    /// Whether it prevents consumers from using an index. Other findings are only informative.
    pub fn is_problem(&self) -> bool {
        match self {
            Finding::Note { note, .. } => !note.is_harmless() || matches!(note, Note::NotBeside),
            Finding::NoIndex { has_fine, .. } => !has_fine,
            Finding::NotListed(_)
            | Finding::OddAnnotation(_)
            | Finding::Several(_)
            | Finding::Unusable { .. }
            | Finding::LostBlobs { .. }
            | Finding::BrokenZtoc(_)
            | Finding::LostLayer(_)
            | Finding::LostConfig(_)
            | Finding::OnImageIndex(_)
            | Finding::UnusableFine { .. }
            | Finding::BrokenDocument(_) => true,
            Finding::OnlyV1
            | Finding::OtherVersion { .. }
            | Finding::Foreign { .. }
            | Finding::Uncovered { .. }
            | Finding::SmallImage(_)
            | Finding::NoFine { .. }
            | Finding::NoStart(_)
            | Finding::LargerThanCache(_) => false,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |digests: &[Digest]| {
            digests.iter().map(Digest::to_string).collect::<Vec<_>>().join(", ")
        };
        match self {
            Finding::NoIndex { why, .. } => why.fmt(f),
            Finding::NotListed(why) => write!(f, "cannot list indexes of version 1: {why}"),
            Finding::OddAnnotation(odd) => write!(f, "the manifest names an index by {odd:?}, which is not a digest"),
            Finding::Several(all) => {
                write!(f, "{} indexes of version 1 are listed; consumers use the first: {}", all.len(), list(all))
            }
            Finding::Unusable { index, why, .. } => write!(f, "index {index} cannot be used: {why}"),
            Finding::Note { index, note } => write!(f, "index {index}: {note}"),
            Finding::LostBlobs { index, blobs } => {
                write!(f, "index {index} names missing blobs, so consumers pull the image whole: {}", list(blobs))
            }
            Finding::BrokenZtoc(BrokenZtoc { ztoc, layer, why, effect }) => {
                let effect = match effect {
                    Effect::DropsIndex => "consumers pull the image whole",
                    Effect::PullsLayer => "consumers pull this layer whole",
                    Effect::FailsReads => "consumers mount this layer, and reading its files fails",
                };
                write!(f, "ztoc {ztoc} of layer {layer} cannot be used, so {effect}: {why}")
            }
            Finding::LostConfig(config) => {
                write!(f, "the image's config {config} is missing: nobody can pull the image")
            }
            Finding::LostLayer(layer) => write!(f, "layer {layer} is missing: nobody can pull the image"),
            Finding::OnImageIndex(all) => write!(
                f,
                "these indexes refer to the image index, but consumers look at their platform's manifest: {}",
                list(all)
            ),
            Finding::OnlyV1 => f.write_str(
                "the index is of version 1: soci-snapshotter 0.10 or later reads it only with soci_v1 enabled, Amazon \
                 SageMaker Studio does not read it, and Fargate did so only for accounts with earlier SOCI use, with \
                 an announced end on 9 February 2026",
            ),
            Finding::OtherVersion { index, tool } => write!(f, "index {index} was made by {tool:?}"),
            Finding::Foreign { index, tool: Some(tool) } => {
                write!(f, "index {index} was made by another tool, {tool:?}")
            }
            Finding::Foreign { index, tool: None } => write!(f, "index {index} does not say which tool made it"),
            Finding::Uncovered { layer, why, .. } => {
                write!(f, "layer {layer} is pulled whole: {}", uncovered_text(*why))
            }
            Finding::SmallImage(_) => f.write_str(
                "Fargate's documentation recommends lazy loading from 250 MiB of layers on, and the image has less",
            ),
            Finding::NoFine { .. } => f.write_str(
                "the image has no fine index, with which ociseek itself starts it sooner (snapshotter, store, mount, \
                 bundle)",
            ),
            Finding::UnusableFine { index, why } => write!(f, "fine index {index} cannot be used: {why}"),
            Finding::BrokenDocument(BrokenDocument { document, layer, why }) => {
                write!(f, "fine document {document} cannot be used, so ociseek reads layer {layer} without it: {why}")
            }
            Finding::NoStart(index) => write!(
                f,
                "fine index {index} has no recorded startup: startup waits for each part that it reads"
            ),
            Finding::LargerThanCache(larger) => {
                f.write_str(&larger.text(|bytes| format!("{bytes} bytes")))
            }
        }
    }
}

/// All findings about the image of one platform, problems first.
pub fn findings(inspected: &InspectedImage) -> Vec<Finding> {
    let InspectedImage { image, pieces, .. } = inspected;
    let mut all = Vec::new();
    all.extend(pieces.config.map(Finding::LostConfig));
    all.extend(pieces.layers.iter().map(|layer| Finding::LostLayer(*layer)));
    // No index makes it start sooner.
    if !is_linux(image) {
        return all;
    }
    if let Err(error) = &image.listing {
        all.push(Finding::NotListed(causes(error)));
    }
    all.extend(image.odd_annotation.iter().map(|odd| Finding::OddAnnotation(odd.clone())));
    if image.indexes.is_empty() && image.listing.is_ok() {
        all.push(Finding::NoIndex {
            why: NoIndex::of(&image.layers),
            has_fine: image.fine_index().is_some(),
        });
    }
    if !pieces.on_image_index.is_empty() {
        all.push(Finding::OnImageIndex(pieces.on_image_index.clone()));
    }
    let v1: Vec<Digest> =
        image.indexes.iter().filter(|index| is_v1(index)).map(|index| index.digest).collect();
    if v1.len() > 1 {
        all.push(Finding::Several(v1.clone()));
    }
    image.indexes.iter().for_each(|index| about(&mut all, index, pieces));
    all.extend(pieces.broken.iter().map(|broken| Finding::BrokenZtoc(broken.clone())));
    if !v1.is_empty() && image.indexes.iter().all(is_v1) {
        all.push(Finding::OnlyV1);
    }
    uncovered(&mut all, image);
    let bytes: u64 = image.layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
    if bytes < WORTHWHILE {
        all.push(Finding::SmallImage(bytes));
    }
    fine(&mut all, image, pieces);
    all.sort_by_key(|finding| !finding.is_problem());
    all
}

/// Whether containers of the image run on Linux, as all runtimes do that load images lazily.
pub(super) fn is_linux(image: &DiscoveredImage) -> bool {
    image.platform.as_ref().is_none_or(Platform::is_linux)
}

fn fine(all: &mut Vec<Finding>, image: &DiscoveredImage, pieces: &Pieces) {
    let unusable =
        image.fine.iter().filter_map(|index| Some((index.digest, index.content.as_ref().err()?)));
    all.extend(unusable.map(|(index, why)| Finding::UnusableFine { index, why: causes(why) }));
    all.extend(pieces.documents.iter().map(|broken| Finding::BrokenDocument(broken.clone())));
    match image.fine_index() {
        Some((digest, content)) if content.index.profile.is_none() => {
            all.push(Finding::NoStart(digest.digest))
        }
        Some(_) => {}
        None if image.listing.is_ok()
            && image.layers.iter().any(|layer| why_not(layer).is_none()) =>
        {
            all.push(Finding::NoFine { is_indexed: !image.indexes.is_empty() });
        }
        None => {}
    }
}

fn is_v1(index: &FoundIndexRef) -> bool {
    index.via != DiscoveryMethod::Annotation
}

fn about(all: &mut Vec<Finding>, reference: &FoundIndexRef, pieces: &Pieces) {
    let index = reference.digest;
    let content = match &reference.content {
        Ok(content) => content,
        Err(why) => {
            return all.push(Finding::Unusable {
                index,
                version: reference.version,
                why: causes(why),
            });
        }
    };
    if let Some(blobs) = pieces.lost.get(&index) {
        all.push(Finding::LostBlobs { index, blobs: blobs.iter().copied().collect() });
    }
    all.extend(content.notes.iter().map(|note| Finding::Note { index, note: note.clone() }));
    match content.index.build_tool_identifier.as_deref() {
        Some(TOOL_IDENTIFIER) => {}
        Some(tool) if maker::is_ours(tool) => {
            all.push(Finding::OtherVersion { index, tool: cut(tool) })
        }
        tool => all.push(Finding::Foreign { index, tool: tool.map(cut) }),
    }
}

/// The layers that are not in the index which a reader takes; without an index, only those that
/// cannot be indexed.
fn uncovered(all: &mut Vec<Finding>, image: &DiscoveredImage) {
    let mut seen = BTreeSet::new();
    for layer in image.layers.iter().filter(|layer| image.ztoc_for(&layer.digest).is_none()) {
        let why = match why_not(layer) {
            None | Some(NotIndexed::Small { .. }) if image.chosen.is_none() => continue,
            why => why,
        };
        if seen.insert(layer.digest) {
            all.push(Finding::Uncovered { layer: layer.digest, size: layer.size, why });
        }
    }
}

/// Why consumers pull a layer completely, as a stable word for programs. None if it depends on its
/// content, or on the options with which the index was made.
pub fn uncovered_code(why: Option<NotIndexed>) -> &'static str {
    why.map_or("layer-not-covered", NotIndexed::code)
}

/// The same reason for people.
pub fn uncovered_text(why: Option<NotIndexed>) -> &'static str {
    match why {
        Some(NotIndexed::Kind(LayerKind::Zstd)) => {
            "it is zstd, but consumers support only gzip and plain tars"
        }
        Some(NotIndexed::Kind(LayerKind::Foreign)) => "a foreign layer, which is not in this store",
        Some(NotIndexed::Kind(LayerKind::Encrypted)) => "it is encrypted",
        Some(NotIndexed::Kind(_)) => "its layer type is unknown",
        Some(NotIndexed::Small { .. }) => "it is small, and faster to pull whole than to mount",
        None => "the index has no ztoc for it",
    }
}

/// Why tools do not index a layer, according to its media type and size.
pub fn why_not(layer: &Descriptor) -> Option<NotIndexed> {
    NotIndexed::of(layer, NotIndexed::MIN_LAYER_SIZE)
}

fn cut(text: &str) -> String {
    text.chars().take(150).collect()
}
