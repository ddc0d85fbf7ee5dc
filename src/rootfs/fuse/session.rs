//! Mounting, serving, unmounting.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount};
use rustix::process::{getgid, getuid};
use tokio::runtime::Handle;
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::filesystem::ImageFs;
use super::mounts::{FS_TYPE, mounted_at};
use super::point::{is_dead, take_down};
use super::{MountError, helper};
use crate::layer::parallel::cores;
use crate::rootfs::content::Content;
use crate::rootfs::record::ReadRecorder;
use crate::tree::{NodeId, NodeKind, Tree};

/// How far ahead of a reader the kernel reads, in KiB; it is also the largest read that it sends for
/// one. It reads that much around a page of a program that is touched alone, so that more would fetch
/// what nobody reads. For those who read a file from front to back, its content is fetched further
/// ahead than any kernel would ask for.
const READ_AHEAD: &[u8] = b"128";

/// Threads that take requests. They do not wait for anything, so a few are plenty.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// How an image is mounted.
#[derive(Clone, Default)]
pub struct FuseOptions {
    /// What the kernel's list of mounts shows as the source.
    pub source: String,
    /// Let other users than the one who mounts look into it; the kernel then checks their rights.
    pub allow_other: bool,
    /// Honour set-user-ID bits and file capabilities. For root only.
    pub suid: bool,
    /// Let device nodes work. For root only.
    pub dev: bool,
    /// An overlay will be put on top.
    pub under_overlay: bool,
    /// Notes what is read, if anyone wants to know.
    pub recorder: Option<Arc<ReadRecorder>>,
}

/// A mounted image. It is unmounted when this is dropped.
pub struct Mounted {
    point: PathBuf,
    /// Which of the mounts at `point` is this one.
    device: Option<(u32, u32)>,
    session: Option<BackgroundSession>,
    alive: oneshot::Receiver<()>,
}

impl Mounted {
    /// Mounts an image's files on `point`, a path that [`super::prepare`] gave. Reads run on
    /// tokio's `runtime`. When this is done, the files are there. It blocks for a moment.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn new(
        tree: Arc<Tree>,
        content: Content,
        point: &Path,
        options: &FuseOptions,
        runtime: Handle,
    ) -> Result<Mounted, MountError> {
        let root = rustix::process::geteuid().is_root();
        if !root && (options.suid || options.dev) {
            return Err(MountError::RootOnly);
        }
        let (alive, gone) = oneshot::channel();
        let bytes = (0..tree.len() as u32).map(|id| size(&tree, NodeId(id))).fold(0, u64::saturating_add);
        let filesystem = ImageFs {
            tree,
            content,
            runtime,
            recorder: options.recorder.clone(),
            // A user who looks at an image alone may see all of it; where others look too, each
            // sees what is his to see.
            checked: options.allow_other,
            under_overlay: options.under_overlay,
            bytes,
            _alive: alive,
            no_open: false,
            no_opendir: false,
        };
        let refused = |source| MountError::Session { point: point.to_owned(), source };
        let session = match kernel_mount(point, options)? {
            Some(device) => {
                let started =
                    Session::from_fd(filesystem, device, acl(options), config(options)).and_then(Session::spawn);
                started.map_err(|source| {
                    // The first error is the one to tell.
                    let _ = take_down(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH);
                    refused(source)
                })?
            }
            None => helper_mount(filesystem, point, options)?,
        };
        let device =
            mounted_at(point).ok().flatten().filter(|mount| mount.fs_type == FS_TYPE).map(|mount| mount.device);
        if let Some((major, minor)) = device {
            // Root may set it, others live with less.
            let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD);
        }
        Ok(Mounted { point: point.to_owned(), device, session: Some(session), alive: gone })
    }

    /// The directory on which it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The device of the file system, as it stands in the kernel's list.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// Waits until someone else has unmounted it and nobody uses it any more.
    ///
    /// # Errors
    /// When the session ended for another reason.
    pub async fn ended(&mut self) -> Result<(), MountError> {
        // Nothing is ever sent: the other end goes.
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

    /// Unmounts. Where it is in use it is taken out of sight at once, and `true` tells that someone will miss it.
    ///
    /// # Errors
    /// When it stays mounted.
    pub fn unmount(&mut self) -> Result<bool, MountError> {
        let seen = |source| MountError::Inspect { point: self.point.clone(), source };
        let there = mounted_at(&self.point).map_err(seen)?;
        // Once the session has ended another mount may have its device number; but then that one answers.
        let ended = matches!(self.alive.try_recv(), Err(TryRecvError::Closed));
        let ours = there.is_some_and(|there| Some(there.device) == self.device)
            && (!ended || self.point.metadata().is_err_and(|error| is_dead(&error)));
        let in_use = match ours {
            false => false,
            true => match take_down(&self.point, UnmountFlags::NOFOLLOW) {
                Ok(()) => false,
                Err(_) => {
                    take_down(&self.point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                    true
                }
            },
        };
        self.session = None;
        Ok(in_use)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Who wants to know of a failure unmounts first.
        let _ = self.unmount();
    }
}

fn size(tree: &Tree, id: NodeId) -> u64 {
    match &tree.node(id).kind {
        NodeKind::File(extent) => extent.size,
        NodeKind::Sparse { size, .. } => *size,
        _ => 0,
    }
}

fn acl(options: &FuseOptions) -> SessionACL {
    if options.allow_other { SessionACL::All } else { SessionACL::Owner }
}

fn config(options: &FuseOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(source_name(&options.source)),
        MountOption::Subtype("ociseek".to_owned()),
        MountOption::RO,
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

/// The image's name in characters that mean nothing to `fusermount3` nor to those who read lists of mounts.
fn source_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._:/@+-".contains(c) { c } else { '_' };
    match name.chars().map(plain).collect::<String>() {
        name if name.is_empty() => "ociseek".to_owned(),
        name => name,
    }
}

/// Mounts by the system call. `None`: this user may not, but the helper may.
fn kernel_mount(point: &Path, options: &FuseOptions) -> Result<Option<OwnedFd>, MountError> {
    let device = File::options().read(true).write(true).open("/dev/fuse").map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => MountError::DeviceRefused(error),
        _ => MountError::NoDevice(error),
    })?;
    let refused = |source: io::Error| MountError::Refused { point: point.to_owned(), source };
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let others = if options.allow_other { ",allow_other,default_permissions" } else { "" };
    let data = format!("fd={},rootmode=40000,user_id={user},group_id={group}{others}", device.as_raw_fd());
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let mut flags = MountFlags::RDONLY;
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    let held = hold(point).map_err(refused)?;
    let target = format!("/proc/self/fd/{}", held.as_raw_fd());
    match mount(source_name(&options.source), target, FS_TYPE, flags, data.as_c_str()).map_err(io::Error::from) {
        Ok(()) => Ok(Some(device.into())),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => match helper::is_there() {
            true => Ok(None),
            false => Err(MountError::NoHelper),
        },
        Err(error) => Err(refused(error)),
    }
}

/// The directory to mount on. Whoever can write to a directory above it may have put a symbolic
/// link in its way meanwhile, and root's mounts would follow that anywhere.
fn hold(point: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, point, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Kernels before 5.6, and containers that forbid what they do not know.
        Err(Errno::NOSYS | Errno::PERM) => Ok(openat(CWD, point, flags, Mode::empty())?),
        held => Ok(held?),
    }
}

fn helper_mount(filesystem: ImageFs, point: &Path, options: &FuseOptions) -> Result<BackgroundSession, MountError> {
    let session = Session::new(filesystem, point, &config(options)).and_then(Session::spawn);
    session.map_err(|source| match options.allow_other && !helper::lets_others_in() {
        true => MountError::AllowOther,
        // The helper's own words come with a line end.
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
    fn no_link_leads_a_mount_astray() {
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
    fn no_name_adds_a_mount_option() {
        assert_eq!(source_name("oci:a b,suid\\,dev\n:v1"), "oci:a_b_suid__dev_:v1");
        assert_eq!(source_name("localhost:5000/a/b@sha256:00"), "localhost:5000/a/b@sha256:00");
        assert_eq!(source_name(""), "ociseek");
    }
}
