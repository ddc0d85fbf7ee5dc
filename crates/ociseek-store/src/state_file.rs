//! A small state of one process: JSON that is replaced as a whole, so that after a crash it has all
//! of a change or nothing of it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::durable::{UNFINISHED, replace};

/// How long [`lock_file`] waits for another process.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Locks `file`, as far as other openings of the same file are concerned, until it is closed. Waits
/// up to a second: a child process shares the lock until it has executed its program (fork(2)), and
/// a process that was killed may have left such a child.
///
/// # Errors
/// `WouldBlock` if another process holds the lock, or why the file cannot be locked.
pub fn lock_file(file: &File) -> io::Result<()> {
    lock_within(file, LOCK_WAIT)
}

fn lock_within(file: &File, wait: Duration) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if begun.elapsed() < wait => {
                thread::sleep(Duration::from_millis(20))
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Locks the directory `dir` for as long as the file is open, and removes what a crash left there.
/// `user` names what may use it, for the error.
///
/// # Errors
/// If another process has locked it, or it cannot be read.
pub fn lock(dir: &Path, user: &str) -> io::Result<File> {
    let lock = File::create(dir.join("lock"))?;
    lock_file(&lock).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(format!("another {user} uses it")),
        _ => error,
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
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| io::Error::other(format!("{name} is damaged: {error}"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_for_a_moment_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path(), "test").unwrap();
        assert_eq!(lock(dir.path(), "test").unwrap_err().to_string(), "another test uses it");
        // As a child process has it between fork(2) and execve(2).
        let child = held.try_clone().unwrap();
        drop(held);
        let file = File::create(dir.path().join("lock")).unwrap();
        let waiting = thread::spawn(move || lock_within(&file, Duration::from_secs(600)));
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        drop(child);
        assert!(waiting.join().unwrap().is_ok());
    }
}
