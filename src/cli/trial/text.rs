//! The answer as one screen of text.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use super::answer::{TrialAnswer, Way, speed};
use crate::cli::shared::size::{counted, duration, human};
use crate::cli::shared::terminal::{Style, safe, terminal_width};
use ociseek_ops::report::{Lazy, UncoveredReason};

pub(super) fn screen(answer: &TrialAnswer<'_>, style: Style) -> String {
    let report = answer.report;
    let mut text = String::new();
    let platform =
        report.platform.as_ref().map(|platform| format!(" {platform}")).unwrap_or_default();
    let title = safe(&format!("{}{platform}", answer.image));
    let _ = writeln!(text, "{}", style.bold(&title));
    let coverage = &report.coverage;
    let layers = counted(coverage.of_layers as u64, "layer", "layers");
    let (size, plain) = (human(coverage.of_bytes), human(report.totals.plain));
    let _ = writeln!(text, "  {size} in {layers}, {plain} unpacked");
    wrapped(&mut text, &answer.source(), Style::plain());
    if let Some(start) = &report.start {
        let files = counted(start.files, "file", "files");
        let at_least = if answer.is_lower_bound() { "at least " } else { "" };
        let _ = writeln!(text, "  Startup read {at_least}{files}");
        if start.missing > 0 {
            let files = counted(start.missing, "recorded file is", "recorded files are");
            let _ = writeln!(text, "  {} {files} not in this image", style.yellow("note:"));
        }
    }
    let ways = answer.ways();
    if ways.len() > 1 {
        table(&mut text, answer, &ways);
    }
    kinds(&mut text, answer);
    if let Some(larger) = answer.not_cached() {
        wrapped(&mut text, &format!("note: {larger}"), Style::plain());
    }
    text.push('\n');
    wrapped(&mut text, &answer.sentence(), style);
    if let Some(next) = answer.next() {
        let _ = writeln!(text, "  Next: {}", safe(&next));
    }
    text
}

/// The widths of paragraphs, in columns: a terminal may be narrower than the widest.
const WIDTHS: RangeInclusive<usize> = 24..=78;

/// A paragraph, in bold letters if there is colour.
fn wrapped(text: &mut String, paragraph: &str, style: Style) {
    let columns = terminal_width().map_or(*WIDTHS.end(), |columns| columns.saturating_sub(2));
    let width = columns.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut line = String::new();
    let paragraph = safe(paragraph);
    for word in paragraph.split(' ') {
        if !line.is_empty() && line.chars().count() + word.chars().count() >= width {
            let _ = writeln!(text, "  {}", style.bold(&line));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    let _ = writeln!(text, "  {}", style.bold(&line));
}

/// A row for each way.
fn table(text: &mut String, answer: &TrialAnswer<'_>, ways: &[Way]) {
    let links = answer.links();
    let columns = NAME + 18 + 12 * links.len();
    let is_narrow = terminal_width().is_some_and(|width| width < columns);
    let [size, part, time] = if is_narrow { [9, 6, 11] } else { [10, 8, 12] };
    let until = if answer.is_cut_short() {
        "Fetched until it ended"
    } else if answer.is_lower_bound() {
        "Fetched until ready, at least"
    } else {
        "Fetched until ready"
    };
    let _ = write!(text, "\n{}{:>2$}", row_name(until, is_narrow), "", size + part);
    for link in &links {
        let _ = write!(text, "{:>time$}", speed(*link));
    }
    let _ = writeln!(text);
    for way in ways {
        let about = if way.is_estimate { " (estimate)" } else { "" };
        let name = format!("{}{about}", way.kind.name());
        let share = answer.share(way.bytes);
        let name = row_name(&name, is_narrow);
        let _ = write!(text, "{name}{:>size$}{share:>part$}", human(way.bytes));
        for link in &links {
            let _ = write!(text, "{:>time$}", duration(way.seconds(*link)));
        }
        let _ = writeln!(text);
    }
    wrapped(text, &answer.about_times(), Style::plain());
}

/// The columns of a row's name.
const NAME: usize = 36;

/// The beginning of a row. On a terminal that is too narrow for the table, the name has a line of
/// its own.
fn row_name(name: &str, is_narrow: bool) -> String {
    if is_narrow { format!("  {name}\n  ") } else { format!("{:<NAME$}", format!("  {name}")) }
}

/// The layers that no SOCI index can have, by reason.
fn kinds(text: &mut String, answer: &TrialAnswer<'_>) {
    let mut reasons: Vec<(String, u64)> = Vec::new();
    for layer in answer.report.layers.iter().filter(|layer| layer.same_as.is_none()) {
        let Lazy::No(why) = &layer.lazy else { continue };
        if matches!(why, UncoveredReason::NoIndex(None)) {
            continue;
        }
        let why = why.to_string();
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    for (why, count) in reasons {
        let layers = counted(count, "layer is", "layers are");
        let each = if count == 1 { "" } else { " for each" };
        let sentences =
            format!("{layers} always pulled whole with a SOCI index. The reason{each}: {why}");
        wrapped(text, &sentences, Style::plain());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_narrow_table_have_lines_of_their_own() {
        assert_eq!(row_name("pulled whole", true), "  pulled whole\n  ");
        assert_eq!(row_name("pulled whole", false).len(), NAME);
    }
}
