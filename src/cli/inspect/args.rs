//! What can be typed behind `ociseek inspect`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, PlatformsArgs, RegistryArgs};
use crate::cli::shared::parse;
use crate::digest::Digest;
use crate::image::ImageName;

const INSPECT_LONG_ABOUT: &str = "\
Shows which SOCI indexes an image has and what they hold: who made them, how they were found, which layers they cover and \
how much of the image that is, the sizes of the ztocs, and what a consumer makes of it.

No layer is read. \
IMAGE is named as for ociseek index; what docker save wrote is docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER].";

const INSPECT_AFTER_HELP: &str = "\
Examples:
  ociseek inspect ghcr.io/acme/app:1.4
  ociseek inspect --format json oci:app | jq '.manifests[].coverage'
  ociseek inspect --ztoc 3f1c22ab oci:app

JSON: docs/json.md says what each field means.";

/// Show which SOCI indexes an image has and what they hold
#[derive(Debug, Args)]
#[command(long_about = INSPECT_LONG_ABOUT, after_help = INSPECT_AFTER_HELP)]
pub struct InspectArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Look through this SOCI index, listed or not [default: the first that can be used]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    /// Show everything in one ztoc: its spans and its files
    ///
    /// The ztoc is named by its own digest or by that of its layer, or by six or more of the first digits of one.
    #[arg(long, value_name = "DIGEST", value_parser = parse::start_of_digest)]
    pub ztoc: Option<String>,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
