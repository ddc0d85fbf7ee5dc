//! The output of `ociseek convert` for people.

use std::fmt::Write;

use crate::cli::shared::layers::{self, coverage, heading, large_ztocs, layers, members, why_nothing};
use crate::cli::shared::size::{duration, human};
use crate::cli::shared::terminal::{Style, safe};
use ociseek_format::image::ImageName;
use ociseek_ops::convert::{ConvertReport, ConvertStatus, ConvertedImage};
use ociseek_ops::versions::EnabledResult;

/// The report on an image that was converted in `seconds`.
pub(crate) fn report(source: &str, name: &ImageName, done: &ConvertReport, seconds: f64, style: Style) -> String {
    let mut text = String::new();
    for image in &done.images {
        one(&mut text, source, image, style);
    }
    enabled(&mut text, name, done, style);
    let _ = writeln!(text, "{}", style.dim(&totals(done, seconds)));
    text
}

/// The SOCI-enabled image that `ociseek index` made from `source`. `with_layers` includes the
/// layers, unless the report on an index already has them.
pub(crate) fn made(source: &str, name: &ImageName, result: &EnabledResult, with_layers: bool, style: Style) -> String {
    let mut text = String::new();
    match result {
        EnabledResult::Converted(done) => {
            for image in done.images.iter().filter(|_| with_layers) {
                one(&mut text, source, image, style);
            }
            enabled(&mut text, name, done, style);
        }
        EnabledResult::NothingToIndex { layers } => {
            let why = why_nothing(layers);
            let _ = writeln!(text, "{}", style.bold(&safe(&name.to_string())));
            let _ = writeln!(text, "  {} {why}", style.yellow("no SOCI-enabled image:"));
        }
        EnabledResult::OutOfTime { .. } => {
            let _ = writeln!(text, "{}", style.bold(&safe(&name.to_string())));
            let why = "timed out before all layers were indexed; run it again to continue";
            let _ = writeln!(text, "  {} {why}", style.yellow("no SOCI-enabled image:"));
        }
    }
    text
}

fn enabled(text: &mut String, name: &ImageName, done: &ConvertReport, style: Style) {
    let shown = safe(&name.to_string());
    let _ = writeln!(text, "{}", style.bold(&shown));
    let _ = writeln!(text, "  {} {}", style.green("image"), style.green(&done.digest.to_string()));
    let what = match done.images.iter().any(|image| image.index.is_some()) {
        true => "a SOCI-enabled image (version 2)",
        false => "an image that names its fine index; SOCI consumers pull it whole",
    };
    let line = match &done.outcome {
        ConvertStatus::AlreadyThere => "up to date: nothing was written".to_owned(),
        ConvertStatus::DryRun { replaces: None } => "dry run: nothing was written".to_owned(),
        ConvertStatus::DryRun { replaces: Some(old) } => {
            format!("dry run: nothing was written; it would replace {old} under this name")
        }
        ConvertStatus::Written { replaced: None } => what.to_owned(),
        ConvertStatus::Written { replaced: Some(old) } => {
            format!("{what}; the tag pointed to {old} before, which stays reachable by its digest")
        }
    };
    let _ = writeln!(text, "  {line}");
    if done.digest != done.source && matches!(done.outcome, ConvertStatus::Written { .. }) {
        let _ = writeln!(
            text,
            "  {} signatures of the source do not apply to the new digest: sign {}",
            style.yellow("note:"),
            safe(&to_sign(name, done))
        );
    }
}

/// The name of the new image for signing tools.
fn to_sign(name: &ImageName, done: &ConvertReport) -> String {
    match name {
        ImageName::Registry(r) => format!("{}/{}@{}", r.registry, r.repository, done.digest),
        ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => done.digest.to_string(),
    }
}

fn one(text: &mut String, source: &str, image: &ConvertedImage, style: Style) {
    let platform = image.platform.is_complete().then(|| image.platform.to_string());
    heading(text, source, platform.as_deref(), &image.was, style);
    layers(text, &image.layers, style);
    match (&image.index, &image.fine) {
        (Some(index), fine) => {
            let _ = writeln!(text, "  {} {}", style.green("index"), style.green(&index.digest.to_string()));
            if let Some(fine) = fine {
                let _ = writeln!(text, "  fine index {}", fine.digest);
            }
            let _ = writeln!(text, "  new manifest {}", image.manifest);
            coverage(text, &image.coverage);
            layers::prefetch_line(text, image.prefetch.as_ref());
        }
        (None, Some(fine)) => {
            let _ = writeln!(text, "  {} {}", style.green("fine index"), style.green(&fine.digest.to_string()));
            let _ = writeln!(text, "  new manifest {}", image.manifest);
        }
        (None, None) => {
            let _ = writeln!(text, "  {} {}", style.yellow("no index:"), why_nothing(&image.layers));
        }
    }
    members(text, &image.layers, style);
    large_ztocs(text, &image.layers, style);
}

/// The totals of bytes and time.
fn totals(done: &ConvertReport, seconds: f64) -> String {
    let part = |what: &str, bytes: u64| if bytes == 0 { String::new() } else { format!(", {what} {}", human(bytes)) };
    let (copied, written) = (part("copied", done.bytes_copied), part("wrote", done.bytes_written));
    format!("read {}{copied}{written}, in {}", human(done.bytes_read), duration(seconds))
}
