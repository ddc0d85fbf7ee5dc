//! Descriptors (image-spec descriptor.md), in Go's field order: encoded they are the bytes that Go
//! would write.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Points at a blob or manifest: what it is, its digest, and its size in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The kind of content. Not verified by registries; empty if an entry of an index lacks it.
    #[serde(default, deserialize_with = "null_is_default")]
    pub media_type: String,
    /// The digest of the content, which is fetched by it and checked against it.
    pub digest: Digest,
    /// The size of the content in bytes.
    pub size: u64,
    /// Other places to get the content from. They are preserved but never used.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub urls: Vec<String>,
    /// The author's annotations, by key.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_is_default"
    )]
    pub annotations: BTreeMap<String, String>,
    /// The content itself in base64. Not trusted until its digest is verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// In an image index: the platform of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// In a list of referrers: the type of the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

/// A platform as descriptors and configs state it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Platform {
    /// The CPU as Go names it, such as `amd64`; empty if it is not stated.
    #[serde(default)]
    pub architecture: String,
    /// The operating system as Go names it, such as `linux`; empty if it is not stated.
    #[serde(default)]
    pub os: String,
    /// The version of the operating system; Windows images state it.
    #[serde(rename = "os.version", default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// Features that the operating system must have, such as `win32k`.
    #[serde(
        rename = "os.features",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_is_default"
    )]
    pub os_features: Vec<String>,
    /// The variant of the CPU, such as `v8` of `arm64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Descriptor {
    /// The approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        /// The overhead of an allocation, and of an entry in a partly filled map.
        const PIECE: usize = 32;
        let text = |text: &String| text.len() + PIECE;
        let strings = [Some(&self.media_type), self.data.as_ref(), self.artifact_type.as_ref()];
        let platform = self.platform.iter().flat_map(|p| {
            [Some(&p.architecture), Some(&p.os), p.os_version.as_ref(), p.variant.as_ref()]
                .into_iter()
                .flatten()
                .chain(&p.os_features)
        });
        let annotation = |(key, value): (&String, &String)| {
            2 * size_of::<String>() + PIECE + text(key) + text(value)
        };
        size_of::<Descriptor>()
            + strings.into_iter().flatten().chain(platform).map(text).sum::<usize>()
            + self.urls.iter().map(|url| size_of::<String>() + text(url)).sum::<usize>()
            + self.annotations.iter().map(annotation).sum::<usize>()
    }

    /// A descriptor with only the three required fields.
    pub fn new(media_type: impl Into<String>, digest: Digest, size: u64) -> Descriptor {
        Descriptor {
            media_type: media_type.into(),
            digest,
            size,
            urls: Vec::new(),
            annotations: BTreeMap::new(),
            data: None,
            platform: None,
            artifact_type: None,
        }
    }

    /// The descriptor of `content`.
    pub fn of(media_type: impl Into<String>, content: &[u8]) -> Descriptor {
        Descriptor::new(media_type, Digest::sha256(content), content.len() as u64)
    }
}

/// Go writes an empty map as `null` where `omitempty` is missing.
pub fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
