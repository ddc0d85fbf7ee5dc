//! The inputs and results of a conversion, its limits, and why it fails.

use crate::index::{IndexError, LayerReport, PrefetchSummary};
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::enabled::names_indexes;
use ociseek_format::image::go::{GoError, Index, decode_index};
use ociseek_format::image::manifest::{DOCKER_LIST, OCI_INDEX};
use ociseek_format::image::{Descriptor, ImageSelector, Platform};
use ociseek_store::blob::{Document, Target};
use ociseek_store::{Destination, Source, StoreError, blocking};

/// The maximum number of manifests in an image index. Each is fetched and rewritten.
pub const MAX_MANIFESTS: usize = 1000;
/// The limit for all manifests of an image together, in bytes. They are in memory until the new
/// ones are written.
pub const MAX_DOCUMENTS: u64 = 64 << 20;
/// How many manifests are read at the same time. Until they are charged to the image's budget, they
/// take up to 4 MiB each.
pub(super) const SIDE_BY_SIDE: usize = 4;

/// The image to convert.
#[derive(Debug)]
pub struct SourceImage {
    /// Its store.
    pub source: Source,
    /// Its tag or digest in the store.
    pub root: Target,
    /// Its entry in a layout's index.json.
    pub descriptor: Option<Descriptor>,
}

/// The destination of the converted image.
#[derive(Debug)]
pub struct ConvertDestination {
    /// None in a dry run whose image is in an archive, which cannot be written.
    pub destination: Option<Destination>,
    /// None if a layout should list it without a name.
    pub tag: Option<String>,
    /// Whether the tag may be that of the original image, or of another image that is not
    /// SOCI-enabled.
    pub replace_tag: bool,
    /// A condition for writing, in addition to the tag of the original image, if that is named by
    /// one.
    pub guard: Option<Guard>,
}

/// A condition for writing an image whose name was resolved before.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// A tag of the source, which must still name the original image.
    pub source_tag: Option<String>,
}

/// Why the destination's name is looked up.
#[derive(Clone, Copy)]
enum Look {
    Ahead,
    BeforeWriting,
}

/// The existing content of the destination's name.
pub(super) struct ExistingImage {
    pub digest: Digest,
    /// Its manifests, if it is an image index.
    pub manifests: Vec<Descriptor>,
}

impl ExistingImage {
    fn is_enabled(&self) -> bool {
        names_indexes(&self.manifests)
    }
}

/// A converted image.
#[derive(Debug, Clone)]
pub struct ConvertReport {
    /// The digest of the original image.
    pub source: Digest,
    /// The digest of the SOCI-enabled image.
    pub digest: Digest,
    /// The size of its image index in bytes.
    pub size: u64,
    /// The images that were to be indexed, in the order of the request, or of the image index.
    pub images: Vec<ConvertedImage>,
    /// The result.
    pub outcome: ConvertStatus,
    /// How many bytes of layers were read to index them.
    pub bytes_read: u64,
    /// How many bytes of layers were compared with reused ztocs.
    pub bytes_compared: u64,
    /// How many bytes of blobs were copied from the source.
    pub bytes_copied: u64,
    /// How many bytes of new blobs and manifests were written.
    pub bytes_written: u64,
}

/// The image of one platform.
#[derive(Debug, Clone)]
pub struct ConvertedImage {
    /// As stated in the image index, or else in the image's config.
    pub platform: Platform,
    /// The original manifest, or the nested index in its place.
    pub was: Digest,
    /// The new manifest, which names the SOCI index.
    pub manifest: Digest,
    /// None if no layer can be served lazily.
    pub index: Option<Descriptor>,
    /// The fine index that the new manifest names, if one was requested and can be made.
    pub fine: Option<Descriptor>,
    /// The layers from the bottom up.
    pub layers: Vec<LayerReport>,
    /// The coverage of the layers by the index.
    pub coverage: Coverage,
    /// The prefetch list of its SOCI index, if it has one.
    pub prefetch: Option<PrefetchSummary>,
}

/// The result for a SOCI-enabled image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvertStatus {
    /// It was pushed.
    Written {
        /// What the tag named before. It still exists under its digest.
        replaced: Option<Digest>,
    },
    /// Exactly this image already had its tag, so nothing was written.
    AlreadyThere,
    /// Nothing was written, because this is a dry run.
    DryRun {
        /// What the tag names and would be replaced.
        replaces: Option<Digest>,
    },
}

impl ConvertDestination {
    /// The existing content of the name. For anything but an image index, only the digest is known.
    /// A service may learn from HEAD that the name is free.
    pub(super) async fn there(&self) -> Result<Option<ExistingImage>, ConvertError> {
        self.existing(Look::Ahead).await
    }

    /// Like [`ConvertDestination::there`], before something is written: to believe a wrong HEAD
    /// would replace an image.
    pub(super) async fn there_now(&self) -> Result<Option<ExistingImage>, ConvertError> {
        self.existing(Look::BeforeWriting).await
    }

    async fn existing(&self, look: Look) -> Result<Option<ExistingImage>, ConvertError> {
        let Some(document) = self.document(look).await.map_err(ConvertError::Destination)? else {
            return Ok(None);
        };
        let is_index = matches!(document.media_type.as_str(), OCI_INDEX | DOCKER_LIST);
        let index = decode_index(&document.bytes).ok().filter(|_| is_index);
        Ok(Some(ExistingImage {
            digest: document.digest,
            manifests: index.map_or_else(Vec::new, |i: Index| i.manifests),
        }))
    }

    /// Checks whether the image `root` of `from` may replace `existing`: it must not be
    /// someone's ordinary image, and a tag that names the original image must still do so.
    pub(super) async fn admit(
        &self,
        existing: Option<&ExistingImage>,
        from: &SourceImage,
        root: &Digest,
    ) -> Result<(), ConvertError> {
        let is_ordinary = |existing: &&ExistingImage| {
            !existing.is_enabled() && self.tag.is_some() && !self.replace_tag
        };
        if let Some(existing) = existing.filter(is_ordinary) {
            return Err(ConvertError::Occupied { digest: existing.digest });
        }
        let tag = match (&self.guard, &from.root) {
            (Some(guard), _) => guard.source_tag.as_ref(),
            (None, Target::Tag(tag)) => Some(tag),
            (None, Target::Digest(_)) => None,
        };
        let Some(tag) = tag else { return Ok(()) };
        if from.source.tag_digest(tag).await.is_ok_and(|digest| digest == *root) {
            return Ok(());
        }
        // Some registries state the digest of another form of the manifest.
        match from.source.manifest(&Target::Tag(tag.clone())).await {
            Ok(document) if document.digest == *root => Ok(()),
            Err(error) if !error.is_not_found() => Err(ConvertError::Find(error)),
            Ok(_) | Err(_) => Err(ConvertError::Moved { tag: tag.clone() }),
        }
    }

    async fn document(&self, look: Look) -> Result<Option<Document>, StoreError> {
        match (&self.destination, &self.tag) {
            (Some(Destination::Registry(repository)), Some(tag)) => Ok(match look {
                Look::Ahead => repository.known_if_tagged(tag).await?,
                Look::BeforeWriting => repository.manifest_if_tagged(tag).await?,
            }),
            (Some(Destination::Layout(layout)), tag) => {
                let select = tag.clone().map_or(ImageSelector::Any, ImageSelector::Tag);
                let layout = std::sync::Arc::clone(layout);
                blocking(move || {
                    // The name may be free, or its content may be damaged. Then it is written.
                    let entry = layout.find(&select).ok();
                    Ok(entry.and_then(|entry| layout.manifest(&Target::Digest(entry.digest)).ok()))
                })
                .await
            }
            _ => Ok(None),
        }
    }
}

/// Why an image could not be converted. The destination's tag is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("cannot find the image")]
    Find(#[source] StoreError),
    #[error("cannot read {what} {digest}")]
    Document { what: &'static str, digest: Digest, source: StoreError },
    #[error("{what} {digest} has {found} bytes, but its descriptor says {expected}")]
    Size { what: &'static str, digest: Digest, expected: u64, found: u64 },
    #[error("{digest} cannot be converted")]
    Unsound { digest: Digest, source: GoError },
    #[error("{digest} is not an image")]
    NotAnImage { digest: Digest },
    #[error(
        "image index {digest} lists {count} manifests; at most {MAX_MANIFESTS} can be converted"
    )]
    TooMany { digest: Digest, count: usize },
    #[error("image index {digest} is nested more than {limit} deep")]
    TooDeep { digest: Digest, limit: usize },
    #[error("the manifests of image index {digest} exceed {MAX_DOCUMENTS} bytes in total")]
    TooLarge { digest: Digest },
    #[error("image index {digest} lists no existing manifest")]
    Empty { digest: Digest },
    #[error("{digest} holds no image of a known platform")]
    NoImage { digest: Digest },
    #[error("the image has no manifest for {wanted}; it has {available}")]
    NoPlatform { wanted: String, available: String },
    #[error("no layer of the image can be indexed, so there is nothing to convert")]
    NothingToIndex { layers: Vec<LayerReport> },
    #[error("timed out before all layers were indexed; layers left: {left}")]
    OutOfTime { left: usize },
    #[error("the destination is the image's own tag, {digest}, which was left unchanged")]
    SourceTag { digest: Digest },
    #[error(
        "the tag already points to {digest}, which is not a SOCI-enabled image, and was left unchanged"
    )]
    Occupied { digest: Digest },
    #[error(
        "the tag {tag} no longer points to the image: someone pushed to it meanwhile, and nothing was written"
    )]
    Moved { tag: String },
    /// With a guard, only if an index of another kind would be lost. Then `convert` starts again.
    #[error("someone pushed {digest} to the tag {tag} meanwhile, which was left unchanged")]
    Changed { tag: String, digest: Digest },
    #[error(transparent)]
    Index(Box<IndexError>),
    #[error("cannot read the destination's current image")]
    Destination(#[source] StoreError),
    #[error("cannot copy blob {digest}")]
    Copy { digest: Digest, source: StoreError },
    #[error("cannot write {what} {digest}")]
    Push { what: &'static str, digest: Digest, source: StoreError },
    /// `convert` leaves it out.
    #[error("the destination refuses {digest}, which has a subject")]
    RefusedSubject { digest: Digest, source: StoreError },
}

impl From<IndexError> for ConvertError {
    fn from(error: IndexError) -> ConvertError {
        ConvertError::Index(Box::new(error))
    }
}
