//! What indexing one layer needs and what it yields.

use std::io;

use crate::budget::OverBudget;
use crate::codec::gzip::GzipError;
use crate::digest::Digest;
use crate::tar::TarError;

/// How a layer is indexed. The same options and the same blob give the same ztoc, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerOptions {
    /// Bytes of tar between two checkpoints, at least; greater than 0.
    pub span_size: u64,
    /// Stands in the ztoc and in the SOCI index.
    pub build_tool_identifier: String,
}

/// What is left when a blob was read to its end and nothing about it was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedLayer {
    /// Digest of the blob, by the algorithm of the digest that was expected (SHA-256 if none was).
    pub digest: Digest,
    /// Size of the blob in bytes.
    pub size: u64,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Ztoc(BuiltZtoc),
    /// The layer is sound, but no consumer could serve files from its ztoc.
    Unservable(Unservable),
}

/// An encoded ztoc, and what people want to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltZtoc {
    pub bytes: Vec<u8>,
    /// SHA-256 of `bytes`.
    pub digest: Digest,
    pub spans: u32,
    /// Entries of the tar, of every type.
    pub entries: u64,
    /// Size of the tar in bytes, up to where its reader stops.
    pub uncompressed_size: u64,
    /// Members of the gzip stream; 0 for a plain tar. Consumers before soci-snapshotter 0.14 misread more than one.
    pub gzip_members: u64,
}

/// Why a sound layer gets no ztoc.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unservable {
    /// A stable word for programs: one of [`Unservable::CODES`].
    pub code: &'static str,
    /// The reason for people: one line, naming the entry or offset.
    pub reason: String,
}

impl Unservable {
    /// Every code that indexing a layer can yield.
    pub const CODES: [&'static str; 19] = [
        "below-non-directory",
        "compression",
        "empty",
        "empty-xattr",
        "ends-on-span-border",
        "entry-type",
        "hard-link-target",
        "long-name",
        "mode-type-bits",
        "mtime-out-of-range",
        "names-root",
        "owner-out-of-range",
        "padding-past-span",
        "pax-global-header",
        "size-without-data",
        "span-too-large",
        "sparse-file",
        "trailing-bytes",
        "ztoc-too-large",
    ];

    pub(super) fn new(code: &'static str, reason: impl Into<String>) -> Unservable {
        debug_assert!(Unservable::CODES.contains(&code), "{code} is not listed");
        Unservable { code, reason: reason.into() }
    }

    /// A verdict that was written down earlier. None if the code is none of ours.
    pub fn restore(code: &str, reason: String) -> Option<Unservable> {
        Unservable::CODES.iter().find(|known| **known == code).map(|code| Unservable { code, reason })
    }
}

/// Why a layer cannot be read to its end as its bytes claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayerError {
    #[error(transparent)]
    Gzip(#[from] GzipError),
    #[error(transparent)]
    Tar(#[from] TarError),
    /// Neither a tar nor a compressed one.
    #[error("this is no layer: it looks like {looks_like}")]
    NotALayer {
        looks_like: &'static str,
        #[source]
        cause: TarError,
    },
    /// The list of its files or its checkpoints do not fit into what the image may take.
    #[error("its table of contents does not fit into memory")]
    Memory(#[from] OverBudget),
    /// When it is only read here: its compression is not.
    #[error("it is compressed with {0}")]
    Compression(&'static str),
    /// When it is only read here: its entries or checkpoints come to more than is kept of a layer of its size.
    #[error("its entries or checkpoints come to more than is kept of a layer of its size")]
    TooLarge,
    /// When it is only read here.
    #[error("{0}")]
    Zstd(String),
    #[error("the blob has {actual} bytes where its descriptor says {expected}")]
    Size { expected: u64, actual: u64 },
    #[error("the blob's digest is {actual}, not {expected}")]
    Digest { expected: Digest, actual: Digest },
}

impl From<io::Error> for LayerError {
    /// Those of the zstd decoder.
    fn from(error: io::Error) -> LayerError {
        LayerError::Zstd(error.to_string())
    }
}
