//! `ociseek convert`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use self::json::Conversion;
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::build::{layer_options, named};
use crate::cli::shared::caches;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::Display;
use crate::cli::shared::source::{Images, output_layout, refuse_plain_layers, registry};
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::Stdout;
use args::ConvertArgs;
use ociseek_format::image::{ImageName, ImageSelector};
use ociseek_format::progress::Progress;
use ociseek_ops::convert::{ConvertDestination, convert};
use ociseek_ops::index::IndexOptions;
use ociseek_store::Destination;

pub(super) mod args;
pub(super) mod json;
pub(super) mod text;

pub(super) async fn run(args: ConvertArgs, talk: TalkArgs) -> Result<(), CliError> {
    let started = Instant::now();
    check(&args)?;
    let display = Arc::new(Display::new(talk));
    let progress: Arc<dyn Progress> = display.clone();
    let names = [&args.source, &args.destination].into_iter().chain(&args.reuse.reuse_from);
    let images = Images::new(args.registry, names, &progress).await?;
    let cache = caches::ztocs(&args.cache, &progress).await;
    let mut reuse = args.reuse.shared.options();
    reuse.from = named(&images, &args.reuse.reuse_from, &progress).await;
    reuse.tag = match &args.source {
        ImageName::Registry(reference) => reference.tag.clone(),
        ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
    };
    let options = IndexOptions {
        platforms: args.platform,
        layer: layer_options(&args.build),
        min_layer_size: args.min_layer.min_layer_size.0,
        jobs: args.layer_jobs.count(),
        dry_run: args.dry_run,
        reuse,
        prefetch: args.prefetch.list()?,
        ..IndexOptions::default()
    };
    display.begin(&args.source.to_string());
    let result = async {
        let from = images.open_root(&args.source).await?;
        if registry(&args.destination).is_some() {
            refuse_plain_layers(&args.source, &from.source, &from.root, &progress).await?;
        }
        let to = destination(&images, &args.destination, args.replace_tag, args.dry_run).await?;
        Ok::<_, CliError>(convert(&from, &to, cache.as_ref(), &options, &progress).await?)
    }
    .await;
    display.end();
    let done = result?;
    let seconds = started.elapsed().as_secs_f64();
    let mut stdout = Stdout::new();
    let (source, name) = (args.source.to_string(), args.destination.to_string());
    let text = match (args.format.get(), talk.quiet) {
        (OutputFormat::Json, _) => {
            let document = Conversion::of(source, name, &done, seconds);
            text_of(&document).map_err(CliError::Stdout)?
        }
        (OutputFormat::Text, true) => format!("{}\n", done.digest),
        (OutputFormat::Text, false) => text::report(&source, &args.destination, &done, seconds, stdout.style),
    };
    stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)
}

/// Checks that clap cannot express.
fn check(args: &ConvertArgs) -> Result<(), CliError> {
    match (&args.source, &args.destination) {
        (_, ImageName::Archive { .. } | ImageName::Saved { .. }) => {
            Err(CliError::Usage("archives are read-only: use oci:DIR[:TAG] for DST"))
        }
        (_, ImageName::Registry(reference)) if reference.digest.is_some() => {
            Err(CliError::Usage("DST must be a tag, not a digest"))
        }
        (_, ImageName::Layout { select: ImageSelector::Digest(_), .. }) => {
            Err(CliError::Usage("DST must be a tag, not a digest"))
        }
        (ImageName::Layout { dir: from, .. }, ImageName::Layout { dir: to, select: ImageSelector::Any })
            if is_same(from, to) =>
        {
            Err(CliError::Usage("DST is in the same layout as SRC: give it a different tag, oci:DIR:TAG"))
        }
        _ => Ok(()),
    }
}

fn is_same(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(a) == real(b)
}

/// The destination of the image.
async fn destination(
    images: &Images,
    name: &ImageName,
    replace_tag: bool,
    dry_run: bool,
) -> Result<ConvertDestination, CliError> {
    let (destination, tag) = match name {
        ImageName::Registry(reference) => {
            let tag = reference.tag.clone().unwrap_or_else(|| "latest".to_owned());
            (Some(Destination::Registry(images.repository(reference)?)), Some(tag))
        }
        ImageName::Layout { dir, select } => {
            let tag = match select {
                ImageSelector::Tag(tag) => Some(tag.clone()),
                ImageSelector::Any | ImageSelector::Digest(_) => None,
            };
            let layout = output_layout(dir.clone(), dry_run).await?;
            (layout.map(|layout| Destination::Layout(Arc::new(layout))), tag)
        }
        // Already refused.
        ImageName::Archive { .. } | ImageName::Saved { .. } => (None, None),
    };
    Ok(ConvertDestination { destination, tag, replace_tag, guard: None })
}
