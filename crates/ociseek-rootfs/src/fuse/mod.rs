//! An image's files as a mounted FUSE file system.
//!
//! [`FuseMount`] represents the mount: creating it mounts the files, dropping it unmounts them.
//! Root mounts with the system call, other users with `fusermount3`. Neither needs a C library.

use std::io;
use std::path::PathBuf;

pub use device::open_device;
pub use handover::{KeptDevice, can_take_over, tree_identity};
pub use host::Release;
pub use keeper::{HeldMount, LeftMount, keep_devices};
pub use keeping::{DeviceKeeper, KEEPER, keeper_of};
pub use look::{MountLook, answering};
pub use manager::notify_manager;
pub use memory::{process_memory, release_freed_memory};
pub use mounts::{
    ExistingMount, FS_TYPE, MountInfo, mounted_at, mounts, prepare, take_down, without_following,
};
pub use process::ProcessId;
pub use session::{FuseMount, FuseOptions};

mod attr;
mod device;
mod filesystem;
mod fill;
mod handover;
mod host;
mod keeper;
mod keeping;
mod look;
mod manager;
mod memory;
mod mounts;
mod process;
mod session;
mod stand_in;
pub mod store;

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{}: no such directory", .0.display())]
    Missing(PathBuf),
    #[error("{}: not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{}: the directory is not empty, and mounting would hide its files", .0.display())]
    NotEmpty(PathBuf),
    #[error("{}: the process serving the file system mounted here is gone", point.display())]
    Stale { point: PathBuf, ours: bool },
    #[error("{}: ociseek has already mounted {source_name} here", point.display())]
    Occupied { point: PathBuf, source_name: String },
    #[error("{}: the file system is in use", .0.display())]
    Busy(PathBuf),
    #[error("{}: cannot mount here", point.display())]
    Inspect { point: PathBuf, source: io::Error },
    #[error("/dev/fuse does not exist")]
    NoDevice(#[source] io::Error),
    #[error("no permission to open /dev/fuse")]
    DeviceRefused(#[source] io::Error),
    #[error("mounting as a user requires fusermount3, which is not installed")]
    NoHelper,
    #[error("fusermount3 does not allow other users to access this mount")]
    AllowOther,
    #[error("only root can mount with set-user-ID programs or devices")]
    RootOnly,
    #[error("{}: the kernel refused the mount", point.display())]
    Refused { point: PathBuf, source: io::Error },
    #[error("{}: cannot start the file system", point.display())]
    Session { point: PathBuf, source: io::Error },
    #[error("{}: cannot unmount", point.display())]
    Unmount { point: PathBuf, source: io::Error },
}
