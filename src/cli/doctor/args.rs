//! What can be typed behind `ociseek doctor`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, PlatformsArgs, RegistryArgs};
use crate::image::ImageName;

const LONG_ABOUT: &str = "\
Says which consumer would use which SOCI index of an image, and why the others would not: soci-snapshotter by version and \
settings, AWS Fargate, SageMaker Studio. Then what is wrong: several indexes, wrong or missing pieces, layers that no index \
covers, each with the command that helps.

No layer is read. The ztocs of the index that consumers take are, and their sizes are compared with those of the layers; ociseek \
verify proves them. What consumers do is taken from their sources and documentation; --format json names which. IMAGE is named \
as for ociseek index.";

const AFTER_HELP: &str = "\
Examples:
  ociseek doctor ghcr.io/acme/app:1.4
  ociseek doctor --format json ghcr.io/acme/app:1.4 | jq '.manifests[].consumers[] | select(.lazy)'

JSON: docs/json.md says what each field means.

Exit status: 0 at least one consumer uses an index of the image, on at least one of the platforms, 1 it could not be told, \
2 wrong usage, 3 no consumer does or the image is not whole, 129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Say which consumer would use which index of an image, and why not
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP)]
pub struct DoctorArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
