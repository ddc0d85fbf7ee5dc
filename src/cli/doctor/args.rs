//! The options of `ociseek doctor`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, PlatformsArgs, RegistryArgs};
use ociseek_format::image::ImageName;

const LONG_ABOUT: &str = "\
Explains which runtimes would use which SOCI index of an image, and why the others would not: soci-snapshotter by \
version and settings, AWS Fargate, SageMaker Studio. It then lists problems (several indexes, wrong or missing \
pieces, layers without a ztoc), each with the command to fix it.

No layer is read. The ztocs that consumers would use are read, and their sizes compared with the layers; ociseek \
verify checks them fully. If the image has a fine index, doctor also says what ociseek mount and bundle read by it; \
no other runtime reads fine indexes. The behaviour of consumers is taken from their sources and documentation, which \
--format json names. IMAGE is as for ociseek index.";

const AFTER_HELP: &str = "\
Examples:
  ociseek doctor ghcr.io/acme/app:1.4
  ociseek doctor --format json ghcr.io/acme/app:1.4 | jq '.manifests[].consumers[] | select(.lazy)'

JSON: docs/json.md describes each field.

Exit status: 0 at least one consumer uses a SOCI index on at least one platform, 1 failure, 2 usage error, 3 no \
consumer uses one or the image is incomplete; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Explain which runtimes will lazy-load an image, and why others will not
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
