//! Files of a host, whose root directory may be elsewhere.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::cli::shared::error::CliError;
use ociseek_store::durable::{persist, without_path};

/// An absolute path of the host.
pub(super) fn below(host: &Path, path: &str) -> PathBuf {
    host.join(path.trim_start_matches('/'))
}

/// Writes a file of the host. Returns whether it had another content.
pub(super) fn put(host: &Path, path: &str, content: &[u8], mode: u32) -> Result<bool, CliError> {
    let path = below(host, path);
    let write = || {
        if fs::read(&path).is_ok_and(|old| old == content) {
            return Ok(false);
        }
        let dir = path.parent().unwrap_or(host);
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let mut file = NamedTempFile::new_in(dir).map_err(without_path)?;
        file.write_all(content)?;
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
        // A program that runs cannot be written to, but replaced.
        persist(file, &path, true)?;
        Ok(true)
    };
    write().map_err(CliError::write(&path))
}

/// Removes a file that may be missing.
pub(super) fn remove(path: &Path) -> Result<(), CliError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(CliError::write(path)(source))
        }
        _ => Ok(()),
    }
}
