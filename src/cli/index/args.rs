//! What can be typed behind `ociseek index`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::shared::args::{
    BuildArgs, CacheArgs, ExistingArg, FormatArgs, LayerJobsArgs, MinLayerArgs, PlatformsArgs, RegistryArgs,
};
use crate::cli::shared::parse;
use crate::cli::shared::prefetch::PrefetchArgs;
use crate::cli::shared::reuse::ReuseArgs;
use crate::cli::shared::versions::VersionsArgs;
use crate::image::ImageName;
use crate::image::coverage::Share;

const INDEX_LONG_ABOUT: &str = "\
Builds the SOCI index of each IMAGE and attaches it.

Each layer is read once, as a stream: nothing is unpacked and no temporary disk is used. Layers that cannot be served \
lazily (too small, zstd, sparse files, ...) are left out with the reason, and consumers pull those whole. A layer that is \
broken (wrong digest, wrong checksum, cut) is an error: then nothing is pushed for that image.

IMAGE is one of

  [REGISTRY/]REPOSITORY[:TAG][@DIGEST]
    an image in a registry, named as for docker pull; the index is pushed there
    (a registry on this machine, such as localhost:5000, is spoken to by plain HTTP)
  oci:DIR[:TAG|@DIGEST]
    an OCI image layout; the index is written into it
  oci-archive:FILE[:TAG]
    a tar of a layout, as docker save (25 or newer) and BuildKit (type=oci) write it; it is read in
    place, so say where the index goes: --output or --dry-run

Several IMAGEs are done one after the other; if one fails the others are still done, and the exit status is 1.";

const INDEX_AFTER_HELP: &str = "\
Credentials come from docker's config.json ($DOCKER_CONFIG or ~/.docker), its credential helpers, or podman's auth.json: \
after docker login, nothing is left to say.

Examples:
  Index an image where it is, all platforms:
    ociseek index ghcr.io/acme/app:1.4

  See what would come of it, write nothing:
    ociseek index --dry-run python:3.13

  One platform, every layer however small, a local registry:
    ociseek index --platform linux/arm64 --min-layer-size 0 localhost:5000/app

  A layout on disk, no registry:
    skopeo copy docker://python:3.13 oci:python:3.13
    ociseek index oci:python:3.13

  What docker save wrote; the index goes into a layout of its own:
    docker save app:1.4 -o app.tar
    ociseek index --output oci:app-index oci-archive:app.tar

  Both versions, the SOCI-enabled image as app:1.4-soci:
    ociseek index --v2 '{tag}-soci' ghcr.io/acme/app:1.4

  In CI, for programs:
    ociseek index --format json --progress none $IMAGE | jq -r '.images[].manifests[].index.digest'

  As a gate, by the digest that was pushed, with a table on the job's page:
    ociseek index --strict --min-coverage 80% --step-summary $GITHUB_STEP_SUMMARY $IMAGE@$DIGEST

Who reads the index: soci-snapshotter, with `[pull_modes.soci_v1] enable = true` or when it is given the index digest. With its \
default settings it reads the SOCI-enabled image (--v2).

JSON: docs/json.md says what each field means.

Exit status: 0 done (also when layers are left out), 1 an image failed or falls short of what was asked of it, \
2 wrong usage, 129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Build the SOCI index of images and attach it
#[derive(Debug, Args)]
#[command(long_about = INDEX_LONG_ABOUT, after_long_help = INDEX_AFTER_HELP)]
#[command(after_help = "Examples and what an IMAGE can be: ociseek index --help")]
pub struct IndexArgs {
    /// The images to index
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<ImageName>,

    #[command(flatten, next_help_heading = "What is indexed")]
    pub platforms: PlatformsArgs,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub prefetch: PrefetchArgs,

    #[command(flatten, next_help_heading = "What is indexed")]
    pub min_layer: MinLayerArgs,

    #[command(flatten)]
    pub reuse: ReuseArgs,

    /// What to do when the image has a SOCI index already
    #[arg(long, value_name = "RULE", env = "OCISEEK_EXISTING", value_enum, default_value_t = ExistingArg::Skip)]
    #[arg(help_heading = "What is indexed")]
    pub existing: ExistingArg,

    #[command(flatten, next_help_heading = "What is indexed")]
    pub layer_jobs: LayerJobsArgs,

    #[command(flatten)]
    pub versions: VersionsArgs,

    /// Stop reading layers after this time, such as 10m or 90s, and attach what is done by then
    ///
    /// It counts for all IMAGEs together; attaching comes on top. Consumers pull the layers that are left whole. Another run goes
    /// on where this one stopped: what is attached is not read again. A layer that is not read to
    /// its end in one run has to be read from its start by the next, so that a layer which needs
    /// more time than this is never done: then the report says so, and only a longer --timeout
    /// helps. Time that was up is no failure; the JSON has what is left.
    #[arg(long, value_name = "DURATION", env = "OCISEEK_TIMEOUT", value_parser = parse::duration)]
    #[arg(help_heading = "What is indexed")]
    pub timeout: Option<Duration>,

    /// Fail if a layer is left out for another reason than its size
    ///
    /// Then nothing is attached to the image, on none of its platforms, and each such layer is named: zstd, foreign,
    /// encrypted, sparse files, PAX global headers, and whatever else a consumer could not serve. Where an index is there
    /// already, it is that one's layers that count.
    #[arg(long, env = "OCISEEK_STRICT", value_parser = FalseyValueParser::new(), help_heading = "What must be reached")]
    pub strict: bool,

    /// Fail if the index covers less of the image: a share of the compressed bytes of its layers, such as 80%
    ///
    /// Then nothing is attached to the image, on none of its platforms. Each platform must reach it. Layers below
    /// --min-layer-size do not count, so that an image of small layers only passes. Layers that
    /// cannot be served count as not covered; to fail for any of them, see --strict.
    #[arg(long, value_name = "PERCENT", env = "OCISEEK_MIN_COVERAGE", value_parser = parse::share)]
    #[arg(help_heading = "What must be reached")]
    pub min_coverage: Option<Share>,

    /// Write the index into an OCI layout, oci:DIR, rather than to where the image is
    ///
    /// The layout is made if it is not there. It holds the index and its ztocs, not the image; with
    /// --v2 also the SOCI-enabled image, with all its layers.
    #[arg(long, short, value_name = "oci:DIR", env = "OCISEEK_OUTPUT", value_parser = parse::layout_dir)]
    #[arg(help_heading = "Where it goes")]
    pub output: Option<PathBuf>,

    /// Build and report, but write nothing anywhere
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new(), help_heading = "Where it goes")]
    pub dry_run: bool,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    /// Append the digests, as NAME=VALUE lines, to this file: $GITHUB_OUTPUT, or a dotenv report in GitLab
    ///
    /// The names: status (ok or failed), image_digest, index_digest (the first), index_digests (all, with a comma between
    /// them), coverage (the least of all platforms, in percent), enabled_digest (of the first
    /// SOCI-enabled image). Written also when the run fails.
    #[arg(long, value_name = "FILE", env = "OCISEEK_STEP_OUTPUTS", help_heading = "In CI")]
    pub step_outputs: Option<PathBuf>,

    /// Append a table of what was done, in Markdown, to this file: $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FILE", env = "OCISEEK_STEP_SUMMARY", help_heading = "In CI")]
    pub step_summary: Option<PathBuf>,

    #[command(flatten, next_help_heading = "What is printed")]
    pub format: FormatArgs,
}
