//! Where images live, and where indexes go: registries, OCI layouts, archives; and the local cache of ztocs.

pub mod archive;
pub mod blob;
pub mod cache;
pub mod layout;
pub mod registry;
