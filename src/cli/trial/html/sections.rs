//! The sections of the page: the layers, each with a bar for its spans, and the files in them; the
//! reads of startup, and what it would fetch at other span sizes.

use std::fmt;

use super::{Shade, Text, counted_grouped, grouped, name, parts, plain_name, sentence, share};
use crate::cli::shared::size::{counted, human};
use crate::cli::trial::answer::{Advice, TrialAnswer, WayKind};
use crate::cli::trial::shares::{Percent, shares, shares_of_layers};
use ociseek_format::image::Coverage;
use ociseek_ops::report::{Fetch, Group, GroupFile, LayerBreakdown, Lazy, Report, StartTotals};

/// The maximum length of a command, in characters.
const COMMAND: usize = 240;
/// The facts of a layer that is pulled whole are folded away if it has less than this of the image,
/// in tenths of a percent.
const FOLDED: u64 = 10;
/// How many files of a group the table names. The bar names more.
const NAMED: usize = 3;

pub(super) fn layers(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    writeln!(f, "<section>\n<h2>Layers</h2>")?;
    let has_start = report.start.is_some();
    writeln!(f, "<ul class=\"legend\">")?;
    if has_start {
        Shade::Read.key(f, "read at startup")?;
        Shade::PartlyRead.key(f, "some spans read")?;
        Shade::Lazy.key(f, "not read")?;
    } else {
        Shade::Lazy.key(f, "can be read lazily")?;
    }
    Shade::Whole.key(f, "pulled whole")?;
    writeln!(f, "</ul>")?;
    let by = match report.index {
        Ok(_) => "As the SOCI index reads them.",
        Err(_) => "Without a SOCI index, a runtime pulls each of them whole.",
    };
    stacked(f, report)?;
    writeln!(
        f,
        "<p class=\"soft\">{by} All layers to scale, counted from 0 at the bottom. Below, each layer's bar has the \
         full width. <span class=\"screen\">Point at a span to see its files.</span></p>"
    )?;
    for (layer, share) in report.layers.iter().zip(shares_of_layers(report)) {
        article(f, layer, share)?;
    }
    if report.layers_left_out > 0 {
        let layers = counted_grouped(
            report.layers_left_out as u64,
            "smaller layer is",
            "smaller layers are",
        );
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
    writeln!(
        f,
        "<svg class=\"bar stack\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
    )?;
    let mut at = 0u64;
    for layer in layers() {
        let size = layer.descriptor.size;
        let x = parts(at, all);
        let width = parts(size, all);
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
    let LayerBreakdown {
        number,
        descriptor,
        same_as,
        lazy,
        created_by,
        plain,
        spans,
        files,
        shadowed,
        ..
    } = layer;
    let (digest, short) = (descriptor.digest, descriptor.digest.short());
    let title = format!("<h3>Layer {number} <code title=\"{digest}\">{short}</code></h3>");
    // Many images have a dozen such layers. Each is a line that can be opened.
    let is_folded = matches!(lazy, Lazy::No(_)) && of_image.is_below(FOLDED);
    if is_folded {
        writeln!(
            f,
            "<article class=\"folded\"><details>\n<summary>{title} {}, pulled whole</summary>",
            human(descriptor.size)
        )?
    } else {
        writeln!(f, "<article>\n{title}")?
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
        return writeln!(
            f,
            "<p>{}: the same blob as layer {same}.</p>\n{end}",
            human(descriptor.size)
        );
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
        facts.push(format!("{} replaced or removed by layers above", human(shadowed.bytes)));
    }
    writeln!(f, "<p>{}</p>", facts.join(" · "))?;
    match (lazy, layer.read) {
        (Lazy::No(why), _) => {
            writeln!(f, "<p class=\"why\">Pulled whole: {}.</p>", Text(&why.to_string()))?
        }
        (Lazy::Yes, Some(read)) => {
            let (spans, of) = (grouped(u64::from(read.spans)), grouped(u64::from(*spans)));
            let part = share(read.bytes, descriptor.size);
            writeln!(
                f,
                "<p>Startup reads {spans} of {of} spans: {} ({part}).</p>",
                human(read.bytes)
            )?;
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
    writeln!(
        f,
        "<svg class=\"bar\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
    )?;
    let mut at = 0u64;
    for group in &layer.groups {
        let x = parts(at, all);
        let width = parts(group.bytes, all);
        write!(
            f,
            "<rect class=\"{}\" x=\"{x}\" width=\"{width}\" height=\"28\"><title>",
            shade(layer, group).class()
        )?;
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
    writeln!(
        f,
        "<details><summary>Files by span{together}</summary>\n<div class=\"scroll\"><table class=\"files\">"
    )?;
    writeln!(
        f,
        "<thead><tr><th>Spans</th><th class=\"n\">Size</th>{read}<th \
         class=\"n\">Files</th><th>Largest</th></tr></thead>\n<tbody>"
    )?;
    for group in &layer.groups {
        let read =
            if has_read { format!("<td class=\"n\">{}</td>", group.read) } else { String::new() };
        let file = |file: &GroupFile| {
            if file.read {
                format!("<b>{}</b> {}", name(&file.path), human(file.size))
            } else {
                format!("{} {}", name(&file.path), human(file.size))
            }
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

pub(super) fn start(f: &mut fmt::Formatter<'_>, answer: &TrialAnswer<'_>) -> fmt::Result {
    let report = answer.report;
    writeln!(f, "<section>\n<h2>What startup reads</h2>")?;
    let Some((start, startup)) = report.start.as_ref().zip(report.startup) else {
        let Coverage { bytes, of_bytes, .. } = report.coverage;
        let whole = of_bytes.saturating_sub(bytes);
        overview(
            f,
            &[(Shade::Lazy, bytes, "can be read lazily"), (Shade::Whole, whole, "pulled whole")],
        )?;
        return writeln!(f, "</section>");
    };
    // By the same index as the headline.
    let (kind, fetch, is_there) = match answer.advice() {
        Advice::Lazy(WayKind::Fine | WayKind::Recorded) => {
            (WayKind::Fine, startup.fine, startup.has_fine)
        }
        _ => (WayKind::Soci, startup.soci, startup.has_soci),
    };
    let about = if is_there { "" } else { ", which the image does not have yet" };
    if answer.advice() != Advice::NoIndex {
        let index = match fetch.checkpoints {
            0 => String::new(),
            bytes => format!("; startup also fetches {} of the index itself", human(bytes)),
        };
        writeln!(f, "<p class=\"soft\">{}{about}{index}:</p>", sentence(kind.name()))?;
    }
    let later = answer.size().saturating_sub(fetch.bytes).saturating_sub(fetch.whole);
    overview(
        f,
        &[
            (Shade::Read, fetch.bytes, "fetched for startup"),
            (Shade::Lazy, later, "fetched later, or never"),
            (Shade::Whole, fetch.whole, "in layers that are pulled whole"),
        ],
    )?;
    missing(f, start)?;
    if answer.advice() != Advice::NoIndex {
        sizes(f, report)?;
    }
    writeln!(f, "</section>")
}

/// One bar for the whole image.
fn overview(f: &mut fmt::Formatter<'_>, bar: &[(Shade, u64, &str)]) -> fmt::Result {
    let all = bar.iter().map(|(_, bytes, _)| bytes).sum();
    writeln!(
        f,
        "<svg class=\"bar\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
    )?;
    let mut at = 0;
    for (shade, bytes, _) in bar {
        let x = parts(at, all);
        let width = parts(*bytes, all);
        writeln!(
            f,
            "<rect class=\"{}\" x=\"{x}\" width=\"{width}\" height=\"28\"/>",
            shade.class()
        )?;
        at += bytes;
    }
    writeln!(f, "</svg>\n<ul class=\"legend\">")?;
    let each: Vec<u64> = bar.iter().map(|(_, bytes, _)| *bytes).collect();
    for ((shade, bytes, what), share) in
        bar.iter().zip(shares(&each)).filter(|((_, bytes, _), _)| *bytes > 0)
    {
        shade.key(f, &format!("{what}: <b>{}</b> ({share})", human(*bytes)))?;
    }
    writeln!(f, "</ul>")
}

fn missing(f: &mut fmt::Formatter<'_>, start: &StartTotals) -> fmt::Result {
    if start.missing == 0 {
        return Ok(());
    }
    let files = counted_grouped(start.missing, "recorded file is", "recorded files are");
    let names: Vec<String> = start.missing_paths.iter().map(|path| name(path)).collect();
    let more = match start.missing - names.len() as u64 {
        0 => String::new(),
        more => format!(" and {} more", grouped(more)),
    };
    writeln!(f, "<p class=\"notice\">{files} not in this image: {}{more}.</p>", names.join(", "))
}

fn sizes(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let size = |size: u64| human(size).replace(".0", "");
    let now = if report.index.is_ok() { "now" } else { "no index" };
    let mut sizes: Vec<(String, &Fetch)> = (report.sizes.iter())
        .map(|fetch| (fetch.span_size.map_or_else(|| now.to_owned(), size), fetch))
        .collect();
    if let Some(startup) = &report.startup {
        sizes.insert(sizes.len().min(1), ("fine index".to_owned(), &startup.fine));
    }
    let totals = || sizes.iter().map(|(_, fetch)| fetch.total());
    let (Some(most), least) = (totals().max(), totals().min()) else { return Ok(()) };
    writeln!(
        f,
        "<h3>What startup would fetch at other span sizes</h3>\n<div class=\"scroll\"><table class=\"sizes\">"
    )?;
    writeln!(
        f,
        "<thead><tr><th>Span size</th><th class=\"n wide\">Spans</th><th class=\"n wide\">Spans read</th>\
         <th class=\"n mid\">Read</th><th class=\"n mid\">Checkpoints</th><th class=\"n mid\">Pulled whole</th>\
         <th class=\"n\">In all</th><th class=\"chart\"></th></tr></thead>\n<tbody>"
    )?;
    for (size, fetch) in &sizes {
        let range = |from: u64, to: u64| {
            if from == to { human(from) } else { format!("{} to {}", human(from), human(to)) }
        };
        let at_most = fetch.at_most.unwrap_or(fetch.bytes);
        let fixed = fetch.whole.saturating_add(fetch.checkpoints);
        let class = if Some(fetch.total()) == least { " class=\"best\"" } else { "" };
        writeln!(
            f,
            "<tr{class}><th>{size}</th><td class=\"n wide\">{}</td><td class=\"n wide\">{}</td>\
             <td class=\"n mid\">{}</td><td class=\"n mid\">{}</td><td class=\"n mid\">{}</td>\
             <td class=\"n\">{}</td><td class=\"chart\">{}</td></tr>",
            grouped(fetch.spans),
            grouped(fetch.read),
            range(fetch.bytes, at_most),
            human(fetch.checkpoints),
            human(fetch.whole),
            range(fixed.saturating_add(fetch.bytes), fetch.total()),
            chart(fetch, most)
        )?;
    }
    writeln!(f, "</tbody></table></div>\n<ul class=\"legend\">")?;
    Shade::Whole.key(f, "layers pulled whole")?;
    writeln!(
        f,
        "<li><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\"><rect class=\"c\" width=\"14\" height=\"14\"/></svg>\
         checkpoints</li>"
    )?;
    Shade::Read.key(f, "spans read")?;
    if sizes.iter().any(|(_, fetch)| fetch.at_most.is_some()) {
        Shade::PartlyRead.key(f, "at most")?;
    }
    writeln!(f, "</ul>")?;
    let estimated = if report.startup.is_some_and(|startup| !startup.has_fine) {
        " The image has none yet, so this is an estimate."
    } else {
        ""
    };
    writeln!(
        f,
        "<p class=\"soft\">The row <i>fine index</i> is what ociseek's own programs fetch with one; its \
         checkpoints are those in the parts of its documents that startup needs.{estimated}</p>"
    )?;
    let first = match report.index {
        Ok(_) => "The first row is what startup fetches now, by the SOCI index.",
        Err(_) => "The first row is what startup fetches now.",
    };
    writeln!(
        f,
        "<p class=\"soft\">{first} The other sizes are those of a SOCI index, and are \
         estimates. Larger spans are joined from those that are there, at the borders that they have. \
         Smaller ones cannot be known without reading the layers: they are cut evenly out of larger ones, \
         and lie between what the profile recorded and, at most, all of each file \
         that was read, as far as it lies in the spans that are read now. Checkpoints take 32 KiB for \
         each span of a gzip layer; they are fetched with the ztocs, before startup.</p>"
    )
}

fn chart(fetch: &Fetch, most: u64) -> String {
    let more = fetch.at_most.unwrap_or(fetch.bytes).saturating_sub(fetch.bytes);
    let bars = [("w", fetch.whole), ("c", fetch.checkpoints), ("r", fetch.bytes), ("p", more)];
    let mut svg = String::new();
    let mut at = 0u64;
    for (class, bytes) in bars.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let x = parts(at, most);
        let width = parts(bytes, most);
        svg += &format!("<rect class=\"{class}\" x=\"{x}\" width=\"{width}\" height=\"14\"/>");
        at = at.saturating_add(bytes);
    }
    format!(
        "<svg viewBox=\"0 0 1000 14\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{svg}</svg>"
    )
}
