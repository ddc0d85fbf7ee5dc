//! What this machine has for mounts: the version of its kernel, and `fusermount3`, fuse3's setuid
//! program that mounts and unmounts for unprivileged users.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Major and minor version of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32);

impl Release {
    /// That of this machine. Zero if it is unknown.
    pub fn here() -> Release {
        Release::parse(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
    }

    fn parse(text: &str) -> Release {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        Release(next(), next())
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The names of the program.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];

/// Whether the program exists.
pub(super) fn has_helper() -> bool {
    name().is_some()
}

fn name() -> Option<&'static str> {
    let runs = |name: &&str| {
        let mut version = Command::new(name);
        version
            .arg("-V")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    };
    NAMES.into_iter().find(runs)
}

/// Whether it allows mounts for other users. True if its settings cannot be read: then a refusal
/// has another reason.
pub(super) fn lets_others_in() -> bool {
    match std::fs::read("/etc/fuse.conf") {
        Ok(settings) => has_user_allow_other(&settings),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Parses lines like `fusermount3`: without comments and surrounding white space (libfuse,
/// util/fusermount.c, `read_conf`).
fn has_user_allow_other(settings: &[u8]) -> bool {
    let mut lines = settings.split(|byte| *byte == b'\n');
    lines.any(|line| {
        line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii()
            == b"user_allow_other"
    })
}

/// Unmounts `point`. With `lazy`, also while it is in use.
///
/// # Errors
/// The message of the helper, on one line.
pub(super) fn unmount_by_helper(point: &Path, lazy: bool) -> Result<(), String> {
    let name = name().ok_or("unmounting as a user requires fusermount3, which is not installed")?;
    let mut command = Command::new(name);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(point).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{name} cannot be started: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        for (text, release) in [
            ("6.9.0", Release(6, 9)),
            ("6.18.44-fc", Release(6, 18)),
            ("7.0-rc1", Release(7, 0)),
            ("5.15.0-113", Release(5, 15)),
            ("", Release(0, 0)),
        ] {
            assert_eq!(Release::parse(text), release, "{text}");
        }
        assert!(
            Release(6, 18) > Release(6, 9)
                && Release(7, 0) > Release(6, 18)
                && Release(5, 15) < Release(6, 9)
        );
    }

    #[test]
    fn user_allow_other_must_be_a_line_of_its_own() {
        for set in ["user_allow_other", "mount_max = 10\n  user_allow_other # for all\n"] {
            assert!(has_user_allow_other(set.as_bytes()), "{set}");
        }
        for unset in ["", "#user_allow_other\n", "user_allow_other_too\n", "x user_allow_other"] {
            assert!(!has_user_allow_other(unset.as_bytes()), "{unset}");
        }
    }
}
