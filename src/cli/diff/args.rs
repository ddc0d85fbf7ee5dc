//! What can be typed behind `ociseek diff`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, PlatformArgs, RegistryArgs};

const DIFF_LONG_ABOUT: &str = "\
Shows in what two ztocs differ, entry by entry and span by span, or two SOCI indexes, layer by layer.

A and B are two ztocs, which are files, or two images. Of an image it is the index that a reader takes, on one platform; \
REPOSITORY@DIGEST of an index is that index. Layers are matched by their digest, and ztocs that are not equal are fetched and compared.";

const DIFF_AFTER_HELP: &str = "\
Examples:
  ociseek diff old.ztoc new.ztoc
  ociseek diff ghcr.io/acme/app:1.3 ghcr.io/acme/app:1.4
  ociseek diff ghcr.io/acme/app@sha256:6b6c3d79... ghcr.io/acme/app@sha256:91f0a2e4...

JSON: docs/json.md says what each field means.

Exit status: 0 no difference, 1 failed, 2 wrong usage, 3 they differ, 129, 130 or 143 ended by a hangup, an interrupt, a \
termination.";

/// Show in what two ztocs or SOCI indexes differ
#[derive(Debug, Args)]
#[command(long_about = DIFF_LONG_ABOUT, after_long_help = DIFF_AFTER_HELP, after_help = "Examples: ociseek diff --help")]
pub struct DiffArgs {
    /// A ztoc, which is a file, or an image
    #[arg(value_name = "A")]
    pub a: String,

    /// What it is compared with
    #[arg(value_name = "B")]
    pub b: String,

    #[command(flatten)]
    pub platform: PlatformArgs,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
