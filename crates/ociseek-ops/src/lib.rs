//! The operations. Each is a function from options to a typed result. It reports progress as events
//! and prints nothing.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo"));
//! use std::sync::Arc;
//!
//! use ociseek_format::progress::{Progress, SilentProgress};
//! use ociseek_ops::index::{IndexOptions, ManifestResult, Work, index};
//! use ociseek_store::Source;
//! use ociseek_store::blob::Target;
//! use ociseek_store::layout::Layout;
//!
//! // `folder` is an OCI image layout. Without a destination, nothing is written.
//! let source = Source::Layout(Arc::new(Layout::open(folder)?));
//! let image = Target::Tag("latest".to_owned());
//! let options = IndexOptions { min_layer_size: 0, ..IndexOptions::default() };
//! let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let work = Work { cache: None, options: &options, progress: &progress };
//! let report = index(&source, &image, None, work).await?;
//! assert!(matches!(report.manifests[0].result, ManifestResult::DryRun { .. }));
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! An operation stops when its future is dropped: its requests are cancelled, and the threads that
//! index layers end when their channels close.

pub mod ahead;
pub mod background;
#[cfg(all(feature = "mounts", target_os = "linux"))]
pub mod bundle;
pub mod cache_fit;
pub mod consumers;
#[cfg(all(feature = "mounts", target_os = "linux"))]
pub mod container;
pub mod convert;
mod damage;
pub mod discover;
pub mod doctor;
mod fine_documents;
mod foresight;
pub mod index;
pub mod inspect;
pub mod judge;
pub mod lazy_from;
pub mod list;
pub mod maker;
#[cfg(all(feature = "mounts", target_os = "linux"))]
pub mod mount;
pub mod obsolete;
pub mod open;
mod opened;
pub mod prefetch;
pub mod remove;
pub mod report;
pub mod resolve;
pub mod startup_files;
pub mod tree_memory;
pub mod trust;
pub mod verify;
pub mod versions;

pub use damage::is_over_budget;
pub use index::index;
pub use ociseek_format::layer::TOOL_IDENTIFIER;
