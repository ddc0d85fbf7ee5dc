//! The tables of a ztoc and the numbers of their fields in the flatbuffers schema:
//! soci-snapshotter's ztoc/fbs/ztoc.fbs, and ztoc/compression/fbs/zinfo.fbs for the checkpoints of
//! a plain tar.

/// The root.
pub(super) mod root {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const BUILD_TOOL_IDENTIFIER: usize = 1;
    pub(crate) const COMPRESSED_SIZE: usize = 2;
    pub(crate) const UNCOMPRESSED_SIZE: usize = 3;
    pub(crate) const TOC: usize = 4;
    pub(crate) const COMPRESSION_INFO: usize = 5;
}

/// The list of files.
pub(super) mod toc {
    pub(crate) const FILES: usize = 0;
}

/// An entry of the tar.
pub(super) mod file {
    pub(crate) const NAME: usize = 0;
    pub(crate) const KIND: usize = 1;
    pub(crate) const OFFSET: usize = 2;
    pub(crate) const SIZE: usize = 3;
    pub(crate) const LINKNAME: usize = 4;
    pub(crate) const MODE: usize = 5;
    pub(crate) const UID: usize = 6;
    pub(crate) const GID: usize = 7;
    pub(crate) const UNAME: usize = 8;
    pub(crate) const GNAME: usize = 9;
    pub(crate) const MTIME: usize = 10;
    pub(crate) const DEVMAJOR: usize = 11;
    pub(crate) const DEVMINOR: usize = 12;
    pub(crate) const PAX: usize = 13;
    /// The number of fields. No other table has more.
    pub(crate) const COUNT: usize = 14;
}

/// A PAX record of an entry.
pub(super) mod record {
    pub(crate) const KEY: usize = 0;
    pub(crate) const VALUE: usize = 1;
}

/// The spans.
pub(super) mod info {
    pub(crate) const ALGORITHM: usize = 0;
    pub(crate) const LAST_SPAN: usize = 1;
    pub(crate) const SPAN_DIGESTS: usize = 2;
    pub(crate) const CHECKPOINTS: usize = 3;

    /// The values of `ALGORITHM`. A missing field means gzip.
    pub(crate) const GZIP: u8 = 1;
    pub(crate) const UNCOMPRESSED: u8 = 2;
}

/// The checkpoints of a plain tar, a separate flatbuffer.
pub(super) mod tar {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const SPAN_SIZE: usize = 1;
    pub(crate) const SIZE: usize = 2;
}
