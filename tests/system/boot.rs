//! A real Debian image, mounted by the kernel and booted by runc.

use ociseek_testkit::sandbox::program;
use ociseek_testkit::soci;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::layer::Outcome;
use ociseek_testkit::corpus::{Image, copy, debian_layers};
use ociseek_testkit::mounts::unmount;
use ociseek_testkit::servers::{Server, run, skip, tool};
use ociseek_testkit::soci::{Oracle, TOOL, oracle_binary};
use ociseek_testkit::throttle::throttled;

const SPAN: u64 = 1 << 20;
const HUNDRED_MEGABITS: u64 = 100_000_000 / 8;

/// Whether file systems can be mounted and containers run. If not, prints a line with the reason
/// and returns None.
fn kernel() -> Option<PathBuf> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    if !is_root || !Path::new("/dev/fuse").exists() {
        skip("mounting needs root and /dev/fuse");
        return None;
    }
    tool("runc")
}

fn ociseek(home: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    let output = command.args(args).env("HOME", home).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// All visible attributes of a file, with its content as a hash.
#[derive(Debug, PartialEq)]
struct FileAttributes {
    /// Type, mode, owner, size (except for directories), device, mtime.
    facts: (u32, u32, u32, u64, u64, i64, i64),
    links: u64,
    target: Option<PathBuf>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    content: Option<Digest>,
}

fn attributes(path: &Path) -> FileAttributes {
    let meta = fs::symlink_metadata(path).unwrap();
    let kind = meta.file_type();
    let device = if kind.is_char_device() || kind.is_block_device() { meta.rdev() } else { 0 };
    let size = if meta.is_dir() { 0 } else { meta.size() };
    let content = meta.is_file().then(|| {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        copy(&mut File::open(path).unwrap(), |bytes| hasher.update(bytes));
        hasher.finish()
    });
    FileAttributes {
        facts: (meta.mode(), meta.uid(), meta.gid(), size, device, meta.mtime(), meta.mtime_nsec()),
        // The number of links of a directory depends on the file system.
        links: if meta.is_dir() { 0 } else { meta.nlink() },
        target: kind.is_symlink().then(|| fs::read_link(path).unwrap()),
        xattrs: xattrs(path),
        content,
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut found = BTreeMap::new();
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let length =
            rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(length);
        found.insert(name.to_vec(), value);
    }
    found
}

/// Compares all attributes in two directories. Returns the number of files.
fn assert_same(left: &Path, right: &Path) -> usize {
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let mut count = 0;
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let ours = names(&left.join(&directory));
        let theirs = names(&right.join(&directory));
        assert_eq!(ours, theirs, "in {}", directory.display());
        for name in ours {
            let path = directory.join(name);
            assert_eq!(
                attributes(&left.join(&path)),
                attributes(&right.join(&path)),
                "{}",
                path.display()
            );
            count += 1;
            if fs::symlink_metadata(left.join(&path)).unwrap().is_dir() {
                directories.push(path);
            }
        }
    }
    count
}

#[test]
fn a_mount_matches_the_unpacked_image() {
    let (Some(_), Some(layers), Some(oracle)) = (kernel(), debian_layers(), oracle_binary()) else {
        return;
    };
    let layer = layers.join("debian-rootfs.go.tar.gz");
    let image = Image::of(&layer);
    let unpacked = image.dir.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let from = layer.to_str().unwrap();
    let to = unpacked.to_str().unwrap();
    run(
        &tool("tar").unwrap(),
        &["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpzf", from, "-C", to],
    );

    let Outcome::Ztoc(ours) = soci::straight(&layer, SPAN, "boot").unwrap().outcome else {
        panic!("it can be served")
    };
    let theirs = image.dir.path().join("soci.ztoc");
    assert!(Oracle::new(&oracle, "build").build(SPAN, TOOL, &layer, &theirs).is_ok());
    let theirs = fs::read(theirs).unwrap();
    let mut before = Vec::new();
    for (tool, ztoc) in [("boot", ours.bytes), (TOOL, theirs)] {
        let index = image.index(&ztoc, SPAN, tool, &before);
        before = vec![index];
        let dir = image.dir.path().join("mounted");
        fs::create_dir_all(&dir).unwrap();
        let at = dir.to_str().unwrap();
        ociseek(
            image.dir.path(),
            &["mount", "--detach", "--quiet", "--no-cache", &image.name(), at],
        );
        let compared = std::panic::catch_unwind(|| assert_same(&dir, &unpacked));
        unmount(&dir);
        let count = compared.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        println!("through the ztoc by {tool}: {count} files, directories and links are the same");
        assert!(count > 5000);
    }
}

#[test]
fn a_container_is_ready_before_its_image_could_be_pulled() {
    let (Some(runc), Some(layers), Some(skopeo)) = (kernel(), debian_layers(), tool("skopeo"))
    else {
        return;
    };
    let Some(registry) = Server::distribution_on_disk("docker-registry") else { return };
    let image = Image::of(&layers.join("debian-rootfs.go.tar.gz"));
    let home = image.dir.path();
    let name = format!("{}/debian:v1", registry.host);
    run(
        &skopeo,
        &["copy", "--quiet", "--dest-tls-verify=false", &image.name(), &format!("docker://{name}")],
    );
    ociseek(home, &["index", "--quiet", "--no-cache", &name]);

    let slow = throttled(&registry.host, HUNDRED_MEGABITS);
    let bundle = home.join("bundle");
    let stats = home.join("stats.json");
    let at = bundle.to_str().unwrap();
    let stats_file = stats.to_str().unwrap();
    let began = Instant::now();
    ociseek(
        home,
        &[
            "bundle",
            "--detach",
            "--quiet",
            "--stats-file",
            stats_file,
            &format!("{slow}/debian:v1"),
            at,
        ],
    );
    let container = format!("ociseek-boot-{}", std::process::id());
    let mut running = Command::new(&runc)
        .args(["run", "-b", at, &container])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let ready = began.elapsed();
    let status = running.wait().unwrap();
    ociseek(home, &["bundle", "--rm", at]);
    assert_eq!((first.as_str(), status.code()), ("READY\n", Some(0)));
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(at), "{mounts}");

    let began = Instant::now();
    let to = format!("dir:{}", home.join("pulled").display());
    run(
        &skopeo,
        &["copy", "--quiet", "--src-tls-verify=false", &format!("docker://{slow}/debian:v1"), &to],
    );
    let pulled = began.elapsed();
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
    let figure = |name: &str| {
        let found = stats.get(name).or_else(|| stats["content"].get(name));
        found.and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("no {name} in {stats}"))
    };
    let fetched = figure("bytes_fetched");
    let all = figure("image_bytes");
    // Directly to standard error, which CI shows: the figures are the purpose of this test.
    let _ = writeln!(
        std::io::stderr(),
        "100 Mbit/s: ready after {ready:.1?} with {fetched} of {all} bytes ({:.1}%); pulling alone takes {pulled:.1?}",
        fetched as f64 * 100.0 / all as f64
    );
    assert!(fetched * 4 < all, "{fetched} of {all} bytes were fetched");
    assert!(ready < pulled);
}
