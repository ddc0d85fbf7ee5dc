//! From an image's name to the manifests of its platforms.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::error::IndexError;
use crate::digest::Digest;
use crate::image::config::{self, MAX_CONFIG};
use crate::image::manifest::{self, MAX_DESCRIPTORS, Manifest, ManifestError};
use crate::image::select::{MAX_NESTING, Next, Selector};
use crate::image::{Descriptor, ImageIndex, ImageManifest, Platform};
use crate::progress::{Event, Progress};
use crate::store::Source;
use crate::store::blob::{Document, Target};

/// What an image's name stands for.
pub(super) struct Resolved {
    pub digest: Digest,
    pub manifests: Vec<PlatformManifest>,
}

/// The manifest of one platform.
pub(super) struct PlatformManifest {
    pub descriptor: Descriptor,
    pub platform: Option<String>,
    pub layers: Vec<Descriptor>,
}

/// Fetches the documents between `root` and the manifests of the `wanted` platforms (none: all that there are).
pub(super) async fn resolve(
    source: &Source,
    root: &Target,
    wanted: &[Platform],
    progress: &Arc<dyn Progress>,
) -> Result<Resolved, IndexError> {
    let document = source.manifest(root).await.map_err(IndexError::Find)?;
    let digest = document.digest;
    let manifests = match parse(&document)? {
        Manifest::Image(image) => vec![alone(source, &document, image, wanted).await?],
        Manifest::Index(index) => of_index(source, digest, index, wanted, progress).await?,
    };
    Ok(Resolved { digest, manifests })
}

fn parse(document: &Document) -> Result<Manifest, IndexError> {
    manifest::parse(Some(&document.media_type), &document.bytes)
        .map_err(|source| IndexError::NotIndexable { digest: document.digest, source })
}

/// An image without an index around it: only its config tells its platform, and only who asks for one needs it.
async fn alone(
    source: &Source,
    document: &Document,
    image: ImageManifest,
    wanted: &[Platform],
) -> Result<PlatformManifest, IndexError> {
    let platform = match platform(source, &image).await {
        Ok(platform) => Some(platform),
        // A config that is missing or odd does not keep the layers from being indexed.
        Err(_) if wanted.is_empty() => None,
        Err(error) => return Err(error),
    };
    if let Some(platform) = &platform {
        let missing = wanted.iter().find(|wanted| !platform.matches(wanted));
        if let Some(missing) = missing {
            return Err(no_platform(std::slice::from_ref(missing), std::slice::from_ref(platform)));
        }
    }
    let size = document.bytes.len() as u64;
    Ok(PlatformManifest {
        // As containerd makes the descriptor of a manifest that a tag names: by the served type.
        descriptor: Descriptor::new(image.media_type, document.digest, size),
        platform: platform.map(|platform| platform.to_string()),
        layers: image.layers,
    })
}

async fn platform(source: &Source, image: &ImageManifest) -> Result<Platform, IndexError> {
    let digest = image.config.digest;
    let bytes = source.blob_bytes(&image.config, MAX_CONFIG as u64).await.map_err(|source| IndexError::Document {
        what: "config",
        digest,
        source,
    })?;
    config::platform(&bytes).map_err(|source| IndexError::Config { digest, source })
}

/// The manifests of an image index, and of those nested in it.
async fn of_index(
    source: &Source,
    root: Digest,
    index: ImageIndex,
    wanted: &[Platform],
    progress: &Arc<dyn Progress>,
) -> Result<Vec<PlatformManifest>, IndexError> {
    let mut selector = Selector::new(wanted);
    walk(source, root, index, &mut selector).await?;
    let selection = selector.finish();
    for image in &selection.shadowed {
        progress.report(Event::Warning(format!(
            "{} lists {} a second time for {}: only the first manifest of a platform is indexed, as containerd uses only it",
            root, image.manifest.digest, image.platform
        )));
    }
    if !selection.missing.is_empty() {
        let found: Vec<Platform> = selection.chosen.into_iter().map(|c| c.platform).chain(selection.others).collect();
        return Err(no_platform(&selection.missing, &found));
    }
    let mut manifests = Vec::with_capacity(selection.chosen.len());
    let mut refused = None;
    for chosen in selection.chosen {
        let descriptor = chosen.manifest;
        match parse(&fetch(source, &descriptor, "manifest").await?) {
            Ok(Manifest::Image(image)) => manifests.push(PlatformManifest {
                // As soci names the subject: the three fields, as the index states them.
                descriptor: Descriptor::new(descriptor.media_type, descriptor.digest, descriptor.size),
                platform: Some(chosen.platform.to_string()),
                layers: image.layers,
            }),
            Ok(Manifest::Index(_)) => return Err(IndexError::NotAManifest(descriptor.digest)),
            // An artifact among the images of an index does not keep the images from being indexed.
            Err(IndexError::NotIndexable { digest, source: error @ ManifestError::NotAnImage { .. } }) => {
                progress.report(Event::Warning(format!("{digest} in {root} is passed over: {error}")));
                refused = Some(IndexError::NotIndexable { digest, source: error });
            }
            Err(error) => return Err(error),
        }
    }
    if manifests.is_empty() {
        return Err(refused.unwrap_or(IndexError::NoImage(root)));
    }
    Ok(manifests)
}

/// Offers every image manifest at or below `index` to the selector, outer ones first.
async fn walk(source: &Source, root: Digest, index: ImageIndex, selector: &mut Selector) -> Result<(), IndexError> {
    let mut level = selector.index(&index);
    let mut seen = BTreeSet::from([root]);
    let mut offered = index.manifests.len();
    for depth in 1.. {
        let mut below = Vec::new();
        for next in std::mem::take(&mut level) {
            match next {
                Next::Config(descriptor) => {
                    let document = fetch(source, &descriptor, "manifest").await?;
                    if let Manifest::Image(image) = parse(&document)? {
                        selector.offer(descriptor, platform(source, &image).await?);
                    }
                }
                Next::Index(descriptor) => {
                    let digest = descriptor.digest;
                    if depth >= MAX_NESTING {
                        return Err(IndexError::TooDeep { digest, limit: MAX_NESTING });
                    }
                    // What is listed twice is walked once; a digest cannot contain itself, but a hostile store can try.
                    if !seen.insert(digest) {
                        continue;
                    }
                    if let Manifest::Index(index) = parse(&fetch(source, &descriptor, "image index").await?)? {
                        offered += index.manifests.len();
                        if offered > MAX_DESCRIPTORS {
                            return Err(IndexError::TooMany { digest: root, limit: MAX_DESCRIPTORS });
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

/// A document that a descriptor names, which is as large as it says.
async fn fetch(source: &Source, descriptor: &Descriptor, what: &'static str) -> Result<Document, IndexError> {
    let digest = descriptor.digest;
    let target = Target::Digest(digest);
    let document = source.manifest(&target).await.map_err(|source| IndexError::Document { what, digest, source })?;
    let found = document.bytes.len() as u64;
    match found == descriptor.size {
        true => Ok(document),
        false => Err(IndexError::Size { what, digest, expected: descriptor.size, found }),
    }
}

fn no_platform(wanted: &[Platform], available: &[Platform]) -> IndexError {
    let list = |platforms: &[Platform]| platforms.iter().map(Platform::to_string).collect::<Vec<_>>().join(", ");
    IndexError::NoPlatform { wanted: list(wanted), available: list(available) }
}
