//! `ociseek ztoc show`.

use super::args::ZtocShowArgs;
use super::input::read_ztoc;
use super::{json, text};
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::terminal::Stdout;

/// Prints everything in a ztoc.
pub(crate) fn show(args: &ZtocShowArgs, stdout: &mut Stdout) -> Result<(), CliError> {
    let (bytes, ztoc) = read_ztoc(&args.file)?;
    match args.format.get() {
        OutputFormat::Text => text::write(&bytes, &ztoc, stdout),
        OutputFormat::Json => json::write(&bytes, &ztoc, stdout),
    }
    .map_err(CliError::Stdout)
}
