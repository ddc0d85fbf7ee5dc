//! What a layer's media type says of its bytes (image-spec media-types.md; containerd images/mediatypes.go).

use super::Descriptor;

/// How a layer's blob is to be read, by its media type alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// A tar, compressed with gzip.
    Gzip,
    /// A plain tar.
    Uncompressed,
    /// Docker's plain tar type, under which compressed blobs were pushed as well: the bytes tell.
    Unknown,
    /// A tar, compressed with zstd; no consumer of SOCI indexes knows it.
    Zstd,
    /// Not to be distributed with the image: its bytes lie at URLs of its own, which are never fetched.
    Foreign,
    /// Encrypted (ocicrypt): nobody can read it without a key.
    Encrypted,
    /// Something else that an artifact carries.
    NotALayer,
}

/// Docker's type of a layer of which only its base image's owner distributes the bytes.
const DOCKER_FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar";
const DOCKER: &str = "application/vnd.docker.image.rootfs.diff.tar";
/// The type of a plain tar; `+gzip` and `+zstd` behind it say that it is compressed.
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const OCI_FOREIGN: &str = "application/vnd.oci.image.layer.nondistributable.v1.tar";

impl LayerKind {
    /// What a media type says, of OCI's and of docker's.
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
        let foreign = [DOCKER_FOREIGN, OCI_FOREIGN].iter().find_map(|prefix| media_type.strip_prefix(prefix));
        match foreign {
            Some("" | ".gzip" | ".zstd") => LayerKind::Foreign,
            Some(suffix) => match other(suffix) {
                LayerKind::Gzip | LayerKind::Zstd => LayerKind::Foreign,
                kind => kind,
            },
            None => LayerKind::NotALayer,
        }
    }

    /// Whether soci takes a layer of this type for gzip, foreign layers too.
    pub fn is_gzip(media_type: &str) -> bool {
        let prefixes = [DOCKER, OCI_LAYER, DOCKER_FOREIGN, OCI_FOREIGN];
        let suffix = prefixes.iter().find_map(|prefix| media_type.strip_prefix(prefix)).unwrap_or_default();
        suffix == ".gzip" || last_suffix(suffix) == Some("gzip")
    }

    /// The stable word for a kind that cannot be in an index; none for the others.
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

/// Why tools give a layer no ztoc, by what its descriptor says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotIndexed {
    /// Its media type has none.
    Kind(LayerKind),
    /// It has fewer bytes than the least that is indexed.
    Small {
        /// The least size that is indexed, in bytes.
        least: u64,
    },
}

impl NotIndexed {
    /// The least layer that the tools index unless told otherwise, in bytes: 10 MiB.
    pub const MIN_LAYER_SIZE: u64 = 10 << 20;

    /// None: it is read, where layers of `least` bytes and more are.
    pub fn of(layer: &Descriptor, least: u64) -> Option<NotIndexed> {
        let kind = LayerKind::of(&layer.media_type);
        match kind.is_servable() {
            false => Some(NotIndexed::Kind(kind)),
            true => (layer.size < least).then_some(NotIndexed::Small { least }),
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

/// Of several suffixes (`+estargz+gzip`) containerd takes the last in alphabetical order for the compression.
fn last_suffix(suffix: &str) -> Option<&str> {
    suffix.strip_prefix('+')?.split('+').max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_soci_takes_for_gzip() {
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
    fn every_kind() {
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
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+estargz+gzip", LayerKind::Foreign),
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
