//! What converting an image takes and what it yields.

use super::ConvertError;
use crate::digest::Digest;
use crate::image::coverage::Coverage;
use crate::image::enabled::listed;
use crate::image::go::{Index, decode_index};
use crate::image::manifest::{DOCKER_LIST, OCI_INDEX};
use crate::image::{Descriptor, Platform, Select};
use crate::ops::index::{LayerReport, Prefetched};
use crate::store::blob::{Document, Target};
use crate::store::{Destination, Source, StoreError, blocking};

/// The image that is converted.
pub struct SourceImage {
    /// Where it is.
    pub source: Source,
    /// Its tag or digest there.
    pub root: Target,
    /// What a layout's index.json says of it.
    pub descriptor: Option<Descriptor>,
}

/// Where the converted image goes.
pub struct Destined {
    /// None: a dry run into a layout that is not there yet.
    pub destination: Option<Destination>,
    /// None: a layout lists it without a name.
    pub tag: Option<String>,
    /// The tag may be the one of the image that is converted.
    pub replace_tag: bool,
    /// What must hold before anything is written. None: the user named the tag.
    pub guard: Option<Guard>,
}

/// Protects the images of a repository where nobody names the destination by hand: the tag must be
/// free or name a SOCI-enabled image.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// A tag of the source, which must still name the image that is converted.
    pub source_tag: Option<String>,
}

/// What the destination's name stands for already.
pub(super) struct There {
    pub digest: Digest,
    /// If it is an image index.
    pub manifests: Vec<Descriptor>,
}

impl There {
    fn is_enabled(&self) -> bool {
        listed(&self.manifests).next().is_some()
    }
}

/// A converted image.
#[derive(Debug, Clone)]
pub struct Converted {
    /// Of the image that was converted.
    pub source: Digest,
    /// Of the SOCI-enabled image.
    pub digest: Digest,
    /// Bytes of its image index.
    pub size: u64,
    /// The images in it that were to be indexed, in the order in which they were asked for, or of the image index.
    pub images: Vec<ConvertedImage>,
    /// What became of it.
    pub outcome: ConvertStatus,
    /// Bytes of layers that were read to index them.
    pub bytes_read: u64,
    /// Bytes of layers that were compared with ztocs to reuse.
    pub bytes_compared: u64,
    /// Bytes of blobs that were copied from the source.
    pub bytes_copied: u64,
    /// Bytes of new blobs and manifests.
    pub bytes_written: u64,
}

/// The image of one platform.
#[derive(Debug, Clone)]
pub struct ConvertedImage {
    /// As the image index says, or else the image's config.
    pub platform: Platform,
    /// Its manifest before, or the index that stood in its place.
    pub was: Digest,
    /// Its manifest now, which names the SOCI index.
    pub manifest: Digest,
    /// None if no layer can be served lazily.
    pub index: Option<Descriptor>,
    /// One for each layer, from the bottom up.
    pub layers: Vec<LayerReport>,
    /// How much of the layers the index covers.
    pub coverage: Coverage,
    /// What its SOCI index says to prefetch, if that has a list.
    pub prefetch: Option<Prefetched>,
}

/// What became of a SOCI-enabled image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvertStatus {
    /// It was pushed.
    Written {
        /// What the tag named before; it is still there under its digest.
        replaced: Option<Digest>,
    },
    /// The very image is there under its tag: nothing was written.
    AlreadyThere,
    /// Nothing was written, since this is a dry run.
    DryRun {
        /// What the tag names, and would not name any longer.
        replaces: Option<Digest>,
    },
}

impl Destined {
    /// What the name stands for now. What is not an image index is only known by its digest.
    pub(super) async fn there(&self) -> Result<Option<There>, ConvertError> {
        let Some(document) = self.document().await.map_err(ConvertError::Destination)? else { return Ok(None) };
        let is_index = matches!(document.media_type.as_str(), OCI_INDEX | DOCKER_LIST);
        let index = decode_index(&document.bytes).ok().filter(|_| is_index);
        Ok(Some(There { digest: document.digest, manifests: index.map_or_else(Vec::new, |i: Index| i.manifests) }))
    }

    /// Looks whether the guard, if there is one, lets the image `root` of `source` be written in the
    /// place of what is `there`.
    pub(super) async fn admit(
        &self,
        there: Option<&There>,
        source: &Source,
        root: &Digest,
    ) -> Result<(), ConvertError> {
        let Some(guard) = &self.guard else { return Ok(()) };
        if let Some(there) = there.filter(|there| !there.is_enabled()) {
            return Err(ConvertError::Occupied { digest: there.digest });
        }
        let Some(tag) = &guard.source_tag else { return Ok(()) };
        match source.manifest(&Target::Tag(tag.clone())).await {
            Ok(document) if document.digest == *root => Ok(()),
            Err(error) if !error.is_not_found() => Err(ConvertError::Find(error)),
            Ok(_) | Err(_) => Err(ConvertError::Moved { tag: tag.clone() }),
        }
    }

    async fn document(&self) -> Result<Option<Document>, StoreError> {
        match (&self.destination, &self.tag) {
            (Some(Destination::Registry(repository)), Some(tag)) => {
                match repository.manifest(&Target::Tag(tag.clone())).await {
                    Ok(document) => Ok(Some(document)),
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            (Some(Destination::Layout(layout)), tag) => {
                let select = tag.clone().map_or(Select::Any, Select::Tag);
                let layout = std::sync::Arc::clone(layout);
                blocking(move || {
                    // There may be nothing by that name, or what it names may be damaged: then it is written.
                    let found = layout.find(&select).ok();
                    Ok(found.and_then(|found| layout.manifest(&Target::Digest(found.digest)).ok()))
                })
                .await
            }
            _ => Ok(None),
        }
    }
}
