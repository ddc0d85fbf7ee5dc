//! Files while layers are applied.
//!
//! They are the nodes of the tree, in the order in which entries create them. What only some of
//! them have is kept apart until the tree is finished.

use std::collections::BTreeMap;

use super::model::{Directory, Node, NodeId, NodeKind, SECOND};
use super::xattrs::CAPABILITY;
use crate::time::Time;

pub(super) struct Inodes<'a> {
    /// Without extended attributes, the targets of symbolic links, and what follows from the names
    /// in a directory: those are set at the end.
    pub nodes: Vec<Node>,
    /// The targets of symbolic links, by inode in ascending order.
    pub targets: Vec<(u32, &'a [u8])>,
    /// The extended attributes, by inode and name.
    pub xattrs: BTreeMap<(u32, &'a [u8]), &'a [u8]>,
}

impl<'a> Inodes<'a> {
    /// Contains only the root.
    pub(super) fn new() -> Inodes<'a> {
        Inodes { nodes: vec![created(directory_kind(), 0)], targets: Vec::new(), xattrs: BTreeMap::new() }
    }

    /// lchown(2): an id of 2^32-1 changes nothing, and files lose their capabilities.
    pub(super) fn set_owner(&mut self, inode: u32, uid: u32, gid: u32) {
        let Some(node) = self.nodes.get_mut(inode as usize) else { return };
        if uid != u32::MAX {
            node.uid = uid;
        }
        if gid != u32::MAX {
            node.gid = gid;
        }
        if !node.kind.is_directory() {
            self.xattrs.remove(&(inode, CAPABILITY));
        }
    }

    /// The target of a symbolic link. None for other files.
    pub(super) fn target(&self, inode: u32) -> Option<&'a [u8]> {
        let at = self.targets.binary_search_by_key(&inode, |(link, _)| *link).ok()?;
        Some(self.targets[at].1)
    }
}

/// A directory whose names are not known yet.
pub(super) fn directory_kind() -> NodeKind {
    NodeKind::Directory(Directory { names: 0..0, parent: NodeId(0) })
}

/// A new file as root would create it, before its attributes are set. It has one path.
pub(super) fn created(kind: NodeKind, gid: u32) -> Node {
    let mode = if matches!(kind, NodeKind::Symlink(_)) { 0o777 } else { 0o755 };
    Node { kind, mode, uid: 0, gid, nlink: 1, origin: None, mtime: 0 }
}

/// The time that containerd would set, in nanoseconds: from the epoch to the last nanosecond that
/// fits into 63 bits (in 2262). Any other time becomes the epoch.
pub(super) fn bounded(time: Option<Time>) -> u64 {
    let nanos = |time: Time| {
        let seconds = u64::try_from(time.seconds).ok()?;
        seconds.checked_mul(SECOND)?.checked_add(time.nanos.into()).filter(|nanos| *nanos <= i64::MAX as u64)
    };
    time.and_then(nanos).unwrap_or_default()
}

/// The numbers of the device that mknod(2) creates: 12 and 20 bits. None if they do not fit into 32
/// bits.
pub(super) fn device(major: i64, minor: i64) -> Option<(u32, u32)> {
    Some((u32::try_from(major).ok()? & 0xfff, u32::try_from(minor).ok()? & 0xf_ffff))
}
