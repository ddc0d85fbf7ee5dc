//! The report as text, for a terminal.

use std::fmt::Write;

use super::shares;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Style, quoted, safe};
use ociseek_ops::report::{LargeFile, Lazy, Report};

/// How many of the largest files are listed.
const FILES: usize = 10;
/// The width of the bar for the largest layer, in columns.
const BAR: u64 = 24;

pub(super) fn summary(image: &str, report: &Report, style: Style) -> String {
    let mut text = String::new();
    let platform = report.platform.as_ref().map(|platform| format!(" {platform}")).unwrap_or_default();
    let _ = writeln!(text, "{}", style.bold(&safe(&format!("{image}{platform}"))));
    let (coverage, totals) = (&report.coverage, &report.totals);
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
        let _ = writeln!(text, "  {} in {files} that layers above replace or remove", human(totals.shadowed.bytes));
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
    for (layer, share) in report.layers.iter().zip(shares::of_layers(report)) {
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
        let layers = counted(report.layers_left_out as u64, "smaller layer is", "smaller layers are");
        let _ = writeln!(text, "  {layers} not shown");
    }
}
