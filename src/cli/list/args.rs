//! What can be typed behind `ociseek list`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, ImageJobsArgs, RegistryArgs};
use crate::cli::shared::place::ListPlace;

const LIST_LONG_ABOUT: &str = "\
Lists which images have which SOCI indexes: the platform, the version of the index, how many layers it covers, how much of the image that is, \
the size of its ztocs, and the tool that made it. AGE is the image's, as its config says; an index does not say when it was made.

A repository without a tag means all of its tags, and oci:DIR all images of the layout. No layer and no ztoc is read: each image costs a \
few small requests, and tags of the same image are looked at once. Tags that name no image (charts, signatures) are left out unless \
--all is given.";

const LIST_AFTER_HELP: &str = "\
Examples:
  ociseek list ghcr.io/acme/app
  ociseek list ghcr.io/acme/app:1.4
  ociseek list --format json ghcr.io/acme/app | jq -r '.images[] | select(.manifests[].indexes == []) | .name'

JSON: docs/json.md says what each field means.

Exit status: 0 done, 1 an image could not be looked at, 2 wrong usage, 129, 130 or 143 ended by a hangup, an interrupt, a \
termination.";

/// List which images have which SOCI indexes
#[derive(Debug, Args)]
#[command(long_about = LIST_LONG_ABOUT, after_long_help = LIST_AFTER_HELP, after_help = "Examples: ociseek list --help")]
pub struct ListArgs {
    /// A repository, [REGISTRY/]REPOSITORY, a layout, oci:DIR, or an image
    #[arg(value_name = "REPOSITORY|IMAGE")]
    pub place: ListPlace,

    /// List tags that name no image, too
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub image_jobs: ImageJobsArgs,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
