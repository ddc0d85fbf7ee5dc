//! `rm --obsolete`: removes obsolete indexes of a repository: indexes of deleted images, older
//! indexes of ours next to a newer one, and entries of referrers lists for manifests that do not
//! exist.
//!
//! An index is read before it is removed, and right before that its image is checked once more, so
//! the index of an image that is pushed in the meantime is kept.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures_util::stream::{self, StreamExt};

use super::discover::{IndexKind, Referring, UnusableIndexError, to_read};
use super::maker::{is_known, is_ours, version};
use super::opened::{open_document, open_ztoc};
use super::resolve::{PlatformChoice, ResolveError, resolve};
use ociseek_format::digest::Digest;
use ociseek_format::image::{Descriptor, is_referrers_tag};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_format::ztoc::Ztoc;
use ociseek_store::blob::Target;
use ociseek_store::lock::Hold;
use ociseek_store::registry::{RegistryError, Repository};
use ociseek_store::{Source, StoreError};

/// The maximum number of entries that are examined in a list of referrers.
const MAX_ENTRIES: usize = 1000;

/// Options for finding and removing. By default nothing is removed.
#[derive(Debug, Clone)]
pub struct ObsoleteOptions {
    /// Remove the findings instead of only reporting them.
    pub delete: bool,
    /// For deleted images, remove the indexes of every tool instead of only ours.
    pub all: bool,
    /// How many images are examined at the same time; at least 1.
    pub jobs: usize,
}

impl Default for ObsoleteOptions {
    fn default() -> ObsoleteOptions {
        ObsoleteOptions { delete: false, all: false, jobs: 8 }
    }
}

/// An obsolete index or entry.
#[derive(Debug)]
pub struct Waste {
    /// The image manifest that it refers to.
    pub subject: Digest,
    /// The index, or the manifest that an entry of a list names.
    pub digest: Digest,
    /// The kind of index. None for an entry whose manifest does not exist.
    pub kind: Option<IndexKind>,
    /// The tool that built it. None if it names none or was not read.
    pub tool: Option<String>,
    /// Why it is obsolete.
    pub why: WasteReason,
    /// The result of removing it. None if removal was not requested.
    pub removed: Option<Result<(), StoreError>>,
}

/// Why an index or an entry of a list is obsolete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WasteReason {
    /// The image of the index does not exist any more.
    ImageGone,
    /// A later version of ours made another index of the same kind that covers the same layers. It
    /// was opened, and does not contradict this one.
    Superseded {
        /// The later index.
        by: Digest,
    },
    /// The listed manifest does not exist.
    NotThere,
}

/// A tag that could not be examined.
#[derive(Debug)]
pub struct UnexaminedTag {
    /// Its name.
    pub name: String,
    /// The error.
    pub error: ObsoleteError,
}

/// Why a repository, or an image in it, cannot be examined.
#[derive(Debug, thiserror::Error)]
pub enum ObsoleteError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("cannot list the tags")]
    Tags(#[source] RegistryError),
    #[error("cannot list the referrers of {subject}")]
    List { subject: Digest, source: StoreError },
    #[error("cannot read {digest}")]
    Read { digest: Digest, source: StoreError },
    #[error("cannot update the list of referrers of {subject}")]
    Unlist { subject: Digest, source: StoreError },
}

/// The findings in a repository.
#[derive(Debug, Default)]
pub struct ObsoleteReport {
    /// The obsolete indexes and entries, whether removed or not.
    pub waste: Vec<Waste>,
    /// The tags that could not be examined.
    pub unexamined: Vec<UnexaminedTag>,
    /// The number of image manifests that were examined.
    pub images: usize,
}

/// Examines the tags of a repository, with a separate budget for each image.
///
/// # Errors
/// If the tags cannot be listed. Other failures are part of the result.
pub async fn obsolete(
    repository: &Repository,
    options: &ObsoleteOptions,
    progress: &Arc<dyn Progress>,
) -> Result<ObsoleteReport, ObsoleteError> {
    let mut names = repository.tags(None).await.map_err(ObsoleteError::Tags)?;
    let mut tags = Vec::new();
    while let Some(page) = names.next_page().await.map_err(ObsoleteError::Tags)? {
        tags.extend(page.names);
    }
    let seen = Mutex::new(BTreeSet::new());
    let looked = stream::iter(tags).map(|tag| {
        let examiner = Examiner {
            repository: repository.with_budget(repository.budget().apart(1)),
            options,
            seen: &seen,
        };
        async move {
            let waste = match subject_of(&tag) {
                Some(subject) => examiner.list(subject).await,
                // Other tags with this prefix belong to cosign.
                None if is_referrers_tag(&tag) => Ok(Vec::new()),
                None => examiner.image(&tag, progress).await,
            };
            (tag, waste)
        }
    });
    let mut looked = std::pin::pin!(looked.buffered(options.jobs));
    let mut report = ObsoleteReport::default();
    while let Some((name, examined)) = looked.next().await {
        match examined {
            Ok(waste) => report.waste.extend(waste),
            Err(error) => report.unexamined.push(UnexaminedTag { name, error }),
        }
    }
    report.images = seen.hold().len();
    Ok(report)
}

/// The image manifest whose referrers a tag lists.
fn subject_of(tag: &str) -> Option<Digest> {
    let (algorithm, hex) = tag.split_once('-')?;
    format!("{algorithm}:{hex}").parse().ok()
}

struct Examiner<'a> {
    repository: Repository,
    options: &'a ObsoleteOptions,
    /// Image manifests whose indexes were examined.
    seen: &'a Mutex<BTreeSet<Digest>>,
}

impl Examiner<'_> {
    /// Finds older indexes of ours next to newer ones, for each platform of an image.
    async fn image(
        &self,
        tag: &str,
        progress: &Arc<dyn Progress>,
    ) -> Result<Vec<Waste>, ObsoleteError> {
        let source = Source::Registry(self.repository.clone());
        let image =
            match resolve(&source, &Target::Tag(tag.to_owned()), PlatformChoice::All, progress)
                .await
            {
                Ok(image) => image,
                // Charts, signatures, build caches and the like, and images that were deleted
                // in the meantime.
                Err(error) if error.is_no_image() => return Ok(Vec::new()),
                Err(ResolveError::Find(error)) if error.is_not_found() => return Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            };
        let mut waste = Vec::new();
        for manifest in image.manifests {
            let subject = manifest.descriptor.digest;
            if !self.seen.hold().insert(subject) {
                continue;
            }
            let listed = source.referrers_of(&subject, &IndexKind::ARTIFACT_TYPES).await;
            let listed = listed.map_err(|source| ObsoleteError::List { subject, source })?;
            let mut indexes = Vec::new();
            for (descriptor, unread) in to_read(listed.descriptors) {
                if unread.is_none()
                    && let Some(Ok(index)) = self.read(&descriptor, &subject).await?
                {
                    indexes.push((descriptor.digest, index));
                }
            }
            let mut old = Vec::new();
            for (digest, index, by) in superseded(&indexes) {
                let Some((_, newer)) = indexes.iter().find(|(digest, _)| *digest == by) else {
                    continue;
                };
                match opens_instead(&source, &manifest.layers, index, newer).await? {
                    Ok(()) => old.push((digest, index, by)),
                    Err(why) => progress.report(ProgressEvent::Warning(format!(
                        "index {digest} stays, although {by} names a later version: {why}"
                    ))),
                }
            }
            let goes: Vec<Digest> = old.iter().map(|(digest, ..)| *digest).collect();
            let mut removed = self.detach(&subject, &goes).await?.into_iter();
            waste.extend(old.into_iter().map(|(digest, index, by)| Waste {
                subject,
                digest,
                kind: Some(index.kind),
                tool: index.tool.clone(),
                why: WasteReason::Superseded { by },
                removed: removed.next(),
            }));
        }
        Ok(waste)
    }

    /// Finds entries for missing manifests, and indexes of deleted images, in a list of referrers
    /// under a tag.
    async fn list(&self, subject: Digest) -> Result<Vec<Waste>, ObsoleteError> {
        let unlisted =
            |source: RegistryError| ObsoleteError::List { subject, source: source.into() };
        let entries = self.repository.listed_under_tag(&subject).await.map_err(unlisted)?;
        let gone = self.is_gone(&subject).await?;
        let mut dangling = Vec::new();
        let mut orphans = Vec::new();
        for entry in entries.into_iter().take(MAX_ENTRIES) {
            match self.read(&entry, &subject).await? {
                None => dangling.push(entry.digest),
                Some(Ok(index)) if gone => {
                    if self.options.all || index.tool.as_deref().is_some_and(is_ours) {
                        orphans.push((entry.digest, index));
                    }
                }
                Some(_) => {}
            }
        }
        let mut waste = Vec::new();
        if !orphans.is_empty() {
            // It may have been pushed and indexed again.
            if self.options.delete && !self.is_gone(&subject).await? {
                orphans.clear();
            }
            let goes: Vec<Digest> = orphans.iter().map(|(digest, _)| *digest).collect();
            let mut removed = self.detach(&subject, &goes).await?.into_iter();
            waste.extend(orphans.into_iter().map(|(digest, index)| Waste {
                subject,
                digest,
                kind: Some(index.kind),
                tool: index.tool,
                why: WasteReason::ImageGone,
                removed: removed.next(),
            }));
        }
        if self.options.delete && !dangling.is_empty() {
            // Nothing is deleted, because a missing manifest may be pushed at this moment.
            let unlisted = self.repository.unlist(&subject, &dangling).await;
            unlisted.map_err(|source| ObsoleteError::Unlist { subject, source: source.into() })?;
        }
        let removed = || self.options.delete.then_some(Ok(()));
        waste.extend(dangling.into_iter().map(|digest| Waste {
            subject,
            digest,
            kind: None,
            tool: None,
            why: WasteReason::NotThere,
            removed: removed(),
        }));
        Ok(waste)
    }

    /// None if the manifest does not exist. The inner error: it is not an index of the subject.
    async fn read(
        &self,
        entry: &Descriptor,
        subject: &Digest,
    ) -> Result<Option<Result<Referring, UnusableIndexError>>, ObsoleteError> {
        let digest = entry.digest;
        match Source::Registry(self.repository.clone()).manifest(&Target::Digest(digest)).await {
            Ok(document) => {
                Ok(Some(Referring::parse(IndexKind::listed(entry), &document.bytes, subject)))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(source) => Err(ObsoleteError::Read { digest, source }),
        }
    }

    async fn is_gone(&self, subject: &Digest) -> Result<bool, ObsoleteError> {
        match Source::Registry(self.repository.clone()).manifest(&Target::Digest(*subject)).await {
            Ok(_) => Ok(false),
            Err(error) if error.is_not_found() => Ok(true),
            Err(source) => Err(ObsoleteError::Read { digest: *subject, source }),
        }
    }

    /// Removes indexes, if that was requested.
    async fn detach(
        &self,
        subject: &Digest,
        goes: &[Digest],
    ) -> Result<Vec<Result<(), StoreError>>, ObsoleteError> {
        if !self.options.delete || goes.is_empty() {
            return Ok(Vec::new());
        }
        let detached = self.repository.detach(subject, goes).await;
        let detached = detached
            .map_err(|source| ObsoleteError::Unlist { subject: *subject, source: source.into() })?;
        Ok(detached.into_iter().map(|result| result.map_err(StoreError::from)).collect())
    }
}

/// Opens `newer`, and compares it with `old`, which it would supersede. The inner error says why it
/// does not. Anyone who may push can write an index that claims a later version.
async fn opens_instead(
    source: &Source,
    layers: &[Descriptor],
    old: &Referring,
    newer: &Referring,
) -> Result<Result<(), String>, ObsoleteError> {
    let unread = |digest| move |source| ObsoleteError::Read { digest, source };
    for layer in layers.iter().filter(|layer| old.layers.contains(&layer.digest)) {
        for ztoc in newer.ztocs.iter().filter(|ztoc| ztoc.layer == layer.digest) {
            let new = match open_ztoc(source, layer, ztoc).await.map_err(unread(ztoc.ztoc))? {
                Ok(new) => new,
                Err(why) => return Ok(Err(why)),
            };
            for ztoc in old.ztocs.iter().filter(|ztoc| ztoc.layer == layer.digest) {
                let was = open_ztoc(source, layer, ztoc).await.map_err(unread(ztoc.ztoc))?;
                if was.is_ok_and(|was| !are_alike(was.content.ztoc(), new.content.ztoc())) {
                    return Ok(Err(contradiction(&layer.digest)));
                }
            }
        }
        for document in newer.documents.iter().filter(|document| document.layer == layer.digest) {
            let new = match open_document(source, layer, document)
                .await
                .map_err(unread(document.document))?
            {
                Ok(new) => new,
                Err(why) => return Ok(Err(why)),
            };
            for document in old.documents.iter().filter(|document| document.layer == layer.digest) {
                let was = open_document(source, layer, document)
                    .await
                    .map_err(unread(document.document))?;
                if was.is_ok_and(|was| was.content.entries() != new.content.entries()) {
                    return Ok(Err(contradiction(&layer.digest)));
                }
            }
        }
    }
    Ok(Ok(()))
}

fn contradiction(layer: &Digest) -> String {
    format!(
        "the two contradict each other about layer {layer}; ociseek verify finds which is wrong"
    )
}

/// Whether two ztocs of one layer can both be right: their files are the same, and with the same
/// span size everything is, except for the tool's name.
fn are_alike(old: &Ztoc, new: &Ztoc) -> bool {
    let has_same_spans = old.checkpoints.span_size() == new.checkpoints.span_size();
    let spans = |ztoc: &Ztoc| (ztoc.checkpoints.clone(), ztoc.span_digests.clone());
    old.files == new.files
        && old.uncompressed_size == new.uncompressed_size
        && (!has_same_spans || spans(old) == spans(new))
}

/// Among the indexes of an image, those of ours for which a later version of ours made one of the
/// same kind that covers at least the same layers. Returns the index, its kind, and the later one.
fn superseded(indexes: &[(Digest, Referring)]) -> Vec<(Digest, &Referring, Digest)> {
    // Nothing is deleted for a version that does not exist yet.
    let made =
        |index: &Referring| index.tool.as_deref().filter(|tool| is_known(tool)).and_then(version);
    let best = |kind| {
        let alike = indexes.iter().filter(move |(_, index)| index.kind == kind);
        alike.max_by_key(|(_, index)| (made(index), index.canonical))
    };
    let newer = |index: &Referring| {
        let (newest, best) = best(index.kind)?;
        let is_old = made(index).is_some()
            && made(index) < made(best)
            && index.layers.is_subset(&best.layers)
            && best.canonical;
        is_old.then_some(*newest)
    };
    indexes.iter().filter_map(|(digest, index)| Some((*digest, index, newer(index)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(n: u8, tool: Option<&str>, layers: &[u8]) -> (Digest, Referring) {
        let layers = layers.iter().map(|l| Digest::sha256(&[*l])).collect();
        let kind = IndexKind::Soci;
        let tool = tool.map(str::to_owned);
        let index = Referring {
            kind,
            tool,
            layers,
            ztocs: Vec::new(),
            documents: Vec::new(),
            canonical: true,
        };
        (Digest::sha256(&[n, n]), index)
    }

    #[test]
    fn a_later_version_of_ours_that_covers_as_much_supersedes() {
        let old = |indexes: &[(Digest, Referring)]| {
            superseded(indexes).into_iter().map(|(d, ..)| d).collect::<Vec<_>>()
        };
        let first = index(1, Some("ociseek v0.0.8"), &[1]);
        let later = index(2, Some("ociseek v0.0.9"), &[1, 2]);
        let more = index(3, Some("ociseek v0.0.8"), &[1, 3]);
        let soci = index(4, Some("AWS SOCI CLI v0.2"), &[1]);
        let unnamed = index(5, None, &[1]);
        assert_eq!(old(&[]), []);
        assert_eq!(old(std::slice::from_ref(&first)), []);
        assert_eq!(old(&[first.clone(), later.clone(), more, soci.clone(), unnamed]), [first.0]);
        assert_eq!(old(&[first.clone(), soci]), []);
        // For indexes of the same version with different options, it is unknown which is newer.
        assert_eq!(old(&[first.clone(), index(6, Some("ociseek v0.0.8"), &[1])]), []);
        let (digest, mut odd) = later;
        odd.canonical = false;
        assert_eq!(
            old(&[first.clone(), (digest, odd.clone())]),
            [],
            "consumers ignore the newer one"
        );
        let unknown = index(7, Some("ociseek v999.0.0"), &[1, 2]);
        assert_eq!(old(&[first.clone(), unknown]), [], "that version does not exist yet");
        // A fine index has other readers.
        let fine = |index: &Referring| Referring {
            kind: IndexKind::Fine,
            canonical: true,
            ..index.clone()
        };
        assert_eq!(old(&[first.clone(), (digest, fine(&odd))]), []);
        assert_eq!(old(&[(first.0, fine(&first.1)), (digest, fine(&odd))]), [first.0]);
    }

    #[test]
    fn fallback_tags_are_recognized() {
        let digest = Digest::sha256(b"x");
        assert_eq!(subject_of(&format!("sha256-{}", digest.hex())), Some(digest));
        for none in ["v1", "sha256-abc", &format!("sha256-{}.sig", digest.hex()), "1-2"] {
            assert_eq!(subject_of(none), None, "{none}");
        }
    }
}
