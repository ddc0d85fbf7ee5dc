//! Selects manifests of an image index. The caller fetches them.
//!
//! What an entry says of itself is a hint. image-spec descriptor.md defines `artifactType` for
//! images too, and producers list SBOMs without it, so the manifest decides whether it is an image.

use std::collections::BTreeMap;

use super::descriptor::Descriptor;
use super::fine::FINE_INDEX;
use super::manifest::{
    DOCKER_CONFIG, DOCKER_LIST, DOCKER_MANIFEST, ImageIndex, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST,
};
use super::platform::Platform;
use super::soci::{INDEX_V1, INDEX_V2};
use crate::digest::Digest;

/// The maximum nesting of indexes. An index in an index has depth 2.
pub const MAX_NESTING: usize = 4;

/// The annotation that BuildKit marks attestation manifests.
pub const REFERENCE_TYPE: &str = "vnd.docker.reference.type";
/// The only value of [`REFERENCE_TYPE`] that BuildKit writes and that Docker looks for.
pub const ATTESTATION: &str = "attestation-manifest";

/// Whether an entry of an image index is marked as an attestation.
pub(crate) fn is_marked_attestation(descriptor: &Descriptor) -> bool {
    descriptor.annotations.get(REFERENCE_TYPE).is_some_and(|kind| kind == ATTESTATION)
}

/// The kind of an index entry, according to its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// An image's manifest, possibly an index of such manifests.
    Image,
    /// A nested index.
    Index,
    /// An attestation of another entry, as added by BuildKit.
    Attestation,
    /// An index of an image's layers, such as the SOCI index of a SOCI-enabled image.
    Artifact,
    /// A manifest that may be an image or not: only its content tells.
    Unclear,
    /// Not a manifest of any kind.
    Unknown,
}

impl Child {
    /// The kind of an entry of an image index, according to the entry itself.
    pub fn of(descriptor: &Descriptor) -> Child {
        if is_marked_attestation(descriptor) {
            return Child::Attestation;
        }
        match descriptor.media_type.as_str() {
            OCI_INDEX | DOCKER_LIST => Child::Index,
            OCI_MANIFEST | DOCKER_MANIFEST => {
                match descriptor.artifact_type.as_deref().unwrap_or_default() {
                    INDEX_V1 | INDEX_V2 | FINE_INDEX => Child::Artifact,
                    // Attestations without the annotation have the placeholder platform.
                    _ if descriptor.platform.as_ref().is_some_and(Platform::is_unknown) => {
                        Child::Unclear
                    }
                    "" | OCI_CONFIG | DOCKER_CONFIG => Child::Image,
                    _ => Child::Unclear,
                }
            }
            "" => Child::Unclear,
            _ => Child::Unknown,
        }
    }

    /// Whether it may be an image, or an index of images.
    pub fn may_be_image(self) -> bool {
        matches!(self, Child::Image | Child::Index | Child::Unclear)
    }
}

/// An image of one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedImage {
    /// The manifest of the platform, as the image index lists it.
    pub manifest: Descriptor,
    /// The platform that the image index states for it.
    pub platform: Platform,
}

/// Collects the wanted images of an index and of its nested indexes.
#[derive(Debug)]
pub struct PlatformSelector {
    wanted: Vec<Platform>,
    chosen: Vec<SelectedImage>,
    shadowed: Vec<SelectedImage>,
    others: Vec<Platform>,
    passed_over: Vec<(Descriptor, Child)>,
}

/// What to fetch next, in the order of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextFetch {
    /// A nested index: fetch it and call [`PlatformSelector::index`] again, at most [`MAX_NESTING`]
    /// deep.
    Index(Descriptor),
    /// An image whose platform is only stated in its config: fetch that and call
    /// [`PlatformSelector::offer`]. Later entries were already offered, so one with the same
    /// platform takes precedence.
    Config(Descriptor),
}

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// In the order in which they were offered.
    pub chosen: Vec<SelectedImage>,
    /// Images whose platform an earlier image has. Consumers take the first.
    pub shadowed: Vec<SelectedImage>,
    /// Wanted platforms that the index does not have.
    pub missing: Vec<Platform>,
    /// Platforms of the index that were not wanted.
    pub others: Vec<Platform>,
    /// Entries that are not images.
    pub passed_over: Vec<(Descriptor, Child)>,
}

impl PlatformSelector {
    /// Takes the images of the platforms in `wanted`, or all images if it is empty.
    pub fn new(wanted: &[Platform]) -> PlatformSelector {
        PlatformSelector {
            wanted: wanted.to_vec(),
            chosen: Vec::new(),
            shadowed: Vec::new(),
            others: Vec::new(),
            passed_over: Vec::new(),
        }
    }

    /// The entries of an index that must be fetched before [`PlatformSelector::index`], because
    /// only their manifests tell whether they are images of wanted platforms.
    pub fn unclear<'i>(&self, index: &'i ImageIndex) -> impl Iterator<Item = &'i Descriptor> {
        index.manifests.iter().filter(|child| {
            let platform = child.platform.as_ref().filter(|platform| platform.is_complete());
            Child::of(child) == Child::Unclear
                && platform.is_none_or(|platform| self.wants(platform))
        })
    }

    /// Examines an index and returns what to fetch next. `known` has the kinds of unclear entries;
    /// those that it lacks are skipped.
    pub fn index(&mut self, index: &ImageIndex, known: &BTreeMap<Digest, Child>) -> Vec<NextFetch> {
        let mut next = Vec::new();
        for child in &index.manifests {
            let kind = match Child::of(child) {
                Child::Unclear => known.get(&child.digest).copied().unwrap_or(Child::Unclear),
                kind => kind,
            };
            match (kind, &child.platform) {
                (Child::Index, _) => next.push(NextFetch::Index(child.clone())),
                (Child::Image, Some(platform)) if platform.is_complete() => {
                    self.offer(child.clone(), platform.clone());
                }
                (Child::Image, _) => next.push(NextFetch::Config(child.clone())),
                (kind, _) => self.passed_over.push((child.clone(), kind)),
            }
        }
        next
    }

    fn wants(&self, platform: &Platform) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|wanted| platform.matches(wanted))
    }

    /// Offers an image and its platform.
    pub fn offer(&mut self, manifest: Descriptor, platform: Platform) {
        let image = SelectedImage { manifest, platform };
        if !self.wants(&image.platform) {
            self.others.push(image.platform);
        } else if self.chosen.iter().any(|c| c.manifest.digest == image.manifest.digest) {
            // A manifest that is listed twice is one image.
        } else if self.chosen.iter().any(|c| c.platform.normalized() == image.platform.normalized())
        {
            self.shadowed.push(image);
        } else {
            self.chosen.push(image);
        }
    }

    /// The selection, after all entries were seen.
    pub fn finish(self) -> Selection {
        let is_chosen = |wanted: &Platform| self.chosen.iter().any(|c| c.platform.matches(wanted));
        let missing = self.wanted.iter().filter(|wanted| !is_chosen(wanted)).cloned().collect();
        Selection {
            missing,
            chosen: self.chosen,
            shadowed: self.shadowed,
            others: self.others,
            passed_over: self.passed_over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn child(content: &str, platform: Option<&str>) -> Descriptor {
        let mut descriptor = Descriptor::of(OCI_MANIFEST, content.as_bytes());
        descriptor.platform = platform.map(|p| p.parse().unwrap_or_else(|e| panic!("{e}")));
        descriptor
    }

    fn index(manifests: Vec<Descriptor>) -> ImageIndex {
        ImageIndex {
            media_type: OCI_INDEX,
            manifests,
            artifact_type: None,
            subject: None,
            annotations: BTreeMap::new(),
        }
    }

    fn names(chosen: &[SelectedImage]) -> Vec<String> {
        chosen.iter().map(|c| c.platform.to_string()).collect()
    }

    #[test]
    fn the_first_image_of_each_platform_is_chosen() {
        let mut attestation = child("att", None);
        attestation.annotations.insert(REFERENCE_TYPE.to_owned(), ATTESTATION.to_owned());
        let mut soci = child("soci", Some("linux/amd64"));
        soci.artifact_type = Some("application/vnd.amazon.soci.index.v2+json".to_owned());
        let mut odd = child("odd", None);
        odd.media_type = "application/vnd.x".to_owned();
        let all = index(vec![
            soci,
            child("a", Some("linux/amd64")),
            child("b", Some("linux/arm64/v8")),
            child("c", Some("linux/amd64")),
            child("a", Some("linux/amd64")),
            attestation,
            child("u", Some("unknown/unknown")),
            odd,
        ]);
        let mut selector = PlatformSelector::new(&[]);
        assert_eq!(selector.index(&all, &BTreeMap::new()), []);
        let selection = selector.finish();
        assert_eq!(names(&selection.chosen), ["linux/amd64", "linux/arm64"]);
        assert_eq!(selection.chosen[0].manifest, child("a", Some("linux/amd64")));
        assert_eq!(selection.shadowed.len(), 1);
        let kinds: Vec<Child> = selection.passed_over.iter().map(|p| p.1).collect();
        assert_eq!(kinds, [Child::Artifact, Child::Attestation, Child::Unclear, Child::Unknown]);
        assert_eq!(selection.missing, []);
    }

    #[test]
    fn only_requested_platforms_are_chosen() {
        let parse = |p: &str| p.parse::<Platform>().unwrap_or_else(|e| panic!("{e}"));
        let mut inner = child("i", None);
        inner.media_type = OCI_INDEX.to_owned();
        let bare = child("bare", None);
        let mut selector = PlatformSelector::new(&[
            parse("linux/arm64/v8"),
            parse("linux/s390x"),
            parse("linux/386"),
        ]);
        let next = selector.index(
            &index(vec![child("a", Some("linux/amd64")), bare.clone(), inner.clone()]),
            &BTreeMap::new(),
        );
        assert_eq!(next, [NextFetch::Config(bare.clone()), NextFetch::Index(inner)]);
        selector.offer(bare, parse("linux/i386"));
        assert_eq!(
            selector.index(&index(vec![child("b", Some("linux/arm64"))]), &BTreeMap::new()),
            []
        );
        let selection = selector.finish();
        assert_eq!(names(&selection.chosen), ["linux/386", "linux/arm64"]);
        assert_eq!(selection.missing, [parse("linux/s390x")]);
        assert_eq!(selection.others, [parse("linux/amd64")]);
    }

    #[test]
    fn the_kind_of_an_unclear_entry_decides_what_happens_to_it() {
        let with = |content: &str, platform: Option<&str>, artifact_type: &str| Descriptor {
            artifact_type: Some(artifact_type.to_owned()),
            ..child(content, platform)
        };
        let untyped =
            Descriptor { media_type: String::new(), ..child("untyped", Some("linux/s390x")) };
        let all = index(vec![
            with("acme", Some("linux/amd64"), "application/vnd.acme.rocket"),
            child("later", Some("linux/amd64")),
            with("oci", Some("linux/arm64"), OCI_CONFIG),
            with("docker", None, DOCKER_CONFIG),
            with("sbom", None, "application/spdx+json"),
            child("unknown", Some("unknown/unknown")),
            with("soci", Some("linux/386"), INDEX_V2),
            untyped,
        ]);
        let digest = |content: &str| Digest::sha256(content.as_bytes());
        let mut selector = PlatformSelector::new(&[]);
        let unclear: Vec<_> = selector.unclear(&all).map(|entry| entry.digest).collect();
        assert_eq!(unclear, ["acme", "sbom", "unknown", "untyped"].map(digest));
        let images = [(digest("acme"), Child::Image), (digest("untyped"), Child::Index)];
        let next = selector.index(&all, &BTreeMap::from(images));
        let entries =
            next.iter().map(|(NextFetch::Config(entry) | NextFetch::Index(entry))| entry.digest);
        let next: Vec<_> = entries.collect();
        assert_eq!(next, ["docker", "untyped"].map(digest));
        let selection = selector.finish();
        let chosen: Vec<_> = selection.chosen.iter().map(|image| image.manifest.digest).collect();
        assert_eq!(
            chosen,
            ["acme", "oci"].map(digest),
            "the first image of a platform, as in containerd"
        );
        assert_eq!(selection.shadowed[0].manifest.digest, digest("later"));
        let selector =
            PlatformSelector::new(&["linux/arm64".parse().unwrap_or_else(|e| panic!("{e}"))]);
        let unclear: Vec<_> = selector.unclear(&all).map(|entry| entry.digest).collect();
        assert_eq!(unclear, [digest("sbom")], "other platforms are not fetched");
    }

    #[test]
    fn windows_versions_are_distinct_platforms() {
        let version = |content: &str, v: &str| {
            let mut d = child(content, Some("windows/amd64"));
            d.platform = d.platform.map(|p| Platform { os_version: Some(v.to_owned()), ..p });
            d
        };
        let mut selector =
            PlatformSelector::new(&["windows/amd64".parse().unwrap_or_else(|e| panic!("{e}"))]);
        selector
            .index(&index(vec![version("a", "10.0.1"), version("b", "10.0.2")]), &BTreeMap::new());
        assert_eq!(selector.finish().chosen.len(), 2);
    }
}
