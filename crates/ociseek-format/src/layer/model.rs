//! The options and results of indexing one layer.

use std::io;

use super::UnservableReason;
use crate::budget::OverBudget;
use crate::codec::gzip::GzipError;
use crate::digest::Digest;
use crate::fine::{FineError, FineLayer};
use crate::tar::TarError;

/// The name and version of this program, recorded in ztocs and SOCI indexes by default.
pub const TOOL_IDENTIFIER: &str = concat!("ociseek v", env!("CARGO_PKG_VERSION"));

/// Options for indexing a layer. The same options and blob give the same ztoc, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerOptions {
    /// Minimum number of tar bytes between two checkpoints; greater than 0.
    pub span_size: u64,
    /// The tool name recorded in the ztoc and in the SOCI index.
    pub build_tool_identifier: String,
    /// Whether to collect the layer's [fine document](crate::fine) too. This limits decoding to one
    /// thread.
    pub fine: bool,
}

/// Spans of 4 MiB, the default of soci's own tool, [`TOOL_IDENTIFIER`], and no fine document.
impl Default for LayerOptions {
    fn default() -> LayerOptions {
        LayerOptions { span_size: 4 << 20, build_tool_identifier: TOOL_IDENTIFIER.to_owned(), fine: false }
    }
}

/// The result of reading a valid blob completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedLayer {
    /// Digest of the blob, with the algorithm of the expected digest (SHA-256 if there is none).
    pub digest: Digest,
    /// Size of the blob in bytes.
    pub size: u64,
    /// The layer's ztoc, or why there is none.
    pub outcome: Outcome,
    /// The layer's fine document, if it was requested, the layer has a ztoc, and its digest is a
    /// SHA-256.
    pub fine: Option<FineLayer>,
}

/// The outcome for a valid layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A ztoc that consumers accept.
    Ztoc(BuiltZtoc),
    /// The layer is valid, but no consumer could serve files from its ztoc.
    Unservable(UnservableReason),
}

/// An encoded ztoc with its key figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltZtoc {
    /// The ztoc as it is pushed.
    pub bytes: Vec<u8>,
    /// SHA-256 of `bytes`.
    pub digest: Digest,
    /// The number of spans: one more than there are checkpoints after the start.
    pub spans: u32,
    /// The number of tar entries of any type.
    pub entries: u64,
    /// Size of the tar in bytes, up to where its reader stops.
    pub uncompressed_size: u64,
    /// The format of the blob.
    pub form: BlobForm,
}

/// The format of a layer's blob, among those that have ztocs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobForm {
    /// A plain tar.
    Tar,
    /// One gzip member, or several in a row.
    Gzip {
        /// The number of members in the gzip stream. Consumers before soci-snapshotter 0.14 misread
        /// more than one. None if unknown, because a ztoc does not state it.
        members: Option<u64>,
    },
}

impl BlobForm {
    /// The number of gzip members in the blob, if known.
    pub fn gzip_members(self) -> Option<u64> {
        match self {
            BlobForm::Tar => Some(0),
            BlobForm::Gzip { members } => members,
        }
    }
}

/// Why a layer cannot be read completely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum LayerError {
    #[error(transparent)]
    Gzip(#[from] GzipError),
    #[error(transparent)]
    Tar(#[from] TarError),
    /// Neither a tar nor a compressed tar.
    #[error("not a layer: it looks like {looks_like}")]
    NotALayer {
        looks_like: &'static str,
        #[source]
        cause: TarError,
    },
    /// Its list of files or its checkpoints exceed the image's memory budget.
    #[error("its table of contents does not fit into memory")]
    Memory(#[from] OverBudget),
    #[error("its fine document cannot be made")]
    Fine(#[source] FineError),
    /// For local reading: the compression is not supported.
    #[error("it is compressed with {0}")]
    Compression(&'static str),
    /// For local reading: its entries or checkpoints exceed the limit for a layer of its size.
    #[error("its entries or checkpoints exceed the limit for a layer of its size")]
    TooLarge,
    /// For local reading: the zstd stream is not valid.
    #[error("{0}")]
    Zstd(String),
    #[error("the blob has {actual} bytes, but its descriptor says {expected}")]
    Size { expected: u64, actual: u64 },
    #[error("the blob's digest is {actual}, not {expected}")]
    Digest { expected: Digest, actual: Digest },
}

impl From<FineError> for LayerError {
    fn from(error: FineError) -> LayerError {
        match error {
            FineError::Memory(over) => LayerError::Memory(over),
            other => LayerError::Fine(other),
        }
    }
}

impl From<io::Error> for LayerError {
    /// Errors of the zstd decoder.
    fn from(error: io::Error) -> LayerError {
        LayerError::Zstd(error.to_string())
    }
}

/// Why a layer has no ztoc.
pub(super) enum NoZtoc {
    Unservable(UnservableReason),
    Broken(LayerError),
}

impl From<UnservableReason> for NoZtoc {
    fn from(unservable: UnservableReason) -> NoZtoc {
        NoZtoc::Unservable(unservable)
    }
}

impl From<LayerError> for NoZtoc {
    fn from(error: LayerError) -> NoZtoc {
        NoZtoc::Broken(error)
    }
}

impl From<GzipError> for NoZtoc {
    fn from(error: GzipError) -> NoZtoc {
        NoZtoc::Broken(error.into())
    }
}

impl From<FineError> for NoZtoc {
    fn from(error: FineError) -> NoZtoc {
        NoZtoc::Broken(error.into())
    }
}

impl From<OverBudget> for NoZtoc {
    fn from(error: OverBudget) -> NoZtoc {
        NoZtoc::Broken(error.into())
    }
}

impl From<io::Error> for NoZtoc {
    /// Errors of the zstd decoder.
    fn from(error: io::Error) -> NoZtoc {
        NoZtoc::Broken(error.into())
    }
}
