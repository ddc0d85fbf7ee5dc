//! Resolves an image's name to the manifests of its platforms.

#[cfg(test)]
pub(crate) mod tests;
mod walk;

use std::collections::BTreeMap;
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
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
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
            ResolveError::NoImage(_) | ResolveError::NotAnImage { source: ManifestError::NotAnImage { .. }, .. }
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
    pub(super) fn of(platform: Option<&'a Platform>) -> PlatformChoice<'a> {
        platform.map_or(PlatformChoice::Host, |platform| PlatformChoice::Each(std::slice::from_ref(platform)))
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
        Manifest::Index(index) => walk::of_index(source, digest, index, is_enabled, wanted, progress).await?,
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
        Some(missing) => Err(no_platform(std::slice::from_ref(missing), std::slice::from_ref(&platform))),
        None => Ok(Some(platform)),
    }
}

impl PlatformManifest {
    pub(super) fn new(descriptor: Descriptor, platform: Option<Platform>, image: ImageManifest) -> PlatformManifest {
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
    let unread = |source| ResolveError::Document { what: "config", digest: descriptor.digest, source };
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
    let list = |platforms: &[Platform]| platforms.iter().map(Platform::to_string).collect::<Vec<_>>().join(", ");
    ResolveError::NoPlatform { wanted: list(wanted), available: list(available) }
}
