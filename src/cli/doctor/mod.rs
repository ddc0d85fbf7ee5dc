//! `ociseek doctor`.

use std::sync::Arc;

use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::Display;
use crate::cli::shared::source::Images;
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::Stdout;
use args::DoctorArgs;
use ociseek_format::progress::Progress;
use ociseek_ops::doctor::diagnose;
use text::text;

mod advice;
pub(super) mod args;
pub(super) mod json;
mod text;

pub(super) async fn run(args: DoctorArgs, talk: TalkArgs) -> Result<(), CliError> {
    let (display, image) = (Arc::new(Display::new(talk)), args.image.to_string());
    let progress: Arc<dyn Progress> = display.clone();
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    let (source, root) = display.during(&image, images.open(&args.image)).await?;
    let wanted = args.platforms.wanted();
    let found = diagnose(&source, &root, wanted, &progress).await?;
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Report::of(&image, &found)).map_err(CliError::Stdout)?,
        OutputFormat::Text => found.iter().map(|one| text(&image, one, stdout.style)).collect::<Vec<_>>().join("\n"),
    };
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
    if found.iter().any(|one| one.inspected.verdicts().any_lazy()) { Ok(()) } else { Err(CliError::Unused) }
}
