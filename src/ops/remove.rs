//! `rm`: removes SOCI indexes (v1) of an image. The image stays as it is.
//!
//! Whoever may push decides what a registry lists as an image's indexes, so nothing is deleted on
//! the word of a list: only a manifest that was read, is a SOCI index of version 1, and names this
//! image as its subject.

use std::sync::Arc;

use super::discover::{Unusable, parse_index, to_read};
use super::maker::is_ours;
use super::resolve::{ResolveError, Wanted, resolve};
use crate::digest::Digest;
use crate::image::Platform;
use crate::image::enabled::INDEX_DIGEST;
use crate::image::soci::{self, INDEX_V1, Version};
use crate::progress::Progress;
use crate::store::blob::Target;
use crate::store::{Destination, StoreError};

/// Which indexes go.
#[derive(Debug, Clone, Default)]
pub struct RemoveOptions {
    /// Of these platforms of the image; empty means all.
    pub platforms: Vec<Platform>,
    /// Those of every maker, not only ours.
    pub all: bool,
    /// Remove nothing.
    pub dry_run: bool,
}

/// The indexes of one image manifest, and what became of them.
#[derive(Debug)]
pub struct Cleared {
    /// The digest of the image manifest.
    pub manifest: Digest,
    /// None if the image does not say, or is not there any more.
    pub platform: Option<Platform>,
    /// In the store's order.
    pub indexes: Vec<Removal>,
    /// The index of version 2 that the image manifest names. It is a part of the image, and stays.
    pub version_2: Option<String>,
}

/// An index, and what became of it.
#[derive(Debug)]
pub struct Removal {
    /// The digest of its manifest.
    pub index: Digest,
    /// What its maker calls itself; None if it does not say, or was not read.
    pub tool: Option<String>,
    /// What became of it.
    pub fate: Fate,
}

/// What became of an index that was to be removed.
#[derive(Debug)]
pub enum Fate {
    /// It was deleted.
    Removed,
    /// It would be removed, but for the dry run.
    WouldRemove,
    /// It is another tool's, and only ours were asked for.
    OfAnother,
    /// It is listed as an index of the image, and is none that can be removed.
    NotAnIndex(Unusable),
    /// The store did not delete it.
    Failed {
        /// Why not.
        source: StoreError,
        /// Nor is it listed any more, so that no consumer finds it.
        unlisted: bool,
    },
}

/// Why indexes cannot be looked for or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RemoveError {
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error("cannot list the SOCI indexes of {subject}")]
    List { subject: Digest, source: StoreError },
    #[error("cannot read SOCI index {digest}")]
    Read { digest: Digest, source: StoreError },
    #[error("cannot update the list of referrers of {subject}; nothing was deleted")]
    Unlist { subject: Digest, source: StoreError },
    #[error("{0} is a SOCI index of version 2, which is part of its image and is removed with it")]
    Version2(Digest),
}

/// Removes indexes of the image `root`, or the one index that `root` names by its digest, whoever
/// made it. An image that is not there any more can be named by its digest.
///
/// # Errors
/// When the image cannot be read or its indexes cannot be listed. That one cannot be deleted is
/// told with it ([`Fate::Failed`]).
pub async fn remove(
    store: &Destination,
    root: &Target,
    options: &RemoveOptions,
    progress: &Arc<dyn Progress>,
) -> Result<Vec<Cleared>, RemoveError> {
    let source = store.as_source();
    let document = match (source.manifest(root).await, root) {
        (Ok(document), _) => document,
        // What refers to an image may outlive it.
        (Err(error), Target::Digest(subject)) if error.is_not_found() => {
            let left = Cleared { manifest: *subject, platform: None, indexes: Vec::new(), version_2: None };
            let cleared = clear(store, left, options).await?;
            return if cleared.indexes.is_empty() { Err(ResolveError::Find(error).into()) } else { Ok(vec![cleared]) };
        }
        (Err(error), _) => return Err(ResolveError::Find(error).into()),
    };
    if let Ok(index) = soci::parse(&document.bytes) {
        let Some(subject) = index.subject.filter(|_| index.version == Version::V1) else {
            return Err(RemoveError::Version2(document.digest));
        };
        let chosen = vec![(document.digest, index.build_tool_identifier, None)];
        let named = Cleared { manifest: subject.digest, platform: None, indexes: Vec::new(), version_2: None };
        // Whether the list is the registry's own or the fallback tag's only matters to what is said when it refuses.
        let api = source.referrers(&subject.digest, INDEX_V1).await.is_ok_and(|listed| listed.api);
        return Ok(vec![take(store, named, chosen, api, options.dry_run).await?]);
    }
    let wanted = if options.platforms.is_empty() { Wanted::All } else { Wanted::Each(&options.platforms) };
    let mut cleared = Vec::new();
    for image in resolve(&source, root, wanted, progress).await?.manifests {
        let version_2 = image.annotations.get(INDEX_DIGEST).cloned();
        let manifest = image.descriptor.digest;
        let found = Cleared { manifest, platform: image.platform, indexes: Vec::new(), version_2 };
        cleared.push(clear(store, found, options).await?);
    }
    Ok(cleared)
}

/// An index, its maker, and why it stays, if it does.
type Choice = (Digest, Option<String>, Option<Fate>);

/// Removes the indexes of one manifest.
async fn clear(store: &Destination, of: Cleared, options: &RemoveOptions) -> Result<Cleared, RemoveError> {
    let subject = of.manifest;
    let listed = store.referrers(&subject, INDEX_V1).await;
    let listed = listed.map_err(|source| RemoveError::List { subject, source })?;
    let mut choices: Vec<Choice> = Vec::new();
    for (descriptor, unread) in to_read(listed.descriptors) {
        let digest = descriptor.digest;
        choices.push(match unread {
            Some(why) => (digest, None, Some(Fate::NotAnIndex(why))),
            None => match store.manifest(&digest).await {
                Ok(document) => match parse_index(&document.bytes, Some(Version::V1), &subject) {
                    Ok(index) => {
                        let tool = index.build_tool_identifier;
                        let goes = options.all || tool.as_deref().is_some_and(is_ours);
                        (digest, tool, (!goes).then_some(Fate::OfAnother))
                    }
                    Err(why) => (digest, None, Some(Fate::NotAnIndex(why))),
                },
                Err(error) if error.is_lost() => (digest, None, Some(Fate::NotAnIndex(Unusable::Fetch(error)))),
                Err(source) => return Err(RemoveError::Read { digest, source }),
            },
        });
    }
    take(store, of, choices, listed.api, options.dry_run).await
}

/// Removes what has no other fate. `api`: the registry lists referrers itself.
async fn take(
    store: &Destination,
    mut of: Cleared,
    choices: Vec<Choice>,
    api: bool,
    dry_run: bool,
) -> Result<Cleared, RemoveError> {
    let subject = of.manifest;
    let goes: Vec<Digest> = choices.iter().filter(|(_, _, fate)| fate.is_none()).map(|(index, ..)| *index).collect();
    let mut results = match goes.is_empty() || dry_run {
        true => Vec::new(),
        false => store.detach(&subject, &goes).await.map_err(|source| RemoveError::Unlist { subject, source })?,
    }
    .into_iter();
    of.indexes = (choices.into_iter())
        .map(|(index, tool, fate)| {
            let fate = fate.unwrap_or_else(|| match results.next() {
                None => Fate::WouldRemove,
                Some(Ok(())) => Fate::Removed,
                Some(Err(source)) => Fate::Failed { source, unlisted: !api },
            });
            Removal { index, tool, fate }
        })
        .collect();
    Ok(of)
}
