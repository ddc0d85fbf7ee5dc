//! Copies blobs from one store to another: mounted if the registry can do that, otherwise streamed.
//! No blob is held in memory as a whole, or written to any disk except the destination.

use std::sync::Arc;

use super::feed::{Batches, FeedError, feed};
use super::registry::{Repository, UploadAttempts, UploadFailure};
use super::{Blob, Destination, Source, StoreError, local};
use ociseek_format::image::Descriptor;

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
                copied.map_err(|error| {
                    if error.is_other_content() {
                        StoreError::Twice(Box::new(error))
                    } else {
                        error
                    }
                })
            }
            copied => copied,
        }
    }

    /// Copies a blob. With `bypass_caches`, caches before the source must not answer.
    async fn copy_once(
        &self,
        blob: &Descriptor,
        source: &Source,
        side_by_side: usize,
        sent: &(dyn Fn(u64) + Sync),
        bypass_caches: bool,
    ) -> Result<CopyMethod, StoreError> {
        match self {
            Destination::Registry(here) => {
                if here.is_there(blob).await? {
                    return Ok(CopyMethod::Present);
                }
                if let Source::Registry(other) = source
                    && other.registry() == here.registry()
                    && here.mount_blob(&blob.digest, other).await?
                {
                    return Ok(CopyMethod::Mounted);
                }
                upload(here, blob, source, sent, bypass_caches).await.map(|()| CopyMethod::Sent)
            }
            Destination::Layout(layout) => {
                let wanted = blob.clone();
                if local(layout, move |layout| layout.blob(&wanted)).await.is_ok() {
                    return Ok(CopyMethod::Present);
                }
                let content = source.blob(blob, bypass_caches).await?;
                let layout = Arc::clone(layout);
                let wanted = blob.clone();
                let written = feed(content, side_by_side, sent, move |mut batches: Batches| {
                    let batches =
                        std::iter::from_fn(|| batches.receive().transpose().map(Result::ok));
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
    bypass_caches: bool,
) -> Result<(), StoreError> {
    let mut attempts = here.upload_attempts(blob);
    loop {
        let content = source.blob(blob, bypass_caches).await?;
        let failure = match send(&mut attempts, content, sent).await {
            Ok(()) => return Ok(()),
            Err(SendError::Source(error)) => return Err(error),
            Err(SendError::Upload(failure)) => failure,
        };
        if attempts.after(failure).await? {
            return Ok(());
        }
    }
}

/// Which side of a copy failed.
enum SendError {
    Source(StoreError),
    Upload(UploadFailure),
}

async fn send(
    attempts: &mut UploadAttempts,
    mut content: Blob,
    sent: &(dyn Fn(u64) + Sync),
) -> Result<(), SendError> {
    let mut upload = attempts.upload().await.map_err(SendError::Upload)?;
    while let Some(chunk) = content.next().await.map_err(SendError::Source)? {
        sent(chunk.len() as u64);
        upload.push(chunk).await.map_err(SendError::Upload)?;
    }
    upload.finish().await.map_err(SendError::Upload)
}
