//! `ociseek doctor --node`: what the snapshotter of this node does with an image, by its
//! configuration, and in the words of its log.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::images::NodeImages;
use super::{config, settings};
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::caches;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{Coded, CoverageJson, text as text_of};
use crate::cli::shared::progress::Display;
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{fitted, safe, terminal_width};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::digest::Digest;
use ociseek_format::image::ImageName;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::progress::Progress;
use ociseek_ops::judge::NotLazy;
use ociseek_store::recall::Recall;

/// The snapshotter has the logins of pulls in memory.
const LOGINS_ARE_ELSEWHERE: &str =
    "the snapshotter may have the login of a pull; this command does not have it";

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NodeReport {
    /// The full name of IMAGE.
    image: String,
    /// The path of the snapshotter's configuration.
    config: String,
    /// Whether the snapshotter with this configuration starts the image lazily.
    lazy: bool,
    /// What it reads by an index; null if it does not start the image lazily.
    coverage: Option<CoverageJson>,
    /// Why it does not, by the word in its log and its metrics, or null.
    reason: Option<Coded>,
    /// What to do, or null.
    hint: Option<&'static str>,
}

impl NodeReport {
    fn text(&self) -> String {
        let said = match (&self.coverage, &self.reason) {
            (Some(read), _) => {
                format!("lazy   {} of {} layers are read by an index", read.layers, read.of_layers)
            }
            (None, Some(Coded { code, text })) => format!("whole  {} ({code})", safe(text)),
            (None, None) => "whole".to_owned(),
        };
        let hint = self.hint.map(|hint| format!("{:30}{hint}\n", "")).unwrap_or_default();
        format!("{}\n  ociseek snapshotter  {said}\n{hint}", safe(&self.image))
    }
}

/// Says whether the snapshotter with this configuration starts an image lazily.
///
/// # Errors
/// If it does not, or the configuration cannot be used.
pub(crate) async fn run(
    config: &Path,
    image: &ImageName,
    format: OutputFormat,
    verbosity: VerbosityArgs,
) -> Result<(), CliError> {
    let args = config::or_defaults(Some(config))?;
    let has_logins_of_pulls = args.image_service;
    let settings = settings(args)?;
    let display = Arc::new(Display::new(verbosity));
    let progress: Arc<dyn Progress> = display.clone();
    let caches = caches::reading(&settings.lazy.cache, &progress).await?;
    let images = NodeImages::new(settings, caches, progress, Arc::default());
    let name = image.to_string();
    let judged = display.during(&name, images.judged(&name, &Recall::default())).await;
    let (coverage, reason, hint) = match judged {
        Ok((layers, _)) => {
            let read = layers.iter().filter(|layer| layer.document.is_some());
            let read: BTreeSet<Digest> = read.map(|layer| layer.descriptor.digest).collect();
            let all = layers.iter().map(|layer| &layer.descriptor);
            let coverage = Coverage::of(all, |layer| read.contains(&layer.digest));
            (Some(CoverageJson::of(&coverage)), None, None)
        }
        Err(reason) => {
            let hint = match reason {
                NotLazy::Login(_) if has_logins_of_pulls => Some(LOGINS_ARE_ELSEWHERE),
                _ => images.hint(&reason),
            };
            (None, Some(Coded { code: reason.code(), text: reason.to_string() }), hint)
        }
    };
    let lazy = coverage.is_some();
    let config = config.display().to_string();
    let report = NodeReport { image: name, config, lazy, coverage, reason, hint };
    let text = match format {
        OutputFormat::Text => fitted(&report.text(), terminal_width()),
        OutputFormat::Json => text_of(&report)?,
    };
    Stdout::new().print(text)?;
    if lazy { Ok(()) } else { Err(CliError::not_lazy()) }
}
