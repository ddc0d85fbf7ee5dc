//! An indexed image as a single file system.

pub mod cache;
pub mod content;
#[cfg(mounts)]
pub mod fuse;
pub mod layers;
pub mod record;
