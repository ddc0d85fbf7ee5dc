//! What can be typed behind `ociseek verify`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, LayerJobsArgs, PlatformsArgs, RegistryArgs};
use crate::cli::shared::policy::PolicyArgs;
use crate::digest::Digest;
use crate::image::ImageName;

const VERIFY_LONG_ABOUT: &str = "\
Proves the SOCI indexes of an image against the image.

Each layer that an index covers is downloaded once and decoded from front to back by decoders that are not ours (zlib-rs). \
What comes out is compared with the index: the layer's digest and its diff ID, the digest, window and position of every \
span, every file's metadata, and every file's bytes as they are read through the spans. So is all that a consumer would \
refuse. IMAGE is named as for ociseek index.

docker save keeps no index: of docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] all layers are read and compared with the \
config.

With a policy each index must also keep its rules: how much it covers, how large its ztocs are, who made it, who signed it. \
A platform without an index breaks any policy.";

const VERIFY_AFTER_HELP: &str = "\
Examples:
  ociseek verify ghcr.io/acme/app:1.4
  ociseek verify --quick --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek verify --quick --min-coverage 80% --signature-key cosign.pub ghcr.io/acme/app:1.4
  ociseek verify --policy policy.json ghcr.io/acme/app:1.4
  ociseek verify --format json oci:app | jq '.manifests[].indexes[].layers[].differences'

JSON: docs/json.md says what each field means; docs/policy.md lists the codes.

Exit status: 0 the indexes are right, 1 it could not be told (or there is no index), 2 wrong usage, 3 something differs or \
a rule of the policy is broken, \
129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Prove the SOCI indexes of an image against its layers
#[derive(Debug, Args)]
#[command(long_about = VERIFY_LONG_ABOUT, after_help = VERIFY_AFTER_HELP)]
pub struct VerifyArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Download no layer: look at the documents, and at some spans of each layer
    #[arg(long)]
    pub quick: bool,

    /// With --quick: how many spans of each layer are read
    #[arg(long, value_name = "N", default_value_t = 4, requires = "quick")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub spans: u32,

    /// With --quick: which spans are read; the same number means the same spans [default: others each time]
    #[arg(long, value_name = "N", requires = "quick")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Only this SOCI index, listed or not [default: all that are found]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    #[command(flatten)]
    pub layer_jobs: LayerJobsArgs,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub policy: PolicyArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
