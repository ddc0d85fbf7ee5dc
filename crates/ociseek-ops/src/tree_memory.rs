//! The memory for the tree of an image's files.

use ociseek_format::budget::{Budget, Charge, OverBudget};
use ociseek_format::tree::Tree;
use ociseek_format::ztoc::FileMetadata;

/// A node, its name, and its entries in lookup tables.
const NODE: u64 = 256;

/// Charges the memory for flattening the layers, in addition to the lists of their files.
///
/// # Errors
/// If the budget does not have it.
pub fn charge_tree<'a>(
    budget: &Budget,
    layers: impl Iterator<Item = &'a [FileMetadata]> + Clone,
) -> Result<Charge, OverBudget> {
    let files = || layers.clone().flatten();
    let bytes =
        files().map(|file| NODE + file.name.len() as u64 + file.linkname.len() as u64).sum();
    budget.charge(bytes, || format!("the tree of {} files", files().count()))
}

/// Charges the memory of a tree that was not flattened here.
pub(crate) fn charge_stored_tree(budget: &Budget, tree: &Tree) -> Result<Charge, OverBudget> {
    budget.charge(tree.footprint() as u64, || format!("the tree of {} files", tree.len()))
}

/// Returns to the budget what only flattening took.
pub fn keep_tree(mut charge: Charge, tree: Tree) -> (Tree, Charge) {
    charge.shrink_to(tree.footprint() as u64);
    (tree, charge)
}
