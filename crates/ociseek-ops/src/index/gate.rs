//! Requirements for an image's index, for builds that depend on it. Checked after all layers were
//! read and before anything is written. An image that falls short is left unchanged on all its
//! platforms.

use std::collections::BTreeSet;

use super::assemble::assemble;
use super::existing::Decision;
use super::model::{LayerOutcome, LeftOutReason, RefusedImage, RefusedManifest, Shortfall};
use super::options::{Gate, IndexOptions};
use super::plan::IndexPlan;
use super::supply::Layers;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::Coverage;

/// Checks the final indexes against the gate.
pub(super) fn check(plans: &[IndexPlan], layers: &Layers, options: &IndexOptions) -> Result<(), RefusedImage> {
    if options.gate == Gate::default() {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    let manifests: Vec<_> = plans.iter().map(|plan| judge(plan, layers, options, &mut seen)).collect();
    match manifests.iter().all(|manifest| manifest.shortfalls.is_empty()) {
        true => Ok(()),
        false => Err(RefusedImage { manifests, bytes_read: layers.bytes_read }),
    }
}

fn judge(plan: &IndexPlan, layers: &Layers, options: &IndexOptions, seen: &mut BTreeSet<Digest>) -> RefusedManifest {
    let IndexPlan { manifest, left_out, found, decision, unopened, .. } = plan;
    let wanted = manifest.layers.iter().zip(left_out);
    let (outcomes, mut covered): (_, BTreeSet<Digest>) = match decision {
        Decision::Build { .. } => {
            let (outcomes, ztocs) = assemble(wanted, layers, seen);
            (outcomes, ztocs.iter().map(|ztoc| ztoc.layer.digest).collect())
        }
        Decision::Done(place) | Decision::Keep(place) => (found[*place].layers(wanted), found[*place].covered()),
        Decision::NotRequested => (Vec::new(), BTreeSet::new()),
    };
    covered.retain(|layer| !unopened.contains(layer));
    let missing = outcomes.iter().filter_map(|layer| match &layer.outcome {
        LayerOutcome::Listed { .. } if unopened.contains(&layer.descriptor.digest) => {
            Some((&layer.descriptor, &LeftOutReason::Unopened))
        }
        LayerOutcome::LeftOut(reason) => Some((&layer.descriptor, reason)),
        LayerOutcome::Indexed(_) | LayerOutcome::Listed { .. } => None,
    });
    let coverage = Coverage::of(&manifest.layers, |layer| covered.contains(&layer.digest));
    let shortfalls = shortfalls(options, &manifest.layers, &covered, missing);
    let stays = match decision {
        Decision::Build { .. } | Decision::NotRequested => None,
        Decision::Done(place) | Decision::Keep(place) => Some(found[*place].descriptor.clone()),
    };
    let platform = manifest.platform.as_ref().map(ToString::to_string);
    RefusedManifest { platform, manifest: manifest.descriptor.clone(), layers: outcomes, stays, coverage, shortfalls }
}

/// The requirements of the gate that an index of `layers` does not meet. It covers those in
/// `covered`, and `missing` are the others with their reasons.
pub(crate) fn shortfalls<'a>(
    options: &IndexOptions,
    layers: &[Descriptor],
    covered: &BTreeSet<Digest>,
    missing: impl Iterator<Item = (&'a Descriptor, &'a LeftOutReason)>,
) -> Vec<Shortfall> {
    let Gate { all_servable, least_coverage } = options.gate;
    let min_layer_size = options.min_layer_size;
    let mut shortfalls = Vec::new();
    if all_servable {
        let mut named = BTreeSet::new();
        for (layer, reason) in missing {
            if !matches!(reason, LeftOutReason::Small { .. }) && named.insert(layer.digest) {
                shortfalls.push(Shortfall::LeftOut { layer: Box::new(layer.clone()), reason: reason.clone() });
            }
        }
    }
    // Small layers are left out on purpose.
    let large = layers.iter().filter(|layer| layer.size >= min_layer_size);
    let is = Coverage::of(large, |layer| covered.contains(&layer.digest));
    if let Some(least) = least_coverage.filter(|least| !is.reaches(*least)) {
        shortfalls.push(Shortfall::Coverage { is, least, min_layer_size });
    }
    shortfalls
}
