//! The paths that layers have named, and the files at these paths while layers are applied.
//!
//! A path stays known after its file is removed, because an opaque marker later needs to know which
//! paths its layer has written. A directory's list has only existing files, so removing them costs
//! no more than creating them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::error::TreeFault;
use crate::offset::LayerId;

/// The maximum length of a path below the root, including its first slash (Linux: PATH_MAX, without
/// its NUL).
pub(super) const PATH_MAX: usize = 4095;
/// The maximum length of a name in a directory (Linux: NAME_MAX).
pub(super) const NAME_MAX: usize = 255;

/// The number of a path; the root is 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PathId(u32);

pub(super) const ROOT: PathId = PathId(0);
/// Stands for a missing path or inode.
const NONE: u32 = u32::MAX;

pub(super) struct Paths<'a> {
    known: HashMap<(u32, &'a [u8]), u32>,
    list: Vec<Path<'a>>,
}

struct Path<'a> {
    name: &'a [u8],
    parent: u32,
    /// The inode at this path.
    inode: u32,
    /// The head of the list of a directory's files, and this path's neighbours in its own
    /// directory's list.
    first: u32,
    next: u32,
    previous: u32,
    /// The length of the path from the root, slashes included, in bytes.
    length: u16,
    /// The last layer with an entry here, and the last with an opaque marker, counted from 1.
    written: u32,
    opaque: u32,
}

impl<'a> Paths<'a> {
    /// Contains only the root with the given `inode`.
    pub(super) fn new(inode: u32) -> Paths<'a> {
        let root = Path {
            name: b"",
            parent: 0,
            inode,
            first: NONE,
            next: NONE,
            previous: NONE,
            length: 0,
            written: 0,
            opaque: 0,
        };
        Paths { known: HashMap::new(), list: vec![root] }
    }

    /// Makes room for `more` paths.
    pub(super) fn reserve(&mut self, more: usize) {
        self.known.reserve(more);
        self.list.reserve(more);
    }

    fn at(&self, path: PathId) -> &Path<'a> {
        &self.list[path.0 as usize]
    }

    fn at_mut(&mut self, path: PathId) -> &mut Path<'a> {
        &mut self.list[path.0 as usize]
    }

    /// The path of `name` in `parent`, whether or not a file exists there.
    ///
    /// # Errors
    /// If the name or the path is longer than Linux allows.
    pub(super) fn intern(&mut self, parent: PathId, name: &'a [u8]) -> Result<PathId, TreeFault> {
        let new = match self.known.entry((parent.0, name)) {
            Entry::Occupied(known) => return Ok(PathId(*known.get())),
            Entry::Vacant(new) => new,
        };
        if name.len() > NAME_MAX {
            return Err(TreeFault::NameTooLong);
        }
        let length = usize::from(self.list[parent.0 as usize].length) + 1 + name.len();
        if length > PATH_MAX {
            return Err(TreeFault::PathTooLong);
        }
        let number = u32::try_from(self.list.len()).ok().filter(|&n| n != NONE).ok_or(TreeFault::TooManyNames)?;
        self.list.push(Path {
            name,
            parent: parent.0,
            inode: NONE,
            first: NONE,
            next: NONE,
            previous: NONE,
            length: length as u16,
            written: 0,
            opaque: 0,
        });
        new.insert(number);
        Ok(PathId(number))
    }

    /// The file called `name` in `parent`, if it exists.
    pub(super) fn child(&self, parent: PathId, name: &[u8]) -> Option<PathId> {
        let path = PathId(*self.known.get(&(parent.0, name))?);
        self.inode(path).map(|_| path)
    }

    /// The inode at a path.
    pub(super) fn inode(&self, path: PathId) -> Option<u32> {
        Some(self.at(path).inode).filter(|&inode| inode != NONE)
    }

    pub(super) fn name(&self, path: PathId) -> &'a [u8] {
        self.at(path).name
    }

    /// Puts an inode at an empty path.
    pub(super) fn occupy(&mut self, path: PathId, inode: u32) {
        let parent = PathId(self.at(path).parent);
        let next = self.at(parent).first;
        if next != NONE {
            self.at_mut(PathId(next)).previous = path.0;
        }
        let here = self.at_mut(path);
        (here.inode, here.next, here.previous) = (inode, next, NONE);
        self.at_mut(parent).first = path.0;
    }

    /// Empties a path that has no files below it, and returns its inode.
    pub(super) fn vacate(&mut self, path: PathId) -> u32 {
        let here = self.at_mut(path);
        let (inode, parent, next, previous) = (here.inode, PathId(here.parent), here.next, here.previous);
        (here.inode, here.next, here.previous) = (NONE, NONE, NONE);
        match previous {
            NONE => self.at_mut(parent).first = next,
            previous => self.at_mut(PathId(previous)).next = next,
        }
        if next != NONE {
            self.at_mut(PathId(next)).previous = previous;
        }
        inode
    }

    /// The first file in a directory, in no particular order.
    pub(super) fn first(&self, directory: PathId) -> Option<PathId> {
        Some(self.at(directory).first).filter(|&first| first != NONE).map(PathId)
    }

    /// The next file in the same directory.
    pub(super) fn next(&self, path: PathId) -> Option<PathId> {
        Some(self.at(path).next).filter(|&next| next != NONE).map(PathId)
    }

    /// Marks that `layer` has written an entry here.
    pub(super) fn write(&mut self, path: PathId, layer: LayerId) {
        self.at_mut(path).written = layer.0 + 1;
    }

    pub(super) fn is_written(&self, path: PathId, layer: LayerId) -> bool {
        self.at(path).written == layer.0 + 1
    }

    /// Marks a directory as opaque in `layer`. Returns false if it already was.
    pub(super) fn make_opaque(&mut self, directory: PathId, layer: LayerId) -> bool {
        std::mem::replace(&mut self.at_mut(directory).opaque, layer.0 + 1) != layer.0 + 1
    }
}
