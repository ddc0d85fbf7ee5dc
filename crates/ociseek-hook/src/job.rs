//! A job: an image to be indexed, as named by an event, and the possible results.

use super::enabled::EnabledImage;
use super::skip::NotEnabled;
pub use super::skip::SkipReason;
use ociseek_format::digest::Digest;
use ociseek_format::image::{Reference, TagError, TagTemplate, is_referrers_tag};
use ociseek_ops::convert::ConvertError;
use ociseek_ops::index::{IndexError, IndexedImage};
use ociseek_ops::resolve::ResolveError;
use ociseek_ops::versions::{MakeError, Versions};
use ociseek_store::StoreError;
use ociseek_store::blob::Target;

/// An image to be indexed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Job {
    /// Its name with a tag, a digest, or both.
    pub image: Reference,
}

/// What counts as one job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// An image in a repository, whatever its tags, because an index is attached to a digest.
    #[default]
    Image,
    /// Each tag of an image, because each gets its own SOCI-enabled image.
    Tag,
}

impl Unit {
    /// What counts as one job for these versions of the index.
    pub fn of(versions: &Versions) -> Unit {
        if versions.template().is_some_and(TagTemplate::needs_tag) {
            Unit::Tag
        } else {
            Unit::Image
        }
    }
}

/// The result of a job.
#[derive(Debug, Clone)]
pub enum JobResult {
    /// At least one platform got a new index, or the SOCI-enabled image was written.
    Indexed(Box<Products>),
    /// The job ran out of time. The finished layers are attached; repeating the job continues with
    /// the others.
    Sparse(Box<Products>),
    /// Everything already exists.
    AlreadyIndexed(Box<Products>),
    /// Nothing is made for this image, with the reason.
    Skipped(SkipReason),
    /// The image does not exist any more.
    Gone,
}

/// The outputs of a job.
#[derive(Debug, Clone)]
pub struct Products {
    /// The manifest or image index of the job.
    pub digest: Digest,
    /// The index, if one was requested.
    pub index: Option<IndexedImage>,
    /// The SOCI-enabled image, if one was requested.
    pub enabled: Option<EnabledImage>,
    /// The number of bytes of layers read.
    pub bytes_read: u64,
    /// The number of bytes of ztocs, manifests and configs pushed.
    pub bytes_written: u64,
}

impl JobResult {
    /// The outputs, if there was anything to do.
    pub fn products(&self) -> Option<&Products> {
        match self {
            JobResult::Indexed(products)
            | JobResult::Sparse(products)
            | JobResult::AlreadyIndexed(products) => Some(products),
            JobResult::Skipped(_) | JobResult::Gone => None,
        }
    }

    /// A stable word for logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            JobResult::Indexed(_) => "indexed",
            JobResult::Sparse(_) => "sparse",
            JobResult::AlreadyIndexed(_) => "already-indexed",
            JobResult::Skipped(_) => "skipped",
            JobResult::Gone => "gone",
        }
    }

    /// The manifest or image index of the job, if it was found.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            JobResult::Skipped(SkipReason::Subject(digest)) => Some(*digest),
            done => done.products().map(|products| products.digest),
        }
    }
}

/// Why an image could not be indexed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("the image's name is not valid")]
    Name(#[source] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Tag(#[from] TagError),
    /// The index was attached, if one was requested.
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
    /// Whether a retry may help, because the registry was busy or not reachable. Faults of the
    /// image, or missing permissions, remain.
    pub fn is_transient(&self) -> bool {
        matches!(self, JobError::Restless(_)) || self.store().is_some_and(StoreError::is_transient)
    }

    /// The registry rejected the credentials.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self.store(), Some(StoreError::Registry(error)) if error.status() == Some(401))
    }

    /// The error of a store, if that is the cause.
    pub(super) fn store(&self) -> Option<&StoreError> {
        match self {
            JobError::Name(_) => None,
            error => StoreError::among(error),
        }
    }
}

impl Job {
    /// Whether the name alone shows that there is nothing to do. Makes no requests.
    pub fn skipped_by_name(&self, versions: &Versions) -> Option<SkipReason> {
        match (&self.image.tag, versions) {
            (Some(tag), _) if is_referrers_tag(tag) => Some(SkipReason::ReferrersTag(tag.clone())),
            (None, Versions::V2(_)) => self.not_enabled(versions).map(SkipReason::NotEnabled),
            _ => None,
        }
    }

    /// Why there will be no SOCI-enabled image although one is requested for every image, if the
    /// name alone shows it.
    pub fn not_enabled(&self, versions: &Versions) -> Option<NotEnabled> {
        let template = versions
            .template()
            .filter(|template| template.needs_tag() && self.image.tag.is_none())?;
        Some(TagError::NoTag(template.clone()).into())
    }

    /// The digest if it is known, because a tag may have moved since the event.
    pub fn target(&self) -> Target {
        Target::of(&self.image)
    }

    /// Jobs with the same key are the same.
    pub fn key(&self, unit: Unit) -> String {
        match (&self.image.tag, &self.image.digest, unit) {
            (Some(_), Some(_), Unit::Tag) => self.image.to_string(),
            _ => self.image_key(),
        }
    }

    /// Jobs with the same key are for the same image, according to their names.
    pub fn image_key(&self) -> String {
        format!("{}/{}@{}", self.image.registry, self.image.repository, self.target())
    }

    /// Whether a completed job stays completed. A tag may move, and move back.
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
    fn tags_of_other_artifacts_are_skipped_without_a_request() {
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
    fn an_image_without_a_tag_gets_no_soci_enabled_image() {
        let by_digest = job(&format!("r.example/a@{}", Digest::sha256(b"{}")));
        let template = |text: &str| text.parse::<TagTemplate>().unwrap();
        for (versions, skipped, not_enabled) in [
            (Versions::V1, None, None),
            (Versions::Both(template("{tag}-soci")), None, Some("no-tag")),
            (Versions::V2(template("{tag}-soci")), Some("no-tag"), Some("no-tag")),
            (Versions::Both(template("{digest}-soci")), None, None),
            (Versions::V2(template("{digest}-soci")), None, None),
        ] {
            assert_eq!(
                by_digest.skipped_by_name(&versions).map(|why| why.code()),
                skipped,
                "{versions:?}"
            );
            assert_eq!(
                by_digest.not_enabled(&versions).map(|why| why.code()),
                not_enabled,
                "{versions:?}"
            );
            assert_eq!(job("r.example/a:v1").skipped_by_name(&versions), None);
        }
    }

    #[test]
    fn jobs_with_the_same_digest_are_the_same() {
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
    fn jobs_for_soci_enabled_images_differ_by_tag() {
        let digest = Digest::sha256(b"{}");
        let [one, two] = ["1", "2"].map(|tag| job(&format!("r.example/a:{tag}@{digest}")));
        let bare = job(&format!("r.example/a@{digest}"));
        assert_ne!(one.key(Unit::Tag), two.key(Unit::Tag));
        assert_ne!(one.key(Unit::Tag), bare.key(Unit::Tag));
        assert_eq!(one.image_key(), two.image_key());
        // A tag that moves back to an image is a new job.
        assert!(!one.stays_done(Unit::Tag) && bare.stays_done(Unit::Tag));
        let unit = |template: &str| Unit::of(&Versions::Both(template.parse().unwrap()));
        assert_eq!(
            (unit("{tag}-soci"), unit("{digest}-soci"), Unit::of(&Versions::V1)),
            (Unit::Tag, Unit::Image, Unit::Image)
        );
    }
}
