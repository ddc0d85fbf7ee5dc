//! The output of `ociseek inspect` for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::cli::inspect::json::{covered, ztoc_bytes};
use crate::cli::shared::layers;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::image::LayerKind;
use ociseek_format::image::consumer::{Consumer, Verdict};
use ociseek_format::image::soci::Version;
use ociseek_ops::discover::{DiscoveredImage, DiscoveryMethod, FineSummary, FoundIndexRef};
use ociseek_ops::inspect::{InspectedImage, InspectedList};
use ociseek_ops::trust::TrustLevel;

pub(super) fn text(name: &str, inspected: &InspectedImage, style: Style) -> String {
    let image = &inspected.image;
    let mut text = String::new();
    let platform = image.platform.as_ref().map_or_else(|| "unknown platform".to_owned(), ToString::to_string);
    let _ = writeln!(text, "{} {}", style.bold(&safe(name)), style.bold(&safe(&platform)));
    let _ = writeln!(text, "  manifest {}", image.manifest.digest);
    if let Err(error) = &image.listing {
        let _ = writeln!(text, "  {} indexes cannot be listed: {}", style.yellow("note:"), in_one_line(error));
    }
    if let Some(odd) = &image.odd_annotation {
        let note = style.yellow("note:");
        let _ = writeln!(text, "  {note} the manifest names an index by {:?}, which is not a digest", safe(odd));
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
            let _ = writeln!(text, "  {}", style.dim(&format!("{}: {}", consumer.name(), outcome(&verdict))));
        }
    }
    text
}

/// An index with its faults.
fn index(text: &mut String, image: &DiscoveredImage, found: &FoundIndexRef, is_chosen: bool, style: Style) {
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
        let covered = image.layers.iter().filter(|layer| content.ztocs.contains_key(&layer.digest)).count();
        facts.push(format!("{covered} of {}", counted(image.layers.len() as u64, "layer", "layers")));
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
            let (covered, layers) = (content.coverage.layers, image.layers.len() as u64);
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
            let _ = writeln!(text, "    {} it cannot be used: {}", style.yellow("note:"), safe(why));
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
pub(super) fn layers(text: &mut String, inspected: &InspectedImage, style: Style) {
    let mut rows = vec![["LAYER", "SIZE", "SPANS", "FILES", "PLAIN", "ZTOC", ""].map(str::to_owned)];
    for (layer, ztoc) in inspected.image.layers.iter().zip(&inspected.layers) {
        let (digest, size) = (layer.digest.short(), human(layer.size));
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
    let lists: Vec<&InspectedList> = once.filter_map(|(_, found)| found.prefetch.as_ref()).collect();
    for list in &lists {
        if let Err(why) = &list.spans {
            let (note, digest) = (style.yellow("note:"), list.artifact.digest);
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
            let (lazy, whole) = (coverage.layers as u64, coverage.of_layers - coverage.layers);
            format!("mounts {} lazily, pulls {whole}", counted(lazy, "layer", "layers"))
        }
    }
}

/// Why a layer has no ztoc, as far as its media type shows.
fn without_ztoc(media_type: &str) -> String {
    let code = LayerKind::of(media_type).code();
    code.map_or_else(|| "no ztoc".to_owned(), |code| format!("no ztoc: {}", code.replace('-', " ")))
}
