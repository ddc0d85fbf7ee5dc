//! An indexed image as a single file system.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo"));
//! use std::sync::Arc;
//!
//! use ociseek_format::image::{ImageSelector, Manifest, manifest};
//! use ociseek_format::offset::{LayerId, Uncompressed};
//! use ociseek_format::progress::{Progress, SilentProgress};
//! use ociseek_rootfs::cache::SpanCache;
//! use ociseek_rootfs::content::{Content, ContentOptions};
//! use ociseek_rootfs::layers::{Caches, open_layers};
//! use ociseek_store::Source;
//! use ociseek_store::blob::Target;
//! use ociseek_store::cache::ZtocCache;
//! use ociseek_store::layout::Layout;
//!
//! // `folder` is an OCI image layout.
//! let layout = Layout::open(folder)?;
//! let image = layout.find(&ImageSelector::Any)?;
//! let source = Source::Layout(Arc::new(layout));
//! let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
//! // Without a folder, nothing is kept on disk.
//! let caches = Caches {
//!     ztocs: ZtocCache::open(None, Arc::clone(&progress)),
//!     spans: SpanCache::open(None, 0, Arc::clone(&progress)),
//! };
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let document = source.manifest(&Target::Digest(image.digest)).await?;
//! let parsed = manifest::parse(Some(&document.media_type), &document.bytes)?;
//! let Manifest::Image(manifest) = parsed else { panic!("an index of several images") };
//! // The image has no index: each layer is read once, and then read in parts.
//! let (no_document, no_ztoc) = (|_| async { None }, |_| async { Ok(None) });
//! let layers = open_layers(&source, manifest.layers, no_document, no_ztoc, &caches, &progress).await?;
//! let content = Content::new(source, layers, caches.spans, ContentOptions::default(), progress);
//! let header = content.read(LayerId(0), Uncompressed(0), 512).await?;
//! assert_eq!(header[257..262], *b"ustar");
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! `ociseek_ops::open` does all of this for an image, and by its indexes.

pub mod cache;
pub mod content;
#[cfg(all(feature = "mounts", target_os = "linux"))]
pub mod fuse;
pub mod layers;
pub mod record;
