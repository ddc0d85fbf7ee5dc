//! The reads of a start, and what it would fetch at other span sizes.

use std::fmt;

use crate::cli::report::html::{Shade, Text, counted_grouped, grouped, lazy_and_whole, name, parts};
use crate::cli::report::shares::shares;
use crate::cli::shared::size::human;
use crate::cli::shared::terminal::quoted;
use ociseek_ops::report::{Fetch, Report, StartTotals};

pub(super) fn section(f: &mut fmt::Formatter<'_>, image: &str, report: &Report) -> fmt::Result {
    writeln!(f, "<section>\n<h2>What a start reads</h2>")?;
    let (lazy, whole) = lazy_and_whole(report);
    let read = report.sizes.first().map_or(0, |now| now.bytes).min(lazy);
    let mut bar = vec![(Shade::Lazy, lazy - read, "can be read lazily"), (Shade::Whole, whole, "pulled whole")];
    if report.start.is_some() {
        bar[0].2 = "fetched later, or never";
        bar.insert(0, (Shade::Read, read, "fetched for the start"));
    }
    overview(f, &bar)?;
    let Some(start) = &report.start else {
        let image = quoted(image.as_bytes());
        let record = format!("ociseek trace {image} > start.jsonl");
        let again = format!("ociseek report {image} --profile start.jsonl --output report.html");
        return writeln!(
            f,
            "<p class=\"notice\">To see what a start reads, record one: <code>{}</code>, then \
             <code>{}</code></p>\n</section>",
            Text(&record),
            Text(&again)
        );
    };
    missing(f, start)?;
    sizes(f, report)?;
    writeln!(f, "</section>")
}

/// One bar for the whole image.
fn overview(f: &mut fmt::Formatter<'_>, bar: &[(Shade, u64, &str)]) -> fmt::Result {
    let all = bar.iter().map(|(_, bytes, _)| bytes).sum();
    writeln!(f, "<svg class=\"bar\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" aria-hidden=\"true\">")?;
    let mut at = 0;
    for (shade, bytes, _) in bar {
        let (x, width) = (parts(at, all), parts(*bytes, all));
        writeln!(f, "<rect class=\"{}\" x=\"{x}\" width=\"{width}\" height=\"28\"/>", shade.class())?;
        at += bytes;
    }
    writeln!(f, "</svg>\n<ul class=\"legend\">")?;
    let each: Vec<u64> = bar.iter().map(|(_, bytes, _)| *bytes).collect();
    for ((shade, bytes, what), share) in bar.iter().zip(shares(&each)).filter(|((_, bytes, _), _)| *bytes > 0) {
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
    let by_fine = report.fine.as_ref().and_then(|fine| fine.fetch.as_ref());
    let size = |size: u64| human(size).replace(".0", "");
    let mut sizes: Vec<(String, &Fetch)> =
        (report.sizes.iter()).map(|fetch| (fetch.span_size.map_or_else(|| "now".to_owned(), size), fetch)).collect();
    if let Some(fetch) = by_fine {
        sizes.insert(sizes.len().min(1), ("fine index".to_owned(), fetch));
    }
    let totals = || sizes.iter().map(|(_, fetch)| fetch.total());
    let (Some(most), least) = (totals().max(), totals().min()) else { return Ok(()) };
    writeln!(f, "<h3>What it would fetch at other span sizes</h3>\n<div class=\"scroll\"><table class=\"sizes\">")?;
    writeln!(
        f,
        "<thead><tr><th>Span size</th><th class=\"n wide\">Spans</th><th class=\"n wide\">Spans read</th>\
         <th class=\"n mid\">Read</th><th class=\"n mid\">Checkpoints</th><th class=\"n mid\">Pulled whole</th>\
         <th class=\"n\">In all</th><th class=\"chart\"></th></tr></thead>\n<tbody>"
    )?;
    for (size, fetch) in &sizes {
        let range = |from: u64, to: u64| match from == to {
            true => human(from),
            false => format!("{} to {}", human(from), human(to)),
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
    if by_fine.is_some() {
        writeln!(
            f,
            "<p class=\"soft\">The row <i>fine index</i> is what ociseek mount and ociseek bundle fetch instead; its \
             checkpoints are those in the parts of its documents that the start needs.</p>"
        )?;
    }
    writeln!(
        f,
        "<p class=\"soft\">The first row is what a start fetches now. The others are estimates. Larger \
         spans are \
         joined from those that are there, at the borders that they have. Smaller ones cannot be known without \
         reading the layers: they are cut evenly out of larger ones, and lie between what the profile recorded \
         and, at most, all of each file that was read, as far as it lies in the spans that are read now. \
         Checkpoints take 32 KiB for each span of a gzip layer; they are fetched with the ztocs, before the start.</p>"
    )
}

fn chart(fetch: &Fetch, most: u64) -> String {
    let more = fetch.at_most.unwrap_or(fetch.bytes).saturating_sub(fetch.bytes);
    let bars = [("w", fetch.whole), ("c", fetch.checkpoints), ("r", fetch.bytes), ("p", more)];
    let (mut svg, mut at) = (String::new(), 0u64);
    for (class, bytes) in bars.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let (x, width) = (parts(at, most), parts(bytes, most));
        svg += &format!("<rect class=\"{class}\" x=\"{x}\" width=\"{width}\" height=\"14\"/>");
        at = at.saturating_add(bytes);
    }
    format!("<svg viewBox=\"0 0 1000 14\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{svg}</svg>")
}
