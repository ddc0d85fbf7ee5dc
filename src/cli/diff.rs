//! `ociseek diff`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use crate::cli::shared::args::{FormatArgs, OutputFormat, PlatformArgs, RegistryArgs};
use crate::cli::shared::difference::{DifferenceJson, shown};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{DigestText, IndexRef, text as text_of};
use crate::cli::shared::progress::Display;
use crate::cli::shared::size::counted;
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::{Stdout, Style, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::ztoc::read_ztoc;
use ociseek_format::image::ImageName;
use ociseek_format::progress::Progress;
use ociseek_ops::diff::{Changes, DiffError, IndexDiff, LayerDiff, Side, indexes, side, ztocs};

const DIFF_LONG_ABOUT: &str = "\
Shows how two ztocs differ, entry by entry and span by span, or how two SOCI indexes differ, layer by layer.

A and B are two ztoc files or two images. For an image, the index that a consumer would use on one platform is \
compared; REPOSITORY@DIGEST selects an index directly. Layers are matched by digest, and differing ztocs are fetched \
and compared. Fine indexes are not compared.";

const DIFF_AFTER_HELP: &str = "\
Examples:
  ociseek diff old.ztoc new.ztoc
  ociseek diff ghcr.io/acme/app:1.3 ghcr.io/acme/app:1.4
  ociseek diff ghcr.io/acme/app@sha256:6b6c3d79... ghcr.io/acme/app@sha256:91f0a2e4...

JSON: docs/json.md describes each field.

Exit status: 0 no difference, 1 failure, 2 usage error, 3 they differ; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Show how two ztocs or SOCI indexes differ
#[derive(Debug, Args)]
#[command(long_about = DIFF_LONG_ABOUT, after_long_help = DIFF_AFTER_HELP)]
pub(crate) struct DiffArgs {
    /// A ztoc file or an image
    #[arg(value_name = "A")]
    pub a: String,

    /// The ztoc file or image to compare it with
    #[arg(value_name = "B")]
    pub b: String,

    #[command(flatten)]
    pub platform: PlatformArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

/// An argument: an existing file, or else an image.
enum DiffArgument {
    File(PathBuf),
    Image(ImageName),
}

pub(super) async fn run(args: DiffArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let a = argument(&args.a)?;
    let b = argument(&args.b)?;
    let mut stdout = Stdout::new();
    let (text, same) = match (a, b) {
        (DiffArgument::File(a), DiffArgument::File(b)) => {
            let read = move || Ok::<_, CliError>((read_ztoc(&a)?.1, read_ztoc(&b)?.1));
            let (a, b) = tokio::task::spawn_blocking(read)
                .await
                .map_err(|error| CliError::Start(error.into()))??;
            let changes = ztocs(&a, &b);
            let text = match args.format.get() {
                OutputFormat::Json => text_of(Comparison::of_ztocs([&args.a, &args.b], &changes))?,
                OutputFormat::Text => lines(&changes, "", stdout.style) + &verdict(count(&changes)),
            };
            (text, changes.is_empty())
        }
        (DiffArgument::Image(a), DiffArgument::Image(b)) => {
            let display = Arc::new(Display::new(verbosity));
            let progress: Arc<dyn Progress> = display.clone();
            let images = Images::new(args.registry.clone(), [&a, &b], &progress).await?;
            let open = async |name: &ImageName| {
                let (source, root) = display.during(&name.to_string(), images.open(name)).await?;
                let side = side(&source, &root, args.platform.platform.as_ref(), &progress).await;
                side.map_err(|error| failure(name, error))
            };
            let a = open(&a).await?;
            let b = open(&b).await?;
            let diff = indexes(&a, &b).await?;
            let text = match args.format.get() {
                OutputFormat::Json => {
                    text_of(Comparison::of_indexes([&args.a, &args.b], [&a, &b], &diff))?
                }
                OutputFormat::Text => of_indexes_text(&diff, stdout.style),
            };
            (text, diff.is_empty())
        }
        _ => {
            return Err(CliError::Usage(
                "only one of the two is a file: compare two ztoc files, or the indexes of two images",
            ));
        }
    };
    stdout.print(text)?;
    if same { Ok(()) } else { Err(CliError::Differs) }
}

fn failure(image: &ImageName, error: DiffError) -> CliError {
    match &error {
        DiffError::NoIndex(_, why) => CliError::NoIndex {
            image: Box::new(image.clone()),
            why: why.clone(),
            source: Box::new(error),
        },
        _ => error.into(),
    }
}

fn argument(text: &str) -> Result<DiffArgument, CliError> {
    let path = PathBuf::from(text);
    if path.is_file() {
        return Ok(DiffArgument::File(path));
    }
    text.parse()
        .map(DiffArgument::Image)
        .map_err(|source| CliError::ImageName { typed: text.to_owned(), source })
}

fn count(changes: &Changes) -> u64 {
    changes.list.len() as u64 + changes.more
}

fn verdict(count: u64) -> String {
    match count {
        0 => "no difference\n".to_owned(),
        count => format!("{}\n", counted(count, "difference", "differences")),
    }
}

fn lines(changes: &Changes, indent: &str, style: Style) -> String {
    let found = shown(changes.list.iter().map(|change| (change.code.word(), change.text.clone())));
    let line = |(code, text): &(&str, String)| {
        let code = format!("{code}:");
        // Some texts begin with the same word.
        let text = text.strip_prefix(&code).map_or(text.as_str(), str::trim_start);
        format!("{indent}{} {}\n", style.yellow(&code), safe(text))
    };
    let more = if changes.more > 0 {
        format!("{indent}... and {} more\n", changes.more)
    } else {
        String::new()
    };
    found.iter().map(line).collect::<String>() + &more
}

fn of_indexes_text(diff: &IndexDiff, style: Style) -> String {
    let mut text = lines(&diff.changes, "", style);
    let mut all = count(&diff.changes);
    for layer in diff.layers.iter().filter(|layer| layer.a != layer.b || !layer.changes.is_empty())
    {
        all += count(&layer.changes);
        text += &format!("layer {}\n", layer.layer);
        text += &lines(&layer.changes, "  ", style);
    }
    text + &verdict(all)
}

/// The comparison of two ztocs, or of the indexes of two images.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Comparison {
    /// A and B as typed.
    a: String,
    b: String,
    status: Status,
    /// Differences between the ztocs, or between the indexes themselves.
    differences: Vec<DifferenceJson>,
    /// The number of differences that are not listed.
    more_differences: u64,
    /// The index of A; present only when indexes are compared, like the next two fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_a: Option<IndexRef>,
    /// The index of B.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_b: Option<IndexRef>,
    /// The layers with a ztoc in either index.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<Layer>>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Same,
    Different,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    digest: DigestText,
    /// Null if A has no ztoc for the layer.
    ztoc_a: Option<Ztoc>,
    /// Null if B has no ztoc for the layer.
    ztoc_b: Option<Ztoc>,
    differences: Vec<DifferenceJson>,
    /// The number of differences that are not listed.
    more_differences: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Ztoc {
    digest: DigestText,
}

impl Comparison {
    pub(crate) fn of_ztocs([a, b]: [&str; 2], changes: &Changes) -> Comparison {
        Comparison {
            a: a.to_owned(),
            b: b.to_owned(),
            status: if changes.is_empty() { Status::Same } else { Status::Different },
            differences: changes.list.iter().map(DifferenceJson::from).collect(),
            more_differences: changes.more,
            index_a: None,
            index_b: None,
            layers: None,
        }
    }

    pub(crate) fn of_indexes(names: [&str; 2], [a, b]: [&Side; 2], diff: &IndexDiff) -> Comparison {
        Comparison {
            status: if diff.is_empty() { Status::Same } else { Status::Different },
            index_a: Some(IndexRef::of(&a.manifest)),
            index_b: Some(IndexRef::of(&b.manifest)),
            layers: Some(diff.layers.iter().map(Layer::of).collect()),
            ..Comparison::of_ztocs(names, &diff.changes)
        }
    }
}

impl Layer {
    fn of(diff: &LayerDiff) -> Layer {
        Layer {
            digest: diff.layer.into(),
            ztoc_a: diff.a.map(|digest| Ztoc { digest: digest.into() }),
            ztoc_b: diff.b.map(|digest| Ztoc { digest: digest.into() }),
            differences: diff.changes.list.iter().map(DifferenceJson::from).collect(),
            more_differences: diff.changes.more,
        }
    }
}
