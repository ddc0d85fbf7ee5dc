//! Reads a layer and indexes it at the same time.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use super::error::IndexError;
use ociseek_format::image::Descriptor;
use ociseek_format::layer::parallel::{ChunksError, Threads, index_chunks};
use ociseek_format::layer::{IndexedLayer, LayerError, LayerOptions};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_format::ztoc::Ztoc;
use ociseek_store::feed::{FeedAborted, FeedError, feed, reported};
use ociseek_store::{Source, damaged};

/// The result of reading a layer, with the time it took.
pub(super) struct ReadLayer {
    pub indexed: IndexedLayer,
    pub seconds: f64,
}

/// Reads a layer's blob to its end and indexes it, as one of `jobs` at a time. An existing ztoc may
/// be its guide. A layer from a registry is read once more before it is called broken: it may have
/// been damaged on the way.
///
/// If this future is dropped, the indexing thread ends after its current batch.
pub(super) async fn read(
    source: &Source,
    layer: &Descriptor,
    options: LayerOptions,
    jobs: usize,
    guide: Option<Arc<Ztoc>>,
    progress: &Arc<dyn Progress>,
) -> Result<ReadLayer, IndexError> {
    let started = Instant::now();
    let read = async |reads| index(source, layer, options.clone(), jobs, guide.clone(), progress, reads).await;
    let reading = async {
        match read(1).await {
            Err(error @ IndexError::BrokenLayer { .. }) if source.is_remote() => {
                progress.report(damaged("layer", &layer.digest, error.source().unwrap_or(&error)));
                read(2).await
            }
            read => read,
        }
    };
    let indexed = reported(progress, layer, reading).await?;
    Ok(ReadLayer { indexed, seconds: started.elapsed().as_secs_f64() })
}

async fn index(
    source: &Source,
    layer: &Descriptor,
    options: LayerOptions,
    jobs: usize,
    guide: Option<Arc<Ztoc>>,
    progress: &Arc<dyn Progress>,
    reads: u32,
) -> Result<IndexedLayer, IndexError> {
    let mut read = 0;
    let unreadable = |read, source| IndexError::ReadLayer { layer: layer.digest, read, source };
    let blob = source.blob(layer, reads > 1).await.map_err(|e| unreadable(0, e))?;
    let expected = (layer.digest, layer.size);
    let threads = Threads::for_one_of(jobs, guide);
    let budget = source.budget().clone();
    let on_chunk = |bytes| {
        read += bytes;
        progress.report(ProgressEvent::LayerRead { layer: layer.digest, bytes });
    };
    let indexed = feed(blob, jobs, on_chunk, move |mut batches| {
        index_chunks(options, Some(expected), threads, &budget, || batches.receive())
    });
    indexed.await.map_err(|error| match error {
        FeedError::Store(source) => unreadable(read, source),
        FeedError::Work(ChunksError::Layer(LayerError::Memory(over))) => IndexError::memory(layer, over),
        FeedError::Work(ChunksError::Layer(source)) => IndexError::BrokenLayer { layer: layer.digest, reads, source },
        FeedError::Work(ChunksError::Next(FeedAborted)) | FeedError::Lost => {
            IndexError::LayerThread { layer: layer.digest }
        }
    })
}
