//! One layer: from the bytes of its blob to what it can be read by.
//!
//! A blob is scanned once, under one of two policies. [`LayerIndexer`] and [`parallel::index_chunks`]
//! are strict: what they yield is a ztoc for others, or why no consumer could be served from it.
//! [`parallel::read_chunks`] is lenient: the layer is only read here.
//!
//! Inside, `scan` has the [codec](crate::codec) decode and the [tar walk](crate::tar) find the
//! entries, `hashes` hashes, which another thread can do, `spans` decides where checkpoints go, and
//! `consumer` judges whether what reads the index could serve files from it. [`span`] is the way
//! back: from a ztoc or a [`LayerMap`] and ranges of the blob to the bytes of files. [`record`] is how
//! a map is kept. [`prove`] holds a ztoc against its layer, which it decodes with other decoders.

mod consumer;
mod contents;
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
mod slices;
pub mod span;
pub mod spans;
mod tree;
mod unservable;

pub use consumer::servable;
pub use consumer::{file as stated, shown};
pub use format::format;
pub use indexer::LayerIndexer;
pub use lenient::Notes;
pub use map::{LayerMap, Starts};
pub use model::{BlobForm, BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, TOOL_IDENTIFIER};
pub use scan::{MappedLayer, ReadOptions};
pub use slices::KeepSpans;
pub use spans::are_chosen;
pub(crate) use tree::below_root;
pub use tree::clean;
pub use unservable::{Unservable, UnservableCode};
