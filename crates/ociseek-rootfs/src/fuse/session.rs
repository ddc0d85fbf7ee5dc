//! Mounts, serves and unmounts.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, Filesystem, MountOption, Session, SessionACL};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount};
use rustix::process::{getgid, getuid};
use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::device::open_device;
use super::filesystem::ImageFs;
use super::fill::CacheFiller;
use super::handover::{KeptDevice, take_over, tree_identity};
use super::memory::keep_large_blocks_apart;
use super::mounts::{FS_TYPE, is_dead, mounted_at, take_down};
use super::store::{KnownNames, LayerSource, StoreFs};
use super::{MountError, host};
use crate::content::Content;
use crate::record::ReadRecorder;
use ociseek_format::layer::parallel::cores;
use ociseek_format::tree::{NodeId, Tree};

/// How far the kernel reads ahead, in KiB, which also limits the size of its read requests. The
/// kernel also reads this much around a single page of a program, so a larger value would fetch
/// bytes that nobody reads. For sequential readers, the content itself is fetched further ahead
/// than any kernel would request.
const READ_AHEAD: &[u8] = b"128";

/// How long the session of an unmounted file system may take to end before it counts as in use.
const LAST_USE: Duration = Duration::from_secs(5);

/// The number of threads that receive requests. They never wait, so one for each core is enough.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// Options for mounting an image.
#[derive(Debug, Clone, Default)]
pub struct FuseOptions {
    /// The source in the kernel's list of mounts.
    pub source: String,
    /// Allow other users to access the mount. The kernel then checks permissions.
    pub allow_other: bool,
    /// Apply set-user-ID bits and file capabilities. Only for root.
    pub suid: bool,
    /// Allow device nodes. Only for root.
    pub dev: bool,
    /// Whether an overlay will be mounted on top.
    pub under_overlay: bool,
    /// Say of each file which extended attributes it has, also if no file has any. Otherwise they
    /// are not supported then, which makes containers start faster. Some programs that compare
    /// files take that for an error (`fs/diff_unix.go` of containerd's continuity before 0.5).
    pub answers_xattrs: bool,
    /// Mount it writable, so that the kernel passes on requests for changes, which are refused.
    pub passes_changes: bool,
    /// Records reads, if set.
    pub recorder: Option<Arc<ReadRecorder>>,
    /// Put what the recorded start reads into the kernel's caches, as far as it is in the cache:
    /// for root, and if reads are not recorded. Otherwise, put it into memory.
    pub fill: bool,
    /// The device to use, if another process keeps it. Only for root.
    pub kept: Option<KeptDevice>,
    /// Leave the image mounted when the mount is dropped, for another server.
    pub outlives: bool,
}

/// A mounted image. It is unmounted when this is dropped, unless it outlives that.
pub struct FuseMount {
    point: PathBuf,
    /// The device number, which identifies this mount among others at `point`.
    device: Option<(u32, u32)>,
    /// Puts the recorded start into the kernel's caches.
    filler: Option<CacheFiller>,
    session: Option<BackgroundSession>,
    alive: oneshot::Receiver<()>,
    /// Whether it stays mounted when this is dropped.
    outlives: bool,
}

ociseek_format::opaque_debug!(FuseMount);

impl FuseMount {
    /// Mounts an image's files on `point`, a path returned by [`super::prepare`]. Reads run on
    /// tokio's `runtime`. The files are available when this returns. Blocks briefly.
    ///
    /// # Errors
    /// If mounting fails.
    pub fn new(
        tree: Arc<Tree>,
        content: Content,
        point: &Path,
        options: &FuseOptions,
        runtime: Handle,
    ) -> Result<FuseMount, MountError> {
        let root = rustix::process::geteuid().is_root();
        if !root && (options.suid || options.dev) {
            return Err(MountError::RootOnly);
        }
        let refused = |source| MountError::Session { point: point.to_owned(), source };
        let mounted = options.kept.as_ref().filter(|device| device.mounted.is_some());
        if mounted.is_some_and(|device| device.mounted != Some(tree_identity(&tree))) {
            return Err(refused(io::Error::other("the mount to continue has other files")));
        }
        let (alive, gone) = oneshot::channel();
        let bytes = (0..tree.len() as u32)
            .map(|id| tree.node(NodeId(id)).kind.size())
            .fold(0, u64::saturating_add);
        let fill = options.fill && content.has_recorded_start() && mounted.is_none();
        // What the program itself reads first could no longer be recorded.
        let fills = fill && root && options.recorder.is_none();
        let mut filler = fills.then(CacheFiller::start).flatten();
        let to_fill = filler.is_some().then(|| (Arc::clone(&tree), content.clone()));
        if fill && filler.is_none() {
            let content = content.clone();
            runtime.spawn_blocking(move || content.load_start());
        }
        let filesystem = ImageFs {
            first_inode: 0,
            tree,
            content,
            runtime,
            recorder: options.recorder.clone(),
            filler: filler.as_ref().map(CacheFiller::thread),
            // A user who is the only one with access may see everything. With other users,
            // permissions are checked.
            checked: options.allow_other,
            under_overlay: options.under_overlay,
            bytes,
            _alive: Some(alive),
            no_open: false,
            no_opendir: false,
            answers_xattrs: options.answers_xattrs,
            no_xattrs: false,
        };
        let session = match mounted {
            Some(held) => held
                .device
                .try_clone()
                .and_then(|device| take_over(filesystem, device, acl(options), config(options)))
                .and_then(Session::spawn)
                .map_err(refused)?,
            None => new_session(filesystem, point, options)?,
        };
        if let (Some(filler), Some((tree, content))) = (&mut filler, to_fill) {
            filler.fill(tree, content, point);
        }
        let mut mount = FuseMount::of(point, session, filler, gone);
        mount.outlives = options.outlives;
        Ok(mount)
    }

    /// Mounts an additional layer store on `point`, a path returned by [`super::prepare`].
    /// Everything else is as for [`FuseMount::new`]. Of `options`, those for images have no effect.
    ///
    /// # Errors
    /// If mounting fails.
    pub fn of_store(
        source: Arc<dyn LayerSource>,
        point: &Path,
        options: &FuseOptions,
        runtime: Handle,
    ) -> Result<FuseMount, MountError> {
        let (alive, gone) = oneshot::channel();
        let session = new_session(StoreFs::new(source, None, runtime, alive), point, options)?;
        Ok(FuseMount::of(point, session, None, gone))
    }

    /// Continues to serve the store that is mounted on `point` with this `device`, whose server was
    /// killed. It has told the kernel the names in `known`. Blocks while layers are opened again.
    ///
    /// # Errors
    /// If the kernel cannot send requests again.
    pub fn of_store_again(
        source: Arc<dyn LayerSource>,
        known: &KnownNames,
        device: OwnedFd,
        point: &Path,
        options: &FuseOptions,
        runtime: Handle,
    ) -> Result<FuseMount, MountError> {
        let (alive, gone) = oneshot::channel();
        source.save_names(known.clone());
        let store = StoreFs::new(source, Some(known), runtime.clone(), alive);
        runtime.block_on(store.reopen());
        let session =
            take_over(store, device, acl(options), config(options)).and_then(Session::spawn);
        let session =
            session.map_err(|source| MountError::Session { point: point.to_owned(), source })?;
        Ok(FuseMount::of(point, session, None, gone))
    }

    fn of(
        point: &Path,
        session: BackgroundSession,
        filler: Option<CacheFiller>,
        alive: oneshot::Receiver<()>,
    ) -> FuseMount {
        let device = mounted_at(point)
            .ok()
            .flatten()
            .filter(|mount| mount.fs_type == FS_TYPE)
            .map(|mount| mount.device);
        if let Some((major, minor)) = device {
            // Only root may set it. Others do with less.
            let _ =
                std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD);
        }
        let point = point.to_owned();
        FuseMount { point, device, filler, session: Some(session), alive, outlives: false }
    }

    /// The mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Waits until another process has unmounted it and it is no longer in use.
    ///
    /// # Errors
    /// If the session ended for another reason.
    pub async fn ended(&mut self) -> Result<(), MountError> {
        // Nothing is ever sent; the sender is dropped.
        let _ = (&mut self.alive).await;
        let Some(session) = self.session.take() else { return Ok(()) };
        let failed = |source| MountError::Session { point: self.point.clone(), source };
        match tokio::task::spawn_blocking(|| session.join()).await {
            Ok(result) => result.map_err(failed)?,
            Err(error) => return Err(failed(error.into())),
        }
        // An aborted session leaves its mount behind.
        self.unmount().map(|_| ())
    }

    /// Unmounts. If the mount is in use, it is detached at once, and the result is true. Takes up
    /// to five seconds if an overlay or another mount namespace uses it.
    ///
    /// # Errors
    /// If it stays mounted.
    pub fn unmount(&mut self) -> Result<bool, MountError> {
        self.filler = None;
        let in_use = self.detach()? || !self.has_ended_soon();
        self.session = None;
        Ok(in_use)
    }

    /// Whether the session ends, now that it is unmounted. The kernel ends it with the last use.
    fn has_ended_soon(&mut self) -> bool {
        let end = Instant::now() + LAST_USE;
        while self.session.is_some() && !matches!(self.alive.try_recv(), Err(TryRecvError::Closed))
        {
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(LAST_USE / 1000);
        }
        true
    }

    /// Removes the mount from its mount point. What is in use is served until that ends: see
    /// [`FuseMount::ended`]. The result is whether open files or working directories are in it;
    /// overlays over it do not count.
    ///
    /// # Errors
    /// If it stays mounted.
    pub fn detach(&mut self) -> Result<bool, MountError> {
        let seen = |source| MountError::Inspect { point: self.point.clone(), source };
        let mount = mounted_at(&self.point).map_err(seen)?;
        // After the session has ended, another mount may have its device number, but that one
        // answers.
        let ended = matches!(self.alive.try_recv(), Err(TryRecvError::Closed));
        let ours = mount.is_some_and(|mount| Some(mount.device) == self.device)
            && (!ended || self.point.metadata().is_err_and(|error| is_dead(&error)));
        if ours {
            match take_down(&self.point, UnmountFlags::NOFOLLOW) {
                Ok(()) => Ok(false),
                Err(_) => {
                    take_down(&self.point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                    Ok(true)
                }
            }
        } else {
            Ok(false)
        }
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.outlives {
            return;
        }
        // Callers that need to know about a failure unmount explicitly.
        let _ = self.unmount();
    }
}

/// Mounts, and starts to serve.
fn new_session(
    filesystem: impl Filesystem,
    point: &Path,
    options: &FuseOptions,
) -> Result<BackgroundSession, MountError> {
    keep_large_blocks_apart();
    let Some(device) = kernel_mount(point, options)? else {
        return helper_mount(filesystem, point, options);
    };
    let started = Session::from_fd(filesystem, device, acl(options), config(options))
        .and_then(Session::spawn);
    started.map_err(|source| {
        // Report the first error.
        let _ = take_down(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
        MountError::Session { point: point.to_owned(), source }
    })
}

fn acl(options: &FuseOptions) -> SessionACL {
    if options.allow_other { SessionACL::All } else { SessionACL::Owner }
}

fn config(options: &FuseOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source_name(&options.source)),
        MountOption::Subtype("ociseek".to_owned()),
        if options.passes_changes { MountOption::RW } else { MountOption::RO },
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    if options.allow_other {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.acl = acl(options);
    config.n_threads = Some(cores().clamp(*THREADS.start(), *THREADS.end()));
    config
}

/// The image's name, without characters that have a meaning for `fusermount3` or in lists of
/// mounts.
fn source_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._:/@+-".contains(c) { c } else { '_' };
    match name.chars().map(plain).collect::<String>() {
        name if name.is_empty() => "ociseek".to_owned(),
        name => name,
    }
}

/// Mounts with the system call. None if the user may not do that, but the helper may.
fn kernel_mount(point: &Path, options: &FuseOptions) -> Result<Option<OwnedFd>, MountError> {
    let refused = |source: io::Error| MountError::Refused { point: point.to_owned(), source };
    let device = match &options.kept {
        Some(held) => held.device.try_clone().map_err(refused)?,
        None => open_device().map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => MountError::DeviceRefused(error),
            _ => MountError::NoDevice(error),
        })?,
    };
    let user = getuid().as_raw();
    let group = getgid().as_raw();
    let others = if options.allow_other { ",allow_other,default_permissions" } else { "" };
    let data =
        format!("fd={},rootmode=40000,user_id={user},group_id={group}{others}", device.as_raw_fd());
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, !options.passes_changes);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    let held = hold(point).map_err(refused)?;
    let target = format!("/proc/self/fd/{}", held.as_raw_fd());
    match mount(source_name(&options.source), target, FS_TYPE, flags, data.as_c_str())
        .map_err(io::Error::from)
    {
        Ok(()) => Ok(Some(device)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            if host::has_helper() {
                Ok(None)
            } else {
                Err(MountError::NoHelper)
            }
        }
        Err(error) => Err(refused(error)),
    }
}

/// Opens the directory to mount on. Users who can write to a parent directory may have inserted a
/// symbolic link in the meantime, which a mount by root would follow anywhere.
fn hold(point: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, point, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Kernels before 5.6, and containers that forbid unknown system calls.
        Err(Errno::NOSYS | Errno::PERM) => Ok(openat(CWD, point, flags, Mode::empty())?),
        held => Ok(held?),
    }
}

fn helper_mount(
    filesystem: impl Filesystem,
    point: &Path,
    options: &FuseOptions,
) -> Result<BackgroundSession, MountError> {
    let session = Session::new(filesystem, point, &config(options)).and_then(Session::spawn);
    session.map_err(|source| match options.allow_other && !host::lets_others_in() {
        true => MountError::AllowOther,
        // The helper's message ends with a newline.
        false => MountError::Refused {
            point: point.to_owned(),
            source: io::Error::other(source.to_string().trim().to_owned()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_behind_symlinks_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(path("real/point")).unwrap();
        std::os::unix::fs::symlink(path("real"), path("link")).unwrap();
        std::os::unix::fs::symlink(path("real/point"), path("real/other")).unwrap();
        assert!(hold(&path("real/point")).is_ok());
        for astray in ["link/point", "real/other"] {
            assert!(hold(&path(astray)).is_err(), "{astray}");
        }
    }

    #[test]
    fn names_cannot_add_mount_options() {
        assert_eq!(source_name("oci:a b,suid\\,dev\n:v1"), "oci:a_b_suid__dev_:v1");
        assert_eq!(source_name("localhost:5000/a/b@sha256:00"), "localhost:5000/a/b@sha256:00");
        assert_eq!(source_name(""), "ociseek");
    }
}
