//! The paths that layers have named, and the files at these paths while layers are applied.
//!
//! A path stays known after its file is removed, because an opaque marker later needs to know which
//! paths its layer has written. A directory's list has only existing files, so removing them costs
//! no more than creating them.
//!
//! Most layers name the files of a directory in ascending order. As long as they do, a comparison
//! with the last name tells that a name is new. If the files were also named one after the other, a
//! name is found by bisection. A directory's names are hashed only where that is not enough.

use std::cmp::Ordering;
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
    /// The paths in the directories that are hashed, by directory and name. It may have others.
    hashed: HashMap<(u32, &'a [u8]), u32>,
    list: Vec<Path<'a>>,
    /// The bytes of all names, which the tree numbers with 32 bits.
    text: u32,
}

struct Path<'a> {
    name: &'a [u8],
    parent: u32,
    /// The inode at this path.
    inode: u32,
    /// The head of the list of a directory's files, and this path's neighbours in its own
    /// directory's list. Until the directory is hashed, the previous one of the head is the last
    /// one.
    first: u32,
    next: u32,
    previous: u32,
    /// The length of the path from the root, slashes included, in bytes.
    length: u16,
    /// Whether all known names in this directory are hashed. If not, its list has them all, the
    /// greatest first.
    is_hashed: bool,
    /// Whether the paths in this directory have consecutive numbers, unless it is hashed.
    is_run: bool,
    /// The last layer with an entry here, and the last with an opaque marker, counted from 1.
    written: u32,
    opaque: u32,
}

/// What the order of a directory's names says about a name.
enum NameOrder {
    /// It is known.
    Known(PathId),
    /// It is new, and greater than all others.
    Greatest,
    /// It is new, but not the greatest.
    New,
    /// Nothing. It must be looked up by its hash.
    Nothing,
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
            is_hashed: false,
            is_run: true,
            written: 0,
            opaque: 0,
        };
        Paths { hashed: HashMap::new(), list: vec![root], text: 0 }
    }

    /// The number of paths.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Makes room for `more` paths.
    pub(super) fn reserve(&mut self, more: usize) {
        self.list.reserve(more);
    }

    fn at(&self, path: PathId) -> &Path<'a> {
        &self.list[path.0 as usize]
    }

    fn at_mut(&mut self, path: PathId) -> &mut Path<'a> {
        &mut self.list[path.0 as usize]
    }

    /// The path of `name` in `parent`, whether or not a file exists there. A new path is forgotten
    /// if no file is put there before the next one is created.
    ///
    /// # Errors
    /// If the name or the path is longer than Linux allows.
    pub(super) fn intern(&mut self, parent: PathId, name: &'a [u8]) -> Result<PathId, TreeFault> {
        let new = match self.compare(parent, name) {
            NameOrder::Known(path) => return Ok(path),
            NameOrder::Greatest => None,
            NameOrder::New | NameOrder::Nothing => {
                self.hash(parent);
                match self.hashed.entry((parent.0, name)) {
                    Entry::Occupied(known) => return Ok(PathId(*known.get())),
                    Entry::Vacant(new) => Some(new),
                }
            }
        };
        if name.len() > NAME_MAX {
            return Err(TreeFault::NameTooLong);
        }
        let length = usize::from(self.list[parent.0 as usize].length) + 1 + name.len();
        if length > PATH_MAX {
            return Err(TreeFault::PathTooLong);
        }
        let number = u32::try_from(self.list.len())
            .ok()
            .filter(|&n| n != NONE)
            .ok_or(TreeFault::TooManyNames)?;
        self.text = self.text.checked_add(name.len() as u32).ok_or(TreeFault::TooManyNames)?;
        self.list.push(Path {
            name,
            parent: parent.0,
            inode: NONE,
            first: NONE,
            next: NONE,
            previous: NONE,
            length: length as u16,
            is_hashed: false,
            is_run: true,
            written: 0,
            opaque: 0,
        });
        if let Some(new) = new {
            new.insert(number);
        }
        Ok(PathId(number))
    }

    /// The file called `name` in `parent`, if it exists.
    pub(super) fn child(&mut self, parent: PathId, name: &[u8]) -> Option<PathId> {
        let path = match self.compare(parent, name) {
            NameOrder::Known(path) => path,
            NameOrder::Greatest | NameOrder::New => return None,
            NameOrder::Nothing => {
                self.hash(parent);
                PathId(*self.hashed.get(&(parent.0, name))?)
            }
        };
        self.inode(path).map(|_| path)
    }

    /// Compares a name with those in a directory that is not hashed.
    fn compare(&self, directory: PathId, name: &[u8]) -> NameOrder {
        let Path { is_hashed, is_run, .. } = *self.at(directory);
        if is_hashed {
            return NameOrder::Nothing;
        }
        let Some(greatest) = self.first(directory) else { return NameOrder::Greatest };
        match name.cmp(self.name(greatest)) {
            Ordering::Greater => NameOrder::Greatest,
            Ordering::Equal => NameOrder::Known(greatest),
            Ordering::Less if is_run => {
                let least = self.at(greatest).previous;
                let run = &self.list[least as usize..greatest.0 as usize];
                let number = run.binary_search_by(|path| path.name.cmp(name));
                number.map_or(NameOrder::New, |at| NameOrder::Known(PathId(least + at as u32)))
            }
            Ordering::Less => NameOrder::Nothing,
        }
    }

    /// Hashes all known names in a directory.
    fn hash(&mut self, directory: PathId) {
        if std::mem::replace(&mut self.at_mut(directory).is_hashed, true) {
            return;
        }
        let Paths { hashed, list, .. } = self;
        let mut add = |number: u32| {
            let path = &list[number as usize];
            hashed.insert((path.parent, path.name), number);
            path.next
        };
        // The newest path may be in the directory but have no file yet.
        add(list.len() as u32 - 1);
        let mut next = list[directory.0 as usize].first;
        while next != NONE {
            next = add(next);
        }
    }

    /// The inode at a path.
    pub(super) fn inode(&self, path: PathId) -> Option<u32> {
        Some(self.at(path).inode).filter(|&inode| inode != NONE)
    }

    pub(super) fn name(&self, path: PathId) -> &'a [u8] {
        self.at(path).name
    }

    /// The directory `levels` above a path.
    pub(super) fn above(&self, path: PathId, levels: usize) -> PathId {
        (0..levels).fold(path, |path, _| PathId(self.at(path).parent))
    }

    /// Puts an inode at an empty path.
    pub(super) fn occupy(&mut self, path: PathId, inode: u32) {
        let parent = PathId(self.at(path).parent);
        let next = self.at(parent).first;
        let last = match next {
            NONE => path.0,
            next => std::mem::replace(&mut self.at_mut(PathId(next)).previous, path.0),
        };
        let here = self.at_mut(path);
        (here.inode, here.next, here.previous) = (inode, next, last);
        let directory = self.at_mut(parent);
        directory.first = path.0;
        directory.is_run &= next == NONE || next + 1 == path.0;
    }

    /// Empties a path that has no files below it, and returns its inode.
    pub(super) fn vacate(&mut self, path: PathId) -> u32 {
        // The list will not have the name any more.
        let parent = PathId(self.at(path).parent);
        self.hash(parent);
        let here = self.at_mut(path);
        let inode = here.inode;
        let next = here.next;
        let previous = here.previous;
        (here.inode, here.next, here.previous) = (NONE, NONE, NONE);
        if self.at(parent).first == path.0 {
            self.at_mut(parent).first = next;
            return inode;
        }
        self.at_mut(PathId(previous)).next = next;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: &[u8; 12] = b"aabcdefghijk";

    proptest! {
        #[test]
        fn names_are_found_in_any_order(
            steps in prop::collection::vec((0usize..3, 0usize..11, 1usize..3, 0u8..8), 0..150),
            is_ascending: bool,
        ) {
            let mut paths = Paths::new(0);
            let mut directories = vec![ROOT];
            for name in [&b"x"[..], b"y"] {
                let path = paths.intern(ROOT, name).unwrap();
                paths.occupy(path, 0);
                directories.push(path);
            }
            let mut known: HashMap<(usize, &[u8]), (PathId, bool)> = HashMap::new();
            let mut steps = steps;
            if is_ascending {
                steps.sort_by_key(|(_, at, length, _)| &NAMES[*at..at + length]);
            }
            for (number, (directory, at, length, action)) in (1..).zip(steps) {
                let parent = directories[directory];
                let name = &NAMES[at..at + length];
                let before = known.get(&(directory, name)).copied();
                let occupied = before.filter(|(_, is_occupied)| *is_occupied).map(|(path, _)| path.0);
                if action < 2 {
                    prop_assert_eq!(paths.child(parent, name).map(|path| path.0), occupied);
                    continue;
                }
                let path = paths.intern(parent, name).unwrap();
                prop_assert!(before.is_none_or(|(known, _)| known == path) && paths.name(path) == name);
                if occupied.is_some() {
                    paths.vacate(path);
                }
                // As for a hard link, whose target is looked up before its name has a file.
                if action == 2 {
                    paths.child(parent, b"a");
                }
                let stays = action > 3 || occupied.is_none();
                if stays {
                    paths.occupy(path, number);
                }
                known.insert((directory, name), (path, stays));
                let list = std::iter::successors(paths.first(parent), |path| paths.next(*path)).map(|path| path.0);
                let mut list: Vec<u32> = list.filter(|path| *path > 2).collect();
                let of_directory = known.iter().filter(|((of, _), (_, is_occupied))| *of == directory && *is_occupied);
                let mut expected: Vec<u32> = of_directory.map(|(_, (path, _))| path.0).collect();
                list.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(list, expected);
                prop_assert_eq!(paths.inode(path), stays.then_some(number));
            }
        }
    }
}
