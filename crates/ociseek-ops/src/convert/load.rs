//! Loads the documents of an image to be converted, within limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::model::{ConvertError, MAX_DOCUMENTS, MAX_MANIFESTS, SIDE_BY_SIDE, SourceImage};
use crate::damage::Damage;
use crate::resolve::PlatformManifest;
use ociseek_format::digest::Digest;
use ociseek_format::image::config::MAX_CONFIG;
use ociseek_format::image::enabled::{
    EntryContent, IndexTarget, Original, is_runnable, is_soci_index,
};
use ociseek_format::image::go::{
    GoError, GoManifest, decode_index, decode_manifest, decode_platform,
};
use ociseek_format::image::manifest::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use ociseek_format::image::select::MAX_NESTING;
use ociseek_format::image::{Descriptor, Platform};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::blob::{Document, Target};
use ociseek_store::{Source, StoreError};

/// An image's documents.
pub(super) struct ImageDocuments {
    /// The digest of the manifest or image index that the image's name refers to.
    pub root: Digest,
    pub original: Original,
    /// Unchanged manifests by digest, for a store that lacks them.
    pub unchanged: BTreeMap<Digest, Bytes>,
}

fn is_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST)
}

fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_LIST)
}

/// Fetches the documents. An image index with a single manifest, or with only one that exists in a
/// layout, is converted like that manifest.
pub(super) async fn load(
    from: &SourceImage,
    progress: &Arc<dyn Progress>,
) -> Result<ImageDocuments, ConvertError> {
    let source = &from.source;
    let mut loader = Loader {
        source,
        read: 0,
        documents: BTreeMap::new(),
        ahead: None,
        root: None,
        unchanged: BTreeMap::new(),
    };
    let (media_type, digest, bytes) = match source.manifest(&from.root).await {
        Ok(document) => (document.media_type, document.digest, document.bytes),
        Err(error) => match from.descriptor.as_ref().and_then(|d| Some((d, embedded(d)?))) {
            Some((descriptor, bytes)) if error.is_not_found() => {
                (descriptor.media_type.clone(), descriptor.digest, bytes)
            }
            _ => return Err(ConvertError::Find(error)),
        },
    };
    loader.root = Some(digest);
    let stated = from.descriptor.as_ref().filter(|descriptor| descriptor.digest == digest);
    let media_type = stated.map_or(media_type, |descriptor| descriptor.media_type.clone());
    if is_manifest(&media_type) {
        let bare = Descriptor::new(media_type, digest, bytes.len() as u64);
        let descriptor = stated.cloned().unwrap_or(bare);
        let manifest = unsound(digest, decode_manifest(&bytes))?;
        return loader.single(digest, descriptor, manifest).await;
    }
    if !is_index(&media_type) {
        return Err(ConvertError::NotAnImage { digest });
    }
    let mut index = unsound(digest, decode_index(&bytes))?;
    if index.manifests.len() > MAX_MANIFESTS {
        return Err(ConvertError::TooMany { digest, count: index.manifests.len() });
    }
    let mut missing = Vec::new();
    if !matches!(source, Source::Registry(_)) {
        for entry in &index.manifests {
            if !is_soci_index(entry) && loader.is_missing(entry).await {
                missing.push(entry.digest);
            }
        }
    }
    for digest in &missing {
        progress.report(ProgressEvent::Warning(format!(
            "{digest} is not in the layout, so the converted image omits it"
        )));
    }
    index.manifests.retain(|entry| !missing.contains(&entry.digest));
    match &index.manifests[..] {
        [] => return Err(ConvertError::Empty { digest }),
        [only] if is_manifest(&only.media_type) => {
            let only = only.clone();
            let manifest = loader.manifest(&only).await?;
            return loader.single(digest, only, manifest).await;
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    // Collected first, because a closure in the stream would prevent the future from being Send.
    let reads: Vec<_> = (index.manifests.iter())
        .map(|entry| (entry.digest, seen.insert(entry.digest)))
        .map(|(digest, is_first)| async move {
            if is_first {
                Some((digest, source.manifest(&Target::Digest(digest)).await))
            } else {
                None
            }
        })
        .collect();
    // In order, so that the result does not depend on which answer comes first.
    let mut reads = stream::iter(reads).buffered(SIDE_BY_SIDE);
    let mut contents = Vec::with_capacity(index.manifests.len());
    let mut platforms = BTreeMap::new();
    for (place, entry) in index.manifests.iter().enumerate() {
        loader.ahead = reads.next().await.flatten();
        let (content, platform) = loader.content(entry, progress).await?;
        contents.push(content);
        platforms.extend(platform.map(|platform| (place, platform)));
    }
    Ok(ImageDocuments {
        root: digest,
        original: Original { index, contents, platforms },
        unchanged: loader.unchanged,
    })
}

impl ImageDocuments {
    /// The image of a target, in the form that the search for its ztocs uses.
    pub(super) fn image(&self, target: &IndexTarget) -> Option<PlatformManifest> {
        let listed = self.original.index.manifests.get(target.entry)?;
        let manifest = self.original.contents.get(target.entry)?.image()?;
        Some(PlatformManifest {
            descriptor: Descriptor::new(listed.media_type.clone(), listed.digest, listed.size),
            platform: Some(target.platform.clone()),
            config: manifest.config.clone(),
            layers: manifest.layers().to_vec(),
            annotations: manifest.annotations.clone(),
        })
    }
}

struct Loader<'a> {
    source: &'a Source,
    /// The size of the documents so far, in bytes. A manifest counts each time that it is listed.
    read: u64,
    /// The documents so far, for those that are listed again.
    documents: BTreeMap<Digest, Bytes>,
    /// What was read for the current entry of the image index, unless it was listed before.
    ahead: Option<(Digest, Result<Document, StoreError>)>,
    root: Option<Digest>,
    unchanged: BTreeMap<Digest, Bytes>,
}

impl Loader<'_> {
    async fn single(
        self,
        root: Digest,
        mut descriptor: Descriptor,
        manifest: GoManifest,
    ) -> Result<ImageDocuments, ConvertError> {
        let content = EntryContent::of(manifest.clone());
        if content.image().is_none() {
            return Err(ConvertError::NotAnImage { digest: root });
        }
        if descriptor.platform.is_none() {
            descriptor.platform = Some(self.config_platform(&manifest).await?);
        }
        Ok(ImageDocuments {
            root,
            original: Original::single(descriptor, manifest),
            unchanged: self.unchanged,
        })
    }

    /// The content of an entry in the image index, and the platform of an image if its entry does
    /// not state it.
    async fn content(
        &mut self,
        entry: &Descriptor,
        progress: &Arc<dyn Progress>,
    ) -> Result<(EntryContent, Option<Platform>), ConvertError> {
        let mut platform = None;
        let content = if is_manifest(&entry.media_type) {
            match self.manifest(entry).await {
                Err(ConvertError::Document { source, digest, .. })
                    if is_soci_index(entry) && Damage::of(&source).is_some() =>
                {
                    let text = format!(
                        "SOCI index {digest} cannot be read, and is not reused: {}",
                        causes(&source)
                    );
                    progress.report(ProgressEvent::Warning(text));
                    return Ok((EntryContent::Lost, None));
                }
                manifest => EntryContent::of(manifest?),
            }
        } else if is_index(&entry.media_type) {
            match self.first(entry, progress).await? {
                Some(first) => {
                    platform.clone_from(&first.platform);
                    EntryContent::of(self.manifest(&first).await?)
                }
                None => EntryContent::Kept,
            }
        } else {
            if entry.media_type.is_empty() {
                let text = format!(
                    "{} was not indexed: its entry has no mediaType, which runtimes need",
                    entry.digest
                );
                progress.report(ProgressEvent::Warning(text));
            }
            EntryContent::Kept
        };
        let is_kept = matches!(content, EntryContent::Kept | EntryContent::Artifact(_));
        if is_kept && !self.unchanged.contains_key(&entry.digest) {
            // A document that is neither a manifest nor an index may be of a kind that the store
            // does not return.
            match self.fetch(entry, "manifest").await {
                Ok(bytes) => drop(self.unchanged.insert(entry.digest, bytes)),
                Err(error) if is_manifest(&entry.media_type) || is_index(&entry.media_type) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        let EntryContent::Image(manifest) = &content else { return Ok((content, None)) };
        if entry.platform.is_some() || !is_runnable(entry, &content) {
            return Ok((content, None));
        }
        if platform.is_none() {
            match self.config_platform(manifest).await {
                Ok(stated) => platform = Some(stated),
                Err(error) => progress.report(ProgressEvent::Warning(format!(
                    "{} was not indexed: neither it nor its config states a platform: {}",
                    entry.digest,
                    causes(&error)
                ))),
            }
        }
        Ok((content, platform))
    }

    /// The first manifest in a nested index.
    async fn first(
        &mut self,
        entry: &Descriptor,
        progress: &Arc<dyn Progress>,
    ) -> Result<Option<Descriptor>, ConvertError> {
        // The entries to examine; the next one is last.
        let mut todo = vec![(entry.clone(), 1)];
        let mut seen = BTreeSet::from_iter(self.root);
        let mut first = None;
        let mut others = 0;
        while let Some((next, depth)) = todo.pop() {
            let digest = next.digest;
            if is_manifest(&next.media_type) {
                others += usize::from(first.is_some());
                first.get_or_insert(next);
            } else if is_index(&next.media_type) {
                if depth >= MAX_NESTING
                    || digest == entry.digest && depth > 1
                    || self.root == Some(digest)
                {
                    return Err(ConvertError::TooDeep { digest, limit: MAX_NESTING });
                }
                if !seen.insert(digest) {
                    continue;
                }
                let index =
                    unsound(digest, decode_index(&self.fetch(&next, "image index").await?))?;
                if todo.len() + index.manifests.len() > MAX_MANIFESTS {
                    return Err(ConvertError::TooMany {
                        digest,
                        count: todo.len() + index.manifests.len(),
                    });
                }
                todo.extend(index.manifests.into_iter().rev().map(|child| (child, depth + 1)));
            }
        }
        if let Some(first) = first.as_ref().filter(|_| others > 0) {
            progress.report(ProgressEvent::Warning(format!(
                "the nested image index {} is replaced by its first manifest, {}; others in it: {others}",
                entry.digest, first.digest
            )));
        }
        Ok(first)
    }

    async fn manifest(&mut self, descriptor: &Descriptor) -> Result<GoManifest, ConvertError> {
        let is_repeated = self.documents.contains_key(&descriptor.digest);
        let bytes = self.fetch(descriptor, "manifest").await?;
        // It is fetched once, but rewritten for each entry.
        if is_repeated {
            self.count(descriptor.digest, &bytes)?;
        }
        unsound(descriptor.digest, decode_manifest(&bytes))
    }

    async fn is_missing(&self, descriptor: &Descriptor) -> bool {
        matches!(self.source.blob_exists(descriptor).await, Ok(false))
    }

    /// Fetches the document of a descriptor, with the stated size and digest.
    async fn fetch(
        &mut self,
        descriptor: &Descriptor,
        what: &'static str,
    ) -> Result<Bytes, ConvertError> {
        let digest = descriptor.digest;
        let bytes = match self.documents.get(&digest) {
            Some(known) => known.clone(),
            None => {
                let read = match self.ahead.take_if(|(ahead, _)| *ahead == digest) {
                    Some((_, read)) => read,
                    None => self.source.manifest(&Target::Digest(digest)).await,
                };
                let bytes = match read {
                    Ok(document) => document.bytes,
                    Err(error) => {
                        let embedded = embedded(descriptor).filter(|_| error.is_not_found());
                        embedded.ok_or(ConvertError::Document { what, digest, source: error })?
                    }
                };
                self.count(digest, &bytes)?;
                self.documents.insert(digest, bytes.clone());
                bytes
            }
        };
        let found = bytes.len() as u64;
        if found == descriptor.size {
            Ok(bytes)
        } else {
            Err(ConvertError::Size { what, digest, expected: descriptor.size, found })
        }
    }

    fn count(&mut self, digest: Digest, document: &Bytes) -> Result<(), ConvertError> {
        self.read += document.len() as u64;
        if self.read <= MAX_DOCUMENTS {
            Ok(())
        } else {
            Err(ConvertError::TooLarge { digest: self.root.unwrap_or(digest) })
        }
    }

    /// The platform in an image's config, parsed like containerd.
    async fn config_platform(&self, manifest: &GoManifest) -> Result<Platform, ConvertError> {
        let config = &manifest.config;
        let bytes = self.source.blob_bytes(config, MAX_CONFIG as u64).await;
        let failed =
            |source| ConvertError::Document { what: "config", digest: config.digest, source };
        let stated = unsound(config.digest, decode_platform(&bytes.map_err(failed)?))?;
        let mut platform = stated.normalized();
        if platform.os.is_empty() {
            "linux".clone_into(&mut platform.os);
        }
        platform.os_features = BTreeSet::from_iter(platform.os_features).into_iter().collect();
        Ok(platform)
    }
}

/// The content that is embedded in a descriptor.
fn embedded(descriptor: &Descriptor) -> Option<Bytes> {
    let bytes = BASE64_STANDARD.decode(descriptor.data.as_ref()?).ok()?;
    (Digest::of(descriptor.digest.algorithm(), &bytes) == descriptor.digest).then(|| bytes.into())
}

fn unsound<T>(digest: Digest, decoded: Result<T, GoError>) -> Result<T, ConvertError> {
    decoded.map_err(|source| ConvertError::Unsound { digest, source })
}
