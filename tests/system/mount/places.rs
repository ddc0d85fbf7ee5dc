//! Who may mount, and where.

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;

use super::{MOUNT, small_sandbox};
use ociseek_testkit::in_own_mounts;
use ociseek_testkit::mounts::{MountProcess, have};
use ociseek_testkit::sandbox;

#[test]
fn unsuitable_mount_points_are_refused() {
    let Some(sandbox) = small_sandbox() else { return };
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
    let _serving = MountProcess::start(&sandbox, &MOUNT);
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
fn unprivileged_users_can_mount() {
    if !have(&["fusermount3", "unshare", "setpriv"]) {
        return;
    }
    let Some(sandbox) = small_sandbox() else { return };
    std::fs::set_permissions(sandbox.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    sandbox.copy_program("ociseek");
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
    let mut command = in_own_mounts(outer);
    command.arg(script).current_dir(sandbox.dir.path()).stdin(Stdio::null());
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
