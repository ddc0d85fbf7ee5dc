//! Why a sound layer gets no ztoc: the reasons, each with its stable word, once.

use std::fmt;

/// Why a sound layer gets no ztoc.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unservable {
    /// The kind of reason.
    pub code: UnservableCode,
    /// The reason for people: one line, naming the entry or offset.
    pub reason: String,
}

impl Unservable {
    /// A verdict.
    pub fn new(code: UnservableCode, reason: impl Into<String>) -> Unservable {
        Unservable { code, reason: reason.into() }
    }
}

/// Defines [`UnservableCode`] from its words and what they mean.
macro_rules! codes {
    ($($code:ident $word:literal $meaning:literal,)*) => {
        /// The kinds of reasons. Programs get [`UnservableCode::word`], which never changes.
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

            /// The code of a word that was written down earlier; none for any other text.
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
    BelowNonDirectory "below-non-directory" "an entry lies below something that is not a directory",
    Compression "compression" "the layer is compressed with something else than gzip",
    Empty "empty" "the blob has no bytes",
    EmptyXattr "empty-xattr" "an entry has several extended attributes, one of them empty or overlong",
    EndsOnSpanBorder "ends-on-span-border" "the last file of a plain tar ends where the blob and a span end",
    EntryType "entry-type" "an entry has a type that no ztoc states",
    HardLinkTarget "hard-link-target" "a hard link does not lead to an earlier file of the layer, or a directory replaces its target",
    LongName "long-name" "a name is longer than the consumer's database takes",
    ModeTypeBits "mode-type-bits" "the mode of a regular file is that of another type",
    MtimeOutOfRange "mtime-out-of-range" "an entry was modified outside of the years 0 to 9999",
    NamesRoot "names-root" "an entry stands for the root and is not a directory",
    OwnerOutOfRange "owner-out-of-range" "the owner of an entry is not a pair of 32-bit ids",
    PaddingPastSpan "padding-past-span" "the zeros behind the tar's end reach past the start of a span",
    PaxGlobalHeader "pax-global-header" "the tar has a PAX global header",
    SizeWithoutData "size-without-data" "an entry claims data that its type cannot have",
    SpanTooLarge "span-too-large" "a span has more bytes than consumers can count",
    SparseFile "sparse-file" "an entry is a sparse file",
    TrailingBytes "trailing-bytes" "bytes that are not gzip follow the last member",
    ZtocTooLarge "ztoc-too-large" "the ztoc would be larger than any reader takes",
}

impl fmt::Display for UnservableCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_that_of_one_code() {
        for &code in UnservableCode::ALL {
            assert_eq!(UnservableCode::from_word(code.word()), Some(code));
            assert!(code.word().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
        }
        assert_eq!(UnservableCode::from_word("window"), None);
    }
}
