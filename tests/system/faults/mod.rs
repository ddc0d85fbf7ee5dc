//! A mount in which something fails while its files are read through the kernel: a request to the
//! registry, or an access to the cache.
//!
//! `OCISEEK_FAULT_POINTS` says which points, as for the tests in `tests/servers/fault_points`.

mod cache;
mod requests;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde_json::json;
use tokio::runtime::Runtime;

use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::mounts::{self, MountProcess, mounts_below, wait_until};
use ociseek_testkit::sandbox::{Sandbox, tar};

/// What is read at a time.
const PIECE: usize = 1_000_000;
/// What takes longer hangs. A read takes three seconds at most, by `--deadline`; a busy machine
/// adds to it.
const HANGS: Duration = Duration::from_secs(60);
/// By what the image is read.
const KINDS: [&str; 3] = ["SOCI index", "fine index with a recorded start", "no index"];

/// Names and contents.
type Files = Arc<Vec<(String, Vec<u8>)>>;

/// An image, and its files.
struct Image {
    registry: Faulty,
    files: Files,
    /// The digest of the document, if it has a fine index.
    document: Option<String>,
}

impl Image {
    /// An image with that many files of that size.
    fn new(runtime: &Runtime, kind: &str, (number, size): (usize, usize)) -> Image {
        let tar = tar(1, number, size);
        let settings =
            RegistrySettings { referrers: true, bearer: Some(None), ..RegistrySettings::default() };
        let registry = runtime.block_on(Faulty::honest(settings));
        registry.add_image("v1", &tar);
        let name = format!("{}/a/b:v1", registry.host());
        let document = match kind {
            "SOCI index" => {
                mounts::index(&Sandbox::new(), &name);
                None
            }
            "no index" => None,
            _ => Some(fine_index(&name, size)),
        };
        Image { registry, files: Arc::new(files(&tar)), document }
    }
}

/// The files of a tar.
fn files(tar: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(tar).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
        if entry.header().entry_type().is_file() {
            files.push((path, content));
        }
    }
    files
}

/// A sandbox with an empty directory `mnt`, and the arguments of `mount`.
fn place(registry: &Faulty) -> (Sandbox, Vec<String>) {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let name = format!("{}/a/b:v1", registry.host());
    let args = [
        "mount",
        "--deadline=3",
        "--stall-timeout=1s",
        "--retry-for=1s",
        "--cache-dir=cache",
        &name,
        "mnt",
    ];
    (sandbox, args.map(str::to_owned).to_vec())
}

/// How many reads failed, all of them with EIO. Who gets an error reads one more piece, and gives
/// up.
fn read_all(mnt: &Path, files: &[(String, Vec<u8>)]) -> Result<usize, String> {
    let mut failed = 0;
    for (name, content) in files {
        let file = File::open(mnt.join(name)).map_err(|e| format!("{name}: {e}"))?;
        for at in (0..content.len()).step_by(PIECE) {
            let wanted = &content[at..(at + PIECE).min(content.len())];
            let mut piece = vec![0; wanted.len()];
            match file.read_exact_at(&mut piece, at as u64) {
                Ok(()) if piece == wanted => {}
                Ok(()) => return Err(format!("{name}: wrong bytes at {at}")),
                Err(e) if e.raw_os_error() != Some(Errno::IO.raw_os_error()) => {
                    return Err(format!("{name}: {e}"));
                }
                Err(_) if failed == 1 => return Ok(2),
                Err(_) => failed += 1,
            }
        }
    }
    Ok(failed)
}

/// As [`read_all`], on a thread that is left behind if it hangs.
fn read_in_time(mnt: PathBuf, files: &Files) -> Result<usize, String> {
    let (sender, receiver) = mpsc::channel();
    let files = Arc::clone(files);
    std::thread::spawn(move || sender.send(read_all(&mnt, &files)));
    receiver.recv_timeout(HANGS).map_err(|_| "a read hangs".to_owned())?
}

/// Reads all until nothing fails. What missed the deadline is not waited for again within a second.
fn read_without_fault(mnt: &Path, files: &Files) -> Result<(), String> {
    let begun = Instant::now();
    while read_in_time(mnt.to_owned(), files)? > 0 {
        if begun.elapsed() > HANGS {
            return Err("without the fault, reads still fail".to_owned());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Unmounts it; the process ends well, and nothing is left.
fn unmount(sandbox: &Sandbox, mut serving: MountProcess) -> Result<(), String> {
    // A program that another thread starts at this moment has the files that were open until it
    // runs.
    let unmounted = || {
        !matches!(
            rustix::mount::unmount(sandbox.path("mnt"), UnmountFlags::empty()),
            Err(Errno::BUSY)
        )
    };
    wait_until("the mount is not busy", unmounted);
    let status = serving.end();
    let left = mounts_below(sandbox.dir.path());
    match status.code() {
        Some(0) if left.is_empty() => Ok(()),
        _ => Err(format!("after unmounting: {status}, {left:?}, {}", serving.stderr())),
    }
}

/// Attaches a fine index to the image, with a start that reads the second file and then the end of
/// the first. Returns the digest of its document.
fn fine_index(name: &str, size: usize) -> String {
    let sandbox = Sandbox::new();
    let piece = size / 6;
    let read = |file: &str, offset: usize| {
        let path = format!("dir1/{file}");
        json!({"ms": 1.0, "path": path, "layer": "sha256:0", "offset": offset, "size": piece, "spans": []}).to_string()
    };
    let start = [read("file1", 0), read("file0", size - piece)].join("\n");
    std::fs::write(sandbox.path("start.jsonl"), start).unwrap();
    let args = [
        "index",
        "--format=json",
        "--kind=fine",
        "--profile=start.jsonl",
        "--min-layer-size=0",
        "--no-cache",
    ];
    let report = sandbox.json(0, &[&args[..], &[name]].concat());
    let document = &report["images"][0]["manifests"][0]["fine"]["documents"][0];
    assert!(document["start_size"].as_u64() > document["head_size"].as_u64(), "{document}");
    document["digest"].as_str().unwrap().to_owned()
}
