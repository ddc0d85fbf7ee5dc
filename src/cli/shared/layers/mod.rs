//! The output for the layers of an indexed image.

pub(crate) mod json;
pub(crate) mod prefetch;
pub(crate) mod text;
