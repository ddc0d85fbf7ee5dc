//! An indexed image as one file system.

pub mod fuse;
pub mod record;
pub mod tree;
