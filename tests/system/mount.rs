//! `ociseek mount` with the real kernel: every file is correct, every way of ending the mount
//! works, and problems are reported.

use crate::support::mounts;
use crate::support::sandbox;
use crate::support::schema;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::mounts::{
    Clean, Serving, assert_same, can_mount, have, image, mounts_below, packed, seen, system, wait_until,
};
use crate::support::sandbox::Sandbox;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use rustix::mount::{MountFlags, mount_remount};
use serde_json::{Value, json};

/// A file of bytes without repetition.
fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 56) as u8
    })
    .take(size)
    .collect()
}

/// A directory with every type of file.
pub fn everything(dir: &Path) {
    let at = |name: &str| dir.join(name);
    for name in ["usr/bin", "etc", "dev", "deep/er/and/deeper", "empty", "many"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    std::fs::write(at("usr/bin/tool"), bytes(1, 700_001)).unwrap();
    std::fs::write(at("etc/empty"), b"").unwrap();
    std::fs::write(at("etc/conf"), b"x=1\n").unwrap();
    std::fs::write(at("deep/er/and/deeper/file"), bytes(2, 4096)).unwrap();
    std::fs::write(dir.join(OsStr::from_bytes(b"etc/\xff\xfe not text")), b"odd").unwrap();
    std::fs::write(at(&format!("etc/{}", "n".repeat(255))), b"long").unwrap();
    for number in 0..3000 {
        std::fs::write(at(&format!("many/{number:05}")), number.to_string()).unwrap();
    }
    std::fs::hard_link(at("usr/bin/tool"), at("usr/bin/alias")).unwrap();
    std::fs::hard_link(at("usr/bin/tool"), at("etc/another")).unwrap();
    symlink("../usr/bin/tool", at("etc/link")).unwrap();
    symlink("/nowhere", at("etc/dangling")).unwrap();
    for (name, kind, device) in [
        ("dev/null", FileType::CharacterDevice, makedev(1, 3)),
        ("dev/disk", FileType::BlockDevice, makedev(259, 70_000)),
        ("dev/pipe", FileType::Fifo, 0),
    ] {
        mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    }
    for (name, mode) in [("usr/bin/tool", 0o4755), ("empty", 0o1777), ("etc/conf", 0o600)] {
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    chown(at("etc/conf"), Some(1000), Some(100_000)).unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    setxattr(at("deep/er/and/deeper/file"), "security.capability", &capability, XattrFlags::empty()).unwrap();
    setxattr(at("etc/conf"), "user.note", b"\0\xffbytes", XattrFlags::empty()).unwrap();
    setxattr(at("empty"), "user.of a directory", b"", XattrFlags::empty()).unwrap();
    for (name, date) in [("etc/conf", "@1700000000.123456789"), ("etc/empty", "@0.5"), ("usr", "@4102444800.000000001")]
    {
        system("touch", &[OsStr::new("-d"), OsStr::new(date), at(name).as_os_str()]);
    }
}

/// A sandbox with the image `oci:img:v1` of [`everything`] in `source`, and an empty directory `mnt`.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    everything(&sandbox.path("source"));
    image(&sandbox, "img", &[packed(&sandbox.path("source"))], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    sandbox
}

fn small_sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    image(&sandbox, "img", &[sandbox::tar(1, 3, 200_000)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    sandbox
}

const MOUNT: [&str; 3] = ["mount", "oci:img:v1", "mnt"];

fn mount_with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    MOUNT.into_iter().chain(args.iter().copied()).collect()
}

#[test]
fn everything_is_as_it_was_packed() {
    if !can_mount() {
        return;
    }
    let sandbox = sandbox();
    let _clean = Clean(&sandbox);
    let _serving = Serving::start(&sandbox, &MOUNT);
    let mnt = sandbox.path("mnt");
    assert_same(&seen(&sandbox.path("source"), true), &seen(&mnt, true));
    let line = mounts_below(&mnt).concat();
    assert!(line.contains(" fuse.ociseek ro,nosuid,nodev"), "{line}");
    assert_eq!(std::fs::read_dir(mnt.join("many")).unwrap().count(), 3000);

    // The kernel's requirements for extended attributes.
    let conf = mnt.join("etc/conf");
    let error = |name: &str, room: usize| rustix::fs::getxattr(&conf, name, &mut vec![0; room][..]).unwrap_err();
    assert_eq!(error("user.note", 2), rustix::io::Errno::RANGE);
    assert_eq!(error("user.other", 99), rustix::io::Errno::NODATA);
    // A program that requests sizes first.
    system("cp", &[OsStr::new("-a"), conf.as_os_str(), sandbox.path("copy").as_os_str()]);
    assert_eq!(mounts::xattrs(&sandbox.path("copy")), mounts::xattrs(&conf));

    // Nothing can be written, even after repeated attempts.
    for _ in 0..2 {
        let error = std::fs::write(mnt.join("etc/new"), b"x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        let error = std::fs::remove_file(mnt.join("etc/conf")).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        mount_remount(&mnt, MountFlags::empty(), c"").unwrap();
    }
    assert_eq!(std::fs::read(mnt.join("nothing")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

/// The image of the repository, with its whiteouts, compared with GNU tar's extraction of the same
/// layers.
#[test]
fn the_demo_image_is_as_tar_unpacks_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo");
    let (unpacked, mnt) = (sandbox.path("unpacked"), sandbox.path("mnt"));
    std::fs::create_dir(&unpacked).unwrap();
    std::fs::create_dir(&mnt).unwrap();
    let read = |digest: &Value| {
        let hex = digest.as_str().unwrap().strip_prefix("sha256:").unwrap().to_owned();
        demo.join("blobs/sha256").join(hex)
    };
    let parse = |path: PathBuf| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let index = parse(demo.join("index.json"));
    let manifest = parse(read(&index["manifests"][0]["digest"]));
    for layer in manifest["layers"].as_array().unwrap() {
        unpack(&read(&layer["digest"]), &unpacked);
    }
    let name = format!("oci:{}", demo.display());
    let _serving = Serving::start(&sandbox, &["mount", &name, "mnt"]);
    assert_same(&seen(&unpacked, false), &seen(&mnt, false));
}

/// Unpacks a layer: whiteouts by hand, the rest with GNU tar.
pub fn unpack(layer: &Path, to: &Path) {
    let names = system("tar", &[OsStr::new("-tf"), layer.as_os_str()]);
    for name in names.lines().map(Path::new) {
        let last = name.file_name().unwrap_or_default().to_str().unwrap();
        let parent = to.join(name.parent().unwrap());
        match last.strip_prefix(".wh.") {
            Some(".wh..opq") => {
                std::fs::remove_dir_all(&parent).unwrap();
                std::fs::create_dir(&parent).unwrap();
            }
            Some(gone) => match parent.join(gone) {
                gone if gone.is_dir() => std::fs::remove_dir_all(gone).unwrap(),
                gone => std::fs::remove_file(gone).unwrap(),
            },
            None => {}
        }
    }
    let args = ["-xpf", "--numeric-owner", "--exclude=.wh.*", "-C"].map(OsStr::new);
    system("tar", &[args[0], layer.as_os_str(), args[1], args[2], args[3], to.as_os_str()]);
}

#[test]
fn one_layer_alone() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    image(&sandbox, "img", &[sandbox::tar(1, 1, 10), sandbox::tar(2, 1, 90_000)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let serving = Serving::start(&sandbox, &mount_with(&["--layer", "1", "--record", "record"]));
    let file = std::fs::read(sandbox.path("mnt/dir2/file0")).unwrap();
    assert_eq!(file.len(), 90_000);
    assert!(!sandbox.path("mnt/dir1").exists());
    drop(serving);
    let record = std::fs::read_to_string(sandbox.path("record")).unwrap();
    let lines: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["path"], &lines[0]["offset"]), (&json!("dir2/file0"), &json!(0)));
    assert_eq!(lines[0]["spans"][0], 0);
    // No span is listed twice.
    let spans: Vec<&Value> = lines.iter().flat_map(|line| line["spans"].as_array().unwrap()).collect();
    let mut distinct = spans.clone();
    distinct.sort_by_key(|span| span.as_u64());
    distinct.dedup();
    assert_eq!(spans.len(), distinct.len());
    assert_eq!(
        sandbox.run(&mount_with(&["--layer", "2"])),
        "--- stderr ---\nerror: no layer 2: the image has 2 layers, counted from 0\n--- status 1 ---"
    );
}

#[test]
fn a_record_depends_neither_on_spans_nor_on_the_cache() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    // All of it is in a single span.
    image(&sandbox, "img", &[sandbox::tar(2, 1, 2_000_000)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let parts = [0, 1_500_000, 700_000];
    let mut records = Vec::new();
    for name in ["cold", "warm"] {
        let serving = Serving::start(&sandbox, &mount_with(&["--record", name]));
        let file = File::open(sandbox.path("mnt/dir2/file0")).unwrap();
        for at in parts.into_iter().chain(parts) {
            file.read_exact_at(&mut [0; 10], at).unwrap();
        }
        drop(file);
        drop(serving);
        let record = std::fs::read(sandbox.path(name)).unwrap();
        let reads = ociseek::rootfs::record::parse(&record).unwrap();
        let noted = |at: u64| reads.iter().filter(|read| (read.offset..read.offset + read.size).contains(&at)).count();
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
    let _clean = Clean(&sandbox);
    image(&sandbox, "img", &[sandbox::tar(1, 1, 10)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let _serving = Serving::start(&sandbox, &mount_with(&[]));
    let device = std::fs::metadata(sandbox.path("mnt")).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let ahead = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(ahead.trim(), "128");
}

#[test]
fn many_readers_at_once() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    let content = bytes(7, 6_000_000);
    std::fs::create_dir(sandbox.path("source")).unwrap();
    std::fs::write(sandbox.path("source/large"), &content).unwrap();
    image(&sandbox, "img", &[packed(&sandbox.path("source"))], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let mut serving = Serving::start(&sandbox, &mount_with(&["--stats", "stats"]));
    let file = std::fs::File::open(sandbox.path("mnt/large")).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..50_usize {
            let (file, content) = (&file, &content);
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
    let dd =
        Command::new("dd").args([large, copy]).args(["iflag=direct", "bs=1M"]).current_dir(sandbox.dir.path()).output();
    assert!(dd.unwrap().status.success());
    assert!(std::fs::read(sandbox.path("copy")).unwrap() == content);
    serving.signal("TERM");
    assert_eq!(serving.end().code(), Some(0));
    // Nothing was fetched twice.
    let stats: Value = serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
    let (fetched, all) = (&stats["content"]["bytes_fetched"], &stats["content"]["image_bytes"]);
    assert!(fetched.as_u64().unwrap() <= all.as_u64().unwrap() * 11 / 10, "{stats}");
}

/// Reads do not wait for prefetching, and the next mount finds the prefetched spans.
#[test]
fn what_nobody_reads_is_fetched_too() {
    if !can_mount() {
        return;
    }
    let sandbox = small_sandbox();
    let _clean = Clean(&sandbox);
    let args = ["--cache-dir", "cache", "--stats", "stats"];
    let cached = || sandbox.files("cache/spans").iter().map(|(_, content)| content.len()).sum::<usize>();
    let serving = Serving::start(&sandbox, &mount_with(&[&args[..], &["--prefetch"]].concat()));
    wait_until("all is in the cache", || cached() > 600_000);
    drop(serving);
    let serving = Serving::start(&sandbox, &mount_with(&args));
    for number in 0..3 {
        assert_eq!(std::fs::read(sandbox.path(&format!("mnt/dir1/file{number}"))).unwrap().len(), 200_000);
    }
    drop(serving);
    let stats: Value = serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
    assert_eq!(stats["content"]["bytes_fetched"], 0, "{stats}");
}

#[test]
fn it_ends_when_it_is_asked_to() {
    if !can_mount() {
        return;
    }
    let sandbox = small_sandbox();
    let _clean = Clean(&sandbox);
    for end in ["INT", "TERM", "HUP", "umount", "umount of a busy one", "TERM of a busy one"] {
        let mut serving = Serving::start(&sandbox, &mount_with(&["--stats", "stats"]));
        let mnt = sandbox.path("mnt");
        let (shown, said) = (mnt.canonicalize().unwrap(), serving.stderr());
        let ready = format!("mounted at {0} (Ctrl-C or umount {0} ends it): ", shown.display());
        assert!(said.contains(&ready) && said.contains(" files; "), "{said}");
        let mut file = std::fs::read(mnt.join("dir1/file0")).map(|_| None).unwrap();
        if end.ends_with("busy one") {
            file = Some(std::fs::File::open(mnt.join("dir1/file1")).unwrap());
        }
        match end.split(' ').next().unwrap() {
            "umount" => {
                let lazy = if file.is_some() { "-l" } else { "--" };
                system("umount", &[OsStr::new(lazy), mnt.as_os_str()]);
                if let Some(file) = file.take() {
                    // An open file can still be read.
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, 199_999).unwrap();
                }
            }
            signal => serving.signal(signal),
        }
        assert_eq!(serving.end().code(), Some(0), "{end}: {}", serving.stderr());
        assert_eq!(serving.stderr().contains("was in use"), file.is_some(), "{end}: {}", serving.stderr());
        assert_eq!(mounts_below(&mnt), Vec::<String>::new(), "{end}");
        let stats: Value = serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
        assert!(stats["content"]["requests"].is_u64() && stats["seconds_mounted"].is_f64(), "{stats}");
    }
}

#[test]
fn a_mount_whose_process_was_killed() {
    if !can_mount() {
        return;
    }
    let sandbox = small_sandbox();
    let _clean = Clean(&sandbox);
    let mut serving = Serving::start(&sandbox, &MOUNT);
    serving.signal("KILL");
    serving.end();
    let mnt = sandbox.path("mnt");
    wait_until("the mount is dead", || std::fs::read_dir(&mnt).is_err());
    let told = sandbox.run(&MOUNT);
    let at = mnt.canonicalize().unwrap_or(mnt.clone());
    let expected = format!(
        "--- stderr ---\nerror: {0}: the process serving the file system mounted here is gone\nhint: clear it with \
         umount -l {0} (as a user: fusermount3 -uz {0}), or use --replace\n--- status 1 ---",
        at.display()
    );
    assert_eq!(told, expected);
    let mut serving = Serving::start(&sandbox, &mount_with(&["--replace"]));
    assert!(mnt.join("dir1/file0").exists());
    assert_eq!(mounts_below(&mnt).len(), 1);
    // A mount whose process still runs.
    let replaced = Serving::start(&sandbox, &mount_with(&["--replace"]));
    assert_eq!(serving.end().code(), Some(0));
    assert_eq!(mounts_below(&mnt).len(), 1);
    assert!(mnt.join("dir1/file0").exists());
    drop(replaced);
    assert_eq!(mounts_below(&mnt).len(), 0);
}

/// Processes that share a cache do not wait for each other, and none takes a wrong byte from it.
#[test]
fn two_mounts_with_one_cache() {
    if !can_mount() {
        return;
    }
    let sandbox = sandbox();
    let _clean = Clean(&sandbox);
    std::fs::create_dir(sandbox.path("other")).unwrap();
    let source = seen(&sandbox.path("source"), true);
    // Of a cache that holds nothing for long, and of one that holds everything.
    for size in ["--cache-size=1MiB", "--cache-size=1GiB"] {
        let start = |dir: &str| Serving::start(&sandbox, &["mount", "--cache-dir=cache", size, "oci:img:v1", dir]);
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
            serving.signal("TERM");
            assert_eq!(serving.end().code(), Some(0), "{}", serving.stderr());
            assert!(!serving.stderr().contains("warning: "), "{}", serving.stderr());
        }
    }
    // What both have kept is right.
    let _serving = Serving::start(&sandbox, &["mount", "--cache-dir=cache", "oci:img:v1", "mnt"]);
    assert_same(&source, &seen(&sandbox.path("mnt"), true));
}

/// One document when the files are there, and nothing after it.
#[test]
fn json_on_standard_output() {
    if !can_mount() {
        return;
    }
    let sandbox = small_sandbox();
    let _clean = Clean(&sandbox);
    sandbox.json(0, &["index", "--json", "--no-cache", "--min-layer-size=0", "oci:img:v1"]);
    let args = ["mount", "--json", "--quiet", "--no-cache", "oci:img:v1", "mnt"];
    let mut child = sandbox.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut documents = serde_json::Deserializer::from_reader(child.stdout.take().unwrap()).into_iter::<Value>();
    let document = documents.next().unwrap().unwrap();
    schema::check(&args, &document);
    assert_eq!(document["index"]["size"].as_u64().map(|size| size > 0), Some(true), "{document}");
    assert_eq!(std::fs::read(sandbox.path("mnt/dir1/file0")).unwrap().len(), 200_000);
    system("umount", &[sandbox.path("mnt").as_os_str()]);
    assert!(child.wait().unwrap().success());
    assert!(documents.next().is_none());
}

#[test]
fn in_the_background() {
    if !can_mount() {
        return;
    }
    let sandbox = small_sandbox();
    let _clean = Clean(&sandbox);
    let mnt = sandbox.path("mnt");
    let output = sandbox.run(&mount_with(&["--detach", "--log", "log", "--quiet", "--stats", "stats"]));
    assert_eq!(output, "--- stderr ---\n--- status 0 ---");
    assert_eq!(std::fs::read(mnt.join("dir1/file0")).unwrap().len(), 200_000);
    system("umount", &[mnt.as_os_str()]);
    wait_until("the process ends", || std::fs::read(sandbox.path("stats")).is_ok_and(|stats| !stats.is_empty()));
    assert_eq!(std::fs::read_to_string(sandbox.path("log")).unwrap(), "");

    let document = sandbox.json(0, &["mount", "--detach", "--json", "--quiet", "--no-cache", "oci:img:v1", "mnt"]);
    assert_eq!(document["dir"], mnt.display().to_string());
    assert_eq!(document["layers"][0]["how"], "index");
    system("umount", &[mnt.as_os_str()]);

    let output = sandbox.run(&["mount", "--detach", "oci:img:v2", "mnt"]);
    assert!(output.starts_with("--- stderr ---\nerror: ") && output.ends_with("--- status 1 ---"), "{output}");
    let output = sandbox.run(&["mount", "--detach", "--log", "no/log", "oci:img:v1", "mnt"]);
    assert!(output.contains("no/log: cannot write"), "{output}");
    assert_eq!(mounts_below(&mnt).len(), 0);
}

#[test]
fn places_that_cannot_be_mounted_on() {
    if !can_mount() {
        return;
    }
    let sandbox = small_sandbox();
    let _clean = Clean(&sandbox);
    std::fs::write(sandbox.path("file"), b"").unwrap();
    let told = |dir: &str| sandbox.run(&["mount", "oci:img:v1", dir]);
    insta::assert_snapshot!(told("missing"), @r"
    --- stderr ---
    error: missing: no such directory
    hint: create it with mkdir missing
    --- status 1 ---
    ");
    insta::assert_snapshot!(told("file"), @r"
    --- stderr ---
    error: file: not a directory
    hint: use an empty directory
    --- status 1 ---
    ");
    insta::assert_snapshot!(told("img"), @r"
    --- stderr ---
    error: img: the directory is not empty, and mounting would hide its files
    hint: use an empty directory
    --- status 1 ---
    ");
    let _serving = Serving::start(&sandbox, &MOUNT);
    let occupied = told("mnt").replace(sandbox.dir.path().to_str().unwrap(), "DIR");
    insta::assert_snapshot!(occupied, @r"
    --- stderr ---
    error: DIR/mnt: ociseek has already mounted oci:img:v1 here
    hint: unmount it with umount DIR/mnt (as a user: fusermount3 -u DIR/mnt), or use --replace
    --- status 1 ---
    ");
}

/// In a separate mount namespace, with a /dev/fuse that users may open.
#[test]
fn as_a_user() {
    if !can_mount() || !have(&["fusermount3", "unshare", "setpriv"]) {
        return;
    }
    let sandbox = small_sandbox();
    let _clean = Clean(&sandbox);
    std::fs::set_permissions(sandbox.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_ociseek"), sandbox.path("ociseek")).unwrap();
    chown(sandbox.path("mnt"), Some(65_534), Some(65_534)).unwrap();
    let script = "
        ./ociseek mount --quiet --no-cache --detach oci:img:v1 mnt || exit 9
        grep -c $PWD/mnt' fuse.ociseek ro,nosuid,nodev' /proc/mounts
        cat mnt/dir1/file* | wc -c
        fusermount3 -u mnt
        grep -c $PWD/mnt' fuse.ociseek ' /proc/mounts
        ./ociseek mount --no-cache --suid oci:img:v1 mnt
        ./ociseek mount --no-cache --allow-other oci:img:v1 mnt
        ./ociseek bundle --no-cache oci:img:v1 /tmp/not-made
        PATH=/nowhere ./ociseek mount --no-cache oci:img:v1 mnt
        true";
    let outer = "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse &&
        exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \"$0\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", outer, script]).current_dir(sandbox.dir.path()).stdin(Stdio::null());
    insta::assert_snapshot!(sandbox::shown(&mut command), @r"
    1
    600000
    0
    --- stderr ---
    error: only root can mount with set-user-ID programs or devices
    hint: run as root, or omit --suid and --dev
    error: fusermount3 does not allow other users to access this mount
    hint: add the line user_allow_other to /etc/fuse.conf, or omit --allow-other
    error: creating a bundle requires root, for its mounts
    hint: run as root; ociseek mount also works for other users
    error: mounting as a user requires fusermount3, which is not installed
    hint: run as root, or install it (Debian: apt install fuse3)
    --- status 0 ---
    ");
}

mod troubled {
    //! Registries that fail under a running mount.

    use std::sync::Arc;
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::time::Instant;

    use crate::support::faulty::{Faulty, MANIFEST, Nature};
    use axum::body::Body;
    use axum::http::{Response, StatusCode};
    use bytes::Bytes;

    use super::*;

    const HONEST: u8 = 0;
    const TAMPERED: u8 = 1;
    const SILENT: u8 = 2;
    const BROKEN: u8 = 3;

    /// The layer and config of an image with a file of a million bytes.
    fn image(sandbox: &Sandbox) -> (Vec<u8>, Vec<u8>) {
        std::fs::create_dir(sandbox.path("source")).unwrap();
        std::fs::write(sandbox.path("source/file"), bytes(3, 1_000_000)).unwrap();
        let tar = packed(&sandbox.path("source"));
        (mounts::compressed(&tar), mounts::config(&[tar], &json!({})))
    }

    /// A registry with this image as `a/b:v1`, whose behaviour depends on `mood`.
    async fn registry((layer, config): &(Vec<u8>, Vec<u8>), at: &str, mood: &Arc<AtomicU8>) -> Faulty {
        let digest = ociseek::digest::Digest::sha256(layer).to_string();
        let mood = Arc::clone(mood);
        let registry = Faulty::at(at, Nature { referrers: true, ..Nature::default() }, move |seen, faulty| {
            if !seen.is("GET", &digest) {
                return None;
            }
            match mood.load(Ordering::SeqCst) {
                HONEST => None,
                TAMPERED => {
                    let truth = faulty.truth_now(seen);
                    let (head, body) = truth.into_parts();
                    let body = futures_util::FutureExt::now_or_never(axum::body::to_bytes(body, 1 << 30));
                    let mut bytes = body.unwrap().unwrap().to_vec();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                    Some(Response::from_parts(head, Body::from(bytes)))
                }
                SILENT => {
                    let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
                    Some(Response::builder().status(206).body(Body::from_stream(never)).unwrap())
                }
                _ => Some(Response::builder().status(StatusCode::NOT_FOUND).body(Body::empty()).unwrap()),
            }
        })
        .await;
        let blob = |media_type: &str, content: &[u8]| {
            let digest = registry.add_blob(content.to_vec());
            json!({"mediaType": media_type, "digest": digest, "size": content.len()})
        };
        let (config, layer) = (blob(sandbox::OCI_CONFIG, config), blob(sandbox::GZIP, layer));
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer]});
        registry.add_manifest("v1", MANIFEST, manifest.to_string());
        registry
    }

    #[test]
    fn what_the_registry_does_is_an_error_until_it_is_right_again() {
        if !can_mount() {
            return;
        }
        let sandbox = Sandbox::new();
        let _clean = Clean(&sandbox);
        let mood = Arc::new(AtomicU8::new(HONEST));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let registry = runtime.block_on(registry(&image(&sandbox), "127.0.0.1:0", &mood));
        std::fs::create_dir(sandbox.path("mnt")).unwrap();
        let name = format!("{}/a/b:v1", registry.host());
        mounts::index(&sandbox, &name);
        mood.store(TAMPERED, Ordering::SeqCst);
        let mut serving = Serving::start(&sandbox, &["mount", "--deadline", "3", "--no-cache", &name, "mnt"]);
        let file = sandbox.path("mnt/file");
        let eio = |what: &str| {
            let begun = Instant::now();
            let error = std::fs::read(&file).expect_err(what);
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{what}: {error}");
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {:?}", begun.elapsed());
        };
        eio("a layer that was tampered with");
        wait_until("the reason", || serving.stderr().contains("warning: "));
        let warning = serving.stderr();
        assert!(warning.contains("sha256:") && warning.contains("span"), "{warning}");

        mood.store(SILENT, Ordering::SeqCst);
        eio("a registry that says nothing");
        // A waiting reader can be killed.
        let mut cat = Command::new("cat").arg(&file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        cat.kill().unwrap();
        cat.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());

        mood.store(BROKEN, Ordering::SeqCst);
        eio("a registry that has lost the layer");

        mood.store(HONEST, Ordering::SeqCst);
        assert!(std::fs::read(&file).unwrap() == bytes(3, 1_000_000));
        serving.signal("TERM");
        assert_eq!(serving.end().code(), Some(0));
        assert_eq!(mounts_below(sandbox.dir.path()).len(), 0);
    }

    #[test]
    fn a_read_outlives_a_registry_that_restarts() {
        if !can_mount() {
            return;
        }
        let sandbox = Sandbox::new();
        let _clean = Clean(&sandbox);
        let mood = Arc::new(AtomicU8::new(HONEST));
        let start = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let first = start();
        let image = image(&sandbox);
        let host = first.block_on(registry(&image, "127.0.0.1:0", &mood)).host();
        std::fs::create_dir(sandbox.path("mnt")).unwrap();
        let name = format!("{host}/a/b:v1");
        mounts::index(&sandbox, &name);
        // Shorter than the outage, because readers only depend on the deadline.
        let options = ["mount", "--retry-for=1s", "--no-cache", &name, "mnt"];
        let mut serving = Serving::start(&sandbox, &options);
        first.shutdown_timeout(Duration::from_secs(10));
        let file = sandbox.path("mnt/file");
        let reader = std::thread::spawn(move || std::fs::read(file));
        let waiting = format!("cannot connect to {host} (");
        wait_until("it says that it waits", || serving.stderr().contains(&waiting));
        std::thread::sleep(Duration::from_secs(2));
        assert!(!reader.is_finished(), "{:?}", reader.join());
        let second = start();
        second.block_on(registry(&image, &host, &mood));
        assert!(reader.join().unwrap().unwrap() == bytes(3, 1_000_000));
        serving.signal("TERM");
        assert_eq!(serving.end().code(), Some(0));
    }
}
