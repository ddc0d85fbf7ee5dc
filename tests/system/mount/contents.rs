//! Every file is as it was packed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{MOUNT, mount_with, sandbox_of_everything, unpack};
use ociseek_rootfs::fuse::process_memory;
use ociseek_testkit::mounts::{self, MountProcess, assert_same, image, mounts_below, seen, system};
use ociseek_testkit::sandbox::{self, Sandbox};
use rustix::mount::{MountFlags, mount_remount};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn a_mount_matches_the_packed_files() {
    let Some(sandbox) = sandbox_of_everything() else { return };
    let _serving = MountProcess::start(&sandbox, &MOUNT);
    let mnt = sandbox.path("mnt");
    assert_same(&seen(&sandbox.path("source"), true), &seen(&mnt, true));
    let line = mounts_below(&mnt).concat();
    assert!(line.contains(" fuse.ociseek ro,nosuid,nodev"), "{line}");
    assert_eq!(std::fs::read_dir(mnt.join("many")).unwrap().count(), 3000);

    // The kernel's requirements for extended attributes.
    let conf = mnt.join("etc/conf");
    let error = |name: &str, room: usize| {
        rustix::fs::getxattr(&conf, name, &mut vec![0; room][..]).unwrap_err()
    };
    assert_eq!(error("user.note", 2), rustix::io::Errno::RANGE);
    assert_eq!(error("user.other", 99), rustix::io::Errno::NODATA);
    // A program that requests sizes first.
    system("cp", &[OsStr::new("-a"), conf.as_os_str(), sandbox.path("copy").as_os_str()]);
    assert_eq!(mounts::xattrs(&sandbox.path("copy")), mounts::xattrs(&conf));

    // As for root elsewhere, what nobody may execute is not executable.
    for (path, may) in
        [("etc/conf", false), ("dev/pipe", false), ("usr/bin/tool", true), ("etc", true)]
    {
        for dir in [&mnt, &sandbox.path("source")] {
            let access = rustix::fs::access(dir.join(path), rustix::fs::Access::EXEC_OK);
            assert_eq!(access.is_ok(), may, "{}: {access:?}", dir.join(path).display());
        }
    }

    // Nothing can be written, even after repeated attempts.
    for _ in 0..2 {
        let error = std::fs::write(mnt.join("etc/new"), b"x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        let error = std::fs::remove_file(mnt.join("etc/conf")).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        mount_remount(&mnt, MountFlags::empty(), c"").unwrap();
    }
    assert_eq!(
        std::fs::read(mnt.join("nothing")).unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
    // As on other file systems, which a program may rely on to find the longest name.
    for length in [256, 1000, 2000] {
        let error =
            std::fs::symlink_metadata(mnt.join("etc").join("n".repeat(length))).unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()),
            "{length}: {error}"
        );
    }
}

/// The image of the repository, with its whiteouts, compared with GNU tar's extraction of the same
/// layers.
#[test]
fn the_demo_image_matches_tar() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo");
    let unpacked = sandbox.path("unpacked");
    let mnt = sandbox.path("mnt");
    std::fs::create_dir(&unpacked).unwrap();
    std::fs::create_dir(&mnt).unwrap();
    let read = |digest: &Value| {
        let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
        demo.join("blobs/sha256").join(hex)
    };
    let parse =
        |path: PathBuf| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let index = parse(demo.join("index.json"));
    let manifest = parse(read(&index["manifests"][0]["digest"]));
    for layer in manifest["layers"].as_array().unwrap() {
        unpack(&read(&layer["digest"]), &unpacked);
    }
    let name = format!("oci:{}", demo.display());
    let _serving = MountProcess::start(&sandbox, &["mount", &name, "mnt"]);
    assert_same(&seen(&unpacked, false), &seen(&mnt, false));
}

#[test]
fn a_single_layer_is_mounted() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    image(&sandbox, "img", &[sandbox::tar(1, 1, 10), sandbox::tar(2, 1, 90_000)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let serving =
        MountProcess::start(&sandbox, &mount_with(&["--layer", "1", "--record", "record"]));
    let file = std::fs::read(sandbox.path("mnt/dir2/file0")).unwrap();
    assert_eq!(file.len(), 90_000);
    assert!(!sandbox.path("mnt/dir1").exists());
    drop(serving);
    let record = std::fs::read_to_string(sandbox.path("record")).unwrap();
    let lines: Vec<Value> =
        record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["path"], &lines[0]["offset"]), (&json!("dir2/file0"), &json!(0)));
    assert_eq!(lines[0]["spans"][0], 0);
    // No span is listed twice.
    let spans: Vec<&Value> =
        lines.iter().flat_map(|line| line["spans"].as_array().unwrap()).collect();
    let mut distinct = spans.clone();
    distinct.sort_by_key(|span| span.as_u64());
    distinct.dedup();
    assert_eq!(spans.len(), distinct.len());
    assert_eq!(
        sandbox.run(&mount_with(&["--layer", "2"])),
        "--- stderr ---\nerror: no layer 2: the image has 2 layers, counted from 0\n--- status 1 ---"
    );
}

/// What only opening needs is released after a while, and the files can still be read: those of an
/// index are compared with its list of files, which is packed.
#[cfg(target_env = "gnu")]
#[test]
fn a_mount_releases_what_only_opening_needs() {
    const FILES: usize = 20_000;
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    image(&sandbox, "img", &[sandbox::tar(1, FILES, 100)], &json!({}));
    mounts::index(&sandbox, "oci:img:v1");
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let serving = MountProcess::start(&sandbox, &mount_with(&["--no-cache"]));
    let process = serving.child.id().to_string();
    let memory = || process_memory(&process, "status", "RssAnon").unwrap();
    let before = memory();
    mounts::wait_until("the list of files is released", || {
        memory() + 100 * (FILES as u64) < before
    });
    for number in [0, FILES / 2, FILES - 1] {
        let bytes = std::fs::read(sandbox.path("mnt/dir1").join(format!("file{number}"))).unwrap();
        assert_eq!(bytes.len(), 100, "{number}");
    }
    assert!(!serving.stderr().contains("warning: "), "{}", serving.stderr());
}

/// Processes that share a cache do not wait for each other, and none takes a wrong byte from it.
#[test]
fn two_mounts_share_a_cache() {
    let Some(sandbox) = sandbox_of_everything() else { return };
    std::fs::create_dir(sandbox.path("other")).unwrap();
    let source = seen(&sandbox.path("source"), true);
    // Of a cache that holds nothing for long, and of one that holds everything.
    for size in ["--cache-size=1MiB", "--cache-size=1GiB"] {
        let start = |dir: &str| {
            MountProcess::start(&sandbox, &["mount", "--cache-dir=cache", size, "oci:img:v1", dir])
        };
        let servings = [start("mnt"), start("other")];
        let look = |dir: &str| {
            let dir = sandbox.path(dir);
            let source = &source;
            move || assert_same(source, &seen(&dir, true))
        };
        std::thread::scope(|scope| {
            for dir in ["mnt", "other"] {
                scope.spawn(look(dir));
            }
        });
        for mut serving in servings {
            serving.child.signal(Signal::TERM);
            assert_eq!(serving.end().code(), Some(0), "{}", serving.stderr());
            // For a moment, a program that another test starts has what was open here at its start.
            let is_of_reads = |line: &str| {
                line.starts_with("warning: ") && !line.contains("was in use when it was unmounted")
            };
            assert!(!serving.stderr().lines().any(is_of_reads), "{}", serving.stderr());
        }
    }
    // What both have kept is right.
    let _serving =
        MountProcess::start(&sandbox, &["mount", "--cache-dir=cache", "oci:img:v1", "mnt"]);
    assert_same(&source, &seen(&sandbox.path("mnt"), true));
}
