//! The JSON output of `ociseek cache ls` and `ociseek cache clear`.

use std::path::Path;

use serde::Serialize;

use super::args::WhichCache;
use ociseek_store::entries::Usage;

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
