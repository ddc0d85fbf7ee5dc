//! The options of `ociseek cache`.

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::shared::args::{CacheDirArgs, FormatArgs};

/// Show and empty the local cache
#[derive(Debug, Subcommand)]
pub(crate) enum CacheCommand {
    Ls(CacheLsArgs),
    Clear(CacheClearArgs),
}

const CACHE_LS_LONG_ABOUT: &str = "\
Shows where the local caches are and how large they are: ztocs, which save index, ls, cat and mount from reading \
layers again (at most 1 GiB; see --ztoc-cache-size of those commands), and the content of spans (at most 4 GiB; see \
--cache-size).

When a cache is full, its least recently used entries are removed.";

/// Show where the local caches are and how large they are
#[derive(Debug, Args)]
#[command(long_about = CACHE_LS_LONG_ABOUT)]
pub(crate) struct CacheLsArgs {
    #[command(flatten)]
    pub dir: CacheDirArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

const CACHE_CLEAR_LONG_ABOUT: &str = "\
Empties the local caches without confirmation and prints how much was freed.

This is safe while a mount or index is running: it fetches or rebuilds what it needs.";

/// Empty the local caches
#[derive(Debug, Args)]
#[command(long_about = CACHE_CLEAR_LONG_ABOUT)]
pub(crate) struct CacheClearArgs {
    /// Empty only this cache
    #[arg(long, value_name = "CACHE", value_enum)]
    pub only: Option<WhichCache>,

    #[command(flatten)]
    pub dir: CacheDirArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhichCache {
    Ztocs,
    Spans,
}

impl WhichCache {
    pub(crate) fn name(self) -> &'static str {
        match self {
            WhichCache::Ztocs => "ztocs",
            WhichCache::Spans => "spans",
        }
    }
}
