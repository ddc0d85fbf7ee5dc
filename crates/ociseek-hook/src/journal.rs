//! A file with the accepted jobs that are not done, which survives the process and its machine,
//! however they end. A line of JSON is written before an event is answered, when a job is started,
//! and when it is done. The next start reads the lines to find the remaining jobs.
//!
//! A crash may leave an incomplete last line, which is ignored. Before an event is answered, the
//! lines are also synced to disk ([`Journal::sync`]). A power failure may lose the others: then a
//! job runs once more, which changes nothing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::backlog::Item;
use super::job::{Job, Unit};
use ociseek_store::durable::sync_name;
use ociseek_store::lock::Hold;
use ociseek_store::state_file::lock_file;

/// The size limit of a line that is read, in bytes.
const MAX_LINE: u64 = 4096;
/// The file is rewritten when it has this many lines, most of them for jobs that are done.
const COMPACT: usize = 4096;

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("journal {path}: cannot be {what}", path = .path.display())]
pub struct JournalError {
    path: PathBuf,
    what: &'static str,
    source: io::Error,
}

impl JournalError {
    /// The directory of the file, if it does not exist.
    pub fn missing_dir(&self) -> Option<&Path> {
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty())?;
        (self.source.kind() == io::ErrorKind::NotFound && !dir.exists()).then_some(dir)
    }
}

/// A line.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Accepted(Job),
    Begun(Job),
    /// The job was started, and did not end by its own fault.
    Released(Job),
    Done(Job),
    /// The job is done, and the same one was accepted meanwhile. A crash could separate two lines.
    Renewed(Job),
}

/// The file in which jobs survive the process.
pub struct Journal {
    unit: Unit,
    shared: Arc<Shared>,
    /// How many lines were synced, by the number of the last one. Locked during a sync, so that
    /// events that arrive meanwhile share the next one.
    synced: tokio::sync::Mutex<u64>,
}

ociseek_format::opaque_debug!(Journal);

struct Shared {
    path: PathBuf,
    inner: Mutex<Inner>,
    /// Held during a sync, which continues if its event's connection is lost.
    syncing: Mutex<()>,
}

struct Inner {
    file: Arc<File>,
    /// The number of the last line since the start.
    last: u64,
    /// A sync failed, so the disk may lack lines that the kernel no longer has.
    doubtful: bool,
    open: OpenJobs,
    lines: usize,
    /// The last line may be incomplete, because the disk was full.
    torn: bool,
    /// The lines that the file's successor lacks, while that is written.
    since: Option<Vec<u8>>,
    /// Prevents other processes from writing here.
    _lock: File,
}

impl Journal {
    /// Opens or creates the file and reads the unfinished jobs. `unit` decides which jobs are the
    /// same.
    ///
    /// # Errors
    /// If the file cannot be read or written, is something else than a journal, or another process
    /// uses it.
    pub fn open(path: &Path, unit: Unit) -> Result<(Journal, Vec<Item>), JournalError> {
        let failed = |what| move |source| JournalError { path: path.to_owned(), what, source };
        // Before anything is made beside it.
        OpenJobs::at(path, unit).map_err(failed("read"))?;
        let lock = path.with_added_extension("lock");
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock);
        let lock = lock.map_err(failed("locked"))?;
        lock_file(&lock).map_err(|error| {
            failed("locked")(match error.kind() {
                kind @ io::ErrorKind::WouldBlock => {
                    io::Error::new(kind, "another ociseek process uses it")
                }
                _ => error,
            })
        })?;
        let open = OpenJobs::at(path, unit).map_err(failed("read"))?;
        let items = open.in_order().into_iter().cloned().collect();
        let file = successor(path, &open.lines()).map_err(failed("written"))?;
        replace(path).and_then(|()| sync_name(path)).map_err(failed("written"))?;
        let file = Arc::new(file);
        let lines = open.by_key.len();
        let inner = Inner {
            file,
            last: 0,
            doubtful: false,
            open,
            lines,
            torn: false,
            since: None,
            _lock: lock,
        };
        let shared =
            Shared { path: path.to_owned(), inner: Mutex::new(inner), syncing: Mutex::default() };
        Ok((Journal { unit, shared: Arc::new(shared), synced: tokio::sync::Mutex::new(0) }, items))
    }

    /// Returns when the lines that were written before are on the disk.
    ///
    /// # Errors
    /// If they could not be written there. Then the event must not be confirmed.
    pub async fn sync(&self) -> Result<(), JournalError> {
        let failed =
            |source| JournalError { path: self.shared.path.clone(), what: "synced", source };
        let mut synced = self.synced.lock().await;
        let last = self.shared.inner.hold().last;
        if *synced < last {
            let shared = Arc::clone(&self.shared);
            let done = tokio::task::spawn_blocking(move || shared.sync()).await;
            done.unwrap_or_else(|error| Err(error.into())).map_err(failed)?;
            *synced = last;
        }
        Ok(())
    }

    /// # Errors
    /// If it could not be written. Then the job must not be accepted.
    pub fn accepted(&self, item: &Item) -> Result<(), JournalError> {
        self.write(&Line::Accepted(item.job.clone()))
    }

    /// # Errors
    /// If it could not be written.
    pub fn begun(&self, item: &Item) -> Result<(), JournalError> {
        self.write(&Line::Begun(item.job.clone()))
    }

    /// # Errors
    /// If it could not be written.
    pub fn released(&self, item: &Item) -> Result<(), JournalError> {
        self.write(&Line::Released(item.job.clone()))
    }

    /// Records the end of a job. `next` is a job with the same name that was accepted in the
    /// meantime.
    ///
    /// # Errors
    /// If it could not be written. Then the job will be repeated, which changes nothing.
    pub fn done(&self, item: &Item, next: Option<&Item>) -> Result<(), JournalError> {
        let line = next
            .map_or_else(|| Line::Done(item.job.clone()), |next| Line::Renewed(next.job.clone()));
        self.write(&line)
    }

    fn write(&self, line: &Line) -> Result<(), JournalError> {
        let failed =
            |source| JournalError { path: self.shared.path.clone(), what: "written", source };
        let mut inner = self.shared.inner.hold();
        let mut text = if inner.torn { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut text, line).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        let written = inner.file.as_ref().write_all(&text);
        inner.torn = written.is_err();
        written.map_err(failed)?;
        if let Some(since) = &mut inner.since {
            since.extend_from_slice(&text);
        }
        inner.lines += 1;
        inner.last += 1;
        inner.open.apply(line, self.unit);
        Ok(())
    }
}

impl Shared {
    /// Syncs the file. Replaces it if that fails, because the kernel forgets what it could not
    /// write and would report success the next time, and if most of its lines are for jobs that are
    /// done.
    fn sync(&self) -> io::Result<()> {
        let _one_at_a_time = self.syncing.hold();
        let (file, is_long) = {
            let inner = self.inner.hold();
            let is_long = inner.lines > COMPACT && inner.lines > 4 * inner.open.by_key.len();
            ((!inner.doubtful).then(|| Arc::clone(&inner.file)), is_long)
        };
        // If there is no space for a new file, or no descriptor, the old file is used for as many
        // lines again.
        if is_long && self.renew().is_ok() {
            return Ok(());
        }
        if file.is_some_and(|file| file.sync_data().is_ok()) {
            return Ok(());
        }
        self.inner.hold().doubtful = true;
        self.renew()
    }

    /// Writes the unfinished jobs to a new file, on the disk, and continues there. Nobody who
    /// writes a line meanwhile waits for the disk.
    fn renew(&self) -> io::Result<()> {
        let jobs = {
            let mut inner = self.inner.hold();
            inner.since = Some(Vec::new());
            inner.lines = inner.open.by_key.len();
            inner.open.lines()
        };
        let file = successor(&self.path, &jobs);
        {
            let mut inner = self.inner.hold();
            let since = inner.since.take().unwrap_or_default();
            let mut file = file?;
            file.write_all(&since)?;
            replace(&self.path)?;
            inner.file = Arc::new(file);
            inner.torn = false;
        }
        let named = sync_name(&self.path);
        self.inner.hold().doubtful = named.is_err();
        named
    }
}

/// The unfinished jobs by key, each with its number in the order in which they were accepted.
#[derive(Default)]
struct OpenJobs {
    by_key: HashMap<String, (u64, Item)>,
    accepted: u64,
}

impl OpenJobs {
    /// Those of the file at `path`, if there is one.
    fn at(path: &Path, unit: Unit) -> io::Result<OpenJobs> {
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => OpenJobs::read(File::open(path)?, unit),
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(OpenJobs::default()),
            Err(error) => Err(error),
        }
    }

    /// # Errors
    /// If the file has lines, and none of them can be one of a journal: the journal would replace
    /// it.
    fn read(file: File, unit: Unit) -> io::Result<OpenJobs> {
        let mut reader = BufReader::new(file);
        let mut open = OpenJobs::default();
        let mut line = Vec::new();
        let mut is_other = false;
        loop {
            line.clear();
            if reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            // Incomplete lines were never confirmed to anyone.
            match serde_json::from_slice(&line) {
                Ok(line) => open.apply(&line, unit),
                Err(_) => is_other |= !is_torn(&line),
            }
        }
        if is_other && open.accepted == 0 {
            let why = "it is not a journal of ociseek, and would be replaced: name another file";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(open)
    }

    fn apply(&mut self, line: &Line, unit: Unit) {
        self.accepted += 1;
        let new = |job: &Job| (self.accepted, Item { job: job.clone(), tries: 0 });
        match line {
            Line::Accepted(job) => {
                self.by_key.entry(job.key(unit)).or_insert_with(|| new(job));
            }
            Line::Begun(job) => {
                self.by_key.entry(job.key(unit)).or_insert_with(|| new(job)).1.tries += 1
            }
            Line::Released(job) => {
                if let Some((_, item)) = self.by_key.get_mut(&job.key(unit)) {
                    item.tries = item.tries.saturating_sub(1);
                }
            }
            Line::Done(job) => drop(self.by_key.remove(&job.key(unit))),
            Line::Renewed(job) => drop(self.by_key.insert(job.key(unit), new(job))),
        }
    }

    fn in_order(&self) -> Vec<&Item> {
        let mut jobs: Vec<&(u64, Item)> = self.by_key.values().collect();
        jobs.sort_by_key(|(number, _)| *number);
        jobs.into_iter().map(|(_, item)| item).collect()
    }

    /// The lines of a file that has no others.
    fn lines(&self) -> Vec<Line> {
        let lines = |item: &Item| {
            let tries = std::iter::repeat_n(Line::Begun(item.job.clone()), item.tries as usize);
            std::iter::once(Line::Accepted(item.job.clone())).chain(tries)
        };
        self.in_order().into_iter().flat_map(lines).collect()
    }
}

/// Whether a crash can have left this of a line: its beginning, or zeros in place of what was not
/// on the disk yet.
fn is_torn(line: &[u8]) -> bool {
    const KINDS: [&[u8]; 5] =
        [b"{\"accepted\":", b"{\"begun\":", b"{\"released\":", b"{\"done\":", b"{\"renewed\":"];
    let line = line.trim_ascii_end();
    let written = line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let begins = &line[..written];
    KINDS.iter().any(|kind| begins.starts_with(kind) || kind.starts_with(begins))
}

/// The name of a file that is about to replace the one at `path`.
fn new_name(path: &Path) -> PathBuf {
    path.with_added_extension("new")
}

/// Writes a new file with these lines, on the disk. Further lines use the same descriptor, because
/// opening the new file by name could fail after the old one has lost its name.
fn successor(path: &Path, lines: &[Line]) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(new_name(path))?;
    file.set_len(0)?;
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    file.write_all(&text)?;
    file.sync_all()?;
    Ok(file)
}

/// Gives the new file the name of the old one.
fn replace(path: &Path) -> io::Result<()> {
    std::fs::rename(new_name(path), path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn item(n: u32) -> Item {
        Item { job: Job { image: format!("r.example/a:{n}").parse().unwrap() }, tries: 0 }
    }

    fn reopened(path: &Path) -> Vec<(String, u32)> {
        let (_, items) = Journal::open(path, Unit::Image).unwrap();
        items.into_iter().map(|item| (item.job.target().to_string(), item.tries)).collect()
    }

    #[test]
    fn unfinished_jobs_are_restored_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, items) = Journal::open(&path, Unit::Image).unwrap();
        assert!(items.is_empty());
        for n in [3, 1, 2, 4] {
            journal.accepted(&item(n)).unwrap();
        }
        journal.begun(&Item { tries: 1, ..item(1) }).unwrap();
        journal.begun(&Item { tries: 1, ..item(2) }).unwrap();
        journal.begun(&Item { tries: 1, ..item(4) }).unwrap();
        journal.released(&item(4)).unwrap();
        journal.done(&item(2), None).unwrap();
        assert!(Journal::open(&path, Unit::Image).is_err(), "one process at a time");
        drop(journal);
        let want = [("3".to_owned(), 0), ("1".to_owned(), 1), ("4".to_owned(), 0)];
        assert_eq!(reopened(&path), want);
        // Reading changes neither the jobs nor their order.
        for _ in 0..5 {
            assert_eq!(reopened(&path), want);
        }
    }

    #[test]
    fn damage_affects_only_its_own_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path, Unit::Image).unwrap();
        journal.accepted(&item(1)).unwrap();
        drop(journal);
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(b"\0\xff\n");
        text.extend_from_slice("x".repeat(10_000).as_bytes());
        text.extend_from_slice(
            b"\n{\"accepted\":{\"registry\":\"r.example\",\"repository\":\"../x\",\"tag\":\"t\"}}\n",
        );
        text.extend_from_slice(b"{\"accepted\":{\"registry\":\"r.exa");
        std::fs::write(&path, text).unwrap();
        assert_eq!(reopened(&path), [("1".to_owned(), 0)]);
    }

    #[test]
    fn what_is_not_a_journal_is_refused_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        for text in ["root:x:0:0:root:/root:/bin/bash\n", "{\n  \"auths\": {}\n}\n", "[1]"] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::open(&path, Unit::Image).map(drop).unwrap_err();
            assert!(error.source.to_string().contains("not a journal"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        for special in [dir.path(), Path::new("/dev/null")] {
            assert!(Journal::open(special, Unit::Image).is_err());
        }
        // What a crash can leave of a new journal.
        for text in ["", "{\"acc", "{\"accepted\":{\"registry\":\"r.exa", "\0\0\0\0"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(reopened(&path), []);
        }
    }

    #[tokio::test]
    async fn the_journal_does_not_grow_with_finished_jobs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path, Unit::Image).unwrap();
        journal.accepted(&item(0)).unwrap();
        for n in 1..3 * COMPACT as u32 {
            journal.accepted(&item(n)).unwrap();
            journal.done(&item(n), None).unwrap();
            if n % 512 == 0 {
                journal.sync().await.unwrap();
            }
        }
        drop(journal);
        assert!(std::fs::metadata(&path).unwrap().len() < 2 * COMPACT as u64 * 100);
        assert_eq!(reopened(&path), [("0".to_owned(), 0)]);
    }

    #[test]
    fn a_job_accepted_during_another_survives_the_end_of_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path, Unit::Image).unwrap();
        let first = Item { tries: 1, ..item(1) };
        journal.accepted(&item(1)).unwrap();
        journal.begun(&first).unwrap();
        journal.accepted(&item(1)).unwrap();
        journal.accepted(&item(2)).unwrap();
        let before = std::fs::metadata(&path).unwrap().len();
        journal.done(&first, Some(&item(1))).unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(
            reopened(&path),
            [("2".to_owned(), 0), ("1".to_owned(), 0)],
            "it is the last in the line"
        );
        // A full disk or a crash may cut the write short at any byte.
        for length in before as usize..whole.len() - 1 {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(reopened(&path), [("1".to_owned(), 1), ("2".to_owned(), 0)], "{length}");
        }
    }

    #[tokio::test]
    async fn after_a_failed_sync_the_jobs_go_to_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path, Unit::Image).unwrap();
        let file = || std::fs::metadata(&path).unwrap().ino();
        let first = file();
        journal.accepted(&item(1)).unwrap();
        journal.sync().await.unwrap();
        assert_eq!(file(), first);
        // As the kernel leaves it: the lines are lost, and the next sync would succeed.
        journal.shared.inner.hold().doubtful = true;
        journal.shared.inner.hold().file.set_len(0).unwrap();
        journal.accepted(&item(2)).unwrap();
        let in_the_way = path.with_added_extension("new");
        std::fs::create_dir(&in_the_way).unwrap();
        for _ in 0..2 {
            journal.sync().await.unwrap_err();
        }
        std::fs::remove_dir(&in_the_way).unwrap();
        journal.sync().await.unwrap();
        let second = file();
        assert_ne!(second, first);
        journal.accepted(&item(3)).unwrap();
        journal.sync().await.unwrap();
        assert_eq!(file(), second);
        drop(journal);
        let mut left = reopened(&path);
        left.sort();
        assert_eq!(left, [1, 2, 3].map(|n| (n.to_string(), 0)));
    }

    #[test]
    fn lines_that_are_written_while_the_file_is_replaced_are_in_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path, Unit::Image).unwrap();
        let written = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !written.load(std::sync::atomic::Ordering::SeqCst) {
                    journal.shared.renew().unwrap();
                }
            });
            for n in 0..2000 {
                journal.accepted(&item(n)).unwrap();
                if n % 2 == 0 {
                    journal.done(&item(n), None).unwrap();
                }
            }
            written.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        drop(journal);
        let left: Vec<_> = (0..1000).map(|n| ((2 * n + 1).to_string(), 0)).collect();
        assert_eq!(reopened(&path), left);
    }

    #[tokio::test]
    async fn a_journal_that_cannot_be_compacted_is_still_appended_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, _) = Journal::open(&path, Unit::Image).unwrap();
        let in_the_way = path.with_added_extension("new");
        std::fs::create_dir(&in_the_way).unwrap();
        journal.accepted(&item(0)).unwrap();
        for n in 1..COMPACT as u32 {
            journal.accepted(&item(n)).unwrap();
            journal.done(&item(n), None).unwrap();
        }
        journal.sync().await.unwrap();
        journal.accepted(&item(1)).unwrap();
        drop(journal);
        std::fs::remove_dir(&in_the_way).unwrap();
        assert_eq!(reopened(&path), [("0".to_owned(), 0), ("1".to_owned(), 0)]);
    }
}
