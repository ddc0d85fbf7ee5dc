//! An indexed image as one file system.

#![warn(missing_docs)]

pub mod cache;
pub mod content;
#[cfg(mounts)]
pub mod fuse;
pub mod layers;
pub mod record;
