//! `ociseek report`.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use tokio::task::spawn_blocking;

use crate::cli::shared::error::CliError;
use crate::cli::shared::progress::Display;
use crate::cli::shared::read_image::{FoundImage, tell_stats};
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::Stdout;
use args::ReportArgs;
use ociseek_ops::report::{FineDocuments, Report};
use ociseek_rootfs::record::{self, RecordedRead};

pub(super) mod args;
mod html;
pub(super) mod json;
mod markup;

pub(super) async fn run(args: ReportArgs, talk: TalkArgs) -> Result<(), CliError> {
    if args.output.is_none() && !args.wants_json() && io::stdout().is_terminal() {
        return Err(CliError::Usage("a terminal does not show HTML: give --output FILE"));
    }
    let reads = profile(&args)?;
    let display = Arc::new(Display::new(talk));
    let opening = async {
        let found = FoundImage::new(&args.image, &args.read, display.clone()).await?;
        let image = found.open(&args.read, true).await?;
        let documents = FineDocuments::of(&image).await;
        Ok::<_, CliError>((found, image, documents))
    };
    let (found, image, documents) = display.during(&args.image.to_string(), opening).await?;
    let budget = found.source.budget().clone();
    let facts = spawn_blocking(move || (Report::of(&image, &documents, reads.as_deref(), &budget), image)).await;
    let (facts, image) = facts.map_err(|error| CliError::Start(error.into()))?;
    let (facts, name) = (facts?, args.image.to_string());
    let text = match args.wants_json() {
        true => json::text(&name, &facts).map_err(CliError::Stdout)?,
        false => html::page(&name, &facts),
    };
    match args.file() {
        Some(path) => {
            std::fs::write(path, text).map_err(|source| CliError::Write { path: path.clone(), source })?;
        }
        None => Stdout::new().write_whole(text.as_bytes()).map_err(CliError::Stdout)?,
    }
    if args.read.stats {
        tell_stats(&image);
    }
    Ok(())
}

fn profile(args: &ReportArgs) -> Result<Option<Vec<RecordedRead>>, CliError> {
    let Some(path) = &args.profile else { return Ok(None) };
    let text = std::fs::read(path).map_err(|source| CliError::Read { path: path.clone(), source })?;
    let reads = record::parse(&text).map_err(|source| CliError::Profile { path: path.clone(), source })?;
    Ok(Some(reads))
}
