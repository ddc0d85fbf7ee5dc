//! Whether the disk of a cache answers. A disk that hangs, such as a frozen file system or a
//! network disk without its server, keeps each thread that uses it, and nothing can cancel that.
//! So accesses are counted: while one of them hangs, no other begins, and the cache counts as
//! empty. It is used again as soon as that access ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::lock::Hold;

/// An access that takes longer hangs. Reads that wait for it continue without the cache then.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The bytes that a slow disk reads or writes in a second.
const SLOW: u64 = 8 << 20;
/// The most accesses by [`DiskWatch::begin`] at a time, and so the most threads that a disk can
/// keep by them.
const MOST: usize = 64;

/// The accesses in progress.
#[derive(Debug, Default)]
pub struct DiskWatch(Mutex<Accesses>);

#[derive(Debug, Default)]
struct Accesses {
    /// When each of them hangs.
    hang_at: BTreeMap<u64, Instant>,
    next: u64,
}

/// An access in progress, until this is dropped.
#[derive(Debug)]
pub struct DiskAccess {
    watch: Arc<DiskWatch>,
    number: u64,
    hangs_at: Instant,
}

impl DiskWatch {
    /// None while the disk does not answer, or is busier than is useful.
    pub fn begin(self: &Arc<Self>) -> Option<DiskAccess> {
        if self.0.hold().hang_at.len() < MOST { self.begin_with(0) } else { None }
    }

    /// Begins an access that moves this many bytes, however busy the disk is. None while it does
    /// not answer.
    pub(crate) fn begin_with(self: &Arc<Self>, bytes: u64) -> Option<DiskAccess> {
        let mut accesses = self.0.hold();
        let now = Instant::now();
        if accesses.hangs(now) {
            return None;
        }
        let hangs_at = now + PATIENCE + Duration::from_secs(bytes / SLOW);
        let number = accesses.next;
        accesses.next += 1;
        accesses.hang_at.insert(number, hangs_at);
        Some(DiskAccess { watch: Arc::clone(self), number, hangs_at })
    }

    /// Whether an access hangs.
    pub fn is_silent(&self) -> bool {
        self.0.hold().hangs(Instant::now())
    }
}

impl DiskAccess {
    /// Does something on another thread, and waits for it until it hangs.
    ///
    /// # Errors
    /// If it hangs. The access lasts until it ends.
    pub fn in_time<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (sender, done) = sync_channel(1);
        let hangs_at = self.hangs_at;
        thread::Builder::new().spawn(move || {
            let result = work();
            drop(self);
            // Nobody waits any more if it was late.
            let _ = sender.send(result);
        })?;
        let wait = hangs_at.saturating_duration_since(Instant::now());
        done.recv_timeout(wait).map_err(|_| io::ErrorKind::TimedOut.into())
    }
}

impl Accesses {
    fn hangs(&self, now: Instant) -> bool {
        self.hang_at.values().any(|hangs_at| *hangs_at < now)
    }
}

impl Drop for DiskAccess {
    fn drop(&mut self) {
        self.watch.0.hold().hang_at.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_access_begins_while_one_hangs() {
        let watch = Arc::<DiskWatch>::default();
        let access = watch.begin().unwrap();
        let large = watch.begin_with(SLOW * 10).unwrap();
        assert!(large.hangs_at > access.hangs_at + Duration::from_secs(9));
        assert!(watch.begin().is_some() && !watch.is_silent());
        let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        watch.0.hold().hang_at.insert(access.number, past);
        assert!(watch.begin().is_none() && watch.is_silent());
        drop(access);
        assert!(watch.begin().is_some() && !watch.is_silent());
    }

    #[test]
    fn a_disk_keeps_few_threads() {
        let watch = Arc::<DiskWatch>::default();
        let mut all: Vec<DiskAccess> = std::iter::from_fn(|| watch.begin()).take(1000).collect();
        assert_eq!(all.len(), MOST);
        assert!(watch.begin_with(0).is_some());
        all.pop();
        assert!(watch.begin().is_some());
    }
}
