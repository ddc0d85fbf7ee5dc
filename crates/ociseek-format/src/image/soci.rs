//! The SOCI index manifest: an image's ztocs as a referrer of the image (soci-snapshotter v0.15.0,
//! soci/soci_index.go).
//!
//! The consumer decodes the manifest, encodes it again and stores the result under the requested
//! digest. If a single byte differs, it silently falls back to a full pull. So the bytes must be
//! those that Go's encoding/json writes for the OCI structs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::descriptor::{Descriptor, null_is_default};
use super::go;
use super::json::{self, JsonError};
use super::manifest::{MAX_DESCRIPTORS, MAX_DOCUMENT, OCI_MANIFEST};
use crate::digest::Digest;
use crate::offset::SpanSize;

/// Artifact type of an index that is a referrer of its image. Also the media type of its config.
pub const INDEX_V1: &str = "application/vnd.amazon.soci.index.v1+json";
/// Artifact type of an index that is listed next to its image in an image index.
pub const INDEX_V2: &str = "application/vnd.amazon.soci.index.v2+json";
/// Media type of a ztoc.
pub const ZTOC: &str = "application/octet-stream";
/// Media type of a list of spans to fetch first.
pub const PREFETCH: &str = "application/vnd.amazon.soci.prefetch.v1+json";
/// The config blob of every SOCI index.
pub const CONFIG: &[u8] = b"{}";

/// The annotation of a ztoc that names the digest of its layer.
pub const LAYER_DIGEST: &str = "com.amazon.soci.image-layer-digest";
/// The annotation of a ztoc that names the media type of its layer.
pub(crate) const LAYER_MEDIA_TYPE: &str = "com.amazon.soci.image-layer-mediaType";
/// The annotation of a ztoc that states its span size in bytes.
pub const SPAN_SIZE: &str = "com.amazon.soci.span-size";
/// The annotation of a SOCI index that names the tool that built it.
pub(crate) const BUILD_TOOL: &str = "com.amazon.soci.build-tool-identifier";

/// A ztoc and its layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZtocRef {
    /// The ztoc's digest.
    pub ztoc: Digest,
    /// The size of the ztoc in bytes.
    pub size: u64,
    /// The digest of the layer's blob.
    pub layer: Digest,
    /// The media type of the layer.
    pub layer_media_type: String,
    /// The span size in bytes.
    pub span_size: SpanSize,
}

impl ZtocRef {
    /// The ztoc's blob.
    pub fn blob(&self) -> Descriptor {
        Descriptor::new(ZTOC, self.ztoc, self.size)
    }
}

/// A SOCI index to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SociIndex {
    /// In the order of the image's layers; layers may be missing.
    pub layers: Vec<ZtocRef>,
    /// The image manifest of one platform. Only its media type, digest and size are written. An
    /// index with a subject has version 1, one without has version 2.
    pub subject: Option<Descriptor>,
    /// The tool that built it. Other tools show it; consumers ignore it.
    pub build_tool_identifier: String,
    /// Prefetch artifacts, listed unchanged after the ztocs.
    pub prefetch: Vec<Descriptor>,
}

/// An encoded index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedIndex {
    /// The manifest's bytes.
    pub bytes: Vec<u8>,
    /// As lists of referrers show it: with the artifact type and, unless it is a SOCI index of
    /// version 2, the annotations.
    pub descriptor: Descriptor,
}

/// The manifest, fields in Go's order.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    schema_version: i64,
    media_type: String,
    config: Descriptor,
    #[serde(deserialize_with = "null_is_default")]
    layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<Descriptor>,
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_is_default"
    )]
    annotations: BTreeMap<String, String>,
}

impl SociIndex {
    /// Encodes the manifest, byte for byte like soci's `MarshalIndex`.
    pub fn encode(&self) -> EncodedIndex {
        let layers = self.layers.iter().map(|layer| {
            let mut descriptor = layer.blob();
            descriptor.annotations = BTreeMap::from([
                (LAYER_DIGEST.to_owned(), layer.layer.to_string()),
                (LAYER_MEDIA_TYPE.to_owned(), layer.layer_media_type.clone()),
                (SPAN_SIZE.to_owned(), layer.span_size.to_string()),
            ]);
            descriptor
        });
        let subject =
            self.subject.as_ref().map(|s| Descriptor::new(s.media_type.clone(), s.digest, s.size));
        let (artifact_type, is_v1) =
            if subject.is_some() { (INDEX_V1, true) } else { (INDEX_V2, false) };
        let annotations =
            BTreeMap::from([(BUILD_TOOL.to_owned(), self.build_tool_identifier.clone())]);
        let document = Document {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            config: Descriptor::of(artifact_type, CONFIG),
            layers: layers.chain(self.prefetch.iter().cloned()).collect(),
            subject,
            annotations: annotations.clone(),
        };
        let bytes = go::encode(&document);
        let mut descriptor = Descriptor::of(OCI_MANIFEST, &bytes);
        descriptor.artifact_type = Some(artifact_type.to_owned());
        if is_v1 {
            descriptor.annotations = annotations;
        }
        EncodedIndex { bytes, descriptor }
    }
}

/// The prefetch artifacts among the other entries of an index, by layer. Only the first of a layer
/// counts, as for soci-snapshotter.
pub fn prefetch_lists(others: &[Descriptor]) -> BTreeMap<Digest, &Descriptor> {
    let mut lists = BTreeMap::new();
    for artifact in others.iter().filter(|other| other.media_type == PREFETCH) {
        if let Some(layer) = prefetch_layer(artifact) {
            lists.entry(layer).or_insert(artifact);
        }
    }
    lists
}

/// The layer of a prefetch artifact, if its descriptor names one.
pub fn prefetch_layer(artifact: &Descriptor) -> Option<Digest> {
    artifact.annotations.get(LAYER_DIGEST)?.parse().ok()
}

/// The version of a SOCI index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A referrer of the image.
    V1,
    /// Named by an annotation of the image's manifest.
    V2,
}

impl Version {
    /// 1 or 2.
    pub fn number(self) -> u8 {
        match self {
            Version::V1 => 1,
            Version::V2 => 2,
        }
    }
}

/// A parsed SOCI index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundIndex {
    /// Its version.
    pub version: Version,
    /// The tool that built it, if it names one.
    pub build_tool_identifier: Option<String>,
    /// The ztocs that it lists, in its order.
    pub ztocs: Vec<ZtocRef>,
    /// The image. Only present in version 1.
    pub subject: Option<Descriptor>,
    /// Prefetch artifacts and other entries.
    pub others: Vec<Descriptor>,
    /// Whether encoding it again gives the same bytes, without which its consumer cannot use it.
    pub canonical: bool,
}

impl FoundIndex {
    /// The ztoc that a reader takes for each layer: the last one listed, as soci-snapshotter does
    /// (v0.15.0, fs/fs.go, populateImageLayerToSociMapping).
    pub fn by_layer(&self) -> BTreeMap<Digest, &ZtocRef> {
        self.ztocs.iter().map(|ztoc| (ztoc.layer, ztoc)).collect()
    }
}

/// Why a manifest is not a valid SOCI index.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum SociIndexError {
    #[error("the SOCI index is not valid")]
    Json(#[from] JsonError),
    #[error("the manifest is not a SOCI index: its config is {0:?}")]
    NotASociIndex(String),
    #[error("the SOCI index has {found:?} instead of {expected:?}")]
    MediaType { expected: &'static str, found: String },
    #[error("the SOCI index lists {0} ztocs; the limit is {MAX_DESCRIPTORS}")]
    TooMany(usize),
    #[error("the SOCI index v1 has no subject")]
    NoSubject,
    #[error("the annotation {name} of ztoc {ztoc} is missing or not valid")]
    Annotation { ztoc: Digest, name: &'static str },
}

/// Parses a SOCI index of version 1 or 2.
///
/// # Errors
/// If the manifest is not a SOCI index, has a field that no SOCI index has, or lists a ztoc without
/// its layer.
pub fn parse(bytes: &[u8]) -> Result<FoundIndex, SociIndexError> {
    // Reject other artifacts for their config, before their unknown fields do.
    #[derive(Deserialize)]
    struct Peek {
        config: Option<PeekConfig>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct PeekConfig {
        media_type: Option<String>,
    }
    let keys = &["schemaVersion", "mediaType", "config", "layers", "subject", "annotations"];
    let peek: Peek = json::parse(bytes, MAX_DOCUMENT, keys)?;
    let config = peek.config.and_then(|c| c.media_type).unwrap_or_default();
    let version = match config.as_str() {
        INDEX_V1 => Version::V1,
        INDEX_V2 => Version::V2,
        _ => return Err(SociIndexError::NotASociIndex(config.chars().take(150).collect())),
    };
    let document: Document = json::parse_lenient(bytes).map_err(JsonError::Json)?;
    if document.media_type != OCI_MANIFEST || document.schema_version != 2 {
        let found = document.media_type.chars().take(150).collect();
        return Err(SociIndexError::MediaType { expected: OCI_MANIFEST, found });
    }
    if document.layers.len() > MAX_DESCRIPTORS {
        return Err(SociIndexError::TooMany(document.layers.len()));
    }
    if version == Version::V1 && document.subject.is_none() {
        return Err(SociIndexError::NoSubject);
    }
    let canonical = go::encode(&document) == bytes;
    let (ztocs, others): (Vec<Descriptor>, Vec<Descriptor>) =
        document.layers.into_iter().partition(|layer| layer.media_type == ZTOC);
    Ok(FoundIndex {
        version,
        build_tool_identifier: document.annotations.get(BUILD_TOOL).cloned(),
        ztocs: ztocs.iter().map(ztoc_ref).collect::<Result<_, _>>()?,
        subject: document.subject,
        others,
        canonical,
    })
}

fn ztoc_ref(descriptor: &Descriptor) -> Result<ZtocRef, SociIndexError> {
    let ztoc = descriptor.digest;
    let annotation = |name: &'static str| {
        descriptor.annotations.get(name).ok_or(SociIndexError::Annotation { ztoc, name })
    };
    let unsound = |name| SociIndexError::Annotation { ztoc, name };
    let span_size = annotation(SPAN_SIZE)?
        .parse()
        .ok()
        .and_then(SpanSize::new)
        .ok_or_else(|| unsound(SPAN_SIZE))?;
    Ok(ZtocRef {
        ztoc,
        size: descriptor.size,
        layer: annotation(LAYER_DIGEST)?.parse().map_err(|_| unsound(LAYER_DIGEST))?,
        layer_media_type: annotation(LAYER_MEDIA_TYPE)?.clone(),
        span_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generated with Go by `fixtures/index-go/main.go`.
    const GO: &str = include_str!("../../../../fixtures/index-go/indexes.jsonl");

    fn index(tool: &str, layers: usize) -> SociIndex {
        let digest = |s: String| Digest::sha256(s.as_bytes());
        SociIndex {
            layers: (0..layers)
                .map(|i| ZtocRef {
                    ztoc: digest(format!("ztoc {i}")),
                    size: 1000 + i as u64,
                    layer: digest(format!("layer {i}")),
                    layer_media_type: format!(
                        "application/vnd.oci.image.layer.v1.tar+gzip{}",
                        tool.len() % 2
                    ),
                    span_size: SpanSize::new(1 << (16 + i)).unwrap(),
                })
                .collect(),
            subject: Some(Descriptor::new(OCI_MANIFEST, digest("subject".to_owned()), 567)),
            build_tool_identifier: tool.to_owned(),
            prefetch: Vec::new(),
        }
    }

    #[test]
    fn encoded_bytes_match_go() {
        let mut seen = 0;
        for line in GO.lines() {
            // A line is a JSON array: the tool identifier, the number of layers, and the manifest
            // that Go wrote, as a string.
            let (tool, layers, manifest): (String, usize, String) =
                serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}"));
            let encoded = index(&tool, layers).encode();
            assert_eq!(String::from_utf8_lossy(&encoded.bytes), manifest, "tool {tool:?}");
            assert_eq!(encoded.descriptor.digest, Digest::sha256(manifest.as_bytes()));
            seen += 1;
        }
        assert!(seen >= 8, "the fixture has {seen} lines");
    }

    #[test]
    fn indexes_round_trip() {
        let index = index("tool <&> \u{2028}", 3);
        let parsed = parse(&index.encode().bytes).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(parsed.version, Version::V1);
        assert_eq!(parsed.ztocs, index.layers);
        assert_eq!(parsed.subject, index.subject);
        assert_eq!(parsed.build_tool_identifier, Some(index.build_tool_identifier));
        assert!(parsed.canonical && parsed.others.is_empty());
    }

    #[test]
    fn prefetch_artifacts_come_after_the_ztocs() {
        let mut index = index("x", 1);
        let mut artifact = Descriptor::of(PREFETCH, b"{}");
        artifact.annotations =
            BTreeMap::from([(LAYER_DIGEST.to_owned(), index.layers[0].layer.to_string())]);
        index.prefetch = vec![artifact.clone()];
        let parsed = parse(&index.encode().bytes).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((parsed.ztocs, parsed.others), (index.layers, vec![artifact]));
        assert!(parsed.canonical);
    }

    #[test]
    fn indexes_that_consumers_cannot_use_are_detected() {
        let text =
            String::from_utf8(index("x", 1).encode().bytes).unwrap_or_else(|e| panic!("{e}"));
        let spaced = text.replacen(':', ": ", 1);
        assert_eq!(parse(spaced.as_bytes()).map(|i| i.canonical).ok(), Some(false));
        let unknown = text.replacen(
            "{",
            r#"{"artifactType":"application/vnd.amazon.soci.index.v1+json","#,
            1,
        );
        assert!(matches!(parse(unknown.as_bytes()), Err(SociIndexError::Json(_))));
        let v2 = text.replace("index.v1+json", "index.v2+json");
        assert_eq!(parse(v2.as_bytes()).map(|i| i.version).ok(), Some(Version::V2));
        for (old, new) in [
            ("soci.span-size\":\"65536", "soci.span-size\":\"0"),
            ("soci.span-size\":\"65536", "soci.span-size\":\"-5"),
            ("soci.span-size\":\"65536", "soci.span-size\":\"9223372036854775808"),
            ("image-layer-digest\":\"sha256:", "image-layer-digest\":\"sha256:../"),
            ("image-layer-digest", "image-layer-digset"),
        ] {
            let bad = text.replacen(old, new, 1);
            assert_ne!(bad, text);
            assert!(
                matches!(parse(bad.as_bytes()), Err(SociIndexError::Annotation { .. })),
                "{new}"
            );
        }
        let helm = text.replace(
            "application/vnd.amazon.soci.index.v1+json",
            "application/vnd.cncf.helm.config.v1+json",
        );
        assert!(matches!(parse(helm.as_bytes()), Err(SociIndexError::NotASociIndex(_))));
        assert!(matches!(parse(b"{}"), Err(SociIndexError::NotASociIndex(_))));
        let orphan = text.replacen("\"subject\":{", "\"subject\":null,\"x\":{", 1);
        assert!(parse(orphan.as_bytes()).is_err());
    }
}
