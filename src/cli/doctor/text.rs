//! The output of `ociseek doctor` for people.

use std::fmt::Write as _;

use super::advice::{next, platform};
use crate::cli::shared::size::human;
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::image::consumer::{Defect, Reason, Verdict};
use ociseek_ops::doctor::{Diagnosis, Finding, FineUse};

/// Who reads fine indexes.
const READERS_OF_FINE: &str = "ociseek mount, ociseek bundle";

pub(super) fn text(name: &str, found: &Diagnosis, style: Style) -> String {
    let image = &found.inspected.image;
    let platform = platform(found);
    let mut text = String::new();
    let _ = writeln!(text, "{} {}", style.bold(&safe(name)), style.bold(&safe(&platform)));
    let _ = writeln!(text, "  manifest {}", image.manifest.digest);
    let verdicts = found.inspected.verdicts();
    let fine = found.by_fine();
    let ours = fine.map(|_| READERS_OF_FINE.len());
    let width = verdicts.iter().map(|(consumer, _)| consumer.name().len()).chain(ours).max().unwrap_or(0);
    for (consumer, verdict) in verdicts.iter() {
        let (mark, what) = match verdict {
            Verdict::Lazy { index, version, coverage } => (
                style.green("lazy "),
                format!(
                    "index {} (version {}): {} of {} layers, {} of {}",
                    index.short(),
                    version.number(),
                    coverage.layers,
                    coverage.of_layers,
                    coverage.share(),
                    human(coverage.of_bytes)
                ),
            ),
            Verdict::Whole(reason @ (Reason::MissingBlob(_) | Reason::Defect(_, Defect::WrongZtoc))) => {
                (style.red("fails"), reason.to_string())
            }
            Verdict::Whole(reason) => (style.yellow("whole"), reason.to_string()),
        };
        let _ = writeln!(text, "  {:width$}  {mark}  {what}", consumer.name());
    }
    if let Some(fine) = fine {
        let FineUse { index, coverage, start_bytes, is_recorded } = fine;
        let recorded = if is_recorded { ", with its recorded start" } else { "" };
        let _ = writeln!(
            text,
            "  {READERS_OF_FINE:width$}  {}  fine index {}: {} of {} layers, {} of {}; {} fetched first{recorded}",
            style.green("lazy "),
            index.short(),
            coverage.layers,
            coverage.of_layers,
            coverage.share(),
            human(coverage.of_bytes),
            human(start_bytes),
        );
    }
    for finding in &found.findings {
        let kind = if finding.is_problem() { style.red("problem:") } else { style.yellow("note:") };
        let size = match finding {
            Finding::Uncovered { size, .. } | Finding::SmallImage(size) => format!(" ({})", human(*size)),
            _ => String::new(),
        };
        let _ = writeln!(text, "  {kind} {}{size}", safe(&finding.to_string()));
        if let Some(next) = next(finding, name, found) {
            let _ = writeln!(text, "    {} {}", style.dim("next:"), safe(&next));
        }
    }
    text
}
