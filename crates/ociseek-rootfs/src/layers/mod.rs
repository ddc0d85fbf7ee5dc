//! Opening layers: finding or making what their tars can be read by.
//!
//! 1. The document of the image's fine index, if there is one and it fits (`indexes`).
//! 2. The ztoc of the image's SOCI index, if there is one and it fits (`indexes`).
//! 3. The map that an earlier opening left in the cache of ztocs.
//! 4. The layer itself, read once from front to back (see [`read_chunks`]). Of a zstd layer, in
//!    which nothing can be decoded alone, the decoded tar goes into the span cache and is read from
//!    there.

mod indexes;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::task::spawn_blocking;

pub(crate) use indexes::WINDOW_CHECK;
pub use indexes::{
    FetchedDocument, FileListUse, OpenDocument, OpenError, UnfitDocument, open as fit_document,
};

use crate::cache::{SpanCache, SpanKey, SpanPlace};
use indexes::UnfitZtoc;
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::fine::FineError;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::layer::parallel::{ChunksError, Threads, read_chunks};
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::layer::{KeepSpans, LayerMap, MappedLayer, Notes, ReadOptions};
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::ztoc::{Checkpoint, ZtocError};
use ociseek_store::cache::{MapKey, ZtocCache};
use ociseek_store::feed::{Batches, FeedAborted, FeedError, feed};
use ociseek_store::lock::Hold;
use ociseek_store::{Source, damaged};

/// How many layers are opened at the same time.
const SIDE_BY_SIDE: usize = 4;
/// How many fine documents are fetched at the same time. Their heads are small.
const DOCUMENTS: usize = 16;
/// The least size of a span for maps that are made here, in bytes of the tar. Each span needs a
/// checkpoint of 32 KiB.
const SPAN_SIZE: u64 = 2 << 20;
/// Layers of at least this many bytes get larger spans, which limits their checkpoints to some 100
/// MiB.
const LARGE_LAYER: u64 = 1 << 30;
/// The limit for the compressed bytes of a span. They are in memory together, because their digest
/// must be verified before they are used.
pub(crate) const MAX_COMPRESSED: u64 = 128 << 20;

/// The memory that a reader needs for a span, in bytes.
const SPAN_KEY: u64 = 40;

/// The kind of index that a layer is read with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerAccess {
    /// The document of the image's fine index.
    Fine,
    /// The ztoc of the image's SOCI index.
    Index,
    /// A layer map that was built here, now or earlier.
    Local,
    /// Only the whole blob can be decoded, from its start; the decoded tar is cached.
    Whole,
}

impl LayerAccess {
    /// Whether the map of the layer is an index's claim. Otherwise it was made from the layer
    /// itself.
    pub fn is_claimed(self) -> bool {
        matches!(self, LayerAccess::Fine | LayerAccess::Index)
    }
}

/// A layer that can be read.
#[derive(Debug, Clone)]
pub struct OpenLayer {
    /// The layer's blob.
    pub descriptor: Descriptor,
    /// The kind of index that it is read with.
    pub how: LayerAccess,
    /// How many bytes of the blob were read to open it.
    pub bytes_read: u64,
    pub(crate) spans: SpanTable<LayerMap>,
    /// The fine document that it is read with, if any.
    pub(crate) document: Option<Arc<OpenDocument>>,
    /// The memory charge for the layer.
    memory: Arc<Mutex<Charge>>,
}

impl OpenLayer {
    /// The map that it is read with.
    pub fn map(&self) -> &Arc<LayerMap> {
        self.spans.map()
    }

    /// Packs its list of files, which only the tree needs as a whole. The memory that this frees is
    /// no longer charged.
    pub fn settle(&self) {
        let less = self.map().files.pack();
        self.memory.hold().shrink_by(less);
    }

    /// Its spans.
    pub fn spans(&self) -> &SpanTable<LayerMap> {
        &self.spans
    }
}

/// The caches in which opened layers leave data for later. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Caches {
    /// The ztocs and maps of layers.
    pub ztocs: ZtocCache,
    /// The decoded spans, shared with other mounts and processes.
    pub spans: SpanCache,
}

/// Opens the layers of an image, several at a time, equal ones only once. `document` fetches the
/// start of a layer's fine document, if there is one. `ztoc` fetches a layer's encoded ztoc from
/// the image's index, if there is one; it is called once for each layer without a matching fine
/// document, when the layer's turn has come.
///
/// # Errors
/// Those of `ztoc` and of [`open_layer`]. The first error ends the whole call.
pub async fn open_layers<D, F>(
    source: &Source,
    layers: Vec<Descriptor>,
    document: impl Fn(Digest) -> D,
    ztoc: impl Fn(Digest) -> F,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<OpenLayer>, OpenError>
where
    D: Future<Output = Option<FetchedDocument>>,
    F: Future<Output = Result<Option<Bytes>, OpenError>>,
{
    let mut once: Vec<Descriptor> = Vec::new();
    let mut known: HashMap<(Digest, u64), usize> = HashMap::new();
    let mut places = Vec::with_capacity(layers.len());
    for layer in layers {
        let place = *known.entry((layer.digest, layer.size)).or_insert(once.len());
        if place == once.len() {
            once.push(layer);
        }
        places.push(place);
    }
    let document = &document;
    let by_document = |layer: Descriptor| async move {
        let opened = match document(layer.digest).await {
            Some(fetched) => {
                open_document(source, &layer, fetched, FileListUse::Needed, progress).await?
            }
            None => None,
        };
        Ok::<_, OpenError>((layer, opened))
    };
    let tried: Vec<_> =
        stream::iter(once).map(by_document).buffered(DOCUMENTS).try_collect().await?;
    let ztoc = &ztoc;
    let side_by_side =
        tried.iter().filter(|(_, opened)| opened.is_none()).count().clamp(1, SIDE_BY_SIDE);
    let open = |(layer, opened): (Descriptor, Option<OpenLayer>)| async move {
        if let Some(opened) = opened {
            return Ok(opened);
        }
        let ztoc = ztoc(layer.digest).await?;
        open_one_of(side_by_side, source, &layer, ztoc, caches, progress).await
    };
    let opened: Vec<OpenLayer> =
        stream::iter(tried).map(open).buffered(side_by_side).try_collect().await?;
    Ok(places.into_iter().filter_map(|place| opened.get(place).cloned()).collect())
}

/// Opens a layer by a fine document. Returns None, after a warning, if the document does not fit
/// the layer.
///
/// # Errors
/// If it does not fit into memory: a map of the layer would take even more.
pub async fn open_document(
    source: &Source,
    layer: &Descriptor,
    fetched: FetchedDocument,
    list: FileListUse,
    progress: &Arc<dyn Progress>,
) -> Result<Option<OpenLayer>, OpenError> {
    let digest = layer.digest;
    let wanted = layer.clone();
    let mut memory = source.budget().open();
    let decoded = spawn_blocking(move || {
        let opened = indexes::open_for(&wanted, &fetched, list, &mut memory);
        opened.map(|(spans, document)| (spans, document, memory))
    });
    match decoded.await {
        Ok(Ok((spans, document, memory))) => {
            let opened = opened(layer, spans, LayerAccess::Fine, 0, memory)?;
            Ok(Some(OpenLayer { document: Some(Arc::new(document)), ..opened }))
        }
        Ok(Err(indexes::UnfitDocument::Fine(FineError::Memory(source)))) => {
            Err(OpenError::Memory { layer: digest, source })
        }
        Ok(Err(unfit)) => {
            let what = format!("ignoring the fine document of layer {digest}: {}", causes(&unfit));
            progress.report(ProgressEvent::Warning(what));
            Ok(None)
        }
        Err(_) => Err(OpenError::Ending { layer: digest }),
    }
}

/// The layers, without duplicates, about which nothing is cached. Without a ztoc, opening them
/// reads them completely.
pub fn unknown<'a>(
    layers: impl Iterator<Item = &'a Descriptor>,
    caches: &Caches,
) -> Vec<&'a Descriptor> {
    let mut seen = HashSet::new();
    let unknown =
        |layer: &&Descriptor| !caches.ztocs.has_map(map_key(layer, span_size(layer.size)));
    layers.filter(|layer| seen.insert(layer.digest)).filter(unknown).collect()
}

/// Opens a layer: by `ztoc`, the encoded ztoc from the image's index, if it fits; otherwise from
/// the cache of ztocs; otherwise by reading the layer once from start to end and caching the
/// result. Reading is reported as [`ProgressEvent::LayerStarted`] and related events, a ztoc that
/// does not fit as a warning.
///
/// # Errors
/// If the layer cannot be fetched, is broken, or has an unsupported compression.
pub async fn open_layer(
    source: &Source,
    layer: &Descriptor,
    ztoc: Option<Bytes>,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<OpenLayer, OpenError> {
    open_one_of(1, source, layer, ztoc, caches, progress).await
}

/// Like [`open_layer`], when `side_by_side` layers are opened at the same time.
async fn open_one_of(
    side_by_side: usize,
    source: &Source,
    layer: &Descriptor,
    ztoc: Option<Bytes>,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<OpenLayer, OpenError> {
    let digest = layer.digest;
    if let Some(bytes) = ztoc {
        let wanted = layer.clone();
        let mut memory = source.budget().open();
        let decoded = spawn_blocking(move || {
            indexes::ztoc_spans(&wanted, &bytes, &mut memory).map(|spans| (spans, memory))
        });
        match decoded.await {
            Ok(Ok((spans, memory))) => return opened(layer, spans, LayerAccess::Index, 0, memory),
            Ok(Err(UnfitZtoc::Ztoc(ZtocError::Memory(source)))) => {
                return Err(OpenError::Memory { layer: digest, source });
            }
            Ok(Err(unfit)) => {
                let what =
                    format!("ignoring the index's ztoc for layer {digest}: {}", causes(&unfit));
                progress.report(ProgressEvent::Warning(what));
            }
            Err(_) => return Err(OpenError::Ending { layer: digest }),
        }
    }
    match LayerKind::of(&layer.media_type) {
        LayerKind::Encrypted => return Err(OpenError::Encrypted { layer: digest }),
        LayerKind::NotALayer => {
            let media_type = layer.media_type.chars().take(200).collect();
            return Err(OpenError::NotALayer { layer: digest, media_type });
        }
        _ => {}
    }
    let span_size = span_size(layer.size);
    let ztocs = caches.ztocs.clone();
    let wanted = layer.clone();
    let memory = source.budget().open();
    let cached = spawn_blocking(move || from_cache(&ztocs, &wanted, span_size, memory))
        .await
        .unwrap_or(Ok(None));
    let cached = cached.map_err(|source| OpenError::Memory { layer: digest, source })?;
    let (Spans { spans, notes, memory }, read) = match cached {
        Some(spans) => (spans, 0),
        None => (read(side_by_side, source, layer, span_size, caches, progress).await?, layer.size),
    };
    report_notes(layer, &notes, progress);
    let how = if spans.map().is_unpacked() { LayerAccess::Whole } else { LayerAccess::Local };
    opened(layer, spans, how, read, memory)
}

/// The spans of a layer that was read here, now or earlier.
struct Spans {
    spans: SpanTable<LayerMap>,
    notes: Notes,
    memory: Charge,
}

impl Spans {
    fn of(layer: MappedLayer) -> Result<Spans, SpanError> {
        let MappedLayer { map, notes, memory } = layer;
        Ok(Spans { spans: SpanTable::new(Arc::new(map))?, notes, memory })
    }
}

fn map_key(layer: &Descriptor, span_size: SpanSize) -> MapKey<'_> {
    MapKey { layer: &layer.digest, size: layer.size, span_size }
}

/// What an earlier opening left in the cache.
fn from_cache(
    cache: &ZtocCache,
    layer: &Descriptor,
    span_size: SpanSize,
    mut memory: Charge,
) -> Result<Option<Spans>, OverBudget> {
    let cached = cache.get_map(map_key(layer, span_size), &mut memory)?;
    Ok(cached.and_then(|(map, notes)| Spans::of(MappedLayer { map, notes, memory }).ok()))
}

fn opened(
    layer: &Descriptor,
    spans: SpanTable<LayerMap>,
    how: LayerAccess,
    bytes_read: u64,
    mut memory: Charge,
) -> Result<OpenLayer, OpenError> {
    // A reader keeps a key for each span.
    let keys = u64::from(spans.count()) * SPAN_KEY;
    let charged = memory.grow(keys, || format!("the keys of its {} spans", spans.count()));
    charged.map_err(|source| OpenError::Memory { layer: layer.digest, source })?;
    Ok(OpenLayer {
        descriptor: layer.clone(),
        how,
        bytes_read,
        spans,
        document: None,
        memory: Arc::new(Mutex::new(memory)),
    })
}

fn span_size(layer: u64) -> SpanSize {
    // At most 2^55.
    SpanSize::new(SPAN_SIZE * (layer / LARGE_LAYER + 1)).unwrap_or(SpanSize::DEFAULT)
}

/// Reports oddities of a layer.
fn report_notes(layer: &Descriptor, notes: &Notes, progress: &Arc<dyn Progress>) {
    for warning in &notes.warnings {
        progress.report(ProgressEvent::Warning(format!("layer {}: {warning}", layer.digest)));
    }
    if notes.more_warnings > 0 {
        let more = notes.more_warnings;
        progress.report(ProgressEvent::Warning(format!(
            "layer {}: {more} more warnings of this kind",
            layer.digest
        )));
    }
}

/// Reads a layer to its end. One from a registry is read once more before it is called broken: it
/// may have been damaged on the way.
async fn read(
    side_by_side: usize,
    source: &Source,
    layer: &Descriptor,
    span_size: SpanSize,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<Spans, OpenError> {
    progress.report(ProgressEvent::LayerStarted { layer: layer.digest, bytes: layer.size });
    let mut result =
        read_through(side_by_side, source, layer, span_size, caches, progress, 1).await;
    if let Err(error) = &result
        && error.is_damage()
        && source.is_remote()
    {
        progress.report(damaged("layer", &layer.digest, error));
        result = read_through(side_by_side, source, layer, span_size, caches, progress, 2).await;
    }
    progress.report(match result {
        Ok(_) => ProgressEvent::LayerDone { layer: layer.digest },
        Err(_) => ProgressEvent::LayerFailed { layer: layer.digest },
    });
    result
}

async fn read_through(
    side_by_side: usize,
    source: &Source,
    layer: &Descriptor,
    span_size: SpanSize,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
    reads: u32,
) -> Result<Spans, OpenError> {
    let digest = layer.digest;
    let mut read = 0;
    let blob = source.blob(layer, reads > 1).await.map_err(|source| OpenError::Read {
        layer: digest,
        read,
        source,
    })?;
    let spans = caches.spans.clone();
    let memory = source.budget().open();
    // Plain tars in local stores are read in place.
    let keeps_plain = matches!(source, Source::Registry(_));
    let ztocs = caches.ztocs.clone();
    let wanted = layer.clone();
    let work = move |mut batches: Batches| {
        let keeper =
            spans.is_enabled().then(|| Box::new(CacheKeeper::new(&spans, wanted.size)) as _);
        let options = ReadOptions { span_size, keeper, keeps_plain, ..ReadOptions::default() };
        let threads = Threads::for_one_of(side_by_side, None, memory.budget());
        let expected = (wanted.digest, wanted.size);
        let mapped = read_chunks(options, expected, threads, memory, || batches.receive());
        let mapped = mapped.map_err(|error| match error {
            ChunksError::Next(FeedAborted) => OpenError::Ending { layer: wanted.digest },
            ChunksError::Layer(error) => OpenError::of(error, wanted.digest, reads),
        })?;
        ztocs.put_map(map_key(&wanted, span_size), &mapped.map, &mapped.notes, &mapped.memory);
        Spans::of(mapped).map_err(|source| OpenError::Spans { layer: wanted.digest, source })
    };
    let on_chunk = |bytes| {
        read += bytes;
        progress.report(ProgressEvent::LayerRead { layer: digest, bytes });
    };
    feed(blob, side_by_side, on_chunk, work).await.map_err(|error| match error {
        FeedError::Store(source) => OpenError::Read { layer: digest, read, source },
        FeedError::Work(error) => error,
        FeedError::Lost => OpenError::Ending { layer: digest },
    })
}

/// Adds spans of a layer to the cache while there is room for them.
struct CacheKeeper {
    cache: SpanCache,
    room: u64,
}

impl CacheKeeper {
    /// For a layer whose blob has `compressed` bytes.
    fn new(cache: &SpanCache, compressed: u64) -> CacheKeeper {
        CacheKeeper { cache: cache.clone(), room: cache.room_for(compressed) }
    }
}

impl KeepSpans for CacheKeeper {
    fn keep(&mut self, digest: &Digest, checkpoint: Option<&Checkpoint>, plain: &[u8]) -> bool {
        let size = plain.len() as u64;
        let key = match checkpoint {
            Some(checkpoint) => SpanKey::gzip(digest, checkpoint, size),
            None => SpanKey::plain(digest, size),
        };
        let place = SpanPlace::alone(key, size);
        if self.cache.has(&place) {
            return true;
        }
        match self.room.checked_sub(size) {
            Some(room) => {
                self.room = room;
                self.cache.put(&place, plain)
            }
            None => false,
        }
    }
}
