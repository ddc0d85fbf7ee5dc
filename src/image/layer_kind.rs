//! What a layer's media type says of its bytes (image-spec media-types.md; containerd images/mediatypes.go).

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
const OCI: &str = "application/vnd.oci.image.layer.v1.tar";
const OCI_FOREIGN: &str = "application/vnd.oci.image.layer.nondistributable.v1.tar";

impl LayerKind {
    pub fn of(media_type: &str) -> LayerKind {
        if let Some(suffix) = media_type.strip_prefix(DOCKER) {
            return match suffix {
                "" => LayerKind::Unknown,
                ".gzip" => LayerKind::Gzip,
                ".zstd" => LayerKind::Zstd,
                _ => other(suffix),
            };
        }
        if let Some(suffix) = media_type.strip_prefix(OCI) {
            return match suffix {
                "" => LayerKind::Uncompressed,
                "+gzip" => LayerKind::Gzip,
                "+zstd" => LayerKind::Zstd,
                _ => other(suffix),
            };
        }
        let foreign = [DOCKER_FOREIGN, OCI_FOREIGN].iter().find_map(|prefix| media_type.strip_prefix(prefix));
        match foreign {
            Some("" | ".gzip" | ".zstd" | "+gzip" | "+zstd") => LayerKind::Foreign,
            Some(suffix) => other(suffix),
            None => LayerKind::NotALayer,
        }
    }

    /// Whether consumers of SOCI indexes can read such a layer.
    pub fn is_servable(self) -> bool {
        matches!(self, LayerKind::Gzip | LayerKind::Uncompressed | LayerKind::Unknown)
    }
}

fn other(suffix: &str) -> LayerKind {
    if suffix.ends_with("+encrypted") { LayerKind::Encrypted } else { LayerKind::NotALayer }
}

#[cfg(test)]
mod tests {
    use super::*;

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
