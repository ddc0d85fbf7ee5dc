//! The versions of an image's index: the one that is attached (version 1), the SOCI-enabled image
//! (version 2), or both from one reading of the layers.

use std::sync::Arc;

use super::convert::{ConvertError, Converted, Destined, Guard, SourceImage, convert_built};
use super::index::{IndexError, IndexOptions, IndexedImage, LayerReport, index_keeping};
use super::resolve::{ResolveError, ResolvedImage, resolve};
use crate::digest::Digest;
use crate::image::{Manifest, TagError, TagTemplate, enabled};
use crate::progress::Progress;
use crate::store::Destination;
use crate::store::blob::Target;
use crate::store::cache::ZtocCache;

/// What is made of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Versions {
    /// An index that is attached.
    #[default]
    V1,
    /// A SOCI-enabled image, under the tag that the template makes.
    V2(TagTemplate),
    /// Both: an index that is attached, and a SOCI-enabled image.
    Both(TagTemplate),
}

/// An image of which they are made.
pub struct Subject {
    /// The image itself.
    pub from: SourceImage,
    /// The tag by which it is named.
    pub tag: Option<String>,
    /// If it was looked up already, with [`IndexOptions::wanted`].
    pub resolved: Option<ResolvedImage>,
    /// Nobody named it by hand: the SOCI-enabled image is written only over another one, and only as
    /// long as `tag` names the image.
    pub is_unattended: bool,
}

/// What was made.
#[derive(Debug)]
pub struct Made {
    /// The index of version 1, if there was to be one.
    pub index: Option<IndexedImage>,
    /// The SOCI-enabled image, if there was to be one.
    pub enabled: Option<EnabledReport>,
    /// Why there is no SOCI-enabled image. The index, if there was to be one, is attached.
    pub failed: Option<ConvertError>,
}

/// A SOCI-enabled image.
#[derive(Debug)]
pub struct EnabledReport {
    /// The tag that the template made.
    pub tag: String,
    /// What became of it.
    pub result: EnabledResult,
}

/// What became of a SOCI-enabled image.
#[derive(Debug)]
pub enum EnabledResult {
    /// It was written, or was there already.
    Converted(Box<Converted>),
    /// There is none, since no layer can be indexed.
    NothingToIndex {
        /// One for each layer, from the bottom up: why it is not indexed.
        layers: Vec<LayerReport>,
    },
    /// There is none yet, since timed out before all layers were indexed.
    OutOfTime {
        /// How many layers are not indexed yet.
        left: usize,
    },
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
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
    /// The tag of the SOCI-enabled image of an image that has the tag `own`, if there is to be one.
    ///
    /// # Errors
    /// When the template makes none, or the image's own.
    pub fn tag(&self, own: Option<&str>, digest: &Digest) -> Result<Option<String>, TagError> {
        let Some(template) = self.template() else { return Ok(None) };
        let made = template.fill(own, digest)?;
        if own == Some(&made) { Err(TagError::Own(made)) } else { Ok(Some(made)) }
    }

    /// The guard of an image that nobody named by hand, whose tag is `own`.
    pub fn guard(&self, own: Option<String>) -> Guard {
        // A tag that is made of the digest alone stays right wherever the image's own tag goes.
        Guard { source_tag: own.filter(|_| self.template().is_some_and(TagTemplate::needs_tag)) }
    }

    /// What makes the tags of SOCI-enabled images, if any are made.
    pub fn template(&self) -> Option<&TagTemplate> {
        match self {
            Versions::V1 => None,
            Versions::V2(template) | Versions::Both(template) => Some(template),
        }
    }
}

/// Whether a manifest or image index is a SOCI-enabled image, or belongs to one.
pub fn is_enabled(manifest: &Manifest) -> bool {
    match manifest {
        Manifest::Image(image) => image.annotations.contains_key(enabled::INDEX_DIGEST),
        Manifest::Index(index) => enabled::listed(&index.manifests).next().is_some(),
    }
}

/// Makes what `versions` say of an image, at `destination`; without one (a dry run) nothing is
/// looked up or written there.
///
/// # Errors
/// When there is no tag for the SOCI-enabled image, or the image cannot be indexed; then there is
/// no SOCI-enabled image either.
pub async fn make(
    subject: Subject,
    destination: Option<&Destination>,
    versions: &Versions,
    cache: Option<&ZtocCache>,
    options: &IndexOptions,
    progress: &Arc<dyn Progress>,
) -> Result<Made, MakeError> {
    let Subject { mut from, tag: own, resolved, is_unattended } = subject;
    let mut tag = None;
    if versions.template().is_some() {
        // The tag may move from here on: both are made of the same image.
        let digest = match (&resolved, &from.root) {
            (Some(resolved), _) => resolved.digest,
            (None, Target::Digest(digest)) => *digest,
            (None, Target::Tag(_)) => from.source.manifest(&from.root).await.map_err(ResolveError::Find)?.digest,
        };
        from.root = Target::Digest(digest);
        let is_home = destination.is_some_and(|there| there.is(&from.source));
        tag = match versions.tag(own.as_deref(), &digest) {
            Err(TagError::Own(made)) if !is_home => Some(made),
            made => made?,
        };
    }
    let (mut index, mut built) = (None, None);
    if !matches!(versions, Versions::V2(_)) {
        let resolved = match resolved {
            Some(resolved) => resolved,
            None => resolve(&from.source, &from.root, options.wanted(), progress).await?,
        };
        let (done, layers) = index_keeping(&from.source, resolved, destination, cache, options, progress).await?;
        (index, built) = (Some(done), Some(layers));
    }
    let Some(tag) = tag else { return Ok(Made { index, enabled: None, failed: None }) };
    let left = index.as_ref().map_or(0, |index| index.left.len());
    let result = if left > 0 {
        EnabledResult::OutOfTime { left }
    } else {
        let guard = is_unattended.then(|| versions.guard(own));
        let to = Destined { destination: destination.cloned(), tag: Some(tag.clone()), replace_tag: false, guard };
        match convert_built(&from, &to, cache, built, options, progress).await {
            Ok(converted) => EnabledResult::Converted(Box::new(converted)),
            Err(ConvertError::NothingToIndex { layers }) => EnabledResult::NothingToIndex { layers },
            Err(ConvertError::OutOfTime { left }) => EnabledResult::OutOfTime { left },
            Err(error) => return Ok(Made { index, enabled: None, failed: Some(error) }),
        }
    };
    Ok(Made { index, enabled: Some(EnabledReport { tag, result }), failed: None })
}
