//! What a layer can be read by: its entries, where their bytes lie, and where decoding can start.
//!
//! It is made of a published ztoc or fine document, or of the layer itself when that was read here.
//! A ztoc is what others read; this is what we read by, and can say more: which entries have no
//! bytes to read, and that a blob can only be decoded from its start.

use std::sync::Arc;

use super::span::{Begins, Spanned};
use crate::digest::Digest;
use crate::fine::{Codec, FineHead};
use crate::offset::{Compressed, Uncompressed};
use crate::ztoc::{Checkpoints, Cuts, FileKind, FileMetadata, Ztoc};

/// What a layer can be read by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerMap {
    /// The tar's entries, in the tar's order.
    pub files: Vec<FileMetadata>,
    /// Which of `files` are sparse files, by number and in order: what the tar has of them is not
    /// their bytes.
    pub sparse: Vec<u32>,
    /// The end of the tar, as far as it is read. A published ztoc says where its reader stopped.
    pub tar_end: Uncompressed,
    /// How many bytes spans are cut from: of the blob, or if the layer is kept unpacked, of the tar.
    pub size: Compressed,
    /// Where decoding can start.
    pub starts: Starts,
    /// The digest of each span's bytes, as they are cut. None for those of a fine document.
    pub span_digests: Vec<Digest>,
}

/// Where decoding can start. There a span begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starts {
    /// In the blob: at the checkpoints of a gzip, or in a plain tar anywhere.
    InBlob(Checkpoints),
    /// Nowhere but at the blob's start. The tar is kept unpacked, and spans are slices of it of
    /// equal size; the last one may be shorter.
    Unpacked {
        /// Bytes of tar in a span.
        span_size: u64,
    },
    /// Where a fine document says. Its entries are those of the map.
    Fine(Arc<FineHead>),
}

impl LayerMap {
    /// Whether the layer is read from its tar, kept unpacked, since no place in its blob can be decoded
    /// alone.
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

    /// The head of the fine document that the layer is read by, if it is; the entries are in the map.
    pub fn fine(&self) -> Option<&Arc<FineHead>> {
        match &self.starts {
            Starts::Fine(head) => Some(head),
            Starts::InBlob(_) | Starts::Unpacked { .. } => None,
        }
    }

    /// Bytes of tar in a span; between two checkpoints, at least.
    pub fn span_size(&self) -> u64 {
        match &self.starts {
            Starts::InBlob(checkpoints) => checkpoints.span_size(),
            Starts::Unpacked { span_size } => *span_size,
            Starts::Fine(head) => head.spans().span_size(),
        }
    }

    /// The regular files that have bytes in the tar, in its order. Sparse files are not among them.
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

impl Spanned for LayerMap {
    fn begins(&self) -> Begins<'_> {
        match &self.starts {
            Starts::InBlob(checkpoints) => Begins::Cuts(checkpoints.cuts()),
            Starts::Unpacked { span_size } => Begins::Cuts(Cuts::Every { span_size: *span_size, size: self.size.0 }),
            Starts::Fine(head) => Begins::Fine(head),
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

/// The entries of a layer, whoever lists them.
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
    /// Those of a ztoc, none of which is sparse.
    fn from(files: &'a [FileMetadata]) -> Entries<'a> {
        Entries { files, sparse: &[] }
    }
}

impl<'a> From<&'a LayerMap> for Entries<'a> {
    fn from(map: &'a LayerMap) -> Entries<'a> {
        Entries { files: &map.files, sparse: &map.sparse }
    }
}
