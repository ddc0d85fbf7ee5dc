//! The documents of an image: references, platforms, manifests, and the SOCI index. Parses and
//! encodes bytes, without I/O. This file says what a layer's media type states about its bytes
//! (image-spec media-types.md; containerd images/mediatypes.go).

pub mod allow;
pub mod config;
pub mod consumer;
pub mod coverage;
pub mod descriptor;
pub mod ecr;
pub mod enabled;
pub mod fine;
pub mod go;
pub mod json;
pub mod manifest;
mod name;
#[cfg(feature = "oci-spec")]
mod oci_spec_types;
pub mod platform;
pub mod prefetch;
mod reference;
pub mod select;
pub mod soci;

pub use coverage::Coverage;
pub use descriptor::{Descriptor, null_is_default};
pub use json::{JsonError, JsonFault};
pub use manifest::{ImageIndex, ImageManifest, Manifest, ManifestError};
pub use name::{
    ImageName, ImageNameError, ImageSelector, SavedImageSelector, TagError, TagTemplate,
};
pub use platform::{Platform, PlatformError};
pub use reference::{
    CANONICAL_REGISTRY, DEFAULT_TAG, DOCKER_HUB, Reference, ReferenceError, is_canonical_registry,
    is_referrers_tag, is_registry, is_repository, is_tag, referrers_tag,
};

/// How to read a layer's blob, according to its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// A tar, compressed with gzip.
    Gzip,
    /// A plain tar.
    Uncompressed,
    /// Docker's type for a plain tar. Compressed blobs were pushed with it too, so the bytes
    /// decide.
    Unknown,
    /// A tar, compressed with zstd. No consumer of SOCI indexes supports it.
    Zstd,
    /// Not distributed with the image: its bytes are at other URLs, which are never fetched.
    Foreign,
    /// Encrypted (ocicrypt), unreadable without a key.
    Encrypted,
    /// Other content of an artifact.
    NotALayer,
}

/// Docker's type for a layer that only the owner of the base image distributes.
const DOCKER_FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar";
const DOCKER: &str = "application/vnd.docker.image.rootfs.diff.tar";
/// The type of a plain tar. The suffixes `+gzip` and `+zstd` mark compressed ones.
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const OCI_FOREIGN: &str = "application/vnd.oci.image.layer.nondistributable.v1.tar";

impl LayerKind {
    /// The kind of an OCI or Docker media type.
    pub fn of(media_type: &str) -> LayerKind {
        if let Some(suffix) = media_type.strip_prefix(DOCKER) {
            return match suffix {
                "" => LayerKind::Unknown,
                ".gzip" => LayerKind::Gzip,
                ".zstd" => LayerKind::Zstd,
                _ => other(suffix),
            };
        }
        if let Some(suffix) = media_type.strip_prefix(OCI_LAYER) {
            return match suffix {
                "" => LayerKind::Uncompressed,
                "+gzip" => LayerKind::Gzip,
                "+zstd" => LayerKind::Zstd,
                _ => other(suffix),
            };
        }
        let foreign =
            [DOCKER_FOREIGN, OCI_FOREIGN].iter().find_map(|prefix| media_type.strip_prefix(prefix));
        match foreign {
            Some("" | ".gzip" | ".zstd") => LayerKind::Foreign,
            Some(suffix) => match other(suffix) {
                LayerKind::Gzip | LayerKind::Zstd => LayerKind::Foreign,
                kind => kind,
            },
            None => LayerKind::NotALayer,
        }
    }

    /// Whether soci treats a layer of this type as gzip. Includes foreign layers.
    pub fn is_gzip(media_type: &str) -> bool {
        let prefixes = [DOCKER, OCI_LAYER, DOCKER_FOREIGN, OCI_FOREIGN];
        let suffix =
            prefixes.iter().find_map(|prefix| media_type.strip_prefix(prefix)).unwrap_or_default();
        suffix == ".gzip" || last_suffix(suffix) == Some("gzip")
    }

    /// The stable word for a kind that cannot be indexed; None for the others.
    pub fn code(self) -> Option<&'static str> {
        match self {
            LayerKind::Zstd => Some("zstd"),
            LayerKind::Foreign => Some("foreign"),
            LayerKind::Encrypted => Some("encrypted"),
            LayerKind::NotALayer => Some("not-a-layer"),
            LayerKind::Gzip | LayerKind::Uncompressed | LayerKind::Unknown => None,
        }
    }

    /// Whether consumers of SOCI indexes can read such a layer.
    pub fn is_servable(self) -> bool {
        self.code().is_none()
    }
}

/// Why tools do not build a ztoc for a layer, according to its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotIndexed {
    /// Layers of its media type have no ztocs.
    Kind(LayerKind),
    /// It is smaller than the smallest layer to index.
    Small {
        /// The size of the smallest layer to index, in bytes.
        least: u64,
    },
}

impl NotIndexed {
    /// The size of the smallest layer that tools index by default, in bytes: 10 MiB.
    pub const MIN_LAYER_SIZE: u64 = 10 << 20;

    /// None if the layer is indexed. Layers smaller than `least` bytes are not.
    pub fn of(layer: &Descriptor, least: u64) -> Option<NotIndexed> {
        let kind = LayerKind::of(&layer.media_type);
        if kind.is_servable() {
            (layer.size < least).then_some(NotIndexed::Small { least })
        } else {
            Some(NotIndexed::Kind(kind))
        }
    }

    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            NotIndexed::Small { .. } => "too-small",
            NotIndexed::Kind(kind) => kind.code().unwrap_or("not-a-layer"),
        }
    }
}

fn other(suffix: &str) -> LayerKind {
    if suffix.split('+').skip(1).any(|suffix| suffix == "encrypted") {
        return LayerKind::Encrypted;
    }
    match last_suffix(suffix) {
        Some("gzip") => LayerKind::Gzip,
        Some("zstd") => LayerKind::Zstd,
        _ => LayerKind::NotALayer,
    }
}

/// If there are several suffixes (`+estargz+gzip`), containerd takes the alphabetically last one as
/// the compression.
fn last_suffix(suffix: &str) -> Option<&str> {
    suffix.strip_prefix('+')?.split('+').max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_that_soci_treats_as_gzip() {
        for (media_type, gzip) in [
            ("application/vnd.oci.image.layer.v1.tar", false),
            ("application/vnd.oci.image.layer.v1.tar+gzip", true),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", true),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar", false),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", true),
            ("application/vnd.in-toto+gzip", false),
        ] {
            assert_eq!(LayerKind::is_gzip(media_type), gzip, "{media_type}");
        }
    }

    #[test]
    fn media_types_map_to_layer_kinds() {
        for (media_type, kind) in [
            ("application/vnd.oci.image.layer.v1.tar", LayerKind::Uncompressed),
            ("application/vnd.oci.image.layer.v1.tar+gzip", LayerKind::Gzip),
            ("application/vnd.oci.image.layer.v1.tar+zstd", LayerKind::Zstd),
            ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", LayerKind::Encrypted),
            ("application/vnd.oci.image.layer.v1.tar+encrypted", LayerKind::Encrypted),
            ("application/vnd.oci.image.layer.v1.tar+xz", LayerKind::NotALayer),
            ("application/vnd.oci.image.layer.v1.tarball", LayerKind::NotALayer),
            ("application/vnd.oci.image.layer.v1.tar+estargz+gzip", LayerKind::Gzip),
            ("application/vnd.oci.image.layer.v1.tar+gzip+estargz", LayerKind::Gzip),
            ("application/vnd.oci.image.layer.v1.tar+gzip+zstd", LayerKind::Zstd),
            (
                "application/vnd.oci.image.layer.nondistributable.v1.tar+estargz+gzip",
                LayerKind::Foreign,
            ),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", LayerKind::Foreign),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", LayerKind::Gzip),
            ("application/vnd.docker.image.rootfs.diff.tar.zstd", LayerKind::Zstd),
            ("application/vnd.docker.image.rootfs.diff.tar", LayerKind::Unknown),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip+encrypted", LayerKind::Encrypted),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", LayerKind::Foreign),
            ("application/vnd.in-toto+json", LayerKind::NotALayer),
            ("", LayerKind::NotALayer),
        ] {
            assert_eq!(LayerKind::of(media_type), kind, "{media_type}");
        }
    }
}
