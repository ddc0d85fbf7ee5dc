//! The manifest of a fine index, with a fine document for each layer of an image
//! (docs/contributing/fine-format.md).
//!
//! It is either a referrer of the image manifest, or it is *bound*: the manifest of a SOCI-enabled
//! image names it by digest, as it names its SOCI index. A bound one has no subject, because its
//! digest is part of the manifest that would be the subject.
//!
//! It has our own artifact type, so consumers of SOCI indexes never see it. Anyone who may push to
//! the repository can write one, so it is read as strictly as a SOCI index. It is the only source
//! for which layer a document belongs to and how many unverified bytes of it are fetched.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::descriptor::{Descriptor, null_is_default};
use super::go;
use super::json::{self, JsonError, Level};
use super::manifest::{MAX_DESCRIPTORS, MAX_DOCUMENT, OCI_MANIFEST};
use super::soci::{CONFIG, EncodedIndex};
use crate::digest::{Algorithm, Digest};
use crate::printable::exact_size;

/// The artifact type of a fine index.
pub const FINE_INDEX: &str = "application/vnd.ociseek.fine.v1+json";
/// The media type of a fine document, which belongs to one layer.
pub(crate) const FINE_DOCUMENT: &str = "application/vnd.ociseek.fine.layer.v1";
/// The media type of the config, which is `{}`.
pub const EMPTY_CONFIG: &str = "application/vnd.oci.empty.v1+json";

/// The annotation of a document that names the digest of its layer.
pub const LAYER_DIGEST: &str = "dev.ociseek.fine.layer-digest";
/// The annotation of a document that states the size of its head, in bytes.
pub(crate) const HEAD_SIZE: &str = "dev.ociseek.fine.head-size";
/// The annotation of a document that names the digest of its head.
pub(crate) const HEAD_DIGEST: &str = "dev.ociseek.fine.head-digest";
/// The annotation of a document that states the size of its head and of the pages for a start, in
/// bytes.
pub(crate) const START_SIZE: &str = "dev.ociseek.fine.start-size";
/// The annotation of a fine index that names the tool that built it.
pub(crate) const BUILD_TOOL: &str = "dev.ociseek.fine.build-tool";
/// The annotation of an image manifest that names the digest of its bound fine index.
pub const BOUND_INDEX: &str = "dev.ociseek.fine.index-digest";
/// The annotation of a bound fine index's descriptor, in an image index, that names the digest of
/// its image manifest.
pub(crate) const BOUND_TO: &str = "dev.ociseek.fine.image-manifest-digest";
/// The annotation of a fine index that names the digest of the profile that it was built
/// with.
pub(crate) const PROFILE: &str = "dev.ociseek.fine.profile";

/// The size limit of a document's head, in bytes.
pub(crate) const MAX_HEAD: u64 = 64 << 20;

/// A fine document and its layer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FineRef {
    /// The document's digest.
    pub document: Digest,
    /// Bytes of the document.
    pub size: u64,
    /// The SHA-256 digest of the layer's blob.
    pub layer: Digest,
    /// The size of the head at the start of the document, in bytes.
    pub head_size: u64,
    /// The SHA-256 digest of the head alone.
    pub head_digest: Digest,
    /// The size of the head and of the following pages for a recorded start, in bytes; at least
    /// `head_size`.
    pub start_size: u64,
}

impl FineRef {
    /// The document's blob.
    pub fn blob(&self) -> Descriptor {
        Descriptor::new(FINE_DOCUMENT, self.document, self.size)
    }

    /// Whether the document has pages of a recorded start.
    pub fn has_start(&self) -> bool {
        self.start_size > self.head_size
    }
}

/// A fine index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FineIndex {
    /// In the order of the image's layers, each layer once; layers may be missing.
    pub layers: Vec<FineRef>,
    /// The image manifest of one platform. Only its media type, digest and size are written. None
    /// if the index is bound.
    pub subject: Option<Descriptor>,
    /// The tool that built the index, if the manifest names one. Indexes written here always do.
    pub build_tool: Option<String>,
    /// The digest of the profile that the documents were built with, if any.
    pub profile: Option<Digest>,
}

/// Why a manifest is not a valid fine index.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum FineIndexError {
    #[error("the fine index is not valid")]
    Json(#[from] JsonError),
    #[error("the manifest is not a fine index: its artifact type is {0:?}")]
    NotAFineIndex(String),
    #[error("the fine index has {found:?} instead of {expected:?}")]
    MediaType { expected: &'static str, found: String },
    #[error("the config of the fine index is not {{}}")]
    Config,
    #[error("the fine index lists {0} documents; the limit is {MAX_DESCRIPTORS}")]
    TooMany(usize),
    #[error("the annotation {name} of {document} is missing or not valid")]
    Annotation { document: Digest, name: &'static str },
    #[error(
        "document {document} is said to have {size} bytes, {head} of them in its head and {start} for a start"
    )]
    Sizes { document: Digest, size: u64, head: u64, start: u64 },
    #[error(
        "document {document} is said to have a head of {head} bytes; the limit is {}",
        exact_size(MAX_HEAD)
    )]
    HeadTooLarge { document: Digest, head: u64 },
    #[error("the fine index lists a second document for layer {0}")]
    Twice(Digest),
    #[error("an image names the fine index, but the index refers to {0}")]
    Subject(Digest),
    #[error("the annotation {PROFILE} of the fine index is not a digest")]
    Profile,
}

/// The manifest, fields in Go's order.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: i64,
    media_type: String,
    artifact_type: String,
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

/// The keys that are read. Other spellings of them are refused, because parsers disagree about
/// those.
const TOP: Level = Level {
    keys: &[
        "schemaVersion",
        "mediaType",
        "artifactType",
        "config",
        "layers",
        "subject",
        "annotations",
    ],
    below: &[("config", DESCRIPTOR), ("layers", DESCRIPTOR), ("subject", DESCRIPTOR)],
};
const DESCRIPTOR: Level =
    Level { keys: &["mediaType", "digest", "size", "annotations"], below: &[] };

impl FineIndex {
    /// Encodes the manifest and its descriptor, which has the artifact type and annotations as
    /// lists of referrers show them. The same index gives the same bytes.
    pub fn encode(&self) -> EncodedIndex {
        let layers = self.layers.iter().map(|layer| {
            let mut descriptor = layer.blob();
            descriptor.annotations = BTreeMap::from([
                (LAYER_DIGEST.to_owned(), layer.layer.to_string()),
                (HEAD_SIZE.to_owned(), layer.head_size.to_string()),
                (HEAD_DIGEST.to_owned(), layer.head_digest.to_string()),
                (START_SIZE.to_owned(), layer.start_size.to_string()),
            ]);
            descriptor
        });
        let tool = self.build_tool.clone().map(|tool| (BUILD_TOOL.to_owned(), tool));
        let profile = self.profile.map(|profile| (PROFILE.to_owned(), profile.to_string()));
        let annotations: BTreeMap<String, String> = tool.into_iter().chain(profile).collect();
        let subject =
            self.subject.as_ref().map(|s| Descriptor::new(s.media_type.clone(), s.digest, s.size));
        let document = Document {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            artifact_type: FINE_INDEX.to_owned(),
            config: Descriptor::of(EMPTY_CONFIG, CONFIG),
            layers: layers.collect(),
            subject,
            annotations: annotations.clone(),
        };
        let bytes = go::encode(&document);
        let mut descriptor = Descriptor::of(OCI_MANIFEST, &bytes);
        descriptor.artifact_type = Some(FINE_INDEX.to_owned());
        descriptor.annotations = annotations;
        EncodedIndex { bytes, descriptor }
    }
}

/// Reads a fine index.
///
/// # Errors
/// If the manifest is not a fine index, or a document's annotations are missing or contradict each
/// other.
pub fn parse(bytes: &[u8]) -> Result<FineIndex, FineIndexError> {
    // The artifact type tells artifacts of other kinds apart, before their missing fields do.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Peek {
        artifact_type: Option<String>,
    }
    let shortened = |text: &str| text.chars().take(150).collect();
    let peek: Peek = json::parse_levels(bytes, MAX_DOCUMENT, TOP)?;
    let kind = peek.artifact_type.unwrap_or_default();
    if kind != FINE_INDEX {
        return Err(FineIndexError::NotAFineIndex(shortened(&kind)));
    }
    let document: Document = json::parse_lenient(bytes).map_err(JsonError::Json)?;
    if document.media_type != OCI_MANIFEST || document.schema_version != 2 {
        return Err(FineIndexError::MediaType {
            expected: OCI_MANIFEST,
            found: shortened(&document.media_type),
        });
    }
    let config = &document.config;
    if config.media_type != EMPTY_CONFIG
        || config.digest != Digest::sha256(CONFIG)
        || config.size != 2
    {
        return Err(FineIndexError::Config);
    }
    if document.layers.len() > MAX_DESCRIPTORS {
        return Err(FineIndexError::TooMany(document.layers.len()));
    }
    let mut layers = Vec::with_capacity(document.layers.len());
    let mut seen = BTreeSet::new();
    for descriptor in &document.layers {
        let layer = fine_ref(descriptor)?;
        if !seen.insert(layer.layer) {
            return Err(FineIndexError::Twice(layer.layer));
        }
        layers.push(layer);
    }
    let profile = document
        .annotations
        .get(PROFILE)
        .map(|profile| profile.parse().map_err(|_| FineIndexError::Profile));
    Ok(FineIndex {
        layers,
        subject: document.subject,
        build_tool: document.annotations.get(BUILD_TOOL).cloned(),
        profile: profile.transpose()?,
    })
}

fn fine_ref(descriptor: &Descriptor) -> Result<FineRef, FineIndexError> {
    if descriptor.media_type != FINE_DOCUMENT {
        let found = descriptor.media_type.chars().take(150).collect();
        return Err(FineIndexError::MediaType { expected: FINE_DOCUMENT, found });
    }
    let document = descriptor.digest;
    let size = descriptor.size;
    let annotation = |name: &'static str| descriptor.annotations.get(name).map(String::as_str);
    let digest = |name| {
        let digest = annotation(name).and_then(|digest| digest.parse().ok());
        // A document refers to its layer by SHA-256, so other algorithms are not valid here.
        let digest = digest.filter(|digest: &Digest| digest.algorithm() == Algorithm::Sha256);
        digest.ok_or(FineIndexError::Annotation { document, name })
    };
    let number = |name| {
        annotation(name).and_then(decimal).ok_or(FineIndexError::Annotation { document, name })
    };
    let layer = digest(LAYER_DIGEST)?;
    let head_digest = digest(HEAD_DIGEST)?;
    let head_size = number(HEAD_SIZE)?;
    let start_size = number(START_SIZE)?;
    // Sizes are int64 in the OCI specification.
    if head_size == 0 || head_size > start_size || start_size > size || i64::try_from(size).is_err()
    {
        return Err(FineIndexError::Sizes { document, size, head: head_size, start: start_size });
    }
    if head_size > MAX_HEAD {
        return Err(FineIndexError::HeadTooLarge { document, head: head_size });
    }
    Ok(FineRef { document, size, layer, head_size, head_digest, start_size })
}

/// Reads a fine index that an image manifest names.
///
/// # Errors
/// As [`parse`], or if the index refers to an image manifest: that cannot be the one that names it.
pub fn parse_bound(bytes: &[u8]) -> Result<FineIndex, FineIndexError> {
    let index = parse(bytes)?;
    match &index.subject {
        None => Ok(index),
        Some(named) => Err(FineIndexError::Subject(named.digest)),
    }
}

/// The digest of the fine index that an image manifest with these annotations names.
///
/// # Errors
/// The start of the annotation, if it is not a digest.
pub fn bound_index(annotations: &BTreeMap<String, String>) -> Result<Option<Digest>, String> {
    let named = annotations.get(BOUND_INDEX);
    let parsed = named.map(|named| named.parse().map_err(|_| named.chars().take(150).collect()));
    parsed.transpose()
}

/// Parses a number as we write it: without a sign or leading zeros.
fn decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine_index(layers: u64) -> FineIndex {
        let digest = |s: String| Digest::sha256(s.as_bytes());
        FineIndex {
            layers: (0..layers)
                .map(|i| FineRef {
                    document: digest(format!("document {i}")),
                    size: 1000 + i,
                    layer: digest(format!("layer {i}")),
                    head_size: 100 + i,
                    head_digest: digest(format!("head {i}")),
                    start_size: 200 + i,
                })
                .collect(),
            subject: Some(Descriptor::new(OCI_MANIFEST, digest("subject".to_owned()), 567)),
            build_tool: Some("tool <&> \u{2028}".to_owned()),
            profile: Some(digest("profile".to_owned())),
        }
    }

    fn text_of(index: &FineIndex) -> String {
        String::from_utf8(index.encode().bytes).unwrap()
    }

    #[test]
    fn manifests_round_trip() {
        for layers in [0, 1, 3] {
            for (build_tool, profile) in [
                (None, None),
                (Some("x".to_owned()), None),
                (Some("y".to_owned()), Some(Digest::sha256(b"p"))),
            ] {
                let index = FineIndex { build_tool, profile, ..fine_index(layers) };
                let encoded = index.encode();
                assert_eq!(parse(&encoded.bytes).unwrap(), index);
                assert_eq!(encoded, index.encode());
                assert_eq!(encoded.descriptor.digest, Digest::sha256(&encoded.bytes));
                assert_eq!(encoded.descriptor.artifact_type.as_deref(), Some(FINE_INDEX));
            }
        }
    }

    #[test]
    fn the_manifest_is_an_oci_artifact() {
        let index = FineIndex {
            build_tool: Some("ociseek <1>".to_owned()),
            profile: None,
            ..fine_index(1)
        };
        let [layer] = &index.layers[..] else { panic!("it has one") };
        let expected = format!(
            concat!(
                r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","#,
                r#""artifactType":"application/vnd.ociseek.fine.v1+json","#,
                r#""config":{{"mediaType":"application/vnd.oci.empty.v1+json","digest":"{}","size":2}},"#,
                r#""layers":[{{"mediaType":"application/vnd.ociseek.fine.layer.v1","digest":"{}","size":1000,"#,
                r#""annotations":{{"dev.ociseek.fine.head-digest":"{}","dev.ociseek.fine.head-size":"100","#,
                r#""dev.ociseek.fine.layer-digest":"{}","dev.ociseek.fine.start-size":"200"}}}}],"#,
                r#""subject":{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{}","size":567}},"#,
                r#""annotations":{{"dev.ociseek.fine.build-tool":"ociseek \u003c1\u003e"}}}}"#,
            ),
            Digest::sha256(b"{}"),
            layer.document,
            layer.head_digest,
            layer.layer,
            index.subject.as_ref().unwrap().digest,
        );
        assert_eq!(text_of(&index), expected);
        let not_an_image = super::super::manifest::parse(None, expected.as_bytes()).unwrap_err();
        assert_eq!(not_an_image.to_string(), "this is not an image but a fine index");
    }

    #[test]
    fn a_bound_index_has_no_subject() {
        let index = FineIndex { subject: None, ..fine_index(2) };
        let encoded = index.encode();
        assert!(!String::from_utf8_lossy(&encoded.bytes).contains("subject"));
        assert_eq!(parse(&encoded.bytes).unwrap(), index);
        assert_eq!(parse_bound(&encoded.bytes).unwrap(), index);
        assert!(matches!(
            parse_bound(&fine_index(2).encode().bytes),
            Err(FineIndexError::Subject(_))
        ));
        let named = |value: &str| {
            bound_index(&BTreeMap::from([(BOUND_INDEX.to_owned(), value.to_owned())]))
        };
        assert_eq!(
            named(&encoded.descriptor.digest.to_string()),
            Ok(Some(encoded.descriptor.digest))
        );
        assert_eq!(named("sha256:0"), Err("sha256:0".to_owned()));
        assert_eq!(named(&"x".repeat(1000)).unwrap_err().len(), 150);
        assert_eq!(bound_index(&BTreeMap::new()), Ok(None));
    }

    /// Part of the text of an index with one layer, its replacement, and the expected error.
    #[test]
    fn hostile_manifests_are_refused() {
        let good = text_of(&fine_index(2));
        assert!(parse(good.as_bytes()).is_ok());
        let sha512 = Digest::of(Algorithm::Sha512, b"x").to_string();
        let [first, second] = [0, 1].map(|i| fine_index(2).layers[i].layer.to_string());
        let profile = Digest::sha256(b"profile").to_string();
        let cases: &[(&str, &str, &str)] = &[
            ("\"schemaVersion\":2", "\"schemaVersion\":1", "instead of"),
            ("vnd.oci.image.manifest", "vnd.oci.image.manifset", "instead of"),
            (
                "application/vnd.ociseek.fine.v1+json",
                "application/vnd.ociseek.fine.v2+json",
                "not a fine index",
            ),
            ("\"artifactType\"", "\"artifactTypo\"", "not a fine index"),
            ("\"artifactType\"", "\"ArtifactType\"", "not valid"),
            ("\"layers\"", "\"Layers\"", "not valid"),
            ("\"layers\"", "\"layer\"", "not valid"),
            ("\"subject\"", "\"Subject\"", "not valid"),
            ("\"subject\":{", "\"subject\":{\"size\":1},\"x\":{", "not valid"),
            ("vnd.oci.empty.v1+json", "vnd.oci.image.config.v1+json", "config"),
            ("\"size\":2", "\"size\":3", "config"),
            ("\"config\":{\"mediaType\"", "\"config\":{\"MediaType\"", "not valid"),
            ("vnd.ociseek.fine.layer.v1", "octet-stream", "instead of"),
            ("head-size\":\"100", "head-size\":\"0", "0 of them in its head"),
            ("head-size\":\"100", "head-size\":\"+100", HEAD_SIZE),
            ("head-size\":\"100", "head-size\":\"0100", HEAD_SIZE),
            ("head-size\":\"100", "head-size\":\" 100", HEAD_SIZE),
            ("head-size\":\"100", "head-size\":\"1e2", HEAD_SIZE),
            ("head-size\":\"100", "head-size\":\"-1", HEAD_SIZE),
            ("head-size\":\"100", "head-size\":\"18446744073709551616", HEAD_SIZE),
            ("head-size\":\"100", "head-size\":\"201", "201 of them in its head"),
            ("head-size\"", "head-siez\"", HEAD_SIZE),
            ("start-size\":\"200", "start-size\":\"99", "99 for a start"),
            ("start-size\":\"200", "start-size\":\"1001", "1001 for a start"),
            ("start-size\":\"200", "start-size\":\"\"", "not valid"),
            ("start-size\"", "strat-size\"", START_SIZE),
            ("\"size\":1000", "\"size\":9223372036854775808", "9223372036854775808 bytes"),
            ("\"size\":1000", "\"size\":-1", "not valid"),
            ("\"size\":1000", "\"size\":1e3", "not valid"),
            ("\"size\":1000", "\"size\":1000,\"size\":1000", "not valid"),
            ("head-digest\":\"sha256:", "head-digest\":\"sha256:../", HEAD_DIGEST),
            ("head-digest\"", "head-digset\"", HEAD_DIGEST),
            ("layer-digest\":\"sha256:", "layer-digest\":\"md5:", LAYER_DIGEST),
            ("layer-digest\"", "layer-digset\"", LAYER_DIGEST),
            (&first, &sha512, LAYER_DIGEST),
            (&first, &second, "second document"),
            (&profile, "sha256:0", "not a digest"),
            ("{\"schemaVersion\"", "[{\"schemaVersion\"", "not valid"),
        ];
        for (old, new, why) in cases {
            let bad = good.replacen(old, new, 1);
            assert_ne!(bad, good, "{old}");
            match parse(bad.as_bytes()) {
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains(why), "{old} -> {new}: {said}");
                }
                Ok(index) => panic!("{old} -> {new}: {index:?}"),
            }
        }
        for end in 0..good.len() {
            assert!(parse(&good.as_bytes()[..end]).is_err(), "{end} bytes of it");
        }
    }

    #[test]
    fn limits() {
        let head = |head_size| {
            let mut index = fine_index(1);
            index.layers[0] = FineRef {
                size: 1 << 40,
                head_size,
                start_size: 1 << 39,
                ..index.layers[0].clone()
            };
            parse(&index.encode().bytes)
        };
        assert!(head(MAX_HEAD).is_ok());
        assert!(matches!(head(MAX_HEAD + 1), Err(FineIndexError::HeadTooLarge { .. })));
        let large = format!("{}{}", text_of(&fine_index(1)), " ".repeat(MAX_DOCUMENT));
        assert!(matches!(
            parse(large.as_bytes()),
            Err(FineIndexError::Json(JsonError::TooLarge { .. }))
        ));
        let text = text_of(&fine_index(0));
        let entry = format!(
            r#"{{"mediaType":"{FINE_DOCUMENT}","digest":"{}","size":1}}"#,
            Digest::sha256(b"")
        );
        let many = text.replace(
            "\"layers\":[]",
            &format!("\"layers\":[{}]", vec![entry; MAX_DESCRIPTORS + 1].join(",")),
        );
        assert!(matches!(parse(many.as_bytes()), Err(FineIndexError::TooMany(10_001))));
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = text_of(&fine_index(1));
        let more = text.replacen(
            "\"annotations\":{",
            "\"data\":\"e30=\",\"annotations\":{\"x\":\"y\",",
            1,
        );
        assert_eq!(parse(more.as_bytes()).unwrap(), fine_index(1));
        assert!(parse(text.replacen('{', "{\"more\":1,", 1).as_bytes()).is_ok());
        let bare = text.replacen(
            "\"annotations\":{\"dev.ociseek.fine.build-tool\"",
            "\"annotations\":{\"x\"",
            1,
        );
        assert_eq!(parse(bare.as_bytes()).unwrap().build_tool, None);
    }
}
