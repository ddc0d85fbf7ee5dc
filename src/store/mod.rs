//! Where images live, and where indexes go: registries, OCI layouts, archives.

pub mod blob;
pub mod registry;
