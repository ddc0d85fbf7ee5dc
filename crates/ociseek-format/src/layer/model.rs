//! The options and results of indexing one layer.

use std::fmt;
use std::io;

use super::slices::KeepSpans;
use crate::budget::OverBudget;
use crate::codec::gzip::GzipError;
use crate::codec::sniff::Format;
use crate::digest::Digest;
use crate::fine::{FineError, FineLayer};
use crate::offset::SpanSize;
use crate::tar::TarError;

/// The name and version of this program, recorded in ztocs and SOCI indexes by default.
pub const TOOL_IDENTIFIER: &str = concat!("ociseek v", env!("CARGO_PKG_VERSION"));

/// Options for indexing a layer. The same options and blob give the same ztoc, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerOptions {
    /// The least number of tar bytes between two checkpoints.
    pub span_size: SpanSize,
    /// The tool name recorded in the ztoc and in the SOCI index.
    pub build_tool_identifier: String,
    /// Whether to collect the layer's [fine document](crate::fine) too. This limits decoding to one
    /// thread.
    pub fine: bool,
}

/// Spans of 4 MiB, the default of soci's own tool, [`TOOL_IDENTIFIER`], and no fine document.
impl Default for LayerOptions {
    fn default() -> LayerOptions {
        LayerOptions {
            span_size: SpanSize::DEFAULT,
            build_tool_identifier: TOOL_IDENTIFIER.to_owned(),
            fine: false,
        }
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
    /// The layer's fine document, if it was requested, the layer has a ztoc or is zstd that is
    /// servable otherwise, and its digest is a SHA-256.
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

impl LayerError {
    /// Whether the bytes of the layer cannot be decoded, although they are the right ones.
    pub fn is_of_content(&self) -> bool {
        matches!(
            self,
            LayerError::Gzip(_)
                | LayerError::Tar(_)
                | LayerError::NotALayer { .. }
                | LayerError::Zstd(_)
        )
    }
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

/// Why a valid layer gets no ztoc.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct UnservableReason {
    /// The kind of reason.
    pub code: UnservableCode,
    /// The reason in words: one line that names the entry or offset.
    pub reason: String,
}

impl UnservableReason {
    /// A verdict.
    pub fn new(code: UnservableCode, reason: impl Into<String>) -> UnservableReason {
        UnservableReason { code, reason: reason.into() }
    }
}

/// Defines [`UnservableCode`] from words and their meanings.
macro_rules! codes {
    ($($code:ident $word:literal $meaning:literal,)*) => {
        /// The kinds of reasons. Programs read [`UnservableCode::word`], which never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum UnservableCode {
            $(#[doc = $meaning] $code,)*
        }

        impl UnservableCode {
            /// Every code.
            pub const ALL: &[UnservableCode] = &[$(UnservableCode::$code),*];

            /// The stable word.
            pub fn word(self) -> &'static str {
                match self {
                    $(UnservableCode::$code => $word,)*
                }
            }

            /// The code of a stored word; None for any other text.
            pub fn from_word(word: &str) -> Option<UnservableCode> {
                match word {
                    $($word => Some(UnservableCode::$code),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    BelowNonDirectory "below-non-directory" "an entry is below something that is not a directory",
    Broken "broken" "the layer, which is zstd, cannot be decoded",
    Compression "compression" "the layer's compression is not gzip",
    Empty "empty" "the blob is empty",
    EmptyXattr "empty-xattr" "an entry has several extended attributes, one of them empty or too long",
    EndsOnSpanBorder "ends-on-span-border" "the last file of a plain tar ends where the blob and a span end",
    EntryType "entry-type" "an entry has a type that a ztoc cannot express",
    HardLinkTarget "hard-link-target" "a hard link's target is not an earlier file, or is replaced by a directory",
    LongName "long-name" "a name is too long for the consumer's database",
    ModeTypeBits "mode-type-bits" "a regular file has the mode of another type",
    MtimeOutOfRange "mtime-out-of-range" "an entry was modified outside the years 0 to 9999",
    NamesRoot "names-root" "the root entry is not a directory",
    OwnerOutOfRange "owner-out-of-range" "the owner of an entry does not have 32-bit IDs",
    PaddingPastSpan "padding-past-span" "the zeros after the end of the tar extend into another span",
    PaxGlobalHeader "pax-global-header" "the tar has a PAX global header",
    RepeatedDirectory "repeated-directory" "a directory replaces an entry of which consumers would keep a part",
    SizeWithoutData "size-without-data" "an entry claims data that its type does not allow",
    SpanTooLarge "span-too-large" "a span is larger than consumers support",
    SparseFile "sparse-file" "an entry is a sparse file",
    TrailingBytes "trailing-bytes" "non-gzip bytes follow the last member",
    ZtocTooLarge "ztoc-too-large" "the ztoc would be too large for any reader",
}

impl fmt::Display for UnservableCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

pub(super) fn not_read_lazily(format: Format) -> UnservableReason {
    let reason = format!(
        "it is compressed with {format}, which consumers of SOCI indexes do not read lazily"
    );
    UnservableReason::new(UnservableCode::Compression, reason)
}

/// Options for reading a layer locally, without publishing an index.
pub struct ReadOptions {
    /// The least distance between two checkpoints, in bytes of the tar.
    pub span_size: SpanSize,
    /// The size of a span in bytes of the tar, for a layer that can only be decoded from its start.
    pub whole_span_size: SpanSize,
    /// Receives the plain bytes of spans.
    pub keeper: Option<Box<dyn KeepSpans>>,
    /// Whether `keeper` also receives the spans of a plain tar.
    pub keeps_plain: bool,
}

crate::opaque_debug!(ReadOptions);

/// Spans of 2 MiB, or of 4 MiB if the layer can only be decoded from its start, and no keeper.
impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions {
            span_size: SpanSize::mib::<2>(),
            whole_span_size: SpanSize::mib::<4>(),
            keeper: None,
            keeps_plain: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_words_are_unique() {
        for &code in UnservableCode::ALL {
            assert_eq!(UnservableCode::from_word(code.word()), Some(code));
            assert!(code.word().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
        }
        assert_eq!(UnservableCode::from_word("window"), None);
    }
}
