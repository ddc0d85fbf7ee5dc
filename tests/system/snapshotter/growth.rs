//! What a node with many images takes, and that it does not grow. Prints the figures of
//! docs/contributing/measuring.md.

use std::fs::{self, File};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::node::{Node, container};
use super::{indexed, numbered_rootfs, programs};
use crate::bundle;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::servers::tool;
use ociseek_testkit::tarball::file;

const IMAGES: usize = 100;
/// When figures are printed, too.
const FEW: usize = 30;
const CYCLES: usize = 1000;
/// By then, unused content is dropped, and freed memory is returned.
const IDLE: Duration = Duration::from_secs(70);
/// After every so many cycles, the server or the keeper is killed.
const KILLS: usize = 10;
/// How much more memory the server of the same age may have, in bytes.
const MORE: u64 = 24 << 20;

/// The descriptors, threads and bytes of memory (`Pss`) of a process.
fn taken(pid: u32) -> (usize, usize, u64) {
    let count = |dir: &str| fs::read_dir(format!("/proc/{pid}/{dir}")).map_or(0, Iterator::count);
    (count("fd"), count("task"), memory(pid, "Pss:"))
}

/// A kind of memory of a process, in bytes.
fn memory(pid: u32, kind: &str) -> u64 {
    let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = memory.lines().find_map(|line| line.strip_prefix(kind)?.split_whitespace().next());
    kib.map_or(0, |kib| kib.parse::<u64>().unwrap() << 10)
}

/// The files of the snapshotter's state.
fn state(node: &Node) -> usize {
    let mut left = vec![node.dir.path().join("lazy")];
    let mut files = 0;
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            files += 1;
            // Not into mounts.
            if entry.file_type().unwrap().is_dir() && entry.file_name() != "fs" {
                left.push(entry.path());
            }
        }
    }
    files
}

/// Images come, start and go. After every `kills` cycles, the server or the keeper is killed, and
/// after every 2 * `kills`, nothing has grown.
fn cycles(
    node: &Node,
    serving: &mut ChildProcess,
    images: &[String],
    count: usize,
    kills: usize,
    print: impl Fn(usize, u32),
) {
    let mut first = None;
    for cycle in 0..count {
        let image = &images[cycle % images.len()];
        node.pull(image, "ociseek");
        assert_eq!(node.shell(image, "cat /bin/true >/dev/null; echo READY"), "READY\n");
        match cycle % (2 * kills) {
            0 => node.restart(serving),
            at if at == kills => node.kill_keeper(),
            _ => {}
        }
        node.remove(image);
        node.wait_until_clear();
        if cycle % (2 * kills) == 2 * kills - 1 {
            print(cycle + 1, serving.id());
            let (descriptors, _, memory) = taken(serving.id());
            let files = state(node);
            let first = *first.get_or_insert((descriptors, memory, files));
            assert!(descriptors <= first.0 + 8 && files <= first.2 + 2, "{descriptors} {files}");
            assert!(memory <= first.1 + MORE, "{memory} bytes, and {} before", first.1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_grows_while_images_come_and_go() {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    tokio::task::block_in_place(|| {
        let images = indexed(&registry, (0..2).map(|number| numbered_rootfs(&busybox, number)));
        let node = Node::new(programs, &images[0]);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        cycles(&node, &mut serving, &images, 30, 5, |_, _| {});
        serving.stop();
    });
}

/// Images with as many files as fit into the memory for lists start lazily, and the others from
/// the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lists_of_files_of_many_images_stay_within_their_memory() {
    const FILES: usize = 10_000;
    /// In MiB.
    const LISTS: u64 = 17;
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let layer = |number: usize| {
        let mut tar: Vec<u8> =
            (0..FILES).flat_map(|n| file(&format!("list-{number}/{n}"), b"")).collect();
        tar.extend(numbered_rootfs(&busybox, number));
        tar
    };
    tokio::task::block_in_place(|| {
        let images = indexed(&registry, (0..6).map(layer));
        let mut node = Node::new(programs, &images[0]);
        node.config = format!("max-memory = \"{LISTS}MiB\"\n");
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let unpacked = || node.unpacked("memory");
        for image in &images {
            node.pull(image, "ociseek");
            assert_eq!(node.shell(image, "echo READY"), "READY\n");
        }
        let lazy = node.lazy_mounts().len() as u64;
        assert!(lazy > 0 && unpacked() == images.len() as u64 - lazy, "{lazy} {}", unpacked());
        let peak = serving.peak_memory();
        println!("{lazy} of {} images are lazy; at most {} MB", images.len(), peak / 1_000_000);
        assert!(peak < (LISTS + 192) << 20, "{peak}");
        // The memory of an image that is removed is for another one.
        for image in &images {
            node.remove(image);
        }
        node.wait_until_clear();
        wait_until("another image starts lazily", || {
            node.pull(&images[5], "ociseek");
            let is_lazy = node.metric("ociseek_snapshotter_images") == 1;
            if !is_lazy {
                node.remove(&images[5]);
            }
            is_lazy
        });
        assert_eq!(node.shell(&images[5], "echo READY"), "READY\n");
        serving.stop();
    });
}

/// Pulls images with long lists of files, with so many MiB for all lists, and starts all at once.
/// Returns how many start lazily.
async fn all_start_at_once(images: usize, files_each: usize, lists: u64) -> usize {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return images };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let layer = |number: usize| {
        let mut tar: Vec<u8> =
            (0..files_each).flat_map(|n| file(&format!("list-{number}/{n}"), b"")).collect();
        tar.extend(numbered_rootfs(&busybox, number));
        tar
    };
    tokio::task::block_in_place(|| {
        let images = indexed(&registry, (0..images).map(layer));
        let mut node = Node::new(programs, &images[0]);
        node.config = format!("max-memory = \"{lists}MiB\"\n");
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        thread::scope(|scope| {
            for image in &images {
                scope.spawn(|| node.pull(image, "ociseek"));
            }
        });
        let unpacked = node.unpacked("memory");
        let begun = Instant::now();
        let node = &node;
        let started = |number: usize, image: &str| {
            let name = container(&format!("at-once-{number}-{files_each}"));
            // As kubelet tries.
            for _ in 0..100 {
                let run = ["run", "--detach", "--snapshotter", "ociseek", image, &name];
                let ran = node.try_ctr(&[&run[..], &["/bin/sleep", "3600"]].concat());
                if ran.status.success() {
                    return (begun.elapsed(), name);
                }
                println!("{number}: {}", String::from_utf8_lossy(&ran.stderr).trim());
                node.try_ctr(&["containers", "rm", &name]);
                thread::sleep(Duration::from_secs(2));
            }
            panic!("{image} does not start");
        };
        let mut took: Vec<(Duration, String)> = thread::scope(|scope| {
            let starting: Vec<_> = images
                .iter()
                .enumerate()
                .map(|(number, image)| scope.spawn(move || started(number, image)))
                .collect();
            starting.into_iter().map(|it| it.join().unwrap()).collect()
        });
        took.sort();
        let lazy = node.lazy_mounts().len();
        assert_eq!(lazy as u64 + unpacked, images.len() as u64);
        let peak = serving.peak_memory();
        println!(
            "{lazy} of {} images of {files_each} files are lazy; all started after {:?} to {:?}; at \
             most {} MB",
            images.len(),
            took[0].0,
            took[images.len() - 1].0,
            peak / 1_000_000
        );
        assert!(peak < (lists + 192) << 20, "{peak}");
        for (_, name) in &took {
            node.end(name);
        }
        serving.stop();
        lazy
    })
}

/// There is memory for opening two at a time, and for all once they are open.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn images_that_start_at_once_wait_for_memory() {
    assert_eq!(all_start_at_once(8, 8_000, 14).await, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes, for docs/contributing/measuring.md"]
async fn thirty_images_of_a_hundred_thousand_files_start_at_once() {
    all_start_at_once(30, 100_000, 384).await;
}

/// How often each of 40 images is read whole, one after the other or in any order, by 20 readers,
/// without the kernel's cache. The cache holds half of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes, for docs/contributing/measuring.md"]
async fn a_node_whose_cache_holds_half_of_what_is_read() {
    const IMAGES: usize = 40;
    const CONTAINERS: usize = 200;
    const READERS: usize = 20;
    const ROUNDS: usize = 4;
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    tokio::task::block_in_place(|| {
        let images =
            indexed(&registry, (0..IMAGES).map(|number| numbered_rootfs(&busybox, number)));
        let mut node = Node::new(programs, &images[0]);
        node.config = format!("cache-size = \"{}MB\"\n", IMAGES * bundle::UNREAD / 2_000_000);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let at_once = |count: usize, work: &(dyn Fn(usize) + Sync)| {
            let next = AtomicUsize::new(0);
            thread::scope(|scope| {
                for _ in 0..READERS {
                    scope.spawn(|| {
                        loop {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            if number >= count {
                                break;
                            }
                            work(number);
                        }
                    });
                }
            });
        };
        let fetched = || node.metric("ociseek_snapshotter_fetched_bytes_total");
        let said = |what: &str| {
            println!(
                "{what}: {} MB fetched, cache {} MB, {} evicted, at most {} MB of memory",
                fetched() / 1_000_000,
                node.metric("ociseek_snapshotter_cache_bytes") / 1_000_000,
                node.metric("ociseek_snapshotter_cache_evictions_total"),
                serving.peak_memory() / 1_000_000
            );
        };
        let name = |number: usize| container(&format!("half-{number}"));
        at_once(IMAGES, &|number| node.pull(&images[number], "ociseek"));
        at_once(CONTAINERS, &|number| node.start(&name(number), &images[number % IMAGES]));
        said("200 containers started");
        let points = node.mount_points();
        assert_eq!(points.len(), IMAGES);
        let expected = fs::read(format!("{}/srv/unread", points[0])).unwrap();
        let read = |number: usize| {
            let path = format!("{}/srv/unread", points[number]);
            fadvise(File::open(&path).unwrap(), 0, None, Advice::DontNeed).unwrap();
            assert!(fs::read(&path).unwrap() == expected, "wrong bytes of {path}");
        };
        for round in 0..ROUNDS {
            at_once(IMAGES, &read);
            said(&format!("in order, round {round}"));
        }
        for round in 0..ROUNDS {
            at_once(IMAGES, &|number| read((number * 1_000_003 + round * 7919) * 31 % 97 % IMAGES));
            said(&format!("in any order, round {round}"));
        }
        for number in 0..CONTAINERS {
            node.end(&name(number));
        }
        serving.stop();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes, for docs/contributing/measuring.md"]
async fn a_node_with_a_hundred_images_and_a_thousand_cycles() {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    tokio::task::block_in_place(|| {
        let images =
            indexed(&registry, (0..IMAGES).map(|number| numbered_rootfs(&busybox, number)));
        let node = Node::new(programs, &images[0]);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let print = |when: &str, serving: u32| {
            let (descriptors, threads, _) = taken(serving);
            let keeper = node.keeper().map(i32::cast_unsigned);
            let megabytes = |pid| memory(pid, "Rss:") as f64 / 1e6;
            let rows = fs::metadata(node.at("lazy/state.json")).map_or(0, |file| file.len());
            println!(
                "{when}: server {descriptors} descriptors, {threads} threads, {:.1} MB; keeper {} \
                 descriptors, {:.1} MB; {} files, {rows} bytes of rows",
                megabytes(serving),
                keeper.map_or(0, |pid| taken(pid).0),
                keeper.map_or(0.0, megabytes),
                state(&node)
            );
        };
        print("no image", serving.id());
        let names: Vec<String> =
            (0..IMAGES).map(|number| container(&format!("growth-{number}"))).collect();
        for (number, (image, name)) in images.iter().zip(&names).enumerate() {
            if number == FEW {
                print("30 images mounted", serving.id());
                thread::sleep(IDLE);
                print("after 70 s", serving.id());
            }
            node.pull(image, "ociseek");
            node.start(name, image);
        }
        print("100 images mounted", serving.id());
        let points = node.mount_points();
        assert_eq!(points.len(), IMAGES);
        serving.kill();
        let begun = Instant::now();
        thread::scope(|scope| {
            let readers: Vec<_> = points
                .iter()
                .map(|point| {
                    scope.spawn(move || {
                        let read = fs::read(format!("{point}/srv/unread")).unwrap();
                        assert_eq!(read.len(), bundle::UNREAD);
                        begun.elapsed()
                    })
                })
                .collect();
            serving = node.snapshotter();
            println!("kill -9 of the server: the next one listens after {:?}", begun.elapsed());
            let mut took: Vec<Duration> =
                readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            took.sort();
            println!(
                "8 MB were read in 100 containers after {:?} to {:?}",
                took[0],
                took[IMAGES - 1]
            );
        });
        print("and read", serving.id());
        thread::sleep(IDLE);
        print("after 70 s", serving.id());
        for name in &names {
            node.end(name);
        }
        for image in &images {
            node.remove(image);
        }
        node.wait_until_clear();
        print("all removed", serving.id());

        cycles(&node, &mut serving, &images[..3], CYCLES, KILLS, |cycle, serving| {
            print(&format!("{cycle} cycles"), serving);
        });
        thread::sleep(IDLE);
        print("after 70 s", serving.id());
        serving.stop();
    });
}
