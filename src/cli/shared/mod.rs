//! Helpers that several commands share.

pub(super) mod args;
pub(super) mod caches;
pub(super) mod difference;
pub(super) mod error;
#[cfg_attr(not(mounts), allow(dead_code))]
pub(super) mod file;
pub(super) mod hint;
pub(super) mod indexing;
pub(super) mod json;
pub(super) mod layers;
#[cfg(mounts)]
pub(super) mod notify;
pub(super) mod parse;
pub(super) mod progress;
pub(super) mod read_image;
pub(super) mod remedy;
pub(super) mod report;
pub(super) mod signals;
pub(super) mod size;
pub(super) mod source;
pub(super) mod stdout;
pub(super) mod store_hint;
pub(super) mod terminal;
pub(super) mod trust;
pub(super) mod verbosity;
