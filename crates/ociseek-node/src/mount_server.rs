//! What a server of many mounts notes down of each: the bytes fetched, and the record of a start.
//! And how it divides its memory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ociseek_format::image::config;
use ociseek_ops::mount::LiveMount;
use ociseek_ops::open::RootFs;
use ociseek_rootfs::content::{Content, RestStats};
use ociseek_rootfs::fuse::process_memory;
use ociseek_rootfs::record::{ReadRecorder, write_line};
use ociseek_store::durable::replace;
use ociseek_store::entries::{open_entry, open_own};

/// The least and the most memory for content, in bytes.
const CONTENT: (u64, u64) = (1 << 20, 64 << 20);

/// The most bytes of a file with what was fetched.
const MAX_FETCHED: u64 = 128;
/// The directory of the records, below the snapshotter's.
const DIR: &str = "starts";
/// The most files in the directory of the records.
const MAX_RECORDS: usize = 256;

/// A file with the number of bytes fetched for a mount, by all its servers, and how far the rest of
/// the image has been fetched.
pub(crate) struct FetchedFile {
    file: File,
    /// By earlier servers.
    before: u64,
    written: Option<Fetched>,
}

/// What such a file says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetched {
    /// The bytes that were fetched.
    pub bytes: u64,
    /// None if the rest is not fetched.
    pub rest: Option<RestStats>,
}

impl Fetched {
    /// What the file at `path` says. Nothing was fetched if it cannot be read.
    pub(crate) fn read(path: &Path) -> Fetched {
        let mut text = String::new();
        let opened = open_entry(path, MAX_FETCHED);
        let read = opened.and_then(|(mut file, _)| file.read_to_string(&mut text));
        Fetched::parse(read.map_or("", |_| &text))
    }

    fn parse(text: &str) -> Fetched {
        let line = text.lines().next().unwrap_or_default();
        let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
        let rest = match numbers[..] {
            [_, bytes, of_bytes, unfit_bytes] if of_bytes > 0 => {
                Some(RestStats { bytes, of_bytes, unfit_bytes })
            }
            _ => None,
        };
        Fetched { bytes: numbers.first().copied().unwrap_or(0), rest }
    }

    /// Of the same length each time, so that readers never see a part of it.
    fn line(&self) -> String {
        let RestStats { bytes, of_bytes, unfit_bytes } = self.rest.unwrap_or_default();
        format!("{:020} {bytes:020} {of_bytes:020} {unfit_bytes:020}\n", self.bytes)
    }
}

ociseek_format::opaque_debug!(FetchedFile);

impl FetchedFile {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub(crate) fn open(path: &Path) -> io::Result<FetchedFile> {
        let mut file = open_own(path)?;
        let mut text = String::new();
        (&mut file).take(MAX_FETCHED).read_to_string(&mut text)?;
        Ok(FetchedFile { file, before: Fetched::parse(&text).bytes, written: None })
    }

    /// Adds what this server has fetched to what earlier servers have, and returns the sum. The
    /// file may have been removed in the meantime, so it is not opened again.
    pub(crate) fn write(&mut self, fetched: u64, rest: Option<RestStats>) -> u64 {
        let fetched = Fetched { bytes: self.before.saturating_add(fetched), rest };
        if self.written != Some(fetched)
            && self.file.write_all_at(fetched.line().as_bytes(), 0).is_ok()
        {
            self.written = Some(fetched);
        }
        fetched.bytes
    }
}

/// Limits the content of each mount, so that all together and what else this process has in memory
/// take `memory` bytes. Blocks.
pub(crate) fn divide_memory(memory: u64, contents: &[Content]) {
    // What is not from files.
    let anonymous = process_memory("self", "status", "RssAnon").unwrap_or(0);
    let of_contents = contents.iter().map(Content::memory).fold(0, u64::saturating_add);
    let rest = memory.saturating_sub(anonymous.saturating_sub(of_contents));
    for content in contents {
        content.limit_memory(share(rest, contents.len()));
    }
}

fn share(rest: u64, mounts: usize) -> u64 {
    (rest / mounts.max(1) as u64).clamp(CONTENT.0, CONTENT.1)
}

/// The record of what is read soon after a mount, for the snapshotter: the start of an image's
/// first container.
pub struct StartRecord {
    recorder: Arc<ReadRecorder>,
    path: PathBuf,
}

ociseek_format::opaque_debug!(StartRecord);

impl StartRecord {
    /// The most reads of a record. Reads after these are not recorded.
    pub const MAX_READS: usize = 1 << 15;

    /// The file for the record of `image`, a name with a digest, of the snapshotter with the
    /// directory `root`.
    pub fn file_of(root: &Path, image: &str) -> Option<PathBuf> {
        let (_, digest) = image.rsplit_once('@')?;
        let (algorithm, hex) = digest.split_once(':')?;
        let is_plain =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        (is_plain(algorithm) && is_plain(hex))
            .then(|| root.join(DIR).join(format!("{algorithm}-{hex}.jsonl")))
    }

    /// Whether the mount shows all of the image, and no start of it was recorded before. The kernel
    /// would be given the files of that, and so read none of them through the mount.
    pub fn is_wanted(image: &RootFs, lowest_layers: Option<usize>) -> bool {
        let layers = config::diff_ids(&image.config).map_or(0, |diff_ids| diff_ids.len());
        lowest_layers.is_none_or(|lowest| lowest >= layers) && !image.content.has_recorded_start()
    }

    /// None if the mount records nothing.
    pub fn new(live: &LiveMount, path: Option<PathBuf>) -> Option<StartRecord> {
        Some(StartRecord { recorder: live.recorder()?, path: path? })
    }

    /// The file that it will be written to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the recording, and writes the file. Blocks.
    ///
    /// # Errors
    /// If the directory or the file cannot be written.
    pub fn write(&self) -> io::Result<()> {
        let mut text = Vec::new();
        self.recorder.end().iter().try_for_each(|touch| write_line(&mut text, touch))?;
        keep(&text, &self.path)
    }
}

/// Writes the file unless a longer one is there: a container that ended early must not replace the
/// record of a whole start.
fn keep(text: &[u8], path: &Path) -> io::Result<()> {
    let known = fs::metadata(path).map_or(0, |known| known.len());
    let Some(dir) = path.parent().filter(|_| text.len() as u64 > known) else { return Ok(()) };
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    replace(path, text)?;
    remove_oldest(dir)
}

/// Removes all but the newest files. What a crash left of a file counts, too.
fn remove_oldest(dir: &Path) -> io::Result<()> {
    let aged = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok::<_, io::Error>((entry.metadata()?.modified()?, entry.path()))
    };
    let mut files: Vec<(SystemTime, PathBuf)> =
        fs::read_dir(dir)?.filter_map(|entry| aged(entry).ok()).collect();
    files.sort_by(|one, other| other.cmp(one));
    for (_, path) in files.into_iter().skip(MAX_RECORDS) {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ociseek_store::recall::Recall;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn what_was_fetched_is_added_up_and_the_rest_is_that_of_the_last_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fetched");
        assert_eq!(Fetched::read(&path), Fetched::default());
        let rest = Some(RestStats { bytes: 5, of_bytes: 9, unfit_bytes: 3 });
        let mut file = FetchedFile::open(&path).unwrap();
        assert_eq!((file.write(7, None), file.write(8, rest)), (7, 8));
        assert_eq!(Fetched::read(&path), Fetched { bytes: 8, rest });
        assert_eq!(FetchedFile::open(&path).unwrap().write(2, None), 10);
        assert_eq!(Fetched::read(&path), Fetched { bytes: 10, rest: None });
    }

    #[test]
    fn what_is_no_file_is_neither_waited_for_nor_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("other"), "7").unwrap();
        std::os::unix::fs::symlink(at("other"), at("link")).unwrap();
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for name in ["link", "fifo"] {
            assert!(FetchedFile::open(&at(name)).is_err(), "{name}");
            assert_eq!(Fetched::read(&at(name)), Fetched::default(), "{name}");
            assert!(Recall::read(&at(name)).is_none(), "{name}");
        }
        assert_eq!(fs::read_to_string(at("other")).unwrap(), "7");
    }

    #[test]
    fn mounts_share_the_memory_within_limits() {
        const MIB: u64 = 1 << 20;
        for (rest, mounts, wanted) in [(512, 0, 64), (512, 1, 64), (512, 16, 32), (7, 30, 1)] {
            assert_eq!(share(rest * MIB, mounts) / MIB, wanted, "{rest} {mounts}");
        }
    }

    #[test]
    fn records_are_named_after_the_image_manifest() {
        let named = |image: &str| {
            StartRecord::file_of(Path::new("/r"), image).map(|path| path.display().to_string())
        };
        assert_eq!(named("host/app:1@sha256:ab12").as_deref(), Some("/r/starts/sha256-ab12.jsonl"));
        for odd in ["host/app:1", "host/app@sha256", "host/app@sha256:../x", "host/app@:ab"] {
            assert_eq!(named(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_longer_record_replaces_a_shorter_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts/one.jsonl");
        for (text, written) in
            [("", None), ("two", Some("two")), ("1", Some("two")), ("three", Some("three"))]
        {
            keep(text.as_bytes(), &path).unwrap();
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), written);
        }
        assert_eq!(fs::read_dir(dir.path().join("starts")).unwrap().count(), 1);
    }

    #[test]
    fn only_the_newest_records_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..=MAX_RECORDS {
            let file = fs::File::create(dir.path().join(number.to_string())).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(number as u64)).unwrap();
        }
        remove_oldest(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), MAX_RECORDS);
        assert!(!dir.path().join("0").exists());
    }
}
