//! The options of `ociseek convert`.

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::shared::args::{BuildArgs, CacheArgs, FormatArgs, LayerJobsArgs, MinLayerArgs, RegistryArgs};
use crate::cli::shared::prefetch::PrefetchArgs;
use crate::cli::shared::reuse::ReuseArgs;
use ociseek_format::image::{ImageName, Platform};

const LONG_ABOUT: &str = "\
Writes a SOCI-enabled image (SOCI version 2) of SRC under the name DST.

The new image is an image index that lists the image of each platform together with its SOCI index, which the image \
also names in an annotation. Layers and configs keep their digests; the image manifests get new ones. \
soci-snapshotter with its default settings and Amazon SageMaker Studio read this version. ociseek index attaches \
version 1, which leaves the image unchanged.

A layer is read only if its ztoc is not known from the cache, the SOCI indexes of SRC, other tags of its repository, \
--reuse-from, or the image that DST already names. Within a repository, only ztocs and manifests are written. Between \
repositories of one registry, layers are mounted; to another registry or a layout, they are streamed.

SRC is an image in a registry, oci:DIR[:TAG|@DIGEST], oci-archive:FILE[:TAG], or what docker save wrote: \
docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER], of which the layers stay as they lie in it; with uncompressed ones \
DST is a layout. DST is an image in a registry or oci:DIR[:TAG]. DST is written with the last request: an \
interrupted run leaves it as it was. If DST is up to date, only what is missing or damaged there is written again.";

const AFTER_HELP: &str = "\
Signatures of SRC do not apply to the new digest: sign the digest that is printed.

Examples:
  A SOCI-enabled image next to the original:
    ociseek convert ghcr.io/acme/app:1.4 ghcr.io/acme/app:1.4-soci

  To another registry, one platform indexed (the others are copied as they are):
    ociseek convert --platform linux/amd64 docker.io/library/python:3.13 ghcr.io/acme/python:3.13

  From a layout to a registry:
    ociseek convert oci:app:1.4 ghcr.io/acme/app:1.4-soci

  An archive from docker save, without a registry:
    docker save -o app.tar app:1.4
    ociseek convert docker-archive:app.tar oci:app:1.4-soci

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
    #[arg(value_name = "DST")]
    pub destination: ImageName,

    /// Only index this platform, such as linux/arm64 or linux/arm/v7; can be repeated [default: all
    /// platforms of the image]
    ///
    /// The images of other platforms are copied unchanged.
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    #[arg(value_parser = Platform::as_asked)]
    pub platform: Vec<Platform>,

    /// Allow DST to be the tag of SRC, which then points to the new image
    #[arg(long, env = "OCISEEK_REPLACE_TAG", value_parser = FalseyValueParser::new())]
    pub replace_tag: bool,

    /// Build and report, but write nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,

    #[command(flatten)]
    pub layer_jobs: LayerJobsArgs,

    #[command(flatten, next_help_heading = "Indexing")]
    pub min_layer: MinLayerArgs,

    #[command(flatten)]
    pub build: BuildArgs,

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
