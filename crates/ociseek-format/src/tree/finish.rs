//! Converts the result of applying layers to the final tree: without removed files, and with sorted
//! names.

use super::apply::Applier;
use super::inode::Inodes;
use super::model::{Directory, NodeId, NodeKind, Xattr};
use super::paths::{PathId, ROOT};
use super::{Name, Tree};

const UNSEEN: u32 = u32::MAX;

pub(super) fn finish(applier: Applier<'_>) -> Tree {
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
            names.push(Name { start: text.len() as u32, length: name.len() as u8, node, directory: id });
            text.extend_from_slice(name);
        }
        if let Some(inode) = paths.inode(path) {
            let directory = &mut nodes[inode as usize];
            directory.kind = NodeKind::Directory(Directory { names: start..names.len() as u32, parent });
            directory.nlink = 2 + subdirectories;
        }
    }

    let is_seen = |inode: u32| numbers[inode as usize] != UNSEEN;
    for (inode, target) in targets.into_iter().filter(|(inode, _)| is_seen(*inode)) {
        nodes[inode as usize].kind = NodeKind::Symlink(target.into());
    }
    let seen_xattrs = xattrs.into_iter().filter(|((inode, _), _)| is_seen(*inode));
    let mut seen_xattrs = seen_xattrs.map(|((inode, name), value)| (inode, (name.into(), value.into()))).peekable();
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
    Tree { nodes, names, text, named_by, xattrs, warnings: warnings.finish() }
}
