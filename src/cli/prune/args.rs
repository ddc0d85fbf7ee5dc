//! The options of `ociseek prune`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, ImageJobsArgs, RegistryArgs};
use crate::cli::shared::place::ListPlace;

const PRUNE_LONG_ABOUT: &str = "\
Finds obsolete indexes in a repository, and removes them with --delete:

  - SOCI indexes and fine indexes made by ociseek, if a later version of ociseek made another of the same kind for the \
same image and layers
  - those made by ociseek (--all: by any tool) for an image that no longer exists, if they are listed under a \
tag sha256-...: registries with the referrers API do not list indexes of deleted images
  - entries of the lists under the tags sha256-... that point to nothing

Each index is read before it is removed, and its image is checked again right before that, so it is safe to push and \
index images at the same time.";

const PRUNE_AFTER_HELP: &str = "\
Examples:
  ociseek prune ghcr.io/acme/app
  ociseek prune --delete ghcr.io/acme/app

JSON: docs/json.md describes each field.

Exit status: 0 success, 1 something could not be read or removed, 2 usage error; 129, 130 or 143 on SIGHUP, SIGINT or \
SIGTERM.";

/// Remove the obsolete indexes of a repository
#[derive(Debug, Args)]
#[command(long_about = PRUNE_LONG_ABOUT, after_long_help = PRUNE_AFTER_HELP)]
pub(crate) struct PruneArgs {
    /// The repository ([REGISTRY/]REPOSITORY)
    #[arg(value_name = "REPOSITORY")]
    pub repository: ListPlace,

    /// Remove the obsolete indexes [default: only list them]
    #[arg(long)]
    pub delete: bool,

    /// For deleted images, remove the indexes of any tool, not only those made by ociseek
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub image_jobs: ImageJobsArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
