//! Whether the disk of the cache answers. A disk that hangs, such as a frozen file system or a
//! network disk without its server, keeps each thread that uses it, and nothing can cancel that.
//! So accesses are counted: while one of them hangs, no other begins, and the cache counts as
//! empty. It is used again as soon as that access ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ociseek_store::lock::Hold;

/// An access that takes longer hangs. Reads that wait for it continue without the cache then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The most accesses at a time, and so the most threads that a disk can keep.
const MOST: usize = 64;

/// The accesses in progress.
#[derive(Debug, Default)]
pub(super) struct DiskWatch(Mutex<Accesses>);

#[derive(Debug, Default)]
struct Accesses {
    /// When each began, in this order.
    begun: BTreeMap<u64, Instant>,
    next: u64,
}

/// An access in progress, until this is dropped.
#[derive(Debug)]
pub(super) struct DiskAccess {
    watch: Arc<DiskWatch>,
    number: u64,
}

impl DiskWatch {
    /// None while the disk does not answer, or is busier than is useful.
    pub(super) fn begin(self: &Arc<Self>) -> Option<DiskAccess> {
        let mut accesses = self.0.hold();
        if accesses.hangs(PATIENCE) || accesses.begun.len() >= MOST {
            return None;
        }
        let number = accesses.next;
        accesses.next += 1;
        accesses.begun.insert(number, Instant::now());
        Some(DiskAccess { watch: Arc::clone(self), number })
    }

    /// Whether an access hangs.
    pub(super) fn is_silent(&self) -> bool {
        self.0.hold().hangs(PATIENCE)
    }
}

impl DiskAccess {
    /// Does something on another thread, and waits for it until it hangs.
    ///
    /// # Errors
    /// If it hangs. The access lasts until it ends.
    pub(super) fn in_time<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (sender, done) = sync_channel(1);
        thread::Builder::new().spawn(move || {
            let result = work();
            drop(self);
            // Nobody waits any more if it was late.
            let _ = sender.send(result);
        })?;
        done.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut.into())
    }
}

impl Accesses {
    fn hangs(&self, patience: Duration) -> bool {
        self.begun.first_key_value().is_some_and(|(_, begun)| begun.elapsed() > patience)
    }
}

impl Drop for DiskAccess {
    fn drop(&mut self) {
        self.watch.0.hold().begun.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_access_begins_while_one_hangs() {
        let watch = Arc::<DiskWatch>::default();
        let access = watch.begin().unwrap();
        assert!(watch.begin().is_some() && !watch.is_silent());
        let long_ago = Instant::now().checked_sub(PATIENCE * 2).unwrap();
        watch.0.hold().begun.insert(access.number, long_ago);
        assert!(watch.begin().is_none() && watch.is_silent());
        drop(access);
        assert!(watch.begin().is_some() && !watch.is_silent());
    }

    #[test]
    fn a_disk_keeps_few_threads() {
        let watch = Arc::<DiskWatch>::default();
        let mut all: Vec<DiskAccess> = std::iter::from_fn(|| watch.begin()).take(1000).collect();
        assert_eq!(all.len(), MOST);
        all.pop();
        assert!(watch.begin().is_some());
    }
}
