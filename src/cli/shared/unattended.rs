//! The options for images that were not requested explicitly, by hooks and backfill.

use clap::Args;

use super::args::{BuildArgs, MinLayerArgs, PlatformsArgs};
use super::build::layer_options;
use super::error::CliError;
use super::kinds::KindsArgs;
use super::reuse::HookReuseArgs;
use super::versions::HookVersionsArgs;
use ociseek_format::image::Reference;
use ociseek_ops::index::IndexOptions;
use ociseek_ops::versions::Versions;

#[derive(Debug, Args)]
pub(crate) struct UnattendedArgs {
    #[command(flatten, next_help_heading = "Indexing")]
    pub platforms: PlatformsArgs,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten, next_help_heading = "Indexing")]
    pub min_layer: MinLayerArgs,

    #[command(flatten)]
    pub versions: HookVersionsArgs,

    #[command(flatten)]
    pub kinds: KindsArgs,

    #[command(flatten)]
    pub reuse: HookReuseArgs,
}

/// The options in the types of the library.
pub(crate) struct Unattended {
    pub index: IndexOptions,
    pub versions: Versions,
    pub reuse_from: Vec<Reference>,
}

impl UnattendedArgs {
    /// The options, with `jobs` layers of an image read in parallel.
    pub(crate) fn options(self, jobs: usize) -> Result<Unattended, CliError> {
        let versions = self.versions.versions()?;
        let index = IndexOptions {
            platforms: self.platforms.platform,
            kinds: self.kinds.kinds(&versions)?,
            layer: layer_options(&self.build),
            min_layer_size: self.min_layer.min_layer_size.0,
            jobs,
            reuse: self.reuse.shared.options(),
            ..IndexOptions::default()
        };
        Ok(Unattended { index, versions, reuse_from: self.reuse.reuse_from })
    }
}
