//! Copies blobs from one store to another: mounted if the registry can do that, otherwise streamed.
//! No blob is held in memory as a whole, or written to any disk except the destination.

use std::sync::Arc;

use super::feed::{Batches, FeedError, feed};
use super::registry::{RegistryError, Repository, UploadOutcome};
use super::{Blob, Destination, Source, StoreError, local};
use ociseek_format::image::Descriptor;

/// The number of attempts to upload a blob.
const UPLOADS: u32 = 3;

/// How a blob was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMethod {
    /// The destination already had it.
    Present,
    /// The registry mounted it from another of its repositories.
    Mounted,
    /// Its bytes were sent or written.
    Sent,
}

impl Destination {
    /// Copies a blob from `source`, checking its size and digest. Up to `side_by_side` blobs are
    /// copied at the same time. `sent` receives the number of bytes of each chunk. What a registry
    /// sent is read once more if it is something else.
    ///
    /// # Errors
    /// If the source does not have the blob, its bytes do not match the descriptor, or the
    /// destination refuses it.
    pub async fn copy_blob(
        &self,
        blob: &Descriptor,
        source: &Source,
        side_by_side: usize,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<CopyMethod, StoreError> {
        match self.copy_once(blob, source, side_by_side, sent, false).await {
            // It may have been damaged on the way, or by a cache.
            Err(error) if source.is_remote() && error.is_other_content() => {
                let copied = self.copy_once(blob, source, side_by_side, sent, true).await;
                copied.map_err(|error| match error.is_other_content() {
                    true => StoreError::Twice(Box::new(error)),
                    false => error,
                })
            }
            copied => copied,
        }
    }

    /// Copies a blob, with `anew` past caches before the source.
    async fn copy_once(
        &self,
        blob: &Descriptor,
        source: &Source,
        side_by_side: usize,
        sent: &(dyn Fn(u64) + Sync),
        anew: bool,
    ) -> Result<CopyMethod, StoreError> {
        match self {
            Destination::Registry(here) => {
                if here.is_there(blob).await? {
                    return Ok(CopyMethod::Present);
                }
                if let Source::Registry(there) = source
                    && there.registry() == here.registry()
                    && here.mount_blob(&blob.digest, there).await?
                {
                    return Ok(CopyMethod::Mounted);
                }
                upload(here, blob, source, sent, anew).await.map(|()| CopyMethod::Sent)
            }
            Destination::Layout(layout) => {
                let wanted = blob.clone();
                if local(layout, move |layout| layout.blob(&wanted)).await.is_ok() {
                    return Ok(CopyMethod::Present);
                }
                let content = source.blob(blob, anew).await?;
                let (layout, wanted) = (Arc::clone(layout), blob.clone());
                let written = feed(content, side_by_side, sent, move |mut batches: Batches| {
                    let batches = std::iter::from_fn(|| batches.receive().transpose().map(Result::ok));
                    layout.write_chunks(&wanted, batches)
                });
                written.await.map(|()| CopyMethod::Sent).map_err(|error| match error {
                    FeedError::Store(source) => source,
                    FeedError::Work(source) => source.into(),
                    FeedError::Lost => StoreError::Thread,
                })
            }
        }
    }
}

async fn upload(
    here: &Repository,
    blob: &Descriptor,
    source: &Source,
    sent: &(dyn Fn(u64) + Sync),
    anew: bool,
) -> Result<(), StoreError> {
    let mut begun = 0;
    loop {
        let content = source.blob(blob, anew).await?;
        begun += 1;
        let error = match send(here, blob, content, begun > 1, sent).await {
            Ok(UploadOutcome::Done) => return Ok(()),
            Ok(UploadOutcome::Restart(error)) => error,
            Err(StoreError::Registry(error)) if error.is_transient() => {
                // The response may have been lost after the upload succeeded.
                if here.is_there(blob).await? {
                    return Ok(());
                }
                error
            }
            Err(error) => return Err(error),
        };
        if begun == UPLOADS {
            return Err(RegistryError::upload_lost(blob.digest, begun, error).into());
        }
    }
}

async fn send(
    here: &Repository,
    blob: &Descriptor,
    mut content: Blob,
    small: bool,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<UploadOutcome, StoreError> {
    let mut upload = here.upload(blob, small).await?;
    while let Some(chunk) = content.next().await? {
        sent(chunk.len() as u64);
        if let restart @ UploadOutcome::Restart(_) = upload.push(&chunk).await? {
            return Ok(restart);
        }
    }
    Ok(upload.finish().await?)
}
