//! `ociseek doctor`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
#[cfg(mounts)]
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use crate::cli::shared::args::{FormatArgs, OutputFormat, PlatformArgs, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::hint::{WITH_GZIP, convert_again, has_tag, new_name, or_fine, to_index};
use crate::cli::shared::json::{
    ConsumerJson, CoverageJson, Fine, Manifest as ManifestRef, text as text_of,
};
use crate::cli::shared::progress::Display;
use crate::cli::shared::size::human;
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::{Stdout, Style, quoted, safe, terminal_width};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::consumer::{Defect, Reason, Verdict};
use ociseek_format::image::soci::Version;
use ociseek_format::image::{Coverage, ImageName, LayerKind, NotIndexed};
use ociseek_format::progress::Progress;
use ociseek_ops::discover::Note;
use ociseek_ops::doctor::{Diagnosis, Door, DoorVerdict, Finding, FineUse, NoIndex, diagnose};
use ociseek_ops::judge::NotLazy;
use ociseek_ops::resolve::PlatformChoice;

const LONG_ABOUT: &str = "\
Explains which runtimes would use which SOCI index of an image, and why the others would not (of the platform of \
this machine, unless --platform or --all-platforms is given): soci-snapshotter by \
version and settings, AWS Fargate, SageMaker Studio. It then lists problems (several indexes, wrong or missing \
pieces, layers without a ztoc), each with the command to fix it.

No layer is read. The ztocs that consumers would use are read, and their sizes compared with the layers; ociseek \
verify checks them fully. The last rows are ociseek's own ways to start containers, by the rules that they state. \
They read SOCI indexes and fine indexes; no other runtime reads fine indexes. Shares are of the image's compressed \
layers. The behaviour of consumers is taken from their sources and documentation, which --format json names. IMAGE \
is as for ociseek index.";

const AFTER_HELP: &str = "\
Examples:
  ociseek doctor ghcr.io/acme/app:1.4
  ociseek doctor --node ghcr.io/acme/app:1.4
  ociseek doctor --format json ghcr.io/acme/app:1.4 | jq '.manifests[].consumers[] | select(.lazy)'

JSON: docs/json.md describes each field.

Exit status: 0 at least one of these, or ociseek itself, starts the image lazily on at least one platform, 1 failure, \
2 usage error, 3 none does or the image is incomplete; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Explain which runtimes will lazy-load an image, and why others will not
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
    /// The same code judges, and says why not in the words of the snapshotter's log. The options
    /// for the registry are those of the configuration.
    #[cfg(mounts)]
    #[arg(long, value_name = "CONFIG", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "/etc/ociseek/snapshotter.toml")]
    #[arg(conflicts_with_all = ["platform", "all_platforms"])]
    pub node: Option<PathBuf>,

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
    let found = diagnose(&source, &root, wanted, &progress).await?;
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(Report::of(&image, &found))?,
        OutputFormat::Text => {
            found.iter().map(|one| text(&image, one, stdout.style)).collect::<Vec<_>>().join("\n")
        }
    };
    stdout.print(text)?;
    if found.iter().any(Diagnosis::is_lazy) { Ok(()) } else { Err(CliError::Unused) }
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
fn rows(found: &Diagnosis) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (consumer, verdict) in found.inspected.verdicts().iter() {
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
    let fine = found.by_fine();
    for (door, verdict) in found.doors() {
        let (mark, what) = match verdict {
            Ok(coverage) => (Mark::Lazy, format!("{}{}", by(found, fine), covered(&coverage))),
            Err(why) => (Mark::Whole, why.to_string()),
        };
        let what = match (door, mark) {
            (Door::Snapshotter | Door::Store, Mark::Lazy) => {
                format!("{what}; if {}", condition(door))
            }
            (Door::Mount, Mark::Lazy) => match fine {
                Some(fine) => format!("{what}; {}", fetched_first(fine, &coverage_of(found))),
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
            "lazy-from names its repository; podman 5.1 or later also needs --toc-digests"
        }
        _ => "lazy-from names its repository",
    }
}

/// By which index ociseek reads the image.
fn by(found: &Diagnosis, fine: Option<FineUse>) -> String {
    match (fine, found.inspected.image.index()) {
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
fn coverage_of(found: &Diagnosis) -> Coverage {
    Coverage::of(&found.inspected.image.layers, |_| false)
}

/// What of a fine index is fetched before a container starts, as a share of the image.
fn fetched_first(fine: FineUse, image: &Coverage) -> String {
    let recorded = if fine.is_recorded { ", with its recorded start" } else { "" };
    let share = Coverage { bytes: fine.start_bytes, ..*image }.share();
    format!("{} ({share} of the image) fetched first{recorded}", human(fine.start_bytes))
}

fn text(name: &str, found: &Diagnosis, style: Style) -> String {
    let image = &found.inspected.image;
    let platform = platform(found);
    let mut text = String::new();
    let _ = writeln!(text, "{} {}", style.bold(&safe(name)), style.bold(&safe(&platform)));
    let _ = writeln!(text, "  manifest {}", image.manifest.digest);
    let rows = rows(found);
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    for Row { name, mark, what } in rows {
        let mark = match mark {
            Mark::Lazy => style.green("lazy "),
            Mark::Whole => style.yellow("whole"),
            Mark::Fails => style.red("fails"),
        };
        row(&mut text, &format!("  {name:width$}  {mark}  "), width + 11, &what);
    }
    let small: Vec<u64> = found.findings.iter().filter_map(small_layer).collect();
    let mut findings = found.findings.iter().collect::<Vec<_>>();
    let mut has_small = false;
    // One line for all of them: the layers are in the report of `convert` and in `inspect`.
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
        let _ = writeln!(text, "  {kind} {}{size}", safe(&finding.to_string()));
        if let Some(next) = next(finding, name, found)
            && told.insert(next.clone())
        {
            let _ = writeln!(text, "    {} {}", style.dim("next:"), safe(&next));
        }
    }
    text
}

/// A row of the table. On a terminal that is too narrow, its reason is on lines of its own, which
/// break between words.
fn row(text: &mut String, head: &str, head_width: usize, what: &str) {
    let columns = terminal_width().unwrap_or(usize::MAX);
    if head_width.saturating_add(what.chars().count()) <= columns {
        let _ = writeln!(text, "{head}{what}");
        return;
    }
    let _ = writeln!(text, "{}", head.trim_end());
    let mut line = String::new();
    for word in what.split(' ') {
        if !line.is_empty() && line.chars().count() + word.chars().count() + 5 >= columns {
            let _ = writeln!(text, "    {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    let _ = writeln!(text, "    {line}");
}

/// The size of a layer that is not indexed because it is small.
fn small_layer(finding: &Finding) -> Option<u64> {
    match finding {
        Finding::Uncovered { size, why: Some(NotIndexed::Small { .. }), .. } => Some(*size),
        _ => None,
    }
}

fn platform(found: &Diagnosis) -> String {
    found
        .inspected
        .image
        .platform
        .as_ref()
        .map_or_else(|| "unknown platform".to_owned(), ToString::to_string)
}

/// The command that would help.
fn next(finding: &Finding, image: &str, found: &Diagnosis) -> Option<String> {
    let name: ImageName = image.parse().ok()?;
    // Nothing can be attached to an image in an archive.
    let is_archive = matches!(name, ImageName::Archive { .. } | ImageName::Saved { .. });
    let image = quoted(image.as_bytes());
    let converted = quoted(new_name(&name).as_bytes());
    let convert = || Some(format!("ociseek convert {image} {converted}"));
    let index = |options: &str| (!is_archive).then(|| format!("ociseek index {options}{image}"));
    let has_fine = found.inspected.image.fine_index().is_some();
    let is_enabled = found.inspected.image.indexes.iter().any(|index| index.version == Version::V2);
    let convert_fine = |options: &str| {
        if has_tag(&name) {
            format!("ociseek convert --fine {options}--replace-tag {image} {image}")
        } else {
            format!("ociseek convert --fine {options}{image} {converted}")
        }
    };
    match finding {
        Finding::NoIndex { why: NoIndex::Impossible { has_large_zstd: true, .. }, .. }
            if !has_fine =>
        {
            Some(or_fine(&name))
        }
        Finding::Uncovered {
            size: NotIndexed::MIN_LAYER_SIZE..,
            why: Some(NotIndexed::Kind(LayerKind::Zstd)),
            ..
        } if !has_fine => Some(or_fine(&name)),
        Finding::NoIndex { why, .. } => to_index(&name, why),
        Finding::OnImageIndex(_) | Finding::OtherVersion { .. } => index(""),
        Finding::Several(_)
        | Finding::Unusable { version: Version::V1, .. }
        | Finding::Note {
            note: Note::NotCanonical | Note::TooLarge { .. } | Note::NotInImage { .. },
            ..
        }
        | Finding::Note {
            note: Note::Second { .. } | Note::NotServable { .. } | Note::MediaType { .. },
            ..
        } => index("--existing replace "),
        Finding::BrokenZtoc(_) | Finding::LostBlobs { .. } => {
            if is_of_version_2(finding, found) {
                Some(convert_again(&name))
            } else {
                index("--existing replace ")
            }
        }
        Finding::Unusable { .. } | Finding::OddAnnotation(_) => {
            Some("ociseek convert, from the original image, to a new tag".into())
        }
        Finding::Note { note: Note::NotBeside, .. } => {
            Some("copy the whole image index: skopeo copy --all, crane copy".into())
        }
        Finding::OnlyV1 => convert(),
        Finding::LostLayer(_) | Finding::LostConfig(_) => Some("push the image again".into()),
        Finding::Uncovered { why: Some(NotIndexed::Kind(LayerKind::Zstd)), .. } => {
            Some(WITH_GZIP.into())
        }
        Finding::Uncovered { why: None, .. } => index("--dry-run --existing replace "),
        Finding::NoFine { .. } | Finding::NoStart(_) if is_archive => None,
        // A SOCI index of another tool would get a second one.
        // One that is only attached would not be used: the digest covers all that a start reads.
        Finding::NoFine { .. } | Finding::UnusableFine { .. } | Finding::BrokenDocument(_)
            if is_enabled =>
        {
            Some(convert_fine(""))
        }
        Finding::NoStart(_) if is_enabled => Some(format!(
            "ociseek try {image} --record start.jsonl, then {}",
            convert_fine("--profile start.jsonl ")
        )),
        Finding::NoFine { is_indexed: true } | Finding::UnusableFine { .. } => {
            index("--kind fine ")
        }
        Finding::NoFine { is_indexed: false } => {
            Some(format!("ociseek convert --fine {image} {converted}"))
        }
        Finding::BrokenDocument(_) => index("--kind fine --existing replace "),
        Finding::NoStart(_) => Some(format!(
            "ociseek try {image} --record start.jsonl, then ociseek index --kind fine --profile start.jsonl {image}"
        )),
        Finding::Foreign { .. } => Some(format!("ociseek verify --quick {image}")),
        Finding::NotListed(_)
        | Finding::Note { note: Note::Unknown { .. }, .. }
        | Finding::Uncovered { .. }
        | Finding::SmallImage(_) => None,
    }
}

/// Whether an index of version 2 names the blobs of the finding.
fn is_of_version_2(finding: &Finding, found: &Diagnosis) -> bool {
    let mut indexes =
        found.inspected.image.indexes.iter().filter(|index| index.version == Version::V2);
    indexes.any(|found| match (finding, &found.content) {
        (Finding::LostBlobs { index, .. }, _) => found.digest == *index,
        (Finding::BrokenZtoc(broken), Ok(content)) => {
            content.index.ztocs.iter().any(|ztoc| ztoc.ztoc == broken.ztoc)
        }
        _ => false,
    })
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// The full name of IMAGE.
    image: String,
    /// Whether a consumer, or ociseek itself, starts the image lazily on at least one platform.
    lazy: bool,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    manifest: ManifestRef,
    consumers: Vec<ConsumerJson>,
    /// ociseek's own ways to start containers, by the rules that they state.
    ociseek: Vec<DoorJson>,
    /// The fine indexes that were found: none of the consumers reads them, but `ociseek mount` and
    /// `bundle` do.
    fine: Vec<Fine>,
    findings: Vec<FindingJson>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Door"))]
struct DoorJson {
    /// A stable word: `ociseek-snapshotter`, `ociseek-store` or `ociseek-mount`.
    door: &'static str,
    /// For people.
    name: &'static str,
    /// Whether it starts the image lazily, if the rule is kept.
    lazy: bool,
    /// What it wants besides an index, for people.
    rule: &'static str,
    /// What is read by indexes, or null.
    coverage: Option<CoverageJson>,
    /// Why it does not start the image lazily, or null.
    reason: Option<DoorReason>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DoorReason {
    /// A stable word, as in the metrics and the log of the snapshotter.
    code: &'static str,
    text: String,
}

impl DoorJson {
    fn of(door: Door, verdict: DoorVerdict) -> DoorJson {
        let reason = |why: &NotLazy| DoorReason { code: why.code(), text: why.to_string() };
        DoorJson {
            door: door.code(),
            name: door.name(),
            lazy: verdict.is_ok(),
            rule: door.rule(),
            coverage: verdict.as_ref().ok().map(CoverageJson::of),
            reason: verdict.as_ref().err().map(reason),
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Finding"))]
struct FindingJson {
    /// A stable word.
    code: &'static str,
    /// Whether it prevents consumers from using an index. Other findings are only informative.
    problem: bool,
    text: String,
    /// A command or advice, or null.
    next: Option<String>,
}

impl Report {
    pub(crate) fn of(image: &str, found: &[Diagnosis]) -> Report {
        Report {
            image: image.to_owned(),
            lazy: found.iter().any(Diagnosis::is_lazy),
            manifests: found.iter().map(|one| Manifest::of(image, one)).collect(),
        }
    }
}

impl Manifest {
    fn of(name: &str, found: &Diagnosis) -> Manifest {
        let image = &found.inspected.image;
        let finding = |finding: &Finding| FindingJson {
            code: finding.code(),
            problem: finding.is_problem(),
            text: finding.to_string(),
            next: next(finding, name, found),
        };
        Manifest {
            platform: image.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::of(&image.manifest),
            consumers: ConsumerJson::each(&found.inspected),
            ociseek: found.doors().map(|(door, verdict)| DoorJson::of(door, verdict)).collect(),
            fine: Fine::each(&image.fine_summaries()),
            findings: found.findings.iter().map(finding).collect(),
        }
    }
}
