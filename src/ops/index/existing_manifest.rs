//! What the destination lists as indexes of an image, of either kind.

use super::error::IndexError;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::ops::discover::{Unusable, to_read};
use crate::store::{Destination, StoreError};

/// What the destination lists as an index of the image; `C` is what an index of that kind says.
#[derive(Debug)]
pub(super) struct ExistingManifest<C> {
    pub descriptor: Descriptor,
    /// An error if it was not read or is not such an index of the image. Anyone who may push can list
    /// any manifest of the repository here, so such a manifest is never replaced: replacing deletes.
    pub content: Result<C, Unusable>,
}

/// What is listed as indexes of `subject` with this artifact type, in the destination's order, and
/// what `parse` makes of it.
///
/// # Errors
/// If the list or an index that is there cannot be read.
pub(super) async fn find<C>(
    destination: &Destination,
    subject: &Digest,
    artifact_type: &'static str,
    parse: impl Fn(&[u8], &Digest) -> Result<C, Unusable>,
) -> Result<Vec<ExistingManifest<C>>, IndexError> {
    let unlisted = |source| IndexError::Referrers { subject: *subject, source };
    let listed = destination.referrers(subject, artifact_type).await.map_err(unlisted)?;
    let mut found = Vec::with_capacity(listed.descriptors.len());
    for (descriptor, unread) in to_read(listed.descriptors) {
        let content = match unread {
            Some(why) => Err(why),
            None => match destination.manifest(&descriptor.digest).await {
                Ok(document) => parse(&document.bytes, subject),
                Err(StoreError::Registry(error)) if !error.is_not_found() && !error.is_other_content() => {
                    return Err(unlisted(error.into()));
                }
                // Listed, but gone or damaged: then nobody can read it.
                Err(error) => Err(Unusable::Fetch(error)),
            },
        };
        found.push(ExistingManifest { descriptor, content });
    }
    Ok(found)
}
