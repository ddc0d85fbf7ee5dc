//! Passes the bytes of a blob from a store to a thread that may block.
//!
//! Chunks go through a short channel in batches. Over TLS, chunks are as small as a record (16
//! KiB), and passing them one by one would wake the thread, and those behind it, for each.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;

use super::{Blob, StoreError};
use ociseek_format::image::Descriptor;
use ociseek_format::progress::{Progress, ProgressEvent};

/// The least size of a batch in bytes. Only the last one of a blob may be smaller.
const BATCH: usize = 256 << 10;
/// The most chunks in a batch, so that a store that sends single bytes does not make it large.
const MOST_CHUNKS: usize = 256;
/// The most batches that may wait for a thread, or for all threads that are fed in parallel.
const MOST_WAITING: usize = 4;
const WAITING_IN_ALL: usize = 16;

/// Runs `work`, which reads or sends a layer, and reports its start and its end.
///
/// # Errors
/// Those of `work`.
pub async fn reported<T, E>(
    progress: &Arc<dyn Progress>,
    layer: &Descriptor,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let (layer, bytes) = (layer.digest, layer.size);
    progress.report(ProgressEvent::LayerStarted { layer, bytes });
    let result = work.await;
    progress.report(if result.is_ok() {
        ProgressEvent::LayerDone { layer }
    } else {
        ProgressEvent::LayerFailed { layer }
    });
    result
}

/// The receiving end of a feed, for the thread.
pub struct Batches(Receiver<Message>);

ociseek_format::opaque_debug!(Batches);

/// If the channel closes without [`Message::End`], the feed was abandoned.
enum Message {
    Batch(Vec<Bytes>),
    End,
}

/// The caller dropped the result, or the blob could not be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the blob was not read to its end")]
pub struct FeedAborted;

/// Why a feed has no result.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum FeedError<E = FeedAborted> {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The work on the thread failed.
    #[error(transparent)]
    Work(E),
    #[error("the thread reading the blob stopped unexpectedly")]
    Lost,
}

impl Batches {
    /// Waits for the next chunks; None at the end of the blob.
    ///
    /// # Errors
    /// If the thread should stop without a result.
    pub fn receive(&mut self) -> Result<Option<Vec<Bytes>>, FeedAborted> {
        match self.0.blocking_recv() {
            Some(Message::Batch(chunks)) => Ok(Some(chunks)),
            Some(Message::End) => Ok(None),
            None => Err(FeedAborted),
        }
    }
}

/// Reads `blob` for `work`, which runs on its own thread. `on_chunk` receives the size of each
/// chunk in bytes as it arrives. Up to `side_by_side` blobs are read at the same time.
///
/// Reading stops as soon as `work` returns. If the store fails or this future is dropped, the next
/// call of [`Batches::receive`] fails.
///
/// # Errors
/// If the store fails, `work` fails or panics, or the runtime shuts down.
pub async fn feed<T: Send + 'static, E: Send + 'static>(
    blob: Blob,
    side_by_side: usize,
    on_chunk: impl FnMut(u64),
    work: impl FnOnce(Batches) -> Result<T, E> + Send + 'static,
) -> Result<T, FeedError<E>> {
    let waiting = (WAITING_IN_ALL / side_by_side.max(1)).clamp(1, MOST_WAITING);
    let (batches, received) = channel(waiting);
    let thread = spawn_blocking(move || work(Batches(received)));
    // On the heap, once for each blob, for the sake of every future that reads one.
    Box::pin(send(blob, batches, on_chunk)).await?;
    match thread.await {
        Ok(result) => result.map_err(FeedError::Work),
        Err(_) => Err(FeedError::Lost),
    }
}

/// Sends the whole blob, or as much of it as the thread accepts.
async fn send(
    mut blob: Blob,
    batches: Sender<Message>,
    mut on_chunk: impl FnMut(u64),
) -> Result<(), StoreError> {
    let mut batch = Vec::new();
    let mut size = 0;
    loop {
        let chunk = tokio::select! {
            biased;
            () = batches.closed() => return Ok(()),
            chunk = blob.next() => chunk?,
        };
        let Some(chunk) = chunk else { break };
        on_chunk(chunk.len() as u64);
        size += chunk.len();
        batch.push(chunk);
        if size >= BATCH || batch.len() >= MOST_CHUNKS {
            size = 0;
            // If the thread is gone, the next iteration notices.
            let _ = batches.send(Message::Batch(std::mem::take(&mut batch))).await;
        }
    }
    if !batch.is_empty() {
        let _ = batches.send(Message::Batch(batch)).await;
    }
    let _ = batches.send(Message::End).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc as threads;

    use super::*;
    use ociseek_format::digest::Digest;

    /// A blob whose chunks come from the returned sender.
    fn blob() -> (Sender<io::Result<Bytes>>, Blob) {
        let (chunks, received) = channel(1);
        (chunks, Blob::of_chunks(Digest::sha256(b"blob"), received))
    }

    /// A blob of `bytes` that arrives in chunks of the given sizes, in turn.
    fn cut(bytes: &'static [u8], chunks: &'static [usize]) -> Blob {
        let (sender, blob) = blob();
        tokio::spawn(async move {
            let mut rest = bytes;
            for &size in chunks.iter().cycle() {
                let (chunk, later) = rest.split_at(size.min(rest.len()));
                rest = later;
                // An empty chunk marks the end.
                if sender.send(Ok(Bytes::from_static(chunk))).await.is_err() || chunk.is_empty() {
                    return;
                }
            }
        });
        blob
    }

    fn collect(mut batches: Batches) -> Result<Vec<Vec<Bytes>>, FeedAborted> {
        let mut all = Vec::new();
        while let Some(batch) = batches.receive()? {
            all.push(batch);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn chunks_arrive_in_batches_of_limited_size() {
        let bytes: &[u8] = (0..3_000_000u32).map(|i| (i / 3) as u8).collect::<Vec<_>>().leak();
        for chunks in [&[16 << 10][..], &[1 << 20], &[1, 70_000], &[300_000, 5], &[40, 9, 900]] {
            let mut arrived = 0;
            let batches =
                feed(cut(bytes, chunks), 2, |size| arrived += size, collect).await.unwrap();
            assert!(batches.concat().concat() == bytes, "{chunks:?}");
            assert_eq!(arrived, bytes.len() as u64);
            let sizes: Vec<_> =
                batches.iter().map(|batch| (batch.concat().len(), batch.len())).collect();
            let most = BATCH + chunks.iter().max().unwrap();
            assert!(
                sizes.iter().all(|&(bytes, chunks)| bytes < most && chunks <= MOST_CHUNKS),
                "{sizes:?}"
            );
            let (_, full) = sizes.split_last().unwrap();
            assert!(
                full.iter().all(|&(bytes, chunks)| bytes >= BATCH || chunks == MOST_CHUNKS),
                "{sizes:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_empty_blob_ends_without_chunks() {
        assert_eq!(feed(cut(b"", &[1]), 1, |_| {}, collect).await.unwrap().concat().concat(), b"");
    }

    #[tokio::test]
    async fn reading_stops_when_the_thread_has_its_result() {
        // A store that sends nothing more and does not close the connection.
        let (sender, blob) = blob();
        sender.send(Ok(Bytes::from(vec![7; BATCH]))).await.unwrap();
        let first =
            |mut batches: Batches| batches.receive().map(|batch| batch.unwrap().concat().len());
        assert_eq!(feed(blob, 1, |_| {}, first).await.unwrap(), BATCH);
        assert!(sender.is_closed());
    }

    #[tokio::test]
    async fn the_thread_ends_when_the_store_fails() {
        let (sender, blob) = blob();
        tokio::spawn(async move {
            let _ = sender.send(Ok(Bytes::from_static(b"some"))).await;
            let _ = sender.send(Err(io::Error::other("the disk is gone"))).await;
        });
        let (seen, sees) = threads::channel();
        let work = move |batches| {
            let all = collect(batches);
            seen.send(all.clone().err()).unwrap();
            all
        };
        let error = feed(blob, 1, |_| {}, work).await.unwrap_err();
        assert!(
            matches!(&error, FeedError::Store(StoreError::Read { source, .. }) if source.to_string().contains("gone"))
        );
        assert_eq!(
            tokio::task::spawn_blocking(move || sees.recv()).await.unwrap(),
            Ok(Some(FeedAborted))
        );
    }

    #[tokio::test]
    async fn dropping_the_future_ends_the_thread() {
        let (sender, blob) = blob();
        let (seen, sees) = threads::channel();
        let work = move |mut batches: Batches| {
            seen.send(None).unwrap();
            let next = batches.receive();
            seen.send(next.clone().err()).unwrap();
            next
        };
        let feeding = tokio::spawn(feed(blob, 1, |_| {}, work));
        let wait = tokio::task::spawn_blocking(move || {
            let began = sees.recv();
            (began, sees)
        });
        let (began, sees) = wait.await.unwrap();
        assert_eq!(began, Ok(None));
        feeding.abort();
        sender.closed().await;
        assert_eq!(
            tokio::task::spawn_blocking(move || sees.recv()).await.unwrap(),
            Ok(Some(FeedAborted))
        );
    }

    #[tokio::test]
    async fn a_panic_of_the_thread_is_reported() {
        let (_sender, blob) = blob();
        let error = feed(blob, 1, |_| {}, |_| -> Result<(), FeedAborted> { panic!("on purpose") })
            .await
            .unwrap_err();
        assert!(matches!(error, FeedError::Lost));
    }
}
