//! The tables of a ztoc, with the numbers that its flatbuffers have for their fields: those of soci-snapshotter's
//! ztoc/fbs/ztoc.fbs, and of ztoc/compression/fbs/zinfo.fbs for the checkpoints of a plain tar.

/// The root.
pub(super) mod root {
    pub const VERSION: usize = 0;
    pub const BUILD_TOOL_IDENTIFIER: usize = 1;
    pub const COMPRESSED_SIZE: usize = 2;
    pub const UNCOMPRESSED_SIZE: usize = 3;
    pub const TOC: usize = 4;
    pub const COMPRESSION_INFO: usize = 5;
}

/// The list of files.
pub(super) mod toc {
    pub const FILES: usize = 0;
}

/// An entry of the tar.
pub(super) mod file {
    pub const NAME: usize = 0;
    pub const KIND: usize = 1;
    pub const OFFSET: usize = 2;
    pub const SIZE: usize = 3;
    pub const LINKNAME: usize = 4;
    pub const MODE: usize = 5;
    pub const UID: usize = 6;
    pub const GID: usize = 7;
    pub const UNAME: usize = 8;
    pub const GNAME: usize = 9;
    pub const MTIME: usize = 10;
    pub const DEVMAJOR: usize = 11;
    pub const DEVMINOR: usize = 12;
    pub const PAX: usize = 13;
    /// How many there are; no other table has more.
    pub const COUNT: usize = 14;
}

/// A PAX record of an entry.
pub(super) mod record {
    pub const KEY: usize = 0;
    pub const VALUE: usize = 1;
}

/// The spans.
pub(super) mod info {
    pub const ALGORITHM: usize = 0;
    pub const LAST_SPAN: usize = 1;
    pub const SPAN_DIGESTS: usize = 2;
    pub const CHECKPOINTS: usize = 3;

    /// What `ALGORITHM` may be; a table without that field means gzip.
    pub const GZIP: u8 = 1;
    pub const UNCOMPRESSED: u8 = 2;
}

/// The checkpoints of a plain tar, a flatbuffer of their own.
pub(super) mod tar {
    pub const VERSION: usize = 0;
    pub const SPAN_SIZE: usize = 1;
    pub const SIZE: usize = 2;
}
