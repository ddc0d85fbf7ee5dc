//! What is said of the layers of an image that was indexed.

pub mod json;
pub mod prefetched;
pub mod text;
