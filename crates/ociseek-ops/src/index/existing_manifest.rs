//! Reads the indexes of an image that the destination lists, of either kind, and checks whether all
//! of their blobs exist.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};

use super::IndexError;
use super::existing::{AttachedIndex, CandidateLayer, Decision};
use super::model::ExistingManifest;
use super::options::{Existing, Work};
use super::supply::cached;
use crate::damage::Damage;
use crate::discover::{UnusableIndexError, to_read};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::layer::Outcome;
use ociseek_store::{Destination, StoreError};

/// How many blobs of an index are checked or written at the same time, unless some are large.
pub(crate) const BLOBS_SIDE_BY_SIDE: usize = 4;
/// Larger blobs, in bytes, are read one at a time, because each is in memory meanwhile.
const SMALL_BLOB: u64 = 16 << 20;

impl<C: AttachedIndex> ExistingManifest<C> {
    /// Whether all blobs of the index exist.
    pub(super) async fn is_whole(
        &self,
        destination: &Destination,
        check: BlobCheck,
    ) -> Result<bool, IndexError> {
        let Ok(content) = &self.content else { return Ok(false) };
        are_whole(destination, content.blobs(), check).await
    }
}

/// Whether these blobs exist.
pub(crate) async fn are_whole(
    destination: &Destination,
    blobs: impl Iterator<Item = Descriptor>,
    check: BlobCheck,
) -> Result<bool, IndexError> {
    let mut asked = BTreeSet::new();
    let blobs: Vec<Descriptor> = blobs.filter(|blob| asked.insert(blob.digest)).collect();
    let at_a_time = match check {
        BlobCheck::Size => BLOBS_SIDE_BY_SIDE,
        BlobCheck::Content => read_at_a_time(blobs.iter()),
    };
    // Collected first, because a closure in the stream would prevent the future from being Send.
    let checks: Vec<_> = blobs
        .into_iter()
        .map(|blob| async move {
            let damage = check.damage(destination, &blob).await;
            damage.map_err(|source| IndexError::Document {
                what: "blob",
                digest: blob.digest,
                source,
            })
        })
        .collect();
    // In order, so that the result does not depend on which answer comes first.
    let mut checked = stream::iter(checks).buffered(at_a_time);
    while let Some(damage) = checked.next().await {
        if damage?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many of these blobs may be read at the same time.
pub(crate) fn read_at_a_time<'a>(mut blobs: impl Iterator<Item = &'a Descriptor>) -> usize {
    if blobs.any(|blob| blob.size > SMALL_BLOB) { 1 } else { BLOBS_SIDE_BY_SIDE }
}

/// What is listed as indexes of `subject` of one kind, in the destination's order. Nothing without
/// a destination.
///
/// # Errors
/// If the list or an index that is there cannot be read.
pub(super) async fn find<C: AttachedIndex>(
    destination: Option<&Destination>,
    subject: &Digest,
) -> Result<Vec<ExistingManifest<C>>, IndexError> {
    let Some(destination) = destination else { return Ok(Vec::new()) };
    let unlisted = |source| IndexError::Referrers { subject: *subject, source };
    let listed = if C::IS_TYPE_OF_CONFIG {
        destination.referrers(subject, C::ARTIFACT_TYPE).await
    } else {
        // Harbor until 2.10 filters by the type of the config (goharbor/harbor#19867).
        destination.as_source().referrers_of(subject, &[C::ARTIFACT_TYPE]).await
    };
    let listed = listed.map_err(unlisted)?;
    let mut manifests = Vec::with_capacity(listed.descriptors.len());
    for (descriptor, unread) in to_read(listed.descriptors) {
        let content = match unread {
            Some(why) => Err(why),
            None => match destination.manifest(&descriptor.digest).await {
                Ok(document) => C::parse(&document.bytes, subject),
                Err(error) if error.may_exist() => return Err(unlisted(error)),
                // Listed, but gone or damaged: then nobody can read it.
                Err(error) => Err(UnusableIndexError::Fetch(error)),
            },
        };
        manifests.push(ExistingManifest { descriptor, content });
    }
    Ok(manifests)
}

/// Decides what to do about the existing indexes of one kind with `decided`, which learns what the
/// cache knows about the layers: an index may lack a layer because of its content, and must not
/// contradict what this machine built. An index that is complete must also have all of its blobs at
/// the destination.
pub(super) async fn decide_examined<C: AttachedIndex>(
    existing: &[ExistingManifest<C>],
    candidates: &[CandidateLayer],
    destination: Option<&Destination>,
    decided: impl Fn(&[CandidateLayer]) -> Decision,
) -> Result<Decision, IndexError> {
    let decision = decided(candidates);
    if let (Decision::Done(place), Some(destination)) = (&decision, destination)
        && !existing[*place].is_whole(destination, BlobCheck::Size).await?
    {
        // A registry's garbage collection may have deleted blobs of an index. Then it is built and
        // pushed again.
        return Ok(Decision::Build { replaces: vec![existing[*place].descriptor.digest] });
    }
    Ok(decision)
}

/// What the cache knows about `layers`, if an existing index may depend on it.
pub(super) async fn candidates<'a, C: AttachedIndex>(
    existing: &[ExistingManifest<C>],
    layers: impl Iterator<Item = &'a Descriptor>,
    work: Work<'_>,
) -> Vec<CandidateLayer> {
    let mut candidates = Vec::new();
    let is_needed = work.options.existing == Existing::Skip && !existing.is_empty();
    for layer in layers {
        let known = if is_needed { cached(work.cache, layer, work.options).await } else { None };
        let unservable = known.as_ref().is_some_and(|known| C::lacks(layer, known));
        let built = match &known {
            Some(Outcome::Ztoc(ztoc)) if !unservable => Some(ztoc.digest),
            _ => None,
        };
        candidates.push(CandidateLayer { layer: layer.digest, unservable, built });
    }
    candidates
}

/// How closely a blob at the destination is examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlobCheck {
    /// It must exist, with its size. The destination is only asked.
    Size,
    /// It is read, and must have its digest. Only for blobs whose size was not chosen by others.
    Content,
}

impl BlobCheck {
    /// Replacing an index also repairs what the destination has of the same index.
    pub(super) fn of(existing: Existing) -> BlobCheck {
        match existing {
            Existing::Replace => BlobCheck::Content,
            Existing::Skip | Existing::Keep => BlobCheck::Size,
        }
    }

    /// What is wrong with a blob.
    ///
    /// # Errors
    /// If the destination gives no answer.
    pub(super) async fn damage(
        self,
        destination: &Destination,
        blob: &Descriptor,
    ) -> Result<Option<Damage>, StoreError> {
        match self {
            BlobCheck::Size => {
                Ok((!destination.blob_exists(blob).await?).then_some(Damage::Missing))
            }
            BlobCheck::Content => match destination.as_source().blob_bytes(blob, blob.size).await {
                Ok(_) => Ok(None),
                Err(error) => Damage::of(&error).map(Some).ok_or(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blobs_are_read_one_at_a_time() {
        let blobs = |sizes: &[u64]| -> Vec<Descriptor> {
            sizes.iter().map(|size| Descriptor::new("x/y", Digest::sha256(b""), *size)).collect()
        };
        assert_eq!(read_at_a_time(blobs(&[]).iter()), BLOBS_SIDE_BY_SIDE);
        assert_eq!(read_at_a_time(blobs(&[0, SMALL_BLOB]).iter()), BLOBS_SIDE_BY_SIDE);
        assert_eq!(read_at_a_time(blobs(&[0, SMALL_BLOB + 1, 7]).iter()), 1);
    }
}
