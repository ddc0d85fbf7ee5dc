//! The options that say what consumers are to prefetch.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::report::CliError;
use crate::ops::prefetch::{ListError, PrefetchList};

/// What goes into a prefetch list.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "What is prefetched")]
pub struct PrefetchArgs {
    /// Have consumers fetch this file before the container starts; may be repeated
    ///
    /// A path from the root of the image; links are followed. `*` stands for anything but a slash,
    /// `**` for anything, `?` for one character. A path that is not in the indexed layers is a
    /// warning. soci-snapshotter heeds the list where `[prefetch] enable = true`; ociseek mount,
    /// bundle and trace always do.
    #[arg(long, value_name = "PATH", env = "OCISEEK_PREFETCH_FILE")]
    pub prefetch_file: Vec<String>,

    /// The same for all paths in this file: a JSON array, as soci takes it, or a path a line
    #[arg(long, value_name = "FILE", env = "OCISEEK_PREFETCH_LIST")]
    pub prefetch_list: Vec<PathBuf>,

    /// The same for what a recorded start read: the output of ociseek trace or of mount --record; may be repeated
    #[arg(long, value_name = "FILE", env = "OCISEEK_PREFETCH_PROFILE")]
    pub prefetch_profile: Vec<PathBuf>,
}

impl PrefetchArgs {
    /// All of them together; None if nothing was given.
    pub fn list(&self) -> Result<Option<Arc<PrefetchList>>, CliError> {
        let mut list = PrefetchList::default();
        self.prefetch_file.iter().for_each(|path| list.add_path(path));
        let mut add = |path: &PathBuf, add: fn(&mut PrefetchList, &[u8]) -> Result<(), ListError>| {
            let text = std::fs::read(path).map_err(|source| CliError::Read { path: path.clone(), source })?;
            add(&mut list, &text).map_err(|source| CliError::Prefetch { path: path.clone(), source })
        };
        self.prefetch_list.iter().try_for_each(|path| add(path, PrefetchList::add_list))?;
        self.prefetch_profile.iter().try_for_each(|path| add(path, PrefetchList::add_profile))?;
        Ok((!list.is_empty()).then(|| Arc::new(list)))
    }
}
