//! The memory for the tree of an image's files.

use ociseek_format::budget::{Budget, Charge, OverBudget};
use ociseek_format::ztoc::FileMetadata;

/// Charges the memory for flattening the layers, in addition to the lists of their files.
pub(crate) fn charge_tree<'a>(
    budget: &Budget,
    layers: impl Iterator<Item = &'a [FileMetadata]> + Clone,
) -> Result<Charge, OverBudget> {
    /// A node, its name, and its entries in lookup tables.
    const NODE: u64 = 256;
    let files = || layers.clone().flatten();
    let bytes = files().map(|file| NODE + file.name.len() as u64 + file.linkname.len() as u64).sum();
    budget.charge(bytes, || format!("the tree of {} files", files().count()))
}
