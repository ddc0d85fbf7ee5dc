//! `ociseek doctor --node`: what the snapshotter of this node does with an image, by its
//! configuration, and in the words of its log.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use super::images::NodeImages;
use super::{config, settings};
use crate::cli::shared::caches;
use crate::cli::shared::error::CliError;
use crate::cli::shared::progress::Display;
use crate::cli::shared::terminal::{Stdout, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::ImageName;
use ociseek_format::progress::Progress;
use ociseek_ops::judge::NotLazy;
use ociseek_store::recall::Recall;

/// The snapshotter has the logins of pulls in memory.
const LOGINS_ARE_ELSEWHERE: &str =
    "the snapshotter may have the login of a pull, which this command has not";

/// Says whether the snapshotter with this configuration starts an image lazily.
///
/// # Errors
/// If it does not, or the configuration cannot be used.
pub(crate) async fn run(
    config: &Path,
    image: &ImageName,
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
    let mut text = format!("{}\n  ociseek snapshotter  ", safe(&name));
    let ended = match judged {
        Ok((layers, _)) => {
            let indexed = layers.iter().filter(|layer| layer.document.is_some()).count();
            let _ =
                writeln!(text, "lazy   {indexed} of {} layers are read by an index", layers.len());
            Ok(())
        }
        Err(reason) => {
            let _ = writeln!(text, "whole  {} ({})", safe(&reason.to_string()), reason.code());
            let hint = match reason {
                NotLazy::Login(_) if has_logins_of_pulls => Some(LOGINS_ARE_ELSEWHERE),
                _ => images.hint(&reason),
            };
            if let Some(hint) = hint {
                let _ = writeln!(text, "{:30}{hint}", "");
            }
            Err(CliError::Unused)
        }
    };
    Stdout::new().print(text)?;
    ended
}
