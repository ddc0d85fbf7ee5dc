//! The options of `ociseek copy`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, RegistryArgs};
use crate::cli::shared::place::ListPlace;
use ociseek_format::image::ImageName;

const COPY_LONG_ABOUT: &str = "\
Copies an image with all its referrers (SOCI indexes, fine indexes, signatures, attestations, and their own \
referrers) between registries and layouts. Digests stay the same.

Within a registry, blobs are mounted; otherwise they are streamed without using disk space, and broken connections \
are resumed. The tag is written last, so an interrupted copy leaves no tag; run it again to continue. If the \
destination does not support the referrers API, referrers are listed under the tag sha256-... .

DESTINATION is [REGISTRY/]REPOSITORY[:TAG] or oci:DIR[:TAG]; TAG defaults to the source's. All platforms are copied. \
Signatures that cosign stores under its own tags (sha256-....sig) are not referrers and are not copied.";

const COPY_AFTER_HELP: &str = "\
Examples:
  ociseek copy staging.example/acme/app:1.4 prod.example/acme/app
  ociseek copy ghcr.io/acme/app:1.4 oci:app
  ociseek copy oci:app:1.4 localhost:5000/app:test

JSON: docs/json.md describes each field.

Exit status: 0 success, 1 failure, 2 usage error; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Copy an image with its indexes and other referrers
#[derive(Debug, Args)]
#[command(long_about = COPY_LONG_ABOUT, after_long_help = COPY_AFTER_HELP)]
pub(crate) struct CopyArgs {
    /// The image
    #[arg(value_name = "SOURCE")]
    pub source: ImageName,

    /// Where the copy goes
    #[arg(value_name = "DESTINATION")]
    pub destination: ListPlace,

    /// Copy only the image, without its referrers
    #[arg(long)]
    pub no_referrers: bool,

    /// How many blobs to copy in parallel
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
