//! The server's side of the keeper: takes over what an earlier server left, and has the keeper
//! replaced when it ends.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    recv, shutdown, socket_with,
};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::device::serves;
use super::keeper::{HeldMount, KeeperAnswer, KeeperOrder, LeftMount, receive, send};
use super::manager;
use super::mounts::{MountInfo, mounts};
use super::process::ProcessId;
use ociseek_store::lock::Hold;
use ociseek_store::state_file;

/// The argument of a process that keeps devices. Its standard input is the socket.
pub const KEEPER: &str = "device-keeper";
/// The file that says which process keeps devices.
const STATE: &str = "keeper.json";
/// The socket of that process.
const SOCKET: &str = "keeper.sock";
/// How long the keeper may take to start, and to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// What is reported while there is no keeper.
const UNPROTECTED: &str =
    "no process keeps the devices of mounts, so containers do not outlive this one";
/// The pause before a keeper that ended is replaced.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a warning says that it cannot be replaced, as on a full disk.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// The process that keeps the devices of a server's mounts, and its socket. It is started for the
/// first of them, and again when it ends. It stays when this and its clones are dropped.
#[derive(Clone)]
pub struct DeviceKeeper(Arc<Handle>);

ociseek_format::opaque_debug!(DeviceKeeper);

struct Handle(Arc<Shared>);

struct Shared {
    dir: PathBuf,
    kept: Mutex<Kept>,
    connection: Mutex<Option<Arc<OwnedFd>>>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Kept {
    /// The mounts whose devices are kept, by their names.
    mounts: BTreeMap<String, (HeldMount, Arc<OwnedFd>)>,
    /// Those that the service manager has, and gave to this process.
    given: BTreeMap<String, HeldMount>,
    /// What this process listens on.
    socket: Option<OwnedFd>,
    /// What the process before this one listened on.
    left_socket: Option<OwnedFd>,
    /// Whether a thread replaces the keeper when it ends.
    is_watched: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    keeper: Option<ProcessId>,
}

/// A keeper that runs.
struct Running {
    connection: OwnedFd,
    /// Set if this process started it.
    child: Option<Child>,
}

/// The process that keeps the devices of the server with its state in `dir`, if it runs.
pub fn keeper_of(dir: &Path) -> Option<ProcessId> {
    state_file::read::<State>(dir, STATE).ok()?.keeper.filter(ProcessId::is_ours)
}

impl DeviceKeeper {
    /// Finds the keeper of the server with its state in `dir`, and returns the mounts whose devices
    /// it or the service manager has. `dir` must be locked by this process. Blocks.
    pub fn open(dir: &Path) -> (DeviceKeeper, Vec<LeftMount>) {
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            kept: Mutex::default(),
            connection: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let mut kept = shared.kept.hold();
        let mut left = Vec::new();
        if let Some((running, of_keeper)) = found(dir) {
            Shared::watched(&shared, &mut kept, running);
            left = of_keeper.mounts;
            kept.left_socket = of_keeper.socket;
        }
        match mounts() {
            Ok(mounts) => {
                for (mount, device) in manager::given(&mounts) {
                    kept.given.insert(mount.name.clone(), mount.clone());
                    let is_new = left.iter().all(|(other, _)| other.name != mount.name);
                    if is_new && is_mounted(&mount, &device, &mounts) {
                        left.push((mount, device));
                    }
                }
            }
            Err(error) => warn!(name: "keeper", %error, "the list of mounts cannot be read"),
        }
        drop(kept);
        (DeviceKeeper(Arc::new(Handle(shared))), left)
    }

    /// Has the device kept from now on. Blocks until the keeper runs.
    pub fn keep(&self, mount: HeldMount, device: Arc<OwnedFd>) {
        let shared = &self.0.0;
        let mut kept = shared.kept.hold();
        Shared::run(shared, &mut kept);
        shared.tell(&KeeperOrder::Keep(mount.clone()), Some(&device));
        manager::store(&mount, &device);
        kept.mounts.insert(mount.name.clone(), (mount, device));
    }

    /// Has the socket kept that this process listens on, and returns the one of the process before
    /// it: connections may wait there. Blocks until the keeper runs.
    pub fn keep_socket(&self, socket: OwnedFd) -> Option<OwnedFd> {
        let shared = &self.0.0;
        let mut kept = shared.kept.hold();
        Shared::run(shared, &mut kept);
        shared.tell(&KeeperOrder::KeepSocket, Some(&socket));
        manager::store_socket(&socket);
        kept.socket = Some(socket);
        manager::given_socket().or(kept.left_socket.take()).filter(manager::listens)
    }

    /// Has the device closed.
    pub fn release(&self, name: &str) {
        let mut kept = self.0.0.kept.hold();
        let mounted = kept.mounts.remove(name).map(|(mount, _)| mount);
        for mount in [mounted, kept.given.remove(name)].iter().flatten() {
            manager::remove(mount);
        }
        self.0.0.tell(&KeeperOrder::Release(name.to_owned()), None);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
        if let Some(connection) = self.0.connection.hold().take() {
            // It wakes the thread that watches.
            let _ = shutdown(&*connection, Shutdown::Both);
        }
    }
}

impl Shared {
    /// Starts a keeper, unless there is one.
    fn run(shared: &Arc<Shared>, kept: &mut Kept) {
        if !kept.is_watched {
            match start(&shared.dir, kept) {
                Ok(running) => Shared::watched(shared, kept, running),
                Err(error) => warn!(name: "keeper", %error, "{UNPROTECTED}"),
            }
        }
    }

    /// Starts the thread that replaces the keeper when it ends.
    fn watched(shared: &Arc<Shared>, kept: &mut Kept, running: Running) {
        let Running { connection, child } = running;
        let connection = Arc::new(connection);
        *shared.connection.hold() = Some(Arc::clone(&connection));
        let watching = Arc::clone(shared);
        let watch = move || watching.watch(connection, child);
        kept.is_watched = match thread::Builder::new().name("keeper".to_owned()).spawn(watch) {
            Ok(_) => true,
            Err(error) => {
                warn!(name: "keeper", %error, "{UNPROTECTED}");
                false
            }
        };
    }

    /// [`Shared::watch`] replaces a keeper that has ended.
    fn tell(&self, order: &KeeperOrder, device: Option<&OwnedFd>) {
        if let Some(connection) = &*self.connection.hold()
            && let Err(error) = send(connection.as_fd(), order, device.map(AsFd::as_fd))
        {
            warn!(name: "keeper", %error, "the process that keeps the devices of mounts does not answer");
            let _ = shutdown(&**connection, Shutdown::Both);
        }
    }

    /// Replaces the keeper whenever it ends.
    fn watch(&self, mut connection: Arc<OwnedFd>, mut child: Option<Child>) {
        loop {
            // It sends nothing without being asked.
            while matches!(recv(&*connection, &mut [0; 1][..], RecvFlags::empty()), Ok((1.., _))) {}
            *self.connection.hold() = None;
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            // It cannot be reached any more, and would answer in place of this process.
            match child.take() {
                Some(mut child) => {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                None => {
                    let _ = keeper_of(&self.dir).map(|keeper| keeper.kill());
                }
            }
            let Some(another) = self.another() else { return };
            (connection, child) = another;
        }
    }

    /// Starts another keeper, as soon as that is possible, and has it keep all devices. None if
    /// this process ends.
    fn another(&self) -> Option<(Arc<OwnedFd>, Option<Child>)> {
        let mut warned: Option<Instant> = None;
        loop {
            sleep(PAUSE);
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            // Devices that come meanwhile wait, and are sent to this keeper.
            let kept = self.kept.hold();
            match start(&self.dir, &kept) {
                Ok(Running { connection, child }) => {
                    let connection = Arc::new(connection);
                    *self.connection.hold() = Some(Arc::clone(&connection));
                    return Some((connection, child));
                }
                Err(error) if warned.is_none_or(|at| at.elapsed() >= WARNED_EVERY) => {
                    warn!(name: "keeper", %error, "{UNPROTECTED}");
                    warned = Some(Instant::now());
                }
                Err(_) => {}
            }
        }
    }
}

/// The keeper that the state names, and what it has. One that does not answer is killed. If the
/// state is damaged, the socket says which process it is: only this user can use the directory.
fn found(dir: &Path) -> Option<(Running, Left)> {
    let warned = |text: &str| warn!(name: "keeper", "{text}");
    if fs::symlink_metadata(dir.join(SOCKET))
        .is_ok_and(|metadata| !metadata.file_type().is_socket())
    {
        state_file::set_aside(&dir.join(SOCKET), "it is not a socket", &warned);
    }
    let state = state_file::read_or_set_aside::<State>(dir, STATE, &warned);
    let keeper = match state {
        Ok((State { keeper }, false)) => keeper?,
        Ok((_, true)) => {
            let keeper = listener(dir)?;
            if let Err(error) = state_file::save(dir, STATE, &State { keeper: Some(keeper) }) {
                warn!(name: "keeper", %error, "{STATE} cannot be written");
            }
            keeper
        }
        Err(error) => {
            warn!(name: "keeper", %error, "{STATE} cannot be read");
            return None;
        }
    };
    if !keeper.is_ours() {
        return None;
    }
    // It may have been stopped, and containers wait for it.
    let resumed = keeper.resume();
    match resumed.and_then(|()| connected(dir, &keeper)).and_then(|connection| {
        let left = left(&connection)?;
        Ok((Running { connection, child: None }, left))
    }) {
        Ok(found) => Some(found),
        Err(error) => {
            warn!(name: "keeper", %error, "the process that keeps the devices of mounts is replaced");
            if let Err(error) = keeper.kill() {
                warn!(name: "keeper", %error, "the process that keeps the devices of mounts cannot be killed");
            }
            None
        }
    }
}

/// What an earlier server left with the keeper.
#[derive(Default)]
struct Left {
    mounts: Vec<LeftMount>,
    socket: Option<OwnedFd>,
}

/// What the keeper has, as far as it is what the kernel has mounted.
fn left(connection: &OwnedFd) -> io::Result<Left> {
    send(connection.as_fd(), &KeeperOrder::List, None)?;
    let mounts = mounts()?;
    let mut left = Left::default();
    loop {
        match receive(connection.as_fd())? {
            Some((KeeperAnswer::Kept(mount), Some(device))) => {
                if is_mounted(&mount, &device, &mounts) {
                    left.mounts.push((mount, device));
                } else {
                    send(connection.as_fd(), &KeeperOrder::Release(mount.name), None)?;
                }
            }
            Some((KeeperAnswer::Kept(_), None)) => {}
            Some((KeeperAnswer::Socket, socket)) => left.socket = socket,
            Some((KeeperAnswer::End, _)) => break,
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    set_socket_timeout(connection, Timeout::Recv, None)?;
    Ok(left)
}

/// Whether the kernel has this mount, and says that the device is the mount's. The last one mounted
/// on a point is visible.
fn is_mounted(held: &HeldMount, device: &OwnedFd, mounts: &[MountInfo]) -> bool {
    let mount = mounts.iter().rfind(|mount| mount.point == held.point);
    mount.is_some_and(|mount| {
        mount.device == held.device && serves(device, mount).unwrap_or_default()
    })
}

/// Starts a keeper.
fn start(dir: &Path, kept: &Kept) -> io::Result<Running> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    match fs::remove_file(dir.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    bind(&socket, &address(dir)?.1)?;
    // Before it listens.
    fs::set_permissions(dir.join(SOCKET), Permissions::from_mode(0o600))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ociseek").arg(KEEPER).stdin(socket).stdout(Stdio::null()).stderr(Stdio::null());
    command.current_dir("/").env_clear();
    let mut child = command.spawn()?;
    let begun = || {
        let gone = || io::Error::other("the process that keeps devices ended");
        let keeper = ProcessId::of(child.id().cast_signed()).ok_or_else(gone)?;
        let end = Instant::now() + ANSWER;
        let connection = loop {
            match connected(dir, &keeper) {
                Ok(connection) => break connection,
                Err(_) if Instant::now() < end => sleep(Duration::from_millis(5)),
                Err(error) => return Err(error),
            }
        };
        set_socket_timeout(&connection, Timeout::Recv, None)?;
        for (mount, device) in kept.mounts.values() {
            send(connection.as_fd(), &KeeperOrder::Keep(mount.clone()), Some(device.as_fd()))?;
        }
        if let Some(socket) = &kept.socket {
            send(connection.as_fd(), &KeeperOrder::KeepSocket, Some(socket.as_fd()))?;
        }
        // Only a keeper that has all devices is found by the next server.
        state_file::save(dir, STATE, &State { keeper: Some(keeper) })?;
        Ok(connection)
    };
    match begun() {
        Ok(connection) => Ok(Running { connection, child: Some(child) }),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// The process that listens on the socket in `dir`.
fn listener(dir: &Path) -> Option<ProcessId> {
    ProcessId::of(connection(dir).ok()?.1)
}

/// A connection to the socket in `dir`, and the number of the process that listens there.
fn connection(dir: &Path) -> io::Result<(OwnedFd, i32)> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for side in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, side, Some(ANSWER))?;
    }
    connect(&socket, &address(dir)?.1)?;
    let peer = socket_peercred(&socket)?.pid.as_raw_nonzero().get();
    Ok((socket, peer))
}

/// A connection to the socket in `dir`, on which `keeper` listens.
fn connected(dir: &Path, keeper: &ProcessId) -> io::Result<OwnedFd> {
    let (socket, peer) = connection(dir)?;
    if peer == keeper.pid && keeper.is_ours() {
        Ok(socket)
    } else {
        Err(io::Error::other(format!("process {peer} listens on {SOCKET}")))
    }
}

/// The address of the socket, and the directory that it needs open: the kernel allows only 108
/// bytes, and a directory may have a longer path.
fn address(dir: &Path) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat(CWD, dir, flags, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))?;
    Ok((dir, address))
}
