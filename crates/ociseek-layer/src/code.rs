//! The stable words for what `verify` and `ztoc verify` find, each once.

/// Defines [`Code`] from its words and what they mean.
macro_rules! codes {
    ($($code:ident $word:literal $meaning:literal,)*) => {
        /// What is wrong with an index, with the image that it is found on, or with a ztoc. Programs
        /// get [`Code::word`], which never changes.
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
    IndexMissing "index-missing" "the index is listed, and is not there",
    IndexDamaged "index-damaged" "the index does not have the digest or the size by which it is listed",
    IndexMalformed "index-malformed" "what is listed as an index is not a SOCI index of that version",
    IndexUnread "index-unread" "the index was not read, since too many are listed before it",
    Subject "subject" "the index is that of another image",
    NotCanonical "not-canonical" "the JSON of the index is not what Go's encoder writes, so soci-snapshotter ignores the index",
    LayerNotInImage "layer-not-in-image" "the index lists a ztoc for a layer that the image does not have",
    SecondZtoc "second-ztoc" "the index lists two ztocs for one layer",
    ZtocTooLarge "ztoc-too-large" "the index lists a ztoc that is larger than any reader takes",
    LayerNotServable "layer-not-servable" "the index lists a ztoc for a layer whose media type cannot have one",
    MediaTypeAnnotation "media-type-annotation" "index and image manifest disagree on a layer's media type",
    NotBesideImage "not-beside-image" "a warning: the image index does not list the index, so that a copy of the image leaves it behind",
    UnknownBlob "unknown-blob" "a warning: the index lists something that is neither a ztoc nor a prefetch list",
    PrefetchMissing "prefetch-missing" "a prefetch list that the index names is not there",
    PrefetchDamaged "prefetch-damaged" "a prefetch list does not have the digest or the size that the index states",
    PrefetchMalformed "prefetch-malformed" "what the index names as a prefetch list is not one",
    PrefetchLayer "prefetch-layer" "a prefetch list is for a layer that has no ztoc in the index, or that has another list",
    PrefetchRange "prefetch-range" "a prefetch list names spans that the layer does not have",
    PrefetchOverlap "prefetch-overlap" "a warning: a prefetch list names a span twice",
    SpanSizeAnnotation "span-size-annotation" "index and ztoc disagree on the size of the spans",
    ZtocMissing "ztoc-missing" "a ztoc that the index lists is not there",
    ZtocDamaged "ztoc-damaged" "a ztoc does not have the digest or the size that the index states",
    ZtocMalformed "ztoc-malformed" "the bytes of the ztoc are not a ztoc, or its parts contradict each other",
    Version "version" "the ztoc has another format version than 0.9",
    Compression "compression" "the ztoc is for a layer of another compression",
    Size "size" "a size in the ztoc is not that of the layer, or of its tar",
    Spans "spans" "the ztoc's spans do not fit together",
    Unservable "unservable" "consumers refuse a layer like this one",
    LayerMissing "layer-missing" "a layer is not there",
    LayerDamaged "layer-damaged" "a layer does not have the size that the image manifest states",
    LayerDigest "layer-digest" "a layer does not have the digest that the image manifest states",
    BrokenLayer "broken-layer" "the layer cannot be decompressed to its end",
    BrokenTar "broken-tar" "the layer's tar cannot be read",
    SpanRange "span-range" "a span lies behind the end of the layer",
    SpanDigest "span-digest" "a span's bytes do not have the digest that the ztoc states",
    SpanContent "span-content" "decoding a span from its checkpoint does not give the bytes of the tar",
    CheckpointWindow "checkpoint-window" "the window of a checkpoint is not what precedes it in the tar",
    EntryRange "entry-range" "an entry of the ztoc overlaps another one, or lies behind the end of the tar",
    EntryMissing "entry-missing" "an entry of the tar is not in the ztoc",
    EntryAdded "entry-added" "an entry of the ztoc is not in the tar",
    EntryOrder "entry-order" "an entry of the ztoc is not at its place",
    EntryField "entry-field" "the ztoc states something else about an entry than the tar",
    NoIndex "no-index" "the policy asks for an index, and the image of a platform has none",
    Coverage "coverage" "the index covers less of the image than the policy asks for",
    ZtocRatio "ztoc-ratio" "a ztoc is larger, beside its layer, than the policy allows",
    Tool "tool" "the index was made by a tool that the policy does not allow, or does not say by which",
    ZtocTool "ztoc-tool" "a ztoc was made by a tool that the policy does not allow",
    SignatureMissing "signature-missing" "the policy asks for a signature, and there is none",
    SignatureUntrusted "signature-untrusted" "there are signatures, and none is a valid one by a key or certificate that the policy trusts",
    More "more" "how many more differences were found in a layer than are listed",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_word_stands_for_one_thing() {
        let words: BTreeSet<&str> = Code::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        for word in words {
            assert!(word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{word}");
        }
    }
}
