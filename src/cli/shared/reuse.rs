//! The options for reusing existing ztocs instead of reading their layers.

use clap::Args;
use clap::builder::{FalseyValueParser, TypedValueParser};

use ociseek_format::image::{ImageName, Reference};
use ociseek_ops::index::Reuse;

/// The maximum number of tags to search.
const MOST_TAGS: i64 = 100;

/// For the command `index`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reuse")]
pub(crate) struct ReuseArgs {
    /// Also use the SOCI indexes of this image, such as :latest or the base image; can be repeated
    ///
    /// Layers listed in such an index are not read: their ztocs are fetched, checked, and compared
    /// with some spans of the layer. The image can be in another repository or registry, or in a
    /// layout. If it cannot be read, ociseek prints a warning and continues.
    #[arg(long, value_name = "IMAGE", env = "OCISEEK_REUSE_FROM", value_delimiter = ',')]
    pub reuse_from: Vec<ImageName>,

    #[command(flatten)]
    pub shared: SharedReuseArgs,
}

/// For hooks and backfill.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Reuse")]
pub(crate) struct HookReuseArgs {
    /// Also use the SOCI indexes of this image, such as a base image; can be repeated
    ///
    /// It is used for every image that is indexed. It can be in another repository or registry, as
    /// long as the service is allowed to access that.
    #[arg(long, value_name = "IMAGE", env = "OCISEEK_REUSE_FROM", value_delimiter = ',')]
    pub reuse_from: Vec<Reference>,

    #[command(flatten)]
    pub shared: SharedReuseArgs,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Reuse")]
pub(crate) struct SharedReuseArgs {
    /// Search this many other tags of the image's repository for layers that are already indexed; 0
    /// searches none
    ///
    /// Tags are searched only if layers of at least 1 MiB would have to be read: latest first, then
    /// those with the nearest version numbers, then those that begin like the image's own.
    #[arg(long, value_name = "N", env = "OCISEEK_REUSE_TAGS", default_value_t = Reuse::TAGS)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=MOST_TAGS).map(|tags| tags as usize))]
    #[arg(hide_short_help = true)]
    pub reuse_tags: usize,

    /// Read every layer that is not in the cache, ignoring other indexes
    #[arg(long, env = "OCISEEK_NO_REUSE", value_parser = FalseyValueParser::new(), conflicts_with = "reuse_from")]
    #[arg(hide_short_help = true)]
    pub no_reuse: bool,
}

impl SharedReuseArgs {
    /// The selected options, without any images yet.
    pub(crate) fn options(&self) -> Reuse {
        Reuse { indexes: !self.no_reuse, tags: self.reuse_tags, ..Reuse::default() }
    }
}
