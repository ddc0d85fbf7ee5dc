//! Selects manifests of an image index. The caller fetches them.

use super::descriptor::Descriptor;
use super::manifest::{DOCKER_LIST, DOCKER_MANIFEST, ImageIndex, OCI_INDEX, OCI_MANIFEST};
use super::platform::Platform;

/// The maximum nesting of indexes. An index in an index has depth 2.
pub const MAX_NESTING: usize = 4;

/// The annotation by which BuildKit marks attestation manifests.
pub const REFERENCE_TYPE: &str = "vnd.docker.reference.type";
/// The only value of [`REFERENCE_TYPE`] that BuildKit writes and that Docker looks for.
pub const ATTESTATION: &str = "attestation-manifest";

/// Whether an entry of an image index is marked as an attestation.
pub fn is_marked_attestation(descriptor: &Descriptor) -> bool {
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
    /// An artifact, such as the SOCI index of a SOCI-enabled image.
    Artifact,
    /// Not a manifest of any kind.
    Unknown,
}

impl Child {
    /// The kind of an entry of an image index, according to the entry itself.
    pub fn of(descriptor: &Descriptor) -> Child {
        let attestation =
            is_marked_attestation(descriptor) || descriptor.platform.as_ref().is_some_and(Platform::is_unknown);
        match descriptor.media_type.as_str() {
            _ if attestation => Child::Attestation,
            _ if descriptor.artifact_type.as_ref().is_some_and(|a| !a.is_empty()) => Child::Artifact,
            OCI_MANIFEST | DOCKER_MANIFEST => Child::Image,
            OCI_INDEX | DOCKER_LIST => Child::Index,
            _ => Child::Unknown,
        }
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
    /// Attestations, artifacts and entries of unknown kinds.
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

    /// Examines an index and returns what to fetch next.
    pub fn index(&mut self, index: &ImageIndex) -> Vec<NextFetch> {
        let mut next = Vec::new();
        for child in &index.manifests {
            match (Child::of(child), &child.platform) {
                (Child::Index, _) => next.push(NextFetch::Index(child.clone())),
                (Child::Image, Some(platform)) if !platform.os.is_empty() && !platform.architecture.is_empty() => {
                    self.offer(child.clone(), platform.clone());
                }
                (Child::Image, _) => next.push(NextFetch::Config(child.clone())),
                (kind, _) => self.passed_over.push((child.clone(), kind)),
            }
        }
        next
    }

    /// Offers an image and its platform.
    pub fn offer(&mut self, manifest: Descriptor, platform: Platform) {
        let image = SelectedImage { manifest, platform };
        if !self.wanted.is_empty() && !self.wanted.iter().any(|wanted| image.platform.matches(wanted)) {
            self.others.push(image.platform);
        } else if self.chosen.iter().any(|c| c.manifest.digest == image.manifest.digest) {
            // A manifest that is listed twice is one image.
        } else if self.chosen.iter().any(|c| c.platform.normalized() == image.platform.normalized()) {
            self.shadowed.push(image);
        } else {
            self.chosen.push(image);
        }
    }

    /// The selection, after all entries were seen.
    pub fn finish(self) -> Selection {
        let there = |wanted: &Platform| self.chosen.iter().any(|c| c.platform.matches(wanted));
        let missing = self.wanted.iter().filter(|wanted| !there(wanted)).cloned().collect();
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
        assert_eq!(selector.index(&all), []);
        let selection = selector.finish();
        assert_eq!(names(&selection.chosen), ["linux/amd64", "linux/arm64"]);
        assert_eq!(selection.chosen[0].manifest, child("a", Some("linux/amd64")));
        assert_eq!(selection.shadowed.len(), 1);
        let kinds: Vec<Child> = selection.passed_over.iter().map(|p| p.1).collect();
        assert_eq!(kinds, [Child::Artifact, Child::Attestation, Child::Attestation, Child::Unknown]);
        assert_eq!(selection.missing, []);
    }

    #[test]
    fn only_requested_platforms_are_chosen() {
        let parse = |p: &str| p.parse::<Platform>().unwrap_or_else(|e| panic!("{e}"));
        let mut inner = child("i", None);
        inner.media_type = OCI_INDEX.to_owned();
        let bare = child("bare", None);
        let mut selector = PlatformSelector::new(&[parse("linux/arm64/v8"), parse("linux/s390x"), parse("linux/386")]);
        let next = selector.index(&index(vec![child("a", Some("linux/amd64")), bare.clone(), inner.clone()]));
        assert_eq!(next, [NextFetch::Config(bare.clone()), NextFetch::Index(inner)]);
        selector.offer(bare, parse("linux/i386"));
        assert_eq!(selector.index(&index(vec![child("b", Some("linux/arm64"))])), []);
        let selection = selector.finish();
        assert_eq!(names(&selection.chosen), ["linux/386", "linux/arm64"]);
        assert_eq!(selection.missing, [parse("linux/s390x")]);
        assert_eq!(selection.others, [parse("linux/amd64")]);
    }

    #[test]
    fn windows_versions_are_distinct_platforms() {
        let version = |content: &str, v: &str| {
            let mut d = child(content, Some("windows/amd64"));
            d.platform = d.platform.map(|p| Platform { os_version: Some(v.to_owned()), ..p });
            d
        };
        let mut selector = PlatformSelector::new(&["windows/amd64".parse().unwrap_or_else(|e| panic!("{e}"))]);
        selector.index(&index(vec![version("a", "10.0.1"), version("b", "10.0.2")]));
        assert_eq!(selector.finish().chosen.len(), 2);
    }
}
