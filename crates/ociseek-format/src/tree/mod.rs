//! The file system of an image: its layers, flattened into one tree.
//!
//! The tree equals the one that containerd unpacks from the same layers (pkg/archive/tar.go of
//! containerd 2.4): whiteouts and opaque directories, entries below symbolic links, replaced files,
//! hard links, attributes. [`Tree::flatten`] fails where containerd fails. Times that containerd
//! takes from the clock, those of the root and of directories without an entry, are the epoch. Like
//! containerd, it ignores entries for the root itself, which is 0:0 and 0755.
//!
//! Time and memory are in proportion to the entries; nothing recurses.

mod apply;
mod error;
mod lookup;
mod model;
mod paths;
mod stored;

pub use error::{TreeError, TreeFault};
pub use model::{Directory, Extent, Node, NodeId, NodeKind, SparseExtent, Xattr};

use crate::layer::map::Entries;
use crate::offset::LayerId;
use crate::ztoc::text_footprint;
use apply::{Applier, TreeUse};
use model::Inodes;
use paths::{PathId, ROOT};

/// The extended attribute by which overlayfs knows opaque directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpaqueXattr {
    /// `trusted.overlay.opaque`.
    #[default]
    Trusted,
    /// `user.overlay.opaque`, which overlayfs reads with the option `userxattr`. A user namespace
    /// needs it, because trusted attributes cannot be read there.
    User,
}

impl OpaqueXattr {
    /// The name of the attribute.
    pub fn name(self) -> &'static [u8] {
        match self {
            OpaqueXattr::Trusted => b"trusted.overlay.opaque",
            OpaqueXattr::User => b"user.overlay.opaque",
        }
    }
}

/// An immutable file system.
#[derive(Debug)]
pub struct Tree {
    /// The root first, then breadth first.
    nodes: Vec<Node>,
    /// The names of each directory in order, one directory after the other.
    names: Vec<Name>,
    /// All names, concatenated.
    text: Vec<u8>,
    /// For each node, the index of its first name in `names`.
    named_by: Vec<u32>,
    /// The extended attributes of the nodes that have any, in the order of the nodes.
    xattrs: Vec<(NodeId, Box<[Xattr]>)>,
    warnings: Vec<String>,
}

/// A name in a directory.
#[derive(Debug)]
struct Name {
    start: u32,
    length: u8,
    node: NodeId,
    directory: NodeId,
}

/// The names in a directory. Skipping names takes constant time.
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
    /// The entry that containerd could not apply either.
    pub fn flatten<'a>(
        layers: impl IntoIterator<Item: Into<Entries<'a>>>,
    ) -> Result<Tree, TreeError> {
        let mut applier = apply::Applier::new(TreeUse::Image);
        for (layer, entries) in (0..).zip(layers) {
            applier.layer(LayerId(layer), entries.into())?;
        }
        Ok(finish(applier))
    }

    /// The tree of a single layer as a lower directory of overlayfs: with whiteouts and opaque
    /// directories as overlayfs wants them. `layer` is its number in what the tree is read with.
    /// Directories without an entry have the attributes
    /// of new ones, and symbolic links of other layers are unknown, as where a layer is
    /// unpacked by itself.
    ///
    /// # Errors
    /// The entry that cannot be part of such a directory, such as a hard link to a file of another
    /// layer.
    pub fn for_overlay<'a>(
        entries: impl Into<Entries<'a>>,
        layer: LayerId,
        opaque: OpaqueXattr,
    ) -> Result<Tree, TreeError> {
        let mut applier = apply::Applier::new(TreeUse::Overlay(opaque));
        applier.layer(layer, entries.into())?;
        Ok(finish(applier))
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        let boxed = |node: &Node| match &node.kind {
            NodeKind::Symlink(target) => text_footprint(target.len()),
            NodeKind::Sparse(sparse) => size_of_val(&**sparse),
            _ => 0,
        };
        let attributes = self.xattrs.iter().map(|(_, xattrs)| {
            let texts = xattrs.iter().flat_map(|(name, value)| [name, value]);
            size_of_val(&**xattrs) + texts.map(|text| text_footprint(text.len())).sum::<usize>()
        });
        size_of_val(&*self.nodes)
            + size_of_val(&*self.names)
            + size_of_val(&*self.named_by)
            + size_of_val(&*self.xattrs)
            + self.text.len()
            + self.nodes.iter().map(boxed).sum::<usize>()
            + attributes.sum::<usize>()
    }

    /// Always false: there is a root.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node of this tree.
    ///
    /// # Panics
    /// If `id` belongs to another tree.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A node, or None if this tree has no such number. For numbers from outside.
    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0 as usize)
    }

    /// The extended attributes of a node, sorted by name, without duplicates.
    pub fn xattrs(&self, id: NodeId) -> &[Xattr] {
        let number = self.xattrs.binary_search_by_key(&id, |(node, _)| *node);
        number.map_or(&[], |at| &self.xattrs[at].1)
    }

    /// The extended attributes of all nodes.
    pub fn all_xattrs(&self) -> impl Iterator<Item = &Xattr> {
        self.xattrs.iter().flat_map(|(_, xattrs)| xattrs)
    }

    /// The file called `name` in a directory.
    pub fn child(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        let names = self.names(directory);
        names.binary_search_by(|known| self.text(known).cmp(name)).ok().map(|at| names[at].node)
    }

    /// The names in a directory, sorted as bytes. Empty for other files.
    pub fn children(&self, directory: NodeId) -> Children<'_> {
        Children { tree: self, names: self.names(directory).iter() }
    }

    /// The parent of a directory; the root is its own parent. For other files, the directory of the
    /// first name.
    pub fn parent(&self, id: NodeId) -> NodeId {
        match &self.node(id).kind {
            NodeKind::Directory(directory) => directory.parent,
            _ => self.names[self.named_by[id.0 as usize] as usize].directory,
        }
    }

    /// A path of the node from the root, without a leading slash. Empty for the root.
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

    /// Warnings for the user, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn names(&self, directory: NodeId) -> &[Name] {
        match &self.node(directory).kind {
            NodeKind::Directory(Directory { names, .. }) => {
                &self.names[names.start as usize..names.end as usize]
            }
            _ => &[],
        }
    }

    fn text(&self, name: &Name) -> &[u8] {
        &self.text[name.start as usize..][..usize::from(name.length)]
    }
}

/// The number of links that Linux follows in one path.
const MAX_LINKS: u32 = 40;
/// The maximum path length on Linux.
const PATH_MAX: usize = 4095;

/// Why a path cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum PathError {
    #[error("no such file or directory: {}", shown(.0))]
    NotFound(Vec<u8>),
    #[error("not a directory: {}", shown(.0))]
    NotDirectory(Vec<u8>),
    #[error("too many levels of symbolic links: {}", shown(.0))]
    TooManyLinks(Vec<u8>),
    #[error("the path is longer than 4095 bytes")]
    TooLong,
}

fn shown(path: &[u8]) -> String {
    crate::path::shown(&[b"/", path].concat())
}

impl Tree {
    /// Resolves `path` from the root, with or without a leading slash. `..` of the root is the
    /// root. A symbolic link at the end is followed if `follow_last` is set or a slash follows it.
    ///
    /// # Errors
    /// If a part does not exist or is not a directory, and after 40 links.
    pub fn resolve(&self, path: &[u8], follow_last: bool) -> Result<NodeId, PathError> {
        if path.len() > PATH_MAX {
            return Err(PathError::TooLong);
        }
        let follow_last = follow_last || path.ends_with(b"/");
        let must_be_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let parts = |path: &[u8]| -> Vec<Box<[u8]>> {
            path.split(|&b| b == b'/')
                .rev()
                .filter(|part| !part.is_empty())
                .map(Into::into)
                .collect()
        };
        let mut ahead = parts(path);
        let mut here = Tree::ROOT;
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            if !self.node(here).kind.is_directory() {
                return Err(PathError::NotDirectory(self.path(here)));
            }
            let below = |name: &[u8]| {
                [&self.path(here)[..], name]
                    .iter()
                    .filter(|p| !p.is_empty())
                    .copied()
                    .collect::<Vec<_>>()
                    .join(&b'/')
            };
            match &part[..] {
                b"." => continue,
                b".." => {
                    here = self.parent(here);
                    continue;
                }
                name => {
                    let child =
                        self.child(here, name).ok_or_else(|| PathError::NotFound(below(name)))?;
                    match &self.node(child).kind {
                        NodeKind::Symlink(target) if !ahead.is_empty() || follow_last => {
                            links += 1;
                            if links > MAX_LINKS {
                                return Err(PathError::TooManyLinks(below(name)));
                            }
                            if target.first() == Some(&b'/') {
                                here = Tree::ROOT;
                            }
                            ahead.extend(parts(target));
                        }
                        _ => here = child,
                    }
                }
            }
        }
        if must_be_directory && !self.node(here).kind.is_directory() {
            return Err(PathError::NotDirectory(self.path(here)));
        }
        Ok(here)
    }
}

const UNSEEN: u32 = u32::MAX;

fn finish(applier: Applier<'_>) -> Tree {
    let Applier { paths, inodes, warnings, .. } = applier;
    let Inodes { mut nodes, targets, xattrs } = inodes;
    let mut names: Vec<Name> = Vec::with_capacity(paths.len());
    let mut text = Vec::new();
    // The number of each inode in the tree. Numbers are assigned breadth first.
    let mut numbers = vec![UNSEEN; nodes.len()];
    let mut named_by: Vec<u32> = Vec::with_capacity(nodes.len());
    named_by.push(0);
    numbers[0] = 0;
    let mut directories: Vec<(PathId, NodeId, NodeId)> = vec![(ROOT, Tree::ROOT, Tree::ROOT)];
    let mut done = 0;
    let mut children: Vec<(&[u8], PathId)> = Vec::new();
    while let Some(&(path, id, parent)) = directories.get(done) {
        done += 1;
        let mut next = paths.first(path);
        while let Some(child) = next {
            children.push((paths.name(child), child));
            next = paths.next(child);
        }
        children.sort_unstable_by_key(|(name, _)| *name);
        let start = names.len() as u32;
        let mut subdirectories = 0;
        for (name, child) in children.drain(..) {
            let Some(inode) = paths.inode(child) else { continue };
            let number = &mut numbers[inode as usize];
            if *number == UNSEEN {
                *number = named_by.len() as u32;
                named_by.push(names.len() as u32);
            }
            let node = NodeId(*number);
            if nodes[inode as usize].kind.is_directory() {
                subdirectories += 1;
                directories.push((child, node, id));
            }
            names.push(Name {
                start: text.len() as u32,
                length: name.len() as u8,
                node,
                directory: id,
            });
            text.extend_from_slice(name);
        }
        if let Some(inode) = paths.inode(path) {
            let directory = &mut nodes[inode as usize];
            directory.kind =
                NodeKind::Directory(Directory { names: start..names.len() as u32, parent });
            directory.nlink = 2 + subdirectories;
        }
    }

    let is_seen = |inode: u32| numbers[inode as usize] != UNSEEN;
    for (inode, target) in targets.into_iter().filter(|(inode, _)| is_seen(*inode)) {
        nodes[inode as usize].kind = NodeKind::Symlink(target.into());
    }
    let seen_xattrs = xattrs.into_iter().filter(|((inode, _), _)| is_seen(*inode));
    let mut seen_xattrs =
        seen_xattrs.map(|((inode, name), value)| (inode, (name.into(), value.into()))).peekable();
    let mut xattrs: Vec<(NodeId, Box<[Xattr]>)> = Vec::new();
    while let Some((inode, first)) = seen_xattrs.next() {
        let mut all = vec![first];
        while let Some((_, next)) = seen_xattrs.next_if(|(other, _)| *other == inode) {
            all.push(next);
        }
        xattrs.push((NodeId(numbers[inode as usize]), all.into()));
    }
    xattrs.sort_unstable_by_key(|(node, _)| *node);
    // Sorts the nodes by number, removed ones last. Each exchange puts one into its place.
    let seen = named_by.len();
    let unseen = numbers.iter_mut().filter(|number| **number == UNSEEN);
    unseen.zip(seen as u32..).for_each(|(unseen, number)| *unseen = number);
    for at in 0..nodes.len() {
        while numbers[at] as usize != at {
            let place = numbers[at] as usize;
            nodes.swap(at, place);
            numbers.swap(at, place);
        }
    }
    nodes.truncate(seen);
    // They live as long as a mount.
    nodes.shrink_to_fit();
    text.shrink_to_fit();
    Tree { nodes, names, text, named_by, xattrs, warnings: warnings.finish() }
}
