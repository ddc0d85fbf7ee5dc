//! Image manifests and image indexes: OCI (image-spec manifest.md, image-index.md) and Docker's
//! version 2, schema 2.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::descriptor::{Descriptor, null_is_default};
use super::json::{self, JsonError, Level};
use super::{LayerKind, go};

/// The media type of an image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an image index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Docker's media type of an image manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Docker's media type of an image index, a manifest list.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// The media type of an image's config.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Docker's media type of an image's config.
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

/// The size limit of a manifest or index in bytes (distribution-spec, "Pushing manifests":
/// registries must accept 4 MiB).
pub const MAX_DOCUMENT: usize = 4 << 20;
/// The maximum number of layers in an image, or of manifests in an index.
pub const MAX_DESCRIPTORS: usize = 10_000;

/// The keys that are read. Other spellings of them are refused, because Go's decoder accepts them.
const TOP: Level = Level {
    keys: &[
        "schemaVersion",
        "mediaType",
        "artifactType",
        "config",
        "layers",
        "manifests",
        "fsLayers",
        "subject",
        "annotations",
    ],
    below: &[
        ("config", DESCRIPTOR),
        ("layers", DESCRIPTOR),
        ("manifests", DESCRIPTOR),
        ("subject", DESCRIPTOR),
    ],
};
const DESCRIPTOR: Level = Level {
    keys: &[
        "mediaType",
        "digest",
        "size",
        "urls",
        "annotations",
        "data",
        "platform",
        "artifactType",
    ],
    below: &[("platform", PLATFORM)],
};
const PLATFORM: Level =
    Level { keys: &["architecture", "os", "os.version", "os.features", "variant"], below: &[] };

/// An image manifest or an index of such manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum Manifest {
    /// The image of one platform.
    Image(ImageManifest),
    /// Usually the images of several platforms.
    Index(ImageIndex),
}

/// The image of one platform. Artifacts that use an image's manifest format are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageManifest {
    /// [`OCI_MANIFEST`] or [`DOCKER_MANIFEST`].
    pub media_type: &'static str,
    /// The image's config, which states its platform and what its containers run.
    pub config: Descriptor,
    /// The layers from the bottom up. [`LayerKind::of`] tells their kinds.
    pub layers: Vec<Descriptor>,
    /// The manifest that this one refers to.
    pub subject: Option<Descriptor>,
    /// The author's annotations, by key. They name the SOCI index of version 2.
    pub annotations: BTreeMap<String, String>,
}

/// Images by platform, and artifacts listed with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageIndex {
    /// [`OCI_INDEX`] or [`DOCKER_LIST`].
    pub media_type: &'static str,
    /// The manifests in the order of the document. Consumers take the first match.
    pub manifests: Vec<Descriptor>,
    /// The type of artifact, if it is one.
    pub artifact_type: Option<String>,
    /// The manifest that this one refers to.
    pub subject: Option<Descriptor>,
    /// The author's annotations, by key.
    pub annotations: BTreeMap<String, String>,
}

/// Why a document is not a usable image.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ManifestError {
    #[error("the manifest is not valid")]
    Json(#[from] JsonError),
    #[error(
        "this is a Docker schema 1 manifest, which carries no layer sizes and is no longer supported: \
         convert it with `skopeo copy --format v2s2`, or pull and push it again with a current engine"
    )]
    Schema1,
    #[error("unknown schema version {0} (expected 2)")]
    SchemaVersion(i64),
    /// GHSA-5j5w-g665-5m35: two parsers could see two different images.
    #[error(
        "the manifest has both layers and manifests, so readers could take it for two different things"
    )]
    Ambiguous,
    #[error("the manifest says it is {stated:?}, but came as {served:?}")]
    MediaTypeDisagrees { stated: String, served: String },
    #[error("the manifest says it is {media_type:?}, but has {found}")]
    Contents { media_type: String, found: &'static str },
    #[error("the manifest has neither layers nor manifests")]
    Neither,
    #[error("{0:?} is not a manifest or index of an image")]
    MediaType(String),
    /// A valid document, but not an image: nothing in it can be indexed.
    #[error("this is not an image but {what}")]
    NotAnImage { what: String },
    #[error("the manifest lists {0} descriptors; the limit is {MAX_DESCRIPTORS}")]
    TooMany(usize),
    #[error("the descriptor of {digest} claims {size} bytes")]
    Size { digest: String, size: u64 },
    #[error("the data in the descriptor of {digest} is not base64")]
    Data { digest: String },
    #[cfg(feature = "oci-spec")]
    #[error(transparent)]
    Digest(#[from] crate::digest::DigestError),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: Option<i64>,
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<serde_json::Value>,
    layers: Option<Vec<serde_json::Value>>,
    manifests: Option<Vec<serde_json::Value>>,
    subject: Option<serde_json::Value>,
    fs_layers: Option<serde_json::Value>,
    #[serde(default, deserialize_with = "null_is_default")]
    annotations: BTreeMap<String, String>,
}

/// Parses a manifest or index. `served_as` is the media type from the descriptor or the registry's
/// Content-Type, possibly with parameters.
///
/// # Errors
/// If the document is ambiguous, exceeds a limit, or is not an image
/// ([`ManifestError::NotAnImage`]).
pub fn parse(served_as: Option<&str>, bytes: &[u8]) -> Result<Manifest, ManifestError> {
    let served = served_as.map(essence).filter(|s| !is_vague(s));
    if let Some(served) = &served
        && is_schema1(served)
    {
        return Err(ManifestError::Schema1);
    }
    let raw: Raw = json::parse_levels(bytes, MAX_DOCUMENT, TOP)?;
    let stated = raw.media_type.as_deref().filter(|m| !m.is_empty());
    if stated.is_some_and(is_schema1) || raw.schema_version == Some(1) || raw.fs_layers.is_some() {
        return Err(ManifestError::Schema1);
    }
    if raw.manifests.is_some() && (raw.layers.is_some() || raw.config.is_some()) {
        return Err(ManifestError::Ambiguous);
    }
    if let (Some(stated), Some(served)) = (stated, &served)
        && !is_same_kind(stated, served)
    {
        return Err(ManifestError::MediaTypeDisagrees {
            stated: shown(stated),
            served: shown(served),
        });
    }
    let media_type = match stated.or(served.as_deref()) {
        Some(media_type) => known(media_type)?,
        None if raw.manifests.is_some() => OCI_INDEX,
        // Before image-spec 1.0.2 the field was optional. Docker always wrote it.
        None if raw.layers.is_some() || raw.config.is_some() => OCI_MANIFEST,
        None => return Err(ManifestError::Neither),
    };
    match raw.schema_version {
        Some(2) => {}
        other => return Err(ManifestError::SchemaVersion(other.unwrap_or(0))),
    }
    let contents = |found| ManifestError::Contents { media_type: media_type.to_owned(), found };
    match media_type {
        OCI_INDEX | DOCKER_LIST if raw.layers.is_some() || raw.config.is_some() => {
            Err(contents("layers"))
        }
        OCI_INDEX | DOCKER_LIST => index(media_type, raw).map(Manifest::Index),
        _ if raw.manifests.is_some() => Err(contents("manifests")),
        _ => image(media_type, raw).map(Manifest::Image),
    }
}

fn index(media_type: &'static str, raw: Raw) -> Result<ImageIndex, ManifestError> {
    Ok(ImageIndex {
        media_type,
        manifests: descriptors(raw.manifests.unwrap_or_default())?,
        artifact_type: raw.artifact_type.filter(|a| !a.is_empty()),
        subject: raw.subject.map(descriptor).transpose()?,
        annotations: raw.annotations,
    })
}

fn image(media_type: &'static str, raw: Raw) -> Result<ImageManifest, ManifestError> {
    let missing = |found| ManifestError::Contents { media_type: media_type.to_owned(), found };
    let config = descriptor(raw.config.ok_or_else(|| missing("no config"))?)?;
    let layers = descriptors(raw.layers.unwrap_or_default())?;
    let manifest = ImageManifest {
        media_type,
        config,
        layers,
        subject: raw.subject.map(descriptor).transpose()?,
        annotations: raw.annotations,
    };
    no_artifact(raw.artifact_type.as_deref(), manifest)
}

/// The manifest, if it is of an image.
pub(super) fn no_artifact(
    artifact_type: Option<&str>,
    manifest: ImageManifest,
) -> Result<ImageManifest, ManifestError> {
    match artifact(artifact_type, &manifest) {
        Some(what) => Err(ManifestError::NotAnImage { what }),
        None => Ok(manifest),
    }
}

/// A description of the artifact in a manifest; None for an image. An image has an image's config
/// and, unless it has no layers, at least one real layer.
fn artifact(artifact_type: Option<&str>, manifest: &ImageManifest) -> Option<String> {
    let config = manifest.config.media_type.as_str();
    let artifact_type = artifact_type.filter(|a| !a.is_empty());
    // Docker before 1.10 pushed configs as octet-stream.
    let image_config = matches!(config, OCI_CONFIG | DOCKER_CONFIG | "application/octet-stream");
    let layers = || manifest.layers.iter().map(|l| LayerKind::of(&l.media_type));
    let odd_layers =
        !manifest.layers.is_empty() && layers().all(|kind| kind == LayerKind::NotALayer);
    if image_config && !odd_layers && (artifact_type.is_none() || !manifest.layers.is_empty()) {
        return None;
    }
    let first = manifest.layers.first().map(|layer| layer.media_type.as_str());
    let types =
        [artifact_type, Some(config).filter(|_| !image_config), first.filter(|_| odd_layers)];
    let types: Vec<&str> =
        types.into_iter().flatten().filter(|t| *t != "application/vnd.oci.empty.v1+json").collect();
    let kind = types.iter().find_map(|t| named(t));
    Some(match (kind, types.first()) {
        (Some(kind), _) => kind.to_owned(),
        (None, Some(first)) => format!("an artifact of type {:?}", shown(first)),
        (None, None) => "an artifact without a type".to_owned(),
    })
}

/// The names of common artifacts.
fn named(media_type: &str) -> Option<&'static str> {
    const NAMES: [(&str, &str); 14] = [
        ("application/vnd.cncf.helm.", "a Helm chart"),
        ("application/vnd.dev.cosign.", "a cosign signature or attestation"),
        ("application/vnd.dev.sigstore.", "a sigstore bundle"),
        ("application/vnd.cncf.notary.", "a notation signature"),
        ("application/vnd.in-toto", "an attestation"),
        ("application/spdx", "an SBOM"),
        ("text/spdx", "an SBOM"),
        ("application/vnd.cyclonedx", "an SBOM"),
        ("application/vnd.amazon.soci.", "a SOCI index"),
        ("application/vnd.ociseek.fine.", "a fine index"),
        ("application/vnd.wasm.", "a WebAssembly module"),
        ("application/wasm", "a WebAssembly module"),
        ("application/vnd.docker.plugin.", "a Docker plugin"),
        ("application/vnd.ollama.", "an Ollama model"),
    ];
    NAMES.iter().find(|(prefix, _)| media_type.starts_with(prefix)).map(|(_, name)| *name)
}

fn descriptors(values: Vec<serde_json::Value>) -> Result<Vec<Descriptor>, ManifestError> {
    not_too_many(values.len())?;
    values.into_iter().map(descriptor).collect()
}

pub(super) fn not_too_many(descriptors: usize) -> Result<(), ManifestError> {
    if descriptors > MAX_DESCRIPTORS { Err(ManifestError::TooMany(descriptors)) } else { Ok(()) }
}

fn descriptor(value: serde_json::Value) -> Result<Descriptor, ManifestError> {
    checked(serde_json::from_value(value).map_err(|error| JsonError::Json(error.into()))?)
}

/// The descriptor, if its values are in range.
pub(super) fn checked(descriptor: Descriptor) -> Result<Descriptor, ManifestError> {
    // Sizes are int64 in the OCI specification.
    if i64::try_from(descriptor.size).is_err() {
        return Err(ManifestError::Size {
            digest: descriptor.digest.to_string(),
            size: descriptor.size,
        });
    }
    if descriptor.data.as_ref().is_some_and(|data| !go::is_base64(data)) {
        return Err(ManifestError::Data { digest: descriptor.digest.to_string() });
    }
    Ok(descriptor)
}

pub(super) fn known(media_type: &str) -> Result<&'static str, ManifestError> {
    let images = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST];
    match images.into_iter().find(|known| known.eq_ignore_ascii_case(media_type)) {
        Some(known) => Ok(known),
        None if media_type == "application/vnd.oci.artifact.manifest.v1+json" => {
            Err(ManifestError::NotAnImage { what: "an artifact manifest".to_owned() })
        }
        None => Err(ManifestError::MediaType(shown(media_type))),
    }
}

/// Whether two media types are equal, or both are those of an image manifest, or of an image index.
/// Some registries serve manifests with Docker's type for OCI's, or the reverse (Nexus before
/// 3.25): then the document's own type counts.
fn is_same_kind(stated: &str, served: &str) -> bool {
    let is_one_of = |kinds: [&str; 2], media_type: &str| {
        kinds.iter().any(|kind| kind.eq_ignore_ascii_case(media_type))
    };
    stated.eq_ignore_ascii_case(served)
        || [[OCI_MANIFEST, DOCKER_MANIFEST], [OCI_INDEX, DOCKER_LIST]]
            .into_iter()
            .any(|kinds| is_one_of(kinds, stated) && is_one_of(kinds, served))
}

/// A media type without its parameters.
fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Types that servers send as a fallback. The document's own type then decides.
pub fn is_vague(media_type: &str) -> bool {
    matches!(
        media_type,
        "" | "application/json" | "application/octet-stream" | "binary/octet-stream" | "text/plain"
    )
}

fn is_schema1(media_type: &str) -> bool {
    media_type.starts_with("application/vnd.docker.distribution.manifest.v1+")
}

fn shown(media_type: &str) -> String {
    media_type.chars().take(150).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: &str = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    fn desc(media_type: &str) -> String {
        format!(r#"{{"mediaType":"{media_type}","digest":"{D}","size":2}}"#)
    }

    fn image_of(own_type: &str, config: &str, layers: &[&str], more: &str) -> String {
        let layers: Vec<String> = layers.iter().map(|l| desc(l)).collect();
        let own = if own_type.is_empty() {
            String::new()
        } else {
            format!(r#""mediaType":"{own_type}","#)
        };
        format!(
            r#"{{"schemaVersion":2,{own}"config":{},"layers":[{}]{more}}}"#,
            desc(config),
            layers.join(",")
        )
    }

    const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    #[test]
    fn images_of_both_kinds_with_and_without_types() {
        for (own, served, want) in [
            (OCI_MANIFEST, None, OCI_MANIFEST),
            (OCI_MANIFEST, Some(OCI_MANIFEST), OCI_MANIFEST),
            (DOCKER_MANIFEST, Some(DOCKER_MANIFEST), DOCKER_MANIFEST),
            (DOCKER_MANIFEST, Some("application/json; charset=utf-8"), DOCKER_MANIFEST),
            (
                "",
                Some("application/vnd.docker.distribution.manifest.v2+json; charset=utf-8"),
                DOCKER_MANIFEST,
            ),
            ("", None, OCI_MANIFEST),
        ] {
            match parse(served, image_of(own, OCI_CONFIG, &[GZIP], "").as_bytes()) {
                Ok(Manifest::Image(image)) => {
                    assert_eq!((image.media_type, image.layers.len()), (want, 1));
                }
                other => panic!("{own} as {served:?}: {other:?}"),
            }
        }
        for own in [OCI_INDEX, DOCKER_LIST] {
            let index = format!(
                r#"{{"schemaVersion":2,"mediaType":"{own}","manifests":[{}]}}"#,
                desc(OCI_MANIFEST)
            );
            assert!(matches!(parse(Some(own), index.as_bytes()), Ok(Manifest::Index(_))));
        }
        assert!(matches!(
            parse(None, br#"{"schemaVersion":2,"manifests":[]}"#),
            Ok(Manifest::Index(_))
        ));
        let empty = image_of(OCI_MANIFEST, OCI_CONFIG, &[], r#","annotations":null"#)
            .replace(r#""layers":[]"#, r#""layers":null"#);
        assert!(
            matches!(parse(None, empty.as_bytes()), Ok(Manifest::Image(_))),
            "0 layers are an image"
        );
    }

    #[test]
    fn descriptors_that_go_reads_differently_are_refused() {
        let with = |more: &str| {
            image_of(OCI_MANIFEST, OCI_CONFIG, &[GZIP], "").replace("}]", &format!("{more}}}]"))
        };
        for more in
            [r#","data":"e30=""#, r#","data":"e\n30=""#, r#","data":null"#, r#","digset":1"#]
        {
            assert!(parse(None, with(more).as_bytes()).is_ok(), "{more}");
        }
        for more in [r#","Digest":"sha256:0""#, r#","SIZE":7"#, r#","platform":{"OS":"linux"}"#] {
            let refused = parse(None, with(more).as_bytes());
            assert!(
                matches!(refused, Err(ManifestError::Json(JsonError::Spelling { .. }))),
                "{more}: {refused:?}"
            );
        }
        for more in [r#","data":"egA==""#, r#","data":"e30""#] {
            let refused = parse(None, with(more).as_bytes());
            assert!(matches!(refused, Err(ManifestError::Data { .. })), "{more}: {refused:?}");
        }
    }

    #[test]
    fn ambiguous_manifests_are_refused() {
        let manifests = format!(r#","manifests":[{}]"#, desc(OCI_MANIFEST));
        for own in [OCI_MANIFEST, OCI_INDEX, ""] {
            let both = image_of(own, OCI_CONFIG, &[GZIP], &manifests);
            assert!(matches!(parse(None, both.as_bytes()), Err(ManifestError::Ambiguous)));
        }
        let image = image_of(OCI_MANIFEST, OCI_CONFIG, &[GZIP], "");
        for other in [DOCKER_LIST, OCI_INDEX, "text/html"] {
            let result = parse(Some(other), image.as_bytes());
            assert!(matches!(result, Err(ManifestError::MediaTypeDisagrees { .. })), "{result:?}");
        }
        let image = image_of("", OCI_CONFIG, &[GZIP], "");
        assert!(matches!(
            parse(Some(OCI_INDEX), image.as_bytes()),
            Err(ManifestError::Contents { .. })
        ));
        let index = br#"{"schemaVersion":2,"manifests":[]}"#;
        assert!(matches!(parse(Some(OCI_MANIFEST), index), Err(ManifestError::Contents { .. })));
        let spelled = image_of(OCI_MANIFEST, OCI_CONFIG, &[GZIP], r#","Manifests":[]"#);
        assert!(matches!(
            parse(None, spelled.as_bytes()),
            Err(ManifestError::Json(JsonError::Spelling { .. }))
        ));
    }

    #[test]
    fn the_other_family_s_type_does_not_matter() {
        for (own, served) in [(OCI_MANIFEST, DOCKER_MANIFEST), (DOCKER_MANIFEST, OCI_MANIFEST)] {
            match parse(Some(served), image_of(own, OCI_CONFIG, &[GZIP], "").as_bytes()) {
                Ok(Manifest::Image(image)) => assert_eq!(image.media_type, own),
                other => panic!("{own} as {served}: {other:?}"),
            }
        }
        for (own, served) in [(OCI_INDEX, DOCKER_LIST), (DOCKER_LIST, OCI_INDEX)] {
            let index = format!(
                r#"{{"schemaVersion":2,"mediaType":"{own}","manifests":[{{"digest":"{D}","size":2}}]}}"#
            );
            match parse(Some(served), index.as_bytes()) {
                Ok(Manifest::Index(index)) => {
                    assert_eq!(
                        (index.media_type, index.manifests[0].media_type.as_str()),
                        (own, "")
                    );
                }
                other => panic!("{own} as {served}: {other:?}"),
            }
        }
    }

    #[test]
    fn schema_1_is_refused() {
        for (served, text) in [
            (None, r#"{"schemaVersion":1,"name":"x","fsLayers":[]}"#),
            (None, r#"{"schemaVersion":2,"fsLayers":[]}"#),
            (Some("application/vnd.docker.distribution.manifest.v1+prettyjws"), "{}"),
            (Some("application/vnd.docker.distribution.manifest.v1+json"), "not even JSON"),
        ] {
            match parse(served, text.as_bytes()) {
                Err(e @ ManifestError::Schema1) => {
                    assert!(e.to_string().contains("skopeo copy --format v2s2"))
                }
                other => panic!("{other:?}"),
            }
        }
        let none = parse(None, br#"{"layers":[],"config":{}}"#);
        assert!(matches!(none, Err(ManifestError::SchemaVersion(0))), "{none:?}");
        assert!(matches!(parse(None, br#"{"schemaVersion":2}"#), Err(ManifestError::Neither)));
    }

    #[test]
    fn artifacts_are_named() {
        let empty = "application/vnd.oci.empty.v1+json";
        for (config, layers, more, what) in [
            (
                "application/vnd.cncf.helm.config.v1+json",
                &["application/vnd.cncf.helm.chart.content.v1.tar+gzip"][..],
                "",
                "Helm",
            ),
            (OCI_CONFIG, &["application/vnd.dev.cosign.simplesigning.v1+json"], "", "cosign"),
            (
                OCI_CONFIG,
                &["application/vnd.in-toto+json", "application/vnd.in-toto+json"],
                "",
                "an attestation",
            ),
            (empty, &[empty], r#","artifactType":"application/spdx+json""#, "SBOM"),
            ("application/vnd.wasm.config.v0+json", &["application/wasm"], "", "WebAssembly"),
            (
                "application/vnd.amazon.soci.index.v1+json",
                &["application/octet-stream"],
                "",
                "SOCI index",
            ),
            (empty, &[GZIP], r#","artifactType":"application/vnd.acme.rocket""#, "vnd.acme.rocket"),
            (empty, &[], "", "without a type"),
            (
                OCI_CONFIG,
                &[],
                r#","artifactType":"application/vnd.acme.rocket""#,
                "vnd.acme.rocket",
            ),
        ] {
            match parse(None, image_of(OCI_MANIFEST, config, layers, more).as_bytes()) {
                Err(ManifestError::NotAnImage { what: said }) => {
                    assert!(said.contains(what), "{said}")
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        // An image may have an artifact type too.
        let both = image_of(
            OCI_MANIFEST,
            OCI_CONFIG,
            &[GZIP],
            r#","artifactType":"application/vnd.acme.rocket""#,
        );
        assert!(matches!(parse(None, both.as_bytes()), Ok(Manifest::Image(_))));
        let mixed = image_of(OCI_MANIFEST, OCI_CONFIG, &["application/vnd.x", GZIP], "");
        assert!(matches!(parse(None, mixed.as_bytes()), Ok(Manifest::Image(_))));
        let other =
            r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.artifact.manifest.v1+json"}"#;
        assert!(matches!(parse(None, other.as_bytes()), Err(ManifestError::NotAnImage { .. })));
    }

    #[test]
    fn invalid_descriptors_are_refused_and_limits_hold() {
        let good = image_of(OCI_MANIFEST, OCI_CONFIG, &[GZIP], "");
        for size in ["-1", "1.5", "\"2\"", "18446744073709551616", "null", "1e3"] {
            let bad = good.replace(r#""size":2"#, &format!(r#""size":{size}"#));
            assert!(matches!(parse(None, bad.as_bytes()), Err(ManifestError::Json(_))), "{size}");
        }
        let bad = good.replace(r#""size":2"#, r#""size":9223372036854775808"#);
        assert!(matches!(parse(None, bad.as_bytes()), Err(ManifestError::Size { .. })));
        for digest in ["sha256:00", "sha256:../../etc/passwd", "md5:00", ""] {
            let bad = good.replace(D, digest);
            assert!(matches!(parse(None, bad.as_bytes()), Err(ManifestError::Json(_))), "{digest}");
        }
        let upper = good.replace(D, &D.to_uppercase().replace("SHA", "sha"));
        assert!(parse(None, upper.as_bytes()).is_err());
        let many = format!(
            r#"{{"schemaVersion":2,"manifests":[{}]}}"#,
            vec![desc(OCI_MANIFEST); MAX_DESCRIPTORS + 1].join(",")
        );
        assert!(matches!(parse(None, many.as_bytes()), Err(ManifestError::TooMany(10_001))));
        let large = format!("{good}{}", " ".repeat(MAX_DOCUMENT));
        assert!(matches!(
            parse(None, large.as_bytes()),
            Err(ManifestError::Json(JsonError::TooLarge { .. }))
        ));
        let sha512 = good.replace(
            D,
            &crate::digest::Digest::of(crate::digest::Algorithm::Sha512, b"{}").to_string(),
        );
        assert!(parse(None, sha512.as_bytes()).is_ok());
    }
}
