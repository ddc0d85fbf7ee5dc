//! One layer: from the bytes of its blob to its ztoc.

mod indexer;
mod model;

pub use indexer::LayerIndexer;
pub use model::{BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome, Unservable};
