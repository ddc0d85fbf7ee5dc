//! Files that the user names for output: replaced only by complete ones.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::cli::shared::error::CliError;
use crate::cli::shared::signals;
use ociseek_format::printable::exact_size;
use ociseek_store::durable::{persist, without_path};

/// A file that gets its name when it is complete. Until then, a file of that name stays as it is.
/// Devices, pipes and the like are written to directly.
#[derive(Debug)]
pub(crate) struct Replacement {
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    Temporary(NamedTempFile),
    Direct(File),
}

impl Replacement {
    /// # Errors
    /// If the file could not be written.
    pub(crate) fn new(path: &Path) -> Result<Replacement, CliError> {
        let to = Replacement::open(path).map_err(CliError::write(path))?;
        Ok(to)
    }

    fn open(path: &Path) -> io::Result<Replacement> {
        // A link to a file remains a link.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match std::fs::metadata(&target) {
            Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(metadata) if !metadata.is_file() => {
                let file = File::options().write(true).open(&target)?;
                Ok(Replacement { path: target, to: To::Direct(file) })
            }
            Ok(metadata) => {
                // Refuses a file that may not be written, without a change to it.
                drop(File::options().append(true).open(&target)?);
                let to = temporary(&target)?;
                to.as_file().set_permissions(metadata.permissions())?;
                Ok(Replacement { path: target, to: To::Temporary(to) })
            }
            Err(_) => {
                let to = temporary(&target)?;
                Ok(Replacement { path: target, to: To::Temporary(to) })
            }
        }
    }

    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(&self, content: &[u8]) -> io::Result<()> {
        match &self.to {
            To::Temporary(file) => file.as_file().write_all(content),
            To::Direct(file) => (&*file).write_all(content),
        }
    }

    /// What a failure is called.
    pub(crate) fn failed(&self, source: io::Error) -> CliError {
        CliError::write(&self.path)(source)
    }

    /// Gives the file its name, which is returned.
    ///
    /// # Errors
    /// If it cannot be synced or renamed.
    pub(crate) fn complete(self) -> Result<PathBuf, CliError> {
        if let To::Temporary(file) = self.to {
            persist(file, &self.path, true).map_err(CliError::write(&self.path))?;
        }
        Ok(self.path)
    }

    /// The file, for one who writes to it later, too.
    ///
    /// # Errors
    /// If the process has too many open files.
    #[cfg(mounts)]
    pub(crate) fn handle(&self) -> Result<File, CliError> {
        match &self.to {
            To::Temporary(file) => file.as_file().try_clone(),
            To::Direct(file) => file.try_clone(),
        }
        .map_err(|error| self.failed(error))
    }
}

fn temporary(target: &Path) -> io::Result<NamedTempFile> {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As for any new file: the umask is applied.
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::metadata(dir)?;
    let made = tempfile::Builder::new().prefix(".unfinished-").permissions(mode).tempfile_in(dir);
    made.map_err(without_path)
}

/// The content of a file that the user names, of at most `most` bytes.
///
/// # Errors
/// If it cannot be read or is longer.
pub(crate) fn read_input(path: &Path, most: u64) -> Result<Vec<u8>, CliError> {
    let read = || {
        let mut content = Vec::new();
        File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut content)?;
        if content.len() as u64 > most {
            let text = format!("it is longer than {}", exact_size(most));
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(content)
    };
    // A pipe may have no writer.
    signals::ending(read).map_err(CliError::read(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_only_by_a_complete_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        let unfinished = Replacement::new(&path).unwrap();
        unfinished.write(b"half").unwrap();
        drop(unfinished);
        assert_eq!(read(), "old");
        let complete = Replacement::new(&path).unwrap();
        complete.write(b"new").unwrap();
        assert_eq!(read(), "old");
        complete.complete().unwrap();
        assert_eq!(read(), "new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(Replacement::new(dir.path()).is_err());
        assert!(Replacement::new(&dir.path().join("no/file")).is_err());
    }
}
