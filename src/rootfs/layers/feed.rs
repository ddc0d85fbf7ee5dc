//! A layer's bytes, from the store to a thread that may block.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::store::{Blob, StoreError};

/// How many chunks (of 256 KiB at most, as stores hand them out) may wait for the thread.
const CHUNKS: usize = 8;

/// The chunks of a blob, on the thread's side.
pub(in crate::rootfs) struct Chunks(mpsc::Receiver<Option<Bytes>>);

/// What comes next of a blob.
pub(in crate::rootfs) enum Next {
    Chunk(Bytes),
    End,
    /// Nobody wants the result, or the blob could not be read to its end.
    Abandoned,
}

impl Chunks {
    pub fn next(&mut self) -> Next {
        match self.0.blocking_recv() {
            Some(Some(chunk)) => Next::Chunk(chunk),
            Some(None) => Next::End,
            None => Next::Abandoned,
        }
    }
}

/// How feeding went.
pub(in crate::rootfs) enum Fed<T> {
    /// What the thread made of the blob, perhaps before its end.
    Done(T),
    Store(StoreError),
    /// The thread panicked, or the runtime is ending.
    Lost,
}

/// Hands a blob's chunks to `work` on a thread of its own, until it returns; `came` hears of each chunk's length. When this future is
/// dropped, the thread is told with [`Next::Abandoned`].
pub(in crate::rootfs) async fn feed<T: Send + 'static>(
    mut blob: Blob,
    mut came: impl FnMut(u64),
    work: impl FnOnce(Chunks) -> T + Send + 'static,
) -> Fed<T> {
    let (chunks, received) = mpsc::channel(CHUNKS);
    let thread = spawn_blocking(move || work(Chunks(received)));
    loop {
        let chunk = match blob.next().await {
            Ok(chunk) => chunk,
            Err(error) => return Fed::Store(error),
        };
        came(chunk.as_ref().map_or(0, |chunk| chunk.len() as u64));
        let last = chunk.is_none();
        // A thread that takes no more has its result.
        if chunks.send(chunk).await.is_err() || last {
            break;
        }
    }
    drop(chunks);
    thread.await.map_or(Fed::Lost, Fed::Done)
}
