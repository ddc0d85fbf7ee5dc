//! Converts the result of applying layers to the final tree: without removed files, and with sorted
//! names.

use super::apply::Applier;
use super::inode::InodeContent;
use super::model::{Directory, Node, NodeId, NodeKind};
use super::paths::{PathId, ROOT};
use super::{Name, Tree};

const UNSEEN: u32 = u32::MAX;

pub(super) fn finish(applier: Applier<'_>) -> Tree {
    let Applier { paths, inodes, warnings, .. } = applier;
    let mut names: Vec<Name> = Vec::new();
    let mut text = Vec::new();
    // The number of each inode in the tree. Numbers are assigned breadth first.
    let mut numbers = vec![UNSEEN; inodes.len()];
    let mut order: Vec<u32> = vec![0];
    let mut named_by: Vec<u32> = vec![0];
    numbers[0] = 0;
    let mut directories: Vec<(PathId, NodeId, NodeId)> = vec![(ROOT, Tree::ROOT, Tree::ROOT)];
    let mut listed: Vec<(std::ops::Range<u32>, u32)> = Vec::new();
    let mut done = 0;
    let mut children: Vec<(&[u8], PathId)> = Vec::new();
    while let Some(&(path, id, _)) = directories.get(done) {
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
                *number = order.len() as u32;
                order.push(inode);
                named_by.push(names.len() as u32);
            }
            let node = NodeId(*number);
            if matches!(inodes[inode as usize].content, InodeContent::Directory) {
                subdirectories += 1;
                directories.push((child, node, id));
            }
            names.push(Name { start: text.len(), length: name.len() as u8, node, directory: id });
            text.extend_from_slice(name);
        }
        listed.push((start..names.len() as u32, subdirectories));
    }

    let mut nodes = Vec::with_capacity(order.len());
    let mut listed = directories.iter().zip(listed).map(|((_, id, parent), list)| (*id, *parent, list)).peekable();
    for inode in order {
        let inode = &inodes[inode as usize];
        let mut nlink = inode.links;
        let kind = match inode.content {
            InodeContent::File(extent) => NodeKind::File(extent),
            InodeContent::Sparse { layer, size } => NodeKind::Sparse { layer, size },
            InodeContent::Symlink(target) => NodeKind::Symlink(target.into()),
            InodeContent::CharDevice { major, minor } => NodeKind::CharDevice { major, minor },
            InodeContent::BlockDevice { major, minor } => NodeKind::BlockDevice { major, minor },
            InodeContent::Fifo => NodeKind::Fifo,
            InodeContent::Directory => {
                // Directories were numbered in the order in which they were listed.
                let Some((_, parent, (names, subdirectories))) = listed.next() else { continue };
                nlink = 2 + subdirectories;
                NodeKind::Directory(Directory { names, parent })
            }
        };
        let xattrs = inode.xattrs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        nodes.push(Node {
            kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            mtime: inode.mtime,
            nlink,
            xattrs: xattrs.collect(),
            origin: inode.origin,
        });
    }
    Tree { nodes, names, text, named_by, warnings: warnings.finish() }
}
