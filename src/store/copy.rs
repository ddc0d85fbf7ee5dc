//! Blobs that go from one store to another: mounted where a registry can, else streamed. None is
//! held as a whole, nor written to a disk but the destination's own.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::registry::{RegistryError, Repository, Uploaded};
use super::{Blob, CHUNKS, Destination, Source, StoreError, local};
use crate::image::Descriptor;

/// Times that the upload of one blob is begun.
const UPLOADS: u32 = 3;

/// How a blob came to be at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// It was there.
    There,
    /// The registry took it over from another of its repositories.
    Mounted,
    /// Its bytes were sent or written.
    Sent,
}

impl Destination {
    /// Brings a blob of `source` here; its size and digest are checked. `sent` gets the bytes of each chunk.
    ///
    /// # Errors
    /// When the source does not have it, its bytes are not those of the descriptor, or the
    /// destination does not take it.
    pub async fn copy_blob(
        &self,
        blob: &Descriptor,
        source: &Source,
        sent: &(dyn Fn(u64) + Sync),
    ) -> Result<Copied, StoreError> {
        match self {
            Destination::Registry(here) => {
                if here.is_there(blob).await? {
                    return Ok(Copied::There);
                }
                if let Source::Registry(there) = source
                    && there.registry() == here.registry()
                    && here.mount_blob(&blob.digest, there).await?
                {
                    return Ok(Copied::Mounted);
                }
                upload(here, blob, source, sent).await.map(|()| Copied::Sent)
            }
            Destination::Layout(layout) => {
                let wanted = blob.clone();
                if local(layout, move |layout| layout.blob(&wanted)).await.is_ok() {
                    return Ok(Copied::There);
                }
                let mut content = source.blob(blob).await?;
                let (chunks, received) = mpsc::channel::<Option<Bytes>>(CHUNKS);
                let wanted = blob.clone();
                let writing = local(layout, move |layout| layout.write_chunks(&wanted, Received(received, false)));
                let feeding = async move {
                    while let Some(chunk) = content.next().await? {
                        sent(chunk.len() as u64);
                        if chunks.send(Some(chunk)).await.is_err() {
                            return Ok(());
                        }
                    }
                    // Without this end the writer takes the blob for cut off.
                    let _ = chunks.send(None).await;
                    Ok(())
                };
                let (fed, written) = tokio::join!(feeding, writing);
                // Where reading failed, that is why writing did.
                fed.and(written).map(|()| Copied::Sent)
            }
        }
    }
}

/// Chunks until the end that is sent, or until the sender is gone, which yields a None.
struct Received(mpsc::Receiver<Option<Bytes>>, bool);

impl Iterator for Received {
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
) -> Result<(), StoreError> {
    let mut begun = 0;
    loop {
        let content = source.blob(blob).await?;
        begun += 1;
        let error = match send(here, blob, content, begun > 1, sent).await {
            Ok(Uploaded::Done) => return Ok(()),
            Ok(Uploaded::Again(error)) => error,
            Err(StoreError::Registry(error)) if error.is_transient() => {
                // The answer may have been lost, not the upload.
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
) -> Result<Uploaded, StoreError> {
    let mut upload = here.upload(blob, small).await?;
    while let Some(chunk) = content.next().await? {
        sent(chunk.len() as u64);
        if let again @ Uploaded::Again(_) = upload.push(&chunk).await? {
            return Ok(again);
        }
    }
    Ok(upload.finish().await?)
}
