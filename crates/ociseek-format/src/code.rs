//! The stable words for the findings of `verify` and `ztoc verify`.

/// Defines [`Code`] from words and their meanings.
macro_rules! codes {
    ($($code:ident $word:literal $meaning:literal,)*) => {
        /// A fault of an index, of its image, or of a ztoc. Programs read [`Code::word`], which
        /// never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $meaning] $code,)*
        }

        impl Code {
            /// Every code, in the order in which the documentation lists them.
            pub const ALL: &[Code] = &[$(Code::$code),*];

            /// The stable word.
            pub fn word(self) -> &'static str {
                match self {
                    $(Code::$code => $word,)*
                }
            }

            /// What the word means, for people.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Code::$code => $meaning,)*
                }
            }
        }
    };
}

codes! {
    Annotation "annotation" "the image manifest names a SOCI index of version 2 by something that is not a digest",
    Config "config" "the image's config is missing or damaged, or does not list as many layers as the manifest",
    DiffId "diff-id" "the tar's digest is not the diff ID in the image's config",
    IndexMissing "index-missing" "the index is listed but does not exist",
    IndexDamaged "index-damaged" "the index does not match its listed digest or size",
    IndexMalformed "index-malformed" "what is listed as an index is not a SOCI index of that version",
    IndexUnread "index-unread" "the index was not read: too many others of its kind are listed",
    Subject "subject" "the index belongs to another image",
    NotCanonical "not-canonical" "the JSON of the index is not what Go writes, so soci-snapshotter ignores it",
    LayerNotInImage "layer-not-in-image" "the index lists a ztoc for a layer that the image does not have",
    SecondZtoc "second-ztoc" "the index lists two ztocs for one layer",
    ZtocTooLarge "ztoc-too-large" "the index lists a ztoc that is too large for any reader",
    LayerNotServable "layer-not-servable" "the index lists a ztoc for a layer whose media type cannot have one",
    MediaTypeAnnotation "media-type-annotation" "the index and the image manifest disagree on a layer's media type",
    NotBesideImage "not-beside-image" "a warning: the image index does not list the SOCI index, so copies lose it",
    UnknownBlob "unknown-blob" "a warning: the index lists something that is neither a ztoc nor a prefetch list",
    PrefetchMissing "prefetch-missing" "a prefetch list named by the index does not exist",
    PrefetchDamaged "prefetch-damaged" "a prefetch list does not have the digest or the size that the index states",
    PrefetchMalformed "prefetch-malformed" "something the index names as a prefetch list is not a prefetch list",
    PrefetchLayer "prefetch-layer" "a prefetch list is for a layer that has no ztoc, or already has a list",
    PrefetchRange "prefetch-range" "a prefetch list names spans that the layer does not have",
    SpanSizeAnnotation "span-size-annotation" "the index and the ztoc disagree on the span size",
    ZtocMissing "ztoc-missing" "a ztoc listed by the index does not exist",
    ZtocDamaged "ztoc-damaged" "a ztoc does not have the digest or the size that the index states",
    ZtocMalformed "ztoc-malformed" "the ztoc cannot be decoded, or contradicts itself",
    DocumentMissing "document-missing" "a fine document listed by the fine index does not exist",
    DocumentDamaged "document-damaged" "a fine document does not have the digest or the size that the index states",
    DocumentMalformed "document-malformed" "a fine document cannot be decoded, or is not what the index says of it",
    Version "version" "the ztoc's format version is not 0.9",
    Compression "compression" "the ztoc is for another compression than the layer's",
    Size "size" "a size in the ztoc differs from the size of the layer or its tar",
    Spans "spans" "the ztoc's spans are inconsistent",
    Unservable "unservable" "consumers reject layers like this one",
    LayerMissing "layer-missing" "a layer does not exist",
    LayerDamaged "layer-damaged" "a layer does not have the size that the image manifest states",
    LayerDigest "layer-digest" "a layer does not have the digest that the image manifest states",
    BrokenLayer "broken-layer" "the layer cannot be decompressed completely",
    BrokenTar "broken-tar" "the layer's tar cannot be read",
    SpanRange "span-range" "a span extends past the end of the layer",
    SpanDigest "span-digest" "a span's bytes do not have the digest that the ztoc states",
    SpanContent "span-content" "decoding a span from its checkpoint gives other bytes than the tar",
    CheckpointWindow "checkpoint-window" "the window of a checkpoint is not the data before it in the tar",
    EntryRange "entry-range" "an entry of the ztoc overlaps another one, or extends past the end of the tar",
    EntryMissing "entry-missing" "an entry of the tar is not in the ztoc",
    EntryAdded "entry-added" "an entry of the ztoc is not in the tar",
    EntryOrder "entry-order" "an entry of the ztoc is out of order",
    EntryField "entry-field" "the ztoc and the tar disagree about an entry",
    NoIndex "no-index" "the policy requires an index, but a platform's image has none",
    Coverage "coverage" "the index covers less of the image than the policy requires",
    FineIndex "fine-index" "the policy allows no fine index, but there is one",
    SignatureMissing "signature-missing" "the policy requires a signature, but there is none",
    SignatureUntrusted "signature-untrusted" "no signature is valid for a key or certificate that the policy trusts",
    More "more" "the number of further differences in a layer that are not listed",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn code_words_are_unique() {
        let words: BTreeSet<&str> = Code::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        for word in words {
            assert!(word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{word}");
        }
    }
}
