//! The tree that the consumer builds from a layer's entries (soci-snapshotter, metadata/reader.go
//! initNodes), to find the layers whose tree would be wrong or refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use super::consumer::{MAX_KEY, shown};
use super::{Unservable, UnservableCode};
use crate::ztoc::{FileKind, FileMetadata};

const ROOT: u32 = 0;

struct Tree<'a> {
    children: HashMap<(u32, &'a [u8]), u32>,
    nodes: Vec<Node>,
    /// The directory of the previous entry, usually also that of the next one.
    recent: Option<(Vec<&'a [u8]>, u32)>,
}

#[derive(Clone, Copy)]
struct Node {
    is_dir: bool,
    /// Whether a hard link leads here too.
    is_linked: bool,
}

/// Builds the tree entry by entry.
///
/// # Errors
/// The entry that the consumer would reject or misplace.
pub(super) fn check(files: &[FileMetadata]) -> Result<(), Unservable> {
    let mut tree = Tree {
        children: HashMap::with_capacity(files.len()),
        nodes: vec![Node { is_dir: true, is_linked: false }],
        recent: None,
    };
    files.iter().try_for_each(|file| tree.add(file))
}

impl<'a> Tree<'a> {
    fn add(&mut self, file: &'a FileMetadata) -> Result<(), Unservable> {
        let path = clean(&file.name);
        let is_dir = file.kind == FileKind::Directory;
        let Some((&base, parents)) = path.split_last() else {
            if is_dir {
                return Ok(());
            }
            let reason = format!("{} is the root but not a directory", shown(&file.name));
            return Err(Unservable::new(UnservableCode::NamesRoot, reason));
        };
        if path.iter().any(|part| part.len() > MAX_KEY) {
            return Err(Unservable::new(
                UnservableCode::LongName,
                format!("the name {} is too long", shown(&file.name)),
            ));
        }
        let target = if file.kind == FileKind::HardLink { Some(self.link_target(file, &path)?) } else { None };
        let parent = self.directory(parents, file)?;
        match (target, self.children.entry((parent, base))) {
            (Some(target), slot) => {
                self.recent = self.recent.take().filter(|_| matches!(slot, Slot::Vacant(_)));
                slot.insert_entry(target);
                self.nodes[target as usize].is_linked = true;
            }
            // The consumer turns the existing node into the directory, including all other links to
            // it.
            (None, Slot::Occupied(slot)) if is_dir => {
                let node = &mut self.nodes[*slot.get() as usize];
                if !node.is_dir && node.is_linked {
                    let reason = format!("the directory {} replaces a file with hard links", shown(&file.name));
                    return Err(Unservable::new(UnservableCode::HardLinkTarget, reason));
                }
                node.is_dir = true;
            }
            (None, slot) => {
                self.recent = self.recent.take().filter(|_| matches!(slot, Slot::Vacant(_)));
                slot.insert_entry(self.nodes.len() as u32);
                self.nodes.push(Node { is_dir, is_linked: false });
            }
        }
        Ok(())
    }

    /// The target of a hard link: an earlier entry of the same layer that is not a directory.
    fn link_target(&self, file: &FileMetadata, path: &[&[u8]]) -> Result<u32, Unservable> {
        let target = clean(&file.linkname);
        let node = target.iter().try_fold(ROOT, |node, part| self.children.get(&(node, *part)).copied());
        let problem = match node {
            _ if target == path => "itself",
            None => "something that is not an earlier entry of this layer",
            Some(node) if self.nodes[node as usize].is_dir => "a directory",
            Some(node) => return Ok(node),
        };
        let reason = format!("{} is a hard link to {problem}: {}", shown(&file.name), shown(&file.linkname));
        Err(Unservable::new(UnservableCode::HardLinkTarget, reason))
    }

    /// The directory at `path`, created if it does not exist. The recent directory is forgotten
    /// when an entry reuses an existing name.
    fn directory(&mut self, path: &[&'a [u8]], file: &FileMetadata) -> Result<u32, Unservable> {
        if let Some((recent, node)) = &self.recent
            && recent == path
        {
            return Ok(*node);
        }
        let mut node = ROOT;
        for &part in path {
            let fresh = self.nodes.len() as u32;
            node = *self.children.entry((node, part)).or_insert(fresh);
            if node == fresh {
                self.nodes.push(Node { is_dir: true, is_linked: false });
            } else if !self.nodes[node as usize].is_dir {
                let reason =
                    format!("{} is below {}, which is not a directory in this layer", shown(&file.name), shown(part));
                return Err(Unservable::new(UnservableCode::BelowNonDirectory, reason));
            }
        }
        self.recent = Some((path.to_vec(), node));
        Ok(node)
    }
}

/// The parts of a path below the root, as Go's filepath.Clean leaves them.
pub fn clean(name: &[u8]) -> Vec<&[u8]> {
    below_root(name.split(|&b| b == b'/'))
}

/// Cleans a path that is already split into parts.
pub(crate) fn below_root<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let mut clean = Vec::with_capacity(8);
    for part in parts {
        match part {
            b"" | b"." => {}
            b".." => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    clean
}
