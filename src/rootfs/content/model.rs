//! What reading is told, and what it tells.

use std::time::Duration;

use serde::Serialize;

/// How layers are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentOptions {
    /// When a read is given up.
    pub deadline: Duration,
    /// Bytes of decoded content that are kept in memory.
    pub memory: u64,
    /// Bytes of a file, at most, that are fetched ahead of someone who reads it from front to back; 0 for none.
    pub read_ahead: u64,
}

impl Default for ContentOptions {
    fn default() -> ContentOptions {
        ContentOptions { deadline: Duration::from_secs(60), memory: 64 << 20, read_ahead: 16 << 20 }
    }
}

/// What was done since the image was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ContentStats {
    /// Requests for layers or parts of them. Redirects and tokens do not count.
    pub requests: u64,
    /// Bytes of layers that came from the store.
    pub bytes_fetched: u64,
    /// Spans that were decoded, in whatever way their bytes came.
    pub spans_decoded: u64,
    /// Parts of spans that were served from memory, and from the cache on disk.
    pub memory_hits: u64,
    /// Spans that the cache on disk had.
    pub disk_hits: u64,
    /// Requests that were repeated since they failed or brought wrong bytes.
    pub retries: u64,
    /// Reads that failed.
    pub errors: u64,
    /// The bytes of all layers as the store holds them.
    pub image_bytes: u64,
}
