//! `ociseek convert`: its options, and its output for people.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};

use crate::cli::shared::args::{
    BuildArgs, CacheArgs, FormatArgs, LayerJobsArgs, MinLayerArgs, OutputFormat, RegistryArgs,
};
use crate::cli::shared::error::CliError;
use crate::cli::shared::indexing::{
    PrefetchArgs, RequirementArgs, ReuseArgs, layer_options, named,
};
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::layers::{
    self, coverage, heading, large_ztocs, layers, members, reused, why_nothing,
};
use crate::cli::shared::progress::Display;
use crate::cli::shared::size::{duration, human};
use crate::cli::shared::source::{Images, output_layout, refuse_plain_layers, registry};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::shared::{caches, parse};
use ociseek_format::image::{ImageName, ImageSelector, Platform};
use ociseek_format::progress::Progress;
use ociseek_ops::convert::{
    ConvertDestination, ConvertReport, ConvertStatus, ConvertedImage, convert,
};
use ociseek_ops::index::{Gate, IndexOptions, Kinds, Work};
use ociseek_ops::versions::EnabledResult;
use ociseek_store::Destination;

pub(super) mod json;

use json::Conversion;

const LONG_ABOUT: &str = "\
Writes a SOCI-enabled image (SOCI version 2) of SRC under the name DST, or one that names only a fine index \
(--kind fine).

A SOCI-enabled image is an image index that lists the image of each platform together with its SOCI index, which the \
image also names in an annotation. Layers and configs keep their digests; the image manifests get new ones. \
AWS Fargate, Amazon SageMaker Studio and soci-snapshotter with its default settings read this version. ociseek index \
attaches version 1, which leaves the image unchanged.

A layer is read only if its ztoc is not known from the cache, from the SOCI index that SRC names if it is \
SOCI-enabled, or from --reuse-from. Indexes that others may have attached, and what DST names, are not used: the \
result is signed. Within a repository, only ztocs and manifests are written. Between \
repositories of one registry, layers are mounted; to another registry or a layout, they are streamed.

SRC is an image in a registry, oci:DIR[:TAG|@DIGEST], oci-archive:FILE[:TAG], or what docker save wrote: \
docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER]. Its layers are not compressed again, so if they are uncompressed, DST \
must be a layout. DST is an image in a registry or oci:DIR[:TAG]. DST is written with the last request: an \
interrupted run leaves it as it was, and so does one during which someone pushes to the tag of SRC or DST. If DST is \
up to date, only what is missing or damaged there is written again.";

const AFTER_HELP: &str = "\
Signatures of SRC do not apply to the new digest: sign the digest that is printed.

Examples:
  A SOCI-enabled image next to the original:
    ociseek convert ghcr.io/acme/app:1.4 ghcr.io/acme/app:1.4-soci

  To another registry, one platform indexed (the others are copied unchanged):
    ociseek convert --platform linux/amd64 docker.io/library/python:3.13 ghcr.io/acme/python:3.13

  In CI, fail if less than 80% of the bytes can be loaded lazily:
    ociseek convert --min-coverage 80% $IMAGE $IMAGE-soci

  From a layout to a registry:
    ociseek convert oci:app:1.4 ghcr.io/acme/app:1.4-soci

  An archive from docker save, without a registry:
    docker save -o app.tar app:1.4
    ociseek convert docker-archive:app.tar oci:app:1.4-soci

  For nodes with ociseek snapshotter or ociseek store, and no reader of SOCI indexes:
    ociseek convert --kind fine ghcr.io/acme/app:1.4 ghcr.io/acme/app:1.4-fine

  In place; the original stays reachable by its digest, which is printed:
    ociseek convert --replace-tag ghcr.io/acme/app:1.4 ghcr.io/acme/app:1.4

  In CI, sign the result:
    cosign sign ghcr.io/acme/app@$(ociseek convert --quiet $IMAGE $IMAGE-soci)

Exit status: 0 success (even if DST was already up to date), 1 failure, 2 usage error; 129, 130 or 143 on SIGHUP, \
SIGINT or SIGTERM.";

/// Write a SOCI-enabled image (version 2) under a new name
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub(crate) struct ConvertArgs {
    /// The image to convert
    #[arg(value_name = "SRC")]
    pub source: ImageName,

    /// The name of the SOCI-enabled image
    #[arg(value_name = "DST", value_parser = parse::destination)]
    pub destination: ImageName,

    /// Only index this platform, such as linux/arm64 or linux/arm/v7; can be repeated [default: all
    /// platforms of the image]
    ///
    /// The images of other platforms are copied unchanged.
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    #[arg(value_parser = Platform::as_asked)]
    pub platform: Vec<Platform>,

    /// Allow DST to be the tag of SRC, or of another image that is not SOCI-enabled, which then
    /// points to the new image
    #[arg(long, env = "OCISEEK_REPLACE_TAG", value_parser = parse::switch)]
    pub replace_tag: bool,

    /// Build and report, but write nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = parse::switch)]
    pub dry_run: bool,

    #[command(flatten)]
    pub layer_jobs: LayerJobsArgs,

    #[command(flatten, next_help_heading = "Indexing")]
    pub min_layer: MinLayerArgs,

    #[command(flatten)]
    pub build: BuildArgs,

    /// The indexes that the new image names: v2, fine, or both with a comma between them
    ///
    /// v2 is the SOCI index, for AWS Fargate, SageMaker Studio and soci-snapshotter. fine is
    /// ociseek's own: `ociseek snapshotter`, `store`, `mount`, `bundle` and the other commands that
    /// read images fetch a fraction of the bytes with it.
    ///
    /// With fine alone, no program that reads SOCI indexes finds one: it pulls the image whole. In
    /// return, containerd does not fetch the ztocs of a SOCI index at the pull, which a node with
    /// `ociseek snapshotter` never reads.
    ///
    /// One signature on the new digest covers both. If the image at DST names an index of the
    /// other kind, the new one gets one too. docs/kinds.md describes fine indexes.
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "v2")]
    #[arg(value_enum, hide_possible_values = true, help_heading = "Indexing")]
    pub kind: Vec<KindArg>,

    /// Also make a fine index: adds fine to --kind
    #[arg(long, env = "OCISEEK_FINE", value_parser = parse::switch, help_heading = "Indexing")]
    pub fine: bool,

    /// Also name in the manifest the document by which each layer is read, so that podman since 5.1
    /// and CRI-O since 1.31 find the layers in `ociseek store`
    ///
    /// Each indexed layer gets the annotation containerd.io/snapshot/stargz/toc.digest with the
    /// digest of its ztoc, or of the head of its fine document (docs/podman.md). Without this
    /// option, the bytes are those of soci convert.
    #[arg(long, env = "OCISEEK_TOC_DIGESTS", value_parser = parse::switch, hide_short_help = true)]
    #[arg(help_heading = "Indexing")]
    pub toc_digests: bool,

    #[command(flatten)]
    pub requirements: RequirementArgs,

    #[command(flatten)]
    pub prefetch: PrefetchArgs,

    #[command(flatten)]
    pub reuse: ReuseArgs,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

/// An index that the new image names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// A SOCI index (version 2).
    V2,
    /// A fine index.
    Fine,
}

impl ConvertArgs {
    fn kinds(&self) -> Kinds {
        let has_fine = self.fine || self.kind.contains(&KindArg::Fine);
        match (self.kind.contains(&KindArg::V2), has_fine) {
            (true, true) => Kinds::Both,
            (false, true) => Kinds::Fine,
            (_, false) => Kinds::Soci,
        }
    }
}

pub(super) async fn run(args: ConvertArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let started = Instant::now();
    let kinds = args.kinds();
    check(&args, kinds)?;
    let display = Arc::new(Display::new(verbosity));
    let progress: Arc<dyn Progress> = display.clone();
    let names = [&args.source, &args.destination].into_iter().chain(&args.reuse.reuse_from);
    let images = Images::new(args.registry, names, &progress).await?;
    let cache = caches::ztocs(&args.cache, &progress).await;
    let mut reuse = args.reuse.options();
    reuse.from = named(&images, &args.reuse.reuse_from, &progress).await;
    let options = IndexOptions {
        platforms: args.platform,
        kinds,
        layer: layer_options(&args.build),
        min_layer_size: args.min_layer.min_layer_size.0,
        jobs: args.layer_jobs.count(),
        dry_run: args.dry_run,
        gate: args.requirements.gate(),
        reuse,
        prefetch: args.prefetch.list()?,
        names_tocs: args.toc_digests,
        ..IndexOptions::default()
    };
    display.begin(&args.source.to_string());
    let result = async {
        let from = images.open_root(&args.source).await?;
        if registry(&args.destination).is_some() {
            refuse_plain_layers(&args.source, &from.source, &from.root, &progress).await?;
        }
        let to = destination(&images, &args.destination, args.replace_tag).await?;
        Ok::<_, CliError>(
            convert(
                &from,
                &to,
                Work { cache: cache.as_ref(), options: &options, progress: &progress },
            )
            .await?,
        )
    }
    .await;
    display.end();
    let mut stdout = Stdout::new();
    if let Some(refused) = result.as_ref().err().and_then(CliError::refused)
        && args.format.get() == OutputFormat::Text
        && !verbosity.quiet
    {
        let text = layers::refused(&args.source.to_string(), refused, stdout.style);
        stdout.tell(&text)?;
    }
    let done = result?;
    let seconds = started.elapsed().as_secs_f64();
    let source = args.source.to_string();
    let name = args.destination.to_string();
    let text = match (args.format.get(), verbosity.quiet) {
        (OutputFormat::Json, _) => {
            let document = Conversion::of(source, name, &done, seconds);
            text_of(&document)?
        }
        (OutputFormat::Text, true) => format!("{}\n", done.digest),
        (OutputFormat::Text, false) => {
            let text = report(&source, &args.destination, &done, seconds, stdout.style);
            return stdout.tell(&text);
        }
    };
    stdout.print(text)
}

/// Checks that clap cannot express.
fn check(args: &ConvertArgs, kinds: Kinds) -> Result<(), CliError> {
    if args.requirements.gate() != Gate::default() && kinds == Kinds::Fine {
        return Err(CliError::usage(
            "--strict and --min-coverage are about SOCI indexes: add v2 to --kind",
        ));
    }
    match (&args.source, &args.destination) {
        (_, ImageName::Archive { .. } | ImageName::Saved { .. }) => {
            Err(CliError::usage("archives are read-only: use oci:DIR[:TAG] for DST"))
        }
        (_, ImageName::Registry(reference)) if reference.digest.is_some() => {
            Err(CliError::usage("DST must be a tag, not a digest"))
        }
        (_, ImageName::Layout { select: ImageSelector::Digest(_), .. }) => {
            Err(CliError::usage("DST must be a tag, not a digest"))
        }
        (
            ImageName::Layout { dir: from, .. },
            ImageName::Layout { dir: to, select: ImageSelector::Any },
        ) if is_same(from, to) => Err(CliError::usage(
            "DST is in the same layout as SRC: give it a different tag, oci:DIR:TAG",
        )),
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
) -> Result<ConvertDestination, CliError> {
    let (destination, tag) = match name {
        ImageName::Registry(reference) => {
            (Some(Destination::Registry(images.repository(reference)?)), reference.tag.clone())
        }
        ImageName::Layout { dir, select } => {
            let tag = match select {
                ImageSelector::Tag(tag) => Some(tag.clone()),
                ImageSelector::Any | ImageSelector::Digest(_) => None,
            };
            (Some(Destination::Layout(Arc::new(output_layout(dir.clone()).await?))), tag)
        }
        // Already refused.
        ImageName::Archive { .. } | ImageName::Saved { .. } => (None, None),
    };
    Ok(ConvertDestination { destination, tag, replace_tag, guard: None })
}

/// The report on an image that was converted in `seconds`.
pub(crate) fn report(
    source: &str,
    name: &ImageName,
    done: &ConvertReport,
    seconds: f64,
    style: Style,
) -> String {
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
pub(crate) fn made(
    source: &str,
    name: &ImageName,
    result: &EnabledResult,
    with_layers: bool,
    style: Style,
) -> String {
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
    let what = if done.images.iter().any(|image| image.index.is_some()) {
        "a SOCI-enabled image (version 2)"
    } else {
        "an image that names its fine index; SOCI consumers pull it whole"
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
    // Signatures are in registries.
    if let ImageName::Registry(reference) = name
        && done.digest != done.source
        && matches!(done.outcome, ConvertStatus::Written { .. })
    {
        let signed = format!("{}/{}@{}", reference.registry, reference.repository, done.digest);
        let _ = writeln!(
            text,
            "  {} signatures of the source do not apply to the new digest: sign {}",
            style.yellow("note:"),
            safe(&signed)
        );
    }
}

fn one(text: &mut String, source: &str, image: &ConvertedImage, style: Style) {
    let platform = image.platform.is_complete().then(|| image.platform.to_string());
    heading(text, source, platform.as_deref(), &image.was, style);
    layers(text, &image.layers, style);
    match (&image.index, &image.fine) {
        (Some(index), fine) => {
            let _ = writeln!(
                text,
                "  {} {}",
                style.green("index"),
                style.green(&index.digest.to_string())
            );
            if let Some(fine) = fine {
                let _ = writeln!(text, "  fine index {}", fine.digest);
            }
            let _ = writeln!(text, "  new manifest {}", image.manifest);
            coverage(text, &image.coverage);
            layers::prefetch_line(text, image.prefetch.as_ref());
        }
        (None, Some(fine)) => {
            let _ = writeln!(
                text,
                "  {} {}",
                style.green("fine index"),
                style.green(&fine.digest.to_string())
            );
            let _ = writeln!(text, "  new manifest {}", image.manifest);
            coverage(text, &image.coverage);
        }
        (None, None) => {
            let _ =
                writeln!(text, "  {} {}", style.yellow("no index:"), why_nothing(&image.layers));
        }
    }
    members(text, &image.layers, style);
    large_ztocs(text, &image.layers, style);
}

/// The totals of bytes and time.
fn totals(done: &ConvertReport, seconds: f64) -> String {
    let part = |what: &str, bytes: u64| {
        if bytes == 0 { String::new() } else { format!(", {what} {}", human(bytes)) }
    };
    let copied = part("copied", done.bytes_copied);
    let written = part("wrote", done.bytes_written);
    let reused = reused(done.images.iter().flat_map(|image| &image.layers));
    let read = human(done.bytes_read);
    format!("read {read}{copied}{written}, in {}{reused}", duration(seconds))
}
