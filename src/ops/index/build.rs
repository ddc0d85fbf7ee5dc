//! The ztocs of layers, from wherever they can be had: the cache, SOCI indexes that list them, and
//! the layers themselves, each read once, as many side by side as was asked for.

use std::collections::BTreeSet;
use std::future::ready;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::IndexError;
use super::guide::{Guides, guides};
use super::model::{IndexOptions, Origin};
use super::read::{ReadLayer, read};
use super::reuse::reuse;
use super::supply::{Blob, BuiltLayer, Layers, Supply, cached, keep};
use crate::budget::Budget;
use crate::image::Descriptor;
use crate::progress::Progress;
use crate::store::cache::ZtocCache;
use crate::ztoc::Ztoc;

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

/// Layers that are to be indexed, each once, in the order in which they came: what the cache has,
/// and what must be read.
#[derive(Default)]
pub(in crate::ops) struct Wanted {
    layers: Vec<Descriptor>,
    known: BTreeSet<Blob>,
}

impl Wanted {
    /// Adds a layer. False: it is there already.
    pub(crate) fn add(&mut self, layer: &Descriptor) -> bool {
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
    let mut layers = built.map_or_else(|| Layers::new(budget), Layers::carried_over);
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
        // The shortest first: whenever the time is up, no other order would have finished more
        // layers. So each run gets an image on if any layer fits into its time, and the biggest is
        // at last alone with the whole of it; begun first, it could use up the time of every run
        // and keep the others from being done.
        Some(_) => unread.sort_by_key(|layer| layer.size),
    }
    Ok((layers, unread))
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
    let jobs = options.side_by_side(unread.len());
    // Unless it is cleared below: by the first layer that is done.
    layers.stuck = !unread.is_empty() && options.is_in_time();
    let mut alone = Vec::new();
    {
        let guides = &guides;
        let mut reading = stream::iter(unread)
            .take_while(|_| ready(options.is_in_time()))
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
        while let Some((layer, built)) = options.before_deadline(reading.try_next()).await.transpose()?.flatten() {
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
        let Some(built) = options.before_deadline(reading).await.transpose()? else { break };
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
