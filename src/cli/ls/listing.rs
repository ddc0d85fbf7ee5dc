//! Selects the entries of an image's tree to list.

use super::args::LsArgs;
use crate::cli::shared::error::CliError;
use ociseek_format::tree::{NodeId, Tree};
use ociseek_ops::open::RootFs;

/// The selected part of the tree.
pub(crate) enum Listing {
    /// A single file with the name that was typed.
    File { name: Vec<u8>, node: NodeId },
    /// Directories with their displayed paths. Only one, unless `recursive` is set.
    Directories { list: Vec<(Vec<u8>, NodeId)>, recursive: bool },
}

impl Listing {
    pub(crate) fn of(rootfs: &RootFs, path: &[u8], args: &LsArgs) -> Result<Listing, CliError> {
        let tree = &rootfs.tree;
        // Like ls: -l and -d show a link itself.
        let node = tree.resolve(path, !args.long && !args.directory)?;
        if args.directory || !tree.node(node).kind.is_directory() {
            return Ok(Listing::File { name: path.to_vec(), node });
        }
        let mut list = vec![(path.to_vec(), node)];
        if args.recursive {
            list = below(tree, path, node);
        }
        Ok(Listing::Directories { list, recursive: args.recursive })
    }
}

/// A directory and all directories below it, parents first, in the order of their names. Not
/// recursive, because a tree may be deep.
fn below(tree: &Tree, path: &[u8], root: NodeId) -> Vec<(Vec<u8>, NodeId)> {
    let mut found = Vec::new();
    let mut ahead = vec![(path.to_vec(), root)];
    while let Some((path, directory)) = ahead.pop() {
        let children: Vec<_> =
            tree.children(directory).filter(|(_, child)| tree.node(*child).kind.is_directory()).collect();
        ahead.extend(children.into_iter().rev().map(|(name, child)| (join(&path, name), child)));
        found.push((path, directory));
    }
    found
}

/// A path below a directory, as ls writes it.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.last() {
        None | Some(b'/') => [directory, name].concat(),
        Some(_) => [directory, b"/", name].concat(),
    }
}
