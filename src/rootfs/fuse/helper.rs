//! `fusermount3`, the setuid program of fuse3 that mounts and unmounts for users who may not.

use std::path::Path;
use std::process::{Command, Stdio};

/// The names that it has.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];

/// Whether there is one.
pub fn is_there() -> bool {
    name().is_some()
}

fn name() -> Option<&'static str> {
    let runs = |name: &&str| {
        let mut version = Command::new(name);
        version.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    NAMES.into_iter().find(runs)
}

/// Unmounts `point`; `lazy`: even while it is in use.
///
/// # Errors
/// What the helper said, in one line.
pub fn unmount(point: &Path, lazy: bool) -> Result<(), String> {
    let name = name().ok_or("only root may unmount it without fusermount3, which is not installed")?;
    let mut command = Command::new(name);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(point).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{name} cannot be started: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
