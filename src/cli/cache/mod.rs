//! `ociseek cache`.

use std::io;
use std::path::{Path, PathBuf};

use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::caches;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::Stdout;
use args::{CacheClearArgs, CacheCommand, CacheLsArgs, WhichCache};
use ociseek_rootfs::cache::SpanCache;
use ociseek_store::entries::Usage;

pub(super) mod args;
pub(super) mod json;

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
    let dir = caches::dir(&args.dir).ok_or(CliError::NoCacheDir)?;
    let mut sizes = Vec::new();
    for (which, path) in all(&dir) {
        sizes.push((which, Usage::of(&path).map_err(failed(&path))?));
    }
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Caches::of(&dir, &sizes, false)).map_err(CliError::Stdout)?,
        OutputFormat::Text => {
            let line = |(which, usage): &(WhichCache, Usage)| {
                format!("  {}  {:>10}  {}\n", which.name(), human(usage.bytes), entries(usage.entries))
            };
            format!("{}\n{}", dir.display(), sizes.iter().map(line).collect::<String>())
        }
    };
    Stdout::new().write_whole(text.as_bytes()).map_err(CliError::Stdout)
}

fn clear(args: &CacheClearArgs) -> Result<(), CliError> {
    let dir = caches::dir(&args.dir).ok_or(CliError::NoCacheDir)?;
    let mut freed = Vec::new();
    for (which, path) in all(&dir) {
        if args.only.is_none_or(|only| only == which) {
            freed.push((which, Usage::clear(&path).map_err(failed(&path))?));
        }
    }
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Caches::of(&dir, &freed, true)).map_err(CliError::Stdout)?,
        OutputFormat::Text => {
            let bytes = freed.iter().map(|(_, usage)| usage.bytes).sum();
            let parts: Vec<String> =
                freed.iter().map(|(which, usage)| format!("{} of {}", entries(usage.entries), which.name())).collect();
            format!("freed {} in {}: {}\n", human(bytes), dir.display(), parts.join(", "))
        }
    };
    Stdout::new().write_whole(text.as_bytes()).map_err(CliError::Stdout)
}

fn entries(count: u64) -> String {
    counted(count, "entry", "entries")
}

fn failed(path: &Path) -> impl Fn(io::Error) -> CliError {
    let path = path.to_owned();
    move |source| CliError::Read { path: path.clone(), source }
}
