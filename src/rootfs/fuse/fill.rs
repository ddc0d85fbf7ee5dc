//! Puts what the recorded start reads into the kernel's caches, ahead of the program that starts:
//! names and attributes by looking them up, bytes with notifications. The program then finds them
//! there, and does not wait for this process. Only bytes that need no fetching are taken.
//!
//! Names are looked up through a mount of its own, so that this never keeps the actual one busy.
//! Only root may have that.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{Builder, JoinHandle, park, park_timeout};
use std::time::Duration;

use fuser::Notifier;
use rustix::fs::{AtFlags, CWD, statat};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::UnshareFlags;

use super::attr::{BLOCK, inode};
use crate::lock::Hold;
use crate::offset::{LayerId, Uncompressed};
use crate::rootfs::content::Content;
use crate::tree::{Extent, NodeId, NodeKind, Tree};

/// The most bytes that are given to the kernel.
const MOST: u64 = 64 << 20;
/// How many bytes are given to it at a time.
const STEP: u64 = 128 << 10;
/// The interval of checks whether the next file was looked up.
const PAUSE: Duration = Duration::from_micros(100);

/// A thread that will look names up in the mount. It is stopped when this is dropped.
///
/// It has a table of open files of its own, without the mount's device. A thread with the device
/// that waits for an answer could not be killed: the one that answers is killed with it, and the
/// kernel ends the wait only when nobody has the device.
pub(super) struct NameFinder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Passed when the thread has its own table.
    is_apart: Barrier,
    /// The mount point, and the paths to look up in this order.
    wanted: Mutex<Option<(PathBuf, Vec<Vec<u8>>)>>,
    /// How many of them were looked up.
    found: AtomicUsize,
    is_over: AtomicBool,
}

impl NameFinder {
    /// Call this before the mount's device is opened.
    pub(super) fn start() -> Option<NameFinder> {
        let shared = Arc::new(Shared {
            is_apart: Barrier::new(2),
            wanted: Mutex::default(),
            found: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread = Builder::new().name("fill-names".to_owned()).spawn(move || own.look_up()).ok()?;
        shared.is_apart.wait();
        Some(NameFinder { shared, thread: Some(thread) })
    }

    fn stop(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for NameFinder {
    fn drop(&mut self) {
        self.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn look_up(&self) {
        let mut result = own_files();
        self.is_apart.wait();
        while result.is_ok() && !self.is_over() {
            let wanted = self.wanted.hold().take();
            if let Some((point, paths)) = wanted {
                result = self.look_up_all(&point, &paths);
                break;
            }
            park();
        }
        if result.is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
    }

    fn look_up_all(&self, point: &Path, paths: &[Vec<u8>]) -> io::Result<()> {
        let root = open_tree(CWD, point, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        for path in paths.iter().take_while(|_| !self.is_over()) {
            statat(&root, &path[..], AtFlags::SYMLINK_NOFOLLOW)?;
            self.found.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}

/// Gives this thread a table of open files of its own.
#[allow(deprecated, reason = "its successor is unsafe, for threads that use files of others; this one opens its own")]
fn own_files() -> io::Result<()> {
    rustix::thread::unshare(UnshareFlags::FILES)?;
    // Callers that wait for the end of our output need not wait for this thread.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(dup2_stderr(&null)?)
}

/// The thread that gives the kernel bytes. It is stopped when this is dropped.
pub(super) struct Filling {
    finder: Arc<NameFinder>,
    thread: Option<JoinHandle<()>>,
}

impl Filling {
    /// For the image that is mounted on `point`.
    pub(super) fn start(
        finder: NameFinder,
        tree: Arc<Tree>,
        content: Content,
        notifier: Notifier,
        point: &Path,
    ) -> Option<Filling> {
        let (finder, point) = (Arc::new(finder), point.to_owned());
        let filler = Filler { finder: Arc::clone(&finder), tree, content, notifier };
        let thread = Builder::new().name("fill".to_owned()).spawn(move || filler.run(point)).ok()?;
        Some(Filling { finder, thread: Some(thread) })
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.finder.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Filler {
    finder: Arc<NameFinder>,
    tree: Arc<Tree>,
    content: Content,
    notifier: Notifier,
}

impl Filler {
    fn run(&self, point: PathBuf) {
        let start = RecordedStart::new(self.content.recorded_start());
        let files: Vec<NodeId> = start.files(&self.tree).filter(|node| self.is_at_hand(&start, *node)).collect();
        let shared = &self.finder.shared;
        *shared.wanted.hold() = Some((point, files.iter().map(|node| self.tree.path(*node)).collect()));
        if let Some(thread) = &self.finder.thread {
            thread.thread().unpark();
        }
        let mut left = MOST;
        for (number, node) in files.into_iter().enumerate() {
            // The kernel only takes the bytes of files that it knows.
            while shared.found.load(Ordering::Acquire) <= number && !shared.is_over() {
                park_timeout(PAUSE);
            }
            match self.fill(&start, node, left) {
                Some(given) => left -= given,
                None => break,
            }
        }
        self.finder.stop();
    }

    /// Whether the first bytes that are wanted of a file need not be fetched.
    fn is_at_hand(&self, start: &RecordedStart, node: NodeId) -> bool {
        let NodeKind::File(extent) = self.tree.node(node).kind else { return false };
        let first = start.blocks(&extent).into_iter().next();
        first.is_some_and(|range| self.content.is_at_hand(extent.layer, extent.offset + range.start))
    }

    /// Gives the kernel up to `most` bytes of a file. Returns how many it got, or None to stop.
    fn fill(&self, start: &RecordedStart, node: NodeId, most: u64) -> Option<u64> {
        let NodeKind::File(extent) = self.tree.node(node).kind else { return Some(0) };
        let mut given = 0;
        for range in start.blocks(&extent) {
            let mut at = range.start;
            while at < range.end {
                let size = STEP.min(range.end - at);
                if self.finder.shared.is_over() || given + size > most {
                    return None;
                }
                if let Some(bytes) = self.content.at_hand(extent.layer, extent.offset + at, size as usize) {
                    self.notifier.store(inode(node), at, &bytes).ok()?;
                    given += size;
                }
                at += size;
            }
        }
        Some(given)
    }
}

/// The recorded start, as ranges of the layers' tars.
struct RecordedStart {
    /// In the order of the start.
    ranges: Vec<(LayerId, Range<Uncompressed>)>,
    /// The same in the order of the layers: the layer, the start of a range, and its index.
    places: Vec<(u64, u64, u64)>,
}

impl RecordedStart {
    fn new(ranges: Vec<(LayerId, Range<Uncompressed>)>) -> RecordedStart {
        let place =
            |((layer, range), index): (&(LayerId, Range<Uncompressed>), u64)| (layer.0.into(), range.start.0, index);
        let mut places: Vec<(u64, u64, u64)> = ranges.iter().zip(0..).map(place).collect();
        places.sort_unstable();
        RecordedStart { ranges, places }
    }

    /// The ranges that overlap a file, each with its index and as bytes of the file.
    fn overlapping(&self, extent: &Extent) -> impl Iterator<Item = (u64, Range<u64>)> {
        let (layer, from) = (u64::from(extent.layer.0), extent.offset.0);
        let to = from.saturating_add(extent.size);
        let end = |index: u64| self.ranges.get(index as usize).map_or(0, |(_, range)| range.end.0);
        let first = self.places.partition_point(|place| (place.0, end(place.2)) <= (layer, from));
        let places = self.places.iter().skip(first).take_while(move |place| place.0 == layer && place.1 < to);
        places.map(move |place| (place.2, place.1.max(from) - from..end(place.2).min(to) - from))
    }

    /// The files with bytes of the start, in its order.
    fn files(&self, tree: &Tree) -> impl Iterator<Item = NodeId> {
        let mut files: Vec<(u64, u64, u64)> = Vec::new();
        for node in 0..tree.len() as u32 {
            if let NodeKind::File(extent) = &tree.node(NodeId(node)).kind
                && let Some(first) = self.overlapping(extent).map(|(index, _)| index).min()
            {
                files.push((first, extent.offset.0, node.into()));
            }
        }
        files.sort_unstable();
        files.into_iter().map(|(_, _, node)| NodeId(node as u32))
    }

    /// The bytes of a file that belong to the start, in whole blocks, except at the file's end: the
    /// kernel drops others.
    fn blocks(&self, extent: &Extent) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (_, range) in self.overlapping(extent) {
            match ranges.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => ranges.push(range),
            }
        }
        let block = u64::from(BLOCK);
        for range in &mut ranges {
            range.start = range.start.div_ceil(block) * block;
            range.end = if range.end == extent.size { range.end } else { range.end / block * block };
        }
        ranges.retain(|range| !range.is_empty());
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ztoc::{FileKind, FileMetadata};

    fn file(name: &str, offset: u64, size: u64) -> FileMetadata {
        FileMetadata {
            name: name.as_bytes().into(),
            kind: FileKind::Regular,
            offset: Uncompressed(offset),
            size,
            linkname: Box::default(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            uname: Box::default(),
            gname: Box::default(),
            mtime: None,
            devmajor: 0,
            devminor: 0,
            pax: Box::default(),
        }
    }

    #[test]
    fn files_are_in_the_order_of_the_start_and_their_ranges_are_blocks() {
        let lower = [file("a", 512, 10_000), file("hidden", 12_000, 9_000), file("b", 30_000, 50_000)];
        let upper = [file("c", 512, 100), file("hidden", 1_000, 0), file("d", 2_000, 8_192)];
        let tree = Tree::flatten([&lower[..], &upper[..]]).unwrap();
        let range = |layer, range: Range<u64>| (LayerId(layer), Uncompressed(range.start)..Uncompressed(range.end));
        let found = |start| -> Vec<(String, Vec<Range<u64>>)> {
            let start = RecordedStart::new(start);
            let found = start.files(&tree).map(|node| {
                let NodeKind::File(extent) = &tree.node(node).kind else { panic!("{node:?}") };
                (String::from_utf8(tree.path(node)).unwrap(), start.blocks(extent))
            });
            found.filter(|(_, ranges)| !ranges.is_empty()).collect()
        };
        let [a, b, c, d] = ["a", "b", "c", "d"].map(str::to_owned);
        // Neighbours are joined, whatever their order.
        let start = vec![
            range(1, 0..3_000),
            range(0, 60_000..80_000),
            range(0, 40_000..60_000),
            range(0, 0..40_000),
            range(1, 9_000..9_001),
        ];
        let whole = |size| std::iter::once(0..size).collect::<Vec<Range<u64>>>();
        assert_eq!(found(start), [(c, whole(100)), (b.clone(), whole(50_000)), (a.clone(), whole(10_000))]);
        // Of d, no block is whole.
        let start = vec![range(0, 5_000..34_097), range(0, 75_000..75_001), range(0, 76_000..90_000)];
        let ends = vec![0..4_096, 49_152..50_000];
        assert_eq!(found(start), [(a, std::iter::once(8_192..10_000).collect()), (b, ends)]);
        assert_eq!(found(vec![range(1, 2_000..6_096)]), [(d, whole(4_096))]);
        assert_eq!(found(vec![range(2, 0..u64::MAX), range(0, 12_000..21_000)]), []);
    }
}
