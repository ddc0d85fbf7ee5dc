//! The options for the prefetch list.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::error::CliError;
use ociseek_ops::prefetch::{PathListError, PrefetchList};

/// The content of a prefetch list.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Prefetch")]
pub(crate) struct PrefetchArgs {
    /// Have consumers fetch this file before the container starts; can be repeated
    ///
    /// A path from the root of the image; symbolic links are followed. `*` matches anything but a
    /// slash, `**` anything, `?` one character. A path that is not in the indexed layers causes a
    /// warning. soci-snapshotter uses the list if `[prefetch] enable = true`; ociseek mount, bundle
    /// and trace always do.
    #[arg(long, value_name = "PATH", env = "OCISEEK_PREFETCH_FILE")]
    pub prefetch_file: Vec<String>,

    /// The same for all paths in this file: a JSON array, as for soci, or one path per line
    #[arg(long, value_name = "FILE", env = "OCISEEK_PREFETCH_LIST", hide_short_help = true)]
    pub prefetch_list: Vec<PathBuf>,

    /// The same for the reads of a recorded start: the output of ociseek trace or mount --record;
    /// can be repeated
    ///
    /// Several are merged, in their order. With --fine, what all of these options name stands first
    /// in the fine index, in this order. --prefetch-profile is the same option.
    #[arg(long, alias = "prefetch-profile", value_name = "FILE", env = "OCISEEK_PROFILE")]
    pub profile: Vec<PathBuf>,
}

impl PrefetchArgs {
    /// All of them combined. None if no option was given.
    pub(crate) fn list(&self) -> Result<Option<Arc<PrefetchList>>, CliError> {
        let mut list = PrefetchList::default();
        self.prefetch_file.iter().for_each(|path| list.add_path(path));
        let mut add = |path: &PathBuf, add: fn(&mut PrefetchList, &[u8]) -> Result<(), PathListError>| {
            let text = std::fs::read(path).map_err(|source| CliError::Read { path: path.clone(), source })?;
            add(&mut list, &text).map_err(|source| CliError::Prefetch { path: path.clone(), source })
        };
        self.prefetch_list.iter().try_for_each(|path| add(path, PrefetchList::add_list))?;
        self.profile.iter().try_for_each(|path| add(path, PrefetchList::add_profile))?;
        Ok((!list.is_empty()).then(|| Arc::new(list)))
    }
}
