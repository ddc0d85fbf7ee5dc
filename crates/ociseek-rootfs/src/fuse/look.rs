//! Looks whether a mount answers.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use rustix::fs::StatFs;

use super::fill::own_files;
use ociseek_store::lock::Hold;

/// How long mounts may take to answer statfs(2), all together.
const PATIENCE: Duration = Duration::from_secs(2);
/// The pause after a stand-in answered in place of a server.
const AGAIN: Duration = Duration::from_millis(200);

/// Those mounts that answer soon. A thread may stay behind for each other one.
pub fn answering<'a>(points: impl Iterator<Item = &'a PathBuf>) -> Vec<PathBuf> {
    let (tell, told) = channel();
    for point in points {
        let point = point.clone();
        let tell = tell.clone();
        thread::spawn(move || {
            if rustix::fs::statfs(&point).is_ok_and(|stats| is_of_server(&stats)) {
                // Nobody waits any longer.
                let _ = tell.send(point);
            }
        });
    }
    drop(tell);
    let end = Instant::now() + PATIENCE;
    let next = || told.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).collect()
}

/// Whether a server answered. A stand-in has no length of names (see `stand_in`).
fn is_of_server(stats: &StatFs) -> bool {
    stats.f_namelen > 0
}

/// A thread that looks at a mount, one time after the other: a look at a mount without a server
/// cannot be cancelled.
///
/// It has its own table of open files, without the mount's device: see `CacheFiller`.
pub struct MountLook {
    ask: Sender<()>,
    /// Since when it waits for an answer.
    asked: Arc<Mutex<Option<Instant>>>,
}

ociseek_format::opaque_debug!(MountLook);

impl MountLook {
    /// Starts the thread. It ends when this is dropped and the mount answers or is gone. None if
    /// there cannot be another thread.
    pub fn start(point: PathBuf) -> Option<MountLook> {
        let (ask, asks): (Sender<()>, Receiver<()>) = channel();
        let asked = Arc::<Mutex<Option<Instant>>>::default();
        let waiting = Arc::clone(&asked);
        let look = move || {
            let can_look = own_files().is_ok();
            for () in asks {
                // An error is an answer, too.
                while can_look
                    && rustix::fs::statfs(&point).is_ok_and(|stats| !is_of_server(&stats))
                    && Arc::strong_count(&waiting) > 1
                {
                    thread::sleep(AGAIN);
                }
                *waiting.hold() = None;
            }
        };
        Builder::new().name("look".to_owned()).stack_size(64 << 10).spawn(look).ok()?;
        Some(MountLook { ask, asked })
    }

    /// Looks, unless the last look has no answer of a server yet. Returns for how long it has none.
    pub fn look(&self) -> Duration {
        let mut asked = self.asked.hold();
        if asked.is_none() && self.ask.send(()).is_ok() {
            *asked = Some(Instant::now());
        }
        asked.map_or(Duration::ZERO, |asked| asked.elapsed())
    }

    /// For how long the last look has no answer.
    pub fn waits(&self) -> Duration {
        self.asked.hold().map_or(Duration::ZERO, |asked| asked.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_answers_is_looked_at_again() {
        let dir = tempfile::tempdir().unwrap();
        let look = MountLook::start(dir.path().to_owned()).unwrap();
        for _ in 0..3 {
            look.look();
            while look.waits() > Duration::ZERO {
                std::thread::yield_now();
            }
        }
    }
}
