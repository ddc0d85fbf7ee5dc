//! Copies blobs from one store to another: mounted if the registry can do that, otherwise streamed.
//! No blob is held in memory as a whole, or written to any disk except the destination.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::registry::{RegistryError, Repository, UploadOutcome};
use super::stream::CHUNKS;
use super::{Blob, Destination, Source, StoreError, local};
use crate::image::Descriptor;

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
    /// Copies a blob from `source`, checking its size and digest. `sent` receives the number of
    /// bytes of each chunk. What a registry sent is read once more if it is something else.
    ///
    /// # Errors
    /// If the source does not have the blob, its bytes do not match the descriptor, or the
    /// destination refuses it.
    pub async fn copy_blob(
        &self,
        blob: &Descriptor,
        source: &Source,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<CopyMethod, StoreError> {
        match self.copy_once(blob, source, sent, false).await {
            // It may have been damaged on the way, or by a cache.
            Err(error) if source.is_remote() && error.is_other_content() => {
                let copied = self.copy_once(blob, source, sent, true).await;
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
                let mut content = source.blob(blob, anew).await?;
                let (chunks, received) = mpsc::channel::<Option<Bytes>>(CHUNKS);
                let wanted = blob.clone();
                let writing =
                    local(layout, move |layout| layout.write_chunks(&wanted, ReceivedChunks(received, false)));
                let feeding = async move {
                    while let Some(chunk) = content.next().await? {
                        sent(chunk.len() as u64);
                        if chunks.send(Some(chunk)).await.is_err() {
                            return Ok(());
                        }
                    }
                    // Without this end marker, the writer treats the blob as truncated.
                    let _ = chunks.send(None).await;
                    Ok(())
                };
                let (fed, written) = tokio::join!(feeding, writing);
                // If reading failed, that is also why writing failed.
                fed.and(written).map(|()| CopyMethod::Sent)
            }
        }
    }
}

/// Chunks up to an end marker. If the sender disappears without one, yields a None.
struct ReceivedChunks(mpsc::Receiver<Option<Bytes>>, bool);

impl Iterator for ReceivedChunks {
    type Item = Option<Bytes>;
    fn next(&mut self) -> Option<Option<Bytes>> {
        if self.1 {
            return None;
        }
        match self.0.blocking_recv() {
            Some(Some(chunk)) => Some(Some(chunk)),
            Some(None) => {
                self.1 = true;
                None
            }
            None => {
                self.1 = true;
                Some(None)
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
