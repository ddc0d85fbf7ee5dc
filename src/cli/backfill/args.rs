//! The options of `ociseek backfill`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::shared::args::{CacheArgs, ExistingArg, FormatArgs, RegistryArgs};
use crate::cli::shared::parse;
use crate::cli::shared::unattended::UnattendedArgs;
use ociseek_hook::allow::Glob;
use ociseek_hook::backfill::WalkRoot;
#[cfg(feature = "nats")]
use ociseek_hook::queue::QueueUrl;

const LONG_ABOUT: &str = "\
Walks the repositories and tags of registries and indexes every image that has no index. With --v2 it also writes the \
SOCI-enabled image of every tag that has none.

The repositories are listed through the registry's catalog (_catalog); if the registry does not allow that, name the \
repositories instead. Tags of the same image are indexed once, unless each gets a SOCI-enabled image. Non-images (Helm \
charts, signatures, our own indexes) are skipped. An image that already has an index with the same options costs a few \
small requests, so an interrupted run can simply be restarted; with --state it costs one request.";

const AFTER_HELP: &str = "\
Examples:
  Preview:
    ociseek backfill --dry-run registry.corp.example

  One team's images of the last quarter, four at a time, resumable:
    ociseek backfill --filter 'team/**' --since 90d --jobs 4 --state backfill.state registry.corp.example

  Both versions of the index:
    ociseek backfill --v2 '{tag}-soci' registry.corp.example

  One repository:
    ociseek backfill ghcr.io/acme/app

  Distributed to workers (ociseek hook worker --queue ...):
    ociseek backfill --queue nats://queue.corp.example registry.corp.example

Each line on standard output is an image: its status, name and digest. With --format json each line is an object \
(docs/json.md). A list of repositories or tags that cannot be read also gets a line, with the status failed.

Exit status: 0 success, 1 an image or a list failed, 2 usage error, 129, 130 or 143 \
interrupted.";

/// Index every image of a registry or repository that has no index
#[derive(Debug, Args)]
#[command(long_about = LONG_ABOUT, after_long_help = AFTER_HELP)]
pub(crate) struct BackfillArgs {
    /// Registries (HOST[:PORT]) and repositories ([REGISTRY/]REPOSITORY)
    #[arg(value_name = "REGISTRY|REPOSITORY", required = true)]
    pub places: Vec<WalkRoot>,

    /// Only repositories whose name matches this glob: * matches anything but a slash, ** anything;
    /// can be repeated
    #[arg(long, value_name = "GLOB", help_heading = "Selection")]
    pub filter: Vec<Glob>,

    /// Only images created since this date, such as 2026-01-31, or within this time, such as 12h or
    /// 30d
    ///
    /// The date comes from the image's config; images without a creation date are included. This
    /// reads one more small blob per image. A duration is counted back from this machine's clock;
    /// the line of an image that is left out shows its creation time and the limit.
    #[arg(long, value_name = "DATE|DURATION", value_parser = parse::since, help_heading = "Selection")]
    #[arg(allow_hyphen_values = true)]
    pub since: Option<i64>,

    #[command(flatten)]
    pub unattended: UnattendedArgs,

    /// What to do with an image that already has a SOCI index
    #[arg(long, value_name = "RULE", env = "OCISEEK_EXISTING", value_enum, default_value_t = ExistingArg::Skip)]
    #[arg(help_heading = "Indexing")]
    pub existing: ExistingArg,

    /// How many images to index in parallel [default: one per CPU]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", value_parser = clap::value_parser!(u16).range(1..=256))]
    #[arg(help_heading = "Execution")]
    pub jobs: Option<u16>,

    /// List the images without an index, and write nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new(), help_heading = "Execution")]
    pub dry_run: bool,

    /// Record finished images in this file, and skip those it already lists
    #[arg(long, value_name = "FILE", help_heading = "Execution", conflicts_with = "dry_run")]
    pub state: Option<PathBuf>,

    /// Put images without an index into this NATS JetStream work queue, for ociseek hook worker to
    /// index
    ///
    /// Credentials go before the host, as USER:PASSWORD@ or TOKEN@; tls:// is NATS over TLS.
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "nats://HOST[:PORT][/STREAM]", env = "OCISEEK_QUEUE", hide_env_values = true)]
    #[arg(help_heading = "Execution", conflicts_with_all = ["dry_run", "existing"])]
    pub queue: Option<QueueUrl>,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
