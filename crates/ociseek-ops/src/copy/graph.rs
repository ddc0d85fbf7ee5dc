//! The documents of an image and of what refers to it, read within limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;

use super::{CopyError, CopyOptions, MAX_MANIFESTS};
use crate::discover::IndexKind;
use crate::verify::signature::is_signature;
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::image::manifest::{
    DOCKER_LIST, DOCKER_MANIFEST, MAX_DOCUMENT, OCI_INDEX, OCI_MANIFEST,
};
use ociseek_format::image::{Descriptor, LayerKind, json};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::Source;
use ociseek_store::blob::{Document, Target};

/// The fields of documents that determine what is copied.
const KEYS: [&str; 9] = [
    "mediaType",
    "config",
    "layers",
    "blobs",
    "manifests",
    "subject",
    "artifactType",
    "annotations",
    "fsLayers",
];
const IMAGE_TYPES: [&str; 4] = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST];

/// The share of the memory for an image that referrers may take which are neither indexes nor
/// signatures, and that each of them may take while it is parsed.
const FOREIGN_SHARE: u64 = 4;
/// The share that a list of referrers may take while it is read.
const LIST_SHARE: u64 = 2;
/// The maximum size in memory, in bytes, of the annotations with which such a referrer is listed.
const MAX_LISTED: usize = 16 << 10;

/// A manifest or image index of any kind, reduced to the fields that name other content.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestReferences {
    media_type: Option<String>,
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
pub(super) struct GraphNode {
    /// With the artifact type and annotations, as lists of referrers show it.
    pub(super) descriptor: Descriptor,
    pub(super) bytes: Bytes,
    children: Vec<Descriptor>,
    pub(super) blobs: Vec<Descriptor>,
    pub(super) subject: Option<Descriptor>,
    /// The referrer that this is or that lists it, directly or not. None for what the image needs.
    pub(super) referrer: Option<Digest>,
    /// Whether that referrer is neither an index nor a signature.
    is_foreign: bool,
}

impl GraphNode {
    /// The referrer that this belongs to, if it is neither an index nor a signature.
    pub(super) fn foreign_referrer(&self) -> Option<Digest> {
        self.referrer.filter(|_| self.is_foreign)
    }

    /// The approximate memory use in bytes.
    fn footprint(&self) -> u64 {
        let named =
            self.children.iter().chain(&self.blobs).chain(&self.subject).chain([&self.descriptor]);
        named.map(Descriptor::footprint).sum::<usize>() as u64 + self.bytes.len() as u64
    }
}

/// All documents of an image.
#[derive(Default)]
pub(super) struct Graph {
    pub(super) nodes: BTreeMap<Digest, GraphNode>,
    /// In the order in which they were found: the image, then referrers of the image or of each
    /// other.
    roots: Vec<Digest>,
    pub(super) referrers: BTreeSet<Digest>,
    /// Referrers that are not copied, which was reported.
    left_out: BTreeSet<Digest>,
}

impl Graph {
    pub(super) async fn read(
        from: &Source,
        document: Document,
        options: &CopyOptions,
        progress: &Arc<dyn Progress>,
    ) -> Result<Graph, CopyError> {
        let mut reading = Reading {
            graph: Graph { roots: vec![document.digest], ..Graph::default() },
            from,
            jobs: options.jobs,
            progress,
            foreign: from.budget().apart(FOREIGN_SHARE),
            missing: BTreeSet::new(),
        };
        let mut image = vec![document.digest];
        reading.graph.add(node(document)?);
        // All of the image first, so that no referrer can take the memory that it needs.
        let mut level = image.clone();
        while !level.is_empty() {
            level = reading.below(&level, false).await?;
            image.extend(&level);
        }
        if options.referrers {
            level = image;
            while !level.is_empty() {
                level = reading.below(&level, true).await?;
            }
            reading.leave_out_incomplete();
        }
        Ok(reading.graph)
    }

    fn add(&mut self, node: GraphNode) {
        self.nodes.insert(node.descriptor.digest, node);
    }

    /// The referrers that name a blob. None if the image needs it.
    pub(super) fn referrers_with(&self, blob: &Descriptor) -> Option<BTreeSet<Digest>> {
        let names = |node: &&GraphNode| {
            node.blobs.iter().any(|named| (named.digest, named.size) == (blob.digest, blob.size))
        };
        self.order().into_iter().filter(names).map(|node| node.referrer).collect()
    }

    /// Whether none of these referrers is an index or a signature.
    pub(super) fn are_foreign(&self, referrers: &BTreeSet<Digest>) -> bool {
        referrers.iter().all(|digest| self.nodes.get(digest).is_some_and(|node| node.is_foreign))
    }

    /// A referrer and what it lists are not copied.
    pub(super) fn leave_out(&mut self, referrer: Digest, why: &str, progress: &Arc<dyn Progress>) {
        if self.referrers.remove(&referrer) {
            self.roots.retain(|root| *root != referrer);
        }
        if self.left_out.insert(referrer) {
            let what = format!("{referrer} is listed as a referrer but was not copied: {why}");
            progress.report(ProgressEvent::Warning(what));
        }
    }

    /// All documents that are copied. Each follows those that it lists, and referrers follow their
    /// subjects.
    pub(super) fn order(&self) -> Vec<&GraphNode> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut begun = BTreeSet::new();
        for root in &self.roots {
            // What refers to a referrer that was left out is left out, too.
            let subject = self.nodes.get(root).and_then(|node| node.subject.as_ref());
            if self.referrers.contains(root)
                && subject.is_none_or(|subject| !begun.contains(&subject.digest))
            {
                continue;
            }
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

/// Reads the documents of an image.
struct Reading<'a> {
    graph: Graph,
    from: &'a Source,
    jobs: usize,
    progress: &'a Arc<dyn Progress>,
    /// The memory for referrers that are neither indexes nor signatures. Anyone who can push
    /// decides about their number and sizes.
    foreign: Budget,
    /// What the layout lacks.
    missing: BTreeSet<Digest>,
}

/// Why a document is copied.
#[derive(Clone, Copy)]
enum Part {
    /// The image lists it, directly or not.
    Image,
    /// A referrer lists it, directly or not.
    OfReferrer {
        referrer: Digest,
        is_foreign: bool,
    },
    Referrer {
        subject: Digest,
        is_foreign: bool,
    },
}

impl Part {
    /// The referrer that is left out if this cannot be copied: anyone who can push decides what it
    /// is.
    fn referrer(self, digest: Digest) -> Option<Digest> {
        match self {
            Part::OfReferrer { referrer, .. } => Some(referrer),
            Part::Referrer { .. } => Some(digest),
            Part::Image => None,
        }
    }

    /// Whether the image can do without it.
    fn is_foreign(self) -> bool {
        matches!(
            self,
            Part::OfReferrer { is_foreign: true, .. } | Part::Referrer { is_foreign: true, .. }
        )
    }
}

impl Reading<'_> {
    /// Reads what the documents of a level list, and with `referrers` what refers to them. Returns
    /// what was read.
    async fn below(&mut self, level: &[Digest], referrers: bool) -> Result<Vec<Digest>, CopyError> {
        let mut next: Vec<(Descriptor, Part)> = Vec::new();
        for node in level.iter().filter_map(|digest| self.graph.nodes.get(digest)) {
            let is_foreign = node.is_foreign;
            let part = node
                .referrer
                .map_or(Part::Image, |referrer| Part::OfReferrer { referrer, is_foreign });
            next.extend(node.children.iter().map(|child| (child.clone(), part)));
        }
        if referrers {
            let from = self.from;
            let jobs = self.jobs;
            let listed: Vec<_> = stream::iter(level.to_vec())
                .map(|subject| async move {
                    // Only digests and types are kept of the list.
                    let from = from.with_budget(from.budget().apart(LIST_SHARE));
                    let listed = from.all_referrers(&subject).await.map(|listed| {
                        let bare = |found: Descriptor| Descriptor {
                            artifact_type: found.artifact_type,
                            ..Descriptor::new(found.media_type, found.digest, found.size)
                        };
                        listed.descriptors.into_iter().map(bare).collect::<Vec<_>>()
                    });
                    (subject, listed)
                })
                .buffered(jobs)
                .collect()
                .await;
            for (subject, listed) in listed {
                let listed = listed.map_err(|source| CopyError::Referrers { subject, source })?;
                next.extend(listed.into_iter().map(|referrer| {
                    let is_foreign = is_foreign(referrer.artifact_type.as_deref());
                    (referrer, Part::Referrer { subject, is_foreign })
                }));
            }
        }
        let mut seen = BTreeSet::new();
        next.retain(|(found, _)| !self.missing.contains(&found.digest));
        // A referrer may state a wrong size for what another one lists.
        next.retain(|(found, _)| {
            !self.graph.nodes.contains_key(&found.digest) && seen.insert((found.digest, found.size))
        });
        let room = MAX_MANIFESTS.saturating_sub(self.graph.nodes.len());
        let mut surplus = next.len().saturating_sub(room);
        let mut left_out = 0;
        // The last of those that the image can do without.
        for place in (0..next.len()).rev() {
            if surplus > 0 && matches!(next[place].1, Part::Referrer { is_foreign: true, .. }) {
                next.remove(place);
                surplus -= 1;
                left_out += 1;
            }
        }
        if surplus > 0 {
            return Err(CopyError::TooMany);
        }
        if left_out > 0 {
            self.warn(format!(
                "{left_out} referrers are not copied: at most {MAX_MANIFESTS} manifests are"
            ));
        }
        self.fetch(next).await
    }

    /// Reads documents and returns those that are new. A referrer that is listed but missing or not
    /// valid, or refers to something else, is ignored.
    async fn fetch(&mut self, wanted: Vec<(Descriptor, Part)>) -> Result<Vec<Digest>, CopyError> {
        let from = self.from;
        let mut fetched = stream::iter(wanted)
            .map(|(descriptor, part)| async move {
                // Charged for what is kept of it, which is less.
                let apart = from.budget().apart(FOREIGN_SHARE);
                let from = if part.is_foreign() { from.with_budget(apart) } else { from.clone() };
                let document = from.manifest(&Target::Digest(descriptor.digest)).await;
                (descriptor, part, document)
            })
            .buffered(self.jobs);
        let mut added = Vec::new();
        while let Some((descriptor, part, document)) = fetched.next().await {
            let digest = descriptor.digest;
            let is_referrer = matches!(part, Part::Referrer { .. });
            let referrer = part.referrer(digest);
            let document = match document {
                Ok(document) => document,
                Err(error)
                    if (error.is_lost() || error.is_over_budget() && part.is_foreign())
                        && let Some(referrer) = referrer =>
                {
                    self.leave_out(referrer, &causes(&error));
                    continue;
                }
                // Layouts may lack the manifests of some platforms.
                Err(error) if !from.is_remote() && error.is_not_found() => {
                    self.warn(format!("{digest} is not copied, because it is not in the layout"));
                    self.missing.insert(digest);
                    continue;
                }
                Err(source) => return Err(CopyError::Read { digest, source }),
            };
            let found = document.bytes.len() as u64;
            let read = if !is_referrer && found != descriptor.size {
                Err(CopyError::Size { digest, expected: descriptor.size, found })
            } else {
                node(document)
            };
            let mut node = match (read, referrer) {
                (Ok(node), _) => node,
                (Err(error), Some(referrer)) => {
                    self.leave_out(referrer, &causes(&error));
                    continue;
                }
                (Err(error), None) => return Err(error),
            };
            if let Part::Referrer { subject, .. } = part
                && node.subject.as_ref().is_none_or(|named| named.digest != subject)
            {
                self.leave_out(digest, "it does not refer to the image");
                continue;
            }
            (node.referrer, node.is_foreign) = (referrer, part.is_foreign());
            if let Some(referrer) = referrer.filter(|_| part.is_foreign()) {
                // A list with them could exceed what stores accept.
                if node.descriptor.footprint() > MAX_LISTED {
                    node.descriptor.annotations.clear();
                }
                let kept = node.footprint();
                match self.foreign.charge(kept, || format!("manifest {digest} of {found} bytes")) {
                    Ok(charge) => charge.keep(),
                    Err(error) => {
                        self.leave_out(referrer, &error.to_string());
                        continue;
                    }
                }
            }
            if is_referrer {
                self.graph.referrers.insert(digest);
                self.graph.roots.push(digest);
            }
            self.graph.add(node);
            added.push(digest);
        }
        Ok(added)
    }

    /// Leaves out the referrers that list what could not be read for another one.
    fn leave_out_incomplete(&mut self) {
        let nodes = &self.graph.nodes;
        let lacks = |referrer: &Digest| {
            let mut open = vec![*referrer];
            let mut seen = BTreeSet::new();
            while let Some(digest) = open.pop() {
                let Some(node) = nodes.get(&digest) else { return Some(digest) };
                if seen.insert(digest) {
                    open.extend(node.children.iter().map(|child| child.digest));
                }
            }
            None
        };
        let lacking: Vec<_> = self
            .graph
            .referrers
            .iter()
            .filter_map(|referrer| Some((*referrer, lacks(referrer)?)))
            .collect();
        for (referrer, lacked) in lacking {
            self.leave_out(referrer, &format!("it lists {lacked}, which cannot be copied"));
        }
    }

    fn leave_out(&mut self, referrer: Digest, why: &str) {
        self.graph.leave_out(referrer, why, self.progress);
    }

    fn warn(&self, text: String) {
        self.progress.report(ProgressEvent::Warning(text));
    }
}

/// Whether a referrer of this type is neither an index nor a signature.
fn is_foreign(artifact_type: Option<&str>) -> bool {
    artifact_type
        .is_none_or(|kind| !IndexKind::ARTIFACT_TYPES.contains(&kind) && !is_signature(kind))
}

/// Whether an index entry of this type is a blob: caches of BuildKit list layers.
fn is_blob(media_type: &str) -> bool {
    let is_document = |word| media_type.contains(word);
    !media_type.is_empty() && !["manifest", "index"].into_iter().any(is_document)
}

/// Parses a document to find the content that it names.
fn node(document: Document) -> Result<GraphNode, CopyError> {
    let Document { media_type, digest, bytes } = document;
    let references: ManifestReferences = json::parse(&bytes, MAX_DOCUMENT, &KEYS)
        .map_err(|source| CopyError::Json { digest, source })?;
    if references.fs_layers.is_some() {
        return Err(CopyError::Schema1(digest));
    }
    // Some registries serve the type of the other family.
    let stated = references.media_type.filter(|stated| IMAGE_TYPES.contains(&stated.as_str()));
    let mut descriptor = Descriptor::new(stated.unwrap_or(media_type), digest, bytes.len() as u64);
    let config_type = references.config.as_ref().map(|config| config.media_type.clone());
    descriptor.artifact_type =
        references.artifact_type.filter(|stated| !stated.is_empty()).or(config_type);
    descriptor.annotations = references.annotations;
    let blobs = references
        .config
        .into_iter()
        .chain(references.layers.unwrap_or_default())
        .chain(references.blobs.unwrap_or_default());
    let (listed, children): (Vec<_>, Vec<_>) = references
        .manifests
        .unwrap_or_default()
        .into_iter()
        .partition(|listed| is_blob(&listed.media_type));
    let blobs = blobs.chain(listed);
    Ok(GraphNode {
        descriptor,
        bytes,
        children,
        referrer: None,
        is_foreign: false,
        // Foreign layers are downloaded from elsewhere, so registries need not have them.
        blobs: blobs.filter(|blob| LayerKind::of(&blob.media_type) != LayerKind::Foreign).collect(),
        subject: references.subject,
    })
}
