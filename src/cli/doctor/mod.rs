//! `ociseek doctor`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
#[cfg(mounts)]
use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgAction, Args};

use crate::cli::shared::args::{CACHE_SIZE, FormatArgs, OutputFormat, PlatformArgs, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::Display;
use crate::cli::shared::size::{ByteSize, human};
use crate::cli::shared::source::Images;
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, fitted, safe, terminal_width};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::consumer::{Defect, Reason, Verdict};
use ociseek_format::image::{Coverage, ImageName, NotIndexed};
use ociseek_format::progress::Progress;
use ociseek_ops::doctor::{Diagnosis, Door, Finding, FineUse, diagnose};
use ociseek_ops::resolve::PlatformChoice;

mod cure;
mod details;
pub(super) mod json;

use cure::next;
use details::details;

const LONG_ABOUT: &str = "\
Says which runtimes start an image lazily, by which index, and why the others do not: soci-snapshotter by version and \
settings, AWS Fargate, SageMaker Studio, and ociseek's own programs. It judges the platform of this machine, unless \
--platform or --all-platforms is given. It then lists problems (several indexes, wrong or missing pieces, layers \
without a ztoc), each with the command that fixes it. With --verbose it shows what the indexes contain: the tool that \
made them, how they were found, and what they have of each layer.

No layer is read. The ztocs that consumers would use are read, and their sizes compared with the layers; ociseek \
verify checks them fully. Only ociseek's own programs read fine indexes. Shares are of the image's compressed layers. \
The behaviour of consumers is taken from their sources and documentation, which --format json names. IMAGE is as for \
ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive from docker save.";

const AFTER_HELP: &str = "\
Examples:
  ociseek doctor ghcr.io/acme/app:1.4
  ociseek doctor --verbose ghcr.io/acme/app:1.4
  ociseek doctor --node ghcr.io/acme/app:1.4
  ociseek doctor --format json ghcr.io/acme/app:1.4 | jq '.manifests[].consumers[] | select(.lazy)'

JSON: docs/json.md describes each field.

Exit status: 0 at least one of these, or ociseek itself, starts the image lazily on at least one platform, 1 failure, \
2 usage error, 3 none does or the image is incomplete; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Say which runtimes load an image lazily, and why others do not
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    #[command(flatten)]
    pub platform: PlatformArgs,

    /// Judge all platforms of the image
    #[arg(long, conflicts_with = "platform")]
    pub all_platforms: bool,

    /// Say whether the snapshotter of this node starts the image lazily, by its configuration
    /// [default: /etc/ociseek/snapshotter.toml]
    ///
    /// It runs the snapshotter's code, and gives reasons in the words of its log. The options
    /// for the registry are those of the configuration.
    #[cfg(mounts)]
    #[arg(long, value_name = "CONFIG", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "/etc/ociseek/snapshotter.toml")]
    #[arg(conflicts_with_all = ["platform", "all_platforms"])]
    pub node: Option<PathBuf>,

    /// Compare the unpacked image with a cache of this size; suffixes KiB, MiB, GiB, KB, MB, GB
    #[arg(long, value_name = "SIZE", env = "OCISEEK_CACHE_SIZE", default_value = CACHE_SIZE)]
    #[arg(hide_short_help = true)]
    pub cache_size: ByteSize,

    /// Show the indexes, and what they have of each layer; -vv also logs requests, retries and
    /// cache use to standard error
    // In place of the global option, whose value it has: the log begins one step later.
    #[arg(long, short, action = ArgAction::Count)]
    #[arg(help_heading = "Output", display_order = 901)]
    pub verbose: u8,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: DoctorArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let display = Arc::new(Display::new(verbosity));
    let image = args.image.to_string();
    let progress: Arc<dyn Progress> = display.clone();
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    let (source, root) = display.during(&image, images.open(&args.image)).await?;
    let wanted = if args.all_platforms {
        PlatformChoice::All
    } else {
        PlatformChoice::of(args.platform.platform.as_ref())
    };
    let mut diagnoses = diagnose(&source, &root, wanted, &progress).await?;
    diagnoses.iter_mut().for_each(|one| one.compare_with_cache(args.cache_size.0));
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Report::of(&image, &diagnoses))?,
        OutputFormat::Text => {
            let with_details = verbosity.verbose > 0;
            let texts: Vec<_> = (diagnoses.iter())
                .map(|diagnosis| text(&image, diagnosis, with_details, stdout.style))
                .collect();
            fitted(&texts.join("\n"), terminal_width())
        }
    };
    stdout.print(text)?;
    if diagnoses.iter().any(Diagnosis::is_lazy) { Ok(()) } else { Err(CliError::not_lazy()) }
}

/// What a runtime does with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Lazy,
    Whole,
    /// It would mount the image, and reads would fail.
    Fails,
}

/// A line of the table.
struct Row {
    name: String,
    mark: Mark,
    what: String,
}

/// The runtimes of others, and then ociseek's own. Managed ones that do the same share a row.
fn rows(diagnosis: &Diagnosis) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (consumer, verdict) in diagnosis.inspected.verdicts().iter() {
        let (mark, what) = match verdict {
            Verdict::Lazy { index, version, coverage } => (
                Mark::Lazy,
                format!(
                    "index {} (version {}): {}",
                    index.short(),
                    version.number(),
                    covered(&coverage)
                ),
            ),
            Verdict::Whole(
                reason @ (Reason::MissingBlob(_) | Reason::Defect(_, Defect::WrongZtoc)),
            ) => (Mark::Fails, reason.to_string()),
            Verdict::Whole(reason) => (Mark::Whole, reason.to_string()),
        };
        match rows.last_mut() {
            Some(last)
                if matches!(verdict, Verdict::Whole(Reason::NotInEcr)) && last.what == what =>
            {
                // One line for what holds for all that Amazon runs.
                if !last.name.contains(consumer.name()) && !consumer.name().starts_with(&last.name)
                {
                    last.name += ", ";
                    last.name += consumer.name();
                }
            }
            _ => rows.push(Row { name: consumer.name().to_owned(), mark, what }),
        }
    }
    let fine = diagnosis.by_fine();
    for (door, verdict) in diagnosis.doors() {
        let (mark, what) = match verdict {
            Ok(coverage) => (Mark::Lazy, format!("{}{}", by(diagnosis, fine), covered(&coverage))),
            Err(why) => (Mark::Whole, why.to_string()),
        };
        let what = match (door, mark) {
            (Door::Snapshotter | Door::Store, Mark::Lazy) => {
                format!("{what}; if {}", condition(door))
            }
            (Door::Mount, Mark::Lazy) => match fine {
                Some(fine) => format!("{what}; {}", fetched_first(fine, &coverage_of(diagnosis))),
                None => what,
            },
            _ => what,
        };
        rows.push(Row { name: door.name().to_owned(), mark, what });
    }
    rows
}

/// What an operator must have configured.
fn condition(door: Door) -> &'static str {
    match door {
        Door::Store => {
            "the node trusts it: lazy-from names its repository, or signature-key the key that signed it; \
             podman 5.1 or later also needs convert --toc-digests"
        }
        _ => {
            "the node trusts it: lazy-from names its repository, or signature-key the key that signed it"
        }
    }
}

/// By which index ociseek reads the image.
fn by(diagnosis: &Diagnosis, fine: Option<FineUse>) -> String {
    match (fine, diagnosis.inspected.image.index()) {
        (Some(fine), _) if fine.coverage.layers > 0 => {
            format!("fine index {}: ", fine.index.short())
        }
        (_, Some((index, _))) => format!("index {}: ", index.digest.short()),
        _ => String::new(),
    }
}

fn covered(coverage: &Coverage) -> String {
    format!(
        "{} of {} layers, {} of {}",
        coverage.layers,
        coverage.of_layers,
        coverage.share(),
        human(coverage.of_bytes)
    )
}

/// All layers, of which none has to be covered.
fn coverage_of(diagnosis: &Diagnosis) -> Coverage {
    Coverage::of(&diagnosis.inspected.image.layers, |_| false)
}

/// What of a fine index is fetched before a container starts, as a share of the image.
fn fetched_first(fine: FineUse, image: &Coverage) -> String {
    let recorded = if fine.is_recorded { ", with its recorded startup" } else { "" };
    let share = Coverage { bytes: fine.start_bytes, ..*image }.share();
    format!("{} ({share} of the image) fetched first{recorded}", human(fine.start_bytes))
}

fn text(name: &str, diagnosis: &Diagnosis, with_details: bool, style: Style) -> String {
    let image = &diagnosis.inspected.image;
    let platform = platform(diagnosis);
    let mut text = String::new();
    let _ = writeln!(text, "{} {}", style.bold(&safe(name)), style.bold(&safe(&platform)));
    let _ = writeln!(text, "  manifest {}", image.manifest.digest);
    let rows = rows(diagnosis);
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    for Row { name, mark, what } in rows {
        let mark = match mark {
            Mark::Lazy => style.green("lazy") + " ",
            Mark::Whole => style.yellow("whole"),
            Mark::Fails => style.red("fails"),
        };
        row(&mut text, [&name, &mark], width, &what, terminal_width());
    }
    let small: Vec<u64> = diagnosis.findings.iter().filter_map(small_layer).collect();
    let mut findings = diagnosis.findings.iter().collect::<Vec<_>>();
    let mut has_small = false;
    // One line for all of them: the details have the layers.
    findings.retain(|finding| {
        small_layer(finding).is_none() || !std::mem::replace(&mut has_small, small.len() > 1)
    });
    // Several findings may have the same cure.
    let mut told = BTreeSet::new();
    for finding in findings {
        if small.len() > 1 && small_layer(finding).is_some() {
            let bytes = human(small.iter().fold(0, |sum, size| sum.saturating_add(*size)));
            let note = style.yellow("note:");
            let layers = small.len();
            let why = "they are small, and faster to pull whole than to mount";
            let _ = writeln!(text, "  {note} {layers} layers are pulled whole: {why} ({bytes})");
            continue;
        }
        let kind = if finding.is_problem() { style.red("problem:") } else { style.yellow("note:") };
        let size = match finding {
            Finding::Uncovered { size, .. } | Finding::SmallImage(size) => {
                format!(" ({})", human(*size))
            }
            _ => String::new(),
        };
        let said = match finding {
            Finding::LargerThanCache(larger) => larger.text(human),
            _ => finding.to_string(),
        };
        let _ = writeln!(text, "  {kind} {}{size}", safe(&said));
        if let Some(next) = next(finding, name, diagnosis)
            && told.insert(next.clone())
        {
            let _ = writeln!(text, "    {} {}", style.dim("next:"), safe(&next));
        }
    }
    if with_details {
        details(&mut text, &diagnosis.inspected, style);
    }
    text
}

/// A row of the table. On a terminal that is too narrow, its reason is on lines of its own, and on
/// one that is narrower still, with the mark.
fn row(
    text: &mut String,
    [name, mark]: [&str; 2],
    name_width: usize,
    what: &str,
    columns: Option<usize>,
) {
    let columns = columns.unwrap_or(usize::MAX);
    let head_width = name_width + 11;
    let _ = if head_width.saturating_add(what.chars().count()) <= columns {
        writeln!(text, "  {name:name_width$}  {mark}  {what}")
    } else if head_width <= columns {
        writeln!(text, "  {name:name_width$}  {}\n    {what}", mark.trim_end())
    } else {
        writeln!(text, "  {name}\n    {}: {what}", mark.trim_end())
    };
}

/// The size of a layer that is not indexed because it is small.
fn small_layer(finding: &Finding) -> Option<u64> {
    match finding {
        Finding::Uncovered { size, why: Some(NotIndexed::Small { .. }), .. } => Some(*size),
        _ => None,
    }
}

fn platform(diagnosis: &Diagnosis) -> String {
    diagnosis
        .inspected
        .image
        .platform
        .as_ref()
        .map_or_else(|| "unknown platform".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_lines_as_the_terminal_needs() {
        let shown = |columns| {
            let mut text = String::new();
            row(&mut text, ["Fargate", "lazy "], 10, "by its index", columns);
            text
        };
        assert_eq!(shown(None), "  Fargate     lazy   by its index\n");
        assert_eq!(shown(Some(33)), shown(None));
        assert_eq!(shown(Some(32)), "  Fargate     lazy\n    by its index\n");
        assert_eq!(shown(Some(20)), "  Fargate\n    lazy: by its index\n");
    }
}
