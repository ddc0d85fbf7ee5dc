//! Writes the converted image to its destination: blobs, then manifests, then the image index under
//! its tag.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::keeping_kinds;
use super::load::ImageDocuments;
use super::model::{ConvertDestination, ConvertError, ExistingImage, SIDE_BY_SIDE, SourceImage};
use crate::damage::Damage;
use crate::index::{
    Artifact, BLOBS_SIDE_BY_SIDE, BlobCheck, BoundFine, IndexError, IndexOptions, IndexedZtoc,
    NewBlob, WriteBlob, are_whole, push_blob, read_at_a_time, soci_blobs,
};
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::{EnabledDocuments, EntryContent, subjects_first};
use ociseek_format::image::go::{GoManifest, decode_index, decode_manifest};
use ociseek_format::image::manifest::{OCI_INDEX, OCI_MANIFEST};
use ociseek_format::image::soci::INDEX_V2;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_store::copy::CopyMethod;
use ociseek_store::feed::reported;
use ociseek_store::{Destination, Source, blocking};

/// The number of bytes written to the destination.
#[derive(Default)]
pub(super) struct WrittenBytes {
    /// Of blobs copied from the source.
    pub copied: u64,
    /// Of new blobs and manifests.
    pub written: u64,
}

/// A converted image, and what is needed to write it.
pub(super) struct Publication<'a> {
    pub loaded: &'a ImageDocuments,
    pub enabled: &'a EnabledDocuments,
    pub new_blobs: &'a NewBlobs,
    /// Whether the source is a SOCI-enabled image itself.
    pub source_is_enabled: bool,
    pub from: &'a SourceImage,
    pub to: &'a ConvertDestination,
    /// What the destination's name referred to at the beginning.
    pub there: Option<Digest>,
    pub options: &'a IndexOptions,
    pub jobs: usize,
    pub progress: &'a Arc<dyn Progress>,
}

impl Publication<'_> {
    /// Writes the image. None if the destination has it already, undamaged and under its name.
    ///
    /// # Errors
    /// If the guard forbids it, or the destination refuses it or keeps a damaged document.
    pub(super) async fn run(
        &self,
        destination: &Destination,
    ) -> Result<Option<WrittenBytes>, ConvertError> {
        let Publication { enabled, new_blobs, to, .. } = self;
        let existing = to.there().await?;
        let is_there = existing.as_ref().is_some_and(|existing| existing.digest == enabled.digest);
        let lost = if is_there { lost_document(enabled, destination).await? } else { None };
        if is_there && lost.is_none() && new_blobs.are_whole(destination).await? {
            return Ok(None);
        }
        self.admit(existing.as_ref()).await?;
        let write = if is_there || self.source_is_enabled {
            WriteBlob::IfDamaged
        } else {
            WriteBlob::IfMissing
        };
        self.progress
            .report(ProgressEvent::Attaching { index: enabled.digest, blobs: new_blobs.0.len() });
        let written = self.write(destination, write).await?;
        // Some registries keep the bytes that they have for a digest.
        if lost.is_some()
            && let Some((what, digest)) = lost_document(enabled, destination).await?
        {
            return Err(IndexError::StaysDamaged { what, digest }.into());
        }
        Ok(Some(written))
    }

    /// Checks whether the image may replace `existing`, which must still be what was there at
    /// first.
    async fn admit(&self, existing: Option<&ExistingImage>) -> Result<(), ConvertError> {
        let Publication { loaded, enabled, from, to, .. } = self;
        let now = existing.map(|existing| existing.digest);
        // A service replaces what another one wrote, but no index of another kind is lost.
        let may_replace =
            || to.guard.is_some() && keeping_kinds(loaded, existing, self.options).is_none();
        if let (Some(tag), Some(digest)) = (&to.tag, now)
            && now != self.there
            && digest != enabled.digest
            && !may_replace()
        {
            return Err(ConvertError::Changed { tag: tag.clone(), digest });
        }
        to.admit(existing, from, &loaded.root).await
    }

    async fn write(
        &self,
        destination: &Destination,
        write: WriteBlob,
    ) -> Result<WrittenBytes, ConvertError> {
        let Publication { loaded, enabled, new_blobs, from, to, .. } = self;
        let mut done = WrittenBytes::default();
        let source = &from.source;
        let elsewhere = !destination.is(source);
        if elsewhere {
            done.copied = copy(loaded, source, destination, self.jobs, self.progress).await?;
        }
        done.written += new_blobs.write(destination, write).await?;
        let manifests = Manifests { loaded, enabled, destination, elsewhere };
        match manifests.push(self).await {
            // The registry claimed to have a blob that it does not have, so upload it now.
            Err(ConvertError::Push { source: error, .. }) if error.is_blob_unknown() => {
                done.written += new_blobs.write(destination, WriteBlob::Always).await?;
                done.written += manifests.push(self).await?;
            }
            written => done.written += written?,
        }
        if let Destination::Layout(layout) = destination {
            let layout = Arc::clone(layout);
            let image = Descriptor::new(OCI_INDEX, enabled.digest, enabled.bytes.len() as u64);
            let tag = to.tag.clone();
            let keep = loaded.root;
            let named = blocking(move || layout.name(&image, tag.as_deref(), Some(&keep))).await;
            named.map_err(|source| ConvertError::Push {
                what: "image index",
                digest: enabled.digest,
                source,
            })?;
        }
        Ok(done)
    }
}

/// Copies the parts of the image, `jobs` blobs at a time. Returns the number of bytes sent.
async fn copy(
    loaded: &ImageDocuments,
    source: &Source,
    destination: &Destination,
    jobs: usize,
    progress: &Arc<dyn Progress>,
) -> Result<u64, ConvertError> {
    let mut blobs: BTreeMap<Digest, Descriptor> = BTreeMap::new();
    let images = loaded.original.contents.iter().filter_map(EntryContent::image).cloned();
    // Only manifests have known parts.
    let unchanged = loaded.unchanged.values().filter_map(|bytes| decode_manifest(bytes).ok());
    for manifest in images.chain(unchanged) {
        let GoManifest { config, layers, .. } = manifest;
        for blob in layers.into_iter().flatten().chain([config]) {
            blobs.entry(blob.digest).or_insert(blob);
        }
    }
    let copied = AtomicU64::new(0);
    let copied = &copied;
    let side_by_side = jobs.clamp(1, 8);
    stream::iter(blobs.into_values().map(Ok))
        .try_for_each_concurrent(side_by_side, async |blob: Descriptor| {
            let layer = blob.digest;
            let sent = |bytes| {
                progress.report(ProgressEvent::LayerRead { layer, bytes });
            };
            let copy = async {
                match destination.copy_blob(&blob, source, side_by_side, &sent).await {
                    Ok(CopyMethod::Sent) => drop(copied.fetch_add(blob.size, Ordering::Relaxed)),
                    Ok(CopyMethod::Present | CopyMethod::Mounted) => {}
                    // A foreign layer is stored elsewhere, as its manifest states.
                    Err(error)
                        if LayerKind::of(&blob.media_type) == LayerKind::Foreign
                            && error.is_not_found() => {}
                    Err(source) => return Err(ConvertError::Copy { digest: layer, source }),
                }
                Ok(())
            };
            reported(progress, &blob, copy).await
        })
        .await?;
    Ok(copied.load(Ordering::Relaxed))
}

/// The blobs of the SOCI indexes and fine indexes.
pub(super) struct NewBlobs(BTreeMap<Digest, NewBlob>);

impl NewBlobs {
    pub(super) fn new(
        ztocs: &[IndexedZtoc<'_>],
        prefetch: &[Artifact],
        fine: Vec<BoundFine>,
    ) -> NewBlobs {
        let fine = fine.into_iter().flat_map(|fine| fine.blobs);
        let blobs = soci_blobs(ztocs, prefetch, INDEX_V2).into_iter().chain(fine);
        NewBlobs(blobs.map(|blob| (blob.descriptor.digest, blob)).collect())
    }

    /// Whether the destination has the blobs, undamaged.
    async fn are_whole(&self, destination: &Destination) -> Result<bool, ConvertError> {
        let blobs: Vec<Descriptor> = self.0.values().map(|blob| blob.descriptor.clone()).collect();
        Ok(are_whole(destination, blobs.into_iter(), BlobCheck::Content).await?)
    }

    /// Returns the number of bytes written.
    async fn write(
        &self,
        destination: &Destination,
        write: WriteBlob,
    ) -> Result<u64, ConvertError> {
        // Collected first, because a closure in the stream would prevent the future from being
        // Send.
        let pushes: Vec<_> = self
            .0
            .values()
            .map(|blob| async move {
                let pushed = push_blob(destination, blob, write).await;
                pushed.map_err(|error| match error {
                    IndexError::Push { what, digest, source } => {
                        ConvertError::Push { what, digest, source }
                    }
                    error => error.into(),
                })
            })
            .collect();
        let at_a_time = match write {
            WriteBlob::IfDamaged => read_at_a_time(self.0.values().map(|blob| &blob.descriptor)),
            WriteBlob::IfMissing | WriteBlob::Always => BLOBS_SIDE_BY_SIDE,
        };
        let written = stream::iter(pushes).buffer_unordered(at_a_time);
        written.try_fold(0, async |sum, size| Ok(sum + size)).await
    }
}

/// The first manifest of the converted image that the destination lacks or has damaged, and what it
/// is.
async fn lost_document(
    enabled: &EnabledDocuments,
    destination: &Destination,
) -> Result<Option<(&'static str, Digest)>, ConvertError> {
    let mut documents: Vec<_> =
        enabled.manifests.iter().map(|manifest| ("manifest", manifest.digest)).collect();
    documents.extend(enabled.indexes.iter().map(|index| ("SOCI index", index.descriptor.digest)));
    documents.extend(enabled.fine.iter().map(|index| ("fine index", index.descriptor.digest)));
    // Collected first, because a closure in the stream would prevent the future from being Send.
    let reads: Vec<_> = (documents.into_iter())
        .map(|(what, digest)| async move { (what, digest, destination.manifest(&digest).await) })
        .collect();
    // In order, so that the result does not depend on which answer comes first.
    let mut reads = stream::iter(reads).buffered(SIDE_BY_SIDE);
    while let Some((what, digest, read)) = reads.next().await {
        match read {
            Ok(_) => {}
            Err(error) if Damage::of(&error).is_some() => return Ok(Some((what, digest))),
            Err(error) => return Err(ConvertError::Destination(error)),
        }
    }
    Ok(None)
}

/// The documents of the converted image.
struct Manifests<'a> {
    loaded: &'a ImageDocuments,
    enabled: &'a EnabledDocuments,
    destination: &'a Destination,
    /// Whether the destination may lack content of the source.
    elsewhere: bool,
}

impl Manifests<'_> {
    /// Writes all documents, the image index last. Returns their size in bytes.
    async fn push(&self, publication: &Publication<'_>) -> Result<u64, ConvertError> {
        let to = publication.to;
        let EnabledDocuments { manifests, indexes, fine, index, bytes, digest } = self.enabled;
        let mut written = 0;
        let mut listed = Vec::new();
        if self.elsewhere {
            for entry in &index.manifests {
                if let Some(bytes) = self.loaded.unchanged.get(&entry.digest) {
                    let unchanged =
                        Descriptor::new(entry.media_type.clone(), entry.digest, bytes.len() as u64);
                    listed.push(ListedManifest::new(unchanged, bytes.clone()));
                }
            }
        }
        for manifest in
            manifests.iter().filter(|manifest| self.elsewhere || manifest.digest != manifest.was)
        {
            let descriptor =
                Descriptor::new(OCI_MANIFEST, manifest.digest, manifest.bytes.len() as u64);
            let mut listed_manifest =
                ListedManifest::new(descriptor, manifest.bytes.clone().into());
            let content = self.loaded.original.contents.get(manifest.entry);
            listed_manifest.is_image = content.is_some_and(|content| content.image().is_some());
            listed.push(listed_manifest);
        }
        let in_order = subjects_first(
            listed,
            |_, manifest| Some(manifest.descriptor.digest),
            |manifest| manifest.subject,
        );
        for (_, manifest) in in_order {
            let ListedManifest { descriptor, bytes, subject, is_image } = manifest;
            match self.one(&descriptor, bytes, None).await {
                // Others push attestations, so that the registry's rules for them cost no image.
                // Where an image was accepted, 403 is not about the login (Aliyun says so).
                Err(ConvertError::Push { digest, source, .. })
                    if subject.is_some()
                        && !is_image
                        && (source.is_refused_content()
                            || written > 0 && source.is_forbidden()) =>
                {
                    return Err(ConvertError::RefusedSubject { digest, source });
                }
                size => written += size?,
            }
        }
        for index in indexes.iter().chain(fine) {
            written += self.one(&index.descriptor, index.bytes.clone().into(), None).await?;
        }
        // Until here may have taken a while.
        publication.admit(to.there_now().await?.as_ref()).await?;
        let whole = Descriptor::new(OCI_INDEX, *digest, bytes.len() as u64);
        written += self.one(&whole, bytes.clone().into(), to.tag.as_deref()).await?;
        Ok(written)
    }

    async fn one(
        &self,
        manifest: &Descriptor,
        bytes: Bytes,
        tag: Option<&str>,
    ) -> Result<u64, ConvertError> {
        let size = bytes.len() as u64;
        let what = if manifest.media_type == OCI_INDEX { "image index" } else { "manifest" };
        let pushed = self.destination.push_manifest(manifest, bytes, tag).await;
        pushed.map_err(|source| ConvertError::Push { what, digest: manifest.digest, source })?;
        Ok(size)
    }
}

/// A manifest that the image index lists.
struct ListedManifest {
    descriptor: Descriptor,
    bytes: Bytes,
    subject: Option<Digest>,
    /// Whether it is an image, which cannot be left out.
    is_image: bool,
}

impl ListedManifest {
    fn new(descriptor: Descriptor, bytes: Bytes) -> ListedManifest {
        let subject = match decode_manifest(&bytes) {
            Ok(manifest) => manifest.subject,
            Err(_) => decode_index(&bytes).ok().and_then(|index| index.subject),
        };
        let subject = subject.map(|subject| subject.digest);
        ListedManifest { descriptor, bytes, subject, is_image: false }
    }
}
