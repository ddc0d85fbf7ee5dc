//! What can go wrong with mounts alone, and what helps.

use crate::ops::bundle::BundleError;
use crate::ops::trace::RuntimeError;
use crate::rootfs::fuse::MountError;

/// Why an image is not mounted, or its container did not run.
#[derive(Debug, thiserror::Error)]
pub enum LazyError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl LazyError {
    pub fn hint(&self) -> Option<String> {
        match self {
            LazyError::Mount(error) => mount_hint(error),
            LazyError::Bundle(error) => bundle_hint(error),
            LazyError::Runtime(RuntimeError::Missing(_)) => {
                Some("install an OCI runtime (Debian: apt install runc), or name one, --runtime PROGRAM".into())
            }
            LazyError::Runtime(_) => None,
        }
    }
}

fn mount_hint(error: &MountError) -> Option<String> {
    Some(match error {
        MountError::Missing(dir) => format!("make it first: mkdir {}", dir.display()),
        MountError::NotADirectory(_) | MountError::NotEmpty(_) => "mount on an empty directory".into(),
        MountError::Stale { point, ours: true } => {
            format!("umount -l {0} (as a user: fusermount3 -uz {0}) clears it, and so does --replace", point.display())
        }
        MountError::Stale { point, ours: false } => {
            format!("it is not ociseek's; umount -l {0} (as a user: fusermount3 -uz {0}) clears it", point.display())
        }
        MountError::Occupied { point, .. } => {
            format!(
                "umount {0} (as a user: fusermount3 -u {0}) ends it, and --replace takes its place",
                point.display()
            )
        }
        MountError::Busy(point) => format!("fuser -vm {} lists who uses it", point.display()),
        MountError::NoDevice(_) => {
            "load the kernel's module, modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN".into()
        }
        MountError::DeviceRefused(_) => {
            "run as root, or let users open it: chmod 666 /dev/fuse, as udev does on most systems".into()
        }
        MountError::NoHelper => "run as root, or install it (Debian: apt install fuse3)".into(),
        MountError::AllowOther => "add the line user_allow_other to /etc/fuse.conf, or leave out --allow-other".into(),
        MountError::RootOnly => "run as root, or leave out --suid and --dev".into(),
        MountError::Inspect { .. }
        | MountError::Refused { .. }
        | MountError::Session { .. }
        | MountError::Unmount { .. } => return None,
    })
}

fn bundle_hint(error: &BundleError) -> Option<String> {
    match error {
        BundleError::NotRoot => Some("run it as root; ociseek mount works for other users too".into()),
        BundleError::Exists(dir) => Some(format!("ociseek bundle --rm {} takes it down", dir.display())),
        BundleError::NotEmpty(_) => Some("give an empty directory, or one that is not there yet".into()),
        BundleError::Foreign { .. } | BundleError::Replaceable { .. } => Some(
            "DIR and the directories above it must belong to root, and nobody else may write to those above unless they \
             are sticky as /tmp is: /run/NAME will do"
                .into(),
        ),
        BundleError::NoCommand => Some("give a command after --".into()),
        BundleError::InUse { pid, .. } => {
            Some(format!("end its container first (runc list; runc kill), or kill {pid}"))
        }
        BundleError::Held(dir) => Some(format!("something still uses its files: fuser -vm {}", dir.display())),
        BundleError::Overlay { .. } => Some(
            "the kernel's log says why (dmesg); an overlay cannot lie on another, choose a DIR on a disk or a tmpfs"
                .into(),
        ),
        BundleError::Mount(error) => mount_hint(error),
        _ => None,
    }
}
