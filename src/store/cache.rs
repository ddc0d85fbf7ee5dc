//! The local cache of ztocs: a layer that was indexed once is not read again.

use std::path::Path;
use std::sync::Arc;

use crate::digest::Digest;
use crate::layer::Outcome;
use crate::progress::Progress;

/// What a cached outcome is the outcome of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheKey<'a> {
    pub layer: &'a Digest,
    /// Bytes.
    pub span_size: u64,
    pub build_tool_identifier: &'a str,
}

/// Outcomes of layers, kept in a directory that any number of processes may share. It never fails: what cannot be read is
/// not there, what cannot be written is not kept, and the first such trouble is reported as a warning.
#[derive(Clone)]
pub struct ZtocCache {}

impl ZtocCache {
    /// A cache in `dir`, made when it is missing; `None` is a cache that keeps nothing.
    pub fn open(_dir: Option<&Path>, _progress: Arc<dyn Progress>) -> ZtocCache {
        unimplemented!("being written")
    }
    /// The outcome kept under `key`, and the layer's size in bytes.
    pub fn get(&self, _key: CacheKey<'_>) -> Option<(u64, Outcome)> {
        unimplemented!("being written")
    }
    /// Keeps an outcome of a layer of `size` bytes.
    pub fn put(&self, _key: CacheKey<'_>, _size: u64, _outcome: &Outcome) {
        unimplemented!("being written")
    }
}
