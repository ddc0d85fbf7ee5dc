//! `ociseek index`: its options, and the run over its images.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;

use crate::cli::convert;
use crate::cli::shared::args::{
    BuildArgs, CacheArgs, ExistingArg, FormatArgs, LayerJobsArgs, MinLayerArgs, OutputFormat,
    PlatformsArgs, RegistryArgs,
};
use crate::cli::shared::error::CliError;
use crate::cli::shared::indexing::{
    KindArgs, PrefetchArgs, RequirementArgs, ReuseArgs, layer_options, named,
};
use crate::cli::shared::json::{milliseconds, text as text_of};
use crate::cli::shared::progress::Display;
use crate::cli::shared::remedy::new_name;
use crate::cli::shared::source::{Images, home, output_layout};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, complain, quoted, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::shared::{caches, layers, parse, report};
use ociseek_format::image::{ImageName, ImageSelector, Reference};
use ociseek_format::progress::Progress;
use ociseek_ops::index::{IndexOptions, Kinds, Work};
use ociseek_ops::versions::{MakeRequest, Versions, VersionsResult, make};
use ociseek_store::cache::ZtocCache;
use ociseek_store::layout::tag_of;
use ociseek_store::{Destination, Source};

pub(super) mod json;
mod text;

const INDEX_LONG_ABOUT: &str = "\
Builds indexes of each IMAGE: attached to it (version 1), as a SOCI-enabled image under another tag (version 2), or \
both, and a fine index. --kind says which; without it, version 1 is attached. Fargate, SageMaker Studio and \
soci-snapshotter with its default settings read version 2.

Each layer is read once, as a stream: nothing is unpacked and no temporary disk space is used. Layers that cannot be \
served lazily (too small, zstd, sparse files, ...) are left out and the reason is printed; consumers pull them \
whole. A broken layer (wrong digest or checksum, truncated) is an error, and nothing is pushed for that image.

IMAGE is one of

  [REGISTRY/]REPOSITORY[:TAG][@DIGEST]
    an image in a registry, named as for docker pull; the index is pushed there
    (a registry on this machine, such as localhost:5000, is accessed over plain HTTP)
  oci:DIR[:TAG|@DIGEST]
    an OCI image layout; the index is written into it
  oci-archive:FILE[:TAG]
    a tar of a layout, as written by docker save (25 or later) and BuildKit (type=oci); it is
    read-only, so use --output or --dry-run

Several IMAGEs are indexed one after the other. If one fails, the others are still indexed, and the exit status is 1.";

const INDEX_AFTER_HELP: &str = "\
Credentials come from docker's config.json ($DOCKER_CONFIG or ~/.docker), its credential helpers, or podman's \
auth.json. After docker login, no further setup is needed.

Examples:
  A SOCI-enabled image as app:1.4-soci, all platforms:
    ociseek index --kind 'v2={tag}-soci' ghcr.io/acme/app:1.4

  An index attached to the image, whose digest stays as it is:
    ociseek index ghcr.io/acme/app:1.4

  Preview without writing anything:
    ociseek index --dry-run python:3.13

  As a CI gate, by the pushed digest, with a summary table on the job page:
    ociseek index --kind 'v2={tag}-soci' --strict --min-coverage 80% \\
      $IMAGE:$TAG@$DIGEST --step-summary $GITHUB_STEP_SUMMARY

  One platform, including small layers, in a local registry:
    ociseek index --platform linux/arm64 --min-layer-size 0 localhost:5000/app

  A layout on disk, without a registry:
    skopeo copy docker://python:3.13 oci:python:3.13
    ociseek index oci:python:3.13

  An archive from docker save; the index goes into its own layout:
    docker save app:1.4 -o app.tar
    ociseek index --output oci:app-index oci-archive:app.tar

  A fine index next to version 1, with a recorded startup:
    ociseek index --kind v1,fine ghcr.io/acme/app:1.4
    ociseek try ghcr.io/acme/app:1.4 --record start.jsonl
    ociseek index --kind v1,fine --profile start.jsonl ghcr.io/acme/app:1.4

  In scripts:
    ociseek index --json --progress none $IMAGE | jq -r '.images[].manifests[].index.digest'

JSON: docs/json.md describes each field.

Exit status: 0 success (even if layers are left out), 1 an image failed or missed a requirement, 2 usage error; 129, \
130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Build indexes of images, attached or as SOCI-enabled images
#[derive(Debug, Args)]
#[command(long_about = INDEX_LONG_ABOUT, after_long_help = INDEX_AFTER_HELP)]
pub(crate) struct IndexArgs {
    /// The images to index
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<ImageName>,

    #[command(flatten)]
    pub kinds: KindArgs,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Write the index into an OCI layout, oci:DIR, instead of next to the image
    ///
    /// The layout is created if needed. It holds the index and its ztocs, not the image; with
    /// --kind v2=TAG also the SOCI-enabled image with all its layers.
    #[arg(hide_short_help = true)]
    #[arg(long, short, value_name = "oci:DIR", env = "OCISEEK_OUTPUT", value_parser = parse::layout_dir)]
    pub output: Option<PathBuf>,

    /// Build and report, but write nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = parse::switch)]
    pub dry_run: bool,

    /// What to do if the image already has a SOCI index
    #[arg(long, value_name = "RULE", env = "OCISEEK_EXISTING", value_enum, default_value_t = ExistingArg::Skip)]
    pub existing: ExistingArg,

    #[command(flatten)]
    pub layer_jobs: LayerJobsArgs,

    /// Stop reading layers after this time, such as 10m or 90s, and attach what is finished
    ///
    /// The limit is for all IMAGEs together; attaching takes additional time. Consumers pull the
    /// remaining layers whole. Another run with the same cache continues where this one stopped,
    /// but starts unfinished layers over: a layer that takes longer than this is never finished,
    /// and the report says so. Running out of time is not a failure; the JSON lists the remaining
    /// layers.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "DURATION", env = "OCISEEK_TIMEOUT", value_parser = parse::duration)]
    pub timeout: Option<Duration>,

    #[command(flatten, next_help_heading = "Indexing")]
    pub min_layer: MinLayerArgs,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub prefetch: PrefetchArgs,

    #[command(flatten)]
    pub reuse: ReuseArgs,

    #[command(flatten)]
    pub requirements: RequirementArgs,

    /// Append the digests as NAME=VALUE lines to this file: $GITHUB_OUTPUT, or a dotenv report in
    /// GitLab
    ///
    /// The names are status (ok or failed), image_digest, index_digest (the first), index_digests
    /// (all, comma-separated), coverage (the lowest of all platforms, in percent) and
    /// enabled_digest (of the first SOCI-enabled image). Written even if the run fails.
    #[arg(
        long,
        value_name = "FILE",
        env = "OCISEEK_STEP_OUTPUTS",
        help_heading = "In CI",
        hide_short_help = true
    )]
    pub step_outputs: Option<PathBuf>,

    /// Append a Markdown summary table to this file: $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FILE", env = "OCISEEK_STEP_SUMMARY", help_heading = "In CI")]
    #[arg(hide_short_help = true)]
    pub step_summary: Option<PathBuf>,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

/// Which kind is made by default, why, and what to do for the runtimes that do not read it.
fn default_kind(images: &[ImageName]) -> String {
    let convert = match images {
        [image] => format!(
            "{} {}",
            quoted(image.to_string().as_bytes()),
            quoted(new_name(image).as_bytes())
        ),
        _ => "IMAGE NEW-NAME".to_owned(),
    };
    format!(
        "note: without --kind, index attaches version 1, which leaves the image as it is; AWS Fargate, SageMaker \
         Studio and soci-snapshotter with its default settings read version 2: ociseek convert {convert}"
    )
}

/// Indexes all images one after the other, and continues after failures.
pub(super) async fn run(args: IndexArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let started = Instant::now();
    let (versions, kinds) = args.kinds.clone().selected(args.images.len() > 1)?;
    check(&args, &versions, kinds)?;
    let display = Arc::new(Display::new(verbosity));
    let progress: Arc<dyn Progress> = display.clone();
    let files =
        text::StepFiles { outputs: args.step_outputs.clone(), summary: args.step_summary.clone() };
    files.begin()?;
    let mut options = options(&args, kinds, started)?;
    let images =
        Images::new(args.registry, args.images.iter().chain(&args.reuse.reuse_from), &progress)
            .await?;
    options.reuse.from = named(&images, &args.reuse.reuse_from, &progress).await;
    let cache = caches::ztocs(&args.cache, &progress).await;
    let settings =
        SharedSettings { options, versions, images, cache, output: args.output, progress };
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
            let text = result.text(settings.target().as_deref(), verbosity.quiet, stdout.style);
            stdout.tell(&text)?;
        }
        images.push(result.json());
    }
    let document = json::Indexing {
        bytes_read: images.iter().map(|image| image.bytes_read).sum(),
        bytes_written: images.iter().map(|image| image.bytes_written).sum(),
        images,
        seconds: milliseconds(started.elapsed().as_secs_f64()),
    };
    if args.kinds.is_default() && failed == 0 && !verbosity.quiet && io::stderr().is_terminal() {
        complain(&safe(&default_kind(&args.images)));
    }
    files.write(&document)?;
    if args.format.get() == OutputFormat::Json {
        let text = text_of(&document)?;
        stdout.print(text)?;
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::some(failed, args.images.len(), "images failed")),
    }
}

/// Whether it is a subcommand of other tools, or a kind: `soci index rm`. Docker Hub has no images
/// of these names.
fn is_other_word(image: &ImageName) -> bool {
    let ImageName::Registry(reference) = image else { return false };
    let word = reference.to_string();
    let word =
        word.strip_prefix("docker.io/library/").and_then(|word| word.strip_suffix(":latest"));
    word.is_some_and(|word| {
        ["create", "fine", "info", "list", "ls", "push", "remove", "rm", "show", "v1", "v2"]
            .contains(&word)
    })
}

/// Checks that clap cannot express.
fn check(args: &IndexArgs, versions: &Versions, kinds: Kinds) -> Result<(), CliError> {
    if let Some(saved) = args.images.iter().find(|image| matches!(image, ImageName::Saved { .. })) {
        let saved = saved.to_string();
        return Err(CliError::usage(format!(
            "cannot index {saved}: docker save keeps no manifest to attach an index to, and its \
             uncompressed layers have different digests from those of a pushed image, so the index \
             would not fit that image either"
        ))
        .with_hint(format!(
            "push the image (docker push) and index it in the registry, or convert the archive to a \
             SOCI-enabled image: ociseek convert {} oci:DIR",
            quoted(saved.as_bytes())
        )));
    }
    if args.images.iter().any(is_other_word) {
        return Err(CliError::usage(
            "index has no subcommands, and a comma separates its kinds (--kind v1,fine): ociseek list lists indexes, \
             ociseek rm removes them, and ociseek doctor --verbose shows them",
        ));
    }
    let archive = args.images.iter().any(|image| matches!(image, ImageName::Archive { .. }));
    if archive && args.output.is_none() && !args.dry_run {
        return Err(CliError::usage("archives are read-only: use --output oci:DIR, or --dry-run"));
    }
    let has_gate = args.requirements.strict || args.requirements.min_coverage.is_some();
    if has_gate && kinds == Kinds::Fine {
        return Err(CliError::usage(
            "--strict and --min-coverage are about SOCI indexes: add v1 or v2=TAG to --kind",
        ));
    }
    if args.timeout.is_some() && matches!(versions, Versions::V2(_)) {
        if kinds == Kinds::Fine {
            return Err(CliError::usage(
                "--timeout needs fine in --kind: an image with only the fine index cannot continue where it stopped",
            ));
        }
        return Err(CliError::usage(
            "--timeout needs v1 in --kind: version 2 alone cannot continue where it stopped",
        ));
    }
    Ok(())
}

fn options(args: &IndexArgs, kinds: Kinds, started: Instant) -> Result<IndexOptions, CliError> {
    Ok(IndexOptions {
        platforms: args.platforms.platform.clone(),
        kinds,
        layer: layer_options(&args.build),
        min_layer_size: args.min_layer.min_layer_size.0,
        existing: args.existing.into(),
        jobs: args.layer_jobs.count(),
        dry_run: args.dry_run,
        gate: args.requirements.gate(),
        deadline: args.timeout.and_then(|timeout| started.checked_add(timeout)),
        reuse: args.reuse.options(),
        prefetch: args.prefetch.list()?,
        names_tocs: false,
    })
}

/// The settings that all images share.
struct SharedSettings {
    pub options: IndexOptions,
    pub versions: Versions,
    pub images: Images,
    pub cache: Option<ZtocCache>,
    pub output: Option<PathBuf>,
    pub progress: Arc<dyn Progress>,
}

impl SharedSettings {
    /// Indexes the image `name`, which the user sees as `image`.
    async fn index(&self, name: &ImageName, image: String) -> ImageResult {
        let started = Instant::now();
        let mut result = self.make(name).await;
        let made = result.as_mut().ok();
        let mut not_enabled = made.and_then(|made| made.failed.take()).map(CliError::from);
        // The report on a requirement that is not met is about an image for which nothing was made.
        if result.as_ref().is_ok_and(|made| made.index.is_none())
            && let Some(error) = not_enabled.take_if(|error| error.refused().is_some())
        {
            result = Err(error);
        }
        let enabled = result.as_ref().ok().and_then(|made| made.enabled.as_ref());
        let enabled = enabled.map(|enabled| self.enabled(name, &enabled.tag));
        ImageResult {
            image,
            result,
            not_enabled,
            enabled,
            seconds: started.elapsed().as_secs_f64(),
        }
    }

    async fn make(&self, name: &ImageName) -> Result<VersionsResult, CliError> {
        let from = self.images.open_root(name).await?;
        let destination = self.destination(&from.source).await?;
        let tag = match name {
            ImageName::Registry(reference) => reference.tag.clone(),
            ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
        };
        // index.json has the name of an image that is the only one, or that was named by digest.
        let tag = tag.or_else(|| from.descriptor.as_ref().and_then(tag_of).map(str::to_owned));
        let subject = MakeRequest { from, tag, resolved: None, is_unattended: false };
        let cache = self.cache.as_ref();
        let versions = &self.versions;
        Ok(make(
            subject,
            destination.as_ref(),
            versions,
            Work { cache, options: &self.options, progress: &self.progress },
        )
        .await?)
    }

    /// The name of the SOCI-enabled image of `name`.
    fn enabled(&self, name: &ImageName, tag: &str) -> ImageName {
        let select = ImageSelector::Tag(tag.to_owned());
        match (&self.output, name) {
            (Some(dir), _) => ImageName::Layout { dir: dir.clone(), select },
            (None, ImageName::Registry(reference)) => ImageName::Registry(Reference {
                tag: Some(tag.to_owned()),
                digest: None,
                ..reference.clone()
            }),
            (None, ImageName::Layout { dir, .. }) => ImageName::Layout { dir: dir.clone(), select },
            (None, ImageName::Archive { file, .. } | ImageName::Saved { file, .. }) => {
                ImageName::Archive { file: file.clone(), select }
            }
        }
    }

    /// The destination of the index. None if it is an archive.
    async fn destination(&self, source: &Source) -> Result<Option<Destination>, CliError> {
        let Some(dir) = self.output.clone() else { return Ok(home(source)) };
        let layout = output_layout(dir).await?.with_budget(source.budget().clone());
        Ok(Some(Destination::Layout(Arc::new(layout))))
    }

    /// Where indexes go, if not to the image.
    fn target(&self) -> Option<String> {
        self.output.as_ref().map(|dir| format!("oci:{}", dir.display()))
    }
}

/// The result for an image.
struct ImageResult {
    /// The image as named by the user.
    pub image: String,
    /// What was made.
    pub result: Result<VersionsResult, CliError>,
    /// Why the SOCI-enabled image was not made, if all else was.
    pub not_enabled: Option<CliError>,
    /// The name of the SOCI-enabled image, if there is one.
    pub enabled: Option<ImageName>,
    pub seconds: f64,
}

impl ImageResult {
    fn error(&self) -> Option<&CliError> {
        self.result.as_ref().err().or(self.not_enabled.as_ref())
    }

    /// The report. `target` is where indexes go, if not to the image.
    fn text(&self, target: Option<&str>, quiet: bool, style: Style) -> String {
        let made = match &self.result {
            Ok(made) if quiet => return text::digests(made),
            Ok(made) => made,
            Err(error) => {
                let refused = error.refused().filter(|_| !quiet);
                return refused
                    .map(|refused| layers::refused(&self.image, refused, style))
                    .unwrap_or_default();
            }
        };
        let index = made.index.as_ref();
        let mut text = index
            .map(|index| text::report(&self.image, target, index, self.seconds, style))
            .unwrap_or_default();
        if let (Some(name), Some(enabled)) = (&self.enabled, &made.enabled) {
            text.push_str(&convert::made(
                &self.image,
                name,
                &enabled.result,
                index.is_none(),
                style,
            ));
        }
        text
    }

    fn json(self) -> json::Image {
        let made = match &self.result {
            Ok(made) => made,
            Err(error) => {
                let failure = report::failure(error);
                return match error.refused() {
                    Some(refused) => {
                        json::Image::refused(self.image, refused, failure, self.seconds)
                    }
                    None => json::Image::failed(self.image, failure, self.seconds),
                };
            }
        };
        let enabled = self.enabled.iter().zip(&made.enabled);
        let enabled = enabled
            .map(|(name, made)| convert::json::Enabled::of(name.to_string(), &made.result))
            .next();
        let failure = self.not_enabled.as_ref().map(report::failure);
        json::Image::made(self.image, made, enabled, failure, self.seconds)
    }
}
