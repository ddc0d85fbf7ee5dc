//! `ociseek doctor`.

use std::fmt::Write as _;
use std::sync::Arc;

use super::args::{DoctorArgs, Format, ProgressStyle};
use super::doctor_json;
use super::progress::Display;
use super::quote::quoted;
use super::report::CliError;
use super::size::human;
use super::source::Images;
use super::terminal::{Stdout, Style, safe};
use crate::image::LayerKind;
use crate::ops::discover::{Note, number};
use crate::ops::doctor::{Diagnosis, Finding, NoIndex, Reason, Verdict, WhyNot, diagnose};
use crate::ops::resolve::Wanted;
use crate::progress::Progress;

pub async fn run(args: DoctorArgs) -> Result<(), CliError> {
    let progress: Arc<dyn Progress> = Arc::new(Display::new(ProgressStyle::None, false));
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    let (source, root) = images.open(&args.image).await?;
    let wanted = if args.platform.is_empty() { Wanted::All } else { Wanted::Each(&args.platform) };
    let found = diagnose(&source, &root, wanted, &progress).await?;
    let image = args.image.to_string();
    let mut stdout = Stdout::new();
    let text = match args.format {
        Format::Json => doctor_json::document(&image, &found).map_err(|e| CliError::Stdout(e.into()))?,
        Format::Text => found.iter().map(|one| text(&image, one, stdout.style)).collect::<Vec<_>>().join("\n"),
    };
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
    if found.iter().any(|one| one.verdicts.any_lazy()) { Ok(()) } else { Err(CliError::Unused) }
}

fn text(name: &str, found: &Diagnosis, style: Style) -> String {
    let image = &found.inspected.image;
    let platform = platform(found);
    let mut text = String::new();
    let _ = writeln!(text, "{} {}", style.bold(&safe(name)), style.bold(&safe(&platform)));
    let _ = writeln!(text, "  manifest {}", image.manifest.digest);
    let width = found.verdicts.iter().map(|(consumer, _)| consumer.name().len()).max().unwrap_or(0);
    for (consumer, verdict) in found.verdicts.iter() {
        let (mark, what) = match verdict {
            Verdict::Lazy { index, version, coverage } => (
                style.green("lazy "),
                format!(
                    "index {} (version {}): {} of {} layers, {} of {}",
                    index.short(),
                    number(version),
                    coverage.layers,
                    coverage.of_layers,
                    coverage.share(),
                    human(coverage.of_bytes)
                ),
            ),
            Verdict::Whole(reason @ Reason::MissingBlob(_)) => (style.red("fails"), reason.to_string()),
            Verdict::Whole(reason) => (style.yellow("whole"), reason.to_string()),
        };
        let _ = writeln!(text, "  {:width$}  {mark}  {what}", consumer.name());
    }
    for finding in &found.findings {
        let kind = if finding.is_problem() { style.red("problem:") } else { style.yellow("note:") };
        let size = match finding {
            Finding::Uncovered { size, .. } => format!(" ({})", human(*size)),
            _ => String::new(),
        };
        let _ = writeln!(text, "  {kind} {}{size}", safe(&finding.to_string()));
        if let Some(next) = next(finding, name, &platform) {
            let _ = writeln!(text, "    {} {}", style.dim("next:"), safe(&next));
        }
    }
    text
}

pub fn platform(found: &Diagnosis) -> String {
    found.inspected.image.platform.as_ref().map_or_else(|| "unknown platform".to_owned(), ToString::to_string)
}

/// What to run about it.
pub fn next(finding: &Finding, image: &str, platform: &str) -> Option<String> {
    let image = quoted(image.as_bytes());
    let index = |options: &str| Some(format!("ociseek index {options}{image}"));
    match finding {
        Finding::NoIndex(NoIndex::Possible) => match platform.parse::<crate::image::Platform>() {
            Ok(_) => index(&format!("--platform {platform} ")),
            Err(_) => index(""),
        },
        Finding::OnImageIndex(_) | Finding::OtherVersion { .. } => index(""),
        Finding::Several(_)
        | Finding::Unusable { version: crate::image::soci::Version::V1, .. }
        | Finding::BrokenZtoc(_)
        | Finding::Note { note: Note::NotCanonical | Note::TooLarge { .. } | Note::NotInImage { .. }, .. }
        | Finding::Note { note: Note::Second { .. } | Note::NotServable { .. } | Note::MediaType { .. }, .. }
        | Finding::LostBlobs { .. } => index("--existing replace "),
        Finding::Unusable { .. } | Finding::OddAnnotation(_) => {
            Some("ociseek convert, from the image that it was made from, to a new tag".into())
        }
        Finding::Note { note: Note::NotBeside, .. } => {
            Some("copy the image with all that its image index lists: skopeo copy --all, crane copy".into())
        }
        Finding::OnlyV1 => Some(format!(
            "ociseek convert {image} NEW-NAME makes a SOCI-enabled image of version 2; or enable version 1 \
             ([pull_modes.soci_v1] enable = true)"
        )),
        Finding::LostLayer(_) | Finding::LostConfig(_) => Some("push the image again".into()),
        Finding::Uncovered { why: WhyNot::Kind(LayerKind::Zstd), .. } => {
            Some("build the image with gzip layers: docker buildx build --output type=image,compression=gzip,force-compression=true".into())
        }
        Finding::Uncovered { why: WhyNot::Unknown, .. } => index("--dry-run --existing replace "),
        Finding::Foreign { .. } => Some(format!("ociseek verify --quick {image}")),
        Finding::NoIndex(NoIndex::Small | NoIndex::Impossible)
        | Finding::NotListed(_)
        | Finding::Note { note: Note::Unknown { .. }, .. }
        | Finding::Uncovered { .. }
        | Finding::SmallImage(_) => None,
    }
}
