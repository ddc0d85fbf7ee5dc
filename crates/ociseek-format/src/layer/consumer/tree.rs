//! The tree that the consumer builds from a layer's entries (soci-snapshotter, metadata/reader.go
//! initNodes), to find the layers whose tree would be wrong or refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use super::{as_empty_file, is_linked_whiteout, xattrs};
use crate::layer::{MAX_KEY, UnservableCode, UnservableReason};
use crate::path::{clean, clean_into, shown};
use crate::time::Time;
use crate::ztoc::{FileKind, FileMetadata};

const ROOT: u32 = 0;

struct Tree<'a> {
    children: HashMap<(u32, &'a [u8]), u32>,
    nodes: Vec<Node>,
    /// A buffer for the parts of a name. It is reused, because layers have many entries.
    parts: Vec<&'a [u8]>,
    /// The directory of the previous entry, usually also that of the next one: its path and its
    /// node. None after an entry reused a name, which may have replaced that directory.
    recent: (Vec<&'a [u8]>, Option<u32>),
}

#[derive(Clone, Copy)]
struct Node {
    is_dir: bool,
    /// Whether a hard link leads here too.
    is_linked: bool,
    stored: Stored,
}

/// What the consumer's database stores of an entry. It does not store zeros, so they do not replace
/// what an earlier entry left in the same node (metadata/db.go writeNodeEntry).
#[derive(Clone, Copy, Default)]
struct Stored {
    has_uid: bool,
    has_gid: bool,
    has_mtime: bool,
    xattrs: StoredXattrs,
}

/// The first xattr, in no certain order, is stored apart from the others. An entry with one xattr
/// replaces the first one, and an entry with several replaces all.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum StoredXattrs {
    #[default]
    None,
    One,
    Several,
}

/// When Go's time.Time is zero: the start of the year 1.
const GO_ZERO_TIME: Time = Time { seconds: -62_135_596_800, nanos: 0 };

impl Stored {
    fn of(file: &FileMetadata) -> Stored {
        let xattrs = match xattrs(&file.pax).count() {
            0 => StoredXattrs::None,
            1 => StoredXattrs::One,
            _ => StoredXattrs::Several,
        };
        Stored {
            has_uid: file.uid != 0,
            has_gid: file.gid != 0,
            has_mtime: file.mtime.is_some_and(|time| time != GO_ZERO_TIME),
            xattrs,
        }
    }

    /// What a node keeps of its old entry if `new` is written to it.
    fn kept_beside(self, new: Stored) -> Option<&'static str> {
        if self.has_uid && !new.has_uid || self.has_gid && !new.has_gid {
            Some("owner")
        } else if self.xattrs > new.xattrs {
            Some("extended attributes")
        } else {
            (self.has_mtime && !new.has_mtime).then_some("time of modification")
        }
    }
}

/// Builds the tree entry by entry.
///
/// # Errors
/// The entry that the consumer would reject or misplace.
pub(in crate::layer) fn check(files: &[FileMetadata]) -> Result<(), UnservableReason> {
    let mut tree = Tree::new(files.len());
    files.iter().try_for_each(|file| tree.add_named(file, file))
}

/// The whiteouts that are hard links which the consumer would reject, such as one to a file of a
/// lower layer. As another kind of file they would do the same.
pub(in crate::layer) fn loose_whiteouts(files: &[FileMetadata]) -> Vec<usize> {
    let mut tree = Tree::new(files.len());
    let mut loose = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let is_loose =
            is_linked_whiteout(file) && tree.link_target(file, &clean(&file.name)).is_err();
        let added = if is_loose {
            loose.push(number);
            tree.add_named(file, &as_empty_file(file.clone()))
        } else {
            tree.add_named(file, file)
        };
        // The whole layer is rejected for another reason.
        if added.is_err() {
            break;
        }
    }
    loose
}

impl Node {
    /// A directory without an entry.
    fn directory() -> Node {
        Node { is_dir: true, is_linked: false, stored: Stored::default() }
    }

    /// Writes the entry of a directory to the node, which may have an entry already.
    ///
    /// # Errors
    /// If it would keep something of the old entry.
    fn overwrite(&mut self, file: &FileMetadata) -> Result<(), UnservableReason> {
        let new = Stored::of(file);
        if let Some(field) = self.stored.kept_beside(new) {
            let reason = format!(
                "the directory {} replaces an earlier entry, of which consumers would keep the {field}",
                shown(&file.name)
            );
            return Err(UnservableReason::new(UnservableCode::RepeatedDirectory, reason));
        }
        self.stored = new;
        Ok(())
    }
}

impl<'a> Tree<'a> {
    fn new(files: usize) -> Tree<'a> {
        Tree {
            children: HashMap::with_capacity(files),
            nodes: vec![Node::directory()],
            parts: Vec::new(),
            recent: (Vec::new(), Some(ROOT)),
        }
    }

    /// Adds an entry under the name of `named`.
    fn add_named(
        &mut self,
        named: &'a FileMetadata,
        file: &FileMetadata,
    ) -> Result<(), UnservableReason> {
        let mut parts = std::mem::take(&mut self.parts);
        clean_into(&mut parts, &named.name);
        let added = self.add(file, &parts);
        self.parts = parts;
        added
    }

    fn add(&mut self, file: &FileMetadata, path: &[&'a [u8]]) -> Result<(), UnservableReason> {
        let is_dir = file.kind == FileKind::Directory;
        let Some((&base, parents)) = path.split_last() else {
            if is_dir {
                return self.nodes[ROOT as usize].overwrite(file);
            }
            let reason = format!("{} is the root but not a directory", shown(&file.name));
            return Err(UnservableReason::new(UnservableCode::NamesRoot, reason));
        };
        if path.iter().any(|part| part.len() > MAX_KEY) {
            return Err(UnservableReason::new(
                UnservableCode::LongName,
                format!("the name {} is too long", shown(&file.name)),
            ));
        }
        let target = if file.kind == FileKind::HardLink {
            Some(self.link_target(file, path)?)
        } else {
            None
        };
        let parent = self.directory(parents, file)?;
        match (target, self.children.entry((parent, base))) {
            (Some(target), slot) => {
                self.recent.1 = self.recent.1.filter(|_| matches!(slot, Slot::Vacant(_)));
                slot.insert_entry(target);
                self.nodes[target as usize].is_linked = true;
            }
            // The consumer turns the existing node into the directory, including all other links to
            // it.
            (None, Slot::Occupied(slot)) if is_dir => {
                let node = &mut self.nodes[*slot.get() as usize];
                if !node.is_dir && node.is_linked {
                    let reason = format!(
                        "the directory {} replaces a file with hard links",
                        shown(&file.name)
                    );
                    return Err(UnservableReason::new(UnservableCode::HardLinkTarget, reason));
                }
                node.is_dir = true;
                node.overwrite(file)?;
            }
            (None, slot) => {
                self.recent.1 = self.recent.1.filter(|_| matches!(slot, Slot::Vacant(_)));
                slot.insert_entry(self.nodes.len() as u32);
                self.nodes.push(Node { is_dir, is_linked: false, stored: Stored::of(file) });
            }
        }
        Ok(())
    }

    /// The target of a hard link: an earlier entry of the same layer that is not a directory.
    fn link_target(&self, file: &FileMetadata, path: &[&[u8]]) -> Result<u32, UnservableReason> {
        let target = clean(&file.linkname);
        let node =
            target.iter().try_fold(ROOT, |node, part| self.children.get(&(node, *part)).copied());
        let problem = match node {
            _ if target == path => "itself",
            None => "something that is not an earlier entry of this layer",
            Some(node) if self.nodes[node as usize].is_dir => "a directory",
            Some(node) => return Ok(node),
        };
        let reason =
            format!("{} is a hard link to {problem}: {}", shown(&file.name), shown(&file.linkname));
        Err(UnservableReason::new(UnservableCode::HardLinkTarget, reason))
    }

    /// The directory at `path`, created if it does not exist. The recent directory is forgotten
    /// when an entry reuses an existing name.
    fn directory(
        &mut self,
        path: &[&'a [u8]],
        file: &FileMetadata,
    ) -> Result<u32, UnservableReason> {
        if let (recent, Some(node)) = &self.recent
            && recent == path
        {
            return Ok(*node);
        }
        let mut node = ROOT;
        for &part in path {
            let fresh = self.nodes.len() as u32;
            node = *self.children.entry((node, part)).or_insert(fresh);
            if node == fresh {
                self.nodes.push(Node::directory());
            } else if !self.nodes[node as usize].is_dir {
                let reason = format!(
                    "{} is below {}, which is not a directory in this layer",
                    shown(&file.name),
                    shown(part)
                );
                return Err(UnservableReason::new(UnservableCode::BelowNonDirectory, reason));
            }
        }
        let (recent, recent_node) = &mut self.recent;
        path.clone_into(recent);
        *recent_node = Some(node);
        Ok(node)
    }
}
