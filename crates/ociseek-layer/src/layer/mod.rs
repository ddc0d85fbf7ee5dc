//! Indexes and reads one layer.
//!
//! A blob is scanned once, under one of two policies. [`LayerIndexer`] and [`parallel::index_chunks`]
//! are strict: they return a ztoc that can be published, or the reason why no consumer could use
//! one. [`parallel::read_chunks`] is lenient: its result is only used locally.
//!
//! Internally, `scan` decodes with [codec](crate::codec) and finds the entries with the [tar
//! walk](crate::tar), `hashes` hashes, possibly on another thread, `spans` decides where
//! checkpoints go, and `consumer` decides whether consumers of the index could serve files from it.
//! [`span`] works in the other direction: from a ztoc or a [`LayerMap`] and ranges of the blob to
//! the bytes of files. [`record`] stores a map. [`prove`] checks a ztoc against its layer, which it
//! decodes with other decoders.

mod body;
mod consumer;
mod contents;
mod divide;
mod fine;
mod format;
mod hashes;
mod indexer;
mod lenient;
pub mod map;
mod model;
pub mod parallel;
pub mod prove;
pub mod record;
mod scan;
mod scan_result;
mod slices;
pub mod span;
pub mod spans;
mod tree;
mod unservable;

pub use consumer::servable;
pub use consumer::{file as stated, shown};
pub use divide::divide_span;
pub use format::format;
pub use indexer::LayerIndexer;
pub use lenient::Notes;
pub use map::{LayerMap, Starts};
pub use model::{BlobForm, BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, TOOL_IDENTIFIER};
pub use scan::ReadOptions;
pub use scan_result::MappedLayer;
pub use slices::KeepSpans;
pub use spans::are_chosen;
pub(crate) use tree::below_root;
pub use tree::clean;
pub use unservable::{Unservable, UnservableCode};
