//! Uploads a blob whose bytes arrive piece by piece. At most a chunk is held in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;

use super::error::RegistryError;
use super::request::StreamBody;
use super::uploads::{BegunUpload, UploadAttempts, UploadFailure, UploadMode, UploadSession};
use ociseek_format::digest::Hasher;
use ociseek_format::image::Descriptor;

/// The limit for the memory of a blob that is copied, in bytes, however large the chunks that the
/// registry requests.
const LARGEST_BUFFER: u64 = 64 << 20;
/// The number of pieces that may wait for the connection.
const WAITING: usize = 8;

/// An upload of a blob to a registry.
pub(crate) struct Upload {
    blob: Descriptor,
    hasher: Hasher,
    /// The number of bytes that were taken.
    taken: u64,
    way: UploadWay,
}

/// Where the bytes go.
enum UploadWay {
    /// The registry has the blob.
    Nowhere,
    /// They are sent in requests of at most `size` bytes. A blob of one chunk is held until it is
    /// complete.
    Requests { session: UploadSession, mode: UploadMode, size: usize, sent: u64, waiting: BytesMut },
    /// They are sent in one request, by a task that ends when this is dropped.
    Stream {
        sender: Sender<Bytes>,
        /// The bytes that were given to the task.
        offered: Arc<AtomicU64>,
        /// The last piece is held back until the digest was verified.
        held: Bytes,
        task: JoinSet<Result<(), UploadFailure>>,
    },
}

impl UploadAttempts {
    /// Starts the next attempt to upload the blob.
    pub(crate) async fn upload(&mut self) -> Result<Upload, UploadFailure> {
        let blob = self.blob.clone();
        let chunk = self.repository.registry.http.limits.chunk;
        let way = match self.begin().await? {
            BegunUpload::Present => UploadWay::Nowhere,
            BegunUpload::Session(session, UploadMode::Whole) if blob.size > chunk => {
                stream(session, &blob)
            }
            BegunUpload::Session(session, mode) => {
                let size = match mode {
                    UploadMode::Chunks(size) => size.min(LARGEST_BUFFER),
                    UploadMode::Whole => chunk,
                };
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                UploadWay::Requests { session, mode, size, sent: 0, waiting: BytesMut::new() }
            }
        };
        Ok(Upload { hasher: Hasher::new(blob.digest.algorithm()), blob, taken: 0, way })
    }
}

fn stream(mut session: UploadSession, blob: &Descriptor) -> UploadWay {
    let (sender, pieces) = channel(WAITING);
    let offered = Arc::new(AtomicU64::new(0));
    let body = StreamBody::new(blob.size, pieces, Arc::clone(&offered));
    let digest = blob.digest;
    let mut task = JoinSet::new();
    task.spawn(async move {
        let sent = session.put_stream(&digest, body).await;
        session.close(&sent).await;
        sent
    });
    UploadWay::Stream { sender, offered, held: Bytes::new(), task }
}

impl Upload {
    /// Takes the next bytes of the blob.
    pub(crate) async fn push(&mut self, chunk: Bytes) -> Result<(), UploadFailure> {
        let total = self.blob.size;
        self.taken += chunk.len() as u64;
        if self.taken > total {
            let digest = self.blob.digest;
            let found = self.taken;
            return Err(RegistryError::Content { digest, expected: total, found }.into());
        }
        self.hasher.update(&chunk);
        match &mut self.way {
            UploadWay::Nowhere => {}
            UploadWay::Stream { sender, offered, held, task } => {
                let piece = std::mem::replace(held, chunk);
                offer(sender, offered, task, piece).await?;
            }
            UploadWay::Requests { session, size, sent, waiting, .. } => {
                waiting.extend_from_slice(&chunk);
                while waiting.len() > *size {
                    let piece = waiting.split_to(*size).freeze();
                    let accepted = session.piece(&piece, *sent, total, *size as u64).await;
                    if accepted.is_err() {
                        session.close(&accepted).await;
                        return accepted;
                    }
                    *sent += piece.len() as u64;
                }
            }
        }
        Ok(())
    }

    /// Ends the upload with the bytes that were not sent yet. Fails without them if they were not
    /// those of the blob, which then does not exist in the registry.
    pub(crate) async fn finish(self) -> Result<(), UploadFailure> {
        let Descriptor { digest, size: total, .. } = self.blob;
        if self.taken != total {
            return Err(
                RegistryError::Content { digest, expected: total, found: self.taken }.into()
            );
        }
        let actual = self.hasher.finish();
        if actual != digest {
            return Err(
                RegistryError::Blob { expected: digest.into(), found: actual.into() }.into()
            );
        }
        match self.way {
            UploadWay::Nowhere => Ok(()),
            UploadWay::Stream { sender, offered, held, mut task } => {
                offer(&sender, &offered, &mut task, held).await?;
                drop(sender);
                ended(&mut task).await
            }
            UploadWay::Requests { mut session, mode, size, sent, mut waiting } => {
                let rest = waiting.split().freeze();
                let outcome = match mode {
                    UploadMode::Whole => session.put(&digest, rest).await,
                    UploadMode::Chunks(_) => {
                        match session.piece(&rest, sent, total, size as u64).await {
                            Ok(()) => session.put(&digest, Bytes::new()).await,
                            failed => failed,
                        }
                    }
                };
                session.close(&outcome).await;
                outcome
            }
        }
    }
}

/// Gives a piece to the task that sends them, unless its request has ended.
async fn offer(
    sender: &Sender<Bytes>,
    offered: &AtomicU64,
    task: &mut JoinSet<Result<(), UploadFailure>>,
    piece: Bytes,
) -> Result<(), UploadFailure> {
    if piece.is_empty() {
        return Ok(());
    }
    let length = piece.len() as u64;
    tokio::select! {
        biased;
        early = ended(task) => early,
        given = sender.send(piece) => match given {
            Ok(()) => {
                offered.fetch_add(length, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => ended(task).await,
        },
    }
}

/// The result of the request. It may succeed early: a registry that has the blob need not read it.
async fn ended(task: &mut JoinSet<Result<(), UploadFailure>>) -> Result<(), UploadFailure> {
    match task.join_next().await {
        Some(Ok(result)) => result,
        // It succeeded before.
        None => Ok(()),
        Some(Err(error)) => Err(RegistryError::Http(error.into()).into()),
    }
}
