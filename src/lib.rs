//! ociseek makes the layers of existing container images seekable.
//!
//! The map, in the order in which modules may use each other (each only those above it):
//!
//! | module | what it does |
//! |---|---|
//! | [`offset`] | compressed and uncompressed offsets, span numbers: newtypes that never mix |
//! | [`budget`] | how much memory the work on one image may take |
//! | [`digest`] | content digests and hashing |
//! | [`codec`] | compressed bytes to plain bytes, and where decoding can resume |
//! | [`tar`] | plain bytes to entries, with the semantics of Go's archive/tar |
//! | [`ztoc`] | the table of contents of one layer: model, encoding, decoding |
//! | [`layer`] | the bytes of one layer's blob to its ztoc |
//! | [`image`] | references, platforms, manifests, the SOCI index |
//! | [`progress`] | what happens, as events |
//! | [`store`] | where images live: registries, OCI layouts, archives; the local ztoc cache |
//! | [`rootfs`] | an indexed image as one file system; its tree is pure |
//! | [`ops`] | the verbs: index, inspect, doctor, verify, open, mount, bundle, trace |
//! | [`hook`] | indexing on push: the events of registries (pure), the jobs that they become |
//! | [`cli`] | the command line |
//!
//! Down to `progress` nothing knows a file, a socket or a clock: bytes in, values out.

#![deny(unsafe_code)]

pub mod budget;
pub mod cli;
pub mod codec;
pub mod digest;
mod glob;
pub mod hook;
pub mod image;
pub mod layer;
pub mod offset;
pub mod ops;
pub mod progress;
pub mod rootfs;
pub mod store;
pub mod tar;
pub mod ztoc;
