//! Indexes and reads one layer.
//!
//! A blob is scanned once, under one of two policies. [`LayerIndexer`] and
//! [`parallel::index_chunks`] are strict: they return a ztoc that can be published, or the reason
//! why no consumer could use one. [`parallel::read_chunks`] is lenient: its result is only used
//! locally.
//!
//! Internally, `scan` decodes with [codec](crate::codec) and finds the entries with the [tar
//! walk](crate::tar), `hashes` hashes, possibly on another thread, `checkpoints` decides where
//! spans start, `fine` collects the fine document, and `consumer` decides whether consumers of the
//! index could serve files from it. [`span`] works in the other direction: from a ztoc or a
//! [`LayerMap`] and ranges of the blob to the bytes of files. [`record`] stores a map. [`prove`]
//! checks a ztoc against its layer, which it decodes with other decoders.

mod body;
mod bounds;
mod checkpoints;
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
mod names;
pub mod parallel;
mod paths;
pub mod prove;
mod read_options;
pub mod record;
mod scan;
mod scan_result;
mod slices;
pub mod span;
mod unservable;

pub use checkpoints::are_chosen;
pub use consumer::{file as stated, servable};
pub use divide::divide_span;
pub use format::format;
pub use indexer::LayerIndexer;
pub use lenient::Notes;
pub use map::{LayerMap, Starts};
pub use model::{BlobForm, BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, TOOL_IDENTIFIER};
pub use names::shown;
pub use paths::clean;
pub(crate) use paths::{below_root, clean_into};
pub use read_options::ReadOptions;
pub use scan_result::MappedLayer;
pub use slices::KeepSpans;
pub use unservable::{UnservableCode, UnservableReason};
