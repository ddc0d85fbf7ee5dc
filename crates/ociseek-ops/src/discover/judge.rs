//! Judges a SOCI index together with the image on which it was found. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::MAX_ZTOC;
use ociseek_format::code::Code;
use ociseek_format::digest::Digest;
use ociseek_format::image::fine::{self, FINE_INDEX, FineIndex, FineIndexError, FineRef};
use ociseek_format::image::soci::{
    self, FoundIndex, INDEX_V1, PREFETCH, SociIndexError, Version, ZtocRef,
};
use ociseek_format::image::{Coverage, Descriptor, LayerKind};
use ociseek_format::printable::exact_size;
use ociseek_store::StoreError;

/// A usable index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexContent {
    /// The parsed manifest.
    pub index: FoundIndex,
    /// The ztocs that a reader takes, by layer.
    pub ztocs: BTreeMap<Digest, ZtocRef>,
    /// Faults of single entries.
    pub notes: Vec<Note>,
}

/// A usable fine index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FineContent {
    /// The parsed manifest.
    pub index: FineIndex,
    /// The documents for layers of the image, by layer.
    pub documents: BTreeMap<Digest, FineRef>,
}

/// The kinds of indexes that refer to their image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKind {
    /// A SOCI index of version 1.
    Soci,
    /// A fine index.
    Fine,
}

impl IndexKind {
    /// The artifact types of all kinds.
    pub(crate) const ARTIFACT_TYPES: [&str; 2] = [INDEX_V1, FINE_INDEX];

    /// The kind of an entry in a list of referrers. Entries of other types are judged like SOCI
    /// indexes.
    pub(crate) fn listed(entry: &Descriptor) -> IndexKind {
        match entry.artifact_type.as_deref() {
            Some(FINE_INDEX) => IndexKind::Fine,
            _ => IndexKind::Soci,
        }
    }
}

/// An index of either kind, with the properties that both have.
#[derive(Debug, Clone)]
pub(crate) struct Referring {
    pub kind: IndexKind,
    pub tool: Option<String>,
    /// The layers that it covers.
    pub layers: BTreeSet<Digest>,
    /// Its ztocs, if it is a SOCI index.
    pub ztocs: Vec<ZtocRef>,
    /// Its documents, if it is a fine index.
    pub documents: Vec<FineRef>,
    /// Whether its readers can use it.
    pub canonical: bool,
}

impl Referring {
    /// Parses the manifest as an index of this kind for the image manifest `subject`.
    ///
    /// # Errors
    /// If the manifest is something else, or the index of another image.
    pub(crate) fn parse(
        kind: IndexKind,
        bytes: &[u8],
        subject: &Digest,
    ) -> Result<Referring, UnusableIndexError> {
        Ok(match kind {
            IndexKind::Soci => {
                let index = parse(bytes, Some(Version::V1), subject)?;
                let layers = index.ztocs.iter().map(|ztoc| ztoc.layer).collect();
                let tool = index.build_tool_identifier;
                let canonical = index.canonical;
                Referring {
                    kind,
                    tool,
                    layers,
                    ztocs: index.ztocs,
                    documents: Vec::new(),
                    canonical,
                }
            }
            IndexKind::Fine => {
                let index = parse_fine(bytes, subject)?;
                let layers = index.layers.iter().map(|document| document.layer).collect();
                let documents = index.layers;
                Referring {
                    kind,
                    tool: index.build_tool,
                    layers,
                    ztocs: Vec::new(),
                    documents,
                    canonical: true,
                }
            }
        })
    }
}

/// Why an index cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum UnusableIndexError {
    #[error("it cannot be read")]
    Fetch(#[source] StoreError),
    #[error("it has {found} bytes, but the list says {expected}")]
    Size { expected: u64, found: u64 },
    #[error("it is not an OCI image manifest but {0:?}")]
    MediaType(String),
    #[error(transparent)]
    Soci(#[from] SociIndexError),
    #[error(transparent)]
    Fine(#[from] FineIndexError),
    #[error("it is a SOCI index of version {}, where the other version belongs", .0.number())]
    Version(Version),
    #[error("it is the index of another image manifest, {0}")]
    Subject(Digest),
    #[error("it names no image manifest, so it belongs only to an image that names it")]
    NoSubject,
    #[error("it was not read: {0} others of its kind were")]
    Unread(usize),
}

/// A fault of an entry in an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Its JSON differs from Go's encoding, so soci-snapshotter ignores the whole index.
    NotCanonical,
    /// A ztoc for a layer that the image does not have.
    NotInImage { ztoc: Digest, layer: Digest },
    /// Not the ztoc that readers take for the layer: the index lists another one after it.
    Second { ztoc: Digest, layer: Digest },
    /// A ztoc with a size, in bytes, that no reader accepts.
    TooLarge { ztoc: Digest, layer: Digest, size: u64 },
    /// A ztoc for a layer whose media type allows none.
    NotServable { ztoc: Digest, layer: Digest, media_type: String },
    /// The ztoc's annotation and the image manifest disagree on the layer's media type.
    MediaType { ztoc: Digest, layer: Digest, stated: String, found: String },
    /// The image manifest names the index, but the image index does not list it.
    NotBeside,
    /// Neither a ztoc nor a list of spans to prefetch.
    Unknown { digest: Digest, media_type: String },
}

impl Note {
    /// The stable word for it.
    pub fn code(&self) -> Code {
        match self {
            Note::NotCanonical => Code::NotCanonical,
            Note::NotInImage { .. } => Code::LayerNotInImage,
            Note::Second { .. } => Code::SecondZtoc,
            Note::TooLarge { .. } => Code::ZtocTooLarge,
            Note::NotServable { .. } => Code::LayerNotServable,
            Note::MediaType { .. } => Code::MediaTypeAnnotation,
            Note::NotBeside => Code::NotBesideImage,
            Note::Unknown { .. } => Code::UnknownBlob,
        }
    }

    /// Whether consumers are not affected.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Note::NotBeside | Note::Unknown { .. })
    }

    /// Whether a reader ignores the entry.
    pub fn is_ignored(&self) -> bool {
        !matches!(self, Note::NotCanonical | Note::NotBeside | Note::MediaType { .. })
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::NotCanonical => f.write_str(
                "the JSON of the index is not what Go's encoder writes, so soci-snapshotter silently ignores the index",
            ),
            Note::NotInImage { ztoc, layer } => {
                write!(f, "ztoc {ztoc} is for layer {layer}, which the image does not have")
            }
            Note::Second { ztoc, layer } => {
                write!(f, "ztoc {ztoc} is not used: the index lists another one for layer {layer} after it")
            }
            Note::TooLarge { ztoc, layer, size } => {
                let limit = exact_size(MAX_ZTOC);
                write!(f, "ztoc {ztoc} of layer {layer} has {size} bytes; the limit is {limit}")
            }
            Note::NotServable { ztoc, layer, media_type } => {
                write!(f, "ztoc {ztoc} is for layer {layer}, whose type {media_type:?} cannot have one")
            }
            Note::MediaType { ztoc, layer, stated, found } => {
                write!(f, "ztoc {ztoc} says that layer {layer} is {stated:?}; the image says {found:?}")
            }
            Note::NotBeside => {
                f.write_str("the image index does not list the SOCI index, so copies of the image lose it")
            }
            Note::Unknown { digest, media_type } => {
                write!(f, "{digest} is neither a ztoc nor a prefetch list: {media_type:?}")
            }
        }
    }
}

/// Parses the manifest as a SOCI index of `version` for the image manifest `subject`.
///
/// # Errors
/// If the manifest is something else, or the index of another image.
pub(crate) fn parse(
    bytes: &[u8],
    version: Option<Version>,
    subject: &Digest,
) -> Result<FoundIndex, UnusableIndexError> {
    let index = soci::parse(bytes)?;
    if version.is_some_and(|version| version != index.version) {
        return Err(UnusableIndexError::Version(index.version));
    }
    match &index.subject {
        Some(named) if named.digest != *subject => Err(UnusableIndexError::Subject(named.digest)),
        _ => Ok(index),
    }
}

/// Parses the manifest as a fine index that refers to the image manifest `subject`.
///
/// # Errors
/// If the manifest is something else, or the index of another image.
pub(crate) fn parse_fine(bytes: &[u8], subject: &Digest) -> Result<FineIndex, UnusableIndexError> {
    let index = fine::parse(bytes)?;
    match &index.subject {
        Some(named) if named.digest == *subject => Ok(index),
        Some(named) => Err(UnusableIndexError::Subject(named.digest)),
        None => Err(UnusableIndexError::NoSubject),
    }
}

/// Parses the manifest as a fine index that an image manifest names.
///
/// # Errors
/// If the manifest is something else, or refers to an image manifest: that cannot be the one that
/// names it.
fn parse_bound_fine(bytes: &[u8]) -> Result<FineIndex, UnusableIndexError> {
    let index = fine::parse(bytes)?;
    match &index.subject {
        None => Ok(index),
        Some(named) => Err(UnusableIndexError::Subject(named.digest)),
    }
}

/// Which of an image's fine indexes is read, by its place in the store's list; None stands for one
/// that cannot be used. `layers` are those of the image.
///
/// A registry that refuses deletion keeps an index that was replaced, so several may be usable. One
/// with a recorded start is read before one without, then the one whose documents cover more bytes
/// of the image, then the one that is listed last: registries append.
pub(crate) fn preferred<'a>(
    indexes: impl Iterator<Item = Option<&'a FineIndex>>,
    layers: &[Descriptor],
) -> Option<usize> {
    by_preference(indexes, layers).first().copied()
}

/// All that can be used, the preferred one first. See [`preferred`].
pub(super) fn by_preference<'a>(
    indexes: impl Iterator<Item = Option<&'a FineIndex>>,
    layers: &[Descriptor],
) -> Vec<usize> {
    let rank = |index: &FineIndex| {
        let covered: BTreeSet<Digest> =
            index.layers.iter().map(|document| document.layer).collect();
        let coverage = Coverage::of(layers, |layer| covered.contains(&layer.digest));
        (index.profile.is_some(), coverage.bytes)
    };
    let usable = indexes.enumerate().filter_map(|(place, index)| Some((rank(index?), place)));
    let mut usable: Vec<_> = usable.collect();
    usable.sort_unstable_by(|one, other| other.cmp(one));
    usable.into_iter().map(|(_, place)| place).collect()
}

/// Judges the manifest of a fine index that was found on the image `manifest` with these `layers`,
/// or that this manifest names (`is_bound`).
pub(super) fn judge_fine(
    bytes: &[u8],
    is_bound: bool,
    manifest: &Descriptor,
    layers: &[Descriptor],
) -> Result<FineContent, UnusableIndexError> {
    let index =
        if is_bound { parse_bound_fine(bytes)? } else { parse_fine(bytes, &manifest.digest)? };
    let known: BTreeSet<Digest> = layers.iter().map(|layer| layer.digest).collect();
    let documents = index.layers.iter().filter(|document| known.contains(&document.layer));
    let documents = documents.map(|document| (document.layer, document.clone())).collect();
    Ok(FineContent { index, documents })
}

/// Judges the manifest of an index of `version` that was found on the image `manifest` with these
/// `layers`.
pub(super) fn judge(
    bytes: &[u8],
    version: Option<Version>,
    manifest: &Descriptor,
    layers: &[Descriptor],
) -> Result<IndexContent, UnusableIndexError> {
    let index = parse(bytes, version, &manifest.digest)?;
    let mut notes = Vec::new();
    if !index.canonical {
        notes.push(Note::NotCanonical);
    }
    let by_digest: BTreeMap<Digest, &Descriptor> =
        layers.iter().map(|layer| (layer.digest, layer)).collect();
    let taken = index.by_layer();
    let mut ztocs = BTreeMap::new();
    for reference in &index.ztocs {
        let ZtocRef { ztoc, layer, size, .. } = *reference;
        let Some(described) = by_digest.get(&layer) else {
            notes.push(Note::NotInImage { ztoc, layer });
            continue;
        };
        if taken.get(&layer).is_some_and(|taken| taken.ztoc != ztoc) {
            notes.push(Note::Second { ztoc, layer });
            continue;
        }
        if size > MAX_ZTOC {
            notes.push(Note::TooLarge { ztoc, layer, size });
            continue;
        }
        if !LayerKind::of(&described.media_type).is_servable() {
            notes.push(Note::NotServable { ztoc, layer, media_type: shown(&described.media_type) });
            continue;
        }
        // A layer that occurs twice in the image is listed twice.
        if ztocs.insert(layer, reference.clone()).is_none()
            && reference.layer_media_type != described.media_type
        {
            let stated = shown(&reference.layer_media_type);
            let described = shown(&described.media_type);
            notes.push(Note::MediaType { ztoc, layer, stated, found: described });
        }
    }
    let unknown = index.others.iter().filter(|other| other.media_type != PREFETCH);
    notes.extend(
        unknown.map(|o| Note::Unknown { digest: o.digest, media_type: shown(&o.media_type) }),
    );
    Ok(IndexContent { index, ztocs, notes })
}

fn shown(media_type: &str) -> String {
    media_type.chars().take(150).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::image::soci::{SociIndex, ZTOC};
    use ociseek_format::offset::SpanSize;

    const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

    fn layer(media_type: &str, n: u8) -> Descriptor {
        Descriptor::of(media_type, &[n])
    }

    fn reference(layer: &Descriptor, ztoc: u8, size: u64) -> ZtocRef {
        ZtocRef {
            ztoc: Digest::sha256(&[ztoc, 0]),
            size,
            layer: layer.digest,
            layer_media_type: layer.media_type.clone(),
            span_size: SpanSize::DEFAULT,
        }
    }

    fn index(layers: Vec<ZtocRef>) -> String {
        let subject = Some(Descriptor::of("application/vnd.oci.image.manifest.v1+json", b"image"));
        let encoded = SociIndex {
            layers,
            subject,
            build_tool_identifier: "test".into(),
            prefetch: Vec::new(),
        }
        .encode();
        String::from_utf8(encoded.bytes).unwrap()
    }

    fn judged(bytes: &str, layers: &[Descriptor]) -> Result<IndexContent, UnusableIndexError> {
        let manifest = Descriptor::of("application/vnd.oci.image.manifest.v1+json", b"image");
        judge(bytes.as_bytes(), Some(Version::V1), &manifest, layers)
    }

    #[test]
    fn an_ordinary_index_has_no_notes() {
        let layers = [layer(GZIP, 1), layer(GZIP, 2), layer(GZIP, 1)];
        // A layer that occurs twice in the image is listed twice.
        let of_first = reference(&layers[0], 1, 10);
        let content = judged(&index(vec![of_first.clone(), of_first.clone()]), &layers).unwrap();
        assert_eq!(content.notes, []);
        assert_eq!(content.ztocs, BTreeMap::from([(layers[0].digest, of_first)]));
    }

    #[test]
    fn entries_that_readers_ignore_are_noted() {
        let layers = [layer(GZIP, 1), layer(ZSTD, 2), layer(GZIP, 3)];
        let stranger = layer(GZIP, 9);
        let mut mistyped = reference(&layers[2], 3, 10);
        mistyped.layer_media_type = "other".into();
        let refs = vec![
            reference(&layers[0], 1, 10),
            reference(&layers[0], 2, 10),
            reference(&layers[1], 4, 10),
            reference(&stranger, 5, 10),
            mistyped,
        ];
        let content = judged(&index(refs), &layers).unwrap();
        let codes: Vec<_> =
            content.notes.iter().map(|note| (note.code().word(), note.is_ignored())).collect();
        assert_eq!(
            codes,
            [
                ("second-ztoc", true),
                ("layer-not-servable", true),
                ("layer-not-in-image", true),
                ("media-type-annotation", false)
            ]
        );
        assert_eq!(content.ztocs.len(), 2);
        assert_eq!(
            content.ztocs[&layers[0].digest].ztoc,
            Digest::sha256(&[2, 0]),
            "the last one is used, as by soci"
        );
        assert!(
            content.notes[0]
                .to_string()
                .starts_with(&format!("ztoc {} is not used", Digest::sha256(&[1, 0])))
        );
        let content =
            judged(&index(vec![reference(&layers[0], 1, MAX_ZTOC + 1)]), &layers).unwrap();
        assert_eq!((content.notes[0].code().word(), content.ztocs.len()), ("ztoc-too-large", 0));
    }

    #[test]
    fn the_best_fine_index_is_preferred() {
        let layers = [layer(GZIP, 1), layer(GZIP, 2), layer(GZIP, 3)];
        let fine = |of: &[Descriptor], profile: Option<&[u8]>| {
            let document = |layer: &Descriptor| FineRef {
                document: layer.digest,
                size: 3,
                layer: layer.digest,
                head_size: 1,
                head_digest: layer.digest,
                start_size: 2,
            };
            let layers = of.iter().map(document).collect();
            let profile = profile.map(Digest::sha256);
            FineIndex {
                layers,
                subject: Some(Descriptor::of("image", b"image")),
                build_tool: None,
                profile,
            }
        };
        let preferred =
            |indexes: &[Option<&FineIndex>]| super::preferred(indexes.iter().copied(), &layers);
        let all = fine(&layers, None);
        let some = fine(&layers[..1], None);
        let recorded = fine(&layers[..1], Some(b"a"));
        let again = fine(&layers[..1], Some(b"b"));
        assert_eq!(preferred(&[]), None);
        assert_eq!(preferred(&[None, None]), None);
        assert_eq!(preferred(&[None, Some(&some), None]), Some(1));
        assert_eq!(
            preferred(&[Some(&recorded), Some(&all), Some(&some)]),
            Some(0),
            "a recorded startup"
        );
        assert_eq!(
            preferred(&[Some(&some), Some(&all), Some(&some)]),
            Some(1),
            "more of the image"
        );
        assert_eq!(
            preferred(&[Some(&recorded), Some(&again), Some(&all)]),
            Some(1),
            "the last one"
        );
        // Documents of other layers do not count.
        let strange = fine(&[4, 5, 6, 7].map(|n| layer(GZIP, n)), None);
        assert_eq!(preferred(&[Some(&some), Some(&strange)]), Some(0));
    }

    #[test]
    fn unusable_indexes_are_refused() {
        let layers = [layer(GZIP, 1)];
        let sound = index(vec![reference(&layers[0], 1, 10)]);
        let content = judged(&sound.replacen(',', ", ", 1), &layers).unwrap();
        assert_eq!(content.notes, [Note::NotCanonical]);
        let other = sound.replace(&Digest::sha256(b"image").hex(), &Digest::sha256(b"other").hex());
        assert!(matches!(judged(&other, &layers), Err(UnusableIndexError::Subject(_))));
        let v2 = sound.replace("soci.index.v1", "soci.index.v2");
        assert!(matches!(judged(&v2, &layers), Err(UnusableIndexError::Version(Version::V2))));
        assert!(matches!(judged("{}", &layers), Err(UnusableIndexError::Soci(_))));
        let unknown = sound.replacen(ZTOC, "application/x-else", 1);
        assert_eq!(judged(&unknown, &layers).unwrap().notes[0].code().word(), "unknown-blob");
        let prefetch = sound.replacen(ZTOC, PREFETCH, 1);
        assert_eq!(judged(&prefetch, &layers).unwrap().notes, []);
    }
}
