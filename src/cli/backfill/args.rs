//! What can be typed behind `ociseek backfill`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::shared::args::{
    BuildArgs, CacheArgs, ExistingArg, FormatArgs, MinLayerArgs, PlatformsArgs, RegistryArgs,
};
use crate::cli::shared::parse;
use crate::cli::shared::reuse::HookReuseArgs;
use crate::cli::shared::versions::HookVersionsArgs;
use crate::hook::allow::Glob;
use crate::hook::backfill::Place;
#[cfg(feature = "nats")]
use crate::hook::queue::QueueUrl;

const LONG_ABOUT: &str = "\
Walks the repositories and tags of registries, and indexes every image that has no index. With --v2 it also writes the SOCI-enabled \
image of every tag that has none.

A registry's own list of repositories is asked for (_catalog), which some registries keep to themselves: then name the repositories. \
Tags that name the same image are one, unless each gets a SOCI-enabled image. What is no image (charts, signatures, \
indexes of ours) is passed over. An image that has an index of the same options costs a few small requests and no reading, \
so that a run that was broken off is simply begun again; with --state it costs one request.";

const AFTER_HELP: &str = "\
Examples:
  What would be done:
    ociseek backfill --dry-run registry.corp.example

  One team's images of the last quarter, four side by side, to be gone on with after a break:
    ociseek backfill --filter 'team/**' --since 90d --jobs 4 --state backfill.state registry.corp.example

  Both versions of the index:
    ociseek backfill --v2 '{tag}-soci' registry.corp.example

  A repository:
    ociseek backfill ghcr.io/acme/app

  By as many workers as there are (ociseek hook worker --queue ...):
    ociseek backfill --queue nats://queue.corp.example registry.corp.example

Each line on standard output is an image: what became of it, its name, its digest. With --format json each is an object (docs/json.md). \
A list of repositories or tags that \
cannot be had has a line too, with the status failed.

Exit status: 0 done, 1 an image or a list failed, 2 wrong usage, 130 or 143 interrupted.";

/// Index every image of a registry or repository that has no index
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP, after_help = "Examples: ociseek backfill --help")]
pub struct BackfillArgs {
    /// Registries, HOST[:PORT], and repositories, [REGISTRY/]REPOSITORY
    #[arg(value_name = "REGISTRY|REPOSITORY", required = true)]
    pub places: Vec<Place>,

    /// Only repositories whose name this glob describes: * is anything but a slash, ** anything; may be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Which images")]
    pub filter: Vec<Glob>,

    /// Only images made since then: a day, 2026-01-31, or a time ago, 12h or 30d
    ///
    /// By what the image's config says of itself; an image that does not say is not too old. This reads one more small blob for
    /// each image.
    #[arg(long, value_name = "DATE|DURATION", value_parser = parse::since, help_heading = "Which images")]
    #[arg(allow_hyphen_values = true)]
    pub since: Option<i64>,

    #[command(flatten, next_help_heading = "What is indexed")]
    pub platforms: PlatformsArgs,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten, next_help_heading = "What is indexed")]
    pub min_layer: MinLayerArgs,

    /// What to do with an image that has a SOCI index already
    #[arg(long, value_name = "RULE", env = "OCISEEK_EXISTING", value_enum, default_value_t = ExistingArg::Skip)]
    #[arg(help_heading = "What is indexed")]
    pub existing: ExistingArg,

    #[command(flatten)]
    pub versions: HookVersionsArgs,

    #[command(flatten)]
    pub reuse: HookReuseArgs,

    /// How many images are worked on side by side [default: one for each CPU]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", value_parser = clap::value_parser!(u16).range(1..=256))]
    #[arg(help_heading = "How")]
    pub jobs: Option<u16>,

    /// Say which images have no index, and write nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new(), help_heading = "How")]
    pub dry_run: bool,

    /// Write down in this file what is done, and pass over what it says is done
    #[arg(long, value_name = "FILE", help_heading = "How", conflicts_with = "dry_run")]
    pub state: Option<PathBuf>,

    /// Put images that have no index into this work queue of NATS JetStream, for ociseek hook worker to index
    ///
    /// [USER:PASSWORD@] or [TOKEN@] stands before the host; tls:// is NATS over TLS.
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "nats://HOST[:PORT][/STREAM]", env = "OCISEEK_QUEUE", hide_env_values = true)]
    #[arg(help_heading = "How", conflicts_with_all = ["dry_run", "existing"])]
    pub queue: Option<QueueUrl>,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten, next_help_heading = "What is printed")]
    pub format: FormatArgs,
}
