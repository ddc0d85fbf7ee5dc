//! Processes the layers of container images and the documents that describe them. Takes bytes and
//! returns values, without I/O.
//!
//! A ztoc is the table of contents of a layer: its files, and the places in the compressed blob
//! where decoding can start. With a ztoc, reading a file takes only the few spans of the blob that
//! hold it:
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! use ociseek_format::layer::span::SpanTable;
//! use ociseek_format::layer::{LayerIndexer, LayerOptions, Outcome};
//! use ociseek_format::offset::SpanId;
//! use ociseek_format::ztoc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
//! # let (mut archive, mut header) = (tar::Builder::new(gzip), tar::Header::new_gnu());
//! # header.set_size(6);
//! # header.set_mode(0o644);
//! # archive.append_data(&mut header, "etc/motd", &b"hello\n"[..])?;
//! # let blob = archive.into_inner()?.finish()?;
//! // `blob` is a layer, tar+gzip, with a file etc/motd. It comes in chunks of any size.
//! let options = LayerOptions { build_tool_identifier: "example".to_owned(), ..LayerOptions::default() };
//! let mut indexer = LayerIndexer::new(options, None);
//! for chunk in blob.chunks(100) {
//!     indexer.push(chunk)?;
//! }
//! let Outcome::Ztoc(built) = indexer.finish()?.outcome else { panic!("a layer that consumers refuse") };
//!
//! // Later, elsewhere: with the ztoc, parts of the blob are enough.
//! let spans = SpanTable::new(Arc::new(ztoc::decode(&built.bytes)?))?;
//! let file = spans.ztoc().files.iter().find(|file| &*file.name == b"etc/motd").expect("is in the layer");
//! let wanted = file.offset..file.offset + file.size;
//! let mut content = Vec::new();
//! for span in SpanId::each(spans.covering(wanted.clone())) {
//!     let range = spans.blob_range(span);
//!     let compressed = &blob[range.start.0 as usize..range.end.0 as usize];
//!     let mut plain = Vec::new();
//!     spans.decode(span, compressed, &mut |piece| {
//!         plain.extend_from_slice(piece);
//!         ControlFlow::Continue(())
//!     })?;
//!     let held = spans.plain_range(span);
//!     let (from, to) = (wanted.start.max(held.start) - held.start, wanted.end.min(held.end) - held.start);
//!     content.extend_from_slice(&plain[from as usize..to as usize]);
//! }
//! assert_eq!(content, b"hello\n");
//! # Ok(())
//! # }
//! ```
//!
//! The modules, in an order in which each uses only those above it:
//!
//! | module | what it does |
//! |---|---|
//! | [`offset`] | compressed and uncompressed offsets, span numbers: separate types |
//! | [`time`] | points in time, in the representations of tar and Go |
//! | [`printable`] | writes JSON that moves no cursor, and sizes |
//! | [`budget`] | the memory limit for the work on one image |
//! | [`digest`] | content digests and hashing |
//! | [`code`] | the stable words for faults of an index, an image or a ztoc |
//! | [`progress`] | progress events |
//! | [`path`] | names and paths of tars, cleaned and shown |
//! | [`glob`] | patterns for paths and repository names |
//! | [`codec`] | decodes compressed bytes and reports where decoding can resume |
//! | [`tar`] | parses tar entries with the semantics of Go's archive/tar |
//! | [`ztoc`] | the table of contents of one layer: model, encoding, decoding |
//! | [`fine`] | the fine document of one layer: model, encoding, decoding |
//! | [`layer`] | builds the ztoc of a layer from its blob, and reads layers |
//! | [`tree`] | combines the layers of an image to one tree of files |
//! | [`image`] | references, platforms, manifests, the SOCI index |
//! | [`header`] | headers of registries' answers: challenges, links |
//! | [`event`] | the push notifications of registries |
//!
//! Nothing here accesses files, sockets or clocks, and nothing is async. The crate `ociseek` builds
//! on it: stores, file systems, the command line.

#![warn(missing_docs)]

pub mod budget;
pub mod code;
pub mod codec;
mod copy;
pub mod digest;
pub mod event;
pub mod fine;
pub mod glob;
pub mod header;
pub mod image;
#[doc(hidden)]
pub mod internals;
pub mod layer;
pub mod offset;
mod opaque;
pub mod path;
pub mod printable;
pub mod progress;
pub mod tar;
pub mod time;
pub mod tree;
pub mod ztoc;
