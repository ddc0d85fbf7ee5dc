//! A mount of an image, from the opening of its layers to its last use.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::mount::UnmountFlags;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::lazy::{LazyImages, MountAttempt, OpenedLayers};
use super::rows::LazyStack;
use crate::mount_server::{FetchedFile, StartRecord};
use ociseek_format::digest::Digest;
use ociseek_format::progress::causes;
use ociseek_format::tree::{NodeId, Tree};
use ociseek_ops::mount::{LiveMount, MountOptions, Record, mount};
use ociseek_rootfs::content::Content;
use ociseek_rootfs::fuse::{
    DeviceKeeper, FuseOptions, HeldMount, KeptDevice, MountLook, can_take_over, mounted_at,
    open_device, release_freed_memory, take_down, tree_identity,
};
use ociseek_store::lock::Hold;

/// The pauses between attempts to continue with a mount, in seconds: some ten minutes together.
const PAUSES: [u64; 15] = [1, 2, 4, 8, 15, 30, 60, 60, 60, 60, 60, 60, 60, 60, 60];
/// How often a mount is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// A mount that has not answered for this long counts as silent, and after the second time, it is
/// replaced.
const SILENT: Duration = Duration::from_secs(10);
const REPLACED: Duration = Duration::from_secs(30);

/// How long the end of a mount waits until the bytes that were fetched for it are noted down.
const LAST_COUNT: Duration = Duration::from_secs(2);

/// Where an image is mounted, and what is needed for that.
pub(crate) struct SessionPlace {
    /// The snapshotter's directory.
    pub root: PathBuf,
    /// The name of the mount for the keeper.
    pub name: String,
    pub point: PathBuf,
    /// The file with the bytes fetched for it, by all servers.
    pub fetched: PathBuf,
    /// The file with the registry's answers.
    pub answers: PathBuf,
    pub answers_xattrs: bool,
    pub lazy: Arc<dyn LazyImages>,
    pub keeper: DeviceKeeper,
}

/// What becomes of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Opening,
    /// It is mounted. Has the owner of its root directory.
    Serving {
        owner: (u32, u32),
    },
    /// It is not mounted, and why.
    Failed(String),
    /// It was mounted.
    Ended,
}

/// A mount, or the attempt to make it.
pub(crate) struct ImageSession {
    phase: watch::Sender<Phase>,
    is_cancelled: watch::Sender<bool>,
    fetched: AtomicU64,
    content: Mutex<Option<Content>>,
    look: Mutex<Option<MountLook>>,
}

impl ImageSession {
    /// Mounts the image in the background, or continues to serve a mount that is `left`. Must be
    /// called on a tokio runtime.
    pub(crate) fn start(
        place: SessionPlace,
        stack: LazyStack,
        left: Option<(HeldMount, Arc<OwnedFd>)>,
    ) -> Arc<ImageSession> {
        let session = Arc::new(ImageSession {
            phase: watch::Sender::new(Phase::Opening),
            is_cancelled: watch::Sender::new(false),
            fetched: AtomicU64::new(0),
            content: Mutex::default(),
            look: Mutex::default(),
        });
        let running = Arc::clone(&session);
        tokio::spawn(async move { Run { session: running, place, stack }.run(left).await });
        session
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// What becomes of it once it is not opening.
    pub(crate) async fn settled(&self) -> Phase {
        let mut phase = self.phase.subscribe();
        let settled = phase.wait_for(|phase| *phase != Phase::Opening).await;
        settled.map_or(Phase::Ended, |phase| phase.clone())
    }

    /// Gives up a mount that is being made, and removes one that is there from its mount point.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.send_replace(true);
    }

    async fn cancelled(&self) {
        let mut is_cancelled = self.is_cancelled.subscribe();
        // The sender is this value.
        let _ = is_cancelled.wait_for(|is_cancelled| *is_cancelled).await;
    }

    /// Waits until nothing is mounted. What is in use is served until that ends.
    pub(crate) async fn ended(&self) {
        let mut phase = self.phase.subscribe();
        // It fails if nobody changes it any more.
        let _ = phase.wait_for(|phase| matches!(phase, Phase::Failed(_) | Phase::Ended)).await;
    }

    /// The bytes fetched for the mount, by all servers.
    pub(crate) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// Its content, once it is open.
    pub(crate) fn content(&self) -> Option<Content> {
        self.content.hold().clone()
    }

    /// Whether it does not answer.
    pub(crate) fn is_silent(&self) -> bool {
        self.look.hold().as_ref().is_some_and(|look| look.waits() > SILENT)
    }
}

/// A mount with what it is served from.
struct Live {
    layers: OpenedLayers,
    mount: LiveMount,
    device: Arc<OwnedFd>,
    tree: Digest,
}

/// Why a mount is not served any more.
enum Over {
    /// Another process has unmounted it, or the kernel has ended it.
    Unmounted,
    /// Its snapshot is removed.
    Cancelled,
    /// It does not answer.
    Silent,
}

struct Run {
    session: Arc<ImageSession>,
    place: SessionPlace,
    stack: LazyStack,
}

impl Run {
    async fn run(self, left: Option<(HeldMount, Arc<OwnedFd>)>) {
        let mut left = left;
        let mut is_silent = false;
        loop {
            let image = &self.stack.top.image;
            let is_replacement = left.is_some();
            let live = match self.live(left.take()).await {
                Ok(Some(live)) => live,
                Ok(None) => {
                    self.session.phase.send_replace(Phase::Ended);
                    return;
                }
                Err(why) => {
                    warn!(name: "mount-failed", image, error = why, "cannot be mounted");
                    self.session.phase.send_replace(Phase::Failed(why));
                    return;
                }
            };
            let point = self.place.point.display();
            let layers = self.stack.top.layers;
            if is_replacement {
                info!(name: "served-again", image, layers, %point, "the mount is served again");
            } else {
                info!(name: "mounted", image, layers, %point, "mounted");
            }
            let (over, live) = self.serve(live, is_replacement, is_silent).await;
            match over {
                Over::Silent => {
                    warn!(name: "silent", image, %point, "the mount does not answer, and is replaced");
                    is_silent = true;
                    left = self.held(&live.tree).map(|held| (held, Arc::clone(&live.device)));
                    // It may wait for the mount.
                    spawn_blocking(move || drop(live));
                }
                Over::Unmounted => {
                    info!(name: "unmounted", image, %point, "unmounted");
                    self.place.keeper.release(&self.place.name);
                    self.session.phase.send_replace(Phase::Ended);
                    return;
                }
                Over::Cancelled => {
                    self.leave(live).await;
                    return;
                }
            }
        }
    }

    /// Opens the image and mounts it, or continues with the mount that is `left`. None if it is
    /// given up.
    async fn live(&self, left: Option<(HeldMount, Arc<OwnedFd>)>) -> Result<Option<Live>, String> {
        let session = &self.session;
        let is_replacement = left.is_some();
        let mut pauses = PAUSES.iter();
        if let Some(dir) = self.place.answers.parent().map(Path::to_owned) {
            // Without it, the answers are not written.
            let _ = spawn_blocking(move || fs::create_dir_all(dir)).await;
        }
        loop {
            let opened = tokio::select! {
                biased;
                () = session.cancelled() => break,
                opened = self.place.lazy.open(&self.stack, &self.place.answers) => opened,
            };
            // From here to the end, it is not cancelled, so that nothing stays mounted.
            let live = match opened {
                Ok(layers) => self.mount(layers, left.clone()).await,
                Err(why) => Err(why),
            };
            let has_succeeded = live.is_ok();
            self.place.lazy.attempted(MountAttempt { is_replacement, has_succeeded });
            match (live, &left, pauses.next()) {
                (Ok(live), ..) => return Ok(Some(live)),
                (Err(why), Some(_), Some(pause)) => {
                    let image = &self.stack.top.image;
                    warn!(name: "mount-failed", image, error = why, "the mount is not served yet");
                    tokio::select! {
                        () = session.cancelled() => break,
                        () = sleep(Duration::from_secs(*pause)) => {}
                    }
                }
                (Err(why), ..) => return Err(why),
            }
        }
        if is_replacement {
            self.place.keeper.release(&self.place.name);
            self.clear().await;
        }
        Ok(None)
    }

    async fn clear(&self) {
        let point = self.place.point.clone();
        if let Ok(Err(error)) = spawn_blocking(move || clear(&point)).await {
            let point = self.place.point.display();
            warn!(name: "not-unmounted", %point, %error, "cannot be unmounted");
        }
    }

    /// Mounts the layers, or continues to serve them where they are mounted.
    async fn mount(
        &self,
        mut layers: OpenedLayers,
        left: Option<(HeldMount, Arc<OwnedFd>)>,
    ) -> Result<Live, String> {
        let files: Arc<Tree> = Arc::clone(&layers.image.tree);
        let identity = spawn_blocking(move || tree_identity(&files));
        let device = match &left {
            Some((_, device)) => Arc::clone(device),
            None => {
                let place = self.place.point.clone();
                let made = spawn_blocking(move || make(&place)).await.map_err(io::Error::from);
                made.flatten().map_err(|error| format!("cannot make the mount point: {error}"))?;
                Arc::new(open_device().map_err(|error| format!("/dev/fuse: {error}"))?)
            }
        };
        let serving = self.place.lazy.serving();
        let is_first = left.is_none() && !self.place.answers_xattrs;
        let is_recorded = serving.record_starts.is_some()
            && is_first
            && StartRecord::is_wanted(&layers.image, Some(self.stack.top.layers));
        // Up to 8 MiB, and nobody reads it from here on.
        drop(std::mem::take(&mut layers.image.config));
        let fuse = FuseOptions {
            source: self.stack.top.image.clone(),
            allow_other: true,
            suid: true,
            dev: true,
            answers_xattrs: self.place.answers_xattrs,
            kept: Some(KeptDevice {
                device: Arc::clone(&device),
                mounted: left.and_then(|(held, _)| held.tree),
            }),
            outlives: can_take_over(),
            ..FuseOptions::default()
        };
        let options = MountOptions {
            fuse,
            record: is_recorded.then_some(Record::Memory(StartRecord::MAX_READS)),
            prefetch: serving.prefetch,
        };
        let mounted = mount(&layers.image, &self.place.point, options, &layers.progress).await;
        let mount = mounted.map_err(|error| causes(&error))?;
        let tree = identity.await.map_err(|error| error.to_string())?;
        // Before a container sees it.
        match self.held(&tree) {
            Some(held) if can_take_over() => {
                let keeper = self.place.keeper.clone();
                let device = Arc::clone(&device);
                let _ = spawn_blocking(move || keeper.keep(held, device)).await;
            }
            _ => {}
        }
        Ok(Live { layers, mount, device, tree })
    }

    /// What the keeper keeps of the mount.
    fn held(&self, tree: &Digest) -> Option<HeldMount> {
        let mount = mounted_at(&self.place.point).ok().flatten()?;
        Some(HeldMount {
            name: self.place.name.clone(),
            point: mount.point,
            device: mount.device,
            tree: Some(*tree),
        })
    }

    /// Serves a mount until it is over.
    async fn serve(&self, live: Live, is_replacement: bool, is_silent: bool) -> (Over, Live) {
        let Live { layers, mut mount, device, tree } = live;
        let session = &self.session;
        *session.content.hold() = Some(layers.image.content.clone());
        if !is_silent {
            *session.look.hold() = MountLook::start(self.place.point.clone());
        }
        let root = layers.image.tree.node(NodeId(0));
        session.phase.send_replace(Phase::Serving { owner: (root.uid, root.gid) });
        let recorded = self.place.lazy.serving().record_starts.filter(|_| !is_replacement);
        let file = StartRecord::file_of(&self.place.root, &self.stack.top.image);
        let mut start = StartRecord::new(&mount, file.filter(|_| recorded.is_some()));
        let recorded_until = Instant::now() + recorded.unwrap_or_default();
        let file = Arc::new(Mutex::new(None));
        let count = |is_last| {
            let bytes = layers.image.source.traffic().bytes;
            let rest = layers.image.content.rest_stats();
            let (file, session) = (Arc::clone(&file), Arc::clone(session));
            let path = self.place.fetched.clone();
            spawn_blocking(move || {
                // A disk that does not answer keeps one thread.
                let held = if is_last { Some(file.hold()) } else { file.try_lock().ok() };
                let Some(mut held) = held else { return };
                let file = held.get_or_insert_with(|| FetchedFile::open(&path).ok());
                let total = file.as_mut().map_or(bytes, |file| file.write(bytes, rest));
                session.fetched.store(total, Ordering::Relaxed);
            })
        };
        count(false);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let over = {
            let mut ended = pin!(mount.mount.ended());
            loop {
                tokio::select! {
                    biased;
                    () = session.cancelled() => break Over::Cancelled,
                    _ = &mut ended => break Over::Unmounted,
                    () = sleep_until(recorded_until), if start.is_some() => {
                        write_start(start.take(), &self.stack.top.image).await;
                    }
                    _ = looks.tick() => {
                        count(false);
                        let waits = session.look.hold().as_ref().map(MountLook::look);
                        if waits.is_some_and(|waits| waits > REPLACED) && !is_silent {
                            break Over::Silent;
                        }
                    }
                }
            }
        };
        let _ = timeout(LAST_COUNT, count(true)).await;
        write_start(start.take(), &self.stack.top.image).await;
        (over, Live { layers, mount, device, tree })
    }

    /// Removes a mount from its mount point, and serves it until nobody uses it.
    async fn leave(&self, live: Live) {
        self.place.keeper.release(&self.place.name);
        let Live { layers, mount: mut live, device, .. } = live;
        let detaching = spawn_blocking(move || {
            let detached = live.mount.detach();
            (detached, live)
        });
        let detached = detaching.await;
        self.session.content.hold().take();
        self.session.look.hold().take();
        self.session.phase.send_replace(Phase::Ended);
        let Ok((detached, mut live)) = detached else { return };
        if let Err(error) = detached {
            let point = self.place.point.display();
            let error = causes(&error);
            warn!(name: "not-unmounted", %point, error, "cannot be unmounted");
        }
        // An error was reported by the kernel to those who use it.
        let _ = live.mount.ended().await;
        drop((live, layers, device));
        // Images that come and go soon never see the time at which mounts do that.
        let _ = spawn_blocking(release_freed_memory).await;
    }
}

/// Unmounts what is mounted on a point, also if it has no server.
///
/// # Errors
/// If it stays mounted.
pub(crate) fn clear(point: &Path) -> io::Result<()> {
    while mounted_at(point)?.is_some() {
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        take_down(point, flags).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Makes a mount point, on which nothing is mounted. A mount without a server cannot be inspected.
fn make(point: &Path) -> io::Result<()> {
    let dir = point.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(dir)?;
    clear(point)?;
    match fs::create_dir(point) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Writes the record of a start, if there is one.
async fn write_start(start: Option<StartRecord>, image: &str) {
    let Some(start) = start else { return };
    let written = spawn_blocking(move || start.write()).await.map_err(io::Error::from).flatten();
    if let Err(error) = written {
        warn!(name: "start-not-recorded", image, %error, "the startup is not recorded");
    }
}
