//! The coverage of the index that a reader takes.

use std::collections::BTreeSet;

use ociseek_format::image::coverage::Coverage;
use ociseek_ops::discover::DiscoveredImage;

/// The coverage of an image by the index that a reader takes.
pub(super) fn covered(image: &DiscoveredImage) -> Coverage {
    Coverage::of(&image.layers, |layer| image.ztoc_for(&layer.digest).is_some())
}

/// The size of the ztocs that a reader takes, in bytes.
pub(super) fn ztoc_bytes(image: &DiscoveredImage) -> u64 {
    let layers: BTreeSet<_> = image.layers.iter().map(|layer| layer.digest).collect();
    layers.iter().filter_map(|layer| image.ztoc_for(layer)).map(|ztoc| ztoc.size).sum()
}
