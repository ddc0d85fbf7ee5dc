//! A small state of one process: JSON that is replaced as a whole, so that after a crash it has all
//! of a change or nothing of it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::durable::{UNFINISHED, replace};

/// Locks the directory `dir` for as long as the file is open, and removes what a crash left there.
/// `user` names what may use it, for the error.
///
/// # Errors
/// If another process has locked it, or it cannot be read.
pub fn lock(dir: &Path, user: &str) -> io::Result<File> {
    let lock = File::create(dir.join("lock"))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other(format!("another {user} uses it")),
        TryLockError::Error(error) => error,
    })?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(lock)
}

/// Reads the state in the file `name` of `dir`. Returns the default state if the file is missing.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn read<T: DeserializeOwned + Default>(dir: &Path, name: &str) -> io::Result<T> {
    match fs::read(dir.join(name)) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| io::Error::other(format!("{name} is damaged: {error}")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// Replaces the file `name` of `dir`. It survives a power failure.
///
/// # Errors
/// If it cannot be written.
pub fn save<T: Serialize>(dir: &Path, name: &str, state: &T) -> io::Result<()> {
    replace(&dir.join(name), &serde_json::to_vec(state)?)
}
