//! The map by which a layer is read: its entries, where their bytes are, and where decoding can
//! start.
//!
//! It is built from a published ztoc or fine document, or from the layer itself if that was read
//! here. It can express more than a ztoc: entries whose bytes cannot be read, and blobs that can
//! only be decoded from their start.

use std::sync::Arc;

use crate::digest::Digest;
use crate::fine::{Codec, FineHead};
use crate::offset::{Compressed, Uncompressed};
use crate::ztoc::{Checkpoints, Cuts, FileKind, FileMetadata, Ztoc};

/// The map by which a layer is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerMap {
    /// The tar's entries, in the tar's order.
    pub files: Vec<FileMetadata>,
    /// The numbers of the sparse files among `files`, in order. The tar does not hold their plain
    /// bytes.
    pub sparse: Vec<u32>,
    /// The end of the tar, where its reader stopped. A published ztoc states it.
    pub tar_end: Uncompressed,
    /// The number of bytes that are cut into spans: those of the blob, or of the tar if the layer
    /// is kept unpacked.
    pub size: Compressed,
    /// Where decoding can start.
    pub starts: Starts,
    /// The digest of each span's bytes. Empty for a fine document.
    pub span_digests: Vec<Digest>,
}

/// Where decoding can start. A span begins at each of these places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starts {
    /// In the blob: at the checkpoints of a gzip stream, or anywhere in a plain tar.
    InBlob(Checkpoints),
    /// Only at the start of the blob. The tar is kept unpacked and cut into spans of equal size;
    /// the last one may be shorter.
    Unpacked {
        /// The size of a span in bytes of the tar.
        span_size: u64,
    },
    /// At the starts listed in a fine document, which describes the same entries as the map.
    Fine(Arc<FineHead>),
}

impl LayerMap {
    /// Whether the layer is read from its unpacked tar, because its blob can only be decoded from
    /// the start.
    pub fn is_unpacked(&self) -> bool {
        matches!(self.starts, Starts::Unpacked { .. })
    }

    /// Whether the blob is the tar itself.
    pub fn is_plain(&self) -> bool {
        match &self.starts {
            Starts::InBlob(checkpoints) => matches!(checkpoints, Checkpoints::Uncompressed { .. }),
            Starts::Unpacked { .. } => false,
            Starts::Fine(head) => head.spans().codec() == Codec::Plain,
        }
    }

    /// The head of the fine document by which the layer is read, if any. Its entries are in the
    /// map.
    pub fn fine(&self) -> Option<&Arc<FineHead>> {
        match &self.starts {
            Starts::Fine(head) => Some(head),
            Starts::InBlob(_) | Starts::Unpacked { .. } => None,
        }
    }

    /// The size of a span in bytes of the tar, or the least distance between two checkpoints.
    pub fn span_size(&self) -> u64 {
        match &self.starts {
            Starts::InBlob(checkpoints) => checkpoints.span_size(),
            Starts::Unpacked { span_size } => *span_size,
            Starts::Fine(head) => head.spans().span_size(),
        }
    }

    /// The regular files that have bytes in the tar, in its order, without sparse files.
    pub fn files_with_bytes(&self) -> impl Iterator<Item = &FileMetadata> {
        let entries = Entries::from(self);
        let readable = (0..).zip(&self.files).filter(move |(number, _)| !entries.is_sparse(*number));
        readable.map(|(_, file)| file).filter(|file| file.kind == FileKind::Regular && file.size > 0)
    }
}

impl From<Ztoc> for LayerMap {
    fn from(ztoc: Ztoc) -> LayerMap {
        LayerMap {
            files: ztoc.files,
            sparse: Vec::new(),
            tar_end: ztoc.uncompressed_size,
            size: ztoc.compressed_size,
            starts: Starts::InBlob(ztoc.checkpoints),
            span_digests: ztoc.span_digests,
        }
    }
}

impl From<FineHead> for LayerMap {
    fn from(mut head: FineHead) -> LayerMap {
        LayerMap {
            files: head.take_entries(),
            sparse: Vec::new(),
            tar_end: head.spans().tar_end(),
            size: Compressed(head.blob_size()),
            starts: Starts::Fine(Arc::new(head)),
            span_digests: Vec::new(),
        }
    }
}

impl HasSpans for LayerMap {
    fn bounds(&self) -> SpanBounds<'_> {
        match &self.starts {
            Starts::InBlob(checkpoints) => SpanBounds::Cuts(checkpoints.cuts()),
            Starts::Unpacked { span_size } => {
                SpanBounds::Cuts(Cuts::Every { span_size: *span_size, size: self.size.0 })
            }
            Starts::Fine(head) => SpanBounds::Fine(head),
        }
    }

    fn span_digests(&self) -> &[Digest] {
        &self.span_digests
    }

    fn size(&self) -> Compressed {
        self.size
    }

    fn tar_end(&self) -> Uncompressed {
        self.tar_end
    }
}

/// The entries of a layer, from any source.
#[derive(Debug, Clone, Copy)]
pub struct Entries<'a> {
    /// In the tar's order.
    pub files: &'a [FileMetadata],
    sparse: &'a [u32],
}

impl Entries<'_> {
    /// Whether the entry with this number is a sparse file, whose bytes cannot be read.
    pub fn is_sparse(&self, number: u32) -> bool {
        self.sparse.binary_search(&number).is_ok()
    }
}

impl<'a> From<&'a [FileMetadata]> for Entries<'a> {
    /// The entries of a ztoc, none of which is sparse.
    fn from(files: &'a [FileMetadata]) -> Entries<'a> {
        Entries { files, sparse: &[] }
    }
}

impl<'a> From<&'a LayerMap> for Entries<'a> {
    fn from(map: &'a LayerMap) -> Entries<'a> {
        Entries { files: &map.files, sparse: &map.sparse }
    }
}

/// Where spans begin, from either source.
#[derive(Debug, Clone, Copy)]
pub enum SpanBounds<'a> {
    /// From a ztoc or the layer's blob itself.
    Cuts(Cuts<'a>),
    /// From a fine document.
    Fine(&'a FineHead),
}

/// A layer that can be cut into spans: a [`Ztoc`] or a [`LayerMap`].
pub trait HasSpans {
    /// Where spans begin.
    fn bounds(&self) -> SpanBounds<'_>;
    /// The digest of each span's bytes. Empty for a fine document.
    fn span_digests(&self) -> &[Digest];
    /// The number of bytes that are cut into spans.
    fn size(&self) -> Compressed;
    /// Where the tar's reader stopped.
    fn tar_end(&self) -> Uncompressed;
}

impl HasSpans for Ztoc {
    fn bounds(&self) -> SpanBounds<'_> {
        SpanBounds::Cuts(self.checkpoints.cuts())
    }

    fn span_digests(&self) -> &[Digest] {
        &self.span_digests
    }

    fn size(&self) -> Compressed {
        self.compressed_size
    }

    fn tar_end(&self) -> Uncompressed {
        self.uncompressed_size
    }
}
