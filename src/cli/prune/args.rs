//! What can be typed behind `ociseek prune`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, ImageJobsArgs, RegistryArgs};
use crate::cli::shared::place::ListPlace;

const PRUNE_LONG_ABOUT: &str = "\
Finds what nobody needs in a repository, and removes it with --delete:

  - SOCI indexes that ociseek made, beside one that a later version of ociseek made for the same image and layers
  - SOCI indexes that ociseek made for an image that is gone (--all: those of every tool), as far as they are listed under a tag \
sha256-...: a registry that lists referrers itself does not tell of images that are gone
  - entries of the lists under the tags sha256-... that name nothing

Each index is read before it is removed, and whether its image is gone is asked again right before that, so images can be pushed and \
indexed meanwhile.";

const PRUNE_AFTER_HELP: &str = "\
Examples:
  ociseek prune ghcr.io/acme/app
  ociseek prune --delete ghcr.io/acme/app

JSON: docs/json.md says what each field means.

Exit status: 0 done, 1 something could not be looked at or removed, 2 wrong usage, 129, 130 or 143 ended by a hangup, an \
interrupt, a termination.";

/// Remove the obsolete indexes of a repository
#[derive(Debug, Args)]
#[command(long_about = PRUNE_LONG_ABOUT, after_long_help = PRUNE_AFTER_HELP)]
#[command(after_help = "Examples: ociseek prune --help")]
pub struct PruneArgs {
    /// The repository, [REGISTRY/]REPOSITORY
    #[arg(value_name = "REPOSITORY")]
    pub repository: ListPlace,

    /// Remove what is found [default: only say what would be removed]
    #[arg(long)]
    pub delete: bool,

    /// Of images that are gone, remove the indexes of every tool, not only those that ociseek made
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub image_jobs: ImageJobsArgs,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
