//! ociseek makes the layers of existing container images seekable.
//!
//! What is pure, bytes in and values out, is the crate [`ociseek_layer`]; its modules are
//! re-exported here. The rest, in the order in which modules may use each other (each only those
//! above it):
//!
//! | module | what it does |
//! |---|---|
//! | [`store`] | where images live: registries, OCI layouts, archives; the local ztoc cache |
//! | [`rootfs`] | an indexed image as one file system |
//! | [`ops`] | the verbs: index, inspect, doctor, verify, open, mount, bundle, trace |
//! | [`hook`] | indexing on push: the jobs that the events of registries become |
//! | [`logging`] | the events of `tracing` that all of them emit, as lines |
//! | [`cli`] | the command line |

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "hook")]
pub mod hook;
mod lock;
#[cfg(any(feature = "cli", feature = "hook"))]
pub mod logging;
pub mod ops;
pub mod rootfs;
pub mod store;

pub(crate) use ociseek_layer::glob;
pub use ociseek_layer::{
    budget, code, codec, digest, event, fine, header, image, layer, offset, progress, tar, time, tree, ztoc,
};
