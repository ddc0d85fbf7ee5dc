//! Resolves an image's name to the manifests of its platforms.

mod walk;

pub use walk::host_architecture;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use ociseek_format::digest::Digest;
use ociseek_format::image::config::{self, ConfigError, MAX_CONFIG};
use ociseek_format::image::enabled::is_enabled;
use ociseek_format::image::manifest::{self, Manifest, ManifestError};
use ociseek_format::image::{Descriptor, ImageManifest, Platform};
use ociseek_format::progress::Progress;
use ociseek_store::blob::{Document, Target};
use ociseek_store::{Source, StoreError};

/// Why a name cannot be resolved to the wanted manifests.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("cannot {} the image", if .0.is_not_found() { "find" } else { "read" })]
    Find(#[source] StoreError),
    #[error("cannot read {what} {digest}")]
    Document { what: &'static str, digest: Digest, source: StoreError },
    /// It is missing or damaged. `is_enabled` tells whether the image is a SOCI-enabled one.
    #[error("cannot read {what} {digest}, which the image index lists")]
    Lost { what: &'static str, digest: Digest, is_enabled: bool, source: StoreError },
    #[error("{digest} cannot be used")]
    NotAnImage { digest: Digest, source: ManifestError },
    #[error("{what} {digest} has {found} bytes, but its descriptor says {expected}")]
    Size { what: &'static str, digest: Digest, expected: u64, found: u64 },
    #[error("cannot determine the image's platform from its config {digest}")]
    Config { digest: Digest, source: ConfigError },
    #[error("{0} is listed as an image manifest, but is an image index")]
    NotAManifest(Digest),
    #[error("image index {digest} is nested more than {limit} deep")]
    TooDeep { digest: Digest, limit: usize },
    #[error("image index {digest} holds more than {limit} manifests, nested ones included")]
    TooMany { digest: Digest, limit: usize },
    #[error("image index {0} lists no image")]
    NoImage(Digest),
    #[error("the image has no manifest for {wanted}; it has {available}")]
    NoPlatform { wanted: String, available: String },
}

impl ResolveError {
    /// Whether the document is valid, but neither an image nor an index that lists one.
    pub fn is_no_image(&self) -> bool {
        matches!(
            self,
            ResolveError::NoImage(_)
                | ResolveError::NotAnImage { source: ManifestError::NotAnImage { .. }, .. }
        )
    }
}

/// Which of an image's platforms to use.
#[derive(Debug, Clone, Copy)]
pub enum PlatformChoice<'a> {
    /// All platforms of the image.
    All,
    /// These platforms, which must all exist.
    Each(&'a [Platform]),
    /// The platform that would run here, or the only one.
    Host,
}

impl<'a> PlatformChoice<'a> {
    /// These platforms; without any, [`PlatformChoice::All`].
    pub fn each_or_all(platforms: &'a [Platform]) -> PlatformChoice<'a> {
        if platforms.is_empty() { PlatformChoice::All } else { PlatformChoice::Each(platforms) }
    }

    /// This platform, or without one [`PlatformChoice::Host`].
    pub fn of(platform: Option<&'a Platform>) -> PlatformChoice<'a> {
        platform.map_or(PlatformChoice::Host, |platform| {
            PlatformChoice::Each(std::slice::from_ref(platform))
        })
    }

    /// The platforms that must exist.
    fn required(self) -> &'a [Platform] {
        match self {
            PlatformChoice::Each(platforms) => platforms,
            PlatformChoice::All | PlatformChoice::Host => &[],
        }
    }
}

/// The content of an image's name.
#[derive(Debug)]
pub struct ResolvedImage {
    /// The digest of the manifest or image index.
    pub digest: Digest,
    /// The manifests in the order of the image index; at least one.
    pub manifests: Vec<PlatformManifest>,
    /// Artifacts that the image index lists in addition to its images.
    pub artifacts: Vec<Descriptor>,
}

/// The manifest of one platform.
#[derive(Debug, Clone)]
pub struct PlatformManifest {
    /// Only media type, digest and size.
    pub descriptor: Descriptor,
    /// None if neither image index nor config states it.
    pub platform: Option<Platform>,
    /// The image's config.
    pub config: Descriptor,
    /// The layers from the bottom up.
    pub layers: Vec<Descriptor>,
    /// The annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

/// Fetches the documents between `root` and the manifests of the `wanted` platforms.
///
/// # Errors
/// If one of them cannot be fetched or is not valid, or a wanted platform does not exist.
pub async fn resolve(
    source: &Source,
    root: &Target,
    wanted: PlatformChoice<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<ResolvedImage, ResolveError> {
    let document = source.manifest(root).await.map_err(ResolveError::Find)?;
    let manifest = parse(&document)?;
    resolve_document(source, &document, manifest, wanted, progress).await
}

/// Like [`resolve`], from a document that was already fetched and parsed.
///
/// # Errors
/// As [`resolve`].
pub async fn resolve_document(
    source: &Source,
    document: &Document,
    manifest: Manifest,
    wanted: PlatformChoice<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<ResolvedImage, ResolveError> {
    let digest = document.digest;
    let is_enabled = is_enabled(&manifest);
    let (manifests, artifacts) = match manifest {
        Manifest::Image(image) => (vec![alone(source, document, image, wanted).await?], Vec::new()),
        Manifest::Index(index) => {
            walk::of_index(source, digest, index, is_enabled, wanted, progress).await?
        }
    };
    Ok(ResolvedImage { digest, manifests, artifacts })
}

/// Parses a document.
///
/// # Errors
/// If it is not a valid image ([`ResolveError::NotAnImage`]).
pub fn parse(document: &Document) -> Result<Manifest, ResolveError> {
    manifest::parse(Some(&document.media_type), &document.bytes)
        .map_err(|source| ResolveError::NotAnImage { digest: document.digest, source })
}

/// An image without an image index. Only its config states its platform, which is only needed if
/// one was requested.
async fn alone(
    source: &Source,
    document: &Document,
    image: ImageManifest,
    wanted: PlatformChoice<'_>,
) -> Result<PlatformManifest, ResolveError> {
    let platform = stated(source, &image.config, wanted).await?;
    Ok(PlatformManifest { platform, ..PlatformManifest::alone(document, image) })
}

/// The platform in the `config` of an image without an image index.
pub(super) async fn stated(
    source: &Source,
    config: &Descriptor,
    wanted: PlatformChoice<'_>,
) -> Result<Option<Platform>, ResolveError> {
    checked(platform(source, config).await, wanted)
}

/// The platform of an image without an image index. It must be the wanted one, if any.
pub(super) fn checked(
    platform: Result<Platform, ResolveError>,
    wanted: PlatformChoice<'_>,
) -> Result<Option<Platform>, ResolveError> {
    let wanted = wanted.required();
    let platform = match platform {
        Ok(platform) => platform,
        // Layers can be read even if the config is missing or not valid.
        Err(_) if wanted.is_empty() => return Ok(None),
        Err(error) => return Err(error),
    };
    match wanted.iter().find(|wanted| !platform.matches(wanted)) {
        Some(missing) => {
            Err(no_platform(std::slice::from_ref(missing), std::slice::from_ref(&platform)))
        }
        None => Ok(Some(platform)),
    }
}

impl PlatformManifest {
    pub(super) fn new(
        descriptor: Descriptor,
        platform: Option<Platform>,
        image: ImageManifest,
    ) -> PlatformManifest {
        let ImageManifest { config, layers, annotations, .. } = image;
        PlatformManifest { descriptor, platform, config, layers, annotations }
    }

    /// For an image without an image index, whose config was not read for its platform.
    pub(super) fn alone(document: &Document, image: ImageManifest) -> PlatformManifest {
        let size = document.bytes.len() as u64;
        // containerd builds the descriptor of a tagged manifest in the same way, with the media
        // type from the response.
        let descriptor = Descriptor::new(image.media_type, document.digest, size);
        PlatformManifest::new(descriptor, None, image)
    }
}

async fn platform(source: &Source, descriptor: &Descriptor) -> Result<Platform, ResolveError> {
    let unread =
        |source| ResolveError::Document { what: "config", digest: descriptor.digest, source };
    let bytes = config(source, descriptor).await.map_err(unread)?;
    platform_in(descriptor, &bytes)
}

/// The config of an image.
///
/// # Errors
/// If it cannot be fetched, or exceeds the size limit of configs.
pub(super) async fn config(source: &Source, config: &Descriptor) -> Result<Bytes, StoreError> {
    source.document_blob(config, MAX_CONFIG as u64).await
}

/// The platform that a config states.
pub(super) fn platform_in(config: &Descriptor, bytes: &[u8]) -> Result<Platform, ResolveError> {
    config::platform(bytes).map_err(|source| ResolveError::Config { digest: config.digest, source })
}

fn no_platform(wanted: &[Platform], available: &[Platform]) -> ResolveError {
    let list = |platforms: &[Platform]| {
        let names = platforms.iter().map(Platform::to_string);
        // A SOCI-enabled image lists its index as a manifest of the same platform.
        names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
    };
    ResolveError::NoPlatform { wanted: list(wanted), available: list(available) }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::{PlatformChoice, ResolveError, resolve};
    use ociseek_format::image::manifest::{OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
    use ociseek_format::image::soci::INDEX_V2;
    use ociseek_format::image::{Descriptor, OCI_LAYER, Platform};
    use ociseek_format::progress::{Progress, ProgressEvent};
    use ociseek_store::Source;
    use ociseek_store::blob::Target;
    use ociseek_store::layout::Layout;

    #[derive(Default)]
    pub(crate) struct Warnings(pub(crate) Mutex<Vec<String>>);

    impl Progress for Warnings {
        fn report(&self, event: ProgressEvent) {
            if let ProgressEvent::Warning(text) = event {
                self.0.lock().unwrap().push(text);
            }
        }
    }

    pub(crate) struct Store {
        pub(crate) layout: Layout,
        _dir: tempfile::TempDir,
    }

    impl Store {
        pub(crate) fn new() -> Store {
            let dir = tempfile::tempdir().unwrap();
            Store { layout: Layout::open_or_new(&dir.path().join("l")).unwrap(), _dir: dir }
        }

        pub(crate) fn put(&self, media_type: &str, document: &Value) -> Descriptor {
            let bytes = document.to_string();
            let descriptor = Descriptor::of(media_type, bytes.as_bytes());
            self.layout.write_blob(&descriptor, bytes.as_bytes()).unwrap();
            descriptor
        }

        pub(crate) fn image(&self, architecture: &str) -> Descriptor {
            let config =
                self.put(OCI_CONFIG, &json!({"os": "linux", "architecture": architecture}));
            let layer = self.put(OCI_LAYER, &json!(architecture));
            self.put(
                OCI_MANIFEST,
                &json!({"schemaVersion": 2, "config": config, "layers": [layer]}),
            )
        }

        fn sbom(&self) -> Descriptor {
            let empty = self.put("application/vnd.oci.empty.v1+json", &json!({}));
            let layer = self.put("application/spdx+json", &json!({"spdx": 1}));
            self.put(
            OCI_MANIFEST,
            &json!({"schemaVersion": 2, "artifactType": "application/spdx+json", "config": empty, "layers": [layer]}),
        )
        }

        /// The platforms of an index with these entries, and the warnings.
        fn resolve(
            &self,
            entries: &[Value],
            wanted: &[&str],
        ) -> (Result<Vec<String>, ResolveError>, Vec<String>) {
            let wanted: Vec<Platform> =
                wanted.iter().map(|platform| platform.parse().unwrap()).collect();
            let index = self.put(
                OCI_INDEX,
                &json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}),
            );
            let source = Source::Layout(Arc::new(self.layout.clone()));
            let warnings = Arc::new(Warnings::default());
            let progress: Arc<dyn Progress> = warnings.clone();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let wanted = PlatformChoice::each_or_all(&wanted);
            let resolved = runtime.block_on(resolve(
                &source,
                &Target::Digest(index.digest),
                wanted,
                &progress,
            ));
            let platforms = resolved.map(|image| {
                let platforms = image.manifests.into_iter().map(|manifest| manifest.platform);
                platforms.map(|platform| platform.unwrap().to_string()).collect()
            });
            let warnings = warnings.0.lock().unwrap().clone();
            (platforms, warnings)
        }
    }

    /// An entry with more fields; null removes one.
    pub(crate) fn entry(descriptor: &Descriptor, more: Value) -> Value {
        let mut entry = serde_json::to_value(descriptor).unwrap();
        let fields = entry.as_object_mut().unwrap();
        for (key, value) in more.as_object().unwrap() {
            match value {
                Value::Null => drop(fields.remove(key)),
                value => drop(fields.insert(key.clone(), value.clone())),
            }
        }
        entry
    }

    pub(crate) fn on(architecture: &str) -> Value {
        json!({"platform": {"os": "linux", "architecture": architecture}})
    }

    #[test]
    fn an_image_is_one_whatever_its_entry_says() {
        let store = Store::new();
        let amd = store.image("amd64");
        let arm = store.image("arm64");
        let platform = json!({"os": "linux", "architecture": "arm64"});
        for hints in [
            json!({"artifactType": OCI_CONFIG, "platform": platform}),
            json!({"artifactType": "application/vnd.docker.container.image.v1+json", "platform": platform}),
            json!({"artifactType": "application/vnd.acme.rocket", "platform": platform}),
            json!({"artifactType": OCI_CONFIG}),
            json!({"artifactType": "application/vnd.acme.rocket"}),
            json!({"platform": {}}),
            json!({"platform": {"os": "linux", "architecture": ""}}),
            json!({"platform": null}),
            json!({"mediaType": null, "platform": platform}),
            json!({"mediaType": null}),
        ] {
            let (platforms, warnings) =
                store.resolve(&[entry(&amd, on("amd64")), entry(&arm, hints.clone())], &[]);
            assert_eq!(platforms.unwrap(), ["linux/amd64", "linux/arm64"], "{hints}");
            assert_eq!(warnings, Vec::<String>::new(), "{hints}");
            let (platforms, _) = store.resolve(&[entry(&arm, hints.clone())], &["linux/arm64"]);
            assert_eq!(platforms.unwrap(), ["linux/arm64"], "{hints}");
        }
        let unknown = json!({"platform": {"os": "unknown", "architecture": "unknown"}});
        assert_eq!(store.resolve(&[entry(&amd, unknown)], &[]).0.unwrap(), ["unknown/unknown"]);
        let nested = store
            .put(OCI_INDEX, &json!({"schemaVersion": 2, "manifests": [entry(&arm, on("arm64"))]}));
        for hints in [
            json!({}),
            json!({"mediaType": null}),
            json!({"artifactType": "application/vnd.acme.rocket"}),
        ] {
            let (platforms, _) = store.resolve(&[entry(&nested, hints)], &[]);
            assert_eq!(platforms.unwrap(), ["linux/arm64"]);
        }
    }

    #[test]
    fn what_is_no_image_is_passed_over_and_said_once() {
        let store = Store::new();
        let amd = store.image("amd64");
        let sbom = store.sbom();
        let layer = store.put(OCI_LAYER, &json!("x"));
        let attestation = store.put(
            OCI_MANIFEST,
            &json!({
                "schemaVersion": 2,
                "config": store.put(OCI_CONFIG, &json!({"os": "unknown", "architecture": "unknown"})),
                "layers": [store.put("application/vnd.in-toto+json", &json!({}))],
            }),
        );
        for (odd, warned) in [
            (entry(&sbom, json!({})), "not an image but an SBOM"),
            (entry(&sbom, json!({"platform": {}})), "not an image but an SBOM"),
            (
                entry(&sbom, json!({"platform": {"os": "linux", "architecture": ""}})),
                "not an image but an SBOM",
            ),
            (entry(&sbom, on("amd64")), "listed for linux/amd64: this is not an image but an SBOM"),
            (entry(&sbom, json!({"mediaType": null})), "not an image but an SBOM"),
            (entry(&attestation, json!({})), "an attestation"),
            (entry(&layer, json!({})), "is not a manifest"),
            // These say themselves what they are.
            (entry(&sbom, json!({"artifactType": "application/spdx+json"})), ""),
            (
                entry(
                    &sbom,
                    json!({"artifactType": "application/spdx+json", "platform": on("amd64")["platform"]}),
                ),
                "",
            ),
            (entry(&sbom, json!({"artifactType": INDEX_V2})), ""),
            (
                entry(
                    &attestation,
                    json!({"platform": {"os": "unknown", "architecture": "unknown"}}),
                ),
                "",
            ),
        ] {
            for entries in
                [[entry(&amd, on("amd64")), odd.clone()], [odd.clone(), entry(&amd, on("amd64"))]]
            {
                for wanted in [&[][..], &["linux/amd64"]] {
                    let (platforms, warnings) = store.resolve(&entries, wanted);
                    assert_eq!(platforms.unwrap(), ["linux/amd64"], "{entries:?}");
                    let mut expected = usize::from(!warned.is_empty());
                    // The image comes second of its platform, or the SBOM does, unread.
                    if warned.contains("listed for") {
                        let second =
                            warnings.iter().any(|warning| warning.contains("a second manifest"));
                        assert_eq!(second, entries[1] == odd, "{warnings:?}");
                    } else {
                        assert!(
                            warnings.iter().all(|warning| warning.contains(warned)),
                            "{warnings:?}"
                        );
                    }
                    expected = expected.max(usize::from(!warned.is_empty()));
                    assert_eq!(warnings.len(), expected, "{odd}: {warnings:?}");
                }
            }
            let (alone, _) = store.resolve(std::slice::from_ref(&odd), &[]);
            assert!(alone.unwrap_err().is_no_image(), "{odd}");
        }
    }

    #[test]
    fn platforms_that_a_layout_lacks_are_passed_over() {
        let store = Store::new();
        let amd = store.image("amd64");
        let gone = Descriptor::of(OCI_MANIFEST, b"not here");
        for lost in [
            entry(&gone, on("arm64")),
            entry(&gone, json!({})),
            entry(&gone, json!({"mediaType": OCI_INDEX})),
        ] {
            let (platforms, warnings) =
                store.resolve(&[entry(&amd, on("amd64")), lost.clone()], &[]);
            assert_eq!(platforms.unwrap(), ["linux/amd64"], "{lost}");
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].ends_with("it is not in the layout"), "{warnings:?}");
            let (alone, _) = store.resolve(std::slice::from_ref(&lost), &[]);
            assert!(matches!(alone, Err(ResolveError::Lost { .. })), "{alone:?}");
        }
        let (asked, _) =
            store.resolve(&[entry(&amd, on("amd64")), entry(&gone, on("arm64"))], &["linux/arm64"]);
        assert!(matches!(asked, Err(ResolveError::Lost { .. })), "{asked:?}");
        let marked = entry(&gone, json!({"artifactType": "application/spdx+json"}));
        let (platforms, warnings) = store.resolve(&[entry(&amd, on("amd64")), marked], &[]);
        assert_eq!((platforms.unwrap().len(), warnings.len()), (1, 0));
    }

    #[test]
    fn a_wanted_platform_does_not_depend_on_other_entries() {
        let store = Store::new();
        let amd = store.image("amd64");
        let bad = store.put(OCI_MANIFEST, &json!({"schemaVersion": 1}));
        let entries = [entry(&amd, on("amd64")), entry(&bad, json!({}))];
        let (platforms, warnings) = store.resolve(&entries, &["linux/amd64"]);
        assert_eq!(platforms.unwrap(), ["linux/amd64"]);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(matches!(store.resolve(&entries, &[]).0, Err(ResolveError::NotAnImage { .. })));
        // It could be the one that the entry is.
        assert!(matches!(
            store.resolve(&entries, &["linux/arm64"]).0,
            Err(ResolveError::NotAnImage { .. })
        ));
    }
}
