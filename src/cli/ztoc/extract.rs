//! `ociseek ztoc extract`.

use std::fs::File;
use std::sync::Arc;

use super::args::ZtocExtractArgs;
use super::input::read_ztoc;
use crate::cli::shared::error::CliError;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Stdout, Style, complain, safe};
use ociseek_format::layer::span::SpanTable;
use ociseek_ops::extract::{ExtractError, Output, extract};

/// Extracts until `still_wanted` returns false.
pub(crate) fn run(
    args: &ZtocExtractArgs,
    stdout: &mut Stdout,
    still_wanted: &dyn Fn() -> bool,
) -> Result<(), CliError> {
    let path = &args.layer;
    let (_, ztoc) = read_ztoc(&args.ztoc)?;
    let blob = File::open(path).map_err(|source| CliError::Read { path: path.clone(), source })?;
    let extracted = SpanTable::new(Arc::new(ztoc)).map_err(ExtractError::Spans).and_then(|table| {
        let mut output = Output::new(&args.output, args.force)?;
        extract(&table, &blob, &mut output, still_wanted)
    });
    let extracted = extracted.map_err(|source| CliError::Extract { path: path.clone(), source })?;
    for warning in &extracted.warnings {
        complain(&format!("{} {}", Style::stderr().yellow("warning:"), safe(warning)));
    }
    let mut summary = format!("{}, {}", counted(extracted.files, "file", "files"), human(extracted.bytes));
    if extracted.hard_links > 0 {
        summary += &format!(", {}", counted(extracted.hard_links, "hard link", "hard links"));
    }
    if extracted.left_out > 0 {
        let left_out = counted(extracted.left_out, "entry", "entries");
        summary += &format!("; {left_out} skipped (symbolic links, devices or fifos)");
    }
    stdout.write_whole(format!("{summary}\n").as_bytes()).map_err(CliError::Stdout)
}
