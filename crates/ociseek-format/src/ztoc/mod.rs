//! The ztoc: a layer's table of contents, with the places where decoding can start (format:
//! soci-snapshotter, ztoc/fbs).

mod builder;
mod checkpoints;
mod decode;
mod encode;
mod error;
mod extents;
mod head;
mod model;
mod schema;
mod view;

pub use checkpoints::CheckpointsError;
pub use decode::{decode, decode_within};
pub(crate) use encode::ZtocParts;
pub use encode::{MAX_ENCODED, encode, encoded_size_bound};
pub use error::ZtocError;
pub use extents::{ExtentFault, check_extents};
pub use head::{Head, head};
pub use model::{Checkpoint, Checkpoints, Cuts, FileKind, FileMetadata, VERSION, Ztoc};
pub(crate) use model::{short_footprint, text_footprint};
pub use view::FlatbufferError;
