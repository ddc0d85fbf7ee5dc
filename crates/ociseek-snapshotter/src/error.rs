//! Why a call fails.

use std::io;
use std::path::PathBuf;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No such snapshot.
    #[error("snapshot {0}: not found")]
    NotFound(String),
    /// There is one already.
    #[error("snapshot {0}: already exists")]
    Exists(String),
    /// Its state does not allow the call.
    #[error("{0}: failed precondition")]
    Precondition(String),
    /// The call makes no sense.
    #[error("{0}: invalid argument")]
    Invalid(String),
    /// The image cannot be mounted.
    #[error("the image cannot be mounted: {0}")]
    Mount(String),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Files {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}
