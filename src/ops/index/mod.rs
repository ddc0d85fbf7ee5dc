//! `index`: reads an image's layers once, builds the SOCI index of each platform, and attaches it.
//!
//! In steps, each of them for all platforms of the image before the next one begins:
//!
//! 1. [`resolve`]: from the name to the manifests of the platforms.
//! 2. `existing`: which indexes are there, and what is to be done about them.
//! 3. `build`: the ztocs of the layers, from the cache or by reading (`read`). A broken layer ends it here.
//! 4. `gate`: whether what came out reaches what was asked for.
//! 5. `publish`: blobs first, then the index manifest. Before this step nothing was written anywhere but in the cache.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::resolve::{Wanted, resolve};
use crate::progress::{Event, Progress};
use crate::store::blob::Target;
use crate::store::cache::ZtocCache;
use crate::store::{Destination, Source};

mod build;
mod error;
mod existing;
mod gate;
mod model;
mod plan;
mod publish;
mod read;

pub use error::IndexError;
pub use gate::{Gate, Refused, RefusedManifest, Shortfall};
pub use model::{
    Existing, IndexOptions, IndexedImage, IndexedLayer, IndexedManifest, LayerOutcome, LeftOut, ManifestResult, Origin,
    OtherIndex, ZtocFacts,
};

use plan::Plan;

/// Indexes the image `root` of `source` and attaches the indexes at `destination`.
///
/// Without a destination (a dry run of an archive, say) nothing is looked up or written there. The cache, if any, is read,
/// and written unless this is a dry run.
///
/// # Errors
/// When the image or one of its layers cannot be read, a layer is broken, the index falls short of the gate
/// ([`IndexError::Refused`]), or the destination does not take the index. With
/// several platforms, [`IndexError::Push`] and [`IndexError::Attach`] can come after some of them got their index; any other
/// error means that nothing was attached.
pub async fn index(
    source: &Source,
    root: &Target,
    destination: Option<&Destination>,
    cache: Option<&ZtocCache>,
    options: &IndexOptions,
    progress: &Arc<dyn Progress>,
) -> Result<IndexedImage, IndexError> {
    let wanted = if options.platforms.is_empty() { Wanted::All } else { Wanted::Each(&options.platforms) };
    let image = resolve(source, root, wanted, progress).await?;
    let mut plans = Vec::with_capacity(image.manifests.len());
    for manifest in image.manifests {
        plans.push(Plan::make(manifest, destination, cache, options).await?);
    }

    let mut wanted = build::Wanted::default();
    let mut news = Vec::new();
    for plan in &plans {
        news.push(
            plan.to_build().filter(|layer| wanted.add(layer)).map(|l| (l.digest, l.size)).collect::<BTreeSet<_>>(),
        );
    }
    let (mut layers, unread) = build::look_up(wanted, cache, options).await;
    for (plan, new) in plans.iter().zip(&news) {
        let reads = unread.iter().filter(|l| new.contains(&(l.digest, l.size)));
        let (count, bytes) = reads.fold((0, 0), |(count, bytes), layer| (count + 1, bytes + layer.size));
        let platform = plan.manifest.platform.as_ref().map_or_else(String::new, ToString::to_string);
        progress.report(Event::Image { manifest: plan.manifest.descriptor.digest, platform, layers: count, bytes });
    }
    build::read_all(&mut layers, unread, source, cache, options, progress).await?;
    gate::check(&plans, &layers, options).map_err(Box::new)?;

    let mut done = IndexedImage {
        digest: image.digest,
        manifests: Vec::with_capacity(plans.len()),
        bytes_read: layers.bytes_read,
        bytes_written: 0,
    };
    let mut seen = BTreeSet::new();
    for plan in plans {
        let (manifest, written) = publish::publish(plan, &layers, &mut seen, destination, options, progress).await?;
        done.bytes_written += written;
        done.manifests.push(manifest);
    }
    Ok(done)
}
