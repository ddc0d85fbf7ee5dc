//! A tree as bytes that only this program reads, from its own cache: an image that was opened
//! before has its tree sooner than from the lists of its layers' files.
//!
//! All numbers are little-endian and of fixed size: the counts of nodes, names and warnings, and
//! the size of the text; a record for each node; the length and the node of each name; the text;
//! then the targets of symbolic links in the order of the nodes, the extended attributes, and the
//! warnings. What follows from these is not stored.

use std::ops::Range;

use super::model::{Directory, Extent, Node, NodeId, NodeKind, Xattr};
use super::paths::{NAME_MAX, PATH_MAX};
use super::{Name, Tree};
use crate::offset::{LayerId, Uncompressed};

/// The size of the counts, of a node and of a name, in bytes.
const COUNTS: usize = 16;
const NODE: usize = 52;
const NAME: usize = 5;
/// Stands for a missing layer, name or directory.
const NONE: u32 = u32::MAX;
/// The kinds of nodes.
const FILE: u32 = 0;
const DIRECTORY: u32 = 1;
const SYMLINK: u32 = 2;
const CHAR_DEVICE: u32 = 3;
const BLOCK_DEVICE: u32 = 4;
const FIFO: u32 = 5;

impl Tree {
    /// The tree as bytes for [`Tree::from_stored`]. None if it has sparse files, or is too large.
    pub fn to_stored(&self) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(
            COUNTS + self.nodes.len() * NODE + self.names.len() * NAME + self.text.len(),
        );
        for count in [self.nodes.len(), self.names.len(), self.warnings.len(), self.text.len()] {
            put_size(&mut out, count)?;
        }
        for node in &self.nodes {
            let (kind, [a, b], c) = match &node.kind {
                NodeKind::File(Extent { layer, offset, size }) => {
                    (FILE, [offset.0, *size], layer.0)
                }
                NodeKind::Directory(Directory { names, parent }) => {
                    (DIRECTORY, [names.start.into(), names.end.into()], parent.0)
                }
                NodeKind::Symlink(target) => (SYMLINK, [target.len() as u64, 0], 0),
                NodeKind::CharDevice { major, minor } => {
                    (CHAR_DEVICE, [u64::from(*major), u64::from(*minor)], 0)
                }
                NodeKind::BlockDevice { major, minor } => {
                    (BLOCK_DEVICE, [u64::from(*major), u64::from(*minor)], 0)
                }
                NodeKind::Fifo => (FIFO, [0; 2], 0),
                NodeKind::Sparse(_) => return None,
            };
            let origin = node.origin.map_or(NONE, |layer| layer.0);
            let words = [kind, node.mode, node.uid, node.gid, node.nlink, origin, c];
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            [node.mtime, a, b].iter().for_each(|long| out.extend_from_slice(&long.to_le_bytes()));
        }
        for name in &self.names {
            out.push(name.length);
            out.extend_from_slice(&name.node.0.to_le_bytes());
        }
        out.extend_from_slice(&self.text);
        for node in &self.nodes {
            if let NodeKind::Symlink(target) = &node.kind {
                out.extend_from_slice(target);
            }
        }
        put_size(&mut out, self.xattrs.len())?;
        for (node, xattrs) in &self.xattrs {
            put_size(&mut out, node.0 as usize)?;
            put_size(&mut out, xattrs.len())?;
            for text in xattrs.iter().flat_map(|(name, value)| [name, value]) {
                put_text(&mut out, text)?;
            }
        }
        self.warnings.iter().try_for_each(|warning| put_text(&mut out, warning.as_bytes()))?;
        Some(out)
    }

    /// The tree that [`Tree::to_stored`] wrote. None if the bytes are not a tree. Memory is in
    /// proportion to the bytes.
    pub fn from_stored(bytes: &[u8]) -> Option<Tree> {
        let mut reader = Reader(bytes);
        let [nodes, names, warnings, text] =
            [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
        let nodes = reader.take((nodes as usize).checked_mul(NODE)?)?;
        let names = reader.take((names as usize).checked_mul(NAME)?)?;
        let text = reader.take(text as usize)?;
        let nodes = nodes.as_chunks::<NODE>().0;
        let names = names.as_chunks::<NAME>().0;
        let count = nodes.len() as u32;
        let all_names = names.len() as u32;
        let mut targets = reader;
        let mut list = Vec::with_capacity(nodes.len());
        // The directory of each name.
        let mut directories = vec![NONE; names.len()];
        for (id, bytes) in (0..).zip(nodes) {
            let node = node(bytes, &mut targets)?;
            if let NodeKind::Directory(Directory { names, parent }) = &node.kind {
                let is_inside = names.start <= names.end && names.end <= all_names;
                // Numbers are assigned from the root on.
                if !is_inside || !(parent.0 < id || (id == 0 && parent.0 == 0)) {
                    return None;
                }
                directories.get_mut(range(names))?.fill(id);
            }
            list.push(node);
        }
        if !list.first()?.kind.is_directory() {
            return None;
        }
        let mut named_by = vec![NONE; nodes.len()];
        *named_by.first_mut()? = 0;
        let mut all = Vec::with_capacity(names.len());
        let mut start = 0u32;
        for (number, ([length, node @ ..], directory)) in (0..).zip(names.iter().zip(directories)) {
            let node = u32::from_le_bytes(*node);
            let first = named_by.get_mut(node as usize)?;
            let is_first = *first == NONE;
            if is_first {
                *first = number;
            }
            // So every path leads to the root, and no directory is below itself.
            let is_below = match &list.get(node as usize)?.kind {
                NodeKind::Directory(of) => is_first && of.parent.0 == directory,
                _ => true,
            };
            if !is_below || (is_first && directory >= node) {
                return None;
            }
            if node == 0 || directory >= count || usize::from(*length) > NAME_MAX {
                return None;
            }
            all.push(Name {
                start,
                length: *length,
                node: NodeId(node),
                directory: NodeId(directory),
            });
            start = start.checked_add(u32::from(*length))?;
        }
        if start as usize != text.len() || named_by.contains(&NONE) {
            return None;
        }
        let mut reader = targets;
        let xattrs = xattrs(&mut reader, count)?;
        let warning = |_| String::from_utf8(reader.text()?.into()).ok();
        let warnings = (0..warnings).map(warning).collect::<Option<Vec<String>>>()?;
        let is_whole = reader.0.is_empty();
        is_whole.then(|| Tree {
            nodes: list,
            names: all,
            text: text.into(),
            named_by,
            xattrs,
            warnings,
        })
    }
}

fn node(bytes: &[u8; NODE], targets: &mut Reader<'_>) -> Option<Node> {
    let mut reader = Reader(bytes);
    let mut word = || reader.u32();
    let kind = word()?;
    let mode = word()?;
    let uid = word()?;
    let gid = word()?;
    let nlink = word()?;
    let origin = word()?;
    let c = word()?;
    let mut long = || reader.u64();
    let mtime = long()?;
    let a = long()?;
    let b = long()?;
    let kind = match kind {
        FILE => {
            a.checked_add(b).filter(|end| *end <= i64::MAX as u64)?;
            NodeKind::File(Extent { layer: LayerId(c), offset: Uncompressed(a), size: b })
        }
        DIRECTORY => NodeKind::Directory(Directory {
            names: u32::try_from(a).ok()?..u32::try_from(b).ok()?,
            parent: NodeId(c),
        }),
        SYMLINK => NodeKind::Symlink(
            targets.take(usize::try_from(a).ok().filter(|size| *size <= PATH_MAX)?)?.into(),
        ),
        CHAR_DEVICE => {
            NodeKind::CharDevice { major: u32::try_from(a).ok()?, minor: u32::try_from(b).ok()? }
        }
        BLOCK_DEVICE => {
            NodeKind::BlockDevice { major: u32::try_from(a).ok()?, minor: u32::try_from(b).ok()? }
        }
        FIFO => NodeKind::Fifo,
        _ => return None,
    };
    let origin = Some(LayerId(origin)).filter(|layer| layer.0 != NONE);
    (mode <= 0o7777 && mtime <= i64::MAX as u64).then_some(Node {
        kind,
        mode,
        uid,
        gid,
        nlink,
        origin,
        mtime,
    })
}

fn xattrs(reader: &mut Reader<'_>, nodes: u32) -> Option<Vec<(NodeId, Box<[Xattr]>)>> {
    let mut all: Vec<(NodeId, Box<[Xattr]>)> = Vec::new();
    for _ in 0..reader.u32()? {
        let node = reader.u32()?;
        let count = reader.u32()?;
        if node >= nodes || all.last().is_some_and(|(last, _)| last.0 >= node) {
            return None;
        }
        let xattr = |_| Some((reader.text()?.into(), reader.text()?.into()));
        all.push((NodeId(node), (0..count).map(xattr).collect::<Option<_>>()?));
    }
    Some(all)
}

fn range(names: &Range<u32>) -> Range<usize> {
    names.start as usize..names.end as usize
}

fn put_size(out: &mut Vec<u8>, size: usize) -> Option<()> {
    out.extend_from_slice(&u32::try_from(size).ok()?.to_le_bytes());
    Some(())
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) -> Option<()> {
    put_size(out, text.len())?;
    out.extend_from_slice(text);
    Some(())
}

/// The bytes that were not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text with its size before it.
    fn text(&mut self) -> Option<&'a [u8]> {
        let size = self.u32()?;
        self.take(size as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::{PaxRecord, PaxText};
    use crate::time::Time;
    use crate::ztoc::{FileKind, FileMetadata};

    fn entries() -> Vec<FileMetadata> {
        let of = |kind, name: &str| FileMetadata {
            kind,
            name: name.as_bytes().into(),
            mode: 0o4755,
            uid: 7,
            gid: 1 << 20,
            mtime: Some(Time { seconds: 1_700_000_000, nanos: 5 }),
            ..FileMetadata::default()
        };
        let mut files = vec![
            of(FileKind::Directory, "usr"),
            of(FileKind::Regular, "usr/b"),
            of(FileKind::HardLink, "a"),
            of(FileKind::Symlink, "usr/link"),
            of(FileKind::Fifo, "fifo"),
            of(FileKind::BlockDevice, "dev/block"),
            of(FileKind::CharDevice, "dev/char"),
            of(FileKind::Regular, "odd/xattr/file"),
        ];
        (files[1].offset, files[1].size) = (Uncompressed(1 << 40), 1 << 33);
        files[2].linkname = b"usr/b"[..].into();
        files[3].linkname = b"../a"[..].into();
        (files[5].devmajor, files[5].devminor, files[6].devminor) = (8, 1, 3);
        let record = |key: &str| PaxRecord {
            key: key.as_bytes().into(),
            value: PaxText::from(&b"value"[..]),
        };
        files[7].pax = ["SCHILY.xattr.user.one", "SCHILY.xattr.user.two"].map(record).into();
        files
    }

    #[test]
    fn trees_are_stored_whole() {
        let layers = [entries(), entries()[5..].to_vec()];
        let tree = Tree::flatten(layers.iter().map(|layer| &layer[..])).unwrap();
        let stored = tree.to_stored().unwrap();
        let again = Tree::from_stored(&stored).unwrap();
        assert_eq!(format!("{again:?}"), format!("{tree:?}"));
        assert_eq!(again.all_xattrs().count(), 2);
        let empty = Tree::flatten(std::iter::empty::<&[FileMetadata]>()).unwrap();
        assert_eq!(
            format!("{:?}", Tree::from_stored(&empty.to_stored().unwrap()).unwrap()),
            format!("{empty:?}")
        );
    }

    #[test]
    fn what_is_cut_or_changed_never_panics_and_paths_end() {
        let tree = Tree::flatten([&entries()[..]]).unwrap();
        let stored = tree.to_stored().unwrap();
        for size in 0..stored.len() {
            assert!(Tree::from_stored(&stored[..size]).is_none(), "{size}");
        }
        let mut read = 0;
        for at in 0..stored.len() {
            for value in [0, 1, 5, 0x7f, 0xff] {
                let mut changed = stored.clone();
                changed[at] = value;
                let Some(tree) = Tree::from_stored(&changed) else { continue };
                read += 1;
                for id in (0..tree.len() as u32).map(NodeId) {
                    let (path, _) = (tree.path(id), tree.parent(id));
                    let _ = tree.resolve(&path, true);
                    tree.children(id).for_each(|(_, child)| assert!(tree.get(child).is_some()));
                    let kind = &tree.node(id).kind;
                    let _ = kind.stored_in(0..kind.size()).map(|stored| stored.range());
                    let _ = (tree.node(id).mtime(), tree.xattrs(id));
                }
            }
        }
        assert!(read > 100, "{read}");
    }
}
