//! The options of `ociseek inspect`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, PlatformsArgs, RegistryArgs};
use crate::cli::shared::parse;
use ociseek_format::digest::Digest;
use ociseek_format::image::ImageName;

const INSPECT_LONG_ABOUT: &str = "\
Shows which SOCI indexes and fine indexes an image has and what they contain: the tool that made them, how they were \
found, which layers and how much of the image they cover, the sizes of the ztocs and documents, and how consumers use \
the SOCI indexes.

No layer is read. IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive \
from docker save.";

const INSPECT_AFTER_HELP: &str = "\
Examples:
  ociseek inspect ghcr.io/acme/app:1.4
  ociseek inspect --format json oci:app | jq '.manifests[].coverage'
  ociseek inspect --ztoc 3f1c22ab oci:app

JSON: docs/json.md describes each field.";

/// Show which indexes an image has and what they contain
#[derive(Debug, Args)]
#[command(long_about = INSPECT_LONG_ABOUT, after_help = INSPECT_AFTER_HELP)]
pub(crate) struct InspectArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Show the layers through this index, listed or not [default: the first usable ones]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    /// Show everything in one ztoc: its spans and files
    ///
    /// The ztoc is named by its own digest or by that of its layer, or by six or more of the first
    /// digits of one.
    #[arg(long, value_name = "DIGEST", value_parser = parse::start_of_digest)]
    pub ztoc: Option<String>,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
