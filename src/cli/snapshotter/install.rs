//! `ociseek snapshotter install`: what a DaemonSet runs on each node.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use tempfile::NamedTempFile;

use super::config;
use crate::cli::shared::error::CliError;
use crate::cli::shared::terminal::complain;
use ociseek_store::durable::persist;

const INSTALL_LONG_ABOUT: &str = "\
Installs the snapshotter on a host whose root directory is DIR, and starts it there by systemd: the program as \
/opt/ociseek/bin/ociseek, the unit as /etc/systemd/system/ociseek-snapshotter.service, and the configuration as \
/etc/ociseek/snapshotter.toml.

It is for a DaemonSet, whose pods come and go: the processes that serve mounts must outlive them, so they run on the \
host. Run again, it replaces what differs and restarts the snapshotter; containers keep running. \
docs/kubernetes-lazy.md has the manifest, and the configuration of containerd, which it does not touch.";

const INSTALL_AFTER_HELP: &str = "\
Examples:
  ociseek snapshotter install --config /config/snapshotter.toml /host

Remove it from the host:
  systemctl disable --now ociseek-snapshotter
  rm -r /opt/ociseek /etc/ociseek/snapshotter.toml /etc/systemd/system/ociseek-snapshotter.service

Exit status: 0 success, 1 failure, 2 usage error.";

/// The unit of the deb package.
const UNIT: &str = include_str!("../../../packaging/systemd/ociseek-snapshotter.service");
const NAME: &str = "ociseek-snapshotter";
/// Where the deb package has the program.
const PACKAGED: &str = "/usr/bin/ociseek";
/// Where it is installed. Some hosts cannot write to /usr.
const PROGRAM: &str = "/opt/ociseek/bin/ociseek";
const CONFIG: &str = "/etc/ociseek/snapshotter.toml";

/// Install the snapshotter on a host, from a container
#[derive(Debug, Args)]
#[command(long_about = INSTALL_LONG_ABOUT, after_help = INSTALL_AFTER_HELP)]
pub(crate) struct InstallArgs {
    /// The host's root directory
    #[arg(value_name = "DIR")]
    pub host: PathBuf,

    /// The configuration to install [default: the host's, or one of comments only]
    #[arg(long, value_name = "FILE", env = "OCISEEK_SNAPSHOTTER_CONFIG")]
    pub config: Option<PathBuf>,
}

pub(super) fn run(args: InstallArgs) -> Result<(), CliError> {
    let InstallArgs { host, config } = args;
    let configuration = configuration(&host, config.as_deref())?;
    let program = fs::read("/proc/self/exe").map_err(CliError::Start)?;
    let unit = UNIT.replace(PACKAGED, PROGRAM);
    let mut changed = put(&host, PROGRAM, &program, 0o755)?;
    if let Some(configuration) = configuration {
        changed |= put(&host, CONFIG, configuration.as_bytes(), 0o644)?;
    }
    changed |= put(&host, &format!("/etc/systemd/system/{NAME}.service"), unit.as_bytes(), 0o644)?;
    // The host's systemctl, which talks to the host's systemd.
    let enter = || {
        rustix::process::chroot(&host)?;
        std::env::set_current_dir("/")
    };
    enter().map_err(|source| CliError::Read { path: host.clone(), source })?;
    let last: &[&str] = if changed { &["restart", NAME] } else { &["start", NAME] };
    for arguments in [&["daemon-reload"][..], &["enable", NAME], last] {
        systemctl(arguments)?;
    }
    complain(if changed { "installed and started" } else { "already installed" });
    Ok(())
}

/// The text of the configuration, if it should be written. An invalid one would keep the
/// snapshotter from starting.
fn configuration(host: &Path, given: Option<&Path>) -> Result<Option<String>, CliError> {
    match given {
        Some(path) => {
            config::or_defaults(Some(path))?;
            let text = fs::read_to_string(path);
            text.map(Some).map_err(|source| CliError::Read { path: path.to_owned(), source })
        }
        None => Ok((!below(host, CONFIG).exists()).then(config::printed)),
    }
}

/// An absolute path of the host.
fn below(host: &Path, path: &str) -> PathBuf {
    host.join(path.trim_start_matches('/'))
}

/// Writes a file of the host. Returns whether it had another content.
fn put(host: &Path, path: &str, content: &[u8], mode: u32) -> Result<bool, CliError> {
    let path = below(host, path);
    let write = || {
        if fs::read(&path).is_ok_and(|found| found == content) {
            return Ok(false);
        }
        let dir = path.parent().unwrap_or(host);
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let mut file = NamedTempFile::new_in(dir)?;
        file.write_all(content)?;
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
        // A program that runs cannot be written to, but replaced.
        persist(file, &path, true)?;
        Ok(true)
    };
    write().map_err(|source| CliError::Write { path: path.clone(), source })
}

fn systemctl(arguments: &[&str]) -> Result<(), CliError> {
    let failed = |why: String| {
        CliError::Start(io::Error::other(format!("systemctl {}: {why}", arguments.join(" "))))
    };
    let output = Command::new("systemctl")
        .args(arguments)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let host = tempfile::tempdir().unwrap();
        let put = |content: &str| put(host.path(), "/opt/a/b", content.as_bytes(), 0o755).unwrap();
        assert_eq!([put("one"), put("one"), put("two")], [true, false, true]);
        let file = host.path().join("opt/a/b");
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn the_hosts_configuration_stays_unless_another_one_is_given() {
        let host = tempfile::tempdir().unwrap();
        assert!(configuration(host.path(), None).unwrap().unwrap().contains("# socket = "));
        put(host.path(), CONFIG, b"", 0o644).unwrap();
        assert_eq!(configuration(host.path(), None).unwrap(), None);
        let given = host.path().join("given");
        fs::write(&given, "nonsense = 1\n").unwrap();
        assert!(configuration(host.path(), Some(&given)).is_err());
        fs::write(&given, "memory = \"1GiB\"\n").unwrap();
        assert_eq!(
            configuration(host.path(), Some(&given)).unwrap().unwrap(),
            "memory = \"1GiB\"\n"
        );
        assert!(UNIT.contains(&format!("ExecStart={PACKAGED} snapshotter --config {CONFIG}\n")));
    }
}
