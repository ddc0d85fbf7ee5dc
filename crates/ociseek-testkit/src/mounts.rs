//! Mounts for tests: creates images from directories, runs the program that serves them, and
//! compares the mounted files with the packed ones.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ociseek_format::digest::Digest;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::PATIENCE;
use crate::child_process::ChildProcess;
use crate::image::Image;
use crate::sandbox::{GZIP, Sandbox};
use crate::servers::skip;

/// Whether this test can mount. Prints a line if not.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && std::fs::File::open("/dev/fuse").is_ok();
    if !can {
        skip("mounting wants root and /dev/fuse");
    }
    can
}

/// Whether all these programs are installed. Prints a line if not.
pub fn have(programs: &[&str]) -> bool {
    programs.iter().all(|program| crate::servers::tool(program).is_some())
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Unmounts a directory. Tries again while it is busy: a file that this process has just read may
/// still be open in a program that another test is starting, until that program is executed.
pub fn unmount(dir: &Path) {
    let attempt = || Command::new("umount").arg(dir).stdin(Stdio::null()).output().unwrap();
    wait_until("umount", || {
        let output = attempt();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || stderr.contains("target is busy"), "{stderr}");
        output.status.success()
    });
}

/// The mounts below a directory, as the kernel lists them.
pub fn mounts_below(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let list = std::fs::read_to_string("/proc/mounts").unwrap();
    list.lines()
        .filter(|line| line.split(' ').nth(1).is_some_and(|at| at.starts_with(dir)))
        .map(str::to_owned)
        .collect()
}

/// Runs a program of the system, which must succeed.
pub fn system(program: &str, args: &[&OsStr]) -> String {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes a file system of this many bytes in the file `disk`, and mounts it on `dir`.
pub fn mount_disk(disk: &Path, bytes: u64, dir: &Path) {
    std::fs::File::create(disk).unwrap().set_len(bytes).unwrap();
    system("mkfs.ext4", &["-q".as_ref(), disk.as_os_str()]);
    system("mount", &["-o".as_ref(), "loop".as_ref(), disk.as_os_str(), dir.as_os_str()]);
}

/// A file system that does not answer who writes. It thaws when this is dropped.
pub struct Frozen<'a>(&'a Path);

impl Frozen<'_> {
    pub fn new(dir: &Path) -> Frozen<'_> {
        system("fsfreeze", &["-f".as_ref(), dir.as_os_str()]);
        Frozen(dir)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        system("fsfreeze", &["-u".as_ref(), self.0.as_os_str()]);
    }
}

/// Everything below `dir` as a tar, packed by GNU tar with all attributes that it supports.
pub fn packed(dir: &Path) -> Vec<u8> {
    let output = Command::new("tar")
        .args([
            "--create",
            "--format=pax",
            "--xattrs",
            "--xattrs-include=*",
            "--numeric-owner",
            "--sort=name",
        ])
        // Otherwise up to 10 KiB of zeros follow the tar's end. If a span begins in them, which
        // depends on the times of the files, the layer has no ztoc.
        .args(["--blocking-factor=1", "-C"])
        .arg(dir)
        .arg(".")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Compresses `content`, so that the spans of the blob do not coincide with the content.
pub fn compressed(content: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// The config of an image with these layers, where `run` is the runtime part.
pub fn config(tars: &[Vec<u8>], run: &Value) -> Vec<u8> {
    let diff_ids: Vec<String> = tars.iter().map(|tar| Digest::sha256(tar).to_string()).collect();
    let rootfs = json!({"type": "layers", "diff_ids": diff_ids});
    json!({"os": "linux", "architecture": architecture(), "config": run, "rootfs": rootfs})
        .to_string()
        .into_bytes()
}

pub fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// An image with these layers in the layout `name` of the sandbox under the tag `v1`, indexed with
/// small spans.
pub fn image(sandbox: &Sandbox, name: &str, tars: &[Vec<u8>], run: &Value) {
    let layers: Vec<_> = tars.iter().map(|tar| (GZIP, compressed(tar))).collect();
    image_of(sandbox, name, &layers, tars, run);
    index(sandbox, &format!("oci:{name}:v1"));
}

/// The same without an index. `layers` are the media types and blobs that `tars` are compressed to.
pub fn image_of(
    sandbox: &Sandbox,
    name: &str,
    layers: &[(&'static str, Vec<u8>)],
    tars: &[Vec<u8>],
    run: &Value,
) {
    let config = serde_json::from_slice(&config(tars, run)).unwrap();
    Image::new(&config, layers.iter().cloned()).write(&sandbox.path(name));
}

pub fn index(sandbox: &Sandbox, image: &str) {
    let args = ["index", "--quiet", "--min-layer-size=0", "--span-size=64KiB", "--no-cache", image];
    let output = sandbox.command(&args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program serving in the foreground. It is asked to end when this is dropped, so that it
/// unmounts.
pub struct MountProcess {
    pub child: ChildProcess,
    stderr: Arc<Mutex<String>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl MountProcess {
    /// Starts it and waits until it reports that it has mounted.
    pub fn start(sandbox: &Sandbox, args: &[&str]) -> MountProcess {
        MountProcess::try_start(sandbox, args)
            .unwrap_or_else(|(_, stderr)| panic!("it ended: {stderr}"))
    }

    /// Like [`MountProcess::start`]. If it ends instead, its exit status and its error output.
    pub fn try_start(
        sandbox: &Sandbox,
        args: &[&str],
    ) -> Result<MountProcess, (ExitStatus, String)> {
        MountProcess::try_spawn(sandbox.command_that_hangs_up(args))
    }

    /// As [`MountProcess::try_start`], by a command.
    pub fn try_spawn(mut command: Command) -> Result<MountProcess, (ExitStatus, String)> {
        let mut child = ChildProcess::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped()));
        let stderr = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr());
        let said = Arc::clone(&stderr);
        let reader = std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
                said.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        let mut serving = MountProcess { child, stderr, reader: Some(reader) };
        let begun = Instant::now();
        while !serving.stderr().contains(" read so far\n") {
            if serving.child.ended().is_some() {
                let status = serving.end();
                return Err((status, serving.stderr()));
            }
            assert!(begun.elapsed() < PATIENCE, "it is not ready: {}", serving.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(serving)
    }

    /// Its error output so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits until it exits, and has its last output.
    pub fn end(&mut self) -> ExitStatus {
        let status = self.child.end();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status
    }
}

impl Drop for MountProcess {
    fn drop(&mut self) {
        if self.child.ended().is_none() {
            self.child.signal(Signal::TERM);
            self.child.wait();
        }
    }
}

impl Sandbox {
    /// None, after a line, if this test cannot mount.
    pub fn for_mounts() -> Option<Sandbox> {
        can_mount().then(Sandbox::new)
    }
}

/// Unmounts the mounts that a failed test left, so that the directory can be removed.
impl Drop for Sandbox {
    fn drop(&mut self) {
        for line in mounts_below(self.dir.path()).iter().rev() {
            let point = line.split(' ').nth(1).unwrap_or_default();
            let _ = Command::new("umount").args(["-l", point]).status();
        }
    }
}

/// The visible attributes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAttributes {
    pub mode: u32,
    pub owner: (u32, u32),
    pub links: u64,
    pub device: u64,
    pub time: Option<(i64, i64)>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The digest of a file, or the target of a link.
    pub content: String,
    /// The first of the paths with the same inode.
    pub same_as: PathBuf,
}

/// Everything below `root`, by path. `directory_times` includes the times of directories.
pub fn seen(root: &Path, directory_times: bool) -> BTreeMap<PathBuf, FileAttributes> {
    let mut all = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut paths = vec![root.to_owned()];
    let mut next = vec![root.to_owned()];
    while let Some(dir) = next.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            paths.push(entry.path());
            if entry.file_type().unwrap().is_dir() {
                next.push(entry.path());
            }
        }
    }
    paths.sort();
    for path in paths {
        let name = path.strip_prefix(root).unwrap().to_owned();
        let metadata = path.symlink_metadata().unwrap();
        let kind = metadata.file_type();
        let content = if kind.is_symlink() {
            format!("{:?}", std::fs::read_link(&path).unwrap())
        } else if kind.is_file() {
            let content = std::fs::read(&path).unwrap();
            assert_eq!(metadata.size(), content.len() as u64, "{}", path.display());
            Digest::sha256(&content).to_string()
        } else {
            String::new()
        };
        let is_device = kind.is_char_device() || kind.is_block_device();
        let counts = name != Path::new("") && (directory_times || !kind.is_dir());
        let seen = FileAttributes {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            links: metadata.nlink(),
            device: if is_device { metadata.rdev() } else { 0 },
            time: counts.then(|| (metadata.mtime(), metadata.mtime_nsec())),
            xattrs: xattrs(&path),
            content,
            same_as: inodes
                .entry((metadata.dev(), metadata.ino()))
                .or_insert_with(|| name.clone())
                .clone(),
        };
        all.insert(name, seen);
    }
    all
}

pub fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut found: Vec<(Vec<u8>, Vec<u8>)> = names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length =
                rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
            (name.to_vec(), value[..length].to_vec())
        })
        .collect();
    found.sort();
    found
}

/// Compares two trees file by file.
pub fn assert_same(
    left: &BTreeMap<PathBuf, FileAttributes>,
    right: &BTreeMap<PathBuf, FileAttributes>,
) {
    let names = |tree: &BTreeMap<PathBuf, FileAttributes>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(left), names(right));
    for (path, seen) in left {
        assert_eq!(Some(seen), right.get(path), "{}", path.display());
    }
}
