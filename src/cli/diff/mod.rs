//! `ociseek diff`.

use std::path::PathBuf;
use std::sync::Arc;

use self::json::Comparison;
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::difference::shown;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::Display;
use crate::cli::shared::size::counted;
use crate::cli::shared::source::Images;
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::{Stdout, Style, safe};
use crate::cli::ztoc::input::read_ztoc;
use args::DiffArgs;
use ociseek_format::image::ImageName;
use ociseek_format::progress::Progress;
use ociseek_ops::diff::{Changes, IndexDiff, indexes, side, ztocs};

pub(super) mod args;
pub(super) mod json;

/// An argument: an existing file, or else an image.
enum DiffArgument {
    File(PathBuf),
    Image(ImageName),
}

pub(super) async fn run(args: DiffArgs, talk: TalkArgs) -> Result<(), CliError> {
    let (a, b) = (argument(&args.a)?, argument(&args.b)?);
    let mut stdout = Stdout::new();
    let (text, same) = match (a, b) {
        (DiffArgument::File(a), DiffArgument::File(b)) => {
            let read = move || Ok::<_, CliError>((read_ztoc(&a)?.1, read_ztoc(&b)?.1));
            let (a, b) = tokio::task::spawn_blocking(read).await.map_err(|error| CliError::Start(error.into()))??;
            let changes = ztocs(&a, &b);
            let text = match args.format.get() {
                OutputFormat::Json => {
                    text_of(Comparison::of_ztocs([&args.a, &args.b], &changes)).map_err(CliError::Stdout)?
                }
                OutputFormat::Text => lines(&changes, "", stdout.style) + &verdict(count(&changes)),
            };
            (text, changes.is_empty())
        }
        (DiffArgument::Image(a), DiffArgument::Image(b)) => {
            let display = Arc::new(Display::new(talk));
            let progress: Arc<dyn Progress> = display.clone();
            let images = Images::new(args.registry.clone(), [&a, &b], &progress).await?;
            let open = async |name: &ImageName| {
                let (source, root) = display.during(&name.to_string(), images.open(name)).await?;
                Ok::<_, CliError>(side(&source, &root, args.platform.platform.as_ref(), &progress).await?)
            };
            let (a, b) = (open(&a).await?, open(&b).await?);
            let diff = indexes(&a, &b).await?;
            let text = match args.format.get() {
                OutputFormat::Json => {
                    text_of(Comparison::of_indexes([&args.a, &args.b], [&a, &b], &diff)).map_err(CliError::Stdout)?
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
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
    if same { Ok(()) } else { Err(CliError::Differs) }
}

fn argument(text: &str) -> Result<DiffArgument, CliError> {
    let path = PathBuf::from(text);
    if path.is_file() {
        return Ok(DiffArgument::File(path));
    }
    text.parse().map(DiffArgument::Image).map_err(|source| CliError::ImageName { typed: text.to_owned(), source })
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
    let line =
        |(code, text): &(&str, String)| format!("{indent}{} {}\n", style.yellow(&format!("{code}:")), safe(text));
    let more = if changes.more > 0 { format!("{indent}... and {} more\n", changes.more) } else { String::new() };
    found.iter().map(line).collect::<String>() + &more
}

fn of_indexes_text(diff: &IndexDiff, style: Style) -> String {
    let mut text = lines(&diff.changes, "", style);
    let mut all = count(&diff.changes);
    for layer in diff.layers.iter().filter(|layer| layer.a != layer.b || !layer.changes.is_empty()) {
        all += count(&layer.changes);
        text += &format!("layer {}\n", layer.layer);
        text += &lines(&layer.changes, "  ", style);
    }
    text + &verdict(all)
}
