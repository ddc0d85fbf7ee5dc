//! The rows in a file, which is replaced as a whole: after a crash it has all of a change or
//! nothing of it.
//!
//! Only a removal does not need the file, because a full disk must not keep containerd from freeing
//! space. The file then still has the row of a snapshot without files, until the next change is
//! written, or until the next start finds the files missing.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use tracing::warn;

use super::error::SnapshotError;
use super::rows::{SnapshotRow, SnapshotRows};
use ociseek_store::lock::Hold;
use ociseek_store::state_file;

const STATE: &str = "state.json";

#[derive(Debug)]
pub(crate) struct RowStore {
    root: PathBuf,
    rows: Mutex<Held>,
    /// Held as long as this process lives.
    _lock: File,
}

#[derive(Debug, Default)]
struct Held {
    rows: SnapshotRows,
    /// The file still has rows that were removed.
    is_ahead: bool,
}

/// Whether a write failed because the disk or the quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl RowStore {
    /// Opens the rows in `root`, which no other process may use.
    pub(crate) fn open(root: &Path) -> io::Result<RowStore> {
        let lock = state_file::lock(root, "snapshotter")?;
        let held = Held { rows: read(root)?, is_ahead: false };
        Ok(RowStore { root: root.to_owned(), rows: Mutex::new(held), _lock: lock })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.rows.hold()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&SnapshotRows) -> T) -> T {
        look(&self.held().rows)
    }

    /// Changes the rows. If `change` or writing them fails, they stay as they were, but ids are not
    /// used again.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut SnapshotRows) -> Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let mut held = self.held();
        let mut changed = held.rows.clone();
        let result = change(&mut changed);
        held.rows.skip_ids_of(&changed);
        let result = result?;
        self.replace(&mut held, changed, |full| Err(self.failed(full)))?;
        Ok(result)
    }

    /// Removes a row. If the disk is too full to write the others, the row is removed in memory
    /// only, and `hide` must make the snapshot's files look as if they were removed.
    pub(crate) fn remove(
        &self,
        key: &str,
        hide: impl FnOnce(&SnapshotRow) -> Result<(), SnapshotError>,
    ) -> Result<SnapshotRow, SnapshotError> {
        let mut held = self.held();
        let mut changed = held.rows.clone();
        let row = changed.remove(key)?;
        self.replace(&mut held, changed, |_| hide(&row))?;
        Ok(row)
    }

    /// Removes the rows of snapshots without files, and returns their names.
    pub(crate) fn remove_gone(&self, is_gone: impl Fn(&SnapshotRow) -> bool) -> Result<Vec<String>, SnapshotError> {
        let mut held = self.held();
        let mut changed = held.rows.clone();
        let gone = changed.remove_gone(is_gone);
        if !gone.is_empty() {
            self.replace(&mut held, changed, |_| Ok(()))?;
        }
        Ok(gone)
    }

    /// Writes `rows` and holds them from now on. If the disk is too full to write them, `when_full`
    /// decides whether they are held anyway.
    fn replace(
        &self,
        held: &mut Held,
        rows: SnapshotRows,
        when_full: impl FnOnce(io::Error) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let is_ahead = match self.save(&rows) {
            Ok(()) => false,
            Err(error) if is_full(&error) => {
                when_full(error)?;
                true
            }
            Err(error) => return Err(self.failed(error)),
        };
        *held = Held { rows, is_ahead };
        Ok(())
    }

    /// Writes the rows, if a removal could not, now that it freed space.
    pub(crate) fn catch_up(&self) {
        let mut held = self.held();
        if held.is_ahead {
            match self.save(&held.rows) {
                Ok(()) => held.is_ahead = false,
                Err(error) => warn!(%error, "{STATE} cannot be written, and still has snapshots that were removed"),
            }
        }
    }

    fn failed(&self, source: io::Error) -> SnapshotError {
        SnapshotError::Files { path: self.root.join(STATE), source }
    }

    fn save(&self, rows: &SnapshotRows) -> io::Result<()> {
        state_file::save(&self.root, STATE, rows)
    }
}

/// The rows in the file. A missing file has no rows.
pub(crate) fn read(root: &Path) -> io::Result<SnapshotRows> {
    state_file::read(root, STATE)
}
