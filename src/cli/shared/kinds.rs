//! The options that select the kinds of index to make.

use clap::Args;
use clap::builder::FalseyValueParser;

use super::error::CliError;
use ociseek_ops::index::Kinds;
use ociseek_ops::versions::Versions;

#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Fine index")]
pub(crate) struct KindsArgs {
    /// Also build and attach a fine index, with which ociseek starts containers sooner
    ///
    /// It is ociseek's own: `mount`, `bundle` and the other commands that read images fetch a
    /// fraction of the bytes with it, other tools do not see it. It is made from the same reading
    /// of the layers as the SOCI index. docs/fine.md describes it.
    #[arg(long, env = "OCISEEK_FINE", value_parser = FalseyValueParser::new(), conflicts_with = "fine_only")]
    pub fine: bool,

    /// Build and attach only the fine index, and leave SOCI indexes as they are
    #[arg(long, env = "OCISEEK_FINE_ONLY", value_parser = FalseyValueParser::new())]
    pub fine_only: bool,
}

impl KindsArgs {
    /// The selected kinds, in addition to these versions of the SOCI index.
    ///
    /// # Errors
    /// When they and the versions exclude each other.
    pub(crate) fn kinds(self, versions: &Versions) -> Result<Kinds, CliError> {
        let usage = |text| Err(CliError::Usage(text));
        match (self, versions) {
            (KindsArgs { fine: false, fine_only: false }, _) => Ok(Kinds::Soci),
            (KindsArgs { fine_only: true, .. }, Versions::V1) => Ok(Kinds::Fine),
            (KindsArgs { fine_only: true, .. }, _) => usage("--fine-only makes no SOCI index: use --fine with --v2"),
            (_, Versions::V2(_)) => usage("--fine attaches an index to the image, and --v2-only does not: use --v2"),
            (_, Versions::V1 | Versions::Both(_)) => Ok(Kinds::Both),
        }
    }
}
