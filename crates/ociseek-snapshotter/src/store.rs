//! The rows in a file, which is replaced as a whole: after a crash it has all of a change or
//! nothing of it.
//!
//! Only a removal does not need the file, because a full disk must not keep containerd from freeing
//! space. The file then still has the row of a snapshot without files, until the next change is
//! written, or until the next start finds the files missing.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use tracing::warn;

use super::error::SnapshotError;
use super::rows::{SnapshotRow, SnapshotRows};
use ociseek_store::durable::persist;
use ociseek_store::lock::Hold;

const STATE: &str = "state.json";
/// How the names of files begin that a crash may leave.
const UNFINISHED: &str = "unfinished-";

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

/// Whether a write failed because there is no space.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl RowStore {
    /// Opens the rows in `root`, which no other process may use.
    pub(crate) fn open(root: &Path) -> io::Result<RowStore> {
        let lock = File::create(root.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another snapshotter uses it"),
            TryLockError::Error(error) => error,
        })?;
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
            }
        }
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

    /// Removes a row. If there is no space to write the others, `hide` must make the snapshot's
    /// files look as if they were removed, and the row is removed in memory.
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

    /// Writes rows and holds them from now on; also without writing them, if there is no space and
    /// `when_full` agrees.
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
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.root)?;
        file.write_all(&serde_json::to_vec(rows)?)?;
        persist(file, &self.root.join(STATE), true)
    }
}

/// The rows in the file; none if there is no file.
pub(crate) fn read(root: &Path) -> io::Result<SnapshotRows> {
    match fs::read(root.join(STATE)) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| io::Error::other(format!("{STATE} is damaged: {error}")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SnapshotRows::default()),
        Err(error) => Err(error),
    }
}
