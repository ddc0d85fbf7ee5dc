//! `copy`: copies an image and everything that refers to it, with their digests, from one store to
//! another.
//!
//! Documents are read first, and their digests verified. Then blobs are copied, then manifests
//! (those listed by an index before the index, images before their referrers), and finally the tag.
//! So when the tag exists, the copy is complete, and an interrupted copy can simply be restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Deserialize;

use ociseek_format::digest::Digest;
use ociseek_format::image::manifest::MAX_DOCUMENT;
use ociseek_format::image::{Descriptor, JsonError, LayerKind, json};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::blob::{Document, Target};
use ociseek_store::copy::CopyMethod;
use ociseek_store::feed::reported;
use ociseek_store::{Destination, Source, StoreError};

/// The maximum number of manifests and indexes that are copied, including referrers.
const MAX_MANIFESTS: usize = 10_000;

/// The fields of documents that determine what is copied.
const KEYS: [&str; 8] =
    ["config", "layers", "blobs", "manifests", "subject", "artifactType", "annotations", "fsLayers"];

/// Options for copying an image.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Whether referrers of the image are copied too.
    pub referrers: bool,
    /// How many blobs are copied at the same time; at least 1.
    pub jobs: usize,
}

/// Copies the referrers, and four blobs at a time.
impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions { referrers: true, jobs: 4 }
    }
}

/// The result of copying.
#[derive(Debug)]
pub struct CopyReport {
    /// The copy's manifest or image index, the same as the original's.
    pub digest: Digest,
    /// The number of manifests and image indexes, without referrers.
    pub manifests: usize,
    /// The copied referrers of the image and its platforms.
    pub referrers: Vec<CopiedReferrer>,
    /// The copied blobs, without duplicates.
    pub blobs: BlobCounts,
}

/// A referrer that was copied.
#[derive(Debug)]
pub struct CopiedReferrer {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The manifest that it refers to.
    pub subject: Digest,
    /// Its type, if it has one.
    pub artifact_type: Option<String>,
}

/// How the blobs were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlobCounts {
    /// The number that the destination already had.
    pub present: usize,
    /// The number that the registry mounted from another of its repositories.
    pub mounted: usize,
    /// The number that were downloaded and uploaded.
    pub streamed: usize,
    /// The size of the streamed blobs in bytes.
    pub bytes: u64,
}

/// Why an image was not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CopyError {
    #[error("cannot find the image")]
    Find(#[source] StoreError),
    #[error("cannot read manifest {digest}")]
    Read { digest: Digest, source: StoreError },
    #[error("manifest {digest} is not valid")]
    Json { digest: Digest, source: JsonError },
    #[error("{0} is a Docker schema 1 manifest: convert it with another tool first")]
    Schema1(Digest),
    #[error("manifest {digest} has {found} bytes, but its descriptor says {expected}")]
    Size { digest: Digest, expected: u64, found: u64 },
    #[error("cannot list the referrers of {subject}")]
    Referrers { subject: Digest, source: StoreError },
    #[error("the image and its referrers have more than {MAX_MANIFESTS} manifests")]
    TooMany,
    #[error("cannot copy blob {digest}")]
    Blob { digest: Digest, source: StoreError },
    #[error("the destination rejected manifest {digest}")]
    Push { digest: Digest, source: StoreError },
    #[error("the destination rejected the tag {tag:?}")]
    Tag { tag: String, source: StoreError },
}

/// A manifest or image index of any kind, reduced to the fields that name other content.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestReferences {
    artifact_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    /// In OCI artifact manifests, which existed for a while.
    blobs: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
    subject: Option<Descriptor>,
    fs_layers: Option<serde::de::IgnoredAny>,
    #[serde(default, deserialize_with = "ociseek_format::image::null_is_default")]
    annotations: BTreeMap<String, String>,
}

/// A document with the content that it names.
struct Node {
    /// With the artifact type and annotations, as lists of referrers show it.
    descriptor: Descriptor,
    bytes: Bytes,
    children: Vec<Descriptor>,
    blobs: Vec<Descriptor>,
    subject: Option<Descriptor>,
}

/// All documents of an image.
#[derive(Default)]
struct Graph {
    nodes: BTreeMap<Digest, Node>,
    /// In the order in which they were found: the image, then referrers of the image or of each
    /// other.
    roots: Vec<Digest>,
    referrers: BTreeSet<Digest>,
}

/// Copies the image `root` of `from` with its digests, and names the copy `tag`.
///
/// # Errors
/// If a part of it cannot be read or is refused. Then the destination has no new tag.
pub async fn copy(
    from: &Source,
    root: &Target,
    to: &Destination,
    tag: &str,
    options: &CopyOptions,
    progress: &Arc<dyn Progress>,
) -> Result<CopyReport, CopyError> {
    let document = from.manifest(root).await.map_err(CopyError::Find)?;
    let digest = document.digest;
    let graph = Graph::read(from, document, options, progress).await?;
    let blobs = blobs(&graph, from, to, options.jobs, progress).await?;

    let order = graph.order();
    let mut referrers = Vec::new();
    for node in &order {
        let pushed = |source| CopyError::Push { digest: node.descriptor.digest, source };
        match node.subject.as_ref().filter(|_| graph.referrers.contains(&node.descriptor.digest)) {
            None => to.push_manifest(&node.descriptor, node.bytes.clone(), None).await.map_err(pushed)?,
            Some(subject) => {
                to.attach(&node.descriptor, node.bytes.clone(), subject, &[]).await.map_err(pushed)?;
                let artifact_type = node.descriptor.artifact_type.clone();
                let subject = subject.digest;
                referrers.push(CopiedReferrer { digest: node.descriptor.digest, subject, artifact_type });
            }
        }
    }
    if let Some(image) = graph.nodes.get(&digest) {
        let plain = Descriptor::new(image.descriptor.media_type.clone(), digest, image.descriptor.size);
        let tagged = to.tag_manifest(&plain, image.bytes.clone(), tag).await;
        tagged.map_err(|source| CopyError::Tag { tag: tag.to_owned(), source })?;
    }
    Ok(CopyReport { digest, manifests: order.len() - referrers.len(), referrers, blobs })
}

impl Graph {
    async fn read(
        from: &Source,
        document: Document,
        options: &CopyOptions,
        progress: &Arc<dyn Progress>,
    ) -> Result<Graph, CopyError> {
        let mut graph = Graph { roots: vec![document.digest], ..Graph::default() };
        let mut level = vec![document.digest];
        graph.add(node(document)?);
        while !level.is_empty() {
            let children: Vec<Descriptor> = (level.iter().filter_map(|digest| graph.nodes.get(digest)))
                .flat_map(|node| &node.children)
                .filter(|child| !graph.nodes.contains_key(&child.digest))
                .cloned()
                .collect();
            let mut next: Vec<(Descriptor, Option<Digest>)> = children.into_iter().map(|child| (child, None)).collect();
            if options.referrers {
                let listed: Vec<_> = stream::iter(level)
                    .map(|subject| async move { (subject, from.all_referrers(&subject).await) })
                    .buffered(options.jobs)
                    .collect()
                    .await;
                for (subject, listed) in listed {
                    let listed = listed.map_err(|source| CopyError::Referrers { subject, source })?;
                    let of_subject = listed.descriptors.into_iter().map(|referrer| (referrer, Some(subject)));
                    next.extend(of_subject);
                }
            }
            next.retain({
                let mut seen = BTreeSet::new();
                move |(descriptor, _)| seen.insert(descriptor.digest)
            });
            next.retain(|(descriptor, _)| !graph.nodes.contains_key(&descriptor.digest));
            if graph.nodes.len() + next.len() > MAX_MANIFESTS {
                return Err(CopyError::TooMany);
            }
            level = graph.fetch(from, next, options.jobs, progress).await?;
        }
        Ok(graph)
    }

    /// Reads documents and returns those that are new. A referrer that is listed but missing, or
    /// refers to something else, is ignored.
    async fn fetch(
        &mut self,
        from: &Source,
        wanted: Vec<(Descriptor, Option<Digest>)>,
        jobs: usize,
        progress: &Arc<dyn Progress>,
    ) -> Result<Vec<Digest>, CopyError> {
        let mut fetched = stream::iter(wanted)
            .map(|(descriptor, subject)| async move {
                let document = from.manifest(&Target::Digest(descriptor.digest)).await;
                (descriptor, subject, document)
            })
            .buffered(jobs);
        let mut added = Vec::new();
        while let Some((descriptor, subject, document)) = fetched.next().await {
            let digest = descriptor.digest;
            let warn = |why: &str| {
                progress.report(ProgressEvent::Warning(format!(
                    "{digest} is listed as a referrer but was not copied: {why}"
                )));
            };
            let document = match document {
                Ok(document) => document,
                Err(error) if subject.is_some() && error.is_lost() => {
                    warn(&causes(&error));
                    continue;
                }
                Err(source) => return Err(CopyError::Read { digest, source }),
            };
            let found = document.bytes.len() as u64;
            if subject.is_none() && found != descriptor.size {
                return Err(CopyError::Size { digest, expected: descriptor.size, found });
            }
            let node = node(document)?;
            if let Some(subject) = subject {
                if node.subject.as_ref().is_none_or(|named| named.digest != subject) {
                    warn("it does not refer to the image");
                    continue;
                }
                self.referrers.insert(digest);
                self.roots.push(digest);
            }
            self.add(node);
            added.push(digest);
        }
        Ok(added)
    }

    fn add(&mut self, node: Node) {
        self.nodes.insert(node.descriptor.digest, node);
    }

    /// All documents. Each follows those that it lists, and referrers follow their subjects.
    fn order(&self) -> Vec<&Node> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut begun = BTreeSet::new();
        for root in &self.roots {
            let mut stack = vec![(*root, false)];
            while let Some((digest, listed_are_done)) = stack.pop() {
                let Some(node) = self.nodes.get(&digest) else { continue };
                if listed_are_done {
                    order.push(node);
                } else if begun.insert(digest) {
                    stack.push((digest, true));
                    stack.extend(node.children.iter().rev().map(|child| (child.digest, false)));
                }
            }
        }
        order
    }
}

/// Parses a document to find the content that it names.
fn node(document: Document) -> Result<Node, CopyError> {
    let Document { media_type, digest, bytes } = document;
    let references: ManifestReferences =
        json::parse(&bytes, MAX_DOCUMENT, &KEYS).map_err(|source| CopyError::Json { digest, source })?;
    if references.fs_layers.is_some() {
        return Err(CopyError::Schema1(digest));
    }
    let mut descriptor = Descriptor::new(media_type, digest, bytes.len() as u64);
    let config_type = references.config.as_ref().map(|config| config.media_type.clone());
    descriptor.artifact_type = references.artifact_type.filter(|stated| !stated.is_empty()).or(config_type);
    descriptor.annotations = references.annotations;
    let blobs = references
        .config
        .into_iter()
        .chain(references.layers.unwrap_or_default())
        .chain(references.blobs.unwrap_or_default());
    Ok(Node {
        descriptor,
        bytes,
        children: references.manifests.unwrap_or_default(),
        // Foreign layers are downloaded from elsewhere, so registries need not have them.
        blobs: blobs.filter(|blob| LayerKind::of(&blob.media_type) != LayerKind::Foreign).collect(),
        subject: references.subject,
    })
}

/// Copies the blobs that the documents name, without duplicates.
async fn blobs(
    graph: &Graph,
    from: &Source,
    to: &Destination,
    jobs: usize,
    progress: &Arc<dyn Progress>,
) -> Result<BlobCounts, CopyError> {
    let mut seen = BTreeSet::new();
    let all = graph.order().into_iter().flat_map(|node| &node.blobs);
    let blobs: Vec<&Descriptor> = all.filter(|blob| seen.insert(blob.digest)).collect();
    let copied: Vec<(u64, CopyMethod)> = stream::iter(blobs)
        .map(|blob| async move {
            let layer = blob.digest;
            let sent = |bytes| progress.report(ProgressEvent::LayerRead { layer, bytes });
            let copied = reported(progress, blob, to.copy_blob(blob, from, jobs, &sent)).await;
            copied.map(|copied| (blob.size, copied)).map_err(|source| CopyError::Blob { digest: layer, source })
        })
        .buffer_unordered(jobs)
        .try_collect()
        .await?;
    let mut counts = BlobCounts::default();
    for (bytes, copied) in copied {
        match copied {
            CopyMethod::Present => counts.present += 1,
            CopyMethod::Mounted => counts.mounted += 1,
            CopyMethod::Sent => {
                counts.streamed += 1;
                counts.bytes += bytes;
            }
        }
    }
    Ok(counts)
}
