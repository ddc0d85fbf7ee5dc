//! The ztocs of layers, from wherever they can be had: the cache, SOCI indexes that list them, and
//! the layers themselves, each read once, as many side by side as was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::IndexError;
use super::guide::{Guides, guides};
use super::model::{IndexOptions, Origin};
use super::read::{ReadLayer, read};
use super::reuse::reuse;
use crate::budget::{Budget, Charge, OverBudget};
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::image::soci::ZtocRef;
use crate::layer::{LayerOptions, Outcome};
use crate::ops::resolve::PlatformManifest;
use crate::progress::Progress;
use crate::store::Source;
use crate::store::cache::{CacheKey, ZtocCache};
use crate::ztoc::Ztoc;

/// Where ztocs come from.
pub(in crate::ops) struct Supply<'a> {
    /// Where the layers are.
    pub source: &'a Source,
    pub cache: Option<&'a ZtocCache>,
    /// Indexes of the image itself, whose ztocs are reused before others are looked for.
    pub known: Vec<Offer>,
    pub own: Own<'a>,
}

/// The image whose layers these are.
pub(in crate::ops) struct Own<'a> {
    pub digest: Digest,
    pub manifests: Vec<&'a PlatformManifest>,
    /// What its image index lists beside its images.
    pub artifacts: &'a [Descriptor],
    /// The indexes of version 1 that `source` lists are among those that are known.
    pub is_listed: bool,
}

/// A SOCI index whose ztocs may be reused.
#[derive(Clone)]
pub(in crate::ops) struct Offer {
    /// Where the ztocs are.
    pub store: Source,
    /// What the index names as its maker.
    pub tool: Option<String>,
    pub ztocs: Vec<ZtocRef>,
    /// What is reported of layers whose ztocs come from here.
    pub origin: Origin,
}

/// The ztocs of the `wanted` layers. Those that are among what was `built` before are taken as they
/// are. `announce` gets the layers that will be read, before the first of them is.
///
/// A layer that the deadline left over is missing from the result.
///
/// # Errors
/// When a layer cannot be read, is broken, or does not fit into memory.
pub(in crate::ops) async fn ztocs(
    wanted: Wanted,
    built: Option<Layers>,
    supply: &Supply<'_>,
    options: &IndexOptions,
    announce: impl FnOnce(&[Descriptor]),
    progress: &Arc<dyn Progress>,
) -> Result<Layers, IndexError> {
    let (mut layers, unread) = look_up(wanted, built, supply.cache, options, supply.source.budget()).await?;
    let unread = reuse(&mut layers, unread, supply, options, progress).await;
    announce(&unread);
    let guides = guides(&supply.known, &unread, options).await;
    read_all(&mut layers, unread, supply, options, guides, progress).await?;
    Ok(layers)
}

/// A layer's blob. What names the same digest with another size is another blob, and one of the two will not be found.
type Blob = (Digest, u64);

/// What is known of each layer after building.
pub(in crate::ops) struct Layers {
    by_blob: BTreeMap<Blob, BuiltLayer>,
    pub bytes_read: u64,
    /// Bytes of layers that were compared with ztocs to reuse.
    pub bytes_compared: u64,
    /// Layers were read until the time was up, and none was done.
    pub stuck: bool,
    /// What the ztocs take.
    memory: Charge,
}

pub(in crate::ops) struct BuiltLayer {
    pub outcome: Arc<Outcome>,
    pub origin: Origin,
}

impl Layers {
    pub fn get(&self, layer: &Descriptor) -> Option<&BuiltLayer> {
        self.by_blob.get(&(layer.digest, layer.size))
    }

    /// Adds a layer, once its ztoc is charged.
    ///
    /// # Errors
    /// When it does not fit.
    pub(super) fn add(&mut self, layer: &Descriptor, built: BuiltLayer) -> Result<(), OverBudget> {
        if let Outcome::Ztoc(ztoc) = &*built.outcome {
            let bytes = ztoc.bytes.len() as u64;
            self.memory.grow(bytes, || format!("its ztoc {} of {bytes} bytes", ztoc.digest))?;
        }
        self.by_blob.insert((layer.digest, layer.size), built);
        Ok(())
    }
}

/// Layers that are to be indexed, each once, in the order in which they came: what the cache has, and what must be read.
#[derive(Default)]
pub(in crate::ops) struct Wanted {
    layers: Vec<Descriptor>,
    known: BTreeSet<Blob>,
}

impl Wanted {
    /// Adds a layer. False: it is there already.
    pub fn add(&mut self, layer: &Descriptor) -> bool {
        let new = self.known.insert((layer.digest, layer.size));
        if new {
            self.layers.push(layer.clone());
        }
        new
    }
}

/// Splits `wanted` into what the cache knows and what must be read, in the order in which that is done.
async fn look_up(
    wanted: Wanted,
    built: Option<Layers>,
    cache: Option<&ZtocCache>,
    options: &IndexOptions,
    budget: &Budget,
) -> Result<(Layers, Vec<Descriptor>), IndexError> {
    let (by_blob, memory) =
        built.map_or_else(|| (BTreeMap::new(), budget.open()), |built| (built.by_blob, built.memory));
    let mut layers = Layers { by_blob, bytes_read: 0, bytes_compared: 0, stuck: false, memory };
    let mut unread = Vec::new();
    for layer in wanted.layers {
        if layers.get(&layer).is_some() {
            continue;
        }
        match cached(cache, &layer, options).await {
            Some(outcome) => {
                let built = BuiltLayer { outcome: Arc::new(outcome), origin: Origin::Cache };
                layers.add(&layer, built).map_err(|over| IndexError::memory(&layer, over))?;
            }
            None => unread.push(layer),
        }
    }
    match options.deadline {
        // The longest work first, so that none of it is left over at the end for one thread alone.
        None => unread.sort_by_key(|layer| std::cmp::Reverse(layer.size)),
        // The shortest first: whenever the time is up, no other order would have finished more layers. So each run gets an
        // image on if any layer fits into its time, and the biggest is at last alone with the whole of it; begun first, it
        // could use up the time of every run and keep the others from being done.
        Some(_) => unread.sort_by_key(|layer| layer.size),
    }
    Ok((layers, unread))
}

/// How many of the layers will be read side by side.
pub(super) fn at_a_time(unread: &[Descriptor], options: &IndexOptions) -> usize {
    options.jobs.clamp(1, unread.len().max(1))
}

/// Reads what the cache did not know, up to the deadline. The first layer that cannot be read or is broken ends it.
///
/// Layers that are read side by side may not fit into memory together. One that does not is read again alone, after the
/// others: whether an image can be indexed must not depend on which of its layers was faster.
async fn read_all(
    layers: &mut Layers,
    unread: Vec<Descriptor>,
    supply: &Supply<'_>,
    options: &IndexOptions,
    guides: Guides,
    progress: &Arc<dyn Progress>,
) -> Result<(), IndexError> {
    let jobs = at_a_time(&unread, options);
    let in_time = || options.deadline.is_none_or(|deadline| Instant::now() < deadline);
    // Unless it is cleared below: by the first layer that is done.
    layers.stuck = !unread.is_empty() && in_time();
    let mut alone = Vec::new();
    {
        let guides = &guides;
        let mut reading = stream::iter(unread)
            .take_while(|_| ready(in_time()))
            .map(|layer| async move {
                let guide = guides.get(&layer.digest).cloned();
                match read_one(supply, &layer, options, jobs, guide, progress).await {
                    Err(IndexError::Memory { .. }) if jobs > 1 || !guides.is_empty() => Ok((layer, None)),
                    built => built.map(|built| (layer, Some(built))),
                }
            })
            .buffer_unordered(jobs);
        // What is done is taken before the clock is looked at. Layers that are being read then are
        // dropped with `reading`.
        while let Some((layer, built)) = before(options.deadline, reading.try_next()).await.transpose()?.flatten() {
            match built {
                Some(built) => {
                    layers.stuck = false;
                    layers.bytes_read += layer.size;
                    layers.add(&layer, built).map_err(|over| IndexError::memory(&layer, over))?;
                }
                None => alone.push(layer),
            }
        }
    }
    drop(guides);
    for layer in alone {
        let reading = read_one(supply, &layer, options, 1, None, progress);
        let Some(built) = before(options.deadline, reading).await.transpose()? else { break };
        layers.stuck = false;
        layers.bytes_read += layer.size;
        layers.add(&layer, built).map_err(|over| IndexError::memory(&layer, over))?;
    }
    Ok(())
}

/// Reads a layer as one of `jobs` at a time, and keeps what comes of it in the cache.
async fn read_one(
    supply: &Supply<'_>,
    layer: &Descriptor,
    options: &IndexOptions,
    jobs: usize,
    guide: Option<Arc<Ztoc>>,
    progress: &Arc<dyn Progress>,
) -> Result<BuiltLayer, IndexError> {
    let reading = read(supply.source, layer, options.layer.clone(), jobs, guide, progress);
    let ReadLayer { indexed, seconds } = reading.await?;
    let outcome = Arc::new(indexed.outcome);
    if !options.dry_run {
        keep(supply.cache, layer, options, &outcome).await;
    }
    Ok(BuiltLayer { outcome, origin: Origin::Read { seconds } })
}

/// What `work` gives, unless the deadline passes before.
pub(super) async fn before<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(work.await),
        Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.ok(),
    }
}

/// What the cache knows of a layer under these options.
pub(super) async fn cached(cache: Option<&ZtocCache>, layer: &Descriptor, options: &IndexOptions) -> Option<Outcome> {
    let (cache, layer, options) = (cache?.clone(), layer.clone(), options.layer.clone());
    let found = tokio::task::spawn_blocking(move || {
        cache.get(key(&layer.digest, &options)).filter(|(size, _)| *size == layer.size)
    });
    // A thread that panicked has found nothing.
    found.await.ok().flatten().map(|(_, outcome)| outcome)
}

/// Writes an outcome down. The cache itself warns when it cannot.
async fn keep(cache: Option<&ZtocCache>, layer: &Descriptor, options: &IndexOptions, outcome: &Arc<Outcome>) {
    let Some(cache) = cache.cloned() else { return };
    let (layer, options, outcome) = (layer.clone(), options.layer.clone(), Arc::clone(outcome));
    let kept = tokio::task::spawn_blocking(move || cache.put(key(&layer.digest, &options), layer.size, &outcome));
    let _ = kept.await;
}

fn key<'a>(layer: &'a Digest, options: &'a LayerOptions) -> CacheKey<'a> {
    CacheKey { layer, span_size: options.span_size, build_tool_identifier: &options.build_tool_identifier }
}
