//! `rm`: removes SOCI indexes (version 1) and fine indexes of an image. The image is left
//! unchanged.
//!
//! Anyone who may push can add entries to a registry's list of an image's indexes. So nothing is
//! deleted just because it is listed: the manifest is read, and must be a SOCI index of version 1
//! or a fine index with this image as its subject.

use std::sync::Arc;

use super::discover::{IndexKind, Referring, UnusableIndexError, to_read};
use super::maker::is_ours;
use super::resolve::{PlatformChoice, ResolveError, resolve};
use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::INDEX_DIGEST;
use ociseek_format::image::soci::{self, Version};
use ociseek_format::image::{Descriptor, Platform, fine};
use ociseek_format::progress::Progress;
use ociseek_store::blob::{Document, Referrers, Target};
use ociseek_store::{Destination, StoreError};

/// Which indexes to remove.
#[derive(Debug, Clone, Default)]
pub struct RemoveOptions {
    /// Only those of these platforms. Empty for all.
    pub platforms: Vec<Platform>,
    /// Those of every tool instead of only ours.
    pub all: bool,
    /// Only report what would be removed.
    pub dry_run: bool,
}

/// The indexes of an image manifest, and the results.
#[derive(Debug)]
pub struct RemovedIndexes {
    /// The digest of the image manifest.
    pub manifest: Digest,
    /// None if the image does not state it, or does not exist any more.
    pub platform: Option<Platform>,
    /// In the order of the store.
    pub indexes: Vec<Removal>,
    /// The index of version 2 that the image manifest names. It is a part of the image, and is not
    /// removed.
    pub version_2: Option<String>,
}

/// An index, and the result for it.
#[derive(Debug)]
pub struct Removal {
    /// The digest of its manifest.
    pub index: Digest,
    /// The kind of index.
    pub kind: IndexKind,
    /// The tool that built it. None if it names none or was not read.
    pub tool: Option<String>,
    /// The result.
    pub fate: RemovalOutcome,
}

/// The result for an index that was to be removed.
#[derive(Debug)]
pub enum RemovalOutcome {
    /// It was deleted.
    Removed,
    /// It would be removed without the dry run.
    WouldRemove,
    /// Another tool built it, and only ours were requested.
    OfAnother,
    /// It is listed as an index of the image, but is not one that can be removed.
    NotAnIndex(UnusableIndexError),
    /// The store refused to delete it.
    Failed {
        /// The reason.
        source: StoreError,
        /// Whether it was at least removed from the list, so that no consumer finds it.
        unlisted: bool,
    },
}

/// Why indexes cannot be looked for or removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("cannot list the indexes of {subject}")]
    List { subject: Digest, source: StoreError },
    #[error("cannot read index {digest}")]
    Read { digest: Digest, source: StoreError },
    #[error("cannot update the list of referrers of {subject}; nothing was deleted")]
    Unlist { subject: Digest, source: StoreError },
    #[error("{0} is a SOCI index of version 2, which is part of its image and is removed with it")]
    Version2(Digest),
    #[error("{0} is a fine index that an image names, so it is a part of that image")]
    Bound(Digest),
}

/// Removes indexes of the image `root`, or the single index that `root` names by digest, whichever
/// tool built it. An image that does not exist any more can be named by its digest.
///
/// # Errors
/// If the image cannot be read or its indexes cannot be listed. An index that cannot be deleted is
/// part of the result ([`RemovalOutcome::Failed`]).
pub async fn remove(
    store: &Destination,
    root: &Target,
    options: &RemoveOptions,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<RemovedIndexes>, RemoveError> {
    let source = store.as_source();
    let document = match (source.manifest(root).await, root) {
        (Ok(document), _) => document,
        // Referrers may outlive their image.
        (Err(error), Target::Digest(subject)) if error.is_not_found() => {
            let left = RemovedIndexes {
                manifest: *subject,
                platform: None,
                indexes: Vec::new(),
                version_2: None,
            };
            let cleared = clear(store, left, options).await?;
            return if cleared.indexes.is_empty() {
                Err(ResolveError::Find(error).into())
            } else {
                Ok(vec![cleared])
            };
        }
        (Err(error), _) => return Err(ResolveError::Find(error).into()),
    };
    if let Some((subject, kind, tool)) = index_in(&document)? {
        let chosen = vec![Choice { index: document.digest, kind, tool, stays: None }];
        let named = RemovedIndexes {
            manifest: subject,
            platform: None,
            indexes: Vec::new(),
            version_2: None,
        };
        // Whether the list is the registry's own or the fallback tag's only matters for the message
        // if deletion is refused.
        let api = list(store, &subject).await.is_ok_and(|listed| listed.api);
        return Ok(vec![take(store, named, chosen, api, options.dry_run).await?]);
    }
    let wanted = PlatformChoice::each_or_all(&options.platforms);
    let mut cleared = Vec::new();
    for image in resolve(&source, root, wanted, progress).await?.manifests {
        let version_2 = image.annotations.get(INDEX_DIGEST).cloned();
        let manifest = image.descriptor.digest;
        let removed =
            RemovedIndexes { manifest, platform: image.platform, indexes: Vec::new(), version_2 };
        cleared.push(clear(store, removed, options).await?);
    }
    Ok(cleared)
}

/// If a manifest is an index that can be removed: its image manifest, kind and tool.
///
/// # Errors
/// If it is a SOCI index of version 2, or a bound fine index.
fn index_in(
    document: &Document,
) -> Result<Option<(Digest, IndexKind, Option<String>)>, RemoveError> {
    if let Ok(index) = fine::parse(&document.bytes) {
        let subject = index.subject.ok_or(RemoveError::Bound(document.digest))?;
        return Ok(Some((subject.digest, IndexKind::Fine, index.build_tool)));
    }
    let Ok(index) = soci::parse(&document.bytes) else { return Ok(None) };
    match index.subject.filter(|_| index.version == Version::V1) {
        Some(subject) => Ok(Some((subject.digest, IndexKind::Soci, index.build_tool_identifier))),
        None => Err(RemoveError::Version2(document.digest)),
    }
}

async fn list(store: &Destination, subject: &Digest) -> Result<Referrers, StoreError> {
    store.as_source().referrers_of(subject, &IndexKind::ARTIFACT_TYPES).await
}

/// An index, its tool, and why it is not removed, if so.
struct Choice {
    index: Digest,
    kind: IndexKind,
    tool: Option<String>,
    stays: Option<RemovalOutcome>,
}

/// Removes the indexes of an image manifest.
async fn clear(
    store: &Destination,
    of: RemovedIndexes,
    options: &RemoveOptions,
) -> Result<RemovedIndexes, RemoveError> {
    let subject = of.manifest;
    let listed =
        list(store, &subject).await.map_err(|source| RemoveError::List { subject, source })?;
    let mut choices: Vec<Choice> = Vec::new();
    for (descriptor, unread) in to_read(listed.descriptors) {
        choices.push(choose(store, &subject, &descriptor, unread, options.all).await?);
    }
    take(store, of, choices, listed.api, options.dry_run).await
}

async fn choose(
    store: &Destination,
    subject: &Digest,
    listed: &Descriptor,
    unread: Option<UnusableIndexError>,
    all: bool,
) -> Result<Choice, RemoveError> {
    let digest = listed.digest;
    let kind = IndexKind::listed(listed);
    let choice = |tool, stays| Choice { index: digest, kind, tool, stays };
    let no_index = |why| choice(None, Some(RemovalOutcome::NotAnIndex(why)));
    if let Some(why) = unread {
        return Ok(no_index(why));
    }
    Ok(match store.manifest(&digest).await {
        Ok(document) => match Referring::parse(kind, &document.bytes, subject) {
            Ok(index) => {
                let goes = all || index.tool.as_deref().is_some_and(is_ours);
                choice(index.tool, (!goes).then_some(RemovalOutcome::OfAnother))
            }
            Err(why) => no_index(why),
        },
        Err(error) if error.is_lost() => no_index(UnusableIndexError::Fetch(error)),
        Err(source) => return Err(RemoveError::Read { digest, source }),
    })
}

/// Removes the indexes that have no result yet. `api` tells whether the registry lists referrers
/// itself.
async fn take(
    store: &Destination,
    mut of: RemovedIndexes,
    choices: Vec<Choice>,
    api: bool,
    dry_run: bool,
) -> Result<RemovedIndexes, RemoveError> {
    let subject = of.manifest;
    let goes: Vec<Digest> =
        choices.iter().filter(|choice| choice.stays.is_none()).map(|choice| choice.index).collect();
    let mut results = if goes.is_empty() || dry_run {
        Vec::new()
    } else {
        store
            .detach(&subject, &goes)
            .await
            .map_err(|source| RemoveError::Unlist { subject, source })?
    }
    .into_iter();
    of.indexes = (choices.into_iter())
        .map(|Choice { index, kind, tool, stays }| {
            let fate = stays.unwrap_or_else(|| match results.next() {
                None => RemovalOutcome::WouldRemove,
                Some(Ok(())) => RemovalOutcome::Removed,
                Some(Err(source)) => RemovalOutcome::Failed { source, unlisted: !api },
            });
            Removal { index, kind, tool, fate }
        })
        .collect();
    Ok(of)
}
