//! An indexed image as one file system.

pub mod tree;
