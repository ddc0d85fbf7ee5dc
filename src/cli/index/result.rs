//! The result for one image, as text and as JSON.

use super::{json, text};
use crate::cli::convert;
use crate::cli::shared::error::CliError;
use crate::cli::shared::report;
use crate::cli::shared::terminal::Style;
use ociseek_format::image::ImageName;
use ociseek_ops::index::{IndexError, RefusedImage};
use ociseek_ops::versions::VersionsResult;

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
                let refused = refused(error).filter(|_| !quiet);
                return refused.map(|refused| text::refused(&self.image, refused, style)).unwrap_or_default();
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
                return match refused(error) {
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

/// The refusal, if the index fell short of a gate.
fn refused(error: &CliError) -> Option<&RefusedImage> {
    match error {
        CliError::Index(error) => match &**error {
            IndexError::Refused(refused) => Some(refused),
            _ => None,
        },
        _ => None,
    }
}
