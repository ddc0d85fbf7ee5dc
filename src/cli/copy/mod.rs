//! `ociseek copy`.

use std::sync::Arc;
use std::time::Instant;

use self::json::Copy;
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::place::ListPlace;
use crate::cli::shared::progress::Display;
use crate::cli::shared::size::{counted, duration, human};
use crate::cli::shared::source::{Images, refuse_plain_layers};
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::{Stdout, safe};
use args::CopyArgs;
use ociseek_format::image::{ImageName, ImageSelector};
use ociseek_format::progress::Progress;
use ociseek_ops::copy::{CopyOptions, CopyReport, copy};
use ociseek_store::layout::Layout;
use ociseek_store::{Destination, blocking};

pub(super) mod args;
pub(super) mod json;

pub(super) async fn run(args: CopyArgs, talk: TalkArgs) -> Result<(), CliError> {
    let started = Instant::now();
    let display = Arc::new(Display::new(talk));
    let progress: Arc<dyn Progress> = display.clone();
    let registries = [crate::cli::shared::source::registry(&args.source), args.destination.registry()];
    let images = Images::at(args.registry, registries.into_iter().flatten(), &progress).await?;
    let tag = tag(&args.source, &args.destination)?;
    let name = match &args.destination {
        place @ ListPlace::Repository { .. } => format!("{place}:{tag}"),
        place => place.to_string(),
    };
    let options = CopyOptions { referrers: !args.no_referrers, jobs: usize::from(args.jobs) };
    display.begin(&args.source.to_string());
    let copied = async {
        let (source, root) = images.open(&args.source).await?;
        if args.destination.registry().is_some() {
            refuse_plain_layers(&args.source, &source, &root, &progress).await?;
        }
        let destination = destination(&images, &args.destination).await?;
        Ok::<_, CliError>(copy(&source, &root, &destination, &tag, &options, &progress).await?)
    }
    .await;
    display.end();
    let (report, seconds) = (copied?, started.elapsed().as_secs_f64());
    let text = match args.format.get() {
        OutputFormat::Json => {
            let document = Copy::of(args.source.to_string(), &name, &report, seconds);
            text_of(document).map_err(CliError::Stdout)?
        }
        OutputFormat::Text => text(&name, &report, seconds),
    };
    Stdout::new().write_whole(text.as_bytes()).map_err(CliError::Stdout)
}

/// The tag of the copy: the typed one, or else the source's.
fn tag(source: &ImageName, destination: &ListPlace) -> Result<String, CliError> {
    let own = match source {
        ImageName::Registry(image) => image.tag.clone().filter(|_| image.digest.is_none()),
        ImageName::Layout { select: ImageSelector::Tag(tag), .. }
        | ImageName::Archive { select: ImageSelector::Tag(tag), .. } => Some(tag.clone()),
        ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
    };
    let typed = match destination {
        ListPlace::Repository { .. } | ListPlace::Image(ImageName::Layout { select: ImageSelector::Any, .. }) => own,
        ListPlace::Image(ImageName::Registry(image)) if image.digest.is_none() => image.tag.clone(),
        ListPlace::Image(ImageName::Layout { select: ImageSelector::Tag(tag), .. }) => Some(tag.clone()),
        ListPlace::Image(ImageName::Registry(_) | ImageName::Layout { .. }) => {
            return Err(CliError::Usage("name the destination by tag, not by digest"));
        }
        ListPlace::Image(ImageName::Archive { .. } | ImageName::Saved { .. }) => {
            return Err(CliError::Usage("archives are read-only: copy to a registry or a layout, oci:DIR"));
        }
    };
    typed.ok_or(CliError::Usage("give the destination a tag: the source has none"))
}

async fn destination(images: &Images, place: &ListPlace) -> Result<Destination, CliError> {
    Ok(match place {
        ListPlace::Repository { registry, repository } => {
            Destination::Registry(images.repository_at(registry, repository)?)
        }
        ListPlace::Image(ImageName::Registry(image)) => Destination::Registry(images.repository(image)?),
        ListPlace::Image(
            ImageName::Layout { dir, .. } | ImageName::Archive { file: dir, .. } | ImageName::Saved { file: dir, .. },
        ) => {
            let dir = dir.clone();
            Destination::Layout(Arc::new(blocking(move || Layout::open_or_create(&dir)).await?))
        }
    })
}

fn text(name: &str, report: &CopyReport, seconds: f64) -> String {
    let blobs = &report.blobs;
    let all = (blobs.present + blobs.mounted + blobs.streamed) as u64;
    let mut text = format!(
        "{}@{}: {}, {}; {}: {} already there, {} mounted, {} copied ({}), in {}\n",
        safe(name),
        report.digest,
        counted(report.manifests as u64, "manifest", "manifests"),
        counted(report.referrers.len() as u64, "referrer", "referrers"),
        counted(all, "blob", "blobs"),
        blobs.present,
        blobs.mounted,
        blobs.streamed,
        human(blobs.bytes),
        duration(seconds),
    );
    for referrer in &report.referrers {
        let kind = referrer.artifact_type.as_deref().unwrap_or("unknown type");
        text += &format!("  referrer {} of {}: {}\n", referrer.digest, referrer.subject.short(), safe(kind));
    }
    text
}
