//! What can be typed behind `ociseek rm`.

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::shared::args::{FormatArgs, PlatformsArgs, RegistryArgs};
use crate::image::ImageName;

const RM_LONG_ABOUT: &str = "\
Removes SOCI indexes (version 1) of an image. The image itself, its tags and its other referrers stay as they are.

Only indexes that ociseek made are removed; --all removes those of every tool. IMAGE@DIGEST, with the digest of an index, \
removes that index, whoever made it. An image that is gone can be named by its digest too: its indexes may have outlived it.

Each index is read before it is deleted: what is listed as an index of the image and is not one stays, with a note. Where the \
registry lists no referrers itself, the index also leaves the list under the tag sha256-..., which stays even when it is empty. ztocs are \
left to the registry's garbage collection. In a layout (oci:DIR) the index leaves index.json; its files stay.

An index of version 2 is a part of its image: remove the image's tag to be rid of it.";

const RM_AFTER_HELP: &str = "\
Examples:
  ociseek rm --dry-run ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app:1.4
  ociseek rm --all --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app@sha256:6b6c3d79...

JSON: docs/json.md says what each field means.

Exit status: 0 removed, or there was nothing to remove, 1 an index could not be removed, 2 wrong usage, \
129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Remove SOCI indexes of an image
#[derive(Debug, Args)]
#[command(long_about = RM_LONG_ABOUT, after_long_help = RM_AFTER_HELP, after_help = "Examples: ociseek rm --help")]
pub struct RmArgs {
    /// The image, or REPOSITORY@DIGEST of one index
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Remove the indexes of every tool, not only those that ociseek made
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Say what would be removed, and remove nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
