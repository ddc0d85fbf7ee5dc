//! An indexed image as one file system.

pub mod cache;
pub mod content;
pub mod layers;
pub mod tree;
