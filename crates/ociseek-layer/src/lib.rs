//! Everything that happens to the bytes of a container image's layer, and the documents that name them: bytes in, values out.
//!
//! The map, in the order in which modules may use each other (each only those above it):
//!
//! | module | what it does |
//! |---|---|
//! | [`offset`] | compressed and uncompressed offsets, span numbers: newtypes that never mix |
//! | [`time`] | points in time, as tar has them and as Go prints them |
//! | [`budget`] | how much memory the work on one image may take |
//! | [`digest`] | content digests and hashing |
//! | [`glob`] | patterns for paths and repository names |
//! | [`codec`] | compressed bytes to plain bytes, and where decoding can resume |
//! | [`tar`] | plain bytes to entries, with the semantics of Go's archive/tar |
//! | [`ztoc`] | the table of contents of one layer: model, encoding, decoding |
//! | [`layer`] | the bytes of one layer's blob to its ztoc |
//! | [`tree`] | the ztocs of an image's layers to one tree of files |
//! | [`image`] | references, platforms, manifests, the SOCI index |
//! | [`event`] | the push notifications of registries |
//! | [`progress`] | what happens, as events |
//!
//! Nothing here knows a file, a socket or a clock, or is async. The crate `ociseek` stands on it: stores, file systems, the
//! command line.

pub mod budget;
pub mod codec;
pub mod digest;
pub mod event;
pub mod glob;
pub mod image;
pub mod layer;
pub mod offset;
pub mod progress;
pub mod tar;
pub mod time;
pub mod tree;
pub mod ztoc;
