//! The JSON output of `ociseek ls`. Written as a stream, because an image may have hundreds of
//! thousands of files.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::cli::ls::{Listing, join};
use crate::cli::shared::json::{DigestText, Document, IndexRef, Manifest, utf8};
use crate::cli::ztoc::json::Entry;
use ociseek_format::image::Descriptor;
use ociseek_format::tree::{NodeId, NodeKind, Tree};
use ociseek_format::ztoc::FileMetadata;
use ociseek_ops::open::RootFs;

pub(crate) fn tree(
    image: &str,
    rootfs: &RootFs,
    listing: &Listing,
    out: impl Write,
) -> io::Result<()> {
    let files = Files {
        image,
        manifest: Manifest::of(&rootfs.manifest),
        platform: rootfs.platform.as_ref().map(ToString::to_string),
        index: rootfs.index.as_ref().map(IndexRef::found),
        trust: rootfs.trust().code(),
        entries: Entries { tree: &rootfs.tree, listing },
    };
    Document::new(files).write(out)
}

pub(crate) fn layer(
    image: &str,
    layer: &Descriptor,
    entries: &[&FileMetadata],
    out: impl Write,
) -> io::Result<()> {
    let layer =
        Layer { media_type: &layer.media_type, digest: layer.digest.into(), size: layer.size };
    Document::new(LayerFiles { image, layer, entries: LayerEntries(entries) }).write(out)
}

/// Text that is not UTF-8 is in base64, in a field with the suffix `_b64` instead.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Files<'a> {
    /// The full name of IMAGE.
    image: &'a str,
    manifest: Manifest,
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    /// The SOCI index that was used, or null.
    index: Option<IndexRef>,
    /// Who vouches for the files, at least: `proven`, `signed`, `bound`, `named` or `repository`.
    trust: &'static str,
    /// Directories come before their content, otherwise in the order of names.
    #[cfg_attr(test, schemars(with = "Vec<File>"))]
    entries: Entries<'a>,
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
                sequence.serialize_element(&File::of(tree, &tree.path(*node), *node))?;
            }
            Listing::Directories { list, .. } => {
                for (_, directory) in list {
                    let above = tree.path(*directory);
                    for (name, node) in tree.children(*directory) {
                        sequence.serialize_element(&File::of(tree, &join(&above, name), node))?;
                    }
                }
            }
        }
        sequence.end()
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct File {
    /// Path from the root of the image, without a leading slash; empty for the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(rename = "type")]
    kind: Kind,
    /// Size of the content in bytes; for a symbolic link, of its target; otherwise 0.
    size: u64,
    /// Permissions, setuid, setgid and sticky as four octal digits, such as `0755`.
    mode: String,
    uid: u32,
    gid: u32,
    nlink: u32,
    /// The inode number in a mount of the image. Files with the same number are one file.
    inode: u64,
    /// RFC 3339 in UTC, to the nanosecond.
    mtime: Option<String>,
    /// The target of a symbolic link, or null.
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_b64: Option<String>,
    /// For a device, otherwise null.
    major: Option<u32>,
    /// For a device, otherwise null.
    minor: Option<u32>,
    /// The layer, from 0 at the bottom, with the entry that sets the file's attributes; null if
    /// there is no such entry.
    layer: Option<u32>,
    xattrs: Vec<Xattr>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Kind {
    Reg,
    Dir,
    Symlink,
    Char,
    Block,
    Fifo,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Xattr {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
    value_b64: String,
}

impl File {
    fn of(tree: &Tree, path: &[u8], id: NodeId) -> File {
        let node = tree.node(id);
        let (kind, size) = match &node.kind {
            NodeKind::Directory(_) => (Kind::Dir, 0),
            NodeKind::File(extent) => (Kind::Reg, extent.size),
            NodeKind::Sparse(extent) => (Kind::Reg, extent.map.size()),
            NodeKind::Symlink(to) => (Kind::Symlink, to.len() as u64),
            NodeKind::CharDevice { .. } => (Kind::Char, 0),
            NodeKind::BlockDevice { .. } => (Kind::Block, 0),
            NodeKind::Fifo => (Kind::Fifo, 0),
        };
        let (target, target_b64) = match &node.kind {
            NodeKind::Symlink(to) => utf8(to),
            _ => (None, None),
        };
        let (major, minor) = match node.kind {
            NodeKind::CharDevice { major, minor } | NodeKind::BlockDevice { major, minor } => {
                (Some(major), Some(minor))
            }
            _ => (None, None),
        };
        let xattr = |(name, value): &(Box<[u8]>, Box<[u8]>)| {
            let (name, name_b64) = utf8(name);
            Xattr { name: name.map(str::to_owned), name_b64, value_b64: STANDARD.encode(value) }
        };
        let (path, path_b64) = utf8(path);
        File {
            path: path.map(str::to_owned),
            path_b64,
            kind,
            size,
            mode: format!("{:04o}", node.mode),
            uid: node.uid,
            gid: node.gid,
            nlink: node.nlink,
            inode: u64::from(id.0) + 1,
            mtime: node.mtime().to_rfc3339(),
            target: target.map(str::to_owned),
            target_b64,
            major,
            minor,
            layer: node.origin.map(|layer| layer.0),
            xattrs: tree.xattrs(id).iter().map(xattr).collect(),
        }
    }
}

/// With --layer: the entries of a layer, as stored in its tar.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LayerFiles<'a> {
    /// The full name of IMAGE.
    image: &'a str,
    layer: Layer<'a>,
    #[cfg_attr(test, schemars(with = "Vec<Entry<'static>>"))]
    entries: LayerEntries<'a>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer<'a> {
    media_type: &'a str,
    digest: DigestText,
    /// Size of the blob in bytes.
    size: u64,
}

struct LayerEntries<'a>(&'a [&'a FileMetadata]);

impl Serialize for LayerEntries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|file| Entry::of(file)))
    }
}
