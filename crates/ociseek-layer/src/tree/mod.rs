//! The file system of an image: its layers flattened into one tree, once.
//!
//! The tree is the one that containerd unpacks from the same layers (pkg/archive/tar.go of
//! containerd 2.4): whiteouts and opaque directories, entries below symbolic links, what replaces
//! what, hard links, attributes. Where containerd fails, so does [`Tree::flatten`]. What containerd
//! leaves to the clock is the epoch here: the times of the root and of directories that no layer
//! has an entry for. Entries for the root itself are passed over, as containerd does: it is 0:0 and
//! 0755.
//!
//! Time and memory are in proportion to the entries; nothing recurses.

mod apply;
mod error;
mod finish;
mod inode;
mod lookup;
mod model;
mod paths;
mod resolve;
mod warnings;
mod xattrs;

pub use error::{TreeError, TreeFault};
pub use model::{Directory, Extent, Node, NodeId, NodeKind, Origin, Xattr};
pub use resolve::ResolveError;

use crate::layer::map::Entries;
use crate::offset::LayerId;

/// A file system that does not change.
#[derive(Debug)]
pub struct Tree {
    /// The root first, then breadth first.
    nodes: Vec<Node>,
    /// The names of each directory, in order, one directory after the other.
    names: Vec<Name>,
    /// All names without anything in between.
    text: Vec<u8>,
    /// For each node, where in `names` its first name is.
    named_by: Vec<u32>,
    warnings: Vec<String>,
}

/// One name in a directory.
#[derive(Debug)]
struct Name {
    start: usize,
    length: u8,
    node: NodeId,
    directory: NodeId,
}

/// The names in a directory. Skipping any number of them costs nothing.
#[derive(Debug, Clone)]
pub struct Children<'t> {
    tree: &'t Tree,
    names: std::slice::Iter<'t, Name>,
}

impl<'t> Iterator for Children<'t> {
    type Item = (&'t [u8], NodeId);

    fn next(&mut self) -> Option<Self::Item> {
        self.nth(0)
    }

    fn nth(&mut self, skipped: usize) -> Option<Self::Item> {
        self.names.nth(skipped).map(|name| (self.tree.text(name), name.node))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.names.size_hint()
    }
}

impl ExactSizeIterator for Children<'_> {}

impl Tree {
    /// The root directory, which every tree has.
    pub const ROOT: NodeId = NodeId(0);

    /// Flattens layers, the lowest first.
    ///
    /// # Errors
    /// With the entry that containerd could not apply either.
    pub fn flatten<'a>(layers: impl IntoIterator<Item: Into<Entries<'a>>>) -> Result<Tree, TreeError> {
        let mut applier = apply::Applier::new(false);
        for (layer, entries) in (0..).zip(layers) {
            applier.layer(LayerId(layer), entries.into())?;
        }
        Ok(finish::finish(applier))
    }

    /// One layer as it is: whiteouts are files in it like others, and a hard link to something that
    /// is not in it is left out, with a warning.
    ///
    /// # Errors
    /// With the entry that can have no place in any tree.
    pub fn of_layer<'a>(entries: impl Into<Entries<'a>>) -> Result<Tree, TreeError> {
        let mut applier = apply::Applier::new(true);
        applier.layer(LayerId(0), entries.into())?;
        Ok(finish::finish(applier))
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there is a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node of this tree.
    ///
    /// # Panics
    /// When `id` is of another tree.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A node, if `id` is one of this tree: for numbers that come from outside.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0 as usize)
    }

    /// What is called `name` in a directory.
    pub fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        let names = self.names(directory);
        names.binary_search_by(|known| self.text(known).cmp(name)).ok().map(|at| names[at].node)
    }

    /// The names in a directory, sorted as bytes. Nothing else has any.
    pub fn children(&self, directory: NodeId) -> Children<'_> {
        Children { tree: self, names: self.names(directory).iter() }
    }

    /// The directory that a directory lies in; the root lies in itself. Of anything else, the one of its first name.
    pub fn parent(&self, id: NodeId) -> NodeId {
        match &self.node(id).kind {
            NodeKind::Directory(directory) => directory.parent,
            _ => self.names[self.named_by[id.0 as usize] as usize].directory,
        }
    }

    /// A path of the node from the root, without a slash in front; empty for the root.
    pub fn path(&self, id: NodeId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut id = id;
        while id != Tree::ROOT {
            let name = &self.names[self.named_by[id.0 as usize] as usize];
            parts.push(self.text(name));
            id = name.directory;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// What should be said once, to people, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn names(&self, directory: NodeId) -> &[Name] {
        match &self.node(directory).kind {
            NodeKind::Directory(Directory { names, .. }) => &self.names[names.start as usize..names.end as usize],
            _ => &[],
        }
    }

    fn text(&self, name: &Name) -> &[u8] {
        &self.text[name.start..name.start + usize::from(name.length)]
    }
}
