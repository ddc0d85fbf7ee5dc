//! The snapshotter's directory is on a disk that does not answer.

use std::fs;

use super::node::Node;
use super::{busybox_image, programs};
use crate::bundle::UNREAD;
use ociseek_testkit::mounts::{Frozen, have, mount_disk, wait_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn containers_read_on_and_calls_are_answered() {
    let Some(programs) = programs() else { return };
    if !have(&["fsfreeze", "mkfs.ext4"]) {
        return;
    }
    let Some((_registry, image)) = busybox_image().await else { return };
    tokio::task::block_in_place(|| {
        let node = Node::new(programs, &image);
        let root = node.dir.path().join("lazy");
        fs::create_dir(&root).unwrap();
        mount_disk(&node.dir.path().join("disk"), 64 << 20, &root);
        let mut serving = node.snapshotter();
        let mut containerd = node.containerd();
        node.pull(&image, "ociseek");
        assert_eq!(node.shell(&image, "echo READY"), "READY\n");
        let file = format!("{}/srv/unread", node.mount_points()[0]);
        let snapshots = |args: &[&str]| {
            node.try_ctr(&[&["snapshots", "--snapshotter", "ociseek"], args].concat())
        };
        let frozen = Frozen::new(&root);
        std::thread::scope(|scope| {
            let prepared = scope.spawn(|| snapshots(&["prepare", "during"]));
            // The disk is waited for.
            let calls = || node.metric("ociseek_snapshotter_read_seconds_count");
            let before = calls();
            assert_eq!(fs::read(&file).unwrap().len(), UNREAD);
            wait_until("the read is counted", || calls() > before);
            assert_eq!(node.monitored("/readyz").0, 200);
            assert!(snapshots(&["ls"]).status.success());
            let answer = prepared.join().unwrap();
            let text = String::from_utf8_lossy(&answer.stderr).into_owned();
            assert!(!answer.status.success() && text.contains("try again"), "{text}");
        });
        drop(frozen);
        assert!(snapshots(&["prepare", "after"]).status.success());
        assert!(snapshots(&["rm", "after"]).status.success());
        node.remove(&image);
        node.wait_until_clear();
        containerd.kill();
        serving.stop();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_says_that_it_waits_for_the_disk() {
    let Some(programs) = programs() else { return };
    if !have(&["fsfreeze", "mkfs.ext4"]) {
        return;
    }
    tokio::task::block_in_place(|| {
        let node = Node::new(programs, "");
        let root = node.dir.path().join("lazy");
        fs::create_dir(&root).unwrap();
        mount_disk(&node.dir.path().join("disk"), 64 << 20, &root);
        fs::write(node.at("snapshotter.log"), "").unwrap();
        let frozen = Frozen::new(&root);
        let mut serving = std::thread::scope(|scope| {
            let starting = scope.spawn(|| node.snapshotter());
            wait_until("the start says what it waits for", || !node.logged("state").is_empty());
            assert!(!starting.is_finished());
            drop(frozen);
            starting.join().unwrap()
        });
        assert_eq!(node.logged("state").len(), 1);
        serving.stop();
    });
}
