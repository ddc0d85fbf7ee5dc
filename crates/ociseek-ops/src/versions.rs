//! Where an image's indexes are: attached to it (version 1), named by another image (version 2), or
//! both from a single reading of the layers. The kinds of index are those of the options.

use super::convert::{
    ConvertDestination, ConvertError, ConvertReport, Guard, SourceImage, convert_built,
};
use super::index::{IndexError, IndexedImage, LayerReport, Work, index_keeping};
use super::resolve::{ResolveError, ResolvedImage, resolve};
use ociseek_format::digest::Digest;
use ociseek_format::image::{TagError, TagTemplate};
use ociseek_store::Destination;
use ociseek_store::blob::Target;

/// What to make for an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Versions {
    /// An attached index.
    #[default]
    V1,
    /// A SOCI-enabled image, with a tag from the template. With [`Kinds::Fine`], it names only its
    /// fine index.
    ///
    /// [`Kinds::Fine`]: crate::index::Kinds::Fine
    V2(TagTemplate),
    /// An attached index and a SOCI-enabled image.
    Both(TagTemplate),
}

/// The image to make them for.
#[derive(Debug)]
pub struct MakeRequest {
    /// The image itself.
    pub from: SourceImage,
    /// Its tag, if it is named by one.
    pub tag: Option<String>,
    /// If it was already resolved, with
    /// [`IndexOptions::wanted`](crate::index::IndexOptions::wanted).
    pub resolved: Option<ResolvedImage>,
    /// Nobody requested this image explicitly: the SOCI-enabled image may only be written while
    /// `tag` names the image. That is so too if `from` names it by a tag.
    pub is_unattended: bool,
}

/// The results.
#[derive(Debug)]
pub struct VersionsResult {
    /// The index of version 1, if requested.
    pub index: Option<IndexedImage>,
    /// The SOCI-enabled image, if requested.
    pub enabled: Option<EnabledReport>,
    /// Why there is no SOCI-enabled image. The index is attached, if requested.
    pub failed: Option<ConvertError>,
}

/// A SOCI-enabled image.
#[derive(Debug)]
pub struct EnabledReport {
    /// The tag from the template.
    pub tag: String,
    /// The result.
    pub result: EnabledResult,
}

/// The result for a SOCI-enabled image.
#[derive(Debug)]
pub enum EnabledResult {
    /// It was written, or already existed.
    Converted(Box<ConvertReport>),
    /// It was not made, because no layer can be indexed.
    NothingToIndex {
        /// For each layer, from the bottom up: why it is not indexed.
        layers: Vec<LayerReport>,
    },
    /// It was not made, because time ran out before all layers were indexed.
    OutOfTime {
        /// The number of layers that are not indexed yet.
        left: usize,
    },
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error(transparent)]
    Tag(#[from] TagError),
    #[error(transparent)]
    Index(Box<IndexError>),
}

impl From<IndexError> for MakeError {
    fn from(error: IndexError) -> MakeError {
        MakeError::Index(Box::new(error))
    }
}

impl From<ResolveError> for MakeError {
    fn from(error: ResolveError) -> MakeError {
        IndexError::from(error).into()
    }
}

impl Versions {
    /// The tag of the SOCI-enabled image for an image with the tag `own`. None if none is
    /// requested.
    ///
    /// # Errors
    /// If the template gives no valid tag, or the image's own.
    pub fn tag(&self, own: Option<&str>, digest: &Digest) -> Result<Option<String>, TagError> {
        let Some(template) = self.template() else { return Ok(None) };
        let made = template.fill(own, digest)?;
        if own == Some(&made) { Err(TagError::Own(made)) } else { Ok(Some(made)) }
    }

    /// The guard for an image with the tag `own`, which must not move meanwhile.
    pub fn guard(&self, own: Option<String>) -> Guard {
        // A tag that is derived only from the digest stays valid when the image's own tag moves.
        let follows = |template: &TagTemplate| template.needs_tag() || !template.tells_apart();
        Guard { source_tag: own.filter(|_| self.template().is_some_and(follows)) }
    }

    /// The template for the tags of SOCI-enabled images, if any are made.
    pub fn template(&self) -> Option<&TagTemplate> {
        match self {
            Versions::V1 => None,
            Versions::V2(template) | Versions::Both(template) => Some(template),
        }
    }
}

/// Makes what `versions` requests for an image at `destination`. Without a destination (a dry run),
/// nothing is looked up or written there.
///
/// # Errors
/// If there is no tag for the SOCI-enabled image, or the image cannot be indexed. Then there is no
/// SOCI-enabled image either.
pub async fn make(
    subject: MakeRequest,
    destination: Option<&Destination>,
    versions: &Versions,
    work: Work<'_>,
) -> Result<VersionsResult, MakeError> {
    let MakeRequest { mut from, tag: own, resolved, is_unattended } = subject;
    let mut tag = None;
    let is_guarded = is_unattended || matches!(from.root, Target::Tag(_));
    let options = work.options;
    if versions.template().is_some() {
        // The tag may move from now on, so both are made from the same digest.
        let digest = match (&resolved, &from.root) {
            (Some(resolved), _) => resolved.digest,
            (None, Target::Digest(digest)) => *digest,
            (None, Target::Tag(_)) => {
                from.source.manifest(&from.root).await.map_err(ResolveError::Find)?.digest
            }
        };
        from.root = Target::Digest(digest);
        let is_home = destination.is_some_and(|to| to.is(&from.source));
        tag = match versions.tag(own.as_deref(), &digest) {
            Err(TagError::Own(made)) if !is_home => Some(made),
            made => made?,
        };
    }
    let mut index = None;
    let mut built = None;
    if !matches!(versions, Versions::V2(_)) {
        let resolved = match resolved {
            Some(resolved) => resolved,
            None => resolve(&from.source, &from.root, options.wanted(), work.progress).await?,
        };
        let indexing = index_keeping(&from.source, resolved, destination, work);
        let (done, layers) = Box::pin(indexing).await?;
        (index, built) = (Some(done), Some(layers));
    }
    let Some(tag) = tag else { return Ok(VersionsResult { index, enabled: None, failed: None }) };
    let left = index.as_ref().map_or(0, |index| index.left.len());
    let result = if left > 0 {
        EnabledResult::OutOfTime { left }
    } else {
        let guard = is_guarded.then(|| versions.guard(own));
        let to = ConvertDestination {
            destination: destination.cloned(),
            tag: Some(tag.clone()),
            replace_tag: false,
            guard,
        };
        match Box::pin(convert_built(&from, &to, built, work)).await {
            Ok(converted) => EnabledResult::Converted(Box::new(converted)),
            Err(ConvertError::NothingToIndex { layers }) => {
                EnabledResult::NothingToIndex { layers }
            }
            Err(ConvertError::OutOfTime { left }) => EnabledResult::OutOfTime { left },
            Err(error) => return Ok(VersionsResult { index, enabled: None, failed: Some(error) }),
        }
    };
    Ok(VersionsResult { index, enabled: Some(EnabledReport { tag, result }), failed: None })
}
