//! What `ociseek doctor --verbose` adds: the indexes of the image, and their data for each layer.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::json::{covered, ztoc_bytes};
use crate::cli::shared::layers;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::image::LayerKind;
use ociseek_format::image::soci::Version;
use ociseek_ops::discover::{DiscoveredImage, DiscoveryMethod, FineSummary, FoundIndexRef};
use ociseek_ops::inspect::{InspectedImage, InspectedList};
use ociseek_ops::trust::TrustLevel;

/// Appends them to `text`. What is wrong with an index is a finding of its own.
pub(super) fn details(text: &mut String, inspected: &InspectedImage, style: Style) {
    let image = &inspected.image;
    for (place, reference) in image.indexes.iter().enumerate() {
        index(text, image, reference, image.chosen == Some(place), style);
    }
    for summary in image.fine_summaries() {
        fine(text, image, &summary, style);
    }
    layers(text, inspected, style);
    if image.chosen.is_some() {
        coverage(text, inspected);
        prefetch(text, inspected, style);
    }
}

/// An index.
fn index(
    text: &mut String,
    image: &DiscoveredImage,
    reference: &FoundIndexRef,
    is_chosen: bool,
    style: Style,
) {
    let digest = reference.digest.to_string();
    let digest = if is_chosen { style.green(&digest) } else { digest };
    let _ = writeln!(text, "  index {digest}");
    let mut facts = vec![
        match reference.version {
            Version::V1 => "version 1",
            Version::V2 => "version 2",
        }
        .to_owned(),
    ];
    facts.extend(reference.size.map(human));
    if let Ok(content) = &reference.content {
        facts.push(maker(content.index.build_tool_identifier.as_deref()));
        let covered =
            image.layers.iter().filter(|layer| content.ztocs.contains_key(&layer.digest)).count();
        facts.push(format!(
            "{covered} of {}",
            counted(image.layers.len() as u64, "layer", "layers")
        ));
    }
    facts.push(format!("{} ({})", via(reference.via), TrustLevel::of(reference.via)));
    let _ = writeln!(text, "    {}", facts.join(", "));
}

fn maker(tool: Option<&str>) -> String {
    tool.map_or("of an unknown tool".to_owned(), |tool| format!("by \"{}\"", safe(tool)))
}

/// A fine index.
fn fine(text: &mut String, image: &DiscoveredImage, summary: &FineSummary, style: Style) {
    let digest = summary.digest.to_string();
    let digest = if summary.chosen { style.green(&digest) } else { digest };
    let _ = writeln!(text, "  fine index {digest}");
    let Ok(content) = &summary.content else { return };
    let maker = maker(content.tool.as_deref());
    let covered = content.coverage.layers;
    let layers = image.layers.len() as u64;
    let recorded = if content.profile.is_some() { ", with a recorded startup" } else { "" };
    let _ = writeln!(
        text,
        "    {maker}, {covered} of {} ({}), {}, {} of it read at startup{recorded}, {} ({})",
        counted(layers, "layer", "layers"),
        content.coverage.share(),
        human(content.bytes),
        human(content.start_bytes),
        via(summary.via),
        TrustLevel::of(summary.via),
    );
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
    let image = &inspected.image;
    let mut rows =
        vec![["LAYER", "SIZE", "PLAIN", "FILES", "SPANS", "ZTOC", "FINE", ""].map(str::to_owned)];
    for (layer, inspected_layer) in image.layers.iter().zip(&inspected.layers) {
        let mut row: [String; 8] = Default::default();
        row[0] = layer.digest.short();
        row[1] = human(layer.size);
        match &inspected_layer.ztoc {
            None if image.chosen.is_some() => row[7] = without_ztoc(&layer.media_type),
            None => {}
            Some((reference, facts)) => {
                row[5] = human(reference.size);
                match facts {
                    Ok(facts) => {
                        row[2] = human(facts.uncompressed_size);
                        row[3] = facts.entries.to_string();
                        row[4] = format!("{} of {}", facts.spans, human(reference.span_size.get()));
                    }
                    Err(error) => row[7] = in_one_line(error),
                }
            }
        }
        if let Some(document) = image.document_for(&layer.digest) {
            row[6] = human(document.size);
        }
        rows.push(row);
    }
    let width = |column: usize| match rows.iter().skip(1).map(|row| row[column].len()).max() {
        None | Some(0) => 0,
        Some(width) => width.max(rows[0][column].len()),
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    for (number, row) in rows.iter().enumerate() {
        let mut line = format!("  {:12}", row[0]);
        // A column in which no layer has anything is left out.
        for (cell, width) in row.iter().zip(widths).skip(1).filter(|(_, width)| *width > 0) {
            let _ = write!(line, "  {cell:>width$}");
        }
        let line = format!("{line}  {}", row[7]);
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
        once.filter_map(|(_, inspected)| inspected.prefetch.as_ref()).collect();
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

/// Why a layer has no ztoc, as far as its media type shows.
fn without_ztoc(media_type: &str) -> String {
    let code = LayerKind::of(media_type).code();
    code.map_or_else(|| "no ztoc".to_owned(), |code| format!("no ztoc: {}", code.replace('-', " ")))
}
