//! `ociseek inspect`: its options, and its output for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use clap::Args;

use crate::cli::shared::args::{FormatArgs, IndexName, OutputFormat, PlatformsArgs, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::Display;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::{Stdout, Style, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::shared::{layers, parse};
use crate::cli::ztoc;
use ociseek_format::image::consumer::{Consumer, Verdict};
use ociseek_format::image::soci::Version;
use ociseek_format::image::{ImageName, LayerKind};
use ociseek_format::progress::Progress;
use ociseek_ops::discover::{DiscoveredImage, DiscoveryMethod, FineSummary, FoundIndexRef};
use ociseek_ops::inspect::{InspectedImage, InspectedList, find_ztoc, inspect};
use ociseek_ops::trust::TrustLevel;

pub(super) mod json;

use json::{covered, ztoc_bytes};

const INSPECT_LONG_ABOUT: &str = "\
Shows which SOCI indexes and fine indexes an image has and what they contain: the tool that made them, how they were \
found, which layers and how much of the image they cover, the sizes of the ztocs and documents, and how consumers use \
the SOCI indexes.

No layer is read. IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive \
from docker save.";

const INSPECT_AFTER_HELP: &str = "\
Examples:
  ociseek inspect ghcr.io/acme/app:1.4
  ociseek inspect --format json oci:app | jq '.manifests[].coverage'
  ociseek inspect --ztoc 3f1c22ab oci:app

JSON: docs/json.md describes each field.";

/// Show which indexes an image has and what they contain
#[derive(Debug, Args)]
#[command(long_about = INSPECT_LONG_ABOUT, after_help = INSPECT_AFTER_HELP)]
pub(crate) struct InspectArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Show the layers through this index, by its digest (then listed or not) or at least six of
    /// its first digits [default: the first usable ones]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<IndexName>,

    /// Show everything in one ztoc: its spans and files
    ///
    /// The ztoc is named by its own digest or by its layer's, or by six or more of the first
    /// digits of one.
    #[arg(long, value_name = "DIGEST", value_parser = parse::start_of_digest)]
    pub ztoc: Option<String>,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: InspectArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let display = Arc::new(Display::new(verbosity));
    let image = args.image.to_string();
    let progress: Arc<dyn Progress> = display.clone();
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    let (source, root) = display.during(&image, images.open(&args.image)).await?;
    let wanted = args.platforms.wanted();
    let mut stdout = Stdout::new();
    if let Some(named) = &args.ztoc {
        let found = find_ztoc(&source, &root, wanted, named, &progress).await?;
        let (bytes, ztoc) = found.ok_or_else(|| CliError::NoZtoc(named.clone()))?;
        let written = match args.format.get() {
            OutputFormat::Text => ztoc::write_text(&bytes, &ztoc, &mut stdout),
            OutputFormat::Json => ztoc::json::write(&bytes, &ztoc, &mut stdout),
        };
        return written.map_err(CliError::Stdout);
    }
    let index = match &args.index {
        Some(index) => Some(index.digest(&source, &root, wanted, &progress).await?),
        None => None,
    };
    let inspected = inspect(&source, &root, wanted, index.as_ref(), &progress).await?;
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Inspection::of(&image, &inspected))?,
        OutputFormat::Text => inspected
            .iter()
            .map(|one| text(&image, one, stdout.style))
            .collect::<Vec<_>>()
            .join("\n"),
    };
    stdout.print(text)
}

fn text(name: &str, inspected: &InspectedImage, style: Style) -> String {
    let image = &inspected.image;
    let mut text = String::new();
    let platform =
        image.platform.as_ref().map_or_else(|| "unknown platform".to_owned(), ToString::to_string);
    let _ = writeln!(text, "{} {}", style.bold(&safe(name)), style.bold(&safe(&platform)));
    let _ = writeln!(text, "  manifest {}", image.manifest.digest);
    if let Err(error) = &image.listing {
        let _ = writeln!(
            text,
            "  {} indexes cannot be listed: {}",
            style.yellow("note:"),
            in_one_line(error)
        );
    }
    if let Some(odd) = &image.odd_annotation {
        let note = style.yellow("note:");
        let _ = writeln!(
            text,
            "  {note} the manifest names an index by {:?}, which is not a digest",
            safe(odd)
        );
    }
    for (place, found) in image.indexes.iter().enumerate() {
        index(&mut text, image, found, image.chosen == Some(place), style);
    }
    if image.indexes.is_empty() {
        let _ = writeln!(text, "  {} none", style.yellow("index"));
    }
    for found in image.fine_summaries() {
        fine(&mut text, image, &found, style);
    }
    if image.chosen.is_some() {
        layers(&mut text, inspected, style);
        coverage(&mut text, inspected);
        prefetch(&mut text, inspected, style);
    }
    // `doctor` reports the others.
    for (consumer, verdict) in inspected.verdicts().iter() {
        if matches!(consumer, Consumer::Soci | Consumer::SociV1) {
            let _ = writeln!(
                text,
                "  {}",
                style.dim(&format!("{}: {}", consumer.name(), outcome(&verdict)))
            );
        }
    }
    text
}

/// An index with its faults.
fn index(
    text: &mut String,
    image: &DiscoveredImage,
    found: &FoundIndexRef,
    is_chosen: bool,
    style: Style,
) {
    let digest = found.digest.to_string();
    let digest = if is_chosen { style.green(&digest) } else { digest };
    let _ = writeln!(text, "  index {digest}");
    let mut facts = vec![
        match found.version {
            Version::V1 => "version 1",
            Version::V2 => "version 2",
        }
        .to_owned(),
    ];
    facts.extend(found.size.map(human));
    if let Ok(content) = &found.content {
        facts.push(maker(content.index.build_tool_identifier.as_deref()));
        let covered =
            image.layers.iter().filter(|layer| content.ztocs.contains_key(&layer.digest)).count();
        facts.push(format!(
            "{covered} of {}",
            counted(image.layers.len() as u64, "layer", "layers")
        ));
    }
    facts.push(format!("{} ({})", via(found.via), TrustLevel::of(found.via)));
    let _ = writeln!(text, "    {}", facts.join(", "));
    let note = |text: &mut String, what: &str| {
        let _ = writeln!(text, "    {} {}", style.yellow("note:"), safe(what));
    };
    match &found.content {
        Ok(content) => content.notes.iter().for_each(|what| note(text, &what.to_string())),
        Err(why) => note(text, &format!("it cannot be used: {}", in_one_line(why))),
    }
}

fn maker(tool: Option<&str>) -> String {
    tool.map_or("of an unknown tool".to_owned(), |tool| format!("by \"{}\"", safe(tool)))
}

/// A fine index with its fault, if any.
fn fine(text: &mut String, image: &DiscoveredImage, found: &FineSummary, style: Style) {
    let digest = found.digest.to_string();
    let digest = if found.chosen { style.green(&digest) } else { digest };
    let _ = writeln!(text, "  fine index {digest}");
    match &found.content {
        Ok(content) => {
            let maker = maker(content.tool.as_deref());
            let covered = content.coverage.layers;
            let layers = image.layers.len() as u64;
            let recorded = if content.profile.is_some() { ", with a recorded start" } else { "" };
            let _ = writeln!(
                text,
                "    {maker}, {covered} of {} ({}), {}, {} of it for a start{recorded}, {} ({})",
                counted(layers, "layer", "layers"),
                content.coverage.share(),
                human(content.bytes),
                human(content.start_bytes),
                via(found.via),
                TrustLevel::of(found.via),
            );
        }
        Err(why) => {
            let _ =
                writeln!(text, "    {} it cannot be used: {}", style.yellow("note:"), safe(why));
        }
    }
}

fn via(via: DiscoveryMethod) -> &'static str {
    match via {
        DiscoveryMethod::Annotation => "named by the image manifest",
        DiscoveryMethod::Api => "listed by the referrers API",
        DiscoveryMethod::TagSchema => "listed under the fallback tag",
        DiscoveryMethod::Layout => "listed in the layout",
        DiscoveryMethod::Requested => "asked for",
    }
}

/// A line for each layer, in columns.
fn layers(text: &mut String, inspected: &InspectedImage, style: Style) {
    let mut rows =
        vec![["LAYER", "SIZE", "SPANS", "FILES", "PLAIN", "ZTOC", ""].map(str::to_owned)];
    for (layer, ztoc) in inspected.image.layers.iter().zip(&inspected.layers) {
        let digest = layer.digest.short();
        let size = human(layer.size);
        let none = String::new;
        rows.push(match &ztoc.ztoc {
            None => [digest, size, none(), none(), none(), none(), without_ztoc(&layer.media_type)],
            Some((reference, Err(error))) => {
                let error = in_one_line(error);
                [digest, size, none(), none(), none(), human(reference.size), error]
            }
            Some((reference, Ok(facts))) => [
                digest,
                size,
                facts.spans.to_string(),
                facts.entries.to_string(),
                human(facts.uncompressed_size),
                human(reference.size),
                reference.ztoc.short(),
            ],
        });
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for (number, row) in rows.iter().enumerate() {
        let mut line = format!("  {:12}", row[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let line = format!("{line}  {}", row[6]);
        let line = line.trim_end();
        let _ = writeln!(text, "{}", if number == 0 { style.dim(line) } else { line.to_owned() });
    }
}

fn coverage(text: &mut String, inspected: &InspectedImage) {
    let covered = covered(&inspected.image);
    let _ = writeln!(
        text,
        "  covered: {} of {}, {} of {} ({}), by {} of ztocs",
        covered.layers,
        counted(inspected.layers.len() as u64, "layer", "layers"),
        human(covered.bytes),
        human(covered.of_bytes),
        covered.share(),
        human(ztoc_bytes(&inspected.image)),
    );
}

/// The prefetch lists of the index, if it has any.
fn prefetch(text: &mut String, inspected: &InspectedImage, style: Style) {
    let mut seen = BTreeSet::new();
    let layers = inspected.image.layers.iter().zip(&inspected.layers);
    let once = layers.filter(|(layer, _)| seen.insert(layer.digest));
    let lists: Vec<&InspectedList> =
        once.filter_map(|(_, found)| found.prefetch.as_ref()).collect();
    for list in &lists {
        if let Err(why) = &list.spans {
            let note = style.yellow("note:");
            let digest = list.artifact.digest;
            let _ = writeln!(text, "  {note} prefetch list {digest} cannot be used: {}", safe(why));
        }
    }
    let mut usable = lists.iter().filter_map(|list| list.spans.as_ref().ok()).peekable();
    if usable.peek().is_some() {
        let line = layers::prefetch_summary(usable.map(|(spans, bytes)| (&spans[..], *bytes)));
        let _ = writeln!(text, "  {line}");
    }
}

fn outcome(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Whole(reason) => format!("pulls all layers ({reason})"),
        Verdict::Lazy { coverage, .. } => {
            let lazy = coverage.layers as u64;
            let whole = coverage.of_layers - coverage.layers;
            format!("mounts {} lazily, pulls {whole}", counted(lazy, "layer", "layers"))
        }
    }
}

/// Why a layer has no ztoc, as far as its media type shows.
fn without_ztoc(media_type: &str) -> String {
    let code = LayerKind::of(media_type).code();
    code.map_or_else(|| "no ztoc".to_owned(), |code| format!("no ztoc: {}", code.replace('-', " ")))
}
