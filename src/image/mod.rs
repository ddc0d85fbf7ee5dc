//! The documents of an image: references, platforms, manifests, and the SOCI index. Bytes in, values out.

pub mod descriptor;

pub use descriptor::Descriptor;
