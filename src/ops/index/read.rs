//! One layer's bytes, from the store to the thread that indexes them.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::error::IndexError;
use super::pipeline::{Threads, index_chunks};
use crate::image::Descriptor;
use crate::layer::{IndexedLayer, LayerError, LayerOptions};
use crate::progress::{Event, Progress};
use crate::store::Source;
use crate::ztoc::Ztoc;

/// Bytes of a layer that go to its thread at once, at least: a registry's chunks can be as small as a TLS record (16 KiB), and each
/// batch has to wake the thread.
const BATCH: u64 = 256 << 10;
/// How many batches may wait for their threads, over all layers in flight.
const BATCHES_IN_ALL: usize = 16;

/// What a layer's thread is told. That the channel closes without [`Message::End`] means that nobody wants the result.
enum Message {
    Batch(Vec<Bytes>),
    End,
}

/// How long reading a layer took, and what came of it.
pub(super) struct ReadLayer {
    pub indexed: IndexedLayer,
    pub seconds: f64,
}

/// That nobody wants the result any more.
struct Abandoned;

/// How many cores there are for each of so many layers.
pub(super) fn cores(jobs: usize) -> usize {
    available_parallelism().map_or(1, NonZero::get) / jobs
}

/// Reads a layer's blob to its end and indexes it, as one of `jobs` that do so at a time; a ztoc that it has already may be its guide.
///
/// Async ends here: chunks go through a short channel to a thread that indexes them. When this future is dropped, the
/// thread ends with the chunk it is at.
pub(super) async fn read(
    source: &Source,
    layer: &Descriptor,
    options: LayerOptions,
    jobs: usize,
    guide: Option<Arc<Ztoc>>,
    progress: &Arc<dyn Progress>,
) -> Result<ReadLayer, IndexError> {
    let started = Instant::now();
    progress.report(Event::LayerStarted { layer: layer.digest, bytes: layer.size });
    let result = pump(source, layer, options, jobs, guide, progress).await;
    progress.report(match result {
        Ok(_) => Event::LayerDone { layer: layer.digest },
        Err(_) => Event::LayerFailed { layer: layer.digest },
    });
    Ok(ReadLayer { indexed: result?, seconds: started.elapsed().as_secs_f64() })
}

async fn pump(
    source: &Source,
    layer: &Descriptor,
    options: LayerOptions,
    jobs: usize,
    guide: Option<Arc<Ztoc>>,
    progress: &Arc<dyn Progress>,
) -> Result<IndexedLayer, IndexError> {
    let mut read = 0;
    let unreadable = |read, source| IndexError::ReadLayer { layer: layer.digest, read, source };
    let mut blob = source.blob(layer).await.map_err(|e| unreadable(0, e))?;

    let (chunks, mut received) = mpsc::channel((BATCHES_IN_ALL / jobs).clamp(1, 4));
    let expected = (layer.digest, layer.size);
    let threads = Threads { cores: cores(jobs), guide };
    let budget = source.budget().clone();
    let thread = tokio::task::spawn_blocking(move || {
        index_chunks(options, Some(expected), threads, &budget, || match received.blocking_recv() {
            Some(Message::Batch(chunks)) => Ok(Some(chunks)),
            Some(Message::End) => Ok(None),
            None => Err(Abandoned),
        })
    });
    let (mut batch, mut passed_on) = (Vec::new(), 0);
    while let Some(chunk) = blob.next().await.map_err(|e| unreadable(read, e))? {
        read += chunk.len() as u64;
        progress.report(Event::LayerRead { layer: layer.digest, bytes: chunk.len() as u64 });
        batch.push(chunk);
        if read - passed_on >= BATCH {
            passed_on = read;
            // A thread that takes no more has found the layer broken, and says so below.
            if chunks.send(Message::Batch(std::mem::take(&mut batch))).await.is_err() {
                break;
            }
        }
    }
    for message in [Message::Batch(batch), Message::End] {
        let _ = chunks.send(message).await;
    }
    match thread.await {
        Ok(Ok(result)) => result.map_err(|source| match source {
            LayerError::Memory(over) => IndexError::memory(layer, over),
            source => IndexError::BrokenLayer { layer: layer.digest, source },
        }),
        Ok(Err(Abandoned)) | Err(_) => Err(IndexError::LayerThread { layer: layer.digest }),
    }
}
