//! `ociseek cache`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::cli::shared::args::{CacheDirArgs, FormatArgs, OutputFormat};
use crate::cli::shared::caches;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::stdout::Stdout;
use ociseek_rootfs::cache::SpanCache;
use ociseek_store::entries::Usage;

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

/// The caches in display order, with their directories. Ztocs are in the common one itself.
fn all(dir: &Path) -> [(WhichCache, PathBuf); 2] {
    [(WhichCache::Ztocs, dir.to_owned()), (WhichCache::Spans, SpanCache::dir_in(dir))]
}

pub(super) fn run(command: CacheCommand) -> Result<(), CliError> {
    match command {
        CacheCommand::Ls(args) => ls(&args),
        CacheCommand::Clear(args) => clear(&args),
    }
}

fn ls(args: &CacheLsArgs) -> Result<(), CliError> {
    let dir = caches::dir(&args.dir).ok_or_else(no_cache_dir)?;
    let mut sizes = Vec::new();
    for (which, path) in all(&dir) {
        sizes.push((which, Usage::of(&path).map_err(CliError::read(&path))?));
    }
    let text = match args.format.get() {
        OutputFormat::Json => text_of(Caches::of(&dir, &sizes, false))?,
        OutputFormat::Text => {
            let line = |(which, usage): &(WhichCache, Usage)| {
                format!(
                    "  {}  {:>10}  {}\n",
                    which.name(),
                    human(usage.bytes),
                    entries(usage.entries)
                )
            };
            format!("{}\n{}", dir.display(), sizes.iter().map(line).collect::<String>())
        }
    };
    Stdout::new().print(text)
}

fn clear(args: &CacheClearArgs) -> Result<(), CliError> {
    let dir = caches::dir(&args.dir).ok_or_else(no_cache_dir)?;
    let mut freed = Vec::new();
    for (which, path) in all(&dir) {
        if args.only.is_none_or(|only| only == which) {
            freed.push((which, Usage::clear(&path).map_err(CliError::read(&path))?));
        }
    }
    let text = match args.format.get() {
        OutputFormat::Json => text_of(Caches::of(&dir, &freed, true))?,
        OutputFormat::Text => {
            let bytes = freed.iter().map(|(_, usage)| usage.bytes).sum();
            let parts: Vec<String> = freed
                .iter()
                .map(|(which, usage)| format!("{} of {}", entries(usage.entries), which.name()))
                .collect();
            format!("freed {} in {}: {}\n", human(bytes), dir.display(), parts.join(", "))
        }
    };
    Stdout::new().print(text)
}

fn entries(count: u64) -> String {
    counted(count, "entry", "entries")
}

fn no_cache_dir() -> CliError {
    CliError::new("no cache directory: $XDG_CACHE_HOME is not set, and the user has no home folder")
        .with_hint("set one with --cache-dir DIR")
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Caches {
    /// The directory of all caches.
    dir: String,
    /// Null if --only excluded it.
    ztocs: Option<Cache>,
    /// Null if --only excluded it.
    spans: Option<Cache>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Cache {
    entries: u64,
    /// Size in bytes (`ls`).
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Size of the removed entries in bytes (`clear`).
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_bytes: Option<u64>,
}

impl Caches {
    /// `cleared` tells whether the caches were removed.
    pub(crate) fn of(dir: &Path, usages: &[(WhichCache, Usage)], cleared: bool) -> Caches {
        let cache = |which: WhichCache| {
            usages.iter().find(|(each, _)| *each == which).map(|(_, usage)| Cache {
                entries: usage.entries,
                bytes: (!cleared).then_some(usage.bytes),
                freed_bytes: cleared.then_some(usage.bytes),
            })
        };
        Caches {
            dir: dir.to_string_lossy().into_owned(),
            ztocs: cache(WhichCache::Ztocs),
            spans: cache(WhichCache::Spans),
        }
    }
}
