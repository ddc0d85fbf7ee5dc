//! containerd's part of `snapshotter install` and `uninstall`.

use std::fs;
use std::io;
use std::path::Path;

use super::host::{below, put, remove};
use crate::cli::shared::error::CliError;

/// The file for containerd 2.1 and later. It has the snapshotter's default paths.
const FILE: &str = include_str!("../../../packaging/containerd/ociseek.toml");
const SOCKET: &str = "/run/ociseek/snapshotter.sock";
const ROOT: &str = "/var/lib/ociseek/snapshotter";
/// What each version of the file begins with.
const HEAD: &str = "# containerd 2.1 and later: ociseek snapshotter";

const MAIN: &str = "/etc/containerd/config.toml";
const DIR: &str = "/etc/containerd/conf.d";
const PLACE: &str = "/etc/containerd/conf.d/ociseek.toml";
/// Where a file of another's is kept that was there.
const KEPT: &str = "/etc/containerd/conf.d/ociseek.toml.bak";

/// Checks that containerd would read the file.
///
/// # Errors
/// If its main file does not import it.
pub(super) fn check(host: &Path) -> Result<(), CliError> {
    let path = below(host, MAIN);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|source| CliError::Read { path: path.clone(), source })?,
    };
    if imports(&text) {
        return Ok(());
    }
    let why = format!(
        "containerd would not read {PLACE}: add imports = [\"{DIR}/*.toml\"] to {MAIN} (nothing was changed)"
    );
    Err(CliError::Read { path, source: io::Error::other(why) })
}

/// Whether this main file imports the file.
fn imports(main: &str) -> bool {
    let Ok(main) = main.parse::<toml::Table>() else { return false };
    let imported = main.get("imports").and_then(toml::Value::as_array).into_iter().flatten();
    imported.filter_map(toml::Value::as_str).any(|pattern| {
        let pattern = match pattern.strip_prefix('/') {
            Some(_) => pattern.to_owned(),
            None => format!("/etc/containerd/{pattern}"),
        };
        pattern == PLACE
            || pattern.strip_prefix(DIR).is_some_and(|rest| ["/*.toml", "/*"].contains(&rest))
    })
}

/// Writes the file for a snapshotter with these paths. Keeps a file of another's. Returns whether
/// containerd has another configuration now.
///
/// # Errors
/// If it cannot be written.
pub(super) fn configure(host: &Path, socket: &Path, root: &Path) -> Result<bool, CliError> {
    let path = below(host, PLACE);
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    let file = FILE.replace(SOCKET, &shown(socket)).replace(ROOT, &shown(root));
    let others = fs::read_to_string(&path).ok().filter(|found| !found.starts_with(HEAD));
    if others.is_some() {
        let kept = below(host, KEPT);
        fs::rename(&path, &kept).map_err(|source| CliError::Write { path: kept, source })?;
    }
    put(host, PLACE, file.as_bytes(), 0o644)
}

/// Gives containerd its configuration back. Returns whether it had another one.
///
/// # Errors
/// If it cannot be written, or if containerd's main file names the snapshotter.
pub(super) fn restore(host: &Path) -> Result<bool, CliError> {
    let main = below(host, MAIN);
    if fs::read_to_string(&main).is_ok_and(|text| text.contains("proxy_plugins.ociseek")) {
        let why = "it names the snapshotter: remove those lines and restart containerd first, since \
                   no pod could start otherwise";
        return Err(CliError::Read { path: main, source: io::Error::other(why) });
    }
    let path = below(host, PLACE);
    if !fs::read_to_string(&path).is_ok_and(|found| found.starts_with(HEAD)) {
        return Ok(false);
    }
    let kept = below(host, KEPT);
    if kept.exists() {
        fs::rename(&kept, &path).map_err(|source| CliError::Write { path, source })?;
    } else {
        remove(&path)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_file_must_import_it() {
        for text in [
            "imports = [\"/etc/containerd/conf.d/*.toml\"]\n",
            "version = 3\nimports = [\"/a.toml\", \"conf.d/*.toml\"]\n",
            "imports = [\"/etc/containerd/conf.d/ociseek.toml\"]\n",
        ] {
            assert!(imports(text), "{text}");
        }
        for text in ["", "nonsense", "imports = []\n", "imports = [\"/etc/other/*.toml\"]\n"] {
            assert!(!imports(text), "{text}");
        }
        let host = tempfile::tempdir().unwrap();
        assert!(check(host.path()).is_err());
    }

    #[test]
    fn a_file_of_anothers_is_kept_and_restored() {
        let host = tempfile::tempdir().unwrap();
        let configure = || configure(host.path(), Path::new("/s"), Path::new("/r")).unwrap();
        let read = |path: &str| fs::read_to_string(below(host.path(), path)).ok();
        let another = "# mine\n".to_owned();
        for before in [None, Some(&another)] {
            if let Some(before) = before {
                put(host.path(), PLACE, before.as_bytes(), 0o644).unwrap();
            }
            assert!(configure());
            assert!(!configure(), "the same again");
            let file = read(PLACE).unwrap();
            assert!(file.contains("address = \"/s\"") && file.contains("root = \"/r\""), "{file}");
            assert_eq!(read(KEPT).as_ref(), before);
            assert!(restore(host.path()).unwrap());
            assert_eq!((read(PLACE).as_ref(), read(KEPT)), (before, None));
            assert!(!restore(host.path()).unwrap());
        }
        put(host.path(), MAIN, b"[proxy_plugins.ociseek]\n", 0o644).unwrap();
        assert!(restore(host.path()).is_err());
    }
}
