//! `ociseek report`: its options, and the report as text for a terminal.

use std::fmt::{self, Write};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use tokio::task::spawn_blocking;

use crate::cli::shared::error::CliError;
use crate::cli::shared::progress::Display;
use crate::cli::shared::read_image::{FoundImage, ReadArgs, tell_stats};
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Stdout, Style, complain, quoted, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::ImageName;
use ociseek_ops::report::{FineDocuments, LargeFile, Lazy, Report};
use ociseek_rootfs::record::{self, RecordedRead};

mod html;
pub(super) mod json;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// One HTML page
    Html,
    /// A summary for a terminal
    Text,
    /// The facts on the page
    Json,
}

const REPORT_LONG_ABOUT: &str = "\
Draws an image as one HTML page: its layers and their spans with the files in them, how much of it can be read \
lazily, which layers cannot and why, and its largest files. With the profile of a start the page shows what that \
start reads and what it would fetch at other span sizes.

The page has no scripts and loads nothing, so it can be mailed, archived or attached to a CI run. The same image and \
profile give the same bytes. Layers that no index covers are read once, as for ociseek ls.

IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive from docker save.";

const REPORT_AFTER_HELP: &str = "\
Examples:
  ociseek report ghcr.io/acme/app:1.4 --output report.html

  The same as text, on the terminal:
    ociseek report ghcr.io/acme/app:1.4

  With what a start reads:
    ociseek trace ghcr.io/acme/app:1.4 > start.jsonl
    ociseek report ghcr.io/acme/app:1.4 --profile start.jsonl --output report.html

  The largest files, for programs:
    ociseek report --json oci:app | jq '.largest[:5]'

JSON: docs/json.md describes each field.";

/// Draw an image's layers, spans and files as an HTML page
#[derive(Debug, Args)]
#[command(long_about = REPORT_LONG_ABOUT, after_long_help = REPORT_AFTER_HELP)]
pub(crate) struct ReportArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Write the page to this file; - is standard output [default: standard output, unless it is a
    /// terminal]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Show what a recorded start reads: the output of ociseek trace or of mount --record
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    #[command(flatten)]
    pub read: ReadArgs,

    /// An HTML page, a summary as text, or the facts as JSON (docs/json.md) [default: text on a
    /// terminal, otherwise html]
    #[arg(
        long,
        value_name = "FORMAT",
        env = "OCISEEK_FORMAT",
        value_enum,
        help_heading = "Output"
    )]
    format: Option<ReportFormat>,

    /// Same as --format json
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Same as --format text
    #[arg(long, help_heading = "Output", conflicts_with = "json")]
    text: bool,
}

impl ReportArgs {
    fn format(&self) -> ReportFormat {
        match self.format {
            _ if self.json => ReportFormat::Json,
            _ if self.text => ReportFormat::Text,
            Some(format) => format,
            None if self.output.is_none() && io::stdout().is_terminal() => ReportFormat::Text,
            None => ReportFormat::Html,
        }
    }

    pub(crate) fn wants_json(&self) -> bool {
        self.format() == ReportFormat::Json
    }

    /// The destination of the page. None for standard output.
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        self.output.as_ref().filter(|path| path.as_os_str() != "-")
    }
}

pub(super) async fn run(args: ReportArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let format = args.format();
    let ending = args.file().and_then(|file| file.extension()).and_then(|ending| ending.to_str());
    match (format, ending) {
        (ReportFormat::Html, None) if args.output.is_none() && io::stdout().is_terminal() => {
            return Err(CliError::Usage(
                "a terminal does not show HTML: use --output FILE, or --text",
            ));
        }
        (ReportFormat::Html, Some("pdf")) => {
            return Err(CliError::Usage(
                "the report is an HTML page: name it .html, and print it to PDF in a browser",
            ));
        }
        (ReportFormat::Html, Some("json")) => return Err(CliError::Usage("for JSON, use --json")),
        (ReportFormat::Html, Some("txt")) => return Err(CliError::Usage("for text, use --text")),
        _ => {}
    }
    let reads = profile(&args)?;
    let display = Arc::new(Display::new(verbosity));
    let opening = async {
        let found = FoundImage::new(&args.image, &args.read, display.clone()).await?;
        let image = found.open(&args.read, true).await?;
        let documents = FineDocuments::of(&image).await;
        Ok::<_, CliError>((found, image, documents))
    };
    let (found, image, documents) = display.during(&args.image.to_string(), opening).await?;
    let budget = found.source.budget().clone();
    let facts =
        spawn_blocking(move || (Report::of(&image, &documents, reads.as_deref(), &budget), image))
            .await;
    let (facts, image) = facts.map_err(|error| CliError::Start(error.into()))?;
    let facts = facts?;
    let name = args.image.to_string();
    let mut stdout = Stdout::new();
    let text = match format {
        ReportFormat::Json => json::text(&name, &facts)?,
        ReportFormat::Html => html::page(&name, &facts),
        ReportFormat::Text if args.file().is_some() => summary(&name, &facts, Style::plain()),
        ReportFormat::Text => summary(&name, &facts, stdout.style),
    };
    match args.file() {
        Some(path) => {
            std::fs::write(path, text)
                .map_err(|source| CliError::Write { path: path.clone(), source })?;
            if !verbosity.quiet {
                complain(&format!("wrote {}", safe(&path.display().to_string())));
            }
        }
        None => stdout.print(text)?,
    }
    if args.read.stats {
        tell_stats(&image);
    }
    Ok(())
}

fn profile(args: &ReportArgs) -> Result<Option<Vec<RecordedRead>>, CliError> {
    let Some(path) = &args.profile else { return Ok(None) };
    let text =
        std::fs::read(path).map_err(|source| CliError::Read { path: path.clone(), source })?;
    let reads =
        record::parse(&text).map_err(|source| CliError::Profile { path: path.clone(), source })?;
    Ok(Some(reads))
}

/// How many of the largest files are listed.
const FILES: usize = 10;
/// The width of the bar for the largest layer, in columns.
const BAR: u64 = 24;

fn summary(image: &str, report: &Report, style: Style) -> String {
    let mut text = String::new();
    let platform =
        report.platform.as_ref().map(|platform| format!(" {platform}")).unwrap_or_default();
    let _ = writeln!(text, "{}", style.bold(&safe(&format!("{image}{platform}"))));
    let coverage = &report.coverage;
    let totals = &report.totals;
    let _ = writeln!(
        text,
        "  {} in {}, {} unpacked; {} can be read lazily",
        human(coverage.of_bytes),
        counted(coverage.of_layers as u64, "layer", "layers"),
        human(totals.plain),
        coverage.share()
    );
    if let Some(start) = &report.start {
        let files = counted(start.files, "file", "files");
        let _ = writeln!(text, "  a start reads {} for {files}", human(start.bytes));
    }
    if totals.shadowed.bytes > 0 {
        let files = counted(totals.shadowed.files, "file", "files");
        let _ = writeln!(
            text,
            "  {} in {files} that layers above replace or remove",
            human(totals.shadowed.bytes)
        );
    }
    if let Err(why) = &report.index {
        let _ = writeln!(text, "  {} {}", style.yellow("note:"), safe(&why.to_string()));
    }
    layers(&mut text, report, style);
    if !report.largest.is_empty() {
        let _ = writeln!(text, "\n{}", style.bold("Largest files"));
    }
    for LargeFile { path, size, layer, read } in report.largest.iter().take(FILES) {
        let read = if *read == Some(true) { "  read by the start" } else { "" };
        let _ = writeln!(text, "  {:>10}  layer {layer:<3} {}{read}", human(*size), quoted(path));
    }
    text
}

fn layers(text: &mut String, report: &Report, style: Style) {
    let _ = writeln!(text, "\n{}", style.bold("Layers, counted from 0 at the bottom"));
    let most = report.layers.iter().map(|layer| layer.descriptor.size).max().unwrap_or(0).max(1);
    for (layer, share) in report.layers.iter().zip(shares_of_layers(report)) {
        let size = layer.descriptor.size;
        let filled = (u128::from(size) * u128::from(BAR)).div_ceil(u128::from(most)) as usize;
        let what = match (&layer.lazy, layer.same_as) {
            (_, Some(same)) => format!("the same blob as layer {same}"),
            (Lazy::Yes, None) => match layer.read {
                Some(read) => format!("the start reads {} of {} spans", read.spans, layer.spans),
                None => counted(u64::from(layer.spans), "span", "spans"),
            },
            (Lazy::No(why), None) => format!("pulled whole: {why}"),
        };
        let _ = writeln!(
            text,
            "  {:>3}  {}  {:>10}  {:>14}  {:<width$}  {}",
            layer.number.to_string(),
            layer.descriptor.digest.short(),
            human(size),
            share.to_string(),
            "#".repeat(filled),
            safe(&what),
            width = BAR as usize,
        );
    }
    if report.layers_left_out > 0 {
        let layers =
            counted(report.layers_left_out as u64, "smaller layer is", "smaller layers are");
        let _ = writeln!(text, "  {layers} not shown");
    }
}

/// A part of a whole, in tenths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Percent {
    tenths: u64,
    /// Whether it is more than nothing, and less than everything.
    is_part: bool,
}

impl Percent {
    fn is_below(self, tenths: u64) -> bool {
        self.tenths < tenths
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tenths {
            0 if self.is_part => f.write_str("less than 0.1%"),
            1000 if self.is_part => f.write_str("more than 99.9%"),
            tenths if tenths % 10 == 0 => write!(f, "{}%", tenths / 10),
            tenths => write!(f, "{}.{}%", tenths / 10, tenths % 10),
        }
    }
}

/// The share of each part in their sum. Rounded so that the printed numbers add up to 100: the
/// parts that lose most by rounding down get the missing tenths.
fn shares(parts: &[u64]) -> Vec<Percent> {
    let all: u128 = parts.iter().map(|&part| u128::from(part)).sum();
    let scaled = |part: u64| u128::from(part) * 1000;
    let mut tenths: Vec<u64> =
        parts.iter().map(|&part| (scaled(part) / all.max(1)) as u64).collect();
    let missing = if all == 0 { 0 } else { 1000 - tenths.iter().sum::<u64>() };
    let mut by_loss: Vec<usize> = (0..parts.len()).collect();
    by_loss.sort_by_key(|&place| std::cmp::Reverse(scaled(parts[place]) % all.max(1)));
    by_loss.iter().take(missing as usize).for_each(|&place| tenths[place] += 1);
    let is_part = |part: u64| part > 0 && u128::from(part) < all;
    tenths
        .into_iter()
        .zip(parts)
        .map(|(tenths, &part)| Percent { tenths, is_part: is_part(part) })
        .collect()
}

/// The share of each shown layer in the image. A blob counts once.
fn shares_of_layers(report: &Report) -> Vec<Percent> {
    let size = |layer: &ociseek_ops::report::LayerBreakdown| match layer.same_as {
        Some(_) => 0,
        None => layer.descriptor.size,
    };
    let mut sizes: Vec<u64> = report.layers.iter().map(size).collect();
    let shown = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
    sizes.push(report.coverage.of_bytes.saturating_sub(shown));
    shares(&sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_100() {
        let shown =
            |parts: &[u64]| shares(parts).iter().map(Percent::to_string).collect::<Vec<_>>();
        assert_eq!(shown(&[896_900, 103_100]), ["89.7%", "10.3%"]);
        assert_eq!(shown(&[1, 1, 1]), ["33.4%", "33.3%", "33.3%"]);
        assert_eq!(shown(&[0, 5]), ["0%", "100%"]);
        assert_eq!(shown(&[1, 1_000_000]), ["less than 0.1%", "more than 99.9%"]);
        assert_eq!(shown(&[0, 0]), ["0%", "0%"]);
        for parts in [&[3, 5, 7, 11, 13][..], &[u64::MAX, u64::MAX, 1], &[7; 23]] {
            assert_eq!(
                shares(parts).iter().map(|share| share.tenths).sum::<u64>(),
                1000,
                "{parts:?}"
            );
        }
    }
}
