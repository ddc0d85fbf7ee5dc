//! The errors of mounts, with hints.

use ociseek_ops::bundle::BundleError;
use ociseek_ops::trace::OciRuntimeError;
use ociseek_rootfs::fuse::MountError;

/// Why mounting an image or running its container failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LazyError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Runtime(#[from] OciRuntimeError),
}

impl LazyError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            LazyError::Mount(error) => mount_hint(error),
            LazyError::Bundle(error) => bundle_hint(error),
            LazyError::Runtime(OciRuntimeError::Missing(_)) => {
                Some("install an OCI runtime (Debian: apt install runc), or select one with --runtime PROGRAM".into())
            }
            LazyError::Runtime(_) => None,
        }
    }
}

fn mount_hint(error: &MountError) -> Option<String> {
    Some(match error {
        MountError::Missing(dir) => format!("create it with mkdir {}", dir.display()),
        MountError::NotADirectory(_) | MountError::NotEmpty(_) => "use an empty directory".into(),
        MountError::Stale { point, ours: true } => {
            format!("clear it with umount -l {0} (as a user: fusermount3 -uz {0}), or use --replace", point.display())
        }
        MountError::Stale { point, ours: false } => {
            format!(
                "it is not ociseek's; clear it with umount -l {0} (as a user: fusermount3 -uz {0})",
                point.display()
            )
        }
        MountError::Occupied { point, .. } => {
            format!("unmount it with umount {0} (as a user: fusermount3 -u {0}), or use --replace", point.display())
        }
        MountError::Busy(point) => format!("fuser -vm {} lists the processes using it", point.display()),
        MountError::NoDevice(_) => {
            "load the kernel module with modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN".into()
        }
        MountError::DeviceRefused(_) => {
            "run as root, or allow users to open it: chmod 666 /dev/fuse (the default on most systems)".into()
        }
        MountError::NoHelper => "run as root, or install it (Debian: apt install fuse3)".into(),
        MountError::AllowOther => "add the line user_allow_other to /etc/fuse.conf, or omit --allow-other".into(),
        MountError::RootOnly => "run as root, or omit --suid and --dev".into(),
        _ => return None,
    })
}

fn bundle_hint(error: &BundleError) -> Option<String> {
    match error {
        BundleError::NotRoot => Some("run as root; ociseek mount also works for other users".into()),
        BundleError::Exists(dir) => Some(format!("remove it with ociseek bundle --rm {}", dir.display())),
        BundleError::NotEmpty(_) => Some("use an empty directory, or one that does not exist yet".into()),
        BundleError::Foreign { .. } | BundleError::Replaceable { .. } => Some(
            "root must own DIR and its parent directories, and nobody else may write to the parents unless they are \
             sticky like /tmp: use /run/NAME, for example"
                .into(),
        ),
        BundleError::NoCommand => Some("give a command after --".into()),
        BundleError::InUse { pid, .. } => {
            Some(format!("end its container first (runc list; runc kill), or kill {pid}"))
        }
        BundleError::Held(dir) => {
            Some(format!("its files are still in use: fuser -vm {} lists the processes", dir.display()))
        }
        BundleError::Overlay { .. } => Some(
            "see the kernel log (dmesg) for the reason; overlays cannot be nested, so use a DIR on a disk or a tmpfs"
                .into(),
        ),
        BundleError::Mount(error) => mount_hint(error),
        _ => None,
    }
}
