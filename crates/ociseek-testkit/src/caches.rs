//! What both caches on disk are tested for: the one of ztocs and the one of spans.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ociseek_format::progress::{Progress, Recorder};

use super::child_process::ChildProcess;
use super::this_test;

/// Starts a process that runs the test `child_writer` of the module on the cache `dir`, until it is
/// killed or for a short time.
pub fn writer(module: &str, dir: &Path, forever: bool) -> ChildProcess {
    let mut command = this_test(module, "child_writer");
    command.env("OCISEEK_TEST_CACHE", dir).stdout(Stdio::null());
    if forever {
        command.env("OCISEEK_TEST_FOREVER", "1");
    }
    ChildProcess::spawn(&mut command)
}

/// In such a process: the cache, and the range of rounds to write.
pub fn written_by_this_process() -> Option<(PathBuf, RangeInclusive<u64>)> {
    let dir = std::env::var_os("OCISEEK_TEST_CACHE")?;
    let forever = std::env::var_os("OCISEEK_TEST_FOREVER").is_some();
    Some((dir.into(), 0..=if forever { u64::MAX } else { 10 }))
}

/// Replaces the entry at `path` with what is none, such as a symbolic link, and calls `check` with
/// its name, which has to bring the entry back.
pub fn spoil_entry(path: &Path, check: impl Fn(&str)) {
    let good = fs::read(path).unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::write(outside.path(), &good).unwrap();
    fs::write(path, [&good[..], b"x"].concat()).unwrap();
    check("a longer file");
    fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink(outside.path(), path).unwrap();
    check("a symbolic link");
    assert!(outside.path().exists());
    fs::remove_file(path).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    check("a FIFO");
    fs::remove_file(path).unwrap();
    fs::create_dir_all(path.join("full")).unwrap();
    check("a directory");
    fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
    check("a file of a tebibyte");
}

/// Checks that a cache in a folder that cannot be used warns once. `put` puts an entry and checks
/// that the cache does not have it.
pub fn assert_warns_once<Cache>(
    open: impl Fn(&Path, Arc<dyn Progress>) -> Cache,
    put: impl Fn(&Cache),
) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    // Root can write anywhere, so use a directory that cannot be created: below a file, or replaced
    // by a file.
    let gone = dir.path().join("gone");
    for path in [file.join("cache"), file.clone(), gone.clone()] {
        let recorder = Arc::new(Recorder::default());
        let cache = open(&path, Arc::clone(&recorder) as Arc<dyn Progress>);
        if fs::remove_dir_all(&gone).is_ok() {
            fs::write(&gone, "x").unwrap();
        }
        (0..3).for_each(|_| put(&cache));
        assert_eq!(recorder.events().len(), 1, "{}: {:?}", path.display(), recorder.events());
    }
}
