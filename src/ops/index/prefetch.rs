//! The prefetch artifacts of an index: which spans of its layers hold what is on the user's list.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;

use super::assemble::Ztoc;
use super::error::IndexError;
use crate::budget::Budget;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::image::prefetch::encode;
use crate::image::soci::{LAYER_DIGEST, PREFETCH};
use crate::ops::open::charge_tree;
use crate::ops::prefetch::{PrefetchList, Resolved, resolve};
use crate::progress::{Event, Progress};
use crate::ztoc;

/// A prefetch artifact, and its descriptor as it stands in the index.
pub(in crate::ops) struct Artifact {
    pub descriptor: Descriptor,
    pub bytes: Bytes,
}

/// The artifacts for the layers of `ztocs`, which are in the manifest's order; none without a list.
/// Paths that lead to nothing are reported.
///
/// # Errors
/// When the layers do not make a file system in which paths could be looked up.
pub(in crate::ops) async fn prefetch_artifacts(
    list: Option<&Arc<PrefetchList>>,
    ztocs: &[Ztoc<'_>],
    budget: &Budget,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<Artifact>, IndexError> {
    let Some(list) = list.cloned() else { return Ok(Vec::new()) };
    let encoded: Vec<(Digest, Digest, Bytes)> =
        ztocs.iter().map(|ztoc| (ztoc.layer.digest, ztoc.digest(), ztoc.content())).collect();
    let mut charge = budget.open();
    let resolved = spawn_blocking(move || {
        let mut decoded = BTreeMap::new();
        let mut layers = Vec::with_capacity(encoded.len());
        for (layer, digest, bytes) in encoded {
            let ztoc = match decoded.get(&digest) {
                Some(ztoc) => Arc::clone(ztoc),
                None => {
                    let decoded = ztoc::decode_within(&bytes, &mut charge);
                    Arc::new(decoded.map_err(|source| IndexError::OwnZtoc { layer, source })?)
                }
            };
            decoded.insert(digest, Arc::clone(&ztoc));
            layers.push((layer, ztoc));
        }
        let _tree = charge_tree(charge.budget(), layers.iter().map(|(_, ztoc)| &**ztoc))?;
        resolve(&list, &layers).map_err(IndexError::from)
    });
    let Resolved { spans, warnings } = resolved.await.map_err(|_| IndexError::PrefetchThread)??;
    warnings.into_iter().for_each(|warning| progress.report(Event::Warning(warning)));
    let listed = ztocs.iter().zip(spans).filter(|(_, spans)| !spans.is_empty());
    Ok(listed.map(|(ztoc, spans)| artifact(ztoc.layer.digest, encode(&spans).into())).collect())
}

fn artifact(layer: Digest, bytes: Bytes) -> Artifact {
    let mut descriptor = Descriptor::of(PREFETCH, &bytes);
    descriptor.annotations = BTreeMap::from([(LAYER_DIGEST.to_owned(), layer.to_string())]);
    Artifact { descriptor, bytes }
}
