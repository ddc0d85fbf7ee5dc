//! The types that all stores return.

use bytes::Bytes;

use ociseek_format::digest::Digest;
use ociseek_format::image::{DEFAULT_TAG, Descriptor, Reference};

/// A manifest or image index from a store. Its bytes match its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The media type with which the store returned it.
    pub media_type: String,
    /// The digest of `bytes`.
    pub digest: Digest,
    /// The document.
    pub bytes: Bytes,
}

/// How an index came to be a referrer of its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachMethod {
    /// The registry linked it itself (it answered with `OCI-Subject`).
    ReferrersApi,
    /// The client added it to the index under this tag (`sha256-…`), for registries without the
    /// API.
    TagSchema(String),
    /// An entry in an OCI layout's index.json.
    Layout,
}

/// The result of attaching an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachReport {
    /// Where the index is listed now.
    pub attached: AttachMethod,
    /// Replaced manifests that the registry refused to delete. With the referrers API they are
    /// still listed, with the tag schema they are not.
    pub not_deleted: Vec<Digest>,
}

/// The referrers of a manifest, and how they were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referrers {
    /// The referrers, in the order in which the store lists them.
    pub descriptors: Vec<Descriptor>,
    /// Whether the store's own API listed them, instead of a tag.
    pub api: bool,
}

/// The name of a manifest in a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// A tag, which can be moved.
    Tag(String),
    /// A digest, which always names the same content.
    Digest(Digest),
}

impl Target {
    /// The target of a reference: its digest if it has one, otherwise its tag.
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
