//! Where images live, and where indexes go: registries, OCI layouts, archives; and the local cache of ztocs.
//!
//! The set is closed: [`Source`] is what can be read, [`Destination`] what can be written. Local
//! stores block: their calls run on tokio's blocking threads here, and their blobs come through a
//! short channel.

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
use blob::{Attached, Document, Referrers, Target};
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

/// How many chunks of a local blob may wait.
const CHUNKS: usize = 2;

/// What a library for TLS, HTTP or the like says went wrong. It may be another library tomorrow, so
/// that its type is not named.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a store did not do what was asked.
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
    /// What was asked for is not there.
    pub fn is_not_found(&self) -> bool {
        match self {
            StoreError::Registry(error) => error.is_not_found(),
            StoreError::Local(error) => matches!(error, LayoutError::Missing { .. }),
            _ => false,
        }
    }

    /// The store does not hold what was asked for, or not as it should be: nobody can read it there.
    pub fn is_lost(&self) -> bool {
        self.is_not_found() || matches!(self, StoreError::Local(LayoutError::Size { .. } | LayoutError::Damaged { .. }))
    }

    /// What failed may go well at another time.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Registry(error) => error.is_transient(),
            // A disk that is full, say, can be full again in a minute, or not.
            StoreError::Local(_) | StoreError::Read { .. } | StoreError::Thread => true,
            StoreError::Range { .. } | StoreError::Memory(_) => false,
        }
    }

    /// A manifest was refused since a blob that it names is not there.
    pub fn is_blob_unknown(&self) -> bool {
        matches!(self, StoreError::Registry(error) if error.is_blob_unknown())
    }
}

/// Bytes of memory, at most, that a byte of a manifest becomes: parsed, and copied into what is reported of each layer.
pub(crate) const DOCUMENT_COST: u64 = 8;

/// The same bytes, which stay charged for as long as they are there.
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

/// Where an image is read from. Cheap to clone.
#[derive(Clone)]
pub enum Source {
    /// A repository of a registry.
    Registry(Repository),
    /// A directory in the format of the OCI image layout.
    Layout(Arc<Layout>),
    /// A file: a tar of a layout, or what `docker save` wrote.
    Archive(Arc<Archive>),
}

/// Requests and the bytes of their answers, which are all that came over the network but for headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that were sent, those for tokens and after redirects among them.
    pub requests: u64,
    /// Bytes of the answers' bodies.
    pub bytes: u64,
}

impl Source {
    /// What its registry's client has requested so far, also for other repositories. A local store has no traffic.
    pub fn traffic(&self) -> Traffic {
        match self {
            Source::Registry(repository) => repository.traffic(),
            Source::Layout(_) | Source::Archive(_) => Traffic::default(),
        }
    }

    /// What the work on the image may take. Clones of a source share it.
    pub fn budget(&self) -> &Budget {
        match self {
            Source::Registry(repository) => repository.budget(),
            Source::Layout(layout) => layout.budget(),
            Source::Archive(archive) => archive.budget(),
        }
    }

    /// The same registry with another budget. A local store keeps its own.
    #[must_use]
    pub fn with_budget(&self, budget: Budget) -> Source {
        match self {
            Source::Registry(repository) => Source::Registry(repository.with_budget(budget)),
            Source::Layout(_) | Source::Archive(_) => self.clone(),
        }
    }

    /// A manifest or image index; its bytes match its digest. It stays charged to the budget, with
    /// what it becomes once it is parsed.
    ///
    /// # Errors
    /// When it is not there, cannot be had, is not what its digest says, or does not fit into the budget.
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

    /// A blob of at most `limit` bytes, its digest checked. It is charged to the budget for as long
    /// as its bytes are there.
    ///
    /// # Errors
    /// When it is not there, cannot be had, is larger, is not what its digest says, or does not fit into the budget.
    pub async fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, StoreError> {
        let Descriptor { digest, size, .. } = *blob;
        // What is larger than the limit is refused for that, without memory.
        let charge = self.budget().charge(size.min(limit), || format!("blob {digest} of {size} bytes"))?;
        let blob = blob.clone();
        let content = match self {
            Source::Registry(repository) => repository.blob_bytes(&blob, limit).await?,
            Source::Layout(layout) => local(layout, move |layout| layout.blob_bytes(&blob, limit)).await?,
            Source::Archive(archive) => local(archive, move |archive| archive.blob_bytes(&blob, limit)).await?,
        };
        Ok(charged(content, charge))
    }

    /// A blob as a stream. Its size is what its descriptor says; its digest is for the reader to check.
    ///
    /// # Errors
    /// When it is not there or cannot be had.
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

    /// The bytes of `range` of a blob, exactly as many as there are in it. Their digest is for the
    /// reader to check, and so is what they may come to together.
    ///
    /// # Errors
    /// When the range is not within the blob, or cannot be had.
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

    /// The bytes of `range` of a blob as a stream, as [`Source::blob_range`]. With `anew` no cache
    /// on the way is to answer.
    ///
    /// # Errors
    /// When the range is not within the blob, or cannot be had.
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

    /// Whether a blob is there; it is not read.
    ///
    /// # Errors
    /// When the store does not say.
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

    /// All referrers of `subject`, in the order in which the store lists them.
    ///
    /// # Errors
    /// When they cannot be had; that there are none is no error.
    pub async fn all_referrers(&self, subject: &Digest) -> Result<Referrers, StoreError> {
        let subject = *subject;
        match self {
            Source::Registry(repository) => Ok(repository.referrers(&subject, None).await?),
            Source::Layout(layout) => local(layout, move |layout| layout.referrers(&subject, None)).await,
            Source::Archive(archive) => local(archive, move |archive| archive.referrers(&subject, None)).await,
        }
    }

    /// The referrers of `subject` that are of one of these artifact types, from one list, in its order.
    ///
    /// # Errors
    /// When they cannot be had; that there are none is no error.
    pub async fn referrers_of(&self, subject: &Digest, artifact_types: &[&str]) -> Result<Referrers, StoreError> {
        let mut listed = self.all_referrers(subject).await?;
        let is_wanted =
            |found: &Descriptor| found.artifact_type.as_deref().is_some_and(|t| artifact_types.contains(&t));
        listed.descriptors.retain(is_wanted);
        Ok(listed)
    }

    /// The referrers of `subject` that are of `artifact_type`, in the order in which the store lists them.
    ///
    /// # Errors
    /// When they cannot be had; that there are none is no error.
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

/// Where an index is written. Cheap to clone.
#[derive(Clone)]
pub enum Destination {
    /// A repository of a registry.
    Registry(Repository),
    /// A directory in the format of the OCI image layout.
    Layout(Arc<Layout>),
}

/// What became of attaching an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachReport {
    /// Where it is listed now.
    pub attached: Attached,
    /// Replaced indexes that the registry would not delete.
    pub not_deleted: Vec<Digest>,
}

impl Destination {
    /// The referrers of `subject` that are of `artifact_type`, in the order in which the destination lists them.
    ///
    /// # Errors
    /// When they cannot be had; that there are none is no error.
    pub async fn referrers(&self, subject: &Digest, artifact_type: &'static str) -> Result<Referrers, StoreError> {
        self.as_source().referrers(subject, artifact_type).await
    }

    /// A manifest; its bytes match its digest.
    ///
    /// # Errors
    /// When it is not there, cannot be had, or is not what its digest says.
    pub async fn manifest(&self, digest: &Digest) -> Result<Document, StoreError> {
        self.as_source().manifest(&Target::Digest(*digest)).await
    }

    /// A blob of at most `limit` bytes, its digest checked.
    ///
    /// # Errors
    /// When it is not there, cannot be had, is larger, or is not what its digest says.
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

    /// The same store, to read from.
    pub fn as_source(&self) -> Source {
        match self {
            Destination::Registry(repository) => Source::Registry(repository.clone()),
            Destination::Layout(layout) => Source::Layout(Arc::clone(layout)),
        }
    }

    /// Whether it is where `source` reads.
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
    /// When the destination does not say.
    pub async fn blob_exists(&self, digest: &Digest) -> Result<bool, StoreError> {
        let digest = *digest;
        match self {
            Destination::Registry(repository) => Ok(repository.blob_exists(&digest).await?),
            Destination::Layout(layout) => local(layout, move |layout| layout.blob_exists(&digest)).await,
        }
    }

    /// Writes a blob unless it is there; with `unchecked` even if the destination says so. True: it was written.
    ///
    /// # Errors
    /// When the destination does not take it.
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

    /// Writes a manifest or index, of which all parts are there. In a registry it gets the `tag` at
    /// once; a layout lists it under the tag (naming it in index.json does that).
    ///
    /// # Errors
    /// When the destination does not take it.
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

    /// Gives a manifest that is there a tag.
    ///
    /// # Errors
    /// When the destination does not take it.
    pub async fn tag_manifest(&self, manifest: &Descriptor, bytes: Bytes, tag: &str) -> Result<(), StoreError> {
        match self {
            Destination::Registry(_) => self.push_manifest(manifest, bytes, Some(tag)).await,
            Destination::Layout(layout) => {
                let (manifest, tag) = (manifest.clone(), tag.to_owned());
                local(layout, move |layout| layout.name(&manifest, Some(&tag), None)).await
            }
        }
    }

    /// Takes manifests off the list of `subject`'s referrers, and deletes them where that is the
    /// store's way: in a layout their blobs stay. Gives what became of each, in their order. Each
    /// must be a referrer of `subject` that was read.
    ///
    /// # Errors
    /// When the list cannot be changed; then nothing is deleted.
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

    /// Writes an index manifest, of which all blobs are there, as a referrer of `subject` in the place of `replaces`.
    ///
    /// # Errors
    /// When the destination does not take it. [`StoreError::is_blob_unknown`] tells whether a blob
    /// was not there after all.
    pub async fn attach(
        &self,
        index: &Descriptor,
        manifest: Bytes,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<AttachReport, StoreError> {
        match self {
            Destination::Registry(repository) => {
                let report = repository.attach(index, manifest, subject, replaces).await?;
                Ok(AttachReport { attached: report.attached, not_deleted: report.not_deleted })
            }
            Destination::Layout(layout) => {
                let (index, subject, replaces) = (index.clone(), subject.clone(), replaces.to_vec());
                let attached = local(layout, move |l| l.attach(&index, &manifest, &subject, &replaces)).await?;
                Ok(AttachReport { attached, not_deleted: Vec::new() })
            }
        }
    }
}

/// Opens a local store, or finds an image in one, on a thread that may block.
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

/// A part of a blob on its way, in chunks.
pub struct Part(InnerPart);

enum InnerPart {
    Registry(Box<BlobStream>),
    Local(Option<Bytes>),
}

impl Part {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When they cannot be had.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        match &mut self.0 {
            InnerPart::Registry(stream) => Ok(stream.next().await?),
            InnerPart::Local(bytes) => Ok(bytes.take()),
        }
    }

    /// Requests that were sent so far; a local store gets none.
    pub fn requests(&self) -> u32 {
        match &self.0 {
            InnerPart::Registry(stream) => stream.requests(),
            InnerPart::Local(_) => 0,
        }
    }

    /// Bytes that came over the network beside those that [`Part::next`] gave.
    pub fn extra(&self, given: u64) -> u64 {
        match &self.0 {
            InnerPart::Registry(stream) => stream.received().saturating_sub(given),
            InnerPart::Local(_) => 0,
        }
    }
}

/// A blob on its way, in chunks.
pub struct Blob(Inner);

enum Inner {
    Registry(Box<LayerStream>),
    Local { digest: Digest, chunks: mpsc::Receiver<io::Result<Bytes>> },
}

impl Blob {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When they cannot be had.
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

/// Reads a local blob to its end, which an empty chunk tells, or until nobody takes its chunks.
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
