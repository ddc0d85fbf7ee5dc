//! SOCI-enabled images (version 2): an image index that lists both the image manifests and the SOCI
//! indexes that they name.
//!
//! The bytes are those of `soci convert` (soci-snapshotter v0.15.0, soci/soci_convert.go), except
//! where its result is broken: artifacts keep their manifests (but their subjects follow the
//! conversion), attestations keep their annotations, Windows versions and OS features count as
//! separate platforms, and the index of a platform that is not converted is left unchanged.

use std::collections::{BTreeMap, BTreeSet};

use super::fine::{BOUND_INDEX, BOUND_TO, FINE_INDEX};
use super::go::{GoManifest, Index};
use super::manifest::{DOCKER_CONFIG, Manifest, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use super::select::is_marked_attestation;
use super::soci::{EncodedIndex, INDEX_V2, SociIndex, ZtocRef};
use super::{Descriptor, LayerKind, Platform};
use crate::digest::Digest;

/// The annotation of an image manifest that names its SOCI index of version 2.
pub const INDEX_DIGEST: &str = "com.amazon.soci.index-digest";
/// The annotation of a SOCI index's descriptor that names its image manifest.
pub const MANIFEST_DIGEST: &str = "com.amazon.soci.image-manifest-digest";
/// The annotation of a layer that names its table of contents, by which podman (since 5.1) and
/// CRI-O look for the layer in an additional layer store. stargz-snapshotter named it.
pub const TOC_DIGEST: &str = "containerd.io/snapshot/stargz/toc.digest";
/// Annotations of layers that have a table of contents in themselves: eStargz
/// (stargz-snapshotter, estargz/types.go) and zstd:chunked (containers/storage, pkg/chunked).
const OWN_TOC: [&str; 2] = [
    "io.containers.estargz.uncompressed-size",
    "io.github.containers.zstd-chunked.manifest-checksum",
];
/// The annotation of an attestation's descriptor that names what is attested (BuildKit).
const REFERENCE_DIGEST: &str = "vnd.docker.reference.digest";

/// An image before its conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// The image index: the image's own, or one that was made for its only manifest.
    pub index: Index,
    /// The content of each of the index's manifests, in its order.
    pub contents: Vec<EntryContent>,
    /// The platforms of entries that do not state one, by entry number.
    pub platforms: BTreeMap<usize, Platform>,
}

/// The content of an entry of an image index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryContent {
    /// The manifest of an image or attestation, which is rewritten. For a nested index, the first
    /// manifest in it.
    Image(Box<GoManifest>),
    /// The manifest of an artifact with a subject, as BuildKit writes attestations since 0.32. Only
    /// the subject is rewritten, if that is another manifest of the index.
    Artifact(Box<GoManifest>),
    /// Anything else, which is left unchanged.
    Kept,
    /// A SOCI index that cannot be read. It is only listed if it is made again.
    Lost,
}

/// An image to be indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexTarget {
    /// Its entry number in the image index.
    pub entry: usize,
    /// The platform for which its SOCI index is listed.
    pub platform: Platform,
}

/// The content of a target's SOCI index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SociIndexParts {
    /// The image that the SOCI index is for.
    pub target: IndexTarget,
    /// In the order of the image's layers. If empty, there is no SOCI index, and the image only
    /// names its fine index.
    pub ztocs: Vec<ZtocRef>,
    /// Prefetch artifacts.
    pub prefetch: Vec<Descriptor>,
    /// The fine index that the image should name, if any: one without a subject.
    pub fine: Option<EncodedIndex>,
    /// The tables of contents that layers should name, by the digest of the layer.
    pub tocs: BTreeMap<Digest, Digest>,
}

/// The images to be indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Targets {
    /// The manifests to be indexed, in the order of the image index.
    pub targets: Vec<IndexTarget>,
    /// Entry numbers of images that are not indexed, because consumers take an earlier one of the
    /// same platform.
    pub shadowed: Vec<usize>,
    /// Requested platforms that the image does not have.
    pub missing: Vec<Platform>,
}

/// A SOCI-enabled image: its documents and what they replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnabledDocuments {
    /// The rewritten manifests, including those whose bytes did not change: in the order of the
    /// index, but after their subjects.
    pub manifests: Vec<RewrittenManifest>,
    /// The SOCI indexes, in the order of the targets.
    pub indexes: Vec<EncodedIndex>,
    /// The fine indexes that the images name, in the order of the targets.
    pub fine: Vec<EncodedIndex>,
    /// The image index in Go's form.
    pub index: Index,
    /// The bytes to push.
    pub bytes: Vec<u8>,
    /// The digest of `bytes`.
    pub digest: Digest,
}

/// A rewritten manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewrittenManifest {
    /// Its entry number in the original index.
    pub entry: usize,
    /// The digest of the original manifest.
    pub was: Digest,
    /// The digest of `bytes`.
    pub digest: Digest,
    /// The bytes to push.
    pub bytes: Vec<u8>,
}

impl EntryContent {
    /// How a manifest is handled. An artifact, whose config is not an image's, keeps its config: a
    /// new config type would turn it into an image.
    pub fn of(manifest: GoManifest) -> EntryContent {
        // Docker before 1.10 pushed configs as octet-stream.
        let image = ["", OCI_CONFIG, DOCKER_CONFIG, "application/octet-stream"];
        if image.contains(&manifest.config.media_type.as_str()) {
            EntryContent::Image(Box::new(manifest))
        } else if manifest.subject.is_some() {
            EntryContent::Artifact(Box::new(manifest))
        } else {
            EntryContent::Kept
        }
    }

    /// The manifest of this one's subject.
    fn subject(&self) -> Option<Digest> {
        match self {
            EntryContent::Image(manifest) | EntryContent::Artifact(manifest) => {
                manifest.subject.as_ref().map(|subject| subject.digest)
            }
            EntryContent::Kept | EntryContent::Lost => None,
        }
    }

    /// The manifest, if it is an image's and not an index.
    pub fn image(&self) -> Option<&GoManifest> {
        match self {
            EntryContent::Image(manifest) => Some(manifest),
            EntryContent::Artifact(_) | EntryContent::Kept | EntryContent::Lost => None,
        }
    }
}

/// Whether an entry is an image that a consumer could run, for which the platform matters.
/// Attestations and signatures are not.
pub fn is_runnable(descriptor: &Descriptor, content: &EntryContent) -> bool {
    let EntryContent::Image(manifest) = content else { return false };
    let layers = manifest.layers();
    let layered = layers.is_empty()
        || layers.iter().any(|l| LayerKind::of(&l.media_type) != LayerKind::NotALayer);
    layered && !is_attestation(descriptor)
}

impl Original {
    /// An image with a single manifest, whose descriptor has the platform.
    pub fn single(descriptor: Descriptor, manifest: GoManifest) -> Original {
        let index = Index {
            schema_version: 2,
            media_type: OCI_INDEX.to_owned(),
            artifact_type: String::new(),
            manifests: vec![descriptor],
            subject: None,
            annotations: BTreeMap::new(),
        };
        Original {
            index,
            contents: vec![EntryContent::Image(Box::new(manifest))],
            platforms: BTreeMap::new(),
        }
    }

    /// The images for the platforms in `requested`, or all images if it is empty. Images without a
    /// platform are ignored.
    pub fn targets(&self, requested: &[Platform]) -> Targets {
        let entries = self.index.manifests.iter().zip(&self.contents).enumerate();
        let images: Vec<(usize, &Platform)> = entries
            .filter(|(_, (descriptor, content))| is_runnable(descriptor, content))
            .filter_map(|(entry, (descriptor, _))| {
                Some((entry, descriptor.platform.as_ref().or_else(|| self.platforms.get(&entry))?))
            })
            .collect();
        let mut seen = BTreeSet::new();
        let mut targets = Vec::new();
        let mut shadowed = Vec::new();
        let mut missing = Vec::new();
        if requested.is_empty() {
            for (entry, platform) in images {
                if seen.insert(Key::of(platform)) {
                    targets.push(IndexTarget { entry, platform: platform.clone() })
                } else {
                    shadowed.push(entry)
                }
            }
            return Targets { targets, shadowed, missing };
        }
        for wanted in requested {
            let mut matching: Vec<&(usize, &Platform)> =
                images.iter().filter(|(_, p)| p.matches(wanted)).collect();
            if matching.is_empty() {
                missing.push(wanted.clone());
            }
            // Prefer images without features that were not requested.
            matching.sort_by_key(|(_, platform)| {
                platform.os_features.len() != wanted.os_features.len()
            });
            let windows = Key::of(wanted).is_windows();
            for (entry, platform) in matching.into_iter().copied() {
                // Each version of Windows is a separate image; for other systems only the first
                // image is taken.
                if seen.insert(if windows { Key::of(platform) } else { Key::of(wanted) }) {
                    let exact = windows || !platform.os_features.is_empty();
                    let platform = if exact { platform.clone() } else { wanted.clone() };
                    targets.push(IndexTarget { entry, platform });
                }
            }
        }
        Targets { targets, shadowed, missing }
    }

    /// The converted image.
    pub fn enable(self, indexed: &[SociIndexParts], tool: &str) -> EnabledDocuments {
        let Original { mut index, contents, platforms } = self;
        let digests: Vec<Digest> =
            index.manifests.iter().map(|descriptor| descriptor.digest).collect();
        let entries = contents.iter().zip(&digests);
        let lost = entries
            .filter(|(content, _)| **content == EntryContent::Lost)
            .map(|(_, digest)| *digest);
        let lost: BTreeSet<Digest> = lost.collect();
        let has_any = |parts: &&SociIndexParts| !parts.ztocs.is_empty() || parts.fine.is_some();
        let indexed: Vec<&SociIndexParts> = indexed.iter().filter(has_any).collect();
        let was = |place: usize| digests.get(indexed[place].target.entry);
        // Both with the place of their image.
        let mut indexes: Vec<(usize, EncodedIndex)> = (indexed.iter().enumerate())
            .filter(|(_, parts)| !parts.ztocs.is_empty())
            .map(|(place, SociIndexParts { ztocs, prefetch, .. })| {
                let layers = ztocs.clone();
                let prefetch = prefetch.clone();
                let build_tool_identifier = tool.to_owned();
                (
                    place,
                    SociIndex { layers, subject: None, build_tool_identifier, prefetch }.encode(),
                )
            })
            .collect();
        let mut fine: Vec<(usize, EncodedIndex)> = (indexed.iter().enumerate())
            .filter_map(|(place, parts)| Some((place, parts.fine.clone()?)))
            .collect();

        let mut manifests = Vec::new();
        let mut renamed = BTreeMap::<String, Descriptor>::new();
        let mut named = BTreeSet::new();
        let ordered =
            subjects_first(contents, |entry, _| digests.get(entry).copied(), EntryContent::subject);
        for (entry, content) in ordered {
            let Some(descriptor) = index.manifests.get_mut(entry) else { continue };
            let follow = |manifest: &mut GoManifest| {
                let subject = manifest.subject.as_mut()?;
                let new = renamed.get(&subject.digest.to_string())?;
                if new.digest == subject.digest {
                    return None;
                }
                subject.media_type.clone_from(&new.media_type);
                (subject.digest, subject.size) = (new.digest, new.size);
                Some(())
            };
            let mut manifest = match content {
                EntryContent::Image(manifest) => manifest,
                EntryContent::Artifact(mut manifest) => {
                    if follow(&mut manifest).is_some() {
                        let rewritten = rewrite_artifact(entry, &manifest, descriptor);
                        renamed.insert(rewritten.was.to_string(), descriptor.clone());
                        manifests.push(rewritten);
                    }
                    continue;
                }
                EntryContent::Kept | EntryContent::Lost => continue,
            };
            follow(&mut manifest);
            // A manifest that is listed for two platforms names the index of the first one.
            let place = (0..indexed.len()).find(|&place| was(place) == Some(&descriptor.digest));
            let digest_of = |made: &[(usize, EncodedIndex)]| {
                let made = made.iter().find(|(of, _)| Some(*of) == place);
                made.map(|(_, made)| made.descriptor.digest)
            };
            let names = [(INDEX_DIGEST, digest_of(&indexes)), (BOUND_INDEX, digest_of(&fine))];
            if let Some(place) = place {
                name_tocs(&mut manifest, &indexed[place].tocs);
            }
            let rewritten = rewrite(entry, *manifest, descriptor, names);
            if let Some(place) = place {
                for (_, new) in indexes.iter_mut().filter(|(of, _)| *of == place) {
                    let annotations = &mut new.descriptor.annotations;
                    annotations.insert(MANIFEST_DIGEST.to_owned(), rewritten.digest.to_string());
                }
                for (_, fine) in fine.iter_mut().filter(|(of, _)| *of == place) {
                    fine.descriptor.annotations =
                        BTreeMap::from([(BOUND_TO.to_owned(), rewritten.digest.to_string())]);
                }
            }
            named.extend(descriptor.annotations.get(INDEX_DIGEST).cloned());
            renamed.insert(rewritten.was.to_string(), descriptor.clone());
            manifests.push(rewritten);
        }
        for descriptor in &mut index.manifests {
            // A fine index has the platform of an attestation.
            let key = match (is_fine_index(descriptor), is_attestation(descriptor)) {
                (true, _) => BOUND_TO,
                (false, true) => REFERENCE_DIGEST,
                (false, false) => MANIFEST_DIGEST,
            };
            let is_meant = key != MANIFEST_DIGEST || is_soci_index(descriptor);
            if let Some(named) = descriptor.annotations.get_mut(key).filter(|_| is_meant)
                && let Some(new) = renamed.get(named)
            {
                *named = new.digest.to_string();
            }
        }
        // Consumers prefer entries that state their platform. Without one, an image would lose to
        // its own SOCI index. Listing the indexes below can move entries.
        for SociIndexParts { target, .. } in &indexed {
            if let (Some(image), Some(platform)) =
                (index.manifests.get_mut(target.entry), platforms.get(&target.entry))
            {
                image.platform.get_or_insert_with(|| platform.clone());
            }
        }
        for (place, new) in &mut indexes {
            let target = &indexed[*place].target;
            new.descriptor.platform = Some(target.platform.clone());
            let named = digests.get(target.entry).map(Digest::to_string).unwrap_or_default();
            list(&mut index.manifests, new.descriptor.clone(), &named);
        }
        for (_, new) in &mut fine {
            new.descriptor.platform = Some(Platform::unknown());
            list_fine(&mut index.manifests, &new.descriptor);
        }
        let is_made =
            |digest: &Digest| indexes.iter().any(|(_, new)| new.descriptor.digest == *digest);
        // Consumers only take the indexes that manifests name.
        let is_used =
            |entry: &Descriptor| !is_soci_index(entry) || named.contains(&entry.digest.to_string());
        index.manifests.retain(|entry| {
            is_made(&entry.digest) || !lost.contains(&entry.digest) && is_used(entry)
        });
        OCI_INDEX.clone_into(&mut index.media_type);
        let bytes = index.encode();
        let digest = Digest::sha256(&bytes);
        let [indexes, fine] =
            [indexes, fine].map(|made| made.into_iter().map(|(_, made)| made).collect());
        EnabledDocuments { manifests, indexes, fine, index, bytes, digest }
    }
}

impl EnabledDocuments {
    /// The converted image without a manifest that cannot be written.
    #[must_use]
    pub fn without(mut self, manifest: &Digest) -> EnabledDocuments {
        self.manifests.retain(|known| known.digest != *manifest);
        self.index.manifests.retain(|entry| entry.digest != *manifest);
        self.bytes = self.index.encode();
        self.digest = Digest::sha256(&self.bytes);
        self
    }
}

/// The same manifests in order, but each after its subject, if that is one of them: some registries
/// refuse a manifest whose subject does not exist. Both functions take the number of a manifest and
/// the manifest: the first returns its digest, the second its subject's.
pub fn subjects_first<T>(
    manifests: Vec<T>,
    digest: impl Fn(usize, &T) -> Option<Digest>,
    subject: impl Fn(&T) -> Option<Digest>,
) -> Vec<(usize, T)> {
    let mut ordered = Vec::with_capacity(manifests.len());
    let mut waiting: Vec<(usize, T)> = manifests.into_iter().enumerate().collect();
    while !waiting.is_empty() {
        let digests: BTreeSet<Digest> =
            waiting.iter().filter_map(|(number, manifest)| digest(*number, manifest)).collect();
        let is_ready = |(_, manifest): &mut (usize, T)| {
            subject(manifest).is_none_or(|subject| !digests.contains(&subject))
        };
        let ready: Vec<_> = waiting.extract_if(.., is_ready).collect();
        if ready.is_empty() {
            // Digests allow no circle, but nobody compared those that are listed.
            ordered.append(&mut waiting);
        }
        ordered.extend(ready);
    }
    ordered
}

fn is_attestation(descriptor: &Descriptor) -> bool {
    let unknown =
        |platform: &Platform| platform.os == "unknown" || platform.architecture == "unknown";
    is_marked_attestation(descriptor) || descriptor.platform.as_ref().is_some_and(unknown)
}

/// Names the tables of contents of layers. Layers that have one in themselves name it already.
fn name_tocs(manifest: &mut GoManifest, tocs: &BTreeMap<Digest, Digest>) {
    for layer in manifest.layers.iter_mut().flatten() {
        let has_own = OWN_TOC.iter().any(|own| layer.annotations.contains_key(*own));
        if let Some(toc) = tocs.get(&layer.digest).filter(|_| !has_own) {
            layer.annotations.insert(TOC_DIGEST.to_owned(), toc.to_string());
        }
    }
}

/// Rewrites a manifest and its descriptor with OCI's media types, and adds the names of the SOCI
/// index and the fine index, if any.
fn rewrite(
    entry: usize,
    mut manifest: GoManifest,
    descriptor: &mut Descriptor,
    names: [(&str, Option<Digest>); 2],
) -> RewrittenManifest {
    OCI_MANIFEST.clone_into(&mut manifest.media_type);
    OCI_CONFIG.clone_into(&mut manifest.config.media_type);
    for (annotation, named) in names {
        manifest.annotations.extend(named.map(|named| (annotation.to_owned(), named.to_string())));
    }
    let was = descriptor.digest;
    let bytes = manifest.encode();
    let new = Descriptor::of(OCI_MANIFEST, &bytes);
    // What an attestation attests is only stated in its descriptor.
    let own = if is_attestation(descriptor) {
        std::mem::take(&mut descriptor.annotations)
    } else {
        BTreeMap::new()
    };
    descriptor.annotations = manifest.annotations;
    descriptor.annotations.extend(own);
    descriptor.media_type = new.media_type;
    descriptor.digest = new.digest;
    descriptor.size = new.size;
    RewrittenManifest { entry, was, digest: new.digest, bytes }
}

/// Takes a new subject over into the descriptor of an artifact.
fn rewrite_artifact(
    entry: usize,
    manifest: &GoManifest,
    descriptor: &mut Descriptor,
) -> RewrittenManifest {
    let was = descriptor.digest;
    let bytes = manifest.encode();
    descriptor.digest = Digest::sha256(&bytes);
    descriptor.size = bytes.len() as u64;
    RewrittenManifest { entry, was, digest: descriptor.digest, bytes }
}

/// Replaces the first listed SOCI index of the platform and removes further ones, or appends the
/// new index. `named` is the digest of the image manifest before it was rewritten.
fn list(manifests: &mut Vec<Descriptor>, new: Descriptor, named: &str) {
    let key = new.platform.as_ref().map(Key::of);
    let goes = |old: &Descriptor| {
        is_soci_index(old)
            && match &old.platform {
                Some(platform) => Some(Key::of(platform)) == key,
                None => old.annotations.get(MANIFEST_DIGEST).is_some_and(|digest| digest == named),
            }
    };
    let place = manifests.iter().position(goes).unwrap_or(manifests.len());
    manifests.retain(|old| !goes(old));
    manifests.insert(place, new);
}

/// Replaces the fine indexes of the same image, which the image manifest no longer names, or
/// appends the new one.
fn list_fine(manifests: &mut Vec<Descriptor>, new: &Descriptor) {
    let image = new.annotations.get(BOUND_TO);
    let goes = |old: &Descriptor| is_fine_index(old) && old.annotations.get(BOUND_TO) == image;
    let place = manifests.iter().position(goes).unwrap_or(manifests.len());
    manifests.retain(|old| !goes(old));
    manifests.insert(place, new.clone());
}

/// Whether an entry of an image index is a fine index.
pub fn is_fine_index(descriptor: &Descriptor) -> bool {
    descriptor.artifact_type.as_deref() == Some(FINE_INDEX)
}

/// The SOCI indexes (version 2) in the list of an image index.
pub fn soci_indexes(manifests: &[Descriptor]) -> impl Iterator<Item = &Descriptor> {
    manifests.iter().filter(|descriptor| is_soci_index(descriptor))
}

/// Whether an entry of an image index is a SOCI index (version 2).
pub fn is_soci_index(descriptor: &Descriptor) -> bool {
    descriptor.artifact_type.as_deref() == Some(INDEX_V2)
}

/// The fields in which two images of the same platform must agree. As in containerd, the OS version
/// only matters on Windows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    os: String,
    architecture: String,
    variant: Option<String>,
    version: Option<String>,
    features: BTreeSet<String>,
}

impl Key {
    fn of(platform: &Platform) -> Key {
        let Platform { architecture, os, os_version, os_features, variant } = platform.normalized();
        let version = os_version.filter(|_| os == WINDOWS);
        Key { os, architecture, variant, version, features: os_features.into_iter().collect() }
    }

    fn is_windows(&self) -> bool {
        self.os == WINDOWS
    }
}

const WINDOWS: &str = "windows";

/// Whether a manifest or image index is or belongs to a SOCI-enabled image, or one that only names
/// a fine index.
pub fn is_enabled(manifest: &Manifest) -> bool {
    match manifest {
        Manifest::Image(image) => {
            [INDEX_DIGEST, BOUND_INDEX].iter().any(|name| image.annotations.contains_key(*name))
        }
        Manifest::Index(index) => names_indexes(&index.manifests),
    }
}

/// Whether the list of an image index has SOCI indexes (version 2) or fine indexes.
pub fn names_indexes(manifests: &[Descriptor]) -> bool {
    manifests.iter().any(|entry| is_soci_index(entry) || is_fine_index(entry))
}

#[cfg(test)]
mod tests;
