//! Checks an index as a document, and against the image on which it was found. Its prefetch lists
//! are documents too: consumers fetch the listed spans before the container starts.

use std::collections::BTreeMap;

use super::{Problem, VerifyError};
use crate::damage::Damage;
use crate::discover::{
    DiscoveredImage, DiscoveryMethod, FineContent, FoundFineRef, FoundIndexRef, IndexContent,
    UnusableIndexError,
};
use ociseek_format::code::Code;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::prefetch::{MAX_PREFETCH, SpanRange, parse_unmerged};
use ociseek_format::image::soci::{PREFETCH, ZtocRef, prefetch_layer};
use ociseek_format::layer::prove::Difference;
use ociseek_format::offset::SpanId;
use ociseek_format::progress::causes;
use ociseek_format::ztoc::{FileKind, VERSION, Ztoc};
use ociseek_store::Source;

/// The faults of an index of this image, and its content if it can be used.
///
/// # Errors
/// If it could not be examined.
pub(super) fn of_index(
    reference: FoundIndexRef,
) -> Result<(Vec<Problem>, Option<IndexContent>), VerifyError> {
    let digest = reference.digest;
    let content = match judged("index", digest, reference.content)? {
        IndexVerdict::Usable(content) => content,
        IndexVerdict::Unusable(problem) => return Ok((vec![problem], None)),
    };
    let wrong = content.notes.iter().filter(|note| !note.is_harmless());
    let wrong =
        wrong.map(|note| Problem::new(note.code(), format!("index {digest}: {note}"))).collect();
    Ok((wrong, Some(content)))
}

/// The faults of a fine index, and its content if it can be used.
///
/// # Errors
/// As [`of_index`].
pub(super) fn of_fine(
    reference: FoundFineRef,
) -> Result<(Vec<Problem>, Option<FineContent>), VerifyError> {
    let content = match judged("fine index", reference.digest, reference.content)? {
        IndexVerdict::Usable(content) => content,
        IndexVerdict::Unusable(problem) => return Ok((vec![problem], None)),
    };
    let strange = content
        .index
        .layers
        .iter()
        .filter(|document| !content.documents.contains_key(&document.layer));
    let strange = strange.map(|FineRef { document, layer, .. }| {
        let text =
            format!("fine document {document} is for layer {layer}, which the image does not have");
        Problem::new(Code::LayerNotInImage, text)
    });
    Ok((strange.collect(), Some(content)))
}

/// What is in an index, or why it cannot be used.
enum IndexVerdict<C> {
    Usable(C),
    Unusable(Problem),
}

/// The verdict on an index of this `kind`.
///
/// # Errors
/// If it could not be examined.
fn judged<C>(
    kind: &str,
    digest: Digest,
    content: Result<C, UnusableIndexError>,
) -> Result<IndexVerdict<C>, VerifyError> {
    match content {
        Ok(content) => Ok(IndexVerdict::Usable(content)),
        Err(UnusableIndexError::Fetch(source)) if Damage::of(&source).is_none() => {
            Err(VerifyError::Index { digest, source })
        }
        Err(why) => {
            let text = format!("{kind} {digest} cannot be used: {}", causes(&why));
            Ok(IndexVerdict::Unusable(Problem::new(of_unusable(&why), text)))
        }
    }
}

fn of_unusable(why: &UnusableIndexError) -> Code {
    match why {
        UnusableIndexError::Fetch(error) if Damage::of(error) == Some(Damage::Missing) => {
            Code::IndexMissing
        }
        UnusableIndexError::Fetch(_) | UnusableIndexError::Size { .. } => Code::IndexDamaged,
        UnusableIndexError::Subject(_) | UnusableIndexError::NoSubject => Code::Subject,
        UnusableIndexError::MediaType(_)
        | UnusableIndexError::Soci(_)
        | UnusableIndexError::Fine(_)
        | UnusableIndexError::Version(_) => Code::IndexMalformed,
        UnusableIndexError::Unread(_) => Code::IndexUnread,
    }
}

/// Facts that are not faults, but may be surprising.
pub(super) fn warnings(image: &DiscoveredImage) -> Vec<String> {
    let mut warnings = Vec::new();
    let listed = |index: &&FoundIndexRef| {
        matches!(
            index.via,
            DiscoveryMethod::Api | DiscoveryMethod::TagSchema | DiscoveryMethod::Layout
        )
    };
    let listed: Vec<&FoundIndexRef> = image.indexes.iter().filter(listed).collect();
    if let [first, _, ..] = listed[..] {
        warnings.push(format!(
            "{} has {} SOCI indexes of version 1: consumers use the first one listed, currently {}",
            image.manifest.digest,
            listed.len(),
            first.digest
        ));
    }
    for content in image.indexes.iter().filter_map(|index| index.content.as_ref().ok()) {
        warnings.extend(
            content.notes.iter().filter(|note| note.is_harmless()).map(ToString::to_string),
        );
    }
    warnings
}

/// Compares the annotations of a ztoc in the index with the ztoc.
pub(super) fn of_annotations(ztoc: &Ztoc, reference: &ZtocRef) -> Option<Problem> {
    let stated = reference.span_size;
    let actual = ztoc.checkpoints.span_size();
    (stated != actual).then(|| {
        let text =
            format!("the index says that spans have {stated} bytes, but the ztoc says {actual}");
        Problem::new(Code::SpanSizeAnnotation, text)
    })
}

/// Compares a ztoc with the layer's descriptor and with the rules of consumers. The proof of the
/// whole layer finds these faults too.
pub(super) fn of_ztoc(ztoc: &Ztoc, layer_size: u64) -> Vec<Problem> {
    let mut differences = Vec::new();
    let mut differ = |code, text| differences.push(Problem::new(code, text));
    if *ztoc.version != *VERSION {
        differ(Code::Version, Difference::Version(ztoc.version.clone()).to_string());
    }
    if ztoc.compressed_size.0 != layer_size {
        let stated = ztoc.compressed_size;
        differ(
            Code::Size,
            format!("the ztoc is for a blob of {stated} bytes, but the layer has {layer_size}"),
        );
    }
    if let Err(why) = ociseek_format::layer::servable(ztoc) {
        differ(Code::Unservable, Difference::Unservable(why).to_string());
    }
    let mut end = 0;
    for (number, file) in ztoc.files.iter().enumerate() {
        // Stricter than `check_extents`, which checks only what is safe to read: in a tar, a header
        // of at least 512 bytes precedes the data of every entry.
        let beyond =
            file.kind == FileKind::Regular && file.offset.0 + file.size > ztoc.uncompressed_size.0;
        if beyond || file.offset.0 < end + 512 {
            let name = ociseek_format::path::shown(&file.name);
            differ(
                Code::EntryRange,
                format!(
                    "entry {number}, {name}, overlaps another one or extends past the end of the tar"
                ),
            );
            break;
        }
        end = file.offset.0.saturating_add(file.size);
    }
    differences
}

/// The lists of an index.
#[derive(Default)]
pub(super) struct PrefetchLists {
    /// The list of each layer, and the last span on it.
    last: BTreeMap<Digest, (Digest, SpanId)>,
    /// Their faults, as far as the lists show them without the layers' ztocs.
    pub differences: Vec<Problem>,
    /// Facts that are not faults, but may be surprising.
    pub warnings: Vec<String>,
}

impl PrefetchLists {
    /// Reads the lists.
    ///
    /// # Errors
    /// If one cannot be examined.
    pub(super) async fn read(
        source: &Source,
        content: &IndexContent,
    ) -> Result<PrefetchLists, VerifyError> {
        let mut lists = PrefetchLists::default();
        for artifact in content.index.others.iter().filter(|other| other.media_type == PREFETCH) {
            lists.add(source, content, artifact).await?;
        }
        Ok(lists)
    }

    async fn add(
        &mut self,
        source: &Source,
        content: &IndexContent,
        artifact: &Descriptor,
    ) -> Result<(), VerifyError> {
        let digest = artifact.digest;
        let layer = match prefetch_layer(artifact) {
            Some(layer) => layer,
            None => {
                self.differ(
                    Code::PrefetchLayer,
                    format!("prefetch list {digest} does not say which layer it is for"),
                );
                return Ok(());
            }
        };
        if !content.index.ztocs.iter().any(|ztoc| ztoc.layer == layer) {
            let text = format!(
                "prefetch list {digest} is for layer {layer}, which has no ztoc in the index"
            );
            self.differ(Code::PrefetchLayer, text);
            return Ok(());
        }
        match self.last.get(&layer) {
            // A layer that occurs twice in the image is listed twice.
            Some((known, _)) if *known == digest => return Ok(()),
            Some((known, _)) => {
                let text = format!(
                    "prefetch list {digest} is a second one for layer {layer}: {known} is used"
                );
                self.differ(Code::PrefetchLayer, text);
                return Ok(());
            }
            None => {}
        }
        let bytes = match source.blob_bytes(artifact, MAX_PREFETCH).await {
            Ok(bytes) => bytes,
            Err(source) => match Damage::of(&source) {
                Some(how) => {
                    self.differ(
                        how.prefetch_code(),
                        format!("prefetch list {digest}: {}", causes(&source)),
                    );
                    return Ok(());
                }
                None => return Err(VerifyError::Prefetch { digest, source }),
            },
        };
        match parse_unmerged(&bytes) {
            Ok(spans) => {
                if overlap(&spans) {
                    self.warnings.push(format!(
                        "prefetch list {digest} of layer {layer} names a span twice"
                    ));
                }
                let last = spans.iter().map(|range| *range.end()).max().unwrap_or_default();
                self.last.insert(layer, (digest, last));
            }
            Err(error) => self.differ(
                Code::PrefetchMalformed,
                format!("prefetch list {digest}: {}", causes(&error)),
            ),
        }
        Ok(())
    }

    fn differ(&mut self, code: Code, text: String) {
        self.differences.push(Problem::new(code, text));
    }

    /// The fault of a layer's list, if the layer has only `spans` spans.
    pub(super) fn of_layer(&self, layer: &Digest, spans: u64) -> Option<Problem> {
        let (digest, last) = self.last.get(layer)?;
        (u64::from(last.0) >= spans).then(|| {
            let text = format!(
                "prefetch list {digest} names span {last}, but layer {layer} has {spans} spans"
            );
            Problem::new(Code::PrefetchRange, text)
        })
    }
}

fn overlap(spans: &[SpanRange]) -> bool {
    let mut sorted: Vec<&SpanRange> = spans.iter().collect();
    sorted.sort_unstable_by_key(|range| *range.start());
    sorted.windows(2).any(|pair| pair[1].start() <= pair[0].end())
}
