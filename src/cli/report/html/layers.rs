//! The layers, each with a bar for its spans, and the files in them.

use std::fmt;

use crate::cli::report::html::{Shade, Text, counted_grouped, grouped, name, parts, plain_name, share};
use crate::cli::report::shares::{Percent, of_layers};
use crate::cli::shared::size::{counted, human};
use ociseek_ops::report::{Group, GroupFile, LayerBreakdown, Lazy, Report};

/// The maximum length of a command, in characters.
const COMMAND: usize = 240;
/// The facts of a layer that is pulled whole are folded away if it has less than this of the image,
/// in tenths of a percent.
const FOLDED: u64 = 10;
/// How many files of a group the table names. The bar names more.
const NAMED: usize = 3;

pub(super) fn section(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    writeln!(f, "<section>\n<h2>Layers</h2>")?;
    let has_start = report.start.is_some();
    writeln!(f, "<ul class=\"legend\">")?;
    if has_start {
        Shade::Read.key(f, "read by the start")?;
        Shade::PartlyRead.key(f, "some spans read")?;
        Shade::Lazy.key(f, "not read")?;
    } else {
        Shade::Lazy.key(f, "can be read lazily")?;
    }
    Shade::Whole.key(f, "pulled whole")?;
    writeln!(f, "</ul>")?;
    stacked(f, report)?;
    writeln!(
        f,
        "<p class=\"soft\">All layers to scale, counted from 0 at the bottom. Below, each layer's bar has the full \
         width. <span class=\"screen\">Point at a span to see its files.</span></p>"
    )?;
    for (layer, share) in report.layers.iter().zip(of_layers(report)) {
        article(f, layer, share)?;
    }
    if report.layers_left_out > 0 {
        let layers = counted_grouped(report.layers_left_out as u64, "smaller layer is", "smaller layers are");
        writeln!(f, "<p class=\"notice\">{layers} not shown.</p>")?;
    }
    writeln!(f, "</section>")
}

/// One bar with all layers to scale.
fn stacked(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let layers = || report.layers.iter().filter(|layer| layer.same_as.is_none());
    let all: u64 = layers().map(|layer| layer.descriptor.size).fold(0, u64::saturating_add);
    if all == 0 {
        return Ok(());
    }
    writeln!(f, "<svg class=\"bar stack\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" aria-hidden=\"true\">")?;
    let mut at = 0u64;
    for layer in layers() {
        let size = layer.descriptor.size;
        let (x, width) = (parts(at, all), parts(size, all));
        let class = shade_of(layer).class();
        write!(f, "<rect class=\"{class}\" x=\"{x}\" width=\"{width}\" height=\"28\">")?;
        writeln!(f, "<title>Layer {}: {}</title></rect>", layer.number, human(size))?;
        at = at.saturating_add(size);
    }
    writeln!(f, "</svg>")
}

/// How a whole layer is drawn.
fn shade_of(layer: &LayerBreakdown) -> Shade {
    match (&layer.lazy, layer.read) {
        (Lazy::No(_), _) => Shade::Whole,
        (Lazy::Yes, Some(read)) if read.spans == layer.spans => Shade::Read,
        (Lazy::Yes, Some(read)) if read.spans > 0 => Shade::PartlyRead,
        (Lazy::Yes, _) => Shade::Lazy,
    }
}

fn article(f: &mut fmt::Formatter<'_>, layer: &LayerBreakdown, of_image: Percent) -> fmt::Result {
    let LayerBreakdown { number, descriptor, same_as, lazy, created_by, plain, spans, files, shadowed, .. } = layer;
    let (digest, short) = (descriptor.digest, descriptor.digest.short());
    let title = format!("<h3>Layer {number} <code title=\"{digest}\">{short}</code></h3>");
    // Many images have a dozen such layers. Each is a line that can be opened.
    let is_folded = matches!(lazy, Lazy::No(_)) && of_image.is_below(FOLDED);
    match is_folded {
        true => writeln!(
            f,
            "<article class=\"folded\"><details>\n<summary>{title} {}, pulled whole</summary>",
            human(descriptor.size)
        )?,
        false => writeln!(f, "<article>\n{title}")?,
    }
    let end = if is_folded { "</details></article>" } else { "</article>" };
    if let Some(command) = created_by {
        let mut short: String = command.chars().take(COMMAND).collect();
        if short.len() < command.len() {
            short.push('…');
        }
        writeln!(f, "<p class=\"made\"><bdi>{}</bdi></p>", Text(&short))?;
    }
    if let Some(same) = same_as {
        return writeln!(f, "<p>{}: the same blob as layer {same}.</p>\n{end}", human(descriptor.size));
    }
    let mut facts = vec![
        format!("<b>{}</b> ({of_image} of the image)", human(descriptor.size)),
        format!("{} unpacked", human(*plain)),
        counted_grouped(*files, "file", "files"),
    ];
    if *lazy == Lazy::Yes {
        let spans = counted_grouped(u64::from(*spans), "span", "spans");
        facts.push(format!("{spans} of {}", human(layer.span_size).replace(".0", "")));
    }
    if shadowed.bytes > 0 {
        facts.push(format!("{} shadowed by layers above", human(shadowed.bytes)));
    }
    writeln!(f, "<p>{}</p>", facts.join(" · "))?;
    match (lazy, layer.read) {
        (Lazy::No(why), _) => writeln!(f, "<p class=\"why\">Pulled whole: {}.</p>", Text(&why.to_string()))?,
        (Lazy::Yes, Some(read)) => {
            let (spans, of) = (grouped(u64::from(read.spans)), grouped(u64::from(*spans)));
            let part = share(read.bytes, descriptor.size);
            writeln!(f, "<p>The start reads {spans} of {of} spans: {} ({part}).</p>", human(read.bytes))?;
        }
        (Lazy::Yes, None) => {}
    }
    bar(f, layer)?;
    table(f, layer)?;
    writeln!(f, "{end}")
}

fn shade(layer: &LayerBreakdown, group: &Group) -> Shade {
    match group.read {
        _ if layer.lazy != Lazy::Yes => Shade::Whole,
        0 => Shade::Lazy,
        read if read == group.spans.end.0 - group.spans.start.0 => Shade::Read,
        _ => Shade::PartlyRead,
    }
}

fn bar(f: &mut fmt::Formatter<'_>, layer: &LayerBreakdown) -> fmt::Result {
    let all: u64 = layer.groups.iter().map(|group| group.bytes).fold(0, u64::saturating_add);
    if all == 0 {
        return Ok(());
    }
    writeln!(f, "<svg class=\"bar\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" aria-hidden=\"true\">")?;
    let mut at = 0u64;
    for group in &layer.groups {
        let (x, width) = (parts(at, all), parts(group.bytes, all));
        write!(f, "<rect class=\"{}\" x=\"{x}\" width=\"{width}\" height=\"28\"><title>", shade(layer, group).class())?;
        tooltip(f, layer, group)?;
        writeln!(f, "</title></rect>")?;
        at = at.saturating_add(group.bytes);
    }
    writeln!(f, "</svg>")
}

/// A line for the group and for each of its largest files. Names with another text direction stay
/// on their line.
fn tooltip(f: &mut fmt::Formatter<'_>, layer: &LayerBreakdown, group: &Group) -> fmt::Result {
    write!(f, "{}: {}, {} unpacked", spans(group), human(group.bytes), human(group.plain))?;
    if layer.read.is_some() && layer.lazy == Lazy::Yes {
        write!(f, "; {} read", counted(u64::from(group.read), "span", "spans"))?;
    }
    for GroupFile { path, size, read } in &group.largest {
        write!(f, "\n{}{}  {}", human(*size), if *read { " read" } else { "" }, plain_name(path))?;
    }
    match group.files - group.largest.len() as u64 {
        0 => Ok(()),
        more => write!(f, "\nand {}", counted_grouped(more, "more file", "more files")),
    }
}

/// `Span 3`, `Spans 3 to 5`
fn spans(group: &Group) -> String {
    match (group.spans.start.0, group.spans.end.0 - 1) {
        (first, last) if first == last => format!("Span {first}"),
        (first, last) => format!("Spans {first} to {last}"),
    }
}

/// The same data as text, for readers without a pointer.
fn table(f: &mut fmt::Formatter<'_>, layer: &LayerBreakdown) -> fmt::Result {
    let each = layer.groups.first().map_or(1, |group| group.spans.end.0 - group.spans.start.0);
    let together = match each {
        1 => String::new(),
        each => format!(", {each} together"),
    };
    let has_read = layer.read.is_some() && layer.lazy == Lazy::Yes;
    let read = if has_read { "<th class=\"n\">Read</th>" } else { "" };
    writeln!(f, "<details><summary>Files by span{together}</summary>\n<div class=\"scroll\"><table class=\"files\">")?;
    writeln!(
        f,
        "<thead><tr><th>Spans</th><th class=\"n\">Size</th>{read}<th \
         class=\"n\">Files</th><th>Largest</th></tr></thead>\n<tbody>"
    )?;
    for group in &layer.groups {
        let read = match has_read {
            true => format!("<td class=\"n\">{}</td>", group.read),
            false => String::new(),
        };
        let file = |file: &GroupFile| match file.read {
            true => format!("<b>{}</b> {}", name(&file.path), human(file.size)),
            false => format!("{} {}", name(&file.path), human(file.size)),
        };
        let files: Vec<String> = group.largest.iter().take(NAMED).map(file).collect();
        writeln!(
            f,
            "<tr><td class=\"span\">{}</td><td class=\"n\">{}</td>{read}<td class=\"n\">{}</td><td \
             class=\"name\">{}</td></tr>",
            spans(group).trim_start_matches("Spans ").trim_start_matches("Span "),
            human(group.bytes),
            grouped(group.files),
            files.join("<br>")
        )?;
    }
    writeln!(f, "</tbody></table></div></details>")
}
