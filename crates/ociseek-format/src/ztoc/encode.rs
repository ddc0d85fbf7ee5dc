//! Encodes a ztoc, in the order of the reference implementation (soci-snapshotter,
//! ztoc/ztoc_marshaler.go).

use super::flatbuffer::{Builder, Offset, file, info, record, root, toc};
use super::{Checkpoints, FileMetadata, Ztoc, checkpoints};
use crate::digest::Digest;
use crate::offset::{Compressed, Uncompressed};
use crate::time::{Rfc3339, Time};

/// The size limit of a ztoc that is written or read, in bytes. Layers that need more are not
/// indexed.
pub const MAX_ENCODED: usize = 256 << 20;

/// Encodes a ztoc to the bytes that soci's library would write for it.
pub fn encode(ztoc: &Ztoc) -> Vec<u8> {
    let parts = ZtocParts {
        version: &ztoc.version,
        build_tool_identifier: &ztoc.build_tool_identifier,
        compressed_size: ztoc.compressed_size,
        uncompressed_size: ztoc.uncompressed_size,
        files: &ztoc.files,
        checkpoints: &ztoc.checkpoints,
        span_digests: &ztoc.span_digests,
    };
    parts.encode()
}

/// The parts of a ztoc, borrowed from any source.
pub(crate) struct ZtocParts<'a> {
    pub version: &'a [u8],
    pub build_tool_identifier: &'a [u8],
    pub compressed_size: Compressed,
    pub uncompressed_size: Uncompressed,
    pub files: &'a [FileMetadata],
    pub checkpoints: &'a Checkpoints,
    pub span_digests: &'a [Digest],
}

impl ZtocParts<'_> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut b = Builder::with_capacity(encoded_size_bound(self.files, self.checkpoints));
        let version = b.string(self.version);
        let tool = b.string(self.build_tool_identifier);

        let mut records = Vec::new();
        let files = self.files.iter().rev().map(|file| encode_file(&mut b, file, &mut records));
        let mut files: Vec<Offset> = files.collect();
        files.reverse();
        let files = b.offset_vector(&files);
        let mut toc = b.start_table();
        b.add_offset(&mut toc, toc::FILES, files);
        let toc = b.end_table(toc);

        let bytes = checkpoints::encode(self.checkpoints, &mut b);
        let digests: Vec<Offset> = self
            .span_digests
            .iter()
            .map(|digest| b.string(digest.to_string().as_bytes()))
            .collect();
        let digests = b.offset_vector(&digests);
        let algorithm = match self.checkpoints {
            Checkpoints::Gzip { .. } => info::GZIP,
            Checkpoints::Uncompressed { .. } => info::UNCOMPRESSED,
        };
        let mut info = b.start_table();
        b.add_u32(&mut info, info::LAST_SPAN, self.checkpoints.spans().saturating_sub(1) as u32);
        b.add_offset(&mut info, info::SPAN_DIGESTS, digests);
        b.add_offset(&mut info, info::CHECKPOINTS, bytes);
        b.add_u8(&mut info, info::ALGORITHM, algorithm, info::GZIP);
        let info = b.end_table(info);

        let mut root = b.start_table();
        b.add_offset(&mut root, root::VERSION, version);
        b.add_offset(&mut root, root::BUILD_TOOL_IDENTIFIER, tool);
        b.add_offset(&mut root, root::TOC, toc);
        b.add_i64(&mut root, root::COMPRESSED_SIZE, self.compressed_size.0 as i64);
        b.add_i64(&mut root, root::UNCOMPRESSED_SIZE, self.uncompressed_size.0 as i64);
        b.add_offset(&mut root, root::COMPRESSION_INFO, info);
        let root = b.end_table(root);
        b.finish(root)
    }
}

/// `records` is a buffer for the offsets of its records, which all files share.
fn encode_file(b: &mut Builder, file: &FileMetadata, records: &mut Vec<Offset>) -> Offset {
    let name = b.string(&file.name);
    let kind = b.string(file.kind.name().as_bytes());
    let linkname = b.string(&file.linkname);
    let uname = b.string(&file.uname);
    let gname = b.string(&file.gname);
    let mtime = file.mtime.and_then(Time::rfc3339);
    let mtime = b.string(mtime.as_ref().map_or(&[], Rfc3339::as_bytes));
    records.clear();
    for record in &file.pax {
        let key = b.string(&record.key);
        let value = b.string(&record.value);
        let mut table = b.start_table();
        b.add_offset(&mut table, record::KEY, key);
        b.add_offset(&mut table, record::VALUE, value);
        records.push(b.end_table(table));
    }
    let records = b.offset_vector(records);

    let mut table = b.start_table();
    b.add_offset(&mut table, file::NAME, name);
    b.add_offset(&mut table, file::KIND, kind);
    b.add_i64(&mut table, file::OFFSET, file.offset.0 as i64);
    b.add_i64(&mut table, file::SIZE, file.size as i64);
    b.add_offset(&mut table, file::LINKNAME, linkname);
    b.add_i64(&mut table, file::MODE, file.mode);
    b.add_u32(&mut table, file::UID, file.uid);
    b.add_u32(&mut table, file::GID, file.gid);
    b.add_offset(&mut table, file::UNAME, uname);
    b.add_offset(&mut table, file::GNAME, gname);
    b.add_offset(&mut table, file::MTIME, mtime);
    b.add_i64(&mut table, file::DEVMAJOR, file.devmajor);
    b.add_i64(&mut table, file::DEVMINOR, file.devminor);
    b.add_offset(&mut table, file::PAX, records);
    b.end_table(table)
}

/// An upper bound for the encoded size, to allocate the buffer only once.
pub fn encoded_size_bound(files: &[FileMetadata], checkpoints: &Checkpoints) -> usize {
    let digests = checkpoints.spans() as usize * (4 + 71 + 1 + 3 + 4);
    let files: usize = files.iter().map(FileMetadata::encoded_size_bound).sum();
    1024 + files + checkpoints::encoded_size(checkpoints) + digests
}

impl FileMetadata {
    /// An upper bound for the bytes that this entry adds to an encoded ztoc.
    pub fn encoded_size_bound(&self) -> usize {
        /// Length, terminator and padding.
        const STRING: usize = 4 + 1 + 3;
        let strings = self.name.len() + self.linkname.len() + self.uname.len() + self.gname.len();
        let records: usize = self
            .pax
            .iter()
            .map(|record| record.key.len() + record.value.len() + 2 * STRING + 12 + 4 + 4)
            .sum();
        // Six strings (including type and time), the table with all fields, and the slots in two
        // vectors.
        6 * STRING + strings + 8 + 30 + 96 + 12 + records
    }
}
