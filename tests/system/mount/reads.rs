//! What reads fetch: by many readers, ahead of them, and as recorded.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;

use super::{bytes, mount_with, small_sandbox};
use ociseek_testkit::mounts::{MountProcess, can_mount, image, packed, wait_until};
use ociseek_testkit::sandbox::{self, Sandbox};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn a_record_depends_neither_on_spans_nor_on_the_cache() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    // All of it is in a single span.
    image(&sandbox, "img", &[sandbox::tar(2, 1, 2_000_000)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let parts = [0, 1_500_000, 700_000];
    let mut records = Vec::new();
    for name in ["cold", "warm"] {
        let serving = MountProcess::start(&sandbox, &mount_with(&["--record", name]));
        let file = File::open(sandbox.path("mnt/dir2/file0")).unwrap();
        for at in parts.into_iter().chain(parts) {
            file.read_exact_at(&mut [0; 10], at).unwrap();
        }
        drop(file);
        drop(serving);
        let record = std::fs::read(sandbox.path(name)).unwrap();
        let reads = ociseek_rootfs::record::parse(&record).unwrap();
        let noted = |at: u64| {
            reads.iter().filter(|read| (read.offset..read.offset + read.size).contains(&at)).count()
        };
        assert_eq!(parts.map(noted), [1; 3], "{reads:?}");
        records.push(reads);
    }
    assert_eq!(records[0], records[1]);
}

#[test]
fn the_kernel_reads_little_ahead() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[sandbox::tar(1, 1, 10)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let _serving = MountProcess::start(&sandbox, &mount_with(&[]));
    let device = std::fs::metadata(sandbox.path("mnt")).unwrap().dev();
    let major = rustix::fs::major(device);
    let minor = rustix::fs::minor(device);
    let ahead =
        std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(ahead.trim(), "128");
}

#[test]
fn many_readers_at_once() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let content = bytes(7, 6_000_000);
    std::fs::create_dir(sandbox.path("source")).unwrap();
    std::fs::write(sandbox.path("source/large"), &content).unwrap();
    image(&sandbox, "img", &[packed(&sandbox.path("source"))], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let mut serving = MountProcess::start(&sandbox, &mount_with(&["--stats-file", "stats"]));
    let file = std::fs::File::open(sandbox.path("mnt/large")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..50_usize {
            let file = &file;
            let content = &content;
            scope.spawn(move || {
                for step in 0..20 {
                    let at = (thread * 7919 + step * 104_729 * 3) % (content.len() - 50_000);
                    let mut read = vec![0; 50_000];
                    file.read_exact_at(&mut read, at as u64).unwrap();
                    assert!(read == content[at..at + read.len()], "{at}");
                }
            });
        }
    });
    assert!(std::fs::read(sandbox.path("mnt/large")).unwrap() == content);
    drop(file);
    // Bypass the page cache.
    let [large, copy] = ["if=mnt/large", "of=copy"].map(OsStr::new);
    let dd = Command::new("dd")
        .args([large, copy])
        .args(["iflag=direct", "bs=1M"])
        .current_dir(sandbox.dir.path())
        .output();
    assert!(dd.unwrap().status.success());
    assert!(std::fs::read(sandbox.path("copy")).unwrap() == content);
    serving.child.signal(Signal::TERM);
    assert_eq!(serving.end().code(), Some(0));
    // Nothing was fetched twice.
    let stats: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
    let fetched = &stats["content"]["bytes_fetched"];
    let all = &stats["content"]["image_bytes"];
    assert!(fetched.as_u64().unwrap() <= all.as_u64().unwrap() * 11 / 10, "{stats}");
}

/// Reads do not wait for prefetching, and the next mount finds the prefetched spans.
#[test]
fn prefetching_fetches_the_whole_image() {
    let Some(sandbox) = small_sandbox() else { return };
    let args = ["--cache-dir", "cache", "--stats-file", "stats"];
    let cached =
        || sandbox.files("cache/spans").iter().map(|(_, content)| content.len()).sum::<usize>();
    let serving =
        MountProcess::start(&sandbox, &mount_with(&[&args[..], &["--prefetch"]].concat()));
    wait_until("all is in the cache", || cached() > 600_000);
    drop(serving);
    let serving = MountProcess::start(&sandbox, &mount_with(&args));
    for number in 0..3 {
        assert_eq!(
            std::fs::read(sandbox.path(&format!("mnt/dir1/file{number}"))).unwrap().len(),
            200_000
        );
    }
    drop(serving);
    let stats: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
    assert_eq!(stats["content"]["bytes_fetched"], 0, "{stats}");
}
