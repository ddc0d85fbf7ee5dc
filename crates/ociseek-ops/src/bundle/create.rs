//! Creates bundles.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::mount::UnmountFlags;
use serde::Serialize;
use serde_json::Value;

use super::image::ImageConfig;
use super::overlay::mount_overlay;
use super::remove::{BundleMarker, clear, unmount, user_of};
use super::spec::{self, RunOptions, SpecInputs};
use super::{BundleError, CONFIG, IMAGE, MARK, ROOTFS, UPPER, WORK, directory, made, user};
use crate::TOOL_IDENTIFIER;
use ociseek_format::digest::Digest;
use ociseek_format::tree::Tree;
use ociseek_rootfs::content::Content;
use ociseek_rootfs::fuse::MountError;

/// The size limit of `/etc/passwd` and `/etc/group`, in bytes.
const MAX_ACCOUNTS: u64 = 4 << 20;

/// The image's lists of users and groups, which [`plan`] reads.
pub const ACCOUNTS: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// The bundle's config.json, from the image's config, `options`, and the image's own list of users,
/// which is read from its content.
///
/// # Errors
/// If the config is not valid, there is no command to run, or the user is unknown.
pub async fn plan(
    manifest: &Digest,
    config: &[u8],
    tree: &Tree,
    content: &Content,
    options: &RunOptions,
) -> Result<Value, BundleError> {
    let image = ImageConfig::parse(config).map_err(BundleError::Config)?;
    if !image.os.is_empty() && !image.os.eq_ignore_ascii_case("linux") {
        return Err(BundleError::NotLinux(image.os.chars().take(80).collect()));
    }
    if spec::arguments(&image, options).is_empty() {
        return Err(BundleError::NoCommand);
    }
    let [passwd, group] = ACCOUNTS.map(|path| accounts(tree, content, path));
    let (passwd, group) = tokio::try_join!(passwd, group)?;
    let text = &image.config.user;
    let user = user::resolve(text, &passwd, &group);
    let user = user.map_err(|source| BundleError::User { text: text.chars().take(80).collect(), source })?;
    let around = SpecInputs {
        user,
        // docker also names containers by twelve digits.
        hostname: manifest.hex().chars().take(12).collect(),
        unified_cgroups: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
    };
    Ok(spec::config_json(&image, options, &around))
}

/// One of the image's two lists. Empty if it has none.
async fn accounts(tree: &Tree, content: &Content, path: &'static str) -> Result<Vec<u8>, BundleError> {
    let Ok(id) = tree.resolve(path.as_bytes(), true) else { return Ok(Vec::new()) };
    let file = &tree.node(id).kind;
    if file.size() > MAX_ACCOUNTS {
        return Err(BundleError::AccountsTooLarge { path, size: file.size(), limit: MAX_ACCOUNTS });
    }
    let bytes = content.read_file(file, 0..file.size()).await;
    Ok(bytes.map_err(|source| BundleError::Accounts { path, source })?.into())
}

/// A bundle's directory, before and after mounting. It is removed when this is dropped.
pub struct Bundle {
    dir: PathBuf,
    made_directory: bool,
    /// Holds the lock.
    _mark: File,
    removed: bool,
}

ociseek_format::opaque_debug!(Bundle);

impl Bundle {
    /// Creates the directory for the image named `image`. Blocks.
    ///
    /// # Errors
    /// If `dir` cannot be created, is not empty, or is accessible to other users, or if the caller
    /// is not root.
    pub fn new(dir: &Path, image: &str) -> Result<Bundle, BundleError> {
        if !rustix::process::geteuid().is_root() {
            return Err(BundleError::NotRoot);
        }
        let (dir, made_directory) = directory::claim(dir)?;
        let mark = BundleMarker { tool: TOOL_IDENTIFIER.to_owned(), image: image.to_owned(), made_directory };
        let file = write_json(&dir.join(MARK), &mark)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| made(&dir.join(MARK))(error.into()))?;
        let bundle = Bundle { dir, made_directory, _mark: file, removed: false };
        for name in [IMAGE, UPPER, WORK, ROOTFS] {
            let path = bundle.dir.join(name);
            DirBuilder::new().mode(0o700).create(&path).map_err(made(&path))?;
        }
        Ok(bundle)
    }

    /// The bundle's folder, which contains its `config.json`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The mount point for the image.
    pub fn image_point(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// Mounts the overlay on top of the image and writes `config`, which [`plan`] returned. After
    /// that a runtime can start. Blocks.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn complete(&self, tree: &Tree, config: &Value) -> Result<(), BundleError> {
        let [lower, upper, work, point] = [IMAGE, UPPER, WORK, ROOTFS].map(|name| self.dir.join(name));
        // The attributes of the overlay's root are those of the upper directory.
        let root = tree.node(Tree::ROOT);
        let like_root = || -> io::Result<()> {
            chown(&upper, Some(root.uid), Some(root.gid))?;
            fs::set_permissions(&upper, fs::Permissions::from_mode(root.mode))
        };
        like_root().map_err(made(&upper))?;
        mount_overlay(&lower, &upper, &work, &point).map_err(|source| BundleError::Overlay { point, source })?;
        write_json(&self.dir.join(CONFIG), config).map(|_| ())
    }

    /// Unmounts and removes everything. If a process still runs in the bundle (its number is
    /// returned), it loses its files.
    ///
    /// # Errors
    /// If something cannot be unmounted or removed.
    pub fn remove(mut self) -> Result<Option<u32>, BundleError> {
        self.removed = true;
        self.take_down()
    }

    /// Leaves the directory to the process that unmounted the files.
    pub fn leave(mut self) {
        self.removed = true;
    }

    fn take_down(&self) -> Result<Option<u32>, BundleError> {
        let user = user_of(&self.dir);
        let unmounted = match unmount(&self.dir, UnmountFlags::NOFOLLOW) {
            Err(MountError::Busy(_)) => unmount(&self.dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
            result => result,
        };
        unmounted?;
        clear(&self.dir, self.made_directory)?;
        Ok(user)
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        if !self.removed {
            // Callers that need to know about a failure remove it explicitly.
            let _ = self.take_down();
        }
    }
}

fn write_json(path: &Path, document: &impl Serialize) -> Result<File, BundleError> {
    let write = || -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let mut text = serde_json::to_vec_pretty(document)?;
        text.push(b'\n');
        file.write_all(&text)?;
        Ok(file)
    };
    write().map_err(made(path))
}
