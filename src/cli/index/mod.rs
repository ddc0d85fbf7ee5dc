//! `ociseek index`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::build::{layer_options, named};
use crate::cli::shared::caches;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{milliseconds, text as text_of};
use crate::cli::shared::progress::Display;
use crate::cli::shared::report;
use crate::cli::shared::source::{Images, home, output_layout};
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::Stdout;
use args::IndexArgs;
use ociseek_format::image::{ImageName, ImageSelector, Reference};
use ociseek_format::progress::Progress;
use ociseek_ops::index::{Gate, IndexOptions};
use ociseek_ops::versions::{MakeRequest, Versions, VersionsResult, make};
use ociseek_store::cache::ZtocCache;
use ociseek_store::layout::tag_of;
use ociseek_store::{Destination, Source};
use result::ImageResult;

pub(super) mod args;
pub(super) mod json;
mod result;
mod step;
mod text;

/// Indexes all images one after the other, and continues after failures.
pub(super) async fn run(args: IndexArgs, talk: TalkArgs) -> Result<(), CliError> {
    let started = Instant::now();
    check(&args)?;
    let display = Arc::new(Display::new(talk));
    let progress: Arc<dyn Progress> = display.clone();
    let files = step::StepFiles { outputs: args.step_outputs.clone(), summary: args.step_summary.clone() };
    let versions = args.versions.clone().versions(args.images.len() > 1)?;
    let mut options = options(&args, &versions, started)?;
    let images = Images::new(args.registry, args.images.iter().chain(&args.reuse.reuse_from), &progress).await?;
    options.reuse.from = named(&images, &args.reuse.reuse_from, &progress).await;
    let cache = caches::ztocs(&args.cache, &progress).await;
    let settings = SharedSettings { options, versions, images, cache, output: args.output, progress };
    let mut stdout = Stdout::new();
    let mut images = Vec::new();
    let mut failed = 0;
    for name in &args.images {
        let image = name.to_string();
        display.begin(&image);
        let result = settings.index(name, image).await;
        display.end();
        if let Some(error) = result.error() {
            failed += 1;
            report::report_error(Some(&result.image), error);
        }
        if args.format.get() == OutputFormat::Text {
            let text = result.text(settings.target().as_deref(), talk.quiet, stdout.style);
            stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
        }
        images.push(result.json());
    }
    let document = json::Indexing {
        bytes_read: images.iter().map(|image| image.bytes_read).sum(),
        bytes_written: images.iter().map(|image| image.bytes_written).sum(),
        images,
        seconds: milliseconds(started.elapsed().as_secs_f64()),
    };
    files.write(&document)?;
    if args.format.get() == OutputFormat::Json {
        let text = text_of(&document).map_err(CliError::Stdout)?;
        stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::Images { failed, all: args.images.len() }),
    }
}

/// Checks that clap cannot express.
fn check(args: &IndexArgs) -> Result<(), CliError> {
    if let Some(saved) = args.images.iter().find(|image| matches!(image, ImageName::Saved { .. })) {
        return Err(CliError::IndexSaved(saved.to_string()));
    }
    let archive = args.images.iter().any(|image| matches!(image, ImageName::Archive { .. }));
    if archive && args.output.is_none() && !args.dry_run {
        return Err(CliError::Usage("archives are read-only: give --output oci:DIR, or --dry-run"));
    }
    if args.kinds.fine_only && (args.strict || args.min_coverage.is_some()) {
        return Err(CliError::Usage(
            "--strict and --min-coverage check the SOCI index, which --fine-only does not make",
        ));
    }
    if args.versions.v2_only.is_some() {
        if args.strict || args.min_coverage.is_some() {
            return Err(CliError::Usage(
                "--strict and --min-coverage check the attached index, which --v2-only does not make: use --v2",
            ));
        }
        if args.timeout.is_some() {
            return Err(CliError::Usage(
                "--timeout works with --v2 but not with --v2-only, which cannot continue where it stopped",
            ));
        }
    }
    Ok(())
}

fn options(args: &IndexArgs, versions: &Versions, started: Instant) -> Result<IndexOptions, CliError> {
    Ok(IndexOptions {
        platforms: args.platforms.platform.clone(),
        kinds: args.kinds.kinds(versions)?,
        layer: layer_options(&args.build),
        min_layer_size: args.min_layer.min_layer_size.0,
        existing: args.existing.into(),
        jobs: args.layer_jobs.count(),
        dry_run: args.dry_run,
        gate: Gate { all_servable: args.strict, least_coverage: args.min_coverage },
        deadline: args.timeout.and_then(|timeout| started.checked_add(timeout)),
        reuse: args.reuse.shared.options(),
        prefetch: args.prefetch.list()?,
    })
}

/// The settings that all images share.
struct SharedSettings {
    options: IndexOptions,
    versions: Versions,
    images: Images,
    cache: Option<ZtocCache>,
    output: Option<PathBuf>,
    progress: Arc<dyn Progress>,
}

impl SharedSettings {
    /// Indexes the image `name`, which the user sees as `image`.
    async fn index(&self, name: &ImageName, image: String) -> ImageResult {
        let started = Instant::now();
        let mut result = self.make(name).await;
        let made = result.as_mut().ok();
        let not_enabled = made.and_then(|made| made.failed.take()).map(CliError::from);
        let enabled = result.as_ref().ok().and_then(|made| made.enabled.as_ref());
        let enabled = enabled.map(|enabled| self.enabled(name, &enabled.tag));
        ImageResult { image, result, not_enabled, enabled, seconds: started.elapsed().as_secs_f64() }
    }

    async fn make(&self, name: &ImageName) -> Result<VersionsResult, CliError> {
        let from = self.images.open_root(name).await?;
        let destination = self.destination(&from.source).await?;
        let tag = match name {
            ImageName::Registry(reference) => reference.tag.clone(),
            ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
        };
        let mut options = self.options.clone();
        options.reuse.tag.clone_from(&tag);
        // index.json has the name of an image that is the only one, or that was named by digest.
        let tag = tag.or_else(|| from.descriptor.as_ref().and_then(tag_of).map(str::to_owned));
        let subject = MakeRequest { from, tag, resolved: None, is_unattended: false };
        let (cache, versions) = (self.cache.as_ref(), &self.versions);
        Ok(make(subject, destination.as_ref(), versions, cache, &options, &self.progress).await?)
    }

    /// The name of the SOCI-enabled image of `name`.
    fn enabled(&self, name: &ImageName, tag: &str) -> ImageName {
        let select = ImageSelector::Tag(tag.to_owned());
        match (&self.output, name) {
            (Some(dir), _) => ImageName::Layout { dir: dir.clone(), select },
            (None, ImageName::Registry(reference)) => {
                ImageName::Registry(Reference { tag: Some(tag.to_owned()), digest: None, ..reference.clone() })
            }
            (None, ImageName::Layout { dir, .. }) => ImageName::Layout { dir: dir.clone(), select },
            (None, ImageName::Archive { file, .. } | ImageName::Saved { file, .. }) => {
                ImageName::Archive { file: file.clone(), select }
            }
        }
    }

    /// The destination of the index. None for a layout that a dry run does not create.
    async fn destination(&self, source: &Source) -> Result<Option<Destination>, CliError> {
        let Some(dir) = self.output.clone() else { return Ok(home(source)) };
        let layout = output_layout(dir, self.options.dry_run).await?;
        let budget = source.budget().clone();
        Ok(layout.map(|layout| Destination::Layout(Arc::new(layout.with_budget(budget)))))
    }

    fn target(&self) -> Option<String> {
        self.output.as_ref().map(|dir| format!("oci:{}", dir.display()))
    }
}
