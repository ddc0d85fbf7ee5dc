//! Containers in user namespaces of their own, over images that are not pulled.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::node::{Node, container};
use super::{Ground, index, push};
use ociseek_testkit::mounts::wait_until;

/// The owners of files of different users and groups, and of one that is copied up and a new one.
const OWNERS: &str = "chmod +x /etc/hostname; echo x > /new; \
    stat -c %u:%g:%n / /bin /etc/shadow /var/mail /usr/bin/chage /etc/hostname /new";

/// The owners that a container sees, with further options of `ctr run`.
fn owners(node: &Node, image: &str, snapshotter: &str, options: &[&str]) -> String {
    let name = &*container("userns");
    let command = [image, name, "/bin/sh", "-c", OWNERS];
    let container = node.ctr(&[&["run", "--snapshotter", snapshotter], options, &command].concat());
    let upper = node.at(if snapshotter == "ociseek" {
        "lazy/snapshots"
    } else {
        "root/io.containerd.snapshotter.v1.overlayfs/snapshots"
    });
    let made = || -> Vec<(u32, u32)> {
        let files = fs::read_dir(&upper).unwrap().map(|entry| entry.unwrap().path().join("fs/new"));
        files
            .filter_map(|path| fs::metadata(path).ok())
            .map(|found| (found.uid(), found.gid()))
            .collect()
    };
    let root = if options.is_empty() { (0, 0) } else { (100_000, 200_000) };
    assert_eq!(made(), [root], "{snapshotter} {options:?}");
    node.ctr(&["containers", "rm", name]);
    wait_until("its files are removed", || made().is_empty());
    container
}

#[test]
fn files_of_a_user_namespace_have_their_owners() {
    let Some(Ground { programs, layers, crane, registry }) = Ground::new() else { return };
    let image = push(&crane, &registry.host, "app", &[&layers.join("debian-rootfs.go.tar.gz")]);
    index(&image);

    let node = Node::new(programs, &image);
    // The container's root needs a way to its files.
    fs::set_permissions(node.dir.path(), Permissions::from_mode(0o711)).unwrap();
    let _serving = node.snapshotter();
    let mut containerd = node.containerd();
    node.pull(&image, "ociseek");
    let ids = ["--uidmap", "0:100000:65536", "--gidmap", "0:200000:65536"];
    let labelled = [&["--remap-labels"], &ids[..]].concat();
    let plain = owners(&node, &image, "ociseek", &[]);
    assert!(plain.contains("0:42:/etc/shadow\n") && plain.contains("0:0:/new\n"), "{plain}");
    assert_eq!(owners(&node, &image, "ociseek", &labelled), plain);
    assert_eq!(node.lazy_mounts().len(), 1);

    // A part of a mapping is refused: containerd would not map anything.
    let half = [
        "--snapshotter-label",
        "containerd.io/snapshot/uidmapping=0:100000:65536",
        &image,
        "half",
        "true",
    ];
    let refused = node.try_ctr(&[&["run", "--snapshotter", "ociseek"], &half[..]].concat());
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("user ids and group ids must be mapped together"), "{refused}");

    // A container whose ids containerd does not leave to the snapshotter has a copy of the files.
    assert_eq!(owners(&node, &image, "ociseek", &ids), plain);
    let config = fs::read_to_string(node.at("containerd.toml")).unwrap();
    fs::write(node.at("containerd.toml"), config.replace("  capabilities = [\"remap-ids\"]\n", ""))
        .unwrap();
    containerd.kill();
    drop(containerd);
    let _containerd = node.containerd();
    assert_eq!(owners(&node, &image, "ociseek", &labelled), plain);
    node.remove(&image);
    node.wait_until_clear();
}
