//! `ociseek inspect`.

use std::sync::Arc;

use self::text::text;
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::Display;
use crate::cli::shared::source::Images;
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::Stdout;
use crate::cli::ztoc;
use args::InspectArgs;
use ociseek_format::progress::Progress;
use ociseek_ops::inspect::{find_ztoc, inspect};

pub(super) mod args;
mod coverage;
pub(super) mod json;
mod text;

pub(super) async fn run(args: InspectArgs, talk: TalkArgs) -> Result<(), CliError> {
    let (display, image) = (Arc::new(Display::new(talk)), args.image.to_string());
    let progress: Arc<dyn Progress> = display.clone();
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    let (source, root) = display.during(&image, images.open(&args.image)).await?;
    let wanted = args.platforms.wanted();
    let mut stdout = Stdout::new();
    if let Some(named) = &args.ztoc {
        let found = find_ztoc(&source, &root, wanted, named, &progress).await?;
        let (bytes, ztoc) = found.ok_or_else(|| CliError::NoZtoc(named.clone()))?;
        let written = match args.format.get() {
            OutputFormat::Text => ztoc::text::write(&bytes, &ztoc, &mut stdout),
            OutputFormat::Json => ztoc::json::write(&bytes, &ztoc, &mut stdout),
        };
        return written.map_err(CliError::Stdout);
    }
    let inspected = inspect(&source, &root, wanted, args.index.as_ref(), &progress).await?;
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Inspection::of(&image, &inspected)).map_err(CliError::Stdout)?,
        OutputFormat::Text => {
            inspected.iter().map(|one| text(&image, one, stdout.style)).collect::<Vec<_>>().join("\n")
        }
    };
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)
}
