//! Opens the local caches, in the directory from the user or the default one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::args::{CacheArgs, CacheDirArgs, ReadCacheArgs};
use super::error::CliError;
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_rootfs::cache::SpanCache;
use ociseek_rootfs::layers::Caches;
use ociseek_store::cache::ZtocCache;
use ociseek_store::home_dir;

/// Where the servers of a node have their caches, as root: on the disk of images and containers,
/// not in root's home.
pub(crate) const NODE_CACHE: &str = "/var/lib/ociseek/cache";

/// The directory of all caches. None if there is no suitable directory.
pub(crate) fn dir(args: &CacheDirArgs) -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    args.cache_dir
        .clone()
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("ociseek")))
        .or_else(|| home_dir().map(|home| home.join(".cache/ociseek")))
}

/// The caches for reading images: of ztocs and of decoded spans.
pub(crate) async fn reading(
    args: &ReadCacheArgs,
    progress: &Arc<dyn Progress>,
) -> Result<Caches, CliError> {
    let dir = if args.cache.no_cache { None } else { dir(&args.cache.dir) };
    let max = args.cache_size.0;
    let ztocs = args.cache.ztoc_cache_size.0;
    // What one of them cannot use, the other cannot either.
    let progress: Arc<dyn Progress> = Arc::new(FirstWarning::new(Arc::clone(progress)));
    let opened = tokio::task::spawn_blocking(move || Caches {
        ztocs: ZtocCache::with_limit(dir.as_deref(), ztocs, Arc::clone(&progress)),
        spans: SpanCache::open(dir.as_deref(), max, progress),
    });
    opened.await.map_err(CliError::start)
}

/// Passes on no warning but the first.
struct FirstWarning {
    progress: Arc<dyn Progress>,
    has_warned: AtomicBool,
}

impl FirstWarning {
    fn new(progress: Arc<dyn Progress>) -> FirstWarning {
        FirstWarning { progress, has_warned: AtomicBool::new(false) }
    }
}

impl Progress for FirstWarning {
    fn report(&self, event: ProgressEvent) {
        let is_warning = matches!(event, ProgressEvent::Warning(_));
        if !is_warning || !self.has_warned.swap(true, Ordering::Relaxed) {
            self.progress.report(event);
        }
    }
}

/// The cache of ztocs. None if the user disabled it.
pub(crate) async fn ztocs(args: &CacheArgs, progress: &Arc<dyn Progress>) -> Option<ZtocCache> {
    if args.no_cache {
        return None;
    }
    let dir = dir(&args.dir);
    let max = args.ztoc_cache_size.0;
    let progress = Arc::clone(progress);
    tokio::task::spawn_blocking(move || ZtocCache::with_limit(dir.as_deref(), max, progress))
        .await
        .ok()
}
