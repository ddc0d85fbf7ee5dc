//! Puts what the recorded start reads into the kernel's caches, ahead of the program that starts.
//! The program then finds names, attributes and bytes there, and does not wait for this process.
//! First come the bytes that the cache has from an earlier start, and then those that this start
//! fetches, as they arrive. Of these, some are left to the program: otherwise fetching in advance
//! would not notice that nobody reads it.
//!
//! A thread does this by listing directories, and by looking up, opening and reading ahead the
//! files, like any other program.
//! It uses a separate mount, so the actual one is never busy because of it. Only root may create
//! such a mount.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};

use fuser::Request;
use rustix::fs::{Advice, CWD, Dir, DirEntry, Mode, OFlags, RawDir, fadvise, fstat, openat};
use rustix::io::close;
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

use super::attr::BLOCK;
use crate::content::Content;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::tree::{Extent, NodeId, NodeKind, Tree};

/// The most bytes from an earlier start that are put into the kernel's caches.
const MOST: u64 = 64 << 20;
/// The most bytes that are put there as they arrive: a start of a hostile index may decode to any
/// number, and others on the node need the kernel's caches, too.
const MOST_ARRIVING: u64 = 2 << 30;
/// How many bytes the kernel is asked to read ahead at a time.
const STEP: u64 = 128 << 10;
/// A directory is listed if one of this many entries is read. For each entry of a list, the kernel
/// gets the attributes too, so it need not look up the name. A lookup takes it as long as some 30
/// entries of a list.
const LISTED: usize = 8;
/// The size of the buffer for lists. It decides how much of a list the kernel requests at a time.
const LIST: usize = 128 << 10;

/// How directories and files are opened.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// A thread that fills the kernel's caches. It is stopped when this is dropped.
///
/// It has its own table of open files, without the mount's device. A thread with the device
/// that waits for an answer could not be killed: the threads that answer are killed with it, and
/// the kernel ends the wait only when nobody has the device.
pub(super) struct CacheFiller {
    shared: Arc<Shared>,
    plans: Option<Sender<FillPlan>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    thread: Arc<FillerThread>,
    is_over: AtomicBool,
}

/// The number of the thread, as the kernel's requests have it. 0 before it fills the caches and
/// afterwards, when another thread may have that number.
#[derive(Default)]
pub(super) struct FillerThread(AtomicU32);

impl FillerThread {
    /// Whether a request comes from the thread.
    pub(super) fn sent(&self, request: &Request) -> bool {
        let thread = self.0.load(Ordering::Relaxed);
        thread != 0 && request.pid() == thread
    }
}

/// What to read of a mount.
struct FillPlan {
    point: PathBuf,
    steps: Receiver<FillStep>,
}

/// A step of a plan. Paths are relative to the mount point.
enum FillStep {
    /// A directory to list.
    List(Vec<u8>),
    /// A file, and the ranges of it to read.
    Read(Vec<u8>, Vec<Range<u64>>),
}

impl CacheFiller {
    /// Starts the thread, which waits for a plan. Call this before the mount's device is opened.
    /// None if there cannot be another thread, or one with its own table.
    pub(super) fn start() -> Option<CacheFiller> {
        let shared = Arc::<Shared>::default();
        let (plans, planned) = channel();
        let own = Arc::clone(&shared);
        let fill = move || {
            if let Ok(plan) = planned.recv() {
                own.thread
                    .0
                    .store(gettid().as_raw_nonzero().get().unsigned_abs(), Ordering::Relaxed);
                // Errors do not matter here: the program reads what is missing itself.
                let _ = own.read_ahead(&plan);
                own.thread.0.store(0, Ordering::Relaxed);
            }
        };
        // A thread has the table of the one that starts it.
        let start =
            || own_files().and_then(|()| Builder::new().name("fill".to_owned()).spawn(fill)).ok();
        let thread = Builder::new().spawn(start).ok()?.join().ok()??;
        Some(CacheFiller { shared, plans: Some(plans), threads: vec![thread] })
    }

    /// The thread, to recognise its requests.
    pub(super) fn thread(&self) -> Arc<FillerThread> {
        Arc::clone(&self.shared.thread)
    }

    /// Fills the caches of the image that is mounted on `point`. Returns at once.
    pub(super) fn fill(&mut self, tree: Arc<Tree>, content: Content, point: &Path) {
        let (Some(plans), point) = (self.plans.take(), point.to_owned()) else { return };
        let shared = Arc::clone(&self.shared);
        let planner = move || {
            let (sender, steps) = channel();
            // Nobody receives it if the mount is gone already.
            let _ = plans.send(FillPlan { point, steps });
            plan(&tree, &content, &shared.is_over, &sender);
        };
        self.threads.extend(Builder::new().name("fill-plan".to_owned()).spawn(planner).ok());
    }
}

impl Drop for CacheFiller {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.plans = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Takes the steps of a plan. While it waits for one, it uses nothing of the mount: another
    /// process may want to unmount that.
    fn read_ahead(&self, FillPlan { point, steps }: &FillPlan) -> io::Result<()> {
        let mut root = mounted_on(point)?;
        let device = fstat(&root)?.st_dev;
        let mut requested = None;
        loop {
            let step = match steps.try_recv() {
                Ok(step) => step,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    drop((root, requested));
                    let Ok(step) = steps.recv() else { return Ok(()) };
                    root = mounted_on(point)?;
                    requested = None;
                    if fstat(&root)?.st_dev != device {
                        return Ok(());
                    }
                    step
                }
            };
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            let _ = match step {
                FillStep::List(path) => self.list(&root, &path),
                FillStep::Read(path, ranges) => self.read(&root, &path, &ranges, &mut requested),
            };
        }
    }

    fn list(&self, root: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let path = if path.is_empty() { b"." } else { path };
        let directory = openat(root, path, FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        let mut list = Vec::with_capacity(LIST);
        let mut entries = RawDir::new(directory, list.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            entry?;
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    /// Reads ranges of a file. `requested` is the last byte that the kernel was asked to read
    /// ahead, and its file.
    fn read(
        &self,
        root: &OwnedFd,
        path: &[u8],
        ranges: &[Range<u64>],
        requested: &mut Option<(Arc<File>, u64)>,
    ) -> io::Result<()> {
        let file = Arc::new(File::from(openat(root, path, FLAGS, Mode::empty())?));
        for range in ranges {
            let mut at = range.start;
            while at < range.end && !self.is_over.load(Ordering::Relaxed) {
                let size = STEP.min(range.end - at);
                fadvise(file.as_fd(), at, NonZeroU64::new(size), Advice::WillNeed)?;
                at += size;
                // Two requests are under way at a time, so a program's own wait for little.
                if let Some((file, last)) = requested.replace((Arc::clone(&file), at - 1)) {
                    wait_for(&file, last)?;
                }
            }
        }
        Ok(())
    }
}

/// A mount of its own of what is mounted on `point`.
fn mounted_on(point: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, point, flags)
}

/// Waits until the kernel has the byte `at`.
fn wait_for(mut file: &File, at: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut [0])
}

/// Gives this thread its own table of open files, without the files of the process. A copy that is
/// left open here would hold what others close: connections, locks, files of other mounts.
#[allow(unsafe_code, reason = "rustix has no safe call for a thread's own table of open files")]
pub(super) fn own_files() -> io::Result<()> {
    // SAFETY: This thread has just started, so nothing here owns a descriptor that the process
    // opens or closes from now on.
    unsafe { unshare_unsafe(UnshareFlags::FILES)? };
    // Callers that wait for the end of our output need not wait for this thread.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    drop(null);
    let list =
        openat(CWD, "/proc/thread-self/fd", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let not_copied = [0, 1, 2, list.as_raw_fd()];
    let number = |entry: rustix::io::Result<DirEntry>| {
        Ok(entry?.file_name().to_str().ok().and_then(|n| n.parse().ok()))
    };
    let open = Dir::new(list)?.map(number).collect::<io::Result<Vec<Option<RawFd>>>>()?;
    for number in open.into_iter().flatten().filter(|number| !not_copied.contains(number)) {
        // SAFETY: The table belongs to this thread alone, and no value of this thread owns one of
        // its descriptors: it opened only `null` and `list`, which are closed.
        unsafe { close(number) };
    }
    Ok(())
}

/// Sends what to read of the recorded start: what is in the cache, in the start's order, and then
/// what arrives. It ends early when `is_over` is set.
fn plan(tree: &Tree, content: &Content, is_over: &AtomicBool, steps: &Sender<FillStep>) {
    let start = RecordedStart::new(content.recorded_start());
    let files: Vec<NodeId> =
        start.files(tree).take_while(|_| !is_over.load(Ordering::Relaxed)).collect();
    let mut directories = Directories::of(tree, &files);
    // Files share spans with their neighbours.
    let mut known = HashMap::new();
    let mut is_from_cache = |layer, span| {
        *known.entry((layer, span)).or_insert_with(|| content.is_from_cache(layer, span))
    };
    let mut left = MOST;
    for node in files.iter().take_while(|_| !is_over.load(Ordering::Relaxed)) {
        let NodeKind::File(extent) = &tree.node(*node).kind else { continue };
        let mut ranges = start.blocks(extent);
        ranges.retain(|range| {
            let spans =
                content.spans(extent.layer, extent.offset + range.start..extent.offset + range.end);
            SpanId::each(spans).all(|span| is_from_cache(extent.layer, span)) && {
                let size = range.end - range.start;
                let fits = size <= left;
                left -= if fits { size } else { 0 };
                fits
            }
        });
        directories.send(tree, *node, ranges, steps);
    }
    drop(known);
    let Some(arrivals) = content.start_arrivals() else { return };
    let files = FilesByOffset::of(tree, &files);
    let mut left = MOST_ARRIVING;
    while let Some((layer, ranges)) = arrivals.next(is_over) {
        for (node, range) in ranges.iter().flat_map(|range| files.blocks(layer, range)) {
            let Some(rest) = left.checked_sub(range.end - range.start) else { return };
            left = rest;
            directories.send(tree, node, vec![range], steps);
        }
    }
}

/// The directories of a start's files that were not listed, each with the number of these files.
struct Directories(HashMap<NodeId, usize>);

impl Directories {
    fn of(tree: &Tree, files: &[NodeId]) -> Directories {
        let mut wanted: HashMap<NodeId, usize> = HashMap::new();
        files.iter().for_each(|node| *wanted.entry(tree.parent(*node)).or_default() += 1);
        Directories(wanted)
    }

    /// Sends the steps for reading ranges of a file. The directory is listed before its first file
    /// is read.
    fn send(&mut self, tree: &Tree, node: NodeId, ranges: Vec<Range<u64>>, to: &Sender<FillStep>) {
        if ranges.is_empty() {
            return;
        }
        let directory = tree.parent(node);
        let is_listed = |wanted: usize| wanted * LISTED >= tree.children(directory).len();
        if self.0.remove(&directory).is_some_and(is_listed) {
            let _ = to.send(FillStep::List(tree.path(directory)));
        }
        // Nobody receives it when the mount is over.
        let _ = to.send(FillStep::Read(tree.path(node), ranges));
    }
}

/// Files, in the order of the layers.
struct FilesByOffset(Vec<(Extent, NodeId)>);

impl FilesByOffset {
    fn of(tree: &Tree, files: &[NodeId]) -> FilesByOffset {
        let file = |node: &NodeId| match &tree.node(*node).kind {
            NodeKind::File(extent) => Some((*extent, *node)),
            _ => None,
        };
        let mut files: Vec<(Extent, NodeId)> = files.iter().filter_map(file).collect();
        files.sort_unstable_by_key(|(extent, _)| (extent.layer.0, extent.offset));
        FilesByOffset(files)
    }

    /// The files with bytes in a range of a layer's tar, each with its whole blocks there.
    fn blocks<'a>(
        &'a self,
        layer: LayerId,
        range: &'a Range<Uncompressed>,
    ) -> impl Iterator<Item = (NodeId, Range<u64>)> {
        let end = |of: &Extent| Uncompressed(of.offset.0.saturating_add(of.size));
        let is_before =
            |(of, _): &(Extent, NodeId)| (of.layer.0, end(of)) <= (layer.0, range.start);
        let files = self.0.iter().skip(self.0.partition_point(is_before));
        let is_near = move |(of, _): &&(Extent, NodeId)| of.layer == layer && of.offset < range.end;
        let inside = move |(of, node): &(Extent, NodeId)| {
            let from = range.start.max(of.offset) - of.offset;
            let to = range.end.min(end(of)) - of.offset;
            (*node, whole_blocks(from..to, of.size))
        };
        files.take_while(is_near).map(inside).filter(|(_, range)| !range.is_empty())
    }
}

/// The blocks of a file that are in `range`, and what is there of the last one, if the file ends in
/// it: the kernel reads no others.
fn whole_blocks(range: Range<u64>, size: u64) -> Range<u64> {
    let block = u64::from(BLOCK);
    let end = if range.end == size { range.end } else { range.end / block * block };
    range.start.div_ceil(block) * block..end
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
        let place = |((layer, range), index): (&(LayerId, Range<Uncompressed>), u64)| {
            (layer.0.into(), range.start.0, index)
        };
        let mut places: Vec<(u64, u64, u64)> = ranges.iter().zip(0..).map(place).collect();
        places.sort_unstable();
        RecordedStart { ranges, places }
    }

    /// The ranges that overlap a file, each with its index and as bytes of the file.
    fn overlapping(&self, extent: &Extent) -> impl Iterator<Item = (u64, Range<u64>)> {
        let layer = u64::from(extent.layer.0);
        let from = extent.offset.0;
        let to = from.saturating_add(extent.size);
        let end = |index: u64| self.ranges.get(index as usize).map_or(0, |(_, range)| range.end.0);
        let first = self.places.partition_point(|place| (place.0, end(place.2)) <= (layer, from));
        let places = self
            .places
            .iter()
            .skip(first)
            .take_while(move |place| place.0 == layer && place.1 < to);
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

    /// The whole blocks of a file that belong to the start.
    fn blocks(&self, extent: &Extent) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (_, range) in self.overlapping(extent) {
            match ranges.last_mut().filter(|last| last.end == range.start) {
                Some(last) => last.end = range.end,
                None => ranges.push(range),
            }
        }
        ranges
            .into_iter()
            .map(|range| whole_blocks(range, extent.size))
            .filter(|range| !range.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::tar::OwnerName;
    use ociseek_format::ztoc::{FileKind, FileMetadata};

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
            uname: OwnerName::default(),
            gname: OwnerName::default(),
            mtime: None,
            devmajor: 0,
            devminor: 0,
            pax: Box::default(),
        }
    }

    #[test]
    fn files_are_in_the_order_of_the_start_and_their_ranges_are_blocks() {
        let lower =
            [file("a", 512, 10_000), file("hidden", 12_000, 9_000), file("b", 30_000, 50_000)];
        let upper = [file("c", 512, 100), file("hidden", 1_000, 0), file("d", 2_000, 8_192)];
        let tree = Tree::flatten([&lower[..], &upper[..]]).unwrap();
        let range = |layer, range: Range<u64>| {
            (LayerId(layer), Uncompressed(range.start)..Uncompressed(range.end))
        };
        let filled = |start| -> Vec<(String, Vec<Range<u64>>)> {
            let start = RecordedStart::new(start);
            let ranges_of_files = start.files(&tree).map(|node| {
                let NodeKind::File(extent) = &tree.node(node).kind else { panic!("{node:?}") };
                (String::from_utf8(tree.path(node)).unwrap(), start.blocks(extent))
            });
            ranges_of_files.filter(|(_, ranges)| !ranges.is_empty()).collect()
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
        assert_eq!(
            filled(start),
            [(c, whole(100)), (b.clone(), whole(50_000)), (a.clone(), whole(10_000))]
        );
        // Of d, no block is whole.
        let start =
            vec![range(0, 5_000..34_097), range(0, 75_000..75_001), range(0, 76_000..90_000)];
        let ends = vec![0..4_096, 49_152..50_000];
        assert_eq!(filled(start), [(a, std::iter::once(8_192..10_000).collect()), (b, ends)]);
        assert_eq!(filled(vec![range(1, 2_000..6_096)]), [(d, whole(4_096))]);
        assert_eq!(filled(vec![range(2, 0..u64::MAX), range(0, 12_000..21_000)]), []);
    }

    #[test]
    fn directories_are_listed_before_their_files_unless_few_of_these_are_read() {
        let names = (0..9)
            .map(|number| format!("many/{number}"))
            .chain(["a/b/c", "a/b/d", "top"].map(str::to_owned));
        let files: Vec<FileMetadata> =
            (0..).zip(names).map(|(number, name)| file(&name, number * 1024, 512)).collect();
        let tree = Tree::flatten([&files[..]]).unwrap();
        let planned = |names: &[&str]| {
            let nodes: Vec<NodeId> =
                names.iter().map(|name| tree.resolve(name.as_bytes(), false).unwrap()).collect();
            let mut directories = Directories::of(&tree, &nodes);
            let (sender, steps) = channel();
            for node in nodes {
                directories.send(&tree, node, std::iter::once(0..1).collect(), &sender);
            }
            drop(sender);
            let path = |path: Vec<u8>| String::from_utf8(path).unwrap();
            let shown = steps.into_iter().map(|step| match step {
                FillStep::List(directory) => format!("list {}", path(directory)),
                FillStep::Read(file, _) => path(file),
            });
            shown.collect::<Vec<String>>()
        };
        assert_eq!(planned(&["many/3", "a/b/d"]), ["many/3", "list a/b", "a/b/d"]);
        assert_eq!(
            planned(&["many/3", "a/b/d", "many/1", "top", "a/b/c"]),
            ["list many", "many/3", "list a/b", "a/b/d", "many/1", "list ", "top", "a/b/c"]
        );
    }
}
