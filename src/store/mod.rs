//! The places where images are stored and indexes are written (registries, OCI layouts, archives),
//! and the local cache of ztocs.
//!
//! The set is closed: a [`Source`] can be read, a [`Destination`] can be written. Local stores
//! block, so their calls run on tokio's blocking threads, and their blobs arrive through a short
//! channel.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::budget::{Budget, Charge, OverBudget};
use crate::digest::Digest;
use crate::image::Descriptor;
pub use buffers::Buffers;

use archive::Archive;
use blob::{AttachReport, Document, Referrers, Target};
use layout::{BlobReader, Layout, LayoutError};
use registry::{BlobStream, LayerStream, RegistryError, Repository};

pub mod archive;
pub mod blob;
mod buffers;
pub mod cache;
pub mod copy;
pub mod entries;
pub mod feed;
pub mod layout;
#[cfg(feature = "registry")]
pub mod registry;
#[cfg(not(feature = "registry"))]
#[path = "no_registry.rs"]
pub mod registry;

/// The most chunks of a local blob that may wait in the channel.
const CHUNKS: usize = 2;

/// The cause of an error in a library for TLS, HTTP or the like. Its type is not named, so the
/// library can be replaced.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a store could not complete a call.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum StoreError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Local(#[from] LayoutError),
    #[error("cannot read blob {digest}")]
    Read { digest: Digest, source: io::Error },
    #[error("bytes {} to {} are outside blob {digest} of {size} bytes", range.start, range.end)]
    Range { digest: Digest, range: Range<u64>, size: u64 },
    #[error("the disk thread stopped unexpectedly")]
    Thread,
    #[error(transparent)]
    Memory(#[from] OverBudget),
}

impl StoreError {
    /// The content does not exist in the store.
    pub fn is_not_found(&self) -> bool {
        match self {
            StoreError::Registry(error) => error.is_not_found(),
            StoreError::Local(error) => matches!(error, LayoutError::Missing { .. }),
            _ => false,
        }
    }

    /// The store does not have the content, or has it damaged: nobody can read it there.
    pub fn is_lost(&self) -> bool {
        self.is_not_found() || matches!(self, StoreError::Local(LayoutError::Size { .. } | LayoutError::Damaged { .. }))
    }

    /// Whether the operation may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Registry(error) => error.is_transient(),
            // Whether a full disk, for example, will soon have space again is unknown.
            StoreError::Local(_) | StoreError::Read { .. } | StoreError::Thread => true,
            StoreError::Range { .. } | StoreError::Memory(_) => false,
        }
    }

    /// A manifest was refused because a blob that it names does not exist.
    pub fn is_blob_unknown(&self) -> bool {
        matches!(self, StoreError::Registry(error) if error.is_blob_unknown())
    }
}

/// The most memory that a byte of a manifest can become, in bytes: parsed, and copied into the
/// report for each layer.
pub(crate) const DOCUMENT_COST: u64 = 8;

/// The same bytes. They stay charged for as long as they exist.
pub(crate) fn charged(content: Bytes, charge: Charge) -> Bytes {
    struct Charged {
        content: Bytes,
        _charge: Charge,
    }
    impl AsRef<[u8]> for Charged {
        fn as_ref(&self) -> &[u8] {
            &self.content
        }
    }
    Bytes::from_owner(Charged { content, _charge: charge })
}

/// A place to read an image from. Cheap to clone.
#[derive(Clone)]
pub enum Source {
    /// A repository of a registry.
    Registry(Repository),
    /// A directory in the format of the OCI image layout.
    Layout(Arc<Layout>),
    /// A file: the tar of a layout, or the output of `docker save`.
    Archive(Arc<Archive>),
}

/// The requests to a registry and the size of the responses, without headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of requests sent, including those for tokens and after redirects.
    pub requests: u64,
    /// The size of the response bodies in bytes.
    pub bytes: u64,
}

impl Source {
    /// The traffic of the registry's client so far, including other repositories. Local stores have
    /// none.
    pub fn traffic(&self) -> Traffic {
        match self {
            Source::Registry(repository) => repository.traffic(),
            Source::Layout(_) | Source::Archive(_) => Traffic::default(),
        }
    }

    /// The memory budget for the work on the image. Clones of a source share it.
    pub fn budget(&self) -> &Budget {
        match self {
            Source::Registry(repository) => repository.budget(),
            Source::Layout(layout) => layout.budget(),
            Source::Archive(archive) => archive.budget(),
        }
    }

    /// The same registry with another budget. Local stores keep their own.
    #[must_use]
    pub fn with_budget(&self, budget: Budget) -> Source {
        match self {
            Source::Registry(repository) => Source::Registry(repository.with_budget(budget)),
            Source::Layout(_) | Source::Archive(_) => self.clone(),
        }
    }

    /// A manifest or image index. Its bytes match its digest. They stay charged to the budget,
    /// together with their parsed form.
    ///
    /// # Errors
    /// If it does not exist, cannot be fetched, does not match its digest, or does not fit into the
    /// budget.
    pub async fn manifest(&self, target: &Target) -> Result<Document, StoreError> {
        let target = target.clone();
        let document = match self {
            Source::Registry(repository) => repository.manifest(&target).await?,
            Source::Layout(layout) => local(layout, move |layout| layout.manifest(&target)).await?,
            Source::Archive(archive) => local(archive, move |archive| archive.manifest(&target)).await?,
        };
        let (digest, size) = (document.digest, document.bytes.len() as u64);
        let charge = self.budget().charge(size * DOCUMENT_COST, || format!("manifest {digest} of {size} bytes"))?;
        charge.keep();
        Ok(document)
    }

    /// A blob of at most `limit` bytes with a verified digest. It stays charged to the budget for
    /// as long as its bytes exist.
    ///
    /// # Errors
    /// If it does not exist, cannot be fetched, is too large, does not match its digest, or does
    /// not fit into the budget.
    pub async fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, StoreError> {
        let Descriptor { digest, size, .. } = *blob;
        // A blob that exceeds the limit is refused for that reason, without charging memory.
        let charge = self.budget().charge(size.min(limit), || format!("blob {digest} of {size} bytes"))?;
        let blob = blob.clone();
        let content = match self {
            Source::Registry(repository) => repository.blob_bytes(&blob, limit).await?,
            Source::Layout(layout) => local(layout, move |layout| layout.blob_bytes(&blob, limit)).await?,
            Source::Archive(archive) => local(archive, move |archive| archive.blob_bytes(&blob, limit)).await?,
        };
        Ok(charged(content, charge))
    }

    /// A blob as a stream. Its size matches its descriptor; the reader must verify its digest.
    ///
    /// # Errors
    /// If it does not exist or cannot be fetched.
    pub async fn blob(&self, blob: &Descriptor) -> Result<Blob, StoreError> {
        let digest = blob.digest;
        let wanted = blob.clone();
        let reader = match self {
            Source::Registry(repository) => {
                return Ok(Blob(Inner::Registry(Box::new(repository.layer(&wanted).await?))));
            }
            Source::Layout(layout) => local(layout, move |layout| layout.blob(&wanted)).await?,
            Source::Archive(archive) => local(archive, move |archive| archive.blob(&wanted)).await?,
        };
        let (chunks, received) = mpsc::channel(CHUNKS);
        spawn_blocking(move || read_chunks(reader, &chunks));
        Ok(Blob(Inner::Local { digest, chunks: received }))
    }

    /// Exactly the bytes of `range` in a blob. The caller must verify their digest, and account for
    /// their memory.
    ///
    /// # Errors
    /// If the range is not within the blob, or cannot be fetched.
    pub async fn blob_range(&self, blob: &Descriptor, range: Range<u64>) -> Result<Bytes, StoreError> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or_default();
        let mut part = self.blob_part(blob, range, false).await?;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = part.next().await? {
            if chunk.len() == length {
                return Ok(chunk);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }

    /// The bytes of `range` of a blob as a stream, like [`Source::blob_range`]. With `anew`, caches
    /// on the way must not answer.
    ///
    /// # Errors
    /// If the range is not within the blob, or cannot be fetched.
    pub async fn blob_part(&self, blob: &Descriptor, range: Range<u64>, anew: bool) -> Result<Part, StoreError> {
        if range.start > range.end || range.end > blob.size {
            return Err(StoreError::Range { digest: blob.digest, range, size: blob.size });
        }
        if range.is_empty() {
            return Ok(Part(InnerPart::Local(None)));
        }
        let wanted = blob.clone();
        let bytes = match self {
            Source::Registry(repository) => {
                let stream = repository.blob_part(&wanted, range, anew).await?;
                return Ok(Part(InnerPart::Registry(Box::new(stream))));
            }
            Source::Layout(layout) => local(layout, move |layout| layout.blob_range(&wanted, range)).await?,
            Source::Archive(archive) => local(archive, move |archive| archive.blob_range(&wanted, range)).await?,
        };
        Ok(Part(InnerPart::Local(Some(bytes))))
    }

    /// Whether a blob exists. It is not read.
    ///
    /// # Errors
    /// If the store gives no answer.
    pub async fn blob_exists(&self, blob: &Descriptor) -> Result<bool, StoreError> {
        let wanted = blob.clone();
        match self {
            Source::Registry(repository) => Ok(repository.blob_exists(&wanted.digest).await?),
            Source::Layout(layout) => local(layout, move |layout| layout.blob_exists(&wanted.digest)).await,
            Source::Archive(archive) => match local(archive, move |archive| archive.blob(&wanted)).await {
                Ok(_) => Ok(true),
                Err(error) if error.is_not_found() => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// All referrers of `subject`, in the order of the store.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn all_referrers(&self, subject: &Digest) -> Result<Referrers, StoreError> {
        let subject = *subject;
        match self {
            Source::Registry(repository) => Ok(repository.referrers(&subject, None).await?),
            Source::Layout(layout) => local(layout, move |layout| layout.referrers(&subject, None)).await,
            Source::Archive(archive) => local(archive, move |archive| archive.referrers(&subject, None)).await,
        }
    }

    /// The referrers of `subject` with one of these artifact types, from a single list, in its
    /// order.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn referrers_of(&self, subject: &Digest, artifact_types: &[&str]) -> Result<Referrers, StoreError> {
        let mut listed = self.all_referrers(subject).await?;
        let is_wanted =
            |found: &Descriptor| found.artifact_type.as_deref().is_some_and(|t| artifact_types.contains(&t));
        listed.descriptors.retain(is_wanted);
        Ok(listed)
    }

    /// The referrers of `subject` with this `artifact_type`, in the order of the store.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn referrers(&self, subject: &Digest, artifact_type: &'static str) -> Result<Referrers, StoreError> {
        let subject = *subject;
        let wanted = Some(artifact_type);
        match self {
            Source::Registry(repository) => Ok(repository.referrers(&subject, wanted).await?),
            Source::Layout(layout) => local(layout, move |layout| layout.referrers(&subject, wanted)).await,
            Source::Archive(archive) => local(archive, move |archive| archive.referrers(&subject, wanted)).await,
        }
    }
}

/// A place to write an index to. Cheap to clone.
#[derive(Clone)]
pub enum Destination {
    /// A repository of a registry.
    Registry(Repository),
    /// A directory in the format of the OCI image layout.
    Layout(Arc<Layout>),
}

impl Destination {
    /// The referrers of `subject` with this `artifact_type`, in the order of the destination.
    ///
    /// # Errors
    /// If they cannot be listed. An empty list is not an error.
    pub async fn referrers(&self, subject: &Digest, artifact_type: &'static str) -> Result<Referrers, StoreError> {
        self.as_source().referrers(subject, artifact_type).await
    }

    /// A manifest. Its bytes match its digest.
    ///
    /// # Errors
    /// If it does not exist, cannot be fetched, or does not match its digest.
    pub async fn manifest(&self, digest: &Digest) -> Result<Document, StoreError> {
        self.as_source().manifest(&Target::Digest(*digest)).await
    }

    /// A blob of at most `limit` bytes with a verified digest.
    ///
    /// # Errors
    /// If it does not exist, cannot be fetched, is too large, or does not match its digest.
    pub async fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, StoreError> {
        self.as_source().blob_bytes(blob, limit).await
    }

    /// As [`Source::budget`].
    pub fn budget(&self) -> &Budget {
        match self {
            Destination::Registry(repository) => repository.budget(),
            Destination::Layout(layout) => layout.budget(),
        }
    }

    /// The same store as a source.
    pub fn as_source(&self) -> Source {
        match self {
            Destination::Registry(repository) => Source::Registry(repository.clone()),
            Destination::Layout(layout) => Source::Layout(Arc::clone(layout)),
        }
    }

    /// Whether this is the store that `source` reads.
    pub fn is(&self, source: &Source) -> bool {
        match (self, source) {
            (Destination::Registry(here), Source::Registry(there)) => {
                here.registry() == there.registry() && here.name() == there.name()
            }
            (Destination::Layout(here), Source::Layout(there)) => here.is_same(there),
            _ => false,
        }
    }

    /// # Errors
    /// If the destination gives no answer.
    pub async fn blob_exists(&self, digest: &Digest) -> Result<bool, StoreError> {
        let digest = *digest;
        match self {
            Destination::Registry(repository) => Ok(repository.blob_exists(&digest).await?),
            Destination::Layout(layout) => local(layout, move |layout| layout.blob_exists(&digest)).await,
        }
    }

    /// Writes a blob unless it exists. With `unchecked`, writes it even if the destination claims
    /// to have it. Returns whether it was written.
    ///
    /// # Errors
    /// If the destination refuses it.
    pub async fn push_blob(&self, blob: &Descriptor, content: Bytes, unchecked: bool) -> Result<bool, StoreError> {
        let blob = blob.clone();
        match self {
            Destination::Registry(repository) if unchecked => {
                repository.push_blob_unchecked(&blob, content).await?;
                Ok(true)
            }
            Destination::Registry(repository) => Ok(repository.push_blob(&blob, content).await?),
            Destination::Layout(layout) => local(layout, move |layout| layout.write_blob(&blob, &content)).await,
        }
    }

    /// Writes a manifest or index whose parts all exist. A registry gives it the `tag` at the same
    /// time. A layout stores it; naming it in index.json gives it the tag.
    ///
    /// # Errors
    /// If the destination refuses it.
    pub async fn push_manifest(
        &self,
        manifest: &Descriptor,
        bytes: Bytes,
        tag: Option<&str>,
    ) -> Result<(), StoreError> {
        let manifest = manifest.clone();
        match self {
            Destination::Registry(repository) => {
                let target = tag.map_or(Target::Digest(manifest.digest), |tag| Target::Tag(tag.to_owned()));
                Ok(repository.push_manifest(&target, &manifest.media_type, bytes).await?)
            }
            Destination::Layout(layout) => {
                local(layout, move |layout| layout.write_blob(&manifest, &bytes)).await.map(drop)
            }
        }
    }

    /// Gives a tag to an existing manifest.
    ///
    /// # Errors
    /// If the destination refuses it.
    pub async fn tag_manifest(&self, manifest: &Descriptor, bytes: Bytes, tag: &str) -> Result<(), StoreError> {
        match self {
            Destination::Registry(_) => self.push_manifest(manifest, bytes, Some(tag)).await,
            Destination::Layout(layout) => {
                let (manifest, tag) = (manifest.clone(), tag.to_owned());
                local(layout, move |layout| layout.name(&manifest, Some(&tag), None)).await
            }
        }
    }

    /// Removes manifests from the list of `subject`'s referrers, and deletes them if the store does
    /// that: in a layout their blobs stay. Returns a result for each, in order. Each must be a
    /// referrer of `subject` that was read before.
    ///
    /// # Errors
    /// If the list cannot be changed. Then nothing is deleted.
    pub async fn detach(
        &self,
        subject: &Digest,
        referrers: &[Digest],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        match self {
            Destination::Registry(repository) => {
                let deleted = repository.detach(subject, referrers).await?;
                Ok(deleted.into_iter().map(|result| result.map_err(StoreError::from)).collect())
            }
            Destination::Layout(layout) => {
                let (subject, gone) = (*subject, referrers.to_vec());
                local(layout, move |layout| layout.detach(&subject, &gone)).await?;
                Ok(referrers.iter().map(|_| Ok(())).collect())
            }
        }
    }

    /// Writes an index manifest, whose blobs all exist, as a referrer of `subject`, replacing
    /// `replaces`.
    ///
    /// # Errors
    /// If the destination refuses it. [`StoreError::is_blob_unknown`] tells whether a blob was
    /// missing.
    pub async fn attach(
        &self,
        index: &Descriptor,
        manifest: Bytes,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<AttachReport, StoreError> {
        match self {
            Destination::Registry(repository) => Ok(repository.attach(index, manifest, subject, replaces).await?),
            Destination::Layout(layout) => {
                let (index, subject, replaces) = (index.clone(), subject.clone(), replaces.to_vec());
                let attached = local(layout, move |l| l.attach(&index, &manifest, &subject, &replaces)).await?;
                Ok(AttachReport { attached, not_deleted: Vec::new() })
            }
        }
    }
}

/// Runs `work`, which opens a local store or finds an image in one, on a thread that may block.
///
/// # Errors
/// Those of `work`.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LayoutError> + Send + 'static,
) -> Result<T, StoreError> {
    Ok(spawn_blocking(work).await.map_err(|_| StoreError::Thread)??)
}

async fn local<S: Send + Sync + 'static, T: Send + 'static>(
    store: &Arc<S>,
    work: impl FnOnce(&S) -> Result<T, LayoutError> + Send + 'static,
) -> Result<T, StoreError> {
    let store = Arc::clone(store);
    blocking(move || work(&store)).await
}

/// A part of a blob as a stream of chunks.
pub struct Part(InnerPart);

enum InnerPart {
    Registry(Box<BlobStream>),
    Local(Option<Bytes>),
}

impl Part {
    /// The next bytes; None at the end.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        match &mut self.0 {
            InnerPart::Registry(stream) => Ok(stream.next().await?),
            InnerPart::Local(bytes) => Ok(bytes.take()),
        }
    }

    /// The number of requests sent so far; 0 for local stores.
    pub fn requests(&self) -> u32 {
        match &self.0 {
            InnerPart::Registry(stream) => stream.requests(),
            InnerPart::Local(_) => 0,
        }
    }

    /// The number of bytes that came over the network in addition to the `given` bytes from
    /// [`Part::next`].
    pub fn extra(&self, given: u64) -> u64 {
        match &self.0 {
            InnerPart::Registry(stream) => stream.received().saturating_sub(given),
            InnerPart::Local(_) => 0,
        }
    }
}

/// A blob as a stream of chunks.
pub struct Blob(Inner);

enum Inner {
    Registry(Box<LayerStream>),
    Local { digest: Digest, chunks: mpsc::Receiver<io::Result<Bytes>> },
}

impl Blob {
    /// The next bytes; None at the end.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        match &mut self.0 {
            Inner::Registry(stream) => Ok(stream.next().await?),
            Inner::Local { digest, chunks } => match chunks.recv().await {
                Some(Ok(chunk)) if chunk.is_empty() => Ok(None),
                Some(Ok(chunk)) => Ok(Some(chunk)),
                Some(Err(source)) => Err(StoreError::Read { digest: *digest, source }),
                None => Err(StoreError::Thread),
            },
        }
    }
}

/// Reads a local blob to its end, which is marked by an empty chunk, or until the receiver is gone.
fn read_chunks(mut reader: BlobReader, chunks: &mpsc::Sender<io::Result<Bytes>>) {
    let buffers = Buffers::default();
    loop {
        let chunk = buffers.read_chunk(&mut reader);
        let last = chunk.as_ref().map_or(true, Bytes::is_empty);
        if chunks.blocking_send(chunk).is_err() || last {
            return;
        }
    }
}
