//! The map that a layer is read with: its entries, where their bytes are, and where decoding can
//! start.
//!
//! It is built from a published ztoc or fine document, or from the layer itself if that was read
//! here. It can express more than a ztoc: entries whose bytes cannot be read, and blobs that can
//! only be decoded from their start.

use std::ops::Range;
use std::sync::Arc;

use super::file_list::{FileList, NearbyFiles};
use crate::digest::Digest;
use crate::fine::{Codec, FineHead, StoredEntries};
use crate::offset::{Compressed, SpanSize, Uncompressed};
use crate::tar::SparseMap;
use crate::ztoc::{Checkpoints, Cuts, FileKind, FileMetadata, Ztoc};

/// The map that a layer is read with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerMap {
    /// The tar's entries, in the tar's order.
    pub files: FileList,
    /// The sparse files among `files`, in order.
    pub sparse: Vec<SparseFile>,
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

/// A sparse file: its entry has the size of the expanded file, and the offset of what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseFile {
    /// The number of its entry.
    pub entry: u32,
    /// Which of its bytes the tar stores.
    pub map: SparseMap,
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
        span_size: SpanSize,
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

    /// The head of the fine document that the layer is read with, if any. Its entries are in the
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
            Starts::InBlob(checkpoints) => checkpoints.span_size().get(),
            Starts::Unpacked { span_size } => span_size.get(),
            Starts::Fine(head) => head.spans().span_size(),
        }
    }

    /// Its entries.
    pub fn entries(&self) -> LayerEntries<'_> {
        LayerEntries { files: self.files.all(), sparse: &self.sparse }
    }

    /// The range of the tar with the bytes of the file that `at` lies in. None if it lies in none.
    pub fn stored_range(&self, at: Uncompressed) -> Option<Range<Uncompressed>> {
        let NearbyFiles { first, files } = self.files.near(&(at..at));
        let next = files.partition_point(|file| file.offset <= at);
        let (number, file) =
            next.checked_sub(1).and_then(|number| Some((number, files.get(number)?)))?;
        let sparse =
            u32::try_from(first + number).ok().and_then(|number| sparse_map(&self.sparse, number));
        let size = if file.kind == FileKind::Regular {
            sparse.map_or(file.size, SparseMap::stored)
        } else {
            0
        };
        let range = file.offset..Uncompressed(file.offset.0.saturating_add(size));
        range.contains(&at).then_some(range)
    }
}

impl From<Ztoc> for LayerMap {
    fn from(ztoc: Ztoc) -> LayerMap {
        LayerMap {
            files: ztoc.files.into(),
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
            files: head.take_entries().into(),
            sparse: Vec::new(),
            tar_end: head.spans().tar_end(),
            size: Compressed(head.blob_size()),
            starts: Starts::Fine(Arc::new(head)),
            span_digests: Vec::new(),
        }
    }
}

impl From<(FineHead, StoredEntries)> for LayerMap {
    /// The entries are decoded when they are first asked for.
    fn from((head, entries): (FineHead, StoredEntries)) -> LayerMap {
        LayerMap { files: entries.into(), ..LayerMap::from(head) }
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
    sparse: &'a [SparseFile],
}

impl<'a> Entries<'a> {
    /// The map of the entry with this number, if that is a sparse file.
    pub fn sparse(&self, number: u32) -> Option<&'a SparseMap> {
        sparse_map(self.sparse, number)
    }
}

fn sparse_map(sparse: &[SparseFile], number: u32) -> Option<&SparseMap> {
    let at = sparse.binary_search_by_key(&number, |file| file.entry).ok()?;
    Some(&sparse[at].map)
}

impl<'a> From<&'a [FileMetadata]> for Entries<'a> {
    /// The entries of a ztoc, none of which is sparse.
    fn from(files: &'a [FileMetadata]) -> Entries<'a> {
        Entries { files, sparse: &[] }
    }
}

/// The entries of a map, in memory while this is.
#[derive(Debug)]
pub struct LayerEntries<'a> {
    /// In the tar's order.
    pub files: Arc<Vec<FileMetadata>>,
    sparse: &'a [SparseFile],
}

impl LayerEntries<'_> {
    /// The regular files that have bytes in the tar, in its order, without sparse files.
    pub fn with_bytes(&self) -> impl Iterator<Item = &FileMetadata> {
        let entries = Entries::from(self);
        let readable =
            (0..).zip(entries.files).filter(move |(number, _)| entries.sparse(*number).is_none());
        readable
            .map(|(_, file)| file)
            .filter(|file| file.kind == FileKind::Regular && file.size > 0)
    }
}

impl<'a> From<&'a LayerEntries<'_>> for Entries<'a> {
    fn from(entries: &'a LayerEntries<'_>) -> Entries<'a> {
        Entries { files: &entries.files, sparse: entries.sparse }
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
