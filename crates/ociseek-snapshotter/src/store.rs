//! The rows in a file, which is replaced as a whole: after a crash it has all of a change or
//! nothing of it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::error::SnapshotError;
use super::rows::SnapshotRows;
use ociseek_store::durable::persist;

const STATE: &str = "state.json";
/// How the names of files begin that a crash may leave.
const UNFINISHED: &str = "unfinished-";

#[derive(Debug)]
pub(crate) struct RowStore {
    root: PathBuf,
    rows: Mutex<SnapshotRows>,
    /// Held as long as this process lives.
    _lock: File,
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
        let rows = match fs::read(root.join(STATE)) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::other(format!("{STATE} is damaged: {error}")))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => SnapshotRows::default(),
            Err(error) => return Err(error),
        };
        Ok(RowStore { root: root.to_owned(), rows: Mutex::new(rows), _lock: lock })
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&SnapshotRows) -> T) -> T {
        look(&self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the rows. If `change` or writing them fails, they stay as they were.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut SnapshotRows) -> Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = rows.clone();
        let result = change(&mut changed)?;
        self.save(&changed).map_err(|source| SnapshotError::Files { path: self.root.join(STATE), source })?;
        *rows = changed;
        Ok(result)
    }

    fn save(&self, rows: &SnapshotRows) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.root)?;
        file.write_all(&serde_json::to_vec(rows)?)?;
        persist(file, &self.root.join(STATE), true)
    }
}
