//! Everything that happens to the bytes of a container image's layer, and the documents that name
//! them: bytes in, values out.
//!
//! A ztoc is the table of contents of a layer: its files, and the places in the compressed blob
//! where decoding can start. With it, a file is read from the few spans of the blob that hold it:
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! use ociseek_layer::layer::span::SpanTable;
//! use ociseek_layer::layer::{LayerIndexer, LayerOptions, Outcome};
//! use ociseek_layer::offset::SpanId;
//! use ociseek_layer::ztoc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
//! # let (mut archive, mut header) = (tar::Builder::new(gzip), tar::Header::new_gnu());
//! # header.set_size(6);
//! # header.set_mode(0o644);
//! # archive.append_data(&mut header, "etc/motd", &b"hello\n"[..])?;
//! # let blob = archive.into_inner()?.finish()?;
//! // `blob` is a layer, tar+gzip, with a file etc/motd. It comes in chunks of any size.
//! let options = LayerOptions { span_size: 4 << 20, build_tool_identifier: "example".to_owned(), fine: false };
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
//! The map, in the order in which modules may use each other (each only those above it):
//!
//! | module | what it does |
//! |---|---|
//! | [`offset`] | compressed and uncompressed offsets, span numbers: newtypes that never mix |
//! | [`time`] | points in time, as tar has them and as Go prints them |
//! | [`budget`] | how much memory the work on one image may take |
//! | [`digest`] | content digests and hashing |
//! | [`code`] | the stable words for what is wrong with an index, an image or a ztoc |
//! | [`glob`] | patterns for paths and repository names |
//! | [`codec`] | compressed bytes to plain bytes, and where decoding can resume |
//! | [`tar`] | plain bytes to entries, with the semantics of Go's archive/tar |
//! | [`ztoc`] | the table of contents of one layer: model, encoding, decoding |
//! | [`fine`] | the fine document of one layer: model, encoding, decoding |
//! | [`layer`] | the bytes of one layer's blob to its ztoc |
//! | [`tree`] | the ztocs of an image's layers to one tree of files |
//! | [`image`] | references, platforms, manifests, the SOCI index |
//! | [`event`] | the push notifications of registries |
//! | [`progress`] | what happens, as events |
//!
//! Nothing here knows a file, a socket or a clock, or is async. The crate `ociseek` stands on it:
//! stores, file systems, the command line.

pub mod budget;
pub mod code;
pub mod codec;
pub mod digest;
pub mod event;
pub mod fine;
pub mod glob;
pub mod image;
pub mod layer;
pub mod offset;
pub mod progress;
pub mod tar;
pub mod time;
pub mod tree;
pub mod ztoc;
