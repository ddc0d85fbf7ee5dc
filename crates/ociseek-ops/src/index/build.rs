//! Gets the ztocs of layers from all sources: the cache, SOCI indexes that list them, and the
//! layers themselves, each read once, several at a time.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::task::spawn_blocking;

use super::IndexError;
use super::model::Origin;
use super::options::{IndexOptions, Work};
use super::parts::is_only_fine;
use super::reuse::reuse;
use super::supply::{
    BlobKey, BuiltDocument, BuiltLayer, Layers, Supply, WantedParts, cached, cached_document, keep,
    keep_document, key_of,
};
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::fine::{EncodedFine, FineLayer};
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::parallel::{ChunksError, Threads, index_chunks};
use ociseek_format::layer::{
    IndexedLayer, LayerError, LayerOptions, Outcome, UnservableCode, UnservableReason,
};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_format::ztoc::{self, Ztoc};
use ociseek_store::feed::{FeedAborted, FeedError, feed, reported};
use ociseek_store::{Source, damaged};

/// The ztocs of the `wanted` layers. Those that were `built` before are used again. `announce`
/// receives the layers that will be read, before the first one is.
///
/// Layers that the deadline left unfinished are missing from the result.
///
/// # Errors
/// If a layer cannot be read, is broken, or does not fit into memory.
pub(crate) async fn ztocs(
    wanted: LayersToBuild,
    built: Option<Layers>,
    supply: &Supply<'_>,
    announce: impl FnOnce(&[Descriptor]),
) -> Result<Layers, IndexError> {
    let options = supply.work.options;
    let mut layers =
        built.map_or_else(|| Layers::new(supply.source.budget()), Layers::carried_over);
    take_cached(&mut layers, &wanted, supply).await?;
    // Reading a layer for its document gives the ztoc too.
    let (for_document, for_ztoc): (Vec<_>, Vec<_>) =
        wanted.lacking(&layers).partition(|(_, lacking)| lacking.document);
    let for_ztoc = for_ztoc.into_iter().map(|(layer, _)| layer.clone()).collect();
    let mut unread: Vec<Descriptor> =
        for_document.into_iter().map(|(layer, _)| layer.clone()).collect();
    // Boxed, as in `index`.
    unread.extend(Box::pin(reuse(&mut layers, for_ztoc, supply)).await);
    sort(&mut unread, options);
    announce(&unread);
    let guides = guides(supply, &unread, options).await;
    let reader = Reader { supply, wanted: &wanted };
    reader.read_all(&mut layers, unread, guides).await?;
    Ok(layers)
}

/// Layers to be indexed, without duplicates, in the order in which they were added: either from the
/// cache or by reading.
#[derive(Default)]
pub(crate) struct LayersToBuild {
    layers: Vec<Descriptor>,
    wanted: BTreeMap<BlobKey, WantedParts>,
}

impl LayersToBuild {
    /// Adds a layer, or what is wanted of it. Returns false if the layer was already added.
    pub(crate) fn add(&mut self, layer: &Descriptor, wanted: WantedParts) -> bool {
        let mut is_new = false;
        let all = self.wanted.entry(key_of(layer)).or_insert_with(|| {
            is_new = true;
            WantedParts::default()
        });
        all.ztoc |= wanted.ztoc;
        all.document |= wanted.document;
        if is_new {
            self.layers.push(layer.clone());
        }
        is_new
    }

    fn of(&self, layer: &Descriptor) -> WantedParts {
        self.wanted.get(&key_of(layer)).copied().unwrap_or_default()
    }

    /// The layers of which `layers` lacks something, and what.
    fn lacking<'a>(
        &'a self,
        layers: &'a Layers,
    ) -> impl Iterator<Item = (&'a Descriptor, WantedParts)> {
        let lacking = self.layers.iter().map(|layer| (layer, layers.lacks(layer, self.of(layer))));
        lacking.filter(|(_, lacking)| !lacking.is_nothing())
    }
}

/// Adds what the cache has. The ztoc also tells whether a layer can have a document.
async fn take_cached(
    layers: &mut Layers,
    wanted: &LayersToBuild,
    supply: &Supply<'_>,
) -> Result<(), IndexError> {
    let Work { cache, options, .. } = supply.work;
    for layer in &wanted.layers {
        let memory = |over| IndexError::memory(layer, over);
        if layers.get(layer).is_none()
            && let Some(outcome) = cached(cache, layer, options).await
        {
            let built =
                BuiltLayer { outcome: Arc::new(outcome), origin: Origin::Cache, sampled: None };
            layers.add(layer, built).map_err(memory)?;
        }
        if layers.lacks(layer, wanted.of(layer)).document
            && let Some(document) = cached_document(cache, layer, supply.source.budget()).await
        {
            layers.add_document(layer, BuiltDocument::Made(document)).map_err(memory)?;
        }
    }
    Ok(())
}

/// Sorts layers into reading order.
fn sort(unread: &mut [Descriptor], options: &IndexOptions) {
    match options.deadline {
        // The longest work first, so that none of it is left for a single thread at the end.
        None => unread.sort_by_key(|layer| std::cmp::Reverse(layer.size)),
        // The shortest first, which finishes the most layers before the deadline. So each run makes
        // progress if any layer fits into its time, and the largest layer finally has all the time
        // for itself. If it were first, it could use up the time of every run and prevent the
        // others from being finished.
        Some(_) => unread.sort_by_key(|layer| layer.size),
    }
}

/// Reads layers.
struct Reader<'a> {
    supply: &'a Supply<'a>,
    wanted: &'a LayersToBuild,
}

/// A layer that was read, with its fine document if one is wanted.
type Read = (BuiltLayer, BuiltDocument);

impl Reader<'_> {
    /// Reads the layers that the cache did not have, until the deadline. Stops at the first layer
    /// that cannot be read or is broken. Of a broken layer of zstd, only the document is left out.
    ///
    /// Layers that are read at the same time may not fit into memory together. One that does not
    /// fit is read again alone after the others, so that the result does not depend on which layer
    /// was faster.
    async fn read_all(
        &self,
        layers: &mut Layers,
        unread: Vec<Descriptor>,
        guides: Guides,
    ) -> Result<(), IndexError> {
        let options = self.supply.work.options;
        let jobs = options.side_by_side(unread.len());
        // Cleared below when the first layer is done.
        layers.stuck = !unread.is_empty() && options.is_in_time();
        let mut alone = Vec::new();
        {
            let guides = &guides;
            let mut reading = stream::iter(unread)
                .take_while(|_| ready(options.is_in_time()))
                .map(|layer| async move {
                    let guide = guides.get(&layer.digest).cloned();
                    match self.read_one(&layer, jobs, guide).await {
                        Err(IndexError::Memory { .. }) if jobs > 1 || !guides.is_empty() => {
                            Ok((layer, None))
                        }
                        built => built.map(|built| (layer, Some(built))),
                    }
                })
                .buffer_unordered(jobs);
            // Finished layers are taken before the clock is checked. Layers that are still being
            // read then are dropped with `reading`.
            while let Some((layer, built)) =
                options.before_deadline(reading.try_next()).await.transpose()?.flatten()
            {
                match built {
                    Some(read) => done(layers, &layer, read)?,
                    None => alone.push(layer),
                }
            }
        }
        drop(guides);
        for layer in alone {
            let reading = self.read_one(&layer, 1, None);
            let Some(read) = options.before_deadline(reading).await.transpose()? else { break };
            done(layers, &layer, read)?;
        }
        Ok(())
    }

    /// Reads a layer as one of `jobs` at a time, and caches the result.
    async fn read_one(
        &self,
        layer: &Descriptor,
        jobs: usize,
        guide: Option<Arc<Ztoc>>,
    ) -> Result<Read, IndexError> {
        let Reader { supply, wanted } = *self;
        let Work { cache, options, progress } = supply.work;
        let fine = wanted.of(layer).document;
        let layer_options = LayerOptions { fine, ..options.layer.clone() };
        let read = match read(supply.source, layer, layer_options, jobs, guide, progress).await {
            Err(IndexError::BrokenLayer { source, .. })
                if is_only_fine(layer, options) && source.is_of_content() =>
            {
                return Ok((left_out(layer, &source, progress), BuiltDocument::Impossible));
            }
            read => read?,
        };
        let ReadLayer { indexed, seconds } = read;
        let outcome = Arc::new(indexed.outcome);
        let document = match indexed.fine {
            Some(fine) => BuiltDocument::Made(Arc::new(encoded(layer, fine).await?)),
            None if fine => BuiltDocument::Impossible,
            None => BuiltDocument::Unknown,
        };
        if !options.dry_run {
            keep(cache, layer, options, &outcome).await;
            if let BuiltDocument::Made(document) = &document {
                keep_document(cache, layer, document).await;
            }
        }
        Ok((BuiltLayer { outcome, origin: Origin::Read { seconds }, sampled: None }, document))
    }
}

/// The result for a layer that no consumer of SOCI indexes would read, and that cannot be decoded.
/// It is not cached, so the warning is repeated.
fn left_out(layer: &Descriptor, error: &LayerError, progress: &Arc<dyn Progress>) -> BuiltLayer {
    let reason =
        UnservableReason::new(UnservableCode::Broken, format!("it cannot be decoded: {error}"));
    progress.report(ProgressEvent::Warning(format!(
        "layer {} has no fine document: {reason}",
        layer.digest
    )));
    let outcome = Arc::new(Outcome::Unservable(reason));
    BuiltLayer { outcome, origin: Origin::Read { seconds: 0.0 }, sampled: None }
}

/// Encodes a fine document without a recorded start.
async fn encoded(layer: &Descriptor, fine: FineLayer) -> Result<EncodedFine, IndexError> {
    let layer = layer.digest;
    let encoded = spawn_blocking(move || fine.encode(&[]))
        .await
        .map_err(|_| IndexError::LayerThread { layer })?;
    encoded.map_err(|source| IndexError::Fine { layer, source })
}

/// Adds a layer that was read.
fn done(
    layers: &mut Layers,
    layer: &Descriptor,
    (built, document): Read,
) -> Result<(), IndexError> {
    let memory = |over| IndexError::memory(layer, over);
    layers.stuck = false;
    layers.bytes_read += layer.size;
    layers.add(layer, built).map_err(memory)?;
    match document {
        BuiltDocument::Unknown => Ok(()),
        document => layers.add_document(layer, document).map_err(memory),
    }
}

/// Smaller layers are read so quickly that fetching a ztoc does not pay.
const SMALLEST_LAYER: u64 = 32 << 20;
/// A larger ztoc would take longer to fetch than it saves: usually it is a few hundredths of its
/// layer.
const MOST_OF_LAYER: u64 = 8;
const MOST: u64 = 128 << 20;

/// The ztocs by layer.
#[derive(Default)]
struct Guides {
    by_layer: BTreeMap<Digest, Arc<Ztoc>>,
    /// The memory charge for the ztocs.
    _memory: Vec<Charge>,
}

impl Guides {
    pub(super) fn get(&self, layer: &Digest) -> Option<&Arc<Ztoc>> {
        self.by_layer.get(layer)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_layer.is_empty()
    }
}

/// Fetches a ztoc for each layer of `unread` that has one and can use more than one core. A ztoc
/// that cannot be fetched or decoded, or does not fit into memory, is ignored.
async fn guides(supply: &Supply<'_>, unread: &[Descriptor], options: &IndexOptions) -> Guides {
    let mut guides = Guides::default();
    let side_by_side = options.side_by_side(unread.len());
    if Threads::for_one_of(side_by_side, None, supply.source.budget()).cores <= 1 {
        return guides;
    }
    let ztocs = supply
        .known
        .iter()
        .flat_map(|offer| offer.ztocs.iter().map(|ztoc| (ztoc.layer, (ztoc, &offer.store))));
    let known: BTreeMap<Digest, (&ZtocRef, &Source)> = ztocs.collect();
    for layer in unread.iter().filter(|layer| layer.size >= SMALLEST_LAYER) {
        let Some((ztoc, store)) = known.get(&layer.digest) else { continue };
        let blob = ztoc.blob();
        let fetching = store.blob_bytes(&blob, MOST.min(layer.size / MOST_OF_LAYER));
        let Some(Ok(bytes)) = options.before_deadline(fetching).await else { continue };
        let mut memory = store.budget().open();
        if let Ok(ztoc) = ztoc::decode_within(&bytes, &mut memory) {
            guides._memory.push(memory);
            guides.by_layer.insert(layer.digest, Arc::new(ztoc));
        }
    }
    guides
}

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
async fn read(
    source: &Source,
    layer: &Descriptor,
    options: LayerOptions,
    jobs: usize,
    guide: Option<Arc<Ztoc>>,
    progress: &Arc<dyn Progress>,
) -> Result<ReadLayer, IndexError> {
    let started = Instant::now();
    let read = async |reads| {
        index(source, layer, options.clone(), jobs, guide.clone(), progress, reads).await
    };
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
    let budget = source.budget().clone();
    let threads = Threads::for_one_of(jobs, guide, &budget);
    let on_chunk = |bytes| {
        read += bytes;
        progress.report(ProgressEvent::LayerRead { layer: layer.digest, bytes });
    };
    let indexed = feed(blob, jobs, on_chunk, move |mut batches| {
        index_chunks(options, Some(expected), threads, &budget, || batches.receive())
    });
    indexed.await.map_err(|error| match error {
        FeedError::Store(source) => unreadable(read, source),
        FeedError::Work(ChunksError::Layer(LayerError::Memory(over))) => {
            IndexError::memory(layer, over)
        }
        FeedError::Work(ChunksError::Layer(source)) => {
            IndexError::BrokenLayer { layer: layer.digest, reads, source }
        }
        FeedError::Work(ChunksError::Next(FeedAborted)) | FeedError::Lost => {
            IndexError::LayerThread { layer: layer.digest }
        }
    })
}
