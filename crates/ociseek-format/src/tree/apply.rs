//! Applies layers one after the other, entry by entry, as containerd does in a directory
//! (containerd 2.4, pkg/archive/tar.go applyNaive), but only to names and attributes in memory.
//!
//! A single layer for overlayfs keeps what it hides of lower layers: whiteouts become character
//! devices with the number 0/0, and directories that hide their lower content get an attribute
//! (Linux, Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories"). A
//! directory is opaque if it has a marker, or if the layer itself has removed or replaced what had
//! its name.

use std::collections::HashSet;

use super::OpaqueXattr;
use super::error::{TreeError, TreeFault, TreeWarnings};
use super::lookup::{InodeKind, Lookup, TarPath};
use super::model::{
    Extent, Inodes, Node, NodeKind, SparseExtent, XattrRule, bounded, created, device,
    directory_kind, judge_xattr, xattr_of,
};
use super::paths::{NAME_MAX, PATH_MAX, PathId, Paths, ROOT};
use crate::layer::map::Entries;
use crate::offset::LayerId;
use crate::path::WHITEOUT;
use crate::tar::SparseMap;
use crate::ztoc::{FileKind, FileMetadata};

/// Marks its directory as opaque: it hides everything from lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The limit for directories that no layer has an entry for. A name of a few kilobytes can imply
/// thousands of them.
const MAX_IMPLIED: u32 = 1 << 20;
/// The limits for steps through symbolic links and opaque directories: in total, plus an allowance
/// for each entry.
const WORK: u64 = 10_000_000;
const WORK_PER_ENTRY: u64 = 100;

pub(super) struct Applier<'a> {
    pub paths: Paths<'a>,
    pub inodes: Inodes<'a>,
    pub warnings: TreeWarnings,
    tree_use: TreeUse,
    /// The directories and names of files that the layer has removed, in a tree for overlayfs.
    hidden: HashSet<(PathId, &'a [u8])>,
    implied: u32,
    work: u64,
    /// The directory of the previous entry, by its path: neighbours in a tar usually share it. An
    /// entry cannot remove its own directory. None if the path had symbolic links.
    recent: Option<(Vec<&'a [u8]>, PathId)>,
    /// The same directory, as the name of that entry spells it.
    spelled: Option<&'a [u8]>,
    /// Whether the names of the layer's directories may not lead to them any more: a directory was
    /// removed, or such a name has symbolic links.
    is_rearranged: bool,
    /// A buffer for the parts of a path. It is reused, because layers have many entries.
    parts: Vec<&'a [u8]>,
}

/// What the tree is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TreeUse {
    /// An image: the layers are flattened.
    Image,
    /// A single layer, on which overlayfs puts others.
    Overlay(OpaqueXattr),
}

/// The value of the attribute of opaque directories.
const OPAQUE_VALUE: &[u8] = b"y";

/// The entry that is being applied.
#[derive(Clone, Copy)]
struct CurrentEntry<'a> {
    file: &'a FileMetadata,
    sparse: Option<&'a SparseMap>,
    layer: LayerId,
    number: u32,
}

impl<'a> Applier<'a> {
    pub(super) fn new(tree_use: TreeUse) -> Applier<'a> {
        Applier {
            tree_use,
            hidden: HashSet::new(),
            paths: Paths::new(0),
            inodes: Inodes::new(),
            warnings: TreeWarnings::default(),
            implied: 0,
            work: WORK,
            recent: None,
            spelled: None,
            is_rearranged: false,
            parts: Vec::new(),
        }
    }

    /// Applies the next layer.
    ///
    /// # Errors
    /// The entry that containerd could not apply.
    pub(super) fn layer(&mut self, layer: LayerId, listed: Entries<'a>) -> Result<(), TreeError> {
        self.work =
            self.work.saturating_add(WORK_PER_ENTRY.saturating_mul(listed.files.len() as u64));
        self.paths.reserve(listed.files.len());
        self.inodes.nodes.reserve(listed.files.len());
        let failed = |at: CurrentEntry<'_>, fault| TreeError {
            layer: at.layer,
            entry: at.number,
            name: at.file.name.clone(),
            fault,
        };
        let entries = || {
            let numbered = (0..).zip(listed.files);
            numbered.map(|(number, file)| CurrentEntry {
                file,
                sparse: listed.sparse(number),
                layer,
                number,
            })
        };
        self.is_rearranged = false;
        let mut directories = Vec::new();
        for entry in entries() {
            let written = self.entry(entry).map_err(|fault| failed(entry, fault))?;
            if written && entry.file.kind == FileKind::Directory {
                self.is_rearranged |= self.recent.is_none();
                directories.push(entry);
            }
        }
        // containerd sets the times of directories again at the end, looked up by name. Where names
        // lead to the same directories as before, that changes nothing here.
        if !self.is_rearranged {
            directories.clear();
        }
        for entry in directories {
            self.set_time_again(entry.file).map_err(|fault| failed(entry, fault))?;
        }
        let last = entries().last();
        self.put_whiteouts().or_else(|fault| last.map_or(Ok(()), |last| Err(failed(last, fault))))
    }

    /// Returns false if the entry does not create a file under its name: whiteouts, and entries for
    /// the root.
    fn entry(&mut self, entry: CurrentEntry<'a>) -> Result<bool, TreeFault> {
        let Some((parent, base)) = self.place(&entry.file.name)? else { return Ok(false) };
        if base == OPAQUE {
            return self.make_opaque(parent, entry.layer).map(|()| false);
        }
        if let Some(hidden) = base.strip_prefix(WHITEOUT) {
            return self.whiteout(parent, hidden).map(|()| false);
        }
        let path = self.paths.intern(parent, base)?;
        let mut inode = self.paths.inode(path);
        let is_directory = entry.file.kind == FileKind::Directory;
        let mut hides = false;
        if let Some(old) = inode
            && !(is_directory && self.is_directory(old))
        {
            hides = is_directory;
            self.remove(path);
            inode = None;
        }
        let inode = match inode {
            Some(directory) => directory,
            None => {
                let inode = self.create(entry, parent)?;
                self.paths.occupy(path, inode);
                if hides || (is_directory && self.hidden.contains(&(parent, base))) {
                    self.mark_opaque(inode);
                }
                inode
            }
        };
        self.set_attributes(inode, entry)?;
        self.paths.write(path, entry.layer);
        Ok(true)
    }

    /// The directory of an entry, and its name there. None for the root.
    fn place(&mut self, name: &'a [u8]) -> Result<Option<(PathId, &'a [u8])>, TreeFault> {
        let (directory, base) = split(name);
        if let (Some((_, recent)), true) =
            (&self.recent, self.spelled.is_some() && self.spelled == directory)
            && !matches!(base, b"" | b"." | b"..")
            && !base.contains(&0)
        {
            return Ok(Some((*recent, base)));
        }
        if name.contains(&0) {
            return Err(TreeFault::Nul);
        }
        let mut path = TarPath::clean_in(std::mem::take(&mut self.parts), name);
        let Some(clean_base) = path.pop() else { return Ok(None) };
        let parent = self.parent(path)?;
        // The last part of a name with dots may be in another directory than it says.
        self.spelled = directory.filter(|_| clean_base == base);
        Ok(Some((parent, clean_base)))
    }

    /// The directory at `path`, found through symbolic links and created if it does not exist.
    fn parent(&mut self, path: TarPath<'a>) -> Result<PathId, TreeFault> {
        if let Some((_, directory)) = self.recent.as_ref().filter(|(recent, _)| path.is(recent)) {
            self.parts = path.into_parts();
            return Ok(*directory);
        }
        let known = self.recent.as_ref().map_or((ROOT, 0), |(recent, directory)| {
            let shared = path.shared(recent);
            (self.paths.above(*directory, recent.len() - shared), shared)
        });
        let (parts, prefix) = self.lookup().locate(path.clone(), known)?;
        let prefix = prefix.ok_or(TreeFault::LinkLoop)?;
        let mut directory = prefix.deepest;
        if !self.paths.inode(directory).is_some_and(|inode| self.is_directory(inode)) {
            return Err(TreeFault::NotDirectory);
        }
        for &part in &parts[parts.len() - prefix.missing..] {
            self.implied += 1;
            if self.implied > MAX_IMPLIED {
                return Err(TreeFault::TooManyImplied(MAX_IMPLIED));
            }
            let path = self.paths.intern(directory, part)?;
            let inode = self.add(created(directory_kind(), self.inherited_group(directory)))?;
            self.paths.occupy(path, inode);
            if self.hidden.contains(&(directory, part)) {
                self.mark_opaque(inode);
            }
            directory = path;
        }
        self.recent = path.is(&parts).then_some((parts, directory));
        Ok(directory)
    }

    /// Creates the entry's file, or adds a name to a file for a hard link.
    fn create(&mut self, entry: CurrentEntry<'a>, parent: PathId) -> Result<u32, TreeFault> {
        let file = entry.file;
        let kind = match file.kind {
            FileKind::HardLink => return self.link(&file.linkname),
            FileKind::Directory => directory_kind(),
            FileKind::Regular => match entry.sparse {
                Some(map) => NodeKind::Sparse(Box::new(SparseExtent {
                    layer: entry.layer,
                    offset: file.offset,
                    map: map.clone(),
                })),
                None => NodeKind::File(Extent {
                    layer: entry.layer,
                    offset: file.offset,
                    size: file.size,
                }),
            },
            FileKind::Symlink => {
                let target = &file.linkname;
                if target.is_empty() || target.len() > PATH_MAX || target.contains(&0) {
                    return Err(TreeFault::LinkTarget);
                }
                NodeKind::Symlink(Box::default())
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo => {
                let (major, minor) = device(file.devmajor, file.devminor)
                    .ok_or(TreeFault::Device(file.devmajor, file.devminor))?;
                match file.kind {
                    FileKind::CharDevice => NodeKind::CharDevice { major, minor },
                    FileKind::BlockDevice => NodeKind::BlockDevice { major, minor },
                    _ => NodeKind::Fifo,
                }
            }
        };
        let inode = self.add(created(kind, self.inherited_group(parent)))?;
        if file.kind == FileKind::Symlink {
            self.inodes.targets.push((inode, &file.linkname));
        }
        Ok(inode)
    }

    /// Adds a name to the target of a hard link. Symbolic links are followed except in the last
    /// part.
    fn link(&mut self, target: &'a [u8]) -> Result<u32, TreeFault> {
        let missing = || TreeFault::LinkToNothing(target.into());
        if target.contains(&0) {
            return Err(missing());
        }
        let (parents, base) = match target.iter().rposition(|&b| b == b'/') {
            Some(slash) => (&target[..=slash], &target[slash + 1..]),
            None => (&target[..0], target),
        };
        let mut path = self.lookup().root_path(TarPath::new(parents))?;
        match base {
            b"" | b"." => {}
            b".." => {
                path.pop();
            }
            base => path.push(base),
        }
        let file = match path.split_last() {
            None => ROOT,
            Some((last, parents)) => {
                let parent = self
                    .lookup()
                    .find(parents)?
                    .filter(|prefix| prefix.missing == 0)
                    .ok_or_else(missing)?;
                self.paths.child(parent.deepest, last).ok_or_else(missing)?
            }
        };
        let inode = self.paths.inode(file).ok_or_else(missing)?;
        match self.inodes.nodes.get_mut(inode as usize) {
            Some(node) if !node.kind.is_directory() => node.nlink += 1,
            _ => return Err(TreeFault::LinkToDirectory(target.into())),
        }
        Ok(inode)
    }

    /// Sets an entry's owner, attributes, permissions and time, in this order.
    fn set_attributes(&mut self, inode: u32, entry: CurrentEntry<'a>) -> Result<(), TreeFault> {
        let Applier { inodes, warnings, .. } = self;
        let CurrentEntry { file, layer, .. } = entry;
        inodes.set_owner(inode, file.uid, file.gid);
        let Inodes { nodes, xattrs, .. } = inodes;
        let Some(node) = nodes.get_mut(inode as usize) else { return Ok(()) };
        let is_plain =
            matches!(node.kind, NodeKind::File(_) | NodeKind::Sparse(_) | NodeKind::Directory(_));
        for record in &file.pax {
            if matches!(&record.key[..], b"uid" | b"gid") && !fits(&record.value) {
                warnings.owner_wrapped(layer, file);
            }
            let Some((name, value)) = xattr_of(record) else { continue };
            match judge_xattr(name, value, is_plain) {
                XattrRule::Set => {
                    xattrs.insert((inode, name), value);
                }
                XattrRule::Ignore(why) => warnings.xattr_ignored(layer, file, name, why),
                XattrRule::Refuse(why) => return Err(TreeFault::Xattr { name: name.into(), why }),
            }
        }
        if !matches!(node.kind, NodeKind::Symlink(_)) {
            node.mode = file.mode as u32 & 0o7777;
        }
        node.mtime = bounded(file.mtime);
        node.origin = Some(layer);
        Ok(())
    }

    fn set_time_again(&mut self, file: &'a FileMetadata) -> Result<(), TreeFault> {
        let (_, prefix) = self.lookup().locate(TarPath::clean(&file.name), (ROOT, 0))?;
        let prefix = prefix.filter(|prefix| prefix.missing == 0).ok_or(TreeFault::DirectoryGone)?;
        let node = self
            .paths
            .inode(prefix.deepest)
            .and_then(|inode| self.inodes.nodes.get_mut(inode as usize));
        if let Some(node) = node {
            node.mtime = bounded(file.mtime);
        }
        Ok(())
    }

    fn whiteout(&mut self, parent: PathId, hidden: &'a [u8]) -> Result<(), TreeFault> {
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(TreeFault::Whiteout);
        }
        if hidden.len() > NAME_MAX {
            return Err(TreeFault::NameTooLong);
        }
        if let Some(path) = self.paths.child(parent, hidden) {
            self.remove(path);
        }
        if matches!(self.tree_use, TreeUse::Overlay(_)) {
            self.hidden.insert((parent, hidden));
        }
        Ok(())
    }

    /// Puts whiteouts where the layer hides a file of lower ones and has none itself, but not below
    /// opaque directories: overlayfs would list them there.
    fn put_whiteouts(&mut self) -> Result<(), TreeFault> {
        for (parent, name) in std::mem::take(&mut self.hidden) {
            let in_directory =
                self.paths.inode(parent).is_some_and(|inode| self.is_directory(inode));
            if !in_directory
                || self.paths.child(parent, name).is_some()
                || self.is_below_opaque(parent)?
            {
                continue;
            }
            let path = match self.paths.intern(parent, name) {
                // No lower layer has such a path either.
                Err(TreeFault::PathTooLong) => continue,
                path => path?,
            };
            let whiteout = NodeKind::CharDevice { major: 0, minor: 0 };
            let inode = self.add(Node { mode: 0, ..created(whiteout, 0) })?;
            self.paths.occupy(path, inode);
        }
        Ok(())
    }

    /// Whether a directory or one above it is opaque. The root has no name in a directory, so
    /// overlayfs ignores a mark there.
    fn is_below_opaque(&mut self, directory: PathId) -> Result<bool, TreeFault> {
        let TreeUse::Overlay(xattr) = self.tree_use else { return Ok(false) };
        let mut path = directory;
        while path != ROOT {
            self.work = self.work.checked_sub(1).ok_or(TreeFault::TooMuchWork)?;
            let inode = self.paths.inode(path);
            if inode.is_some_and(|inode| self.inodes.xattrs.contains_key(&(inode, xattr.name()))) {
                return Ok(true);
            }
            path = self.paths.above(path, 1);
        }
        Ok(false)
    }

    /// Marks a directory as opaque for overlayfs, if the tree is for that.
    fn mark_opaque(&mut self, inode: u32) {
        if let TreeUse::Overlay(xattr) = self.tree_use {
            self.inodes.xattrs.insert((inode, xattr.name()), OPAQUE_VALUE);
        }
    }

    /// Removes the content of `directory`, except for what `layer` itself has written. A single
    /// layer is only marked: there is nothing else in it.
    fn make_opaque(&mut self, directory: PathId, layer: LayerId) -> Result<(), TreeFault> {
        if let (TreeUse::Overlay(_), Some(inode)) = (self.tree_use, self.paths.inode(directory)) {
            self.mark_opaque(inode);
            return Ok(());
        }
        if !self.paths.make_opaque(directory, layer) {
            return Ok(());
        }
        let mut directories = vec![directory];
        while let Some(directory) = directories.pop() {
            let mut next = self.paths.first(directory);
            while let Some(path) = next {
                self.work = self.work.checked_sub(1).ok_or(TreeFault::TooMuchWork)?;
                next = self.paths.next(path);
                if self.paths.is_written(path, layer) {
                    directories.push(path);
                } else {
                    self.remove(path);
                }
            }
        }
        Ok(())
    }

    /// Removes a path and everything below it.
    fn remove(&mut self, path: PathId) {
        let mut open = vec![path];
        while let Some(&last) = open.last() {
            if let Some(inside) = self.paths.first(last) {
                open.push(inside);
                continue;
            }
            open.pop();
            let inode = self.paths.vacate(last);
            if let Some(node) = self.inodes.nodes.get_mut(inode as usize) {
                node.nlink -= 1;
                self.is_rearranged |= node.kind.is_directory();
            }
        }
    }

    fn add(&mut self, node: Node) -> Result<u32, TreeFault> {
        let number = u32::try_from(self.inodes.nodes.len())
            .ok()
            .filter(|&n| n != u32::MAX)
            .ok_or(TreeFault::TooManyNames)?;
        self.inodes.nodes.push(node);
        Ok(number)
    }

    fn is_directory(&self, inode: u32) -> bool {
        self.inodes.nodes.get(inode as usize).is_some_and(|node| node.kind.is_directory())
    }

    /// The group that Linux gives to a new file in a directory: root's, or the directory's own if
    /// it is setgid.
    fn inherited_group(&self, directory: PathId) -> u32 {
        let directory =
            self.paths.inode(directory).and_then(|inode| self.inodes.nodes.get(inode as usize));
        directory
            .filter(|directory| directory.mode & 0o2000 != 0)
            .map_or(0, |directory| directory.gid)
    }

    fn lookup(&mut self) -> Lookup<'_, 'a, impl Fn(u32) -> InodeKind<'a>> {
        let Applier { paths, inodes, work, .. } = self;
        let seen = |inode: u32| match inodes.nodes.get(inode as usize).map(|node| &node.kind) {
            Some(NodeKind::Directory(_)) => InodeKind::Directory,
            Some(NodeKind::Symlink(_)) => {
                InodeKind::Symlink(inodes.target(inode).unwrap_or_default())
            }
            _ => InodeKind::Other,
        };
        Lookup { paths, seen, work }
    }
}

/// Splits a name at its last slash into a directory and a base name, ignoring one trailing slash.
/// Without a slash, there is no directory.
fn split(name: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let name = name.strip_suffix(b"/").unwrap_or(name);
    match memchr::memrchr(b'/', name) {
        Some(slash) => (Some(&name[..slash]), &name[slash + 1..]),
        None => (None, name),
    }
}

/// Whether a PAX record's value is a 32-bit id.
fn fits(value: &[u8]) -> bool {
    value.is_empty() || std::str::from_utf8(value).is_ok_and(|text| text.parse::<u32>().is_ok())
}
