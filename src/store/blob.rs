//! What stores hand out, whatever they are.

use bytes::Bytes;

use crate::digest::Digest;
use crate::image::{DEFAULT_TAG, Descriptor, Reference};

/// A manifest or image index as a store holds it: its bytes match its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The media type by which the store hands it out.
    pub media_type: String,
    /// The digest of `bytes`.
    pub digest: Digest,
    /// The document.
    pub bytes: Bytes,
}

/// How an index came to be a referrer of its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attached {
    /// The registry links it itself (it answered with `OCI-Subject`).
    ReferrersApi,
    /// The client wrote it into the index under this tag (`sha256-…`), as registries without the API need it.
    TagSchema(String),
    /// An entry in an OCI layout's index.json.
    Layout,
}

/// Referrers of one manifest, and how they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referrers {
    /// The referrers, in the order in which the store lists them.
    pub descriptors: Vec<Descriptor>,
    /// Whether the store's own API listed them, rather than a tag.
    pub api: bool,
}

/// What names a manifest in a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// A tag, which can come to name something else.
    Tag(String),
    /// A digest, which cannot.
    Digest(Digest),
}

impl Target {
    /// What a name stands for: its digest where it has one, else its tag.
    pub fn of(reference: &Reference) -> Target {
        match (reference.digest, reference.tag.as_deref()) {
            (Some(digest), _) => Target::Digest(digest),
            (None, tag) => Target::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Tag(tag) => f.write_str(tag),
            Target::Digest(digest) => digest.fmt(f),
        }
    }
}
