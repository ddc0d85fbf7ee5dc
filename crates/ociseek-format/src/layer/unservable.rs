//! The reasons why a valid layer gets no ztoc, each with a stable word.

use std::fmt;

use crate::codec::sniff::Format;

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
    let reason = format!("it is compressed with {format}, which consumers of SOCI indexes do not read lazily");
    UnservableReason::new(UnservableCode::Compression, reason)
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
