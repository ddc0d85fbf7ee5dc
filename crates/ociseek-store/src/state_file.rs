//! A small state of one process: JSON that is replaced as a whole, so that after a crash it has all
//! of a change or nothing of it.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::durable::{UNFINISHED, replace};

/// The most bytes of a state. What is larger is damaged, and may have no end.
const MOST: u64 = 256 << 20;

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

/// Receives what is wrong with a state, with the path, where that does not keep its user from
/// working.
pub type StateReport<'a> = &'a dyn Fn(&str);

/// Locks the directory `dir` for as long as the file is open, and removes what a crash left there.
/// `user` names what may use it, for the error.
///
/// # Errors
/// If another process has locked it, or it cannot be read.
pub fn lock(dir: &Path, user: &str, report: StateReport<'_>) -> io::Result<File> {
    let path = dir.join("lock");
    // Not for writing: the file may be immutable.
    if is_no_file(&path) {
        set_aside(&path, NO_FILE, report);
    }
    let lock = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut options = File::options();
            // Who can open it can lock it.
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            options.write(true).create(true).truncate(false).open(&path)?
        }
        Err(error) => return Err(error),
    };
    lock_file(&lock).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(format!("another {user} uses it")),
        _ => error,
    })?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            let path = entry.path();
            if let Err(error) = fs::remove_file(&path) {
                report(&format!("{}: cannot remove what a crash left: {error}", path.display()));
            }
        }
    }
    Ok(lock)
}

/// Reads the state in the file `name` of `dir`. Returns the default state if the file is missing.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn read<T: DeserializeOwned + Default>(dir: &Path, name: &str) -> io::Result<T> {
    let path = dir.join(name);
    if is_no_file(&path) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, NO_FILE.to_owned()));
    }
    let damaged = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let read = || {
        let file = File::open(&path)?;
        if file.metadata()?.len() > MOST {
            return Err(damaged(format!("{name} has more than {MOST} bytes")));
        }
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| damaged(format!("{name} is damaged: {error}"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// As [`read`], but what is damaged is renamed and reported, and taken for a missing file. Returns
/// whether that was so, too.
///
/// # Errors
/// If it cannot be read for another reason: a process without rights, memory or descriptors says
/// nothing of the file.
pub fn read_or_set_aside<T: DeserializeOwned + Default>(
    dir: &Path,
    name: &str,
    report: StateReport<'_>,
) -> io::Result<(T, bool)> {
    match read(dir, name) {
        Ok(state) => Ok((state, false)),
        Err(error) if is_of_file(&error) => {
            set_aside(&dir.join(name), &error.to_string(), report);
            Ok((T::default(), true))
        }
        Err(error) => Err(error),
    }
}

const NO_FILE: &str = "it is not a file";

/// Whether something else is there. A FIFO would be waited for, and a device may have no end.
fn is_no_file(path: &Path) -> bool {
    is_not(path, Metadata::is_file)
}

/// Whether something is there that is not `wanted`, or a link that leads nowhere.
fn is_not(path: &Path, wanted: impl FnOnce(&Metadata) -> bool) -> bool {
    match fs::metadata(path) {
        Ok(metadata) => !wanted(&metadata),
        Err(_) => fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()),
    }
}

/// Whether the file is damaged, its disk, or not a file.
fn is_of_file(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory)
        || cfg!(unix) && error.raw_os_error() == Some(EIO)
}

/// Makes the directory `path`. What is there and is not a directory is renamed and reported.
///
/// # Errors
/// If it cannot be made.
pub fn make_directory(path: &Path, report: StateReport<'_>) -> io::Result<()> {
    if is_not(path, Metadata::is_dir) {
        set_aside(path, "it is not a directory", report);
    }
    fs::create_dir_all(path)
}

/// Renames what is damaged or in the way to a name with this end, and reports that. If that is
/// impossible, it stays, and is reported.
pub fn set_aside(path: &Path, why: &str, report: StateReport<'_>) {
    let free = |name: &PathBuf| fs::symlink_metadata(name).is_err();
    let names = (0..1000).map(|number| match number {
        0 => path.with_added_extension("damaged"),
        number => path.with_added_extension(format!("damaged{number}")),
    });
    let shown = path.display();
    let Some(name) = names.into_iter().find(free) else {
        return report(&format!("{shown}: {why}; remove it"));
    };
    match fs::rename(path, &name) {
        Ok(()) => report(&format!("{shown}: {why}; it is now {}", name.display())),
        Err(error) => report(&format!("{shown}: {why}; it cannot be renamed: {error}")),
    }
}

/// An entry of a state that may be damaged by itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum StateEntry<T> {
    /// It can be read.
    Valid(T),
    /// It cannot.
    Damaged(IgnoredAny),
}

impl<T> StateEntry<T> {
    /// The entry, if it can be read.
    pub fn valid(self) -> Option<T> {
        match self {
            StateEntry::Valid(entry) => Some(entry),
            StateEntry::Damaged(_) => None,
        }
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
        let lock = || super::lock(dir.path(), "test", &|_| ());
        let held = lock().unwrap();
        assert_eq!(lock().unwrap_err().to_string(), "another test uses it");
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

    /// A start that has no descriptors left must not lose the state.
    #[cfg(unix)]
    #[test]
    fn only_what_is_wrong_with_the_file_sets_it_aside() {
        use rustix::io::Errno;
        for (errno, is_its_own) in [
            (Errno::IO, true),
            (Errno::ISDIR, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOMEM, false),
            (Errno::ACCESS, false),
        ] {
            assert_eq!(is_of_file(&errno.into()), is_its_own, "{errno}");
        }
    }

    /// Opening a FIFO would wait, and a device may have no end.
    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_not_read() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["state", "lock"] {
            mknodat(CWD, at(name), FileType::Fifo, Mode::RUSR, 0).unwrap();
        }
        std::os::unix::fs::symlink("/dev/zero", at("endless")).unwrap();
        for name in ["state", "endless"] {
            let (state, is_damaged) =
                read_or_set_aside::<Vec<u32>>(dir.path(), name, &|_| {}).unwrap();
            assert_eq!((state, is_damaged), (vec![], true), "{name}");
        }
        drop(lock(dir.path(), "test", &|_| {}).unwrap());
        assert!(at("lock").is_file() && at("lock.damaged").exists());
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_nowhere_are_set_aside() {
        for leads_to in ["name", "/nowhere/at/all"] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("name");
            let link = || std::os::unix::fs::symlink(leads_to, &path).unwrap();
            link();
            let read = read_or_set_aside::<Vec<u32>>(dir.path(), "name", &|_| {});
            assert_eq!(read.unwrap(), (vec![], true), "{leads_to}");
            link();
            make_directory(&path, &|_| {}).unwrap();
            let lock_path = dir.path().join("lock");
            std::os::unix::fs::symlink(leads_to, &lock_path).unwrap();
            drop(lock(dir.path(), "test", &|_| {}).unwrap());
            assert!(path.is_dir() && lock_path.is_file(), "{leads_to}");
        }
    }

    #[test]
    fn a_state_that_is_too_large_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("state")).unwrap();
        file.set_len(1 << 40).unwrap();
        let read = read_or_set_aside::<Vec<u32>>(dir.path(), "state", &|_| {});
        assert_eq!(read.unwrap(), (vec![], true));
    }

    #[test]
    fn what_is_damaged_or_in_the_way_is_set_aside_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let reports = std::cell::RefCell::new(Vec::new());
        let report: StateReport<'_> = &|text| reports.borrow_mut().push(text.to_owned());
        let read = || read_or_set_aside::<Vec<u32>>(dir.path(), "state", report).unwrap();
        assert_eq!(read(), (vec![], false));
        save(dir.path(), "state", &[7]).unwrap();
        assert_eq!(read(), (vec![7], false));
        fs::write(at("state"), "[7").unwrap();
        assert_eq!(read(), (vec![], true));
        fs::create_dir(at("state")).unwrap();
        assert_eq!(read(), (vec![], true));
        save(dir.path(), "state", &[8]).unwrap();
        assert_eq!(read(), (vec![8], false));
        assert_eq!(fs::read_to_string(at("state.damaged")).unwrap(), "[7");
        assert!(at("state.damaged1").is_dir());

        fs::create_dir_all(at("lock/full")).unwrap();
        fs::create_dir_all(at("unfinished-1/full")).unwrap();
        drop(lock(dir.path(), "test", report).unwrap());
        assert!(at("lock").is_file() && at("lock.damaged/full").exists());
        fs::write(at("dir"), "").unwrap();
        make_directory(&at("dir"), report).unwrap();
        make_directory(&at("dir"), report).unwrap();
        assert!(at("dir").is_dir() && at("dir.damaged").is_file());
        let reports = reports.into_inner();
        assert_eq!(reports.len(), 5, "{reports:?}");
        for (report, name) in reports.iter().zip(["state", "state", "lock", "unfinished-1", "dir"])
        {
            assert!(report.starts_with(&*at(name).to_string_lossy()), "{report}");
        }
    }
}
