//! The options of `ociseek rm`.

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::shared::args::{FormatArgs, PlatformsArgs, RegistryArgs};
use ociseek_format::image::ImageName;

const RM_LONG_ABOUT: &str = "\
Removes SOCI indexes (version 1) and fine indexes of an image. The image itself, its tags and its other referrers \
stay as they are.

Only indexes made by ociseek are removed; --all removes those of any tool. IMAGE@DIGEST, with the digest of an \
index, removes that index, whichever tool made it. A deleted image can also be named by its digest, to remove \
indexes left behind.

Each index is read before it is deleted: an entry that is not a valid index of the image is kept, with a note. If \
the registry has no referrers API, the index is also removed from the list under the tag sha256-..., which is kept \
even when empty. Their blobs (ztocs, documents) are left to the registry's garbage collection. In a layout \
(oci:DIR), only the entry in index.json is removed.

An index of version 2 is part of its image: to remove it, delete the image's tag.";

const RM_AFTER_HELP: &str = "\
Examples:
  ociseek rm --dry-run ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app:1.4
  ociseek rm --all --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app@sha256:6b6c3d79...

JSON: docs/json.md describes each field.

Exit status: 0 success (even if there was nothing to remove), 1 an index could not be removed, 2 usage error; 129, 130 \
or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Remove the indexes of an image
#[derive(Debug, Args)]
#[command(long_about = RM_LONG_ABOUT, after_long_help = RM_AFTER_HELP)]
pub(crate) struct RmArgs {
    /// The image, or REPOSITORY@DIGEST of one index
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Remove the indexes of any tool, not only those made by ociseek
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// List what would be removed, and remove nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
