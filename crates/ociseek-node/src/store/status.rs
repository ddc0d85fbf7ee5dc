//! What a store serves, read from its directory and the kernel, whether or not it runs.

use std::io;
use std::path::{Path, PathBuf};

use super::rows::{UsedImage, used_images};
use super::{NAMES, ServedNames};
use ociseek_rootfs::fuse::{FS_TYPE, answering, mounted_at};
use ociseek_store::state_file;

/// What a store serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptStore {
    /// Where it was mounted last.
    pub point: Option<PathBuf>,
    /// Whether it is mounted there.
    pub is_mounted: bool,
    /// Whether the mount answers.
    pub answers: bool,
    /// The images of which runtimes use layers, by name.
    pub images: Vec<UsedImage>,
}

/// What the store with its state in `root` serves. Blocks.
///
/// # Errors
/// If its state or the kernel's list of mounts cannot be read, or its state is damaged.
pub fn kept_store(root: &Path) -> io::Result<KeptStore> {
    let served: ServedNames = state_file::read(root, NAMES)?;
    let images = used_images(root)?;
    let Some((point, device)) = served.mount else {
        return Ok(KeptStore { images, ..KeptStore::default() });
    };
    let mount = mounted_at(&point)?;
    let is_mounted = mount.is_some_and(|mount| mount.fs_type == FS_TYPE && mount.device == device);
    let answers = is_mounted && !answering([&point].into_iter()).is_empty();
    Ok(KeptStore { point: Some(point), is_mounted, answers, images })
}
