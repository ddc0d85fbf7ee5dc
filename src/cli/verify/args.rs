//! The options of `ociseek verify`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, LayerJobsArgs, PlatformsArgs, RegistryArgs};
use crate::cli::shared::policy::PolicyArgs;
use ociseek_format::digest::Digest;
use ociseek_format::image::ImageName;

const VERIFY_LONG_ABOUT: &str = "\
Verifies the SOCI indexes and fine indexes of an image against its layers.

Each layer that an index covers is downloaded once and decoded from start to end by an independent decoder \
(zlib-rs). The result is compared with the index: the layer's digest and diff ID, the digest, window and position of \
every span, every file's metadata, and every file's bytes as read through the spans. Anything that a consumer would \
reject is also reported. IMAGE is as for ociseek index.

A fine index is verified in the same way: the digests and sizes of its documents, their entries, and each span with \
its proof and its window. A layer that both kinds of index cover is downloaded once for both. With --quick, its \
documents are checked completely, and some spans of each layer.

docker save keeps no index: for docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER], all layers are read and compared with \
the config.

With a policy, each index must also satisfy its rules: how much it covers, how large its ztocs are, which tool made \
it, who signed it. A platform without an index violates any policy.";

const VERIFY_AFTER_HELP: &str = "\
Examples:
  ociseek verify ghcr.io/acme/app:1.4
  ociseek verify --quick --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek verify --quick --min-coverage 80% --signature-key cosign.pub ghcr.io/acme/app:1.4
  ociseek verify --policy policy.json ghcr.io/acme/app:1.4
  ociseek verify --format json oci:app | jq '.manifests[].indexes[].layers[].differences'

JSON: docs/json.md describes each field; docs/policy.md lists the codes.

Exit status: 0 the indexes are correct, 1 failure (or there is no index), 2 usage error, 3 differences or policy \
violations were found; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Verify an image's SOCI indexes and fine indexes against its layers
#[derive(Debug, Args)]
#[command(long_about = VERIFY_LONG_ABOUT, after_long_help = VERIFY_AFTER_HELP)]
pub(crate) struct VerifyArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Check only the documents and some spans of each layer, without downloading layers
    #[arg(long)]
    pub quick: bool,

    /// With --quick: how many spans to read from each layer
    #[arg(long, value_name = "N", default_value_t = 4, requires = "quick")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub spans: u32,

    /// With --quick: seed for choosing the spans; the same seed chooses the same spans [default:
    /// random]
    #[arg(long, value_name = "N", requires = "quick")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Verify only this SOCI index or fine index, listed or not [default: all indexes found]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    #[command(flatten)]
    pub layer_jobs: LayerJobsArgs,

    #[command(flatten)]
    pub policy: PolicyArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
