//! ociseek makes the layers of existing container images seekable.
//!
//! This is the program: its command line is [`cli`]. The work is in libraries of its workspace:
//!
//! | crate | what it does |
//! |---|---|
//! | [`ociseek_format`] | layers, ztocs, trees and documents, without I/O |
//! | [`ociseek_store`] | the places of images: registries, OCI layouts, archives; the local ztoc cache |
//! | [`ociseek_rootfs`] | an indexed image as a single file system |
//! | [`ociseek_ops`] | the operations: index, doctor, verify, open, mount, bundle |
//! | [`ociseek_hook`] | services that index images when registries report a push, and their log |
//!
//! Indexing an image in a registry, with the credentials of `docker login`:
//!
//! ```no_run
//! # async fn index_it() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use ociseek_ops::index::{IndexOptions, Work, index};
//! use ociseek_format::progress::{Progress, SilentProgress};
//! use ociseek_store::blob::Target;
//! use ociseek_store::registry::{Client, ClientConfig};
//! use ociseek_store::{Destination, Source};
//!
//! let image: ociseek_format::image::Reference = "registry.example/team/app:v1".parse()?;
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
//! `examples/` has whole programs; `docs/contributing/library.md` says more.

pub mod cli;
