//! What is said of the layers of an image that was indexed.

pub(crate) mod json;
pub(crate) mod prefetched;
pub(crate) mod text;
