//! ociseek makes the layers of existing container images seekable.
//!
//! The crate [`ociseek_format`] has everything without I/O; its modules are re-exported here. The
//! other modules, in an order in which each uses only those above it:
//!
//! | module | what it does |
//! |---|---|
//! | [`store`] | the places of images: registries, OCI layouts, archives; the local ztoc cache |
//! | [`rootfs`] | an indexed image as a single file system |
//! | [`ops`] | the operations: index, inspect, doctor, verify, open, mount, bundle, trace |
//! | [`hook`] | services that index images when registries report a push |
//! | [`logging`] | their `tracing` events as log lines |
//! | [`cli`] | the command line |
//!
//! Indexing an image in a registry, with the credentials of `docker login`:
//!
//! ```no_run
//! # async fn index_it() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use ociseek::ops::index::{IndexOptions, Work, index};
//! use ociseek::progress::{Progress, SilentProgress};
//! use ociseek::store::blob::Target;
//! use ociseek::store::registry::{Client, ClientConfig};
//! use ociseek::store::{Destination, Source};
//!
//! let image: ociseek::image::Reference = "registry.example/team/app:v1".parse()?;
//! let repository = Client::new(ClientConfig::default())?.repository(&image.registry, &image.repository)?;
//! let (source, destination) = (Source::Registry(repository.clone()), Destination::Registry(repository));
//! let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
//! let work = Work { cache: None, options: &IndexOptions::default(), progress: &progress };
//! let done = index(&source, &Target::of(&image), Some(&destination), work).await?;
//! println!("{} platforms", done.manifests.len());
//! # Ok(())
//! # }
//! ```
//!
//! `examples/` has whole programs; `docs/library.md` says more.

pub mod cli;

pub use ociseek_format::{
    budget, code, codec, digest, event, fine, header, image, layer, offset, progress, tar, time,
    tree, ztoc,
};
pub use ociseek_hook::{self as hook, logging};
pub use ociseek_ops as ops;
pub use ociseek_rootfs as rootfs;
pub use ociseek_store as store;
