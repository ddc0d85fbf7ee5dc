//! What an image's index must reach, for those who let a build depend on it. Looked at after all layers were read and before
//! anything is written: an image that falls short is left as it was, on all its platforms.

use std::collections::BTreeSet;
use std::fmt;

use super::build::Layers;
use super::existing::{Decision, Found};
use super::model::{IndexOptions, IndexedLayer, LayerOutcome, LeftOut};
use super::plan::Plan;
use super::publish::assemble;
use crate::digest::Digest;
use crate::image::Descriptor;
use crate::ops::coverage::{Coverage, Share};

/// What is asked of the index of each platform's manifest. Nothing, by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gate {
    /// No layer may be left out for another reason than its size: not by its media type, nor by its content.
    pub all_servable: bool,
    /// The least share that the index covers of the bytes of all layers that are not smaller than
    /// [`IndexOptions::min_layer_size`]. Layers that cannot be served count, as not covered.
    pub least_coverage: Option<Share>,
}

/// An image of which an index falls short of the [`Gate`]. Nothing was attached for any of its platforms.
#[derive(Debug)]
pub struct Refused {
    /// One for each platform's manifest, in the order of the image index, those that do not fall short too.
    pub manifests: Vec<RefusedManifest>,
    /// Bytes of layer blobs that were read.
    pub bytes_read: u64,
}

#[derive(Debug)]
pub struct RefusedManifest {
    /// None if the image does not say.
    pub platform: Option<String>,
    pub manifest: Descriptor,
    /// Empty if the layers were not looked at, since an index is there.
    pub layers: Vec<IndexedLayer>,
    /// An index that is there, and is held against the gate. None: one would have been attached.
    pub stays: Option<Digest>,
    /// Of all layers.
    pub coverage: Coverage,
    pub shortfalls: Vec<Shortfall>,
}

/// One demand that is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortfall {
    /// A layer is not in the index. No reason: the index was there before, and does not say.
    LeftOut { layer: Box<Descriptor>, reason: Option<LeftOut> },
    Coverage {
        /// Of the layers of at least `min_layer_size` bytes.
        is: Coverage,
        least: Share,
        min_layer_size: u64,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was attached: the index falls short of what was asked for")
    }
}

impl std::error::Error for Refused {}

/// Holds the indexes that would be there in the end against the gate.
pub(super) fn check(plans: &[Plan], layers: &Layers, options: &IndexOptions) -> Result<(), Refused> {
    if options.gate == Gate::default() {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    let manifests: Vec<_> = plans.iter().map(|plan| judge(plan, layers, options, &mut seen)).collect();
    match manifests.iter().all(|manifest| manifest.shortfalls.is_empty()) {
        true => Ok(()),
        false => Err(Refused { manifests, bytes_read: layers.bytes_read }),
    }
}

fn judge(plan: &Plan, layers: &Layers, options: &IndexOptions, seen: &mut BTreeSet<Digest>) -> RefusedManifest {
    let (gate, min_layer_size) = (&options.gate, options.min_layer_size);
    let Plan { manifest, left_out, found, decision } = plan;
    let (outcomes, covered, missing) = match decision {
        Decision::Build { .. } => {
            let (outcomes, ztocs) = assemble(manifest.layers.iter().zip(left_out), layers, seen);
            let missing = outcomes.iter().filter_map(|layer| match &layer.outcome {
                LayerOutcome::LeftOut(reason) => Some((layer.descriptor.clone(), Some(reason.clone()))),
                LayerOutcome::Indexed(_) => None,
            });
            let missing: Vec<_> = missing.collect();
            (outcomes, ztocs.iter().map(|ztoc| ztoc.layer.digest).collect(), missing)
        }
        Decision::Done(place) | Decision::Keep(place) => {
            let covered = covered_by(&found[*place]);
            let missing = manifest.layers.iter().zip(left_out).filter(|(layer, _)| !covered.contains(&layer.digest));
            let missing = missing.map(|(layer, reason)| (layer.clone(), reason.clone())).collect();
            (Vec::new(), covered, missing)
        }
    };
    let coverage = Coverage::of(&manifest.layers, |layer| covered.contains(&layer.digest));
    let mut shortfalls = Vec::new();
    if gate.all_servable {
        let mut named = BTreeSet::new();
        for (layer, reason) in missing {
            if !matches!(reason, Some(LeftOut::Small { .. })) && named.insert(layer.digest) {
                shortfalls.push(Shortfall::LeftOut { layer: Box::new(layer), reason });
            }
        }
    }
    // Small layers are left out on purpose.
    let large = manifest.layers.iter().filter(|layer| layer.size >= min_layer_size);
    let is = Coverage::of(large, |layer| covered.contains(&layer.digest));
    if let Some(least) = gate.least_coverage.filter(|least| !is.reaches(*least)) {
        shortfalls.push(Shortfall::Coverage { is, least, min_layer_size });
    }
    let stays = match decision {
        Decision::Build { .. } => None,
        Decision::Done(place) | Decision::Keep(place) => Some(found[*place].descriptor.digest),
    };
    let platform = manifest.platform.as_ref().map(ToString::to_string);
    RefusedManifest { platform, manifest: manifest.descriptor.clone(), layers: outcomes, stays, coverage, shortfalls }
}

/// The layers for which an index that is there lists a ztoc.
pub(super) fn covered_by(found: &Found) -> BTreeSet<Digest> {
    found.content.iter().flat_map(|content| &content.ztocs).map(|ztoc| ztoc.layer).collect()
}
