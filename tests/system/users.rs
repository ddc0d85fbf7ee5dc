//! Who may read what in a mount that others may access, and GNU tar's sparse files, through the
//! kernel.

use std::ffi::OsStr;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use ociseek_testkit::in_own_mounts;
use ociseek_testkit::mounts::{MountProcess, can_mount, have, image, system};
use ociseek_testkit::sandbox::{Sandbox, shown};
use rustix::process::Signal;
use serde_json::json;

/// A user whom an access control list lets read, and another one.
const LISTED: u32 = 65_534;
const OTHER: u32 = 4242;

/// An access control list by which the owner and the user may read (acl(5); the kernel's
/// `posix_acl_xattr.h`: version 2, then tag, permissions and id of each entry).
fn readable_by(user: u32) -> Vec<u8> {
    let nobody = u32::MAX;
    let entries = [
        (0x01, 6, nobody),
        (0x02, 4, user),
        (0x04, 0, nobody),
        (0x10, 4, nobody),
        (0x20, 0, nobody),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(u16::to_le_bytes(tag));
        list.extend(u16::to_le_bytes(permissions));
        list.extend(u32::to_le_bytes(id));
    }
    list
}

/// A tar of files that everyone, only root, and by its list only one user besides may read.
fn files() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, mode) in [("open", 0o644), ("closed", 0o600), ("listed", 0o640)] {
        if name == "listed" {
            let list = readable_by(LISTED);
            tar.append_pax_extensions([("SCHILY.xattr.system.posix_acl_access", &list[..])])
                .unwrap();
        }
        let mut header = tar::Header::new_ustar();
        header.set_size(5);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        tar.append_data(&mut header, name, &b"text\n"[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

/// A sandbox that all users may enter, with the image `oci:img:v1` and the folder `mnt`.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::set_permissions(sandbox.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    image(&sandbox, "img", &[files()], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    sandbox
}

/// The files in a mount that a user can read.
fn read_by(user: u32, mnt: &Path) -> String {
    let can_read = |name: &str| {
        let user = user.to_string();
        let mut cat = Command::new("setpriv");
        cat.args(["--reuid", &user, "--regid", &user, "--clear-groups", "cat"]).arg(mnt.join(name));
        cat.stdin(Stdio::null()).output().unwrap().stdout == b"text\n"
    };
    ["open", "closed", "listed"]
        .into_iter()
        .filter(|name| can_read(name))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn modes_and_access_control_lists_hold_for_other_users() {
    if !can_mount() || !have(&["setpriv"]) {
        return;
    }
    let sandbox = sandbox();
    let mnt = sandbox.path("mnt");
    for (options, seen) in [
        (&[][..], [(0, "open closed listed"), (LISTED, ""), (OTHER, "")]),
        (&["--allow-other"], [(0, "open closed listed"), (LISTED, "open listed"), (OTHER, "open")]),
    ] {
        let mut serving =
            MountProcess::start(&sandbox, &[&["mount", "oci:img:v1", "mnt"], options].concat());
        for (user, files) in seen {
            assert_eq!(read_by(user, &mnt), files, "user {user}, {options:?}");
        }
        serving.child.signal(Signal::TERM);
        serving.end();
    }
}

/// In a mount namespace of its own, whose /etc/fuse.conf lets users do it.
#[test]
fn users_can_allow_others() {
    if !can_mount() || !have(&["fusermount3", "unshare", "setpriv"]) {
        return;
    }
    let sandbox = sandbox();
    sandbox.copy_program("ociseek");
    std::fs::write(sandbox.path("fuse.conf"), "user_allow_other\n").unwrap();
    chown(sandbox.path("mnt"), Some(LISTED), Some(LISTED)).unwrap();
    let script = format!(
        "mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse && mount --bind fuse.conf /etc/fuse.conf
        as() {{ setpriv --reuid=$1 --regid=$1 --clear-groups sh -c \"$2\"; }}
        as {LISTED} './ociseek mount --quiet --no-cache --detach --allow-other oci:img:v1 mnt' || exit 9
        for user in {LISTED} {OTHER} 0; do
          for file in open closed listed; do as $user \"cat mnt/$file 2>/dev/null >/dev/null && echo $user $file\"; done
        done
        as {LISTED} 'fusermount3 -u mnt'"
    );
    let text = shown(in_own_mounts(&script).current_dir(sandbox.dir.path()));
    // Root reads everything, unless the kernel asks for the permission of who mounted it.
    let seen: Vec<&str> = text.lines().filter(|line| !line.starts_with("0 ")).collect();
    let all = ["65534 open", "65534 listed", "4242 open", "--- stderr ---", "--- status 0 ---"];
    assert_eq!(seen, all, "{text}");
}

/// A sparse file has its bytes and its holes, and the files beside it are right.
#[test]
fn sparse_files_in_every_format_of_gnu_tar() {
    if !can_mount() {
        return;
    }
    const SIZE: u64 = 8 << 20;
    for format in [
        &["--format=gnu"][..],
        &["--format=posix", "--sparse-version=0.0"],
        &["--format=posix", "--sparse-version=0.1"],
        &["--format=posix"],
    ] {
        let sandbox = Sandbox::new();
        let source = sandbox.path("source");
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("after"), "after").unwrap();
        std::fs::write(source.join("before"), "before").unwrap();
        let hole = std::fs::File::create(source.join("hole")).unwrap();
        hole.set_len(SIZE).unwrap();
        // More pieces than fit into the first header of the old format.
        for piece in 0..40 {
            hole.write_all_at(&[piece as u8 + 1; 5000], piece * 200_000).unwrap();
        }
        let tar = sandbox.path("tar");
        let names = ["before", "hole", "after"].map(OsStr::new);
        let options = ["--create", "--sparse"].iter().chain(format).map(OsStr::new);
        let place = ["-C".as_ref(), source.as_os_str(), "-f".as_ref(), tar.as_os_str()];
        system("tar", &options.chain(place).chain(names).collect::<Vec<_>>());
        let tar = std::fs::read(tar).unwrap();
        assert!((tar.len() as u64) < SIZE, "{format:?}: it is not sparse");
        image(&sandbox, "img", &[tar], &json!({}));
        let mnt = sandbox.path("mnt");
        std::fs::create_dir(&mnt).unwrap();
        let serving = MountProcess::start(&sandbox, &["mount", "oci:img:v1", "mnt"]);
        assert_eq!(mnt.join("hole").metadata().unwrap().size(), SIZE, "{format:?}");
        for name in ["before", "hole", "after"] {
            let here = std::fs::read(mnt.join(name)).unwrap();
            let there = std::fs::read(source.join(name)).unwrap();
            assert!(here == there, "{format:?}: {name} has other bytes");
        }
        drop(serving);
    }
}
