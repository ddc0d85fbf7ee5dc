//! An indexed image as a single file system.

pub mod cache;
pub mod content;
#[cfg(all(feature = "fuse", target_os = "linux"))]
pub mod fuse;
pub mod layers;
pub mod record;
