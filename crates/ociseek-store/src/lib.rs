//! The places where images are stored and indexes are written (registries, OCI layouts, archives),
//! and the local cache of ztocs.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo"));
//! use std::sync::Arc;
//!
//! use ociseek_format::image::{ImageSelector, Manifest, manifest};
//! use ociseek_store::Source;
//! use ociseek_store::blob::Target;
//! use ociseek_store::layout::Layout;
//!
//! // `folder` is an OCI image layout. For a registry, only the source differs: `Source::Registry`.
//! let layout = Layout::open(folder)?;
//! let image = layout.find(&ImageSelector::Tag("latest".to_owned()))?;
//! let source = Source::Layout(Arc::new(layout));
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let document = source.manifest(&Target::Digest(image.digest)).await?;
//! let parsed = manifest::parse(Some(&document.media_type), &document.bytes)?;
//! let Manifest::Image(manifest) = parsed else { panic!("an index of several images") };
//! let config = source.blob_bytes(&manifest.config, 4 << 20).await?;
//! assert!(config.starts_with(b"{") && manifest.layers.len() == 3);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! The set is closed: a [`Source`] can be read, a [`Destination`] can be written. Local stores
//! block, so their calls run on tokio's blocking threads, and their blobs arrive through a short
//! channel.

#![warn(missing_docs)]

use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::spawn_blocking;

pub use destination::Destination;
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::progress::{ProgressEvent, causes, sources};
pub use source::Source;
pub use stream::{Blob, Buffers, Part};

use layout::LayoutError;
use registry::RegistryError;

pub mod archive;
pub mod blob;
pub mod cache;
pub mod copy;
mod destination;
pub mod disk_watch;
pub mod durable;
pub mod entries;
pub mod feed;
mod key_exchange;
pub mod known;
pub mod layout;
pub mod lock;
pub mod recall;
pub mod registry;
pub mod signatures;
mod source;
pub mod state_file;
mod stream;
pub mod x509;

/// The user's home folder: `$HOME`, else what the system has for the user. systemd gives system
/// units without `User=` no `$HOME`.
pub fn home_dir() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute())
}

/// The cause of an error in a library for TLS, HTTP or the like. Its type is not named, so the
/// library can be replaced.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why a store could not complete a call.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum StoreError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Local(#[from] LayoutError),
    #[error("cannot read blob {digest}")]
    Read { digest: Digest, source: io::Error },
    #[error("bytes {} to {} are outside blob {digest} of {size} bytes", range.start, range.end)]
    Range { digest: Digest, range: Range<u64>, size: u64 },
    #[error("the disk thread stopped unexpectedly")]
    Thread,
    #[error(transparent)]
    Memory(#[from] OverBudget),
    /// Both times the content of a registry was not what was asked for.
    #[error("it was read twice")]
    Twice(#[source] Box<StoreError>),
}

impl StoreError {
    /// The first error of a store among `error` and its causes.
    pub fn among<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a StoreError> {
        sources(error).find_map(|cause| cause.downcast_ref())
    }

    /// The content does not exist in the store.
    pub fn is_not_found(&self) -> bool {
        match self {
            StoreError::Registry(error) => error.is_not_found(),
            StoreError::Local(error) => matches!(error, LayoutError::Missing { .. }),
            _ => false,
        }
    }

    /// The memory limit for an image was exceeded.
    pub fn is_over_budget(&self) -> bool {
        matches!(self, StoreError::Memory(_) | StoreError::Registry(RegistryError::Memory(_)))
    }

    /// The store does not have the content, or has it damaged: nobody can read it there.
    pub fn is_lost(&self) -> bool {
        self.is_not_found()
            || matches!(
                self,
                StoreError::Local(LayoutError::Size { .. } | LayoutError::Damaged { .. })
            )
    }

    /// Whether the store may have the content although it could not be read now.
    pub fn may_exist(&self) -> bool {
        match self {
            StoreError::Registry(error) => !error.is_not_found() && !error.is_other_content(),
            StoreError::Local(error) => matches!(error, LayoutError::Io { .. }),
            StoreError::Read { .. } | StoreError::Thread => true,
            StoreError::Range { .. } | StoreError::Memory(_) | StoreError::Twice(_) => false,
        }
    }

    /// The content is something else than what was to be copied.
    pub fn is_other_content(&self) -> bool {
        match self {
            StoreError::Registry(error) => error.is_other_content(),
            StoreError::Local(error) => matches!(error, LayoutError::Content { .. }),
            StoreError::Twice(error) => error.is_other_content(),
            _ => false,
        }
    }

    /// Whether the operation may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Registry(error) => error.is_transient(),
            // Whether a full disk, for example, will soon have space again is unknown.
            StoreError::Local(_) | StoreError::Read { .. } | StoreError::Thread => true,
            StoreError::Range { .. } | StoreError::Memory(_) | StoreError::Twice(_) => false,
        }
    }

    /// Whether the registry refuses the content itself: not the login, and not for now.
    pub fn is_refused_content(&self) -> bool {
        match self {
            StoreError::Registry(error) => {
                matches!(error.status(), Some(400..=499))
                    && !matches!(error.status(), Some(401 | 403 | 408 | 429))
            }
            _ => false,
        }
    }

    /// The registry refuses it to this login (403), or refuses the content in the words of one.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, StoreError::Registry(error) if error.status() == Some(403))
    }

    /// A manifest was refused because a blob that it names does not exist.
    pub fn is_blob_unknown(&self) -> bool {
        matches!(self, StoreError::Registry(error) if error.is_blob_unknown())
    }
}

/// For messages about damaged content: says so if it was read twice.
pub fn read_times(reads: u32) -> &'static str {
    if reads > 1 { " (it was read twice)" } else { "" }
}

/// What is reported before content that a registry sent is read once more.
pub fn damaged(what: &str, digest: &Digest, error: &dyn Error) -> ProgressEvent {
    ProgressEvent::Warning(format!(
        "{what} {digest} arrived damaged, and is read once more: {}",
        causes(error)
    ))
}

/// The most memory that a byte of a manifest can become, in bytes: parsed, and copied into the
/// report for each layer.
pub(crate) const DOCUMENT_COST: u64 = 8;

/// The same bytes. They stay charged for as long as they exist.
pub fn charged(content: Bytes, charge: Charge) -> Bytes {
    struct ChargedBytes {
        content: Bytes,
        _charge: Charge,
    }
    impl AsRef<[u8]> for ChargedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.content
        }
    }
    Bytes::from_owner(ChargedBytes { content, _charge: charge })
}

/// The requests to a registry and the size of the responses, without headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of requests sent, including those for tokens and after redirects.
    pub requests: u64,
    /// The size of the response bodies in bytes.
    pub bytes: u64,
}

/// Runs `work`, which opens a local store or finds an image in one, on a thread that may block.
///
/// # Errors
/// Those of `work`.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LayoutError> + Send + 'static,
) -> Result<T, StoreError> {
    Ok(spawn_blocking(work).await.map_err(|_| StoreError::Thread)??)
}

async fn local<S: Send + Sync + 'static, T: Send + 'static>(
    store: &Arc<S>,
    work: impl FnOnce(&S) -> Result<T, LayoutError> + Send + 'static,
) -> Result<T, StoreError> {
    let store = Arc::clone(store);
    blocking(move || work(&store)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise, an index that could not be read once would be replaced as if it were lost.
    #[test]
    fn content_that_could_not_be_read_may_exist() {
        let path = std::path::PathBuf::from("layout");
        let digest = Digest::sha256(b"x");
        let source = io::Error::from(io::ErrorKind::Other);
        let unread =
            StoreError::from(LayoutError::Io { action: "read", path: path.clone(), source });
        assert!(unread.may_exist() && StoreError::Thread.may_exist());
        let damaged = LayoutError::Damaged { path: path.clone(), expected: digest, actual: digest };
        for lost in [LayoutError::Missing { path, digest }, damaged] {
            assert!(!StoreError::from(lost).may_exist());
        }
    }
}
