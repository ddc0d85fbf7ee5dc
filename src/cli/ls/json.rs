//! What `ociseek ls --json` prints: one document, of which fields are added but never changed or removed. Written as it
//! goes: an image may have hundreds of thousands of files.
//!
//! | field | |
//! |---|---|
//! | `image` | the IMAGE, in full |
//! | `manifest`, `platform` | digest of the image manifest; its platform, or null |
//! | `index` | digest of the SOCI index that was used, or null |
//! | `entries` | one object for each file, directories before what is in them, else in the order of their names |
//!
//! An entry:
//!
//! | field | |
//! |---|---|
//! | `path` | from the root of the image, without a slash in front; empty for the root |
//! | `type` | `reg`, `dir`, `symlink`, `char`, `block` or `fifo` |
//! | `size` | bytes of content; of a link, of its target; 0 for the rest |
//! | `mode` | permissions, setuid, setgid and sticky as four octal digits, such as `0755` |
//! | `uid`, `gid`, `nlink` | numbers; files with the same `inode` are one file |
//! | `inode` | as a mount of the image numbers it |
//! | `mtime` | RFC 3339 in UTC, to the nanosecond |
//! | `target` | where a symbolic link points to, else null |
//! | `major`, `minor` | of a device, else null |
//! | `layer` | the layer, from 0 at the bottom, that the file's attributes come from; null if none has an entry for it |
//! | `xattrs` | `name` and `value_b64` (base64) of each extended attribute |
//!
//! Text that is not UTF-8 stands in base64 under the field's name with `_b64` instead.
//!
//! With `--layer` there are `image`, `layer` (digest) and `entries`, such as `ociseek ztoc show --format json` has them.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use super::listing::{Listing, join};
use crate::cli::ztoc::json::{Each, Entry, text};
use crate::image::Descriptor;
use crate::ops::open::RootFs;
use crate::tree::{NodeId, NodeKind, Tree};
use crate::ztoc::FileMetadata;

pub fn tree(image: &str, rootfs: &RootFs, listing: &Listing, out: impl Write) -> io::Result<()> {
    write(&Document { image, rootfs, listing }, out)
}

pub fn layer(image: &str, layer: &Descriptor, entries: &[&FileMetadata], out: impl Write) -> io::Result<()> {
    write(&LayerDocument { image, layer, entries }, out)
}

fn write(document: &impl Serialize, mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, document).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()
}

struct Document<'a> {
    image: &'a str,
    rootfs: &'a RootFs,
    listing: &'a Listing,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("listing", 5)?;
        document.serialize_field("image", self.image)?;
        document.serialize_field("manifest", &self.rootfs.manifest.digest)?;
        document.serialize_field("platform", &self.rootfs.platform.as_ref().map(ToString::to_string))?;
        document.serialize_field("index", &self.rootfs.index)?;
        document.serialize_field("entries", &Entries { tree: &self.rootfs.tree, listing: self.listing })?;
        document.end()
    }
}

struct Entries<'a> {
    tree: &'a Tree,
    listing: &'a Listing,
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tree = self.tree;
        let mut sequence = serializer.serialize_seq(None)?;
        match self.listing {
            Listing::File { node, .. } => {
                sequence.serialize_element(&File { tree, path: tree.path(*node), node: *node })?;
            }
            Listing::Directories { list, .. } => {
                for (_, directory) in list {
                    let above = tree.path(*directory);
                    for (name, node) in tree.children(*directory) {
                        sequence.serialize_element(&File { tree, path: join(&above, name), node })?;
                    }
                }
            }
        }
        sequence.end()
    }
}

struct File<'a> {
    tree: &'a Tree,
    path: Vec<u8>,
    node: NodeId,
}

impl Serialize for File<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let node = self.tree.node(self.node);
        let mut target = None;
        let mut device = None;
        let (kind, size) = match &node.kind {
            NodeKind::Directory(_) => ("dir", 0),
            NodeKind::File(extent) => ("reg", extent.size),
            NodeKind::Symlink(to) => {
                target = Some(&to[..]);
                ("symlink", to.len() as u64)
            }
            NodeKind::CharDevice { major, minor } => {
                device = Some((major, minor));
                ("char", 0)
            }
            NodeKind::BlockDevice { major, minor } => {
                device = Some((major, minor));
                ("block", 0)
            }
            NodeKind::Fifo => ("fifo", 0),
        };
        let mut object = serializer.serialize_struct("file", 14)?;
        text(&mut object, ["path", "path_b64"], &self.path)?;
        object.serialize_field("type", kind)?;
        object.serialize_field("size", &size)?;
        object.serialize_field("mode", &format!("{:04o}", node.mode))?;
        object.serialize_field("uid", &node.uid)?;
        object.serialize_field("gid", &node.gid)?;
        object.serialize_field("nlink", &node.nlink)?;
        object.serialize_field("inode", &(u64::from(self.node.0) + 1))?;
        object.serialize_field("mtime", &node.mtime.to_rfc3339())?;
        match target {
            Some(target) => text(&mut object, ["target", "target_b64"], target)?,
            None => object.serialize_field("target", &None::<&str>)?,
        }
        object.serialize_field("major", &device.map(|(major, _)| major))?;
        object.serialize_field("minor", &device.map(|(_, minor)| minor))?;
        object.serialize_field("layer", &node.origin.map(|origin| origin.layer))?;
        object.serialize_field("xattrs", &Each(|| node.xattrs.iter().map(|(name, value)| Xattr(name, value))))?;
        object.end()
    }
}

struct Xattr<'a>(&'a [u8], &'a [u8]);

impl Serialize for Xattr<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("xattr", 2)?;
        text(&mut object, ["name", "name_b64"], self.0)?;
        object.serialize_field("value_b64", &STANDARD.encode(self.1))?;
        object.end()
    }
}

struct LayerDocument<'a> {
    image: &'a str,
    layer: &'a Descriptor,
    entries: &'a [&'a FileMetadata],
}

impl Serialize for LayerDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("layer", 3)?;
        document.serialize_field("image", self.image)?;
        document.serialize_field("layer", &self.layer.digest)?;
        document.serialize_field("entries", &Each(|| self.entries.iter().map(|file| Entry(file))))?;
        document.end()
    }
}
