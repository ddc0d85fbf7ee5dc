//! The SOCI-enabled image (version 2) that a job makes beside or instead of an index, and what
//! became of it.

use serde_json::{Value, json};

use super::job::Skipped;
use crate::digest::Digest;
use crate::image::{Reference, TagError};

/// The SOCI-enabled image of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnabledImage {
    /// By its tag. None: there is no tag for it.
    pub name: Option<Reference>,
    /// What became of it.
    pub result: Enabling,
}

/// What became of the SOCI-enabled image of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enabling {
    /// `replaced` is what the tag named before.
    Written {
        /// The digest of its image index.
        digest: Digest,
        /// What the tag named before; none if the tag is new.
        replaced: Option<Digest>,
    },
    /// This very image was there under its tag: nothing was written.
    AlreadyThere(Digest),
    /// There is none, since the job was skipped.
    NothingToIndex(Skipped),
    /// The time was up before all layers were indexed; this many are left.
    OutOfTime {
        /// How many layers are not indexed yet.
        left: usize,
    },
    /// There is none, for this reason.
    Skipped(NotEnabled),
}

/// Why no SOCI-enabled image is written, though nothing failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum NotEnabled {
    #[error(transparent)]
    Tag(#[from] TagError),
    #[error("the tag already points to {0}, which is not a SOCI-enabled image, and was left unchanged")]
    Occupied(Digest),
    #[error("the tag {0} names another image now")]
    Moved(String),
    #[error("the tag {0} is gone")]
    Untagged(String),
    /// Of what the tag names now.
    #[error("the tag names another image now: {0}")]
    Skipped(Box<Skipped>),
}

impl NotEnabled {
    /// A stable word for logs.
    pub fn code(&self) -> &'static str {
        match self {
            NotEnabled::Tag(TagError::NoTag(_)) => "no-tag",
            NotEnabled::Tag(TagError::Own(_)) => "own-tag",
            NotEnabled::Tag(_) => "invalid-tag",
            NotEnabled::Occupied(_) => "tag-taken",
            NotEnabled::Moved(_) => "tag-moved",
            NotEnabled::Untagged(_) => "tag-gone",
            NotEnabled::Skipped(skipped) => skipped.code(),
        }
    }
}

impl EnabledImage {
    /// A stable word for logs and metrics.
    pub fn status(&self) -> &'static str {
        match &self.result {
            Enabling::Written { .. } => "written",
            Enabling::AlreadyThere(_) => "already-there",
            Enabling::NothingToIndex(_) => "nothing-to-index",
            Enabling::OutOfTime { .. } => "out-of-time",
            Enabling::Skipped(_) => "skipped",
        }
    }

    /// The digest of the SOCI-enabled image, if there is one now.
    pub fn digest(&self) -> Option<Digest> {
        match &self.result {
            Enabling::Written { digest, .. } | Enabling::AlreadyThere(digest) => Some(*digest),
            Enabling::NothingToIndex(_) | Enabling::OutOfTime { .. } | Enabling::Skipped(_) => None,
        }
    }

    /// Its name with its digest, as far as there are any.
    pub fn reference(&self) -> Option<Reference> {
        self.name.clone().map(|name| Reference { digest: self.digest(), ..name })
    }

    /// Why there is none: a stable word, and a sentence.
    pub fn reason(&self) -> Option<(&'static str, String)> {
        match &self.result {
            Enabling::NothingToIndex(why) => Some((why.code(), why.to_string())),
            Enabling::Skipped(why) => Some((why.code(), why.to_string())),
            Enabling::Written { .. } | Enabling::AlreadyThere(_) | Enabling::OutOfTime { .. } => None,
        }
    }

    /// For logs and answers: `image`, `digest` and `status`; `replaced`, `left`, or `reason` and
    /// `message` where there are any.
    pub fn to_json(&self) -> Value {
        let mut said = json!({
            "image": self.reference().map(|name| name.to_string()),
            "digest": self.digest(),
            "status": self.status(),
        });
        match &self.result {
            Enabling::Written { replaced: Some(replaced), .. } => said["replaced"] = json!(replaced),
            Enabling::OutOfTime { left } => said["left"] = json!(left),
            _ => {}
        }
        if let Some((code, message)) = self.reason() {
            said["reason"] = json!(code);
            said["message"] = json!(message);
        }
        said
    }
}
