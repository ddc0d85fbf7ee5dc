//! Records what is read soon after a mount, for the snapshotter: the start of an image's first
//! container.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::block_in_place;

use super::OpenedImage;
use ociseek_format::image::config;
use ociseek_ops::mount::LiveMount;
use ociseek_rootfs::record::{ReadRecorder, write_line};
use ociseek_store::durable::replace;

/// The most reads of a record. Reads after these are not recorded.
pub(super) const MAX_READS: usize = 1 << 15;
/// The most files in the directory of the records.
const MAX_RECORDS: usize = 256;

/// A record that is not written yet.
pub(super) struct StartRecord {
    recorder: Arc<ReadRecorder>,
    path: PathBuf,
}

/// Whether the mount shows all of the image, and no start of it was recorded before. The kernel
/// would be given the files of that, and so read none of them through the mount.
pub(super) fn is_wanted(opened: &OpenedImage, lowest_layers: Option<usize>) -> bool {
    let layers = config::diff_ids(&opened.image.config).map_or(0, |diff_ids| diff_ids.len());
    lowest_layers.is_none_or(|lowest| lowest >= layers) && !opened.image.content.has_recorded_start()
}

impl StartRecord {
    /// None if the mount records nothing.
    pub(super) fn new(live: &LiveMount, path: Option<PathBuf>) -> Option<StartRecord> {
        Some(StartRecord { recorder: live.recorder()?, path: path? })
    }

    /// Writes the record, if any, after `time`.
    pub(super) async fn after(record: &mut Option<StartRecord>, time: Duration, opened: &OpenedImage) -> Infallible {
        tokio::time::sleep(time).await;
        StartRecord::end(record, opened);
        std::future::pending().await
    }

    /// Writes the record, if any.
    pub(super) fn end(record: &mut Option<StartRecord>, opened: &OpenedImage) {
        let Some(StartRecord { recorder, path }) = record.take() else { return };
        if let Err(error) = block_in_place(|| write(&recorder, &path)) {
            opened.warn(&format!("the start is not recorded: {}: {error}", path.display()));
        }
    }
}

fn write(recorder: &ReadRecorder, path: &Path) -> io::Result<()> {
    let mut text = Vec::new();
    recorder.end().iter().try_for_each(|touch| write_line(&mut text, touch))?;
    keep(&text, path)
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
    let mut files: Vec<(SystemTime, PathBuf)> = fs::read_dir(dir)?.filter_map(|entry| aged(entry).ok()).collect();
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
    use super::*;

    #[test]
    fn a_longer_record_replaces_a_shorter_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts/one.jsonl");
        for (text, kept) in [("", None), ("two", Some("two")), ("1", Some("two")), ("three", Some("three"))] {
            keep(text.as_bytes(), &path).unwrap();
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), kept);
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
