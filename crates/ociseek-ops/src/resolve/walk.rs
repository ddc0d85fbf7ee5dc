//! The images that an image index lists, decided by their manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{PlatformChoice, PlatformManifest, ResolveError, no_platform, parse, platform};
use crate::damage::Damage;
use ociseek_format::digest::Digest;
use ociseek_format::image::config::ConfigError;
use ociseek_format::image::manifest::{MAX_DESCRIPTORS, Manifest};
use ociseek_format::image::select::{
    Child, MAX_NESTING, NextFetch, PlatformSelector, SelectedImage, Selection,
};
use ociseek_format::image::{Descriptor, ImageIndex, ImageManifest, Platform};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_store::Source;

/// The manifests of an image index and of nested indexes, and the artifacts that they list.
pub(super) async fn of_index(
    source: &Source,
    root: Digest,
    index: ImageIndex,
    is_enabled: bool,
    wanted: PlatformChoice<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<(Vec<PlatformManifest>, Vec<Descriptor>), ResolveError> {
    let mut selector = PlatformSelector::new(wanted.required());
    let mut reader =
        Reader { source, root, is_enabled, wanted, progress, read: BTreeMap::new(), failed: None };
    reader.walk(index, &mut selector).await?;
    let Selection { chosen, shadowed, missing, others, passed_over } = selector.finish();
    if !missing.is_empty() {
        let platforms: Vec<Platform> =
            chosen.into_iter().map(|image| image.platform).chain(others).collect();
        return Err(reader.failed.unwrap_or_else(|| no_platform(&missing, &platforms)));
    }
    let chosen = match wanted {
        PlatformChoice::Host => match reader.there(chosen).await {
            several if several.len() > 1 => vec![for_host(several)?],
            one => one,
        },
        PlatformChoice::All | PlatformChoice::Each(_) => chosen,
    };
    let manifests = reader.manifests(chosen, &shadowed).await?;
    if manifests.is_empty() {
        return Err(reader.failed.unwrap_or(ResolveError::NoImage(root)));
    }
    for (entry, _) in passed_over.iter().filter(|(_, kind)| *kind == Child::Unknown) {
        let media_type: String = entry.media_type.chars().take(150).collect();
        reader
            .warn(format!("skipping {} in {root}: {media_type:?} is not a manifest", entry.digest));
    }
    let artifacts = passed_over.into_iter().filter(|(_, kind)| *kind == Child::Artifact);
    Ok((manifests, artifacts.map(|(descriptor, _)| descriptor).collect()))
}

/// This machine's architecture, as images name it.
pub fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86" => "386",
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// The image that would run on this machine: a Linux image for its architecture, because containers
/// are Linux on other systems too; otherwise one for its own system. The variant only matters for
/// running it, and can be requested.
fn for_host(images: Vec<SelectedImage>) -> Result<SelectedImage, ResolveError> {
    let host = |os: &str| Platform {
        os: os.to_owned(),
        architecture: host_architecture().to_owned(),
        ..Platform::default()
    };
    let chosen = ["linux", std::env::consts::OS].into_iter().find_map(|os| {
        let host = host(os).normalized();
        let exact = images.iter().position(|image| image.platform.matches(&host));
        exact.or_else(|| {
            images.iter().position(|image| {
                let has = image.platform.normalized();
                has.os == host.os && has.architecture == host.architecture
            })
        })
    });
    match chosen.and_then(|place| images.get(place)) {
        Some(image) => Ok(image.clone()),
        None => {
            let platforms: Vec<Platform> = images.into_iter().map(|image| image.platform).collect();
            Err(no_platform(&[host("linux").normalized()], &platforms))
        }
    }
}

/// Reads what an image index lists.
struct Reader<'a> {
    source: &'a Source,
    root: Digest,
    is_enabled: bool,
    wanted: PlatformChoice<'a>,
    progress: &'a Arc<dyn Progress>,
    /// What was read, or None if that was no image and a warning said so.
    read: BTreeMap<Digest, Option<Manifest>>,
    /// Why the first entry that could be an image is not used.
    failed: Option<ResolveError>,
}

impl Reader<'_> {
    /// Offers every image manifest in `index` and nested indexes to the selector, outer ones first.
    async fn walk(
        &mut self,
        index: ImageIndex,
        selector: &mut PlatformSelector,
    ) -> Result<(), ResolveError> {
        let mut seen = BTreeSet::from([self.root]);
        let mut offered = index.manifests.len();
        let mut level = self.level(&index, selector).await?;
        for depth in 1.. {
            let mut below = Vec::new();
            for next in std::mem::take(&mut level) {
                let (NextFetch::Index(descriptor) | NextFetch::Config(descriptor)) = &next;
                let digest = descriptor.digest;
                if matches!(next, NextFetch::Index(_)) {
                    if depth >= MAX_NESTING {
                        return Err(ResolveError::TooDeep { digest, limit: MAX_NESTING });
                    }
                    // Indexes that are listed twice are walked once. A digest cannot contain
                    // itself, but a hostile store can try.
                    if !seen.insert(digest) {
                        continue;
                    }
                }
                match self.read(descriptor, "manifest").await? {
                    None => {}
                    Some(Manifest::Image(image)) => {
                        let config = image.config.clone();
                        if let Some(platform) = self.platform(descriptor, &config).await? {
                            selector.offer(descriptor.clone(), platform);
                        }
                    }
                    Some(Manifest::Index(index)) => {
                        let index = index.clone();
                        offered += index.manifests.len();
                        if offered > MAX_DESCRIPTORS {
                            return Err(ResolveError::TooMany {
                                digest: self.root,
                                limit: MAX_DESCRIPTORS,
                            });
                        }
                        if matches!(next, NextFetch::Config(_)) && !seen.insert(digest) {
                            continue;
                        }
                        if depth >= MAX_NESTING {
                            return Err(ResolveError::TooDeep { digest, limit: MAX_NESTING });
                        }
                        below.extend(self.level(&index, selector).await?);
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

    /// What to fetch for an index, after its unclear entries were read.
    async fn level(
        &mut self,
        index: &ImageIndex,
        selector: &mut PlatformSelector,
    ) -> Result<Vec<NextFetch>, ResolveError> {
        let mut kinds = BTreeMap::new();
        for entry in selector.unclear(index).cloned().collect::<Vec<_>>() {
            let kind = match self.read(&entry, "manifest").await? {
                Some(Manifest::Image(_)) => Child::Image,
                Some(Manifest::Index(_)) => Child::Index,
                None => continue,
            };
            kinds.insert(entry.digest, kind);
        }
        Ok(selector.index(index, &kinds))
    }

    /// The platform in an image's config.
    async fn platform(
        &mut self,
        entry: &Descriptor,
        config: &Descriptor,
    ) -> Result<Option<Platform>, ResolveError> {
        match platform(self.source, config).await {
            Ok(platform) => Ok(Some(platform)),
            // No runtime would choose it for its machine, but its files can be read.
            Err(ResolveError::Config { source: ConfigError::Missing(_), .. }) => {
                Ok(Some(Platform {
                    os: "linux".to_owned(),
                    architecture: "unknown".to_owned(),
                    ..Platform::default()
                }))
            }
            Err(error) => {
                let error = match error {
                    ResolveError::Document { what, digest, source }
                        if Damage::of(&source).is_some() =>
                    {
                        ResolveError::Lost { what, digest, is_enabled: self.is_enabled, source }
                    }
                    error => error,
                };
                self.pass_over(entry, error)?;
                Ok(None)
            }
        }
    }

    /// The manifests of the chosen images. One that turns out to be no image, or not to be there,
    /// is replaced by the next of its platform.
    async fn manifests(
        &mut self,
        chosen: Vec<SelectedImage>,
        shadowed: &[SelectedImage],
    ) -> Result<Vec<PlatformManifest>, ResolveError> {
        let mut manifests: Vec<PlatformManifest> = Vec::with_capacity(chosen.len());
        for first in chosen {
            let same =
                |other: &&SelectedImage| other.platform.normalized() == first.platform.normalized();
            let mut is_listed = false;
            for SelectedImage { manifest: entry, platform } in
                std::iter::once(&first).chain(shadowed.iter().filter(same))
            {
                if is_listed {
                    self.warn(format!(
                        "{} lists a second manifest, {}, for {platform}: only a platform's first manifest is used, \
                         as in containerd",
                        self.root, entry.digest
                    ));
                    continue;
                }
                match self.read(entry, "manifest").await? {
                    Some(Manifest::Image(image)) => {
                        // soci writes the subject with these three fields, as the index states
                        // them.
                        let media_type = match entry.media_type.as_str() {
                            "" => image.media_type.to_owned(),
                            stated => stated.to_owned(),
                        };
                        let descriptor = Descriptor::new(media_type, entry.digest, entry.size);
                        let image: ImageManifest = image.clone();
                        manifests.push(PlatformManifest::new(
                            descriptor,
                            Some(platform.clone()),
                            image,
                        ));
                        is_listed = true;
                    }
                    Some(Manifest::Index(_)) => {
                        return Err(ResolveError::NotAManifest(entry.digest));
                    }
                    None => {}
                }
            }
        }
        let lacks = |wanted: &&Platform| {
            !manifests.iter().any(|image| {
                image.platform.as_ref().is_some_and(|platform| platform.matches(wanted))
            })
        };
        match self.failed.take() {
            Some(failed) if self.wanted.required().iter().any(|wanted| lacks(&wanted)) => {
                Err(failed)
            }
            failed => {
                self.failed = failed;
                Ok(manifests)
            }
        }
    }

    /// The images whose manifests are there. Layouts may lack those of other platforms.
    async fn there(&mut self, images: Vec<SelectedImage>) -> Vec<SelectedImage> {
        if self.source.is_remote() || images.len() < 2 {
            return images;
        }
        let mut present = Vec::with_capacity(images.len());
        for image in &images {
            if !matches!(self.source.blob_exists(&image.manifest).await, Ok(false)) {
                present.push(image.clone());
            }
        }
        if present.is_empty() { images } else { present }
    }

    /// The manifest or image index that an entry names. None if it is skipped.
    async fn read(
        &mut self,
        entry: &Descriptor,
        what: &'static str,
    ) -> Result<Option<&Manifest>, ResolveError> {
        let digest = entry.digest;
        if !self.read.contains_key(&digest) {
            let manifest = match self.fetch(entry, what).await {
                Ok(manifest) => Some(manifest),
                Err(error) => {
                    self.pass_over(entry, error)?;
                    None
                }
            };
            self.read.insert(digest, manifest);
        }
        Ok(self.read.get(&digest).and_then(Option::as_ref))
    }

    async fn fetch(
        &self,
        entry: &Descriptor,
        what: &'static str,
    ) -> Result<Manifest, ResolveError> {
        let digest = entry.digest;
        let document =
            self.source.document(&digest).await.map_err(|source| match Damage::of(&source) {
                Some(_) => ResolveError::Lost { what, digest, is_enabled: self.is_enabled, source },
                None => ResolveError::Document { what, digest, source },
            })?;
        let found = document.bytes.len() as u64;
        if found == entry.size {
            parse(&document)
        } else {
            Err(ResolveError::Size { what, digest, expected: entry.size, found })
        }
    }

    /// Passes over an entry that cannot be used, and says so unless the entry itself does.
    ///
    /// # Errors
    /// The `error`, if the image cannot be used without the entry.
    fn pass_over(&mut self, entry: &Descriptor, error: ResolveError) -> Result<(), ResolveError> {
        let is_no_image = error.is_no_image();
        let is_gone = matches!(
            &error,
            ResolveError::Lost { source, .. } if Damage::of(source) == Some(Damage::Missing)
        );
        // Its own word is the best that there is about what cannot be read.
        let is_marked = Child::of(entry) == Child::Unclear && !entry.media_type.is_empty();
        // What is wrong with an entry does not matter if the wanted images are others.
        let is_chosen = !matches!(self.wanted, PlatformChoice::All);
        let may_do_without = is_no_image
            || is_gone && !self.source.is_remote()
            || (is_marked || is_chosen) && !matches!(error, ResolveError::Document { .. });
        if !may_do_without {
            return Err(error);
        }
        let digest = entry.digest;
        let platform = entry
            .platform
            .as_ref()
            .filter(|platform| platform.is_complete() && !platform.is_unknown());
        let listed =
            platform.map_or_else(String::new, |platform| format!(", listed for {platform}"));
        if !(is_marked && (is_no_image || is_gone)) {
            self.warn(match &error {
                _ if is_gone && !self.source.is_remote() => {
                    format!("skipping {digest} in {}{listed}: it is not in the layout", self.root)
                }
                ResolveError::NotAnImage { source, .. } => {
                    format!("skipping {digest} in {}{listed}: {}", self.root, causes(source))
                }
                error => format!("skipping {digest} in {}{listed}: {}", self.root, causes(error)),
            });
        }
        self.failed.get_or_insert(error);
        Ok(())
    }

    fn warn(&self, text: String) {
        self.progress.report(ProgressEvent::Warning(text));
    }
}
