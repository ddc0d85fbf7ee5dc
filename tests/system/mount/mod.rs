//! `ociseek mount` with the real kernel: every file is correct, every way of ending the mount
//! works, and problems are reported.

mod contents;
mod ends;
mod places;
mod reads;
mod troubled;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use ociseek_testkit::mounts::{image, packed, system};
use ociseek_testkit::random::numbers;
use ociseek_testkit::sandbox::{self, Sandbox};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use serde_json::json;

/// A file of bytes without repetition.
fn bytes(seed: u64, size: usize) -> Vec<u8> {
    numbers(seed).map(|number| (number >> 56) as u8).take(size).collect()
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
    setxattr(
        at("deep/er/and/deeper/file"),
        "security.capability",
        &capability,
        XattrFlags::empty(),
    )
    .unwrap();
    setxattr(at("etc/conf"), "user.note", b"\0\xffbytes", XattrFlags::empty()).unwrap();
    setxattr(at("empty"), "user.of a directory", b"", XattrFlags::empty()).unwrap();
    for (name, date) in [
        ("etc/conf", "@1700000000.123456789"),
        ("etc/empty", "@0.5"),
        ("usr", "@4102444800.000000001"),
    ] {
        system("touch", &[OsStr::new("-d"), OsStr::new(date), at(name).as_os_str()]);
    }
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

/// A sandbox with the image `oci:img:v1` of [`everything`] in `source`, and an empty directory
/// `mnt`.
fn sandbox_of_everything() -> Option<Sandbox> {
    let sandbox = Sandbox::for_mounts()?;
    everything(&sandbox.path("source"));
    image(&sandbox, "img", &[packed(&sandbox.path("source"))], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    Some(sandbox)
}

fn small_sandbox() -> Option<Sandbox> {
    let sandbox = Sandbox::for_mounts()?;
    image(&sandbox, "img", &[sandbox::tar(1, 3, 200_000)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    Some(sandbox)
}

const MOUNT: [&str; 3] = ["mount", "oci:img:v1", "mnt"];

fn mount_with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    MOUNT.into_iter().chain(args.iter().copied()).collect()
}
