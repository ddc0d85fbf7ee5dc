//! What the fuzz targets, the tests and the benchmarks of this project use besides the public
//! interface. It may change in any version.

pub use crate::codec::gzip::{BlockStart, GzipEnd, GzipReader, Sink};
pub use crate::codec::inflate::{Inflate, Stop};
pub use crate::codec::stretch::{MemberFinder, Stretch, StretchStart};
pub use crate::codec::used_bytes::UsedBytes;
pub use crate::codec::zstd::{
    ZstdBlocks, ZstdBorder, ZstdDictionary, ZstdReference, ZstdResumed, ZstdSink, ZstdState,
    zstd_state_after,
};
