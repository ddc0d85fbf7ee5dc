//! Indexes one image, and shows the result as text and as JSON.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::{json, text};
use crate::cli::convert;
use crate::cli::shared::error::CliError;
use crate::cli::shared::source::{Images, home, output_layout};
use crate::cli::shared::terminal::Style;
use crate::cli::shared::{layers, report};
use ociseek_format::image::{ImageName, ImageSelector, Reference};
use ociseek_format::progress::Progress;
use ociseek_ops::index::{IndexOptions, Work};
use ociseek_ops::versions::{MakeRequest, Versions, VersionsResult, make};
use ociseek_store::cache::ZtocCache;
use ociseek_store::layout::tag_of;
use ociseek_store::{Destination, Source};

/// The settings that all images share.
pub(super) struct SharedSettings {
    pub options: IndexOptions,
    pub versions: Versions,
    pub images: Images,
    pub cache: Option<ZtocCache>,
    pub output: Option<PathBuf>,
    pub progress: Arc<dyn Progress>,
}

impl SharedSettings {
    /// Indexes the image `name`, which the user sees as `image`.
    pub(super) async fn index(&self, name: &ImageName, image: String) -> ImageResult {
        let started = Instant::now();
        let mut result = self.make(name).await;
        let made = result.as_mut().ok();
        let mut not_enabled = made.and_then(|made| made.failed.take()).map(CliError::from);
        // The report on a requirement that is not met is about an image for which nothing was made.
        if result.as_ref().is_ok_and(|made| made.index.is_none())
            && let Some(error) = not_enabled.take_if(|error| error.refused().is_some())
        {
            result = Err(error);
        }
        let enabled = result.as_ref().ok().and_then(|made| made.enabled.as_ref());
        let enabled = enabled.map(|enabled| self.enabled(name, &enabled.tag));
        ImageResult { image, result, not_enabled, enabled, seconds: started.elapsed().as_secs_f64() }
    }

    async fn make(&self, name: &ImageName) -> Result<VersionsResult, CliError> {
        let from = self.images.open_root(name).await?;
        let destination = self.destination(&from.source).await?;
        let tag = match name {
            ImageName::Registry(reference) => reference.tag.clone(),
            ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
        };
        let mut options = self.options.clone();
        options.reuse.tag.clone_from(&tag);
        // index.json has the name of an image that is the only one, or that was named by digest.
        let tag = tag.or_else(|| from.descriptor.as_ref().and_then(tag_of).map(str::to_owned));
        let subject = MakeRequest { from, tag, resolved: None, is_unattended: false };
        let (cache, versions) = (self.cache.as_ref(), &self.versions);
        Ok(make(subject, destination.as_ref(), versions, Work { cache, options: &options, progress: &self.progress })
            .await?)
    }

    /// The name of the SOCI-enabled image of `name`.
    fn enabled(&self, name: &ImageName, tag: &str) -> ImageName {
        let select = ImageSelector::Tag(tag.to_owned());
        match (&self.output, name) {
            (Some(dir), _) => ImageName::Layout { dir: dir.clone(), select },
            (None, ImageName::Registry(reference)) => {
                ImageName::Registry(Reference { tag: Some(tag.to_owned()), digest: None, ..reference.clone() })
            }
            (None, ImageName::Layout { dir, .. }) => ImageName::Layout { dir: dir.clone(), select },
            (None, ImageName::Archive { file, .. } | ImageName::Saved { file, .. }) => {
                ImageName::Archive { file: file.clone(), select }
            }
        }
    }

    /// The destination of the index. None if it is an archive.
    async fn destination(&self, source: &Source) -> Result<Option<Destination>, CliError> {
        let Some(dir) = self.output.clone() else { return Ok(home(source)) };
        let layout = output_layout(dir).await?.with_budget(source.budget().clone());
        Ok(Some(Destination::Layout(Arc::new(layout))))
    }

    /// Where indexes go, if not to the image.
    pub(super) fn target(&self) -> Option<String> {
        self.output.as_ref().map(|dir| format!("oci:{}", dir.display()))
    }
}

/// The result for an image.
pub(super) struct ImageResult {
    /// The image as named by the user.
    pub image: String,
    /// What was made.
    pub result: Result<VersionsResult, CliError>,
    /// Why the SOCI-enabled image was not made, if all else was.
    pub not_enabled: Option<CliError>,
    /// The name of the SOCI-enabled image, if there is one.
    pub enabled: Option<ImageName>,
    pub seconds: f64,
}

impl ImageResult {
    pub(super) fn error(&self) -> Option<&CliError> {
        self.result.as_ref().err().or(self.not_enabled.as_ref())
    }

    /// The report. `target` is where indexes go, if not to the image.
    pub(super) fn text(&self, target: Option<&str>, quiet: bool, style: Style) -> String {
        let made = match &self.result {
            Ok(made) if quiet => return text::digests(made),
            Ok(made) => made,
            Err(error) => {
                let refused = error.refused().filter(|_| !quiet);
                return refused.map(|refused| layers::refused(&self.image, refused, style)).unwrap_or_default();
            }
        };
        let index = made.index.as_ref();
        let mut text =
            index.map(|index| text::report(&self.image, target, index, self.seconds, style)).unwrap_or_default();
        if let (Some(name), Some(enabled)) = (&self.enabled, &made.enabled) {
            text.push_str(&convert::text::made(&self.image, name, &enabled.result, index.is_none(), style));
        }
        text
    }

    pub(super) fn json(self) -> json::Image {
        let made = match &self.result {
            Ok(made) => made,
            Err(error) => {
                let failure = report::failure(error);
                return match error.refused() {
                    Some(refused) => json::Image::refused(self.image, refused, failure, self.seconds),
                    None => json::Image::failed(self.image, failure, self.seconds),
                };
            }
        };
        let enabled = self.enabled.iter().zip(&made.enabled);
        let enabled = enabled.map(|(name, made)| convert::json::Enabled::of(name.to_string(), &made.result)).next();
        let failure = self.not_enabled.as_ref().map(report::failure);
        json::Image::made(self.image, made, enabled, failure, self.seconds)
    }
}
