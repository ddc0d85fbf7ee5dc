//! The SOCI-enabled image (version 2) that a job creates in addition to an index or instead of one,
//! and the result.

use serde_json::{Value, json};

pub use super::skip::NotEnabled;
use super::skip::SkipReason;
use ociseek_format::digest::Digest;
use ociseek_format::image::Reference;
use ociseek_ops::convert::CompleteImage;

/// The SOCI-enabled image of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnabledImage {
    /// The name with its tag. None if there is no tag for it.
    pub name: Option<Reference>,
    /// The result.
    pub result: EnableOutcome,
}

/// The result for the SOCI-enabled image of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnableOutcome {
    /// The image was written.
    Written {
        /// The digest of its image index.
        digest: Digest,
        /// The digest that the tag named before. None if the tag is new.
        replaced: Option<Digest>,
    },
    /// Exactly this image already had its tag, so nothing was written.
    AlreadyThere(CompleteImage),
    /// No image was made because the job was skipped.
    NothingToIndex(SkipReason),
    /// The job ran out of time before all layers were indexed.
    OutOfTime {
        /// The number of layers that are not indexed yet.
        left: usize,
    },
    /// No image was made for this reason.
    Skipped(NotEnabled),
}

impl EnabledImage {
    /// A stable word for logs and metrics.
    pub fn status(&self) -> &'static str {
        match &self.result {
            EnableOutcome::Written { .. } => "written",
            EnableOutcome::AlreadyThere(_) => "already-there",
            EnableOutcome::NothingToIndex(_) => "nothing-to-index",
            EnableOutcome::OutOfTime { .. } => "out-of-time",
            EnableOutcome::Skipped(_) => "skipped",
        }
    }

    /// The digest of the SOCI-enabled image, if it exists now.
    pub fn digest(&self) -> Option<Digest> {
        match &self.result {
            EnableOutcome::Written { digest, .. }
            | EnableOutcome::AlreadyThere(CompleteImage { digest, .. }) => Some(*digest),
            EnableOutcome::NothingToIndex(_)
            | EnableOutcome::OutOfTime { .. }
            | EnableOutcome::Skipped(_) => None,
        }
    }

    /// The name and digest of the image, as far as they are known.
    pub fn reference(&self) -> Option<Reference> {
        self.name.clone().map(|name| Reference { digest: self.digest(), ..name })
    }

    /// Why the image does not exist: a stable word and a sentence.
    pub fn reason(&self) -> Option<(&'static str, String)> {
        match &self.result {
            EnableOutcome::NothingToIndex(why) => Some((why.code(), why.to_string())),
            EnableOutcome::Skipped(why) => Some((why.code(), why.to_string())),
            EnableOutcome::Written { .. }
            | EnableOutcome::AlreadyThere(_)
            | EnableOutcome::OutOfTime { .. } => None,
        }
    }

    /// What an image that already existed was compared with: a stable word.
    pub fn checked(&self) -> Option<&'static str> {
        match &self.result {
            EnableOutcome::AlreadyThere(image) => Some(image.check.code()),
            _ => None,
        }
    }

    /// For logs and responses: `image`, `digest` and `status`, and where applicable `checked`,
    /// `replaced`, `left`, or `reason` and `message`.
    pub fn to_json(&self) -> Value {
        let mut said = json!({
            "image": self.reference().map(|name| name.to_string()),
            "digest": self.digest(),
            "status": self.status(),
        });
        match &self.result {
            EnableOutcome::Written { replaced: Some(replaced), .. } => {
                said["replaced"] = json!(replaced)
            }
            EnableOutcome::OutOfTime { left } => said["left"] = json!(left),
            _ => {}
        }
        if let Some(checked) = self.checked() {
            said["checked"] = json!(checked);
        }
        if let Some((code, message)) = self.reason() {
            said["reason"] = json!(code);
            said["message"] = json!(message);
        }
        said
    }
}
