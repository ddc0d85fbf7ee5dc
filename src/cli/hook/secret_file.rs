//! Reads the files with the secrets of a service, and checks who else can read them.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, fstatvfs};

use crate::cli::shared::error::{CliError, HookError};
use ociseek_hook::secret::Secrets;

/// Where container runtimes mount secrets. They decide who else in the container may read them.
const MOUNTED: [&str; 2] = ["/run/secrets", "/var/run/secrets"];

/// The secrets in a file.
///
/// The file's group may read it. Everyone may read it only if the user cannot choose its mode:
/// below [`MOUNTED`], and on a read-only file system, as used by Kubernetes.
///
/// # Errors
/// If it cannot be read, others can read or write it, or it contains no secret.
pub(super) fn secrets(path: &Path) -> Result<Secrets, CliError> {
    let unreadable = |source| CliError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
    if let Some(what) = open_to_others(mode, || is_mounted(path, &file)) {
        return Err(HookError::OpenSecret { path: path.to_owned(), mode, what }.into());
    }
    let text = io::read_to_string(io::Read::take(file, 64 << 10)).map_err(unreadable)?;
    Ok(Secrets::parse(&text).map_err(|source| HookError::SecretFile { path: path.to_owned(), source })?)
}

/// The access that a file's mode wrongly gives to others.
fn open_to_others(mode: u32, is_mounted: impl Fn() -> bool) -> Option<&'static str> {
    match mode {
        mode if mode & 0o022 != 0 => Some("write"),
        mode if mode & 0o004 != 0 && !is_mounted() => Some("read"),
        _ => None,
    }
}

fn is_mounted(path: &Path, file: &File) -> bool {
    let is_read_only = fstatvfs(file).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::RDONLY));
    // The path may contain symbolic links.
    is_read_only || path.canonicalize().is_ok_and(|path| MOUNTED.iter().any(|mounted| path.starts_with(mounted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_files_that_others_can_read_are_refused() {
        for (mode, elsewhere, mounted) in [
            (0o400, None, None),
            (0o600, None, None),
            (0o440, None, None),
            (0o640, None, None),
            (0o444, Some("read"), None),
            (0o644, Some("read"), None),
            (0o604, Some("read"), None),
            (0o660, Some("write"), Some("write")),
            (0o666, Some("write"), Some("write")),
        ] {
            assert_eq!(open_to_others(mode, || false), elsewhere, "{mode:o}");
            assert_eq!(open_to_others(mode, || true), mounted, "{mode:o}");
        }
    }
}
