//! An indexed image as one file system.

pub mod cache;
pub mod content;
#[cfg(mounts)]
pub mod fuse;
pub mod layers;
pub mod record;
