//! Files that survive a power failure: their content is synced before they get their names, and
//! the directory that has the name afterwards.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use tempfile::NamedTempFile;

/// Gives a complete file its name. An existing file is only replaced if `replaces` is set.
///
/// # Errors
/// If it cannot be synced or renamed. If only the directory cannot be synced, the file has its name
/// nevertheless.
pub fn persist(file: NamedTempFile, path: &Path, replaces: bool) -> io::Result<()> {
    sync(file.as_file())?;
    if replaces { file.persist(path) } else { file.persist_noclobber(path) }?;
    sync_name(path)
}

/// The prefix of the names of files that a crash may leave of [`replace`].
pub(crate) const UNFINISHED: &str = "unfinished-";

/// Replaces the file `path`, or creates it. After a crash it has all of `content`, or is as it was
/// before.
///
/// # Errors
/// If it cannot be written.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(dir);
    let mut file = file.map_err(without_path)?;
    file.write_all(content)?;
    persist(file, path, true)
}

/// An error of `tempfile` without the name of the temporary file, which nobody typed.
pub fn without_path(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((why, _)) => io::Error::new(error.kind(), why.to_owned()),
        None => error,
    }
}

/// Creates a directory and its parents as far as they are missing.
///
/// # Errors
/// If one cannot be created or synced.
pub(crate) fn create_directories(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    fs::create_dir_all(path)?;
    missing.into_iter().rev().try_for_each(sync_name)
}

/// Syncs the directory that contains `path`, after that was created or renamed. A directory that
/// may not be read cannot be opened for that, and is left alone.
///
/// # Errors
/// If it cannot be opened or synced.
pub fn sync_name(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(parent.unwrap_or(Path::new("."))) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        directory => sync(&directory?),
    }
}

/// Syncs a file or directory. Those that cannot be synced, such as pipes, are left alone (fsync(2),
/// EINVAL).
///
/// # Errors
/// If its content cannot be written to the disk.
pub fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_temporary_file_is_the_systems() {
        let dir = tempfile::tempdir().unwrap();
        let error = NamedTempFile::new_in(dir.path().join("none")).unwrap_err();
        let system = io::Error::from_raw_os_error(2);
        assert_eq!(without_path(error).to_string(), system.to_string());
    }

    #[test]
    fn pipes_need_no_sync() {
        let (_reader, writer) = io::pipe().unwrap();
        sync(&File::from(std::os::fd::OwnedFd::from(writer))).unwrap();
    }
}
