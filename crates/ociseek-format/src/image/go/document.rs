//! Manifests, image indexes and platforms.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;

use super::merge::{Data, Merge, Present, fields};
use super::{encode, repaired};
use crate::digest::DigestError;
use crate::image::config::MAX_CONFIG;
use crate::image::manifest::{DOCKER_LIST, DOCKER_MANIFEST, MAX_DOCUMENT, OCI_INDEX, OCI_MANIFEST};
use crate::image::{Descriptor, JsonError, Platform};

/// Why a document cannot be converted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum GoError {
    #[error("the document is not valid")]
    Json(#[from] JsonError),
    #[error("the document is listed as an image manifest but has the fields of something else")]
    NotAManifest,
    #[error("the document is listed as an image index but has the fields of something else")]
    NotAnIndex,
    #[error("{what} has an invalid digest")]
    Digest { what: &'static str, source: DigestError },
    #[error("{what} has the size {size}")]
    Size { what: &'static str, size: i64 },
}

/// An image manifest with all fields of Go's `ocispec.Manifest`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GoManifest {
    /// The version of the document's format, always 2 in practice.
    pub schema_version: i64,
    /// The stated media type; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// The artifact type; empty for an image.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub artifact_type: String,
    /// The image's config.
    pub config: Descriptor,
    /// None is encoded as null.
    pub layers: Option<Vec<Descriptor>>,
    /// The manifest that this one refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// The author's annotations. Go writes them in the order of the keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// An image index with all fields of Go's `ocispec.Index`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// The version of the document's format, always 2 in practice.
    pub schema_version: i64,
    /// The stated media type; empty if there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// The artifact type; empty for an image.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub artifact_type: String,
    /// Images by platform, and other entries that their author added.
    pub manifests: Vec<Descriptor>,
    /// The manifest that this one refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// The author's annotations. Go writes them in the order of the keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl GoManifest {
    /// The bytes that Go writes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// The layers, from the bottom up.
    pub fn layers(&self) -> &[Descriptor] {
        self.layers.as_deref().unwrap_or_default()
    }
}

impl Index {
    /// The bytes that Go writes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// Parses a manifest.
///
/// # Errors
/// If it is too large, not JSON, another kind of document, or has a descriptor with an invalid
/// digest or size.
pub fn decode_manifest(bytes: &[u8]) -> Result<GoManifest, GoError> {
    let raw: RawManifest = decode(bytes, MAX_DOCUMENT)?;
    // As in containerd (core/images): a document that could be read as a manifest or as an index is
    // refused.
    if raw.fs_layers.0
        || raw.manifests.0
        || matches!(raw.media_type.as_str(), OCI_INDEX | DOCKER_LIST)
    {
        return Err(GoError::NotAManifest);
    }
    Ok(GoManifest {
        schema_version: raw.schema_version,
        media_type: raw.media_type,
        artifact_type: raw.artifact_type,
        config: raw.config.checked("the config")?,
        layers: raw.layers.map(|layers| checked(layers, "a layer")).transpose()?,
        subject: raw.subject.map(|subject| subject.checked("the subject")).transpose()?,
        annotations: raw.annotations,
    })
}

/// Parses an image index.
///
/// # Errors
/// As [`decode_manifest`].
pub fn decode_index(bytes: &[u8]) -> Result<Index, GoError> {
    let raw: RawIndex = decode(bytes, MAX_DOCUMENT)?;
    let manifest = matches!(raw.media_type.as_str(), OCI_MANIFEST | DOCKER_MANIFEST);
    if manifest || raw.config.0 || raw.layers.0 || raw.fs_layers.0 {
        return Err(GoError::NotAnIndex);
    }
    Ok(Index {
        schema_version: raw.schema_version,
        media_type: raw.media_type,
        artifact_type: raw.artifact_type,
        manifests: checked(raw.manifests.unwrap_or_default(), "an entry of the image index")?,
        subject: raw.subject.map(|subject| subject.checked("the subject")).transpose()?,
        annotations: raw.annotations,
    })
}

/// Parses the platform in an image's config, without normalising it.
///
/// # Errors
/// If the config is too large or not JSON.
pub fn decode_platform(config: &[u8]) -> Result<Platform, GoError> {
    decode::<RawPlatform>(config, MAX_CONFIG).map(RawPlatform::checked)
}

fn decode<T: Merge + Default>(bytes: &[u8], limit: usize) -> Result<T, GoError> {
    if bytes.len() > limit {
        return Err(JsonError::TooLarge { size: bytes.len() as u64, limit: limit as u64 }.into());
    }
    let text = repaired(bytes);
    let mut json = serde_json::Deserializer::from_str(&text);
    let mut document = T::default();
    document
        .merge(&mut json)
        .and_then(|()| json.end())
        .map_err(|error| JsonError::Json(error.into()))?;
    Ok(document)
}

fn checked(raw: Vec<RawDescriptor>, what: &'static str) -> Result<Vec<Descriptor>, GoError> {
    raw.into_iter().map(|descriptor| descriptor.checked(what)).collect()
}

#[derive(Default)]
struct RawManifest {
    schema_version: i64,
    media_type: String,
    artifact_type: String,
    config: RawDescriptor,
    layers: Option<Vec<RawDescriptor>>,
    subject: Option<Box<RawDescriptor>>,
    annotations: BTreeMap<String, String>,
    manifests: Present,
    fs_layers: Present,
}

fields!(RawManifest {
    "schemaVersion" => schema_version,
    "mediaType" => media_type,
    "artifactType" => artifact_type,
    "config" => config,
    "layers" => layers,
    "subject" => subject,
    "annotations" => annotations,
    "manifests" => manifests,
    "fsLayers" => fs_layers,
});

#[derive(Default)]
struct RawIndex {
    schema_version: i64,
    media_type: String,
    artifact_type: String,
    manifests: Option<Vec<RawDescriptor>>,
    subject: Option<Box<RawDescriptor>>,
    annotations: BTreeMap<String, String>,
    config: Present,
    layers: Present,
    fs_layers: Present,
}

fields!(RawIndex {
    "schemaVersion" => schema_version,
    "mediaType" => media_type,
    "artifactType" => artifact_type,
    "manifests" => manifests,
    "subject" => subject,
    "annotations" => annotations,
    "config" => config,
    "layers" => layers,
    "fsLayers" => fs_layers,
});

#[derive(Default)]
struct RawDescriptor {
    media_type: String,
    digest: String,
    size: i64,
    urls: Option<Vec<String>>,
    annotations: BTreeMap<String, String>,
    data: Data,
    platform: Option<Box<RawPlatform>>,
    artifact_type: String,
}

fields!(RawDescriptor {
    "mediaType" => media_type,
    "digest" => digest,
    "size" => size,
    "urls" => urls,
    "annotations" => annotations,
    "data" => data,
    "platform" => platform,
    "artifactType" => artifact_type,
});

impl RawDescriptor {
    fn checked(self, what: &'static str) -> Result<Descriptor, GoError> {
        let size = u64::try_from(self.size).map_err(|_| GoError::Size { what, size: self.size })?;
        Ok(Descriptor {
            media_type: self.media_type,
            digest: self.digest.parse().map_err(|source| GoError::Digest { what, source })?,
            size,
            urls: self.urls.unwrap_or_default(),
            annotations: self.annotations,
            data: Some(self.data.0)
                .filter(|data| !data.is_empty())
                .map(|data| BASE64_STANDARD.encode(data)),
            platform: self.platform.map(|platform| platform.checked()),
            artifact_type: non_empty(self.artifact_type),
        })
    }
}

#[derive(Default)]
struct RawPlatform {
    architecture: String,
    os: String,
    os_version: String,
    os_features: Option<Vec<String>>,
    variant: String,
}

fields!(RawPlatform {
    "architecture" => architecture,
    "os" => os,
    "os.version" => os_version,
    "os.features" => os_features,
    "variant" => variant,
});

impl RawPlatform {
    fn checked(self) -> Platform {
        Platform {
            architecture: self.architecture,
            os: self.os,
            os_version: non_empty(self.os_version),
            os_features: self.os_features.unwrap_or_default(),
            variant: non_empty(self.variant),
        }
    }
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    /// The manifest with a config and `fields`, as Go encodes it again.
    fn rewritten(fields: &str) -> String {
        let text = format!(r#"{{"config":{{"mediaType":"c","digest":"{D}","size":2}},{fields}}}"#);
        let manifest =
            decode_manifest(text.as_bytes()).unwrap_or_else(|e| panic!("{fields}: {e:?}"));
        let config = format!(r#""config":{{"mediaType":"c","digest":"{D}","size":2}},"#);
        String::from_utf8(manifest.encode()).unwrap().replace(&config, "")
    }

    #[test]
    fn empty_and_unknown_fields_are_dropped() {
        for (fields, want) in [
            (r#""x":[{"y":1}]"#, r#"{"schemaVersion":0,"layers":null}"#),
            (
                r#""layers":null,"annotations":{},"subject":null,"artifactType":"""#,
                r#"{"schemaVersion":0,"layers":null}"#,
            ),
            (
                r#""schemaVersion":2,"mediaType":"m","layers":[]"#,
                r#"{"schemaVersion":2,"mediaType":"m","layers":[]}"#,
            ),
            (
                r#""layers":[],"annotations":{"b":null,"a":"<&>"}"#,
                r#"{"schemaVersion":0,"layers":[],"annotations":{"a":"\u003c\u0026\u003e","b":""}}"#,
            ),
            (
                r#""layers":[],"annotations":{"é":"\ud800","Z":"\/\u007f\u0001"}"#,
                "{\"schemaVersion\":0,\"layers\":[],\"annotations\":{\"Z\":\"/\u{7f}\\u0001\",\"é\":\"\u{fffd}\"}}",
            ),
        ] {
            assert_eq!(rewritten(fields), want, "{fields}");
        }
        let layer =
            |more: &str| format!(r#""layers":[{{"mediaType":"l","digest":"{D}","size":2{more}}}]"#);
        let fields = r#","urls":["u"],"annotations":{"k":"v"},"data":"YQ==","platform":{"architecture":"","os":"","variant":"v"},"artifactType":"t""#;
        for (given, want) in [
            (
                r#","urls":[],"annotations":null,"data":"","platform":null,"artifactType":"","x":1"#,
                "",
            ),
            (fields, fields),
            (r#","data":"Y\nR==""#, r#","data":"YQ==""#),
            (
                r#","platform":{"variant":"","os.version":"","os.features":[],"os":"l"}"#,
                r#","platform":{"architecture":"","os":"l"}"#,
            ),
        ] {
            let want = format!(r#"{{"schemaVersion":0,{}}}"#, layer(want));
            assert_eq!(rewritten(&layer(given)), want, "{given}");
        }
    }

    #[test]
    fn key_case_and_duplicate_keys_are_handled_as_in_go() {
        for (fields, want) in [
            (r#""SCHEMAVERSION":2,"LAYERſ":[]"#, r#"{"schemaVersion":2,"layers":[]}"#),
            (
                r#""artifactType":"a","ArtifactType":"b""#,
                r#"{"schemaVersion":0,"artifactType":"b","layers":null}"#,
            ),
            (
                r#""annotations":{"a":"1","b":"1"},"annotations":{"b":"2","c":"2"}"#,
                r#"{"schemaVersion":0,"layers":null,"annotations":{"a":"1","b":"2","c":"2"}}"#,
            ),
            (
                r#""annotations":{"a":"1"},"annotations":null"#,
                r#"{"schemaVersion":0,"layers":null}"#,
            ),
            (
                r#""artifactType":"a","artifactType":null"#,
                r#"{"schemaVersion":0,"artifactType":"a","layers":null}"#,
            ),
        ] {
            assert_eq!(rewritten(fields), want, "{fields}");
        }
        let twice = format!(
            r#""layers":[{{"mediaType":"a","digest":"{D}","size":1}},{{"digest":"{D}"}}],"layers":[{{"size":3}}]"#
        );
        let want = format!(
            r#"{{"schemaVersion":0,"layers":[{{"mediaType":"a","digest":"{D}","size":3}}]}}"#
        );
        assert_eq!(rewritten(&twice), want);
    }

    #[test]
    fn invalid_documents_are_refused() {
        let config = format!(r#""config":{{"digest":"{D}"}}"#);
        for (bad, ours) in [
            (format!(r#"{{{config},"manifests":[]}}"#), true),
            (format!(r#"{{{config},"fsLayers":null}}"#), true),
            (format!(r#"{{{config},"mediaType":"{OCI_INDEX}"}}"#), true),
            (r#"{"layers":[]}"#.to_owned(), false),
            (format!(r#"{{"config":{{"digest":"{D}","size":-1}}}}"#), false),
            (format!(r#"{{"config":{{"digest":"{}"}}}}"#, D.to_uppercase()), false),
            (r#"{"config":{"digest":"sha256:../../x"}}"#.to_owned(), false),
            (format!(r#"{{{config},"schemaVersion":2.5}}"#), false),
            (format!(r#"{{{config}}}x"#), false),
            ("[]".to_owned(), false),
        ] {
            let error = decode_manifest(bad.as_bytes()).expect_err(&bad);
            assert_eq!(matches!(error, GoError::NotAManifest), ours, "{bad}: {error:?}");
        }
        for bad in [
            r#"{"layers":[]}"#,
            r#"{"config":null}"#,
            &format!(r#"{{"mediaType":"{OCI_MANIFEST}"}}"#),
        ] {
            assert!(matches!(decode_index(bad.as_bytes()), Err(GoError::NotAnIndex)), "{bad}");
        }
        let many = format!("{{\"manifests\":[{}{{}}]}}", "{},".repeat(10_000));
        assert!(matches!(decode_index(many.as_bytes()), Err(GoError::Json(JsonError::Json(_)))));
        let deep = format!("{{\"x\":{}", "[".repeat(100_000));
        assert!(decode_index(deep.as_bytes()).is_err());
        assert!(matches!(
            decode_index(&vec![b' '; MAX_DOCUMENT + 1]),
            Err(GoError::Json(JsonError::TooLarge { .. }))
        ));
    }
}
