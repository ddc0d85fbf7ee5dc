//! One image to be indexed, as an event names it, and what can become of it.

use std::collections::BTreeSet;

use super::enabled::{EnabledImage, NotEnabled};
use crate::digest::Digest;
use crate::image::{Reference, TagError, TagTemplate, is_referrers_tag};
use crate::ops::convert::ConvertError;
use crate::ops::index::{IndexError, IndexedImage, LeftOut};
use crate::ops::resolve::ResolveError;
use crate::ops::versions::{MakeError, Versions};
use crate::store::StoreError;
use crate::store::blob::Target;

/// An image that is to be indexed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Job {
    /// Its name, with a tag, a digest or both.
    pub image: Reference,
}

/// What counts as one piece of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// An image of a repository, whatever its tags: an index is attached to a digest.
    #[default]
    Image,
    /// Each tag of an image: each gets a SOCI-enabled image of its own name.
    Tag,
}

impl Unit {
    /// What counts as one piece of work where these versions of an index are made.
    pub fn of(versions: &Versions) -> Unit {
        match versions.template().is_some_and(TagTemplate::needs_tag) {
            true => Unit::Tag,
            false => Unit::Image,
        }
    }
}

/// What became of a job.
#[derive(Debug, Clone)]
pub enum Done {
    /// At least one platform got a new index, or the SOCI-enabled image was written.
    Indexed(Box<Products>),
    /// The time was up: layers are left, and what was done by then is attached. The same job goes on from there.
    Sparse(Box<Products>),
    /// All is there already.
    AlreadyIndexed(Box<Products>),
    /// Nothing is made for this image; why.
    Skipped(Skipped),
    /// The image is not there any more.
    Gone,
}

/// What an image has after a job.
#[derive(Debug, Clone)]
pub struct Products {
    /// The manifest or image index that the job was about.
    pub digest: Digest,
    /// If it was to be indexed.
    pub index: Option<IndexedImage>,
    /// If there was to be one.
    pub enabled: Option<EnabledImage>,
    /// Bytes of layers.
    pub bytes_read: u64,
    /// Bytes of ztocs, manifests and configs that were pushed.
    pub bytes_written: u64,
}

impl Done {
    /// What there is now, if anything was to be done.
    pub fn products(&self) -> Option<&Products> {
        match self {
            Done::Indexed(products) | Done::Sparse(products) | Done::AlreadyIndexed(products) => Some(products),
            Done::Skipped(_) | Done::Gone => None,
        }
    }

    /// A stable word for logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Done::Indexed(_) => "indexed",
            Done::Sparse(_) => "sparse",
            Done::AlreadyIndexed(_) => "already-indexed",
            Done::Skipped(_) => "skipped",
            Done::Gone => "gone",
        }
    }

    /// The manifest or image index that the job was about, as far as it was found.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Done::Skipped(Skipped::Subject(digest)) => Some(*digest),
            done => done.products().map(|products| products.digest),
        }
    }
}

/// Why there is nothing to do for what was pushed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Skipped {
    #[error("{0} is a fallback tag, where registries without the referrers API list referrers")]
    ReferrersTag(String),
    #[error("it is {0}")]
    NotAnImage(String),
    #[error("it is attached to {0}")]
    Subject(Digest),
    #[error("it is a SOCI-enabled image, or belongs to one")]
    SociEnabled,
    #[error("its layers have {size} bytes; the limit is {limit}")]
    TooLarge { size: u64, limit: u64 },
    #[error("all of its layers are smaller than {least} bytes")]
    LayersTooSmall { least: u64 },
    /// Why, by the stable words for each reason.
    #[error("none of its layers can be served lazily ({})", .0.join(", "))]
    NotServable(Vec<&'static str>),
    /// Only a SOCI-enabled image was to be made.
    #[error("no SOCI-enabled image: {0}")]
    NotEnabled(NotEnabled),
}

impl Skipped {
    /// A stable word for logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Skipped::ReferrersTag(_) => "referrers-tag",
            Skipped::NotAnImage(_) => "not-an-image",
            Skipped::Subject(_) => "has-a-subject",
            Skipped::SociEnabled => "soci-enabled",
            Skipped::TooLarge { .. } => "too-large",
            Skipped::LayersTooSmall { .. } => "layers-too-small",
            Skipped::NotServable(_) => "not-servable",
            Skipped::NotEnabled(why) => why.code(),
        }
    }

    /// No layer is in the index, for these reasons. An image that only has small layers is as its
    /// maker wants it; of another one the maker should hear.
    pub(super) fn nothing_to_index<'a>(reasons: impl Iterator<Item = &'a LeftOut>) -> Skipped {
        let (mut codes, mut size) = (BTreeSet::new(), None);
        for reason in reasons {
            codes.insert(reason.code());
            if let LeftOut::Small { least } = reason {
                size = Some(*least);
            }
        }
        match size {
            Some(least) if codes.len() == 1 => Skipped::LayersTooSmall { least },
            _ if codes.is_empty() => Skipped::NotServable(vec!["no-layers"]),
            _ => Skipped::NotServable(codes.into_iter().collect()),
        }
    }
}

/// Why an image could not be indexed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum JobError {
    #[error("the image's name is not valid")]
    Name(#[source] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Tag(#[from] TagError),
    /// The index, if there was to be one, is attached.
    #[error("cannot write the SOCI-enabled image {name}")]
    Enabled { name: Reference, source: Box<ConvertError> },
    #[error("the tag {0} keeps changing")]
    Restless(String),
}

impl From<MakeError> for JobError {
    fn from(error: MakeError) -> JobError {
        match error {
            MakeError::Tag(error) => JobError::Tag(error),
            MakeError::Index(error) => JobError::Index(*error),
        }
    }
}

impl From<ResolveError> for JobError {
    fn from(error: ResolveError) -> JobError {
        JobError::Index(error.into())
    }
}

impl JobError {
    /// Trying again may help: the registry was busy or not to be reached. What is wrong with the
    /// image, or with our right to it, stays wrong.
    pub fn is_transient(&self) -> bool {
        matches!(self, JobError::Restless(_)) || self.store().is_some_and(StoreError::is_transient)
    }

    /// The registry did not take our word for who we are.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self.store(), Some(StoreError::Registry(error)) if error.status() == Some(401))
    }

    /// What a store did not do, if that is why.
    pub(super) fn store(&self) -> Option<&StoreError> {
        match self {
            JobError::Name(_) | JobError::Tag(_) | JobError::Restless(_) => None,
            JobError::Index(error) => error.store(),
            JobError::Enabled { source, .. } => source.store(),
        }
    }
}

impl Job {
    /// What can be told by the name alone; no request is made.
    pub fn skipped_by_name(&self, versions: &Versions) -> Option<Skipped> {
        match (&self.image.tag, versions) {
            (Some(tag), _) if is_referrers_tag(tag) => Some(Skipped::ReferrersTag(tag.clone())),
            (None, Versions::V2(_)) => self.not_enabled(versions).map(Skipped::NotEnabled),
            _ => None,
        }
    }

    /// Why there will be no SOCI-enabled image, though one is wanted of every image, as far as the
    /// name alone tells.
    pub fn not_enabled(&self, versions: &Versions) -> Option<NotEnabled> {
        let template = versions.template().filter(|template| template.needs_tag() && self.image.tag.is_none())?;
        Some(TagError::NoTag(template.clone()).into())
    }

    /// The digest where it is known: a tag may have moved since the event.
    pub fn target(&self) -> Target {
        Target::of(&self.image)
    }

    /// Two jobs with the same key are the same work.
    pub fn key(&self, unit: Unit) -> String {
        match (&self.image.tag, &self.image.digest, unit) {
            (Some(_), Some(_), Unit::Tag) => self.image.to_string(),
            _ => self.image_key(),
        }
    }

    /// Jobs with the same one are about the same image, as far as their names tell.
    pub fn image_key(&self) -> String {
        format!("{}/{}@{}", self.image.registry, self.image.repository, self.target())
    }

    /// Whether the job, once it is done, stays done: what a tag names may change, and change back.
    pub fn stays_done(&self, unit: Unit) -> bool {
        self.image.digest.is_some() && (unit == Unit::Image || self.image.tag.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(image: &str) -> Job {
        Job { image: image.parse().unwrap() }
    }

    #[test]
    fn names_that_need_no_request() {
        let hex = "0123456789abcdef".repeat(4);
        for (tag, code) in [
            (format!("sha256-{hex}"), Some("referrers-tag")),
            (format!("sha512-{hex}"), Some("referrers-tag")),
            (format!("sha256-{hex}.sig"), Some("referrers-tag")),
            (format!("sha256-{hex}0"), None),
            (format!("sha256-{}", &hex[1..]), None),
            ("sha256-x".into(), None),
            ("v1-soci".into(), None),
            ("v1".into(), None),
        ] {
            let skipped = job(&format!("r.example/a:{tag}")).skipped_by_name(&Versions::V1);
            assert_eq!(skipped.map(|skipped| skipped.code()), code, "{tag}");
        }
    }

    #[test]
    fn without_a_tag_only_the_soci_enabled_image_is_left_out() {
        let by_digest = job(&format!("r.example/a@{}", Digest::sha256(b"{}")));
        let template = |text: &str| text.parse::<TagTemplate>().unwrap();
        for (versions, skipped, not_enabled) in [
            (Versions::V1, None, None),
            (Versions::Both(template("{tag}-soci")), None, Some("no-tag")),
            (Versions::V2(template("{tag}-soci")), Some("no-tag"), Some("no-tag")),
            (Versions::Both(template("{digest}-soci")), None, None),
            (Versions::V2(template("{digest}-soci")), None, None),
        ] {
            assert_eq!(by_digest.skipped_by_name(&versions).map(|why| why.code()), skipped, "{versions:?}");
            assert_eq!(by_digest.not_enabled(&versions).map(|why| why.code()), not_enabled, "{versions:?}");
            assert_eq!(job("r.example/a:v1").skipped_by_name(&versions), None);
        }
    }

    #[test]
    fn the_digest_is_what_makes_a_job() {
        let digest = Digest::sha256(b"{}");
        let [one, two] = ["1", "2"].map(|tag| job(&format!("r.example/a:{tag}@{digest}")));
        assert_eq!(one.key(Unit::Image), two.key(Unit::Image));
        assert_eq!(one.target(), Target::Digest(digest));
        assert!(one.stays_done(Unit::Image));
        let [one, two] = ["1", "2"].map(|tag| job(&format!("r.example/a:{tag}")));
        for unit in [Unit::Image, Unit::Tag] {
            assert_ne!(one.key(unit), two.key(unit));
            assert_ne!(one.key(unit), job("r.example/b:1").key(unit));
            assert!(!one.stays_done(unit));
        }
    }

    #[test]
    fn with_a_soci_enabled_image_for_each_tag_so_is_the_tag() {
        let digest = Digest::sha256(b"{}");
        let [one, two] = ["1", "2"].map(|tag| job(&format!("r.example/a:{tag}@{digest}")));
        let bare = job(&format!("r.example/a@{digest}"));
        assert_ne!(one.key(Unit::Tag), two.key(Unit::Tag));
        assert_ne!(one.key(Unit::Tag), bare.key(Unit::Tag));
        assert_eq!(one.image_key(), two.image_key());
        // A tag that comes back to an image names it anew.
        assert!(!one.stays_done(Unit::Tag) && bare.stays_done(Unit::Tag));
        let unit = |template: &str| Unit::of(&Versions::Both(template.parse().unwrap()));
        assert_eq!(
            (unit("{tag}-soci"), unit("{digest}-soci"), Unit::of(&Versions::V1)),
            (Unit::Tag, Unit::Image, Unit::Image)
        );
    }

    #[test]
    fn why_nothing_is_indexed() {
        let small = LeftOut::Small { least: 10 };
        let zstd = LeftOut::Kind { code: "zstd", reason: String::new() };
        let skipped = |reasons: &[&LeftOut]| Skipped::nothing_to_index(reasons.iter().copied());
        assert_eq!(skipped(&[&small, &small]), Skipped::LayersTooSmall { least: 10 });
        assert_eq!(skipped(&[&zstd, &small, &zstd]), Skipped::NotServable(vec!["too-small", "zstd"]));
        assert_eq!(skipped(&[&zstd]).to_string(), "none of its layers can be served lazily (zstd)");
        assert_eq!(skipped(&[]).to_string(), "none of its layers can be served lazily (no-layers)");
    }
}
