//! Readers of several images, while everything that serves them is killed and the cache is emptied:
//! each byte is right or an error, and nothing is left.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

use super::node::{Node, container};
use super::{indexed, numbered_rootfs, programs};
use crate::bundle::UNREAD;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::servers::tool;

const IMAGES: usize = 3;
const ROUNDS: usize = 6;
/// A read at each of these places.
const STEP: usize = 700_001;

/// Reads places of a file, without the kernel's cache. Returns how many were errors.
fn read_places(file: &str, expected: &[u8]) -> usize {
    let Ok(open) = File::open(file) else { return 1 };
    let _ = fadvise(&open, 0, None, Advice::DontNeed);
    let mut errors = 0;
    for at in (0..UNREAD - 4096).step_by(STEP) {
        let mut bytes = [0; 4096];
        match open.read_exact_at(&mut bytes, at as u64) {
            Ok(()) => assert!(bytes == expected[at..at + 4096], "wrong bytes at {at} of {file}"),
            Err(_) => errors += 1,
        }
    }
    errors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_are_right_while_all_that_serves_them_is_killed() {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    tokio::task::block_in_place(|| {
        let images =
            indexed(&registry, (0..IMAGES).map(|number| numbered_rootfs(&busybox, number)));
        let node = Node::new(programs, &images[0]);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let names: Vec<String> =
            (0..IMAGES).map(|number| container(&format!("races-{number}"))).collect();
        for (image, name) in images.iter().zip(&names) {
            node.pull(image, "ociseek");
            node.start(name, image);
        }
        let points = node.mount_points();
        let files: Vec<String> = points.iter().map(|point| format!("{point}/srv/unread")).collect();
        assert_eq!(files.len(), IMAGES);
        let expected = fs::read(&files[0]).unwrap();
        let stop = AtomicBool::new(false);
        let reads = AtomicUsize::new(0);
        thread::scope(|scope| {
            for file in &files {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        read_places(file, &expected);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for round in 0..ROUNDS {
                let before = reads.load(Ordering::Relaxed);
                match round % 3 {
                    0 => node.restart(&mut serving),
                    1 => node.kill_keeper(),
                    _ => drop(fs::remove_dir_all(node.at("cache/spans"))),
                }
                // What an image without a keeper loses is another test.
                wait_until("a process keeps the devices", || node.keeper().is_some());
                wait_until("reads go on", || reads.load(Ordering::Relaxed) > before + IMAGES);
                thread::sleep(Duration::from_millis(200));
            }
            stop.store(true, Ordering::Relaxed);
        });
        for file in &files {
            assert_eq!(read_places(file, &expected), 0, "{file}");
        }
        names.iter().for_each(|name| node.end(name));
        for image in &images {
            node.remove(image);
        }
        node.wait_until_clear();
        serving.stop();
    });
}
