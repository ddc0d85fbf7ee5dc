//! `ociseek copy`.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use crate::cli::shared::args::{FormatArgs, OutputFormat, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{DigestText, milliseconds, text as text_of};
use crate::cli::shared::parse;
use crate::cli::shared::progress::Display;
use crate::cli::shared::size::{counted, duration, human};
use crate::cli::shared::source::{Images, ListPlace, output_layout, refuse_plain_layers};
use crate::cli::shared::terminal::{Stdout, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::{ImageName, ImageSelector};
use ociseek_format::progress::Progress;
use ociseek_ops::copy::{CopyOptions, CopyReport, copy};
use ociseek_store::Destination;

const COPY_LONG_ABOUT: &str = "\
Copies an image with all its referrers (SOCI indexes, fine indexes, signatures, attestations, and their own \
referrers) between registries and layouts. Digests stay the same.

Within a registry, blobs are mounted; otherwise they are streamed without using disk space, and broken connections \
are resumed. The tag is written last, so an interrupted copy leaves no tag; run it again to continue. If the \
destination does not support the referrers API, referrers are listed under the tag sha256-... .

DESTINATION is [REGISTRY/]REPOSITORY:TAG or oci:DIR[:TAG]. In a layout, TAG defaults to the source's. All platforms \
are copied. \
Signatures that cosign stores under its own tags (sha256-....sig) are not referrers and are not copied.";

const COPY_AFTER_HELP: &str = "\
Examples:
  ociseek copy staging.example/acme/app:1.4 prod.example/acme/app:1.4
  ociseek copy ghcr.io/acme/app:1.4 oci:app
  ociseek copy oci:app:1.4 localhost:5000/app:test

JSON: docs/json.md describes each field.

Exit status: 0 success, 1 failure, 2 usage error; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Copy an image with its indexes and other referrers
#[derive(Debug, Args)]
#[command(long_about = COPY_LONG_ABOUT, after_long_help = COPY_AFTER_HELP)]
pub(crate) struct CopyArgs {
    /// The image
    #[arg(value_name = "SOURCE")]
    pub source: ImageName,

    /// Where the copy goes
    #[arg(value_name = "DESTINATION")]
    pub destination: ListPlace,

    /// Copy only the image, without its referrers
    #[arg(long)]
    pub no_referrers: bool,

    /// How many blobs to copy in parallel
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256), allow_negative_numbers = true)]
    pub jobs: u16,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: CopyArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let started = Instant::now();
    if matches!(&args.destination, ListPlace::Repository { repository, .. } if parse::is_archive(repository))
    {
        return Err(READ_ONLY);
    }
    args.destination.check()?;
    let display = Arc::new(Display::new(verbosity));
    let progress: Arc<dyn Progress> = display.clone();
    let registries =
        [crate::cli::shared::source::registry(&args.source), args.destination.registry()];
    let images = Images::at(args.registry, registries.into_iter().flatten(), &progress).await?;
    let tag = tag(&args.source, &args.destination)?;
    let name = args.destination.to_string();
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
    let report = copied?;
    let seconds = started.elapsed().as_secs_f64();
    let text = match args.format.get() {
        OutputFormat::Json => {
            let document = Copy::of(args.source.to_string(), &name, &report, seconds);
            text_of(document)?
        }
        OutputFormat::Text => text(&name, &report, seconds),
    };
    Stdout::new().print(text)
}

const READ_ONLY: CliError =
    CliError::Usage("archives are read-only: copy to a registry or a layout, oci:DIR");

/// The tag of the copy: the typed one, or else in a layout the source's.
fn tag(source: &ImageName, destination: &ListPlace) -> Result<String, CliError> {
    let own = match source {
        ImageName::Registry(image) => image.tag.clone().filter(|_| image.digest.is_none()),
        ImageName::Layout { select: ImageSelector::Tag(tag), .. }
        | ImageName::Archive { select: ImageSelector::Tag(tag), .. } => Some(tag.clone()),
        ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
    };
    let typed = match destination {
        place @ ListPlace::Repository { .. } => {
            return Err(CliError::NoTag {
                place: place.to_string(),
                tag: own.unwrap_or_else(|| "TAG".into()),
            });
        }
        ListPlace::Image(ImageName::Layout { select: ImageSelector::Any, .. }) => own,
        ListPlace::Image(ImageName::Registry(image)) if image.digest.is_none() => image.tag.clone(),
        ListPlace::Image(ImageName::Layout { select: ImageSelector::Tag(tag), .. }) => {
            Some(tag.clone())
        }
        ListPlace::Image(ImageName::Registry(_) | ImageName::Layout { .. }) => {
            return Err(CliError::Usage("name the destination by tag, not by digest"));
        }
        ListPlace::Image(ImageName::Archive { .. } | ImageName::Saved { .. }) => {
            return Err(READ_ONLY);
        }
    };
    typed.ok_or(CliError::Usage("give the destination a tag: the source has none"))
}

async fn destination(images: &Images, place: &ListPlace) -> Result<Destination, CliError> {
    Ok(match place {
        ListPlace::Repository { registry, repository } => {
            Destination::Registry(images.repository_at(registry, repository)?)
        }
        ListPlace::Image(ImageName::Registry(image)) => {
            Destination::Registry(images.repository(image)?)
        }
        ListPlace::Image(
            ImageName::Layout { dir, .. }
            | ImageName::Archive { file: dir, .. }
            | ImageName::Saved { file: dir, .. },
        ) => Destination::Layout(Arc::new(output_layout(dir.clone()).await?)),
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
        text += &format!(
            "  referrer {} of {}: {}\n",
            referrer.digest,
            referrer.subject.short(),
            safe(kind)
        );
    }
    text
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Copy {
    /// The full names of SOURCE and DESTINATION.
    source: String,
    destination: String,
    /// The digest of the manifest or image index that was copied.
    digest: DigestText,
    /// Number of manifests and image indexes, without referrers.
    manifests: usize,
    referrers: Vec<Referrer>,
    blobs: Blobs,
    bytes_streamed: u64,
    seconds: f64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Referrer {
    digest: DigestText,
    /// The manifest that it refers to.
    subject: DigestText,
    artifact_type: Option<String>,
}

/// How many blobs were copied, and how.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Blobs {
    there: usize,
    mounted: usize,
    streamed: usize,
}

impl Copy {
    pub(crate) fn of(source: String, destination: &str, report: &CopyReport, seconds: f64) -> Copy {
        let referrers = report.referrers.iter().map(|one| Referrer {
            digest: one.digest.into(),
            subject: one.subject.into(),
            artifact_type: one.artifact_type.clone(),
        });
        let blobs = &report.blobs;
        Copy {
            source,
            destination: destination.to_owned(),
            digest: report.digest.into(),
            manifests: report.manifests,
            referrers: referrers.collect(),
            blobs: Blobs { there: blobs.present, mounted: blobs.mounted, streamed: blobs.streamed },
            bytes_streamed: blobs.bytes,
            seconds: milliseconds(seconds),
        }
    }
}
