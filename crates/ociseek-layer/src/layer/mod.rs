//! One layer: from the bytes of its blob to its ztoc.
//!
//! [`LayerIndexer`] takes the blob in chunks: a [`LayerScan`] and its [`LayerHashes`], which two threads can do as well. Inside, the [codec](crate::codec) decodes, the [tar walk](crate::tar) finds the
//! entries, `spans` decides where checkpoints go and hashes the spans, and `consumer` judges whether what reads the index
//! could serve files from it. [`span`] is the way back: from a ztoc and ranges of the blob to the bytes of files.

mod consumer;
mod contents;
mod hashes;
mod indexer;
mod model;
mod scan;
pub mod span;
pub mod spans;
mod tree;

pub use consumer::servable;
pub use consumer::{file as stated, metadata, shown};
pub use contents::explain;
pub use hashes::{Hashed, LayerHashes, Spans};
pub use indexer::LayerIndexer;
pub use model::{BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, Unservable};
pub use scan::{Decoded, LayerScan};
pub use spans::are_chosen;
pub use tree::clean;
