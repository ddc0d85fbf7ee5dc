//! Resolves an image's name to the manifests of its platforms.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::damage::Damage;
use ociseek_format::digest::Digest;
use ociseek_format::image::config::{self, ConfigError, MAX_CONFIG};
use ociseek_format::image::enabled::is_enabled;
use ociseek_format::image::manifest::{self, MAX_DESCRIPTORS, Manifest, ManifestError};
use ociseek_format::image::select::{Child, MAX_NESTING, NextFetch, PlatformSelector, SelectedImage};
use ociseek_format::image::{Descriptor, ImageIndex, ImageManifest, Platform};
use ociseek_format::progress::{Progress, ProgressEvent};
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
        Manifest::Index(index) => of_index(source, digest, index, is_enabled, wanted, progress).await?,
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

/// The manifests of an image index and of nested indexes, and the artifacts that they list.
async fn of_index(
    source: &Source,
    root: Digest,
    index: ImageIndex,
    is_enabled: bool,
    wanted: PlatformChoice<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<(Vec<PlatformManifest>, Vec<Descriptor>), ResolveError> {
    let mut selector = PlatformSelector::new(wanted.required());
    walk(source, root, index, is_enabled, &mut selector).await?;
    let selection = selector.finish();
    let artifacts = selection.passed_over.into_iter().filter(|(_, kind)| *kind == Child::Artifact);
    let artifacts = artifacts.map(|(descriptor, _)| descriptor).collect();
    if !selection.missing.is_empty() {
        let found: Vec<Platform> = selection.chosen.into_iter().map(|c| c.platform).chain(selection.others).collect();
        return Err(no_platform(&selection.missing, &found));
    }
    let chosen = match wanted {
        PlatformChoice::Host if selection.chosen.len() > 1 => vec![for_host(selection.chosen)?],
        _ => selection.chosen,
    };
    let used = |platform: &Platform| chosen.iter().any(|c| c.platform.normalized() == platform.normalized());
    for image in selection.shadowed.iter().filter(|image| used(&image.platform)) {
        progress.report(ProgressEvent::Warning(format!(
            "{} lists a second manifest, {}, for {}: only a platform's first manifest is used, as in containerd",
            root, image.manifest.digest, image.platform
        )));
    }
    let mut manifests = Vec::with_capacity(chosen.len());
    let mut refused = None;
    for SelectedImage { manifest: descriptor, platform } in chosen {
        match parse(&fetch(source, &descriptor, "manifest", is_enabled).await?) {
            Ok(Manifest::Image(image)) => {
                // soci writes the subject with these three fields, as the index states them.
                let descriptor = Descriptor::new(descriptor.media_type, descriptor.digest, descriptor.size);
                manifests.push(PlatformManifest::new(descriptor, Some(platform), image));
            }
            Ok(Manifest::Index(_)) => return Err(ResolveError::NotAManifest(descriptor.digest)),
            // An artifact among the images of an index does not make the images unusable.
            Err(ResolveError::NotAnImage { digest, source: error @ ManifestError::NotAnImage { .. } }) => {
                progress.report(ProgressEvent::Warning(format!("skipping {digest} in {root}: {error}")));
                refused = Some(ResolveError::NotAnImage { digest, source: error });
            }
            Err(error) => return Err(error),
        }
    }
    if manifests.is_empty() {
        return Err(refused.unwrap_or(ResolveError::NoImage(root)));
    }
    Ok((manifests, artifacts))
}

/// The image that would run on this machine: a Linux image for its architecture, because containers
/// are Linux on other systems too; otherwise one for its own system. The variant only matters for
/// running it, and can be requested.
fn for_host(images: Vec<SelectedImage>) -> Result<SelectedImage, ResolveError> {
    let architecture = match std::env::consts::ARCH {
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    };
    let host = |os: &str| Platform { os: os.to_owned(), architecture: architecture.to_owned(), ..Platform::default() };
    let found = ["linux", std::env::consts::OS].into_iter().find_map(|os| {
        let host = host(os).normalized();
        let exact = images.iter().position(|image| image.platform.matches(&host));
        exact.or_else(|| {
            images.iter().position(|image| {
                let has = image.platform.normalized();
                has.os == host.os && has.architecture == host.architecture
            })
        })
    });
    match found.and_then(|place| images.get(place)) {
        Some(image) => Ok(image.clone()),
        None => {
            let there: Vec<Platform> = images.into_iter().map(|image| image.platform).collect();
            Err(no_platform(&[host("linux").normalized()], &there))
        }
    }
}

/// Offers every image manifest in `index` and nested indexes to the selector, outer ones first.
async fn walk(
    source: &Source,
    root: Digest,
    index: ImageIndex,
    is_enabled: bool,
    selector: &mut PlatformSelector,
) -> Result<(), ResolveError> {
    let mut level = selector.index(&index);
    let mut seen = BTreeSet::from([root]);
    let mut offered = index.manifests.len();
    for depth in 1.. {
        let mut below = Vec::new();
        for next in std::mem::take(&mut level) {
            match next {
                NextFetch::Config(descriptor) => {
                    let document = fetch(source, &descriptor, "manifest", is_enabled).await?;
                    if let Manifest::Image(image) = parse(&document)? {
                        let platform = match platform(source, &image.config).await {
                            // No runtime would choose it for its machine, but its files can be
                            // read.
                            Err(ResolveError::Config { source: ConfigError::Missing(_), .. }) => Platform {
                                os: "linux".to_owned(),
                                architecture: "unknown".to_owned(),
                                ..Platform::default()
                            },
                            platform => platform?,
                        };
                        selector.offer(descriptor, platform);
                    }
                }
                NextFetch::Index(descriptor) => {
                    let digest = descriptor.digest;
                    if depth >= MAX_NESTING {
                        return Err(ResolveError::TooDeep { digest, limit: MAX_NESTING });
                    }
                    // Indexes that are listed twice are walked once. A digest cannot contain
                    // itself, but a hostile store can try.
                    if !seen.insert(digest) {
                        continue;
                    }
                    let document = fetch(source, &descriptor, "image index", is_enabled).await?;
                    if let Manifest::Index(index) = parse(&document)? {
                        offered += index.manifests.len();
                        if offered > MAX_DESCRIPTORS {
                            return Err(ResolveError::TooMany { digest: root, limit: MAX_DESCRIPTORS });
                        }
                        below.extend(selector.index(&index));
                    }
                }
            }
        }
        if below.is_empty() {
            break;
        }
        level = below;
    }
    Ok(())
}

/// Fetches a document that an image index lists. It must have the stated size.
async fn fetch(
    source: &Source,
    descriptor: &Descriptor,
    what: &'static str,
    is_enabled: bool,
) -> Result<Document, ResolveError> {
    let digest = descriptor.digest;
    let document = source.document(&digest).await.map_err(|source| match Damage::of(&source) {
        Some(_) => ResolveError::Lost { what, digest, is_enabled, source },
        None => ResolveError::Document { what, digest, source },
    })?;
    let found = document.bytes.len() as u64;
    match found == descriptor.size {
        true => Ok(document),
        false => Err(ResolveError::Size { what, digest, expected: descriptor.size, found }),
    }
}

fn no_platform(wanted: &[Platform], available: &[Platform]) -> ResolveError {
    let list = |platforms: &[Platform]| platforms.iter().map(Platform::to_string).collect::<Vec<_>>().join(", ");
    ResolveError::NoPlatform { wanted: list(wanted), available: list(available) }
}
