//! An image's files as a mounted file system, by FUSE.
//!
//! [`Mounted`] is the whole of it: made, the files are there; dropped, they are gone. Root mounts by the system call; other users
//! by `fusermount3`. No C library is needed for either.

use std::io;
use std::path::PathBuf;

pub use mounts::{FS_TYPE, MountInfo, mounted_at, mounts};
pub(crate) use point::without_following;
pub use point::{Existing, prepare, take_down};
pub use session::{FuseOptions, Mounted};

mod attr;
mod filesystem;
mod helper;
mod mounts;
mod point;
mod session;

/// Why a file system is not mounted, or not unmounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum MountError {
    #[error("{}: there is no such directory", .0.display())]
    Missing(PathBuf),
    #[error("{}: this is no directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{}: the directory is not empty, and mounting would hide what is in it", .0.display())]
    NotEmpty(PathBuf),
    #[error("{}: the process behind the file system that is mounted here is gone", point.display())]
    Stale { point: PathBuf, ours: bool },
    #[error("{}: {source_name} is mounted here by ociseek already", point.display())]
    Occupied { point: PathBuf, source_name: String },
    #[error("{}: the file system is in use", .0.display())]
    Busy(PathBuf),
    #[error("{}: cannot be mounted on", point.display())]
    Inspect { point: PathBuf, source: io::Error },
    #[error("/dev/fuse is not there")]
    NoDevice(#[source] io::Error),
    #[error("/dev/fuse may not be opened")]
    DeviceRefused(#[source] io::Error),
    #[error("only root may mount without fusermount3, which is not installed")]
    NoHelper,
    #[error("fusermount3 does not let other users look into this mount")]
    AllowOther,
    #[error("only root may mount with set-user-ID programs or devices")]
    RootOnly,
    #[error("{}: the kernel refuses the mount", point.display())]
    Refused { point: PathBuf, source: io::Error },
    #[error("{}: the file system cannot be started", point.display())]
    Session { point: PathBuf, source: io::Error },
    #[error("{}: cannot be unmounted", point.display())]
    Unmount { point: PathBuf, source: io::Error },
}
