//! What a disk holds after a power failure, of a folder for which [`super::inject`] has noted what
//! was synced. File systems differ in what they keep of the rest.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::inject::{Fault, Report};

/// Names are kept, content is not: new files are empty, appended bytes are gone. ext4 and XFS write
/// names in their order.
pub const NAMES: Fault = ("writes", "power, names last");
/// Names and sizes are kept, and the content that was not synced is zero.
pub const ZEROS: Fault = ("writes", "power, sizes last");
/// Nothing is kept, not even names (all that POSIX promises).
pub const NOTHING: Fault = ("writes", "power, nothing lasts");
pub const POWER_FAILURES: [Fault; 3] = [NAMES, ZEROS, NOTHING];

/// Whether a fault is a power failure. Then [`fail`] must be called when the process has ended.
pub fn is_power_failure(fault: Fault) -> bool {
    POWER_FAILURES.contains(&fault)
}

/// Leaves in `dir` only what lasts, by the report of the run.
pub fn fail(dir: &Path, report: &Report, fault: Fault) {
    let synced = &report.synced();
    if fault == NOTHING {
        let root = identity(&dir.metadata().unwrap());
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap()
            } else {
                fs::remove_file(entry.path()).unwrap()
            }
        }
        restore(dir, synced, &root);
    } else {
        cut(dir, synced, fault == ZEROS);
    }
}

/// The name that `inject.c` gives to a file.
fn identity(metadata: &Metadata) -> String {
    let created = metadata.created().expect("the file system keeps the time of creation");
    let created = created.duration_since(UNIX_EPOCH).unwrap();
    format!("{}-{}-{}", metadata.ino(), created.as_secs(), created.subsec_nanos())
}

/// Cuts all files below `dir` back to the content that was synced.
fn cut(dir: &Path, synced: &Path, keeps_sizes: bool) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            cut(&path, synced, keeps_sizes);
            continue;
        }
        let mut content = fs::read(synced.join(identity(&metadata))).unwrap_or_default();
        if keeps_sizes {
            content.resize(metadata.len() as usize, 0);
        }
        fs::write(path, content).unwrap();
    }
}

/// Fills `dir` with what was synced of the folder `identity`.
fn restore(dir: &Path, synced: &Path, identity: &str) {
    let names = fs::read_to_string(synced.join(format!("{identity}.names"))).unwrap_or_default();
    for line in names.lines() {
        let mut fields = line.splitn(3, ' ');
        let mut field = || fields.next().unwrap();
        let kind = field();
        let identity = field();
        let path = dir.join(field());
        if kind == "d" {
            fs::create_dir(&path).unwrap();
            restore(&path, synced, identity);
        } else if synced.join(identity).exists() {
            fs::copy(synced.join(identity), path).unwrap();
        } else {
            File::create(path).unwrap();
        }
    }
}
