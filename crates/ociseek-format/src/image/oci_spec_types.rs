//! Conversions from and to the types of the crate oci-spec, which other Rust programs use.
//!
//! They go field by field: as JSON, a platform would lose `os.version` and `os.features`, for which
//! oci-spec 0.10 has other names in a descriptor. Annotations keep their values and lose their
//! order. What comes from oci-spec is checked like a parsed document.

use std::collections::{BTreeMap, HashMap};

use oci_spec::image as spec;

use super::descriptor::{Descriptor, Platform};
use super::manifest::{
    self, DOCKER_LIST, DOCKER_MANIFEST, ImageIndex, ImageManifest, ManifestError, OCI_INDEX,
    OCI_MANIFEST,
};
use crate::digest::{Digest, DigestError};

impl From<Digest> for spec::Digest {
    fn from(digest: Digest) -> spec::Digest {
        let Ok(digest) = spec::Digest::try_from(digest.to_string()) else {
            unreachable!("a registered algorithm and its number of hex digits")
        };
        digest
    }
}

impl TryFrom<&spec::Digest> for Digest {
    type Error = DigestError;

    fn try_from(digest: &spec::Digest) -> Result<Digest, DigestError> {
        digest.as_ref().parse()
    }
}

impl From<&Platform> for spec::Platform {
    fn from(platform: &Platform) -> spec::Platform {
        let mut to = spec::Platform::default();
        to.set_architecture(match platform.architecture.as_str() {
            // oci-spec 0.10 takes it for arm64be.
            "armbe" => spec::Arch::ARMbe,
            other => other.into(),
        })
        .set_os(platform.os.as_str().into())
        .set_os_version(platform.os_version.clone())
        .set_os_features(filled(&platform.os_features))
        .set_variant(platform.variant.clone());
        to
    }
}

impl From<&spec::Platform> for Platform {
    fn from(platform: &spec::Platform) -> Platform {
        Platform {
            architecture: platform.architecture().to_string(),
            os: platform.os().to_string(),
            os_version: platform.os_version().clone(),
            os_features: platform.os_features().clone().unwrap_or_default(),
            variant: platform.variant().clone(),
        }
    }
}

impl From<&Descriptor> for spec::Descriptor {
    fn from(from: &Descriptor) -> spec::Descriptor {
        let mut to = spec::Descriptor::new(from.media_type.as_str().into(), from.size, from.digest);
        to.set_urls(filled(&from.urls))
            .set_annotations(annotations(&from.annotations))
            .set_data(from.data.clone())
            .set_platform(from.platform.as_ref().map(spec::Platform::from))
            .set_artifact_type(from.artifact_type.as_deref().map(spec::MediaType::from));
        to
    }
}

impl TryFrom<&spec::Descriptor> for Descriptor {
    type Error = ManifestError;

    /// # Errors
    /// If the digest's algorithm is not supported, or another value is out of range.
    fn try_from(from: &spec::Descriptor) -> Result<Descriptor, ManifestError> {
        manifest::checked(Descriptor {
            urls: from.urls().clone().unwrap_or_default(),
            annotations: from.annotations().clone().unwrap_or_default().into_iter().collect(),
            data: from.data().clone(),
            platform: from.platform().as_ref().map(Platform::from),
            artifact_type: from.artifact_type().as_ref().map(spec::MediaType::to_string),
            ..Descriptor::new(
                from.media_type().to_string(),
                Digest::try_from(from.digest())?,
                from.size(),
            )
        })
    }
}

impl From<&ImageManifest> for spec::ImageManifest {
    fn from(from: &ImageManifest) -> spec::ImageManifest {
        let layers = from.layers.iter().map(spec::Descriptor::from).collect::<Vec<_>>();
        let required = spec::ImageManifestBuilder::default().schema_version(spec::SCHEMA_VERSION);
        let Ok(mut to) = required.config(&from.config).layers(layers).build() else {
            unreachable!("all required fields are set")
        };
        to.set_media_type(Some(from.media_type.into()))
            .set_subject(from.subject.as_ref().map(spec::Descriptor::from))
            .set_annotations(annotations(&from.annotations));
        to
    }
}

impl TryFrom<&spec::ImageManifest> for ImageManifest {
    type Error = ManifestError;

    /// # Errors
    /// If it is not the manifest of an image, as for [`manifest::parse`].
    fn try_from(from: &spec::ImageManifest) -> Result<ImageManifest, ManifestError> {
        let media_type = media_type(from.schema_version(), from.media_type(), OCI_MANIFEST)?;
        if !matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST) {
            return Err(ManifestError::Contents {
                media_type: media_type.to_owned(),
                found: "layers",
            });
        }
        let manifest = ImageManifest {
            media_type,
            config: Descriptor::try_from(from.config())?,
            layers: descriptors(from.layers())?,
            subject: from.subject().as_ref().map(Descriptor::try_from).transpose()?,
            annotations: from.annotations().clone().unwrap_or_default().into_iter().collect(),
        };
        manifest::no_artifact(from.artifact_type().as_ref().map(AsRef::as_ref), manifest)
    }
}

impl From<&ImageIndex> for spec::ImageIndex {
    fn from(from: &ImageIndex) -> spec::ImageIndex {
        let mut to = spec::ImageIndex::default();
        to.set_media_type(Some(from.media_type.into()))
            .set_manifests(from.manifests.iter().map(spec::Descriptor::from).collect())
            .set_artifact_type(from.artifact_type.as_deref().map(spec::MediaType::from))
            .set_subject(from.subject.as_ref().map(spec::Descriptor::from))
            .set_annotations(annotations(&from.annotations));
        to
    }
}

impl TryFrom<&spec::ImageIndex> for ImageIndex {
    type Error = ManifestError;

    /// # Errors
    /// If it is not an image index, as for [`manifest::parse`].
    fn try_from(from: &spec::ImageIndex) -> Result<ImageIndex, ManifestError> {
        let media_type = media_type(from.schema_version(), from.media_type(), OCI_INDEX)?;
        if !matches!(media_type, OCI_INDEX | DOCKER_LIST) {
            return Err(ManifestError::Contents {
                media_type: media_type.to_owned(),
                found: "manifests",
            });
        }
        Ok(ImageIndex {
            media_type,
            manifests: descriptors(from.manifests())?,
            artifact_type: from
                .artifact_type()
                .as_ref()
                .map(spec::MediaType::to_string)
                .filter(|kind| !kind.is_empty()),
            subject: from.subject().as_ref().map(Descriptor::try_from).transpose()?,
            annotations: from.annotations().clone().unwrap_or_default().into_iter().collect(),
        })
    }
}

fn media_type(
    schema_version: u32,
    stated: &Option<spec::MediaType>,
    default: &'static str,
) -> Result<&'static str, ManifestError> {
    if schema_version != 2 {
        return Err(ManifestError::SchemaVersion(schema_version.into()));
    }
    stated
        .as_ref()
        .map(AsRef::as_ref)
        .filter(|stated: &&str| !stated.is_empty())
        .map_or(Ok(default), manifest::known)
}

fn descriptors(from: &[spec::Descriptor]) -> Result<Vec<Descriptor>, ManifestError> {
    manifest::not_too_many(from.len())?;
    from.iter().map(Descriptor::try_from).collect()
}

fn filled(values: &[String]) -> Option<Vec<String>> {
    Some(values.to_vec()).filter(|values| !values.is_empty())
}

fn annotations(from: &BTreeMap<String, String>) -> Option<HashMap<String, String>> {
    Some(from.clone().into_iter().collect()).filter(|map: &HashMap<_, _>| !map.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::OCI_CONFIG;
    use crate::image::{Manifest, OCI_LAYER};

    /// A descriptor that has every field.
    fn full(media_type: &str) -> Descriptor {
        let platform = Platform {
            architecture: "armbe".to_owned(),
            os: "windows".to_owned(),
            os_version: Some("10.0.1".to_owned()),
            os_features: vec!["win32k".to_owned()],
            variant: Some("v7".to_owned()),
        };
        Descriptor {
            urls: vec!["https://registry.example/x".to_owned()],
            annotations: [("b", "2"), ("a", "1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            data: Some("e30=".to_owned()),
            platform: Some(platform),
            artifact_type: Some("application/vnd.acme.rocket".to_owned()),
            ..Descriptor::of(media_type, b"{}")
        }
    }

    #[test]
    fn every_field_comes_back() {
        let annotations = full(OCI_CONFIG).annotations;
        let subject = Some(full(OCI_MANIFEST));
        for media_type in [OCI_MANIFEST, DOCKER_MANIFEST] {
            let config = full(OCI_CONFIG);
            let layers = vec![full(OCI_LAYER), full(OCI_LAYER)];
            let ours = ImageManifest {
                media_type,
                config,
                layers,
                subject: subject.clone(),
                annotations: annotations.clone(),
            };
            let theirs = spec::ImageManifest::from(&ours);
            assert_eq!(ImageManifest::try_from(&theirs).expect("an image"), ours);
            // They agree about a document that has no platform.
            let plain = ImageManifest {
                layers: vec![Descriptor { platform: None, ..full(OCI_LAYER) }],
                subject: None,
                config: Descriptor::of(OCI_CONFIG, b"{}"),
                ..ours
            };
            let text = spec::ImageManifest::from(&plain).to_string().expect("JSON");
            let parsed = manifest::parse(None, text.as_bytes()).expect("an image");
            assert_eq!(parsed, Manifest::Image(plain));
        }
        for media_type in [OCI_INDEX, DOCKER_LIST] {
            let ours = ImageIndex {
                media_type,
                manifests: vec![full(OCI_MANIFEST)],
                artifact_type: Some("application/vnd.acme.rocket".to_owned()),
                subject: subject.clone(),
                annotations: annotations.clone(),
            };
            assert_eq!(
                ImageIndex::try_from(&spec::ImageIndex::from(&ours)).expect("an index"),
                ours
            );
        }
        let sha512 = Digest::of(crate::digest::Algorithm::Sha512, b"x");
        assert_eq!(Digest::try_from(&spec::Digest::from(sha512)), Ok(sha512));
    }

    #[test]
    fn what_is_refused_in_a_document_is_refused_here() {
        let image = |change: &dyn Fn(&mut spec::ImageManifest)| {
            let ours = ImageManifest {
                media_type: OCI_MANIFEST,
                config: Descriptor::of(OCI_CONFIG, b"{}"),
                layers: vec![Descriptor::of(OCI_LAYER, b"x")],
                subject: None,
                annotations: Default::default(),
            };
            let mut theirs = spec::ImageManifest::from(&ours);
            change(&mut theirs);
            ImageManifest::try_from(&theirs)
        };
        let layer = |change: &dyn Fn(&mut spec::Descriptor)| {
            image(&|theirs| change(&mut theirs.layers_mut()[0]))
        };
        assert_eq!(image(&|_| {}).expect("an image").media_type, OCI_MANIFEST);
        let sha384 =
            format!("sha384:{}", "0".repeat(96)).parse::<spec::Digest>().expect("a digest");
        let refused = layer(&|layer| {
            layer.set_digest(sha384.clone());
        });
        assert!(
            matches!(refused, Err(ManifestError::Digest(DigestError::Algorithm(_)))),
            "{refused:?}"
        );
        let refused = layer(&|layer| {
            layer.set_size(u64::MAX);
        });
        assert!(matches!(refused, Err(ManifestError::Size { .. })), "{refused:?}");
        let refused = layer(&|layer| {
            layer.set_data(Some("e30".to_owned()));
        });
        assert!(matches!(refused, Err(ManifestError::Data { .. })), "{refused:?}");
        let refused = image(&|theirs| {
            theirs.set_schema_version(1);
        });
        assert!(matches!(refused, Err(ManifestError::SchemaVersion(1))), "{refused:?}");
        let refused = image(&|theirs| {
            theirs.set_media_type(Some(OCI_INDEX.into()));
        });
        assert!(matches!(refused, Err(ManifestError::Contents { .. })), "{refused:?}");
        let refused = image(&|theirs| {
            theirs.set_config(
                (&Descriptor::of("application/vnd.cncf.helm.config.v1+json", b"{}")).into(),
            );
            theirs.set_layers(Vec::new());
        });
        assert!(matches!(refused, Err(ManifestError::NotAnImage { .. })), "{refused:?}");
        let many = vec![
            spec::Descriptor::from(&Descriptor::of(OCI_LAYER, b"x"));
            manifest::MAX_DESCRIPTORS + 1
        ];
        let refused = image(&|theirs| {
            theirs.set_layers(many.clone());
        });
        assert!(matches!(refused, Err(ManifestError::TooMany(10_001))), "{refused:?}");
        let mut index = spec::ImageIndex::default();
        index.set_media_type(Some(OCI_MANIFEST.into()));
        let refused = ImageIndex::try_from(&index);
        assert!(matches!(refused, Err(ManifestError::Contents { .. })), "{refused:?}");
    }
}
