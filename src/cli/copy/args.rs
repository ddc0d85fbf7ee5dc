//! What can be typed behind `ociseek copy`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, RegistryArgs};
use crate::cli::shared::place::ListPlace;
use crate::image::ImageName;

const COPY_LONG_ABOUT: &str = "\
Copies an image with everything that refers to it (SOCI indexes, signatures, attestations, and what refers to those), between registries and \
layouts. Digests stay the same.

Blobs are mounted where source and destination are in one registry, else they are streamed from one to the other: no disk is used, and \
broken connections are resumed. The tag is written last, so a copy that was broken off leaves no tag; run it again and it goes on. \
Where the destination lists no referrers itself, they are listed under the tag sha256-... .

DESTINATION is [REGISTRY/]REPOSITORY[:TAG] or oci:DIR[:TAG]; without TAG it is the source's. All platforms are copied. What cosign stores \
under tags of its own (sha256-....sig) refers to nothing and is not copied.";

const COPY_AFTER_HELP: &str = "\
Examples:
  ociseek copy staging.example/acme/app:1.4 prod.example/acme/app
  ociseek copy ghcr.io/acme/app:1.4 oci:app
  ociseek copy oci:app:1.4 localhost:5000/app:test

JSON: docs/json.md says what each field means.

Exit status: 0 copied, 1 failed, 2 wrong usage, 129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Copy an image with its indexes and all that refers to it
#[derive(Debug, Args)]
#[command(long_about = COPY_LONG_ABOUT, after_long_help = COPY_AFTER_HELP, after_help = "Examples: ociseek copy --help")]
pub struct CopyArgs {
    /// The image
    #[arg(value_name = "SOURCE")]
    pub source: ImageName,

    /// Where the copy goes
    #[arg(value_name = "DESTINATION")]
    pub destination: ListPlace,

    /// Copy the image alone, without what refers to it
    #[arg(long)]
    pub no_referrers: bool,

    /// How many blobs are copied side by side
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
