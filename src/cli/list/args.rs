//! The options of `ociseek list`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, ImageJobsArgs, RegistryArgs};
use crate::cli::shared::place::ListPlace;

const LIST_LONG_ABOUT: &str = "\
Lists the indexes of images: the platform, the version of a SOCI index or `fine` for a fine index, how many layers and \
how much of the image it covers, the size of its ztocs or documents, and the tool that made it. IMAGE AGE is that of \
the image, from its config: indexes have no date, so that the same layers give the same index.

A repository without a tag means all its tags, and oci:DIR all images of the layout. Layers and ztocs are not read: \
each image costs a few small requests, and tags of the same image are read once. Tags of non-images (charts, \
signatures) are skipped unless --all is given.";

const LIST_AFTER_HELP: &str = "\
Examples:
  ociseek list ghcr.io/acme/app
  ociseek list ghcr.io/acme/app:1.4
  ociseek list --format json ghcr.io/acme/app | jq -r '.images[] | select(.manifests[].indexes == []) | .name'

JSON: docs/json.md describes each field.

Exit status: 0 success, 1 an image could not be read, 2 usage error; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// List the indexes of images
#[derive(Debug, Args)]
#[command(long_about = LIST_LONG_ABOUT, after_long_help = LIST_AFTER_HELP)]
pub(crate) struct ListArgs {
    /// A repository ([REGISTRY/]REPOSITORY), a layout (oci:DIR), or an image
    #[arg(value_name = "REPOSITORY|IMAGE")]
    pub place: ListPlace,

    /// Include tags of non-images
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub image_jobs: ImageJobsArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
