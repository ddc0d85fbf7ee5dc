//! The options of `ociseek diff`.

use clap::Args;

use crate::cli::shared::args::{FormatArgs, PlatformArgs, RegistryArgs};

const DIFF_LONG_ABOUT: &str = "\
Shows how two ztocs differ, entry by entry and span by span, or how two SOCI indexes differ, layer by layer.

A and B are two ztoc files or two images. For an image, the index that a consumer would use on one platform is \
compared; REPOSITORY@DIGEST selects an index directly. Layers are matched by digest, and differing ztocs are fetched \
and compared. Fine indexes are not compared.";

const DIFF_AFTER_HELP: &str = "\
Examples:
  ociseek diff old.ztoc new.ztoc
  ociseek diff ghcr.io/acme/app:1.3 ghcr.io/acme/app:1.4
  ociseek diff ghcr.io/acme/app@sha256:6b6c3d79... ghcr.io/acme/app@sha256:91f0a2e4...

JSON: docs/json.md describes each field.

Exit status: 0 no difference, 1 failure, 2 usage error, 3 they differ; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Show how two ztocs or SOCI indexes differ
#[derive(Debug, Args)]
#[command(long_about = DIFF_LONG_ABOUT, after_long_help = DIFF_AFTER_HELP)]
pub(crate) struct DiffArgs {
    /// A ztoc file or an image
    #[arg(value_name = "A")]
    pub a: String,

    /// The ztoc file or image to compare it with
    #[arg(value_name = "B")]
    pub b: String,

    #[command(flatten)]
    pub platform: PlatformArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
