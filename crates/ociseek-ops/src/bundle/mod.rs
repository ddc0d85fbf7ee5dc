//! An OCI runtime bundle for an image that was not pulled: its root file system is a writable
//! overlay over a lazy mount.
//!
//! In the bundle's directory:
//!
//! | name | |
//! |---|---|
//! | `config.json` | for the runtime |
//! | `rootfs` | the overlay is mounted here |
//! | `image` | the image's files are mounted here, read-only |
//! | `upper`, `work` | what the container writes |
//! | `ociseek.json` | tells a bundle of ours; locked as long as the process behind the mount lives |

use std::io;
use std::path::{Path, PathBuf};

use ociseek_format::image::json::JsonError;
use ociseek_format::printable::exact_size;
use ociseek_rootfs::content::ReadError;
use ociseek_rootfs::fuse::MountError;

pub use directory::{Bundle, remove};
pub use spec::{ACCOUNTS, ImageConfig, RunOptions, plan};
pub use user::UserError;

mod directory;
mod spec;
mod user;

const CONFIG: &str = "config.json";
const ROOTFS: &str = "rootfs";
const IMAGE: &str = "image";
const UPPER: &str = "upper";
const WORK: &str = "work";
const MARK: &str = "ociseek.json";

/// Why creating or removing a bundle failed.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("creating a bundle requires root, for its mounts")]
    NotRoot,
    #[error("{}: already a bundle", .0.display())]
    Exists(PathBuf),
    #[error("{}: the directory is not empty", .0.display())]
    NotEmpty(PathBuf),
    #[error("{}: not an ociseek bundle", .0.display())]
    NotABundle(PathBuf),
    #[error("{}: the directory belongs to user {owner}, who could run the image's set-user-ID programs", dir.display())]
    Foreign { dir: PathBuf, owner: u32 },
    #[error("{}: other users can replace the directory, since they can write to {}", dir.display(), above.display())]
    Replaceable { dir: PathBuf, above: PathBuf },
    #[error("{}: process {pid} is still running in it", dir.display())]
    InUse { dir: PathBuf, pid: u32 },
    #[error("{}: the process that serves its mount does not exit", .0.display())]
    Held(PathBuf),
    #[error("the image's config is not valid")]
    Config(#[source] JsonError),
    #[error("the image is for {0:?}, and only Linux containers can be run")]
    NotLinux(String),
    #[error("the image does not say what to run")]
    NoCommand,
    #[error("cannot determine the image's user {text:?}")]
    User { text: String, source: UserError },
    #[error("cannot read {path} of the image")]
    Accounts { path: &'static str, source: ReadError },
    #[error("{path} of the image has {size} bytes; the limit is {}", exact_size(*limit))]
    AccountsTooLarge { path: &'static str, size: u64, limit: u64 },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("{}: cannot mount an overlay", point.display())]
    Overlay { point: PathBuf, source: io::Error },
    #[error("{}: cannot create", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("{}: cannot be removed", path.display())]
    Remove { path: PathBuf, source: io::Error },
}

fn made(path: &Path) -> impl FnOnce(io::Error) -> BundleError + '_ {
    |source| BundleError::Make { path: path.to_owned(), source }
}
