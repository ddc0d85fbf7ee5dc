//! Blobs for registries and layouts, and SOCI index manifests without ztocs.

use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use serde_json::json;

use super::sandbox::OCI_MANIFEST;

/// The artifact type of SOCI indexes of version 1.
pub const SOCI: &str = "application/vnd.amazon.soci.index.v1+json";

/// Bytes without repetition.
pub fn content(length: usize) -> Bytes {
    (0..length).map(|i| (i ^ i >> 8 ^ i >> 16) as u8).collect::<Vec<_>>().into()
}

pub fn descriptor(content: &Bytes) -> Descriptor {
    Descriptor::of("application/octet-stream", content)
}

/// An index manifest for `subject`, whose config is `{}`. Each `name` gives another one.
pub fn index_manifest(
    subject: &Descriptor,
    layers: &[&Descriptor],
    name: &str,
) -> (Bytes, Descriptor) {
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": SOCI, "digest": Digest::sha256(b"{}"), "size": 2},
        "layers": layers,
        "subject": subject,
        "annotations": {"name": name},
    });
    let bytes = Bytes::from(manifest.to_string());
    let mut descriptor = Descriptor::of(OCI_MANIFEST, &bytes);
    descriptor.artifact_type = Some(SOCI.into());
    descriptor.annotations.insert("name".into(), name.into());
    (bytes, descriptor)
}
