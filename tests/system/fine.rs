//! Images that the kernel mounts through their fine indexes: everything is as packed.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ociseek_format::digest::Digest;
use ociseek_format::offset::SpanId;
use ociseek_format::progress::{Progress, SilentProgress};
use ociseek_format::tree::{NodeId, NodeKind};
use ociseek_ops::open::{OpenOptions, RootFs, open};
use ociseek_rootfs::cache::SpanCache;
use ociseek_rootfs::content::ContentStats;
use ociseek_rootfs::fuse::{FuseMount, FuseOptions, mounted_at};
use ociseek_rootfs::layers::Caches;
use ociseek_rootfs::record::{ReadRecorder, Record};
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::mount::{everything, unpack};
use ociseek_testkit::PATIENCE;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::corpus::{self, debian_layers};
use ociseek_testkit::faulty::{Faulty, ReceivedRequest, RegistrySettings};
use ociseek_testkit::fine;
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::layers::built;
use ociseek_testkit::mounts::{
    MountProcess, assert_same, can_mount, compressed, mounts_below, packed, seen, system, unmount,
    wait_until,
};
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, Sandbox, tar};
use ociseek_testkit::servers::repository;

/// Adds an image with this tar to the registry, with a fine index of small spans and a recorded
/// start.
fn push(registry: &Faulty, tar: &[u8]) {
    push_with_start(registry, tar, vec![SpanId(3)..SpanId(5), SpanId(0)..SpanId(2)]);
}

fn push_with_start(registry: &Faulty, tar: &[u8], start: Vec<Range<SpanId>>) {
    let blob = compressed(tar);
    let layer = fine::layer(&blob, &built(&blob, 64 << 10, "test").bytes);
    let image = Image::new(&config(&[tar.to_vec()]), [(GZIP, blob)]);
    image.add_to(registry, "v1");
    fine::attach(registry, &image.manifest, &[(layer, start)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_mount_through_a_fine_index_matches_the_packed_files() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let dir = sandbox.path("dir");
    let mnt = sandbox.path("mnt");
    [&dir, &mnt].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    everything(&dir);
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    push(&registry, &packed(&dir));
    let image = format!("{}/a/b:v1", registry.host());
    // The statistics of a mount, and its requests for whole documents. Those that only open
    // connections are not counted: the last one may be left out or come after the image is open.
    let look = |cache: &[&str], stats: &str| -> (Value, usize) {
        let is_whole = |request: &&ReceivedRequest| {
            request.path != "/v2/" && request.header("range").is_none()
        };
        let whole = || registry.requests().iter().filter(is_whole).count();
        let before = whole();
        let args = [&["mount", "--stats-file", stats], cache, &[&image, "mnt"]].concat();
        tokio::task::block_in_place(|| {
            let serving = MountProcess::start(&sandbox, &args);
            assert_same(&seen(&dir, false), &seen(&mnt, false));
            drop(serving);
        });
        (
            serde_json::from_slice(&std::fs::read(sandbox.path(stats)).unwrap()).unwrap(),
            whole() - before,
        )
    };
    let runs = [
        look(&["--cache-dir", "a"], "first"),
        look(&["--cache-dir", "b"], "second"),
        look(&["--no-cache"], "third"),
    ];
    for (stats, whole) in &runs {
        // The manifest, the list of referrers, the fallback tag, the config and the fine index.
        assert_eq!(*whole, 5, "{:?}", registry.requests());
        assert_eq!(stats["layers"][0]["how"], "fine", "{stats}");
        assert!(stats["fine_index"]["digest"].is_string() && stats["index"].is_null(), "{stats}");
        assert!(stats["fine_index"]["size"].is_u64(), "{stats}");
        let (phases, first) = (&stats["phases"], &runs[0].0["phases"]);
        // The same in every run.
        assert_eq!(phases["start"]["bytes"], first["start"]["bytes"]);
        assert_eq!(phases["reading"]["bytes"], first["reading"]["bytes"]);
        assert_eq!(
            (&phases["start"]["unread_bytes"], &phases["start"]["stopped"]),
            (&json!(0), &json!(false))
        );
        assert!(
            phases["start"]["bytes"].as_u64() > Some(0)
                && phases["start"]["requests"].as_u64() <= Some(4)
        );
    }
    let (again, whole) = look(&["--cache-dir", "a"], "again");
    assert_eq!(whole, 3, "head, config and fine index are there");
    assert_eq!(
        (&again["phases"]["start"]["requests"], &again["phases"]["reading"]["requests"]),
        (&json!(0), &json!(0))
    );
}

/// An empty directory to mount at, and a registry with a referrers API.
async fn mount_point_and_registry(sandbox: &Sandbox) -> (PathBuf, Faulty) {
    let mnt = sandbox.path("mnt");
    std::fs::create_dir(&mnt).unwrap();
    (mnt, Faulty::honest(RegistrySettings::with_referrers()).await)
}

/// The threads of a process that fill the kernel's caches, as directories below /proc.
fn fillers(process: u32) -> Vec<PathBuf> {
    let threads =
        std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let is_filler =
        |thread: &PathBuf| std::fs::read(thread.join("comm")).is_ok_and(|name| name == b"fill\n");
    threads.map(|thread| thread.path()).filter(is_filler).collect()
}

/// Whether a thread of a process fills the kernel's caches.
fn is_filling(process: u32) -> bool {
    !fillers(process).is_empty()
}

/// What a thread that fills the kernel's caches has open.
fn files_of_filler(process: u32) -> Vec<String> {
    let open =
        fillers(process).into_iter().filter_map(|thread| std::fs::read_dir(thread.join("fd")).ok());
    let names = open.flatten().flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    names.map(|name| name.display().to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_kernel_has_a_recorded_start_from_the_cache_before_anybody_reads_it() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let (mnt, registry) = mount_point_and_registry(&sandbox).await;
    let tar = tar(1, 60, 20_000);
    push(&registry, &tar);

    let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
    let source = Source::Registry(repository(&registry.host(), "a/b", None));
    let open = async || {
        let ztocs = ZtocCache::open(None, Arc::clone(&progress));
        let spans = SpanCache::open(Some(&sandbox.path("cache")), 1 << 30, Arc::clone(&progress));
        let target = Target::Tag("v1".into());
        let options = OpenOptions::default();
        let caches = Caches { ztocs, spans };
        Box::pin(open(&source, &target, &options, &caches, &progress)).await.unwrap()
    };
    let mount = |image: &RootFs, options: &FuseOptions| {
        FuseMount::new(
            Arc::clone(&image.tree),
            image.content.clone(),
            &mnt,
            options,
            Handle::current(),
        )
        .unwrap()
    };
    let fill = FuseOptions { fill: true, ..FuseOptions::default() };
    // The paths of the files that the recorded start has or lacks all of, with their ranges of the
    // tar.
    let files = |image: &RootFs, has: bool| -> Vec<(PathBuf, Range<usize>)> {
        let start = image.content.recorded_start();
        let nodes = (0..image.tree.len() as u32).map(NodeId);
        nodes
            .filter_map(|id| {
                let NodeKind::File(extent) = image.tree.node(id).kind else { return None };
                let range = extent.offset..extent.offset + extent.size;
                let is_in = start
                    .iter()
                    .any(|(_, start)| start.start <= range.start && range.end <= start.end);
                let is_out = start
                    .iter()
                    .all(|(_, start)| range.end <= start.start || start.end <= range.start);
                let path = mnt.join(OsStr::from_bytes(&image.tree.path(id)));
                (if has { is_in } else { is_out })
                    .then_some((path, range.start.0 as usize..range.end.0 as usize))
            })
            .collect()
    };
    let assert_read = |files: &[(PathBuf, Range<usize>)]| {
        assert!(files.len() > 3, "{files:?}");
        for (path, range) in files {
            assert!(std::fs::read(path).unwrap() == tar[range.clone()], "{}", path.display());
        }
    };

    // Nothing is cached, so nothing is done.
    let image = open().await;
    tokio::task::block_in_place(|| {
        drop(mount(&image, &fill));
        assert_eq!(image.content.stats().requests, 0);
    });
    image.content.fetch_start().await;

    let image = open().await;
    let content = &image.content;
    tokio::task::block_in_place(|| {
        let mounted = mount(&image, &fill);
        wait_until("the caches are filled", || {
            content.stats().disk_hits > 0 && !is_filling(std::process::id())
        });
        // What the kernel has begun to read ahead may arrive later.
        let mut before = ContentStats::default();
        while before != content.stats() {
            before = content.stats();
            std::thread::sleep(Duration::from_millis(500));
        }
        assert_read(&files(&image, true));
        assert_eq!(content.stats(), before, "a read arrived");
        assert_read(&files(&image, false));
        assert_ne!(content.stats(), before);
        drop(mounted);
    });

    // What a program reads is recorded, so the kernel must ask for it.
    let image = open().await;
    tokio::task::block_in_place(|| {
        let layers: Vec<Digest> =
            image.layers.iter().map(|layer| layer.descriptor.digest).collect();
        let tree = Arc::clone(&image.tree);
        let content = image.content.clone();
        let recorder = Arc::new(ReadRecorder::new(
            tree,
            content,
            layers,
            Record::Memory(1 << 10),
            Arc::clone(&progress),
        ));
        let mounted =
            mount(&image, &FuseOptions { recorder: Some(Arc::clone(&recorder)), ..fill.clone() });
        let files = files(&image, true);
        assert_read(&files);
        assert!(recorder.touches().len() >= files.len());
        drop(mounted);
    });

    // It can be unmounted at any time. Other tests' containers may have a copy of the mount, with
    // which it counts as in use.
    for pause in 0..20 {
        let image = open().await;
        tokio::task::block_in_place(|| {
            let mut mounted = mount(&image, &fill);
            std::thread::sleep(Duration::from_micros(pause * 200));
            match pause % 2 {
                0 => assert!(mounted.unmount().is_ok() && mounted_at(&mnt).unwrap().is_none()),
                _ => {
                    unmount(&mnt);
                    Handle::current().block_on(mounted.ended()).unwrap();
                }
            }
        });
        assert_eq!(mounts_below(&mnt), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_kernel_gets_a_recorded_start_as_it_arrives_and_reads_of_the_program_still_count() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let (mnt, registry) = mount_point_and_registry(&sandbox).await;
    let tar = tar(1, 60, 200_000);
    push_with_start(&registry, &tar, std::iter::once(SpanId(0)..SpanId(180)).collect());
    let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
    let source = Source::Registry(repository(&registry.host(), "a/b", None));

    let open = async |cache: &str, unread: u64| {
        let caches = Caches {
            ztocs: ZtocCache::open(None, Arc::clone(&progress)),
            spans: SpanCache::open(Some(&sandbox.path(cache)), 1 << 30, Arc::clone(&progress)),
        };
        let mut options = OpenOptions::default();
        options.content.unread = unread;
        let target = Target::Tag("v1".into());
        Box::pin(open(&source, &target, &options, &caches, &progress)).await.unwrap()
    };

    // How many parts of spans the program itself reads, with and without filling.
    let mut parts_read = Vec::new();
    for fill in [true, false] {
        let image = open(if fill { "filled" } else { "not-filled" }, 64 << 20).await;
        let content = image.content.clone();
        let fetching = tokio::spawn({
            let content = content.clone();
            async move { content.fetch_start().await }
        });
        wait_until("fetching has begun", || content.start_stats().spans > 0);
        let options = FuseOptions { fill, ..FuseOptions::default() };
        let runtime = Handle::current();
        let tree = Arc::clone(&image.tree);
        let mounted = tokio::task::block_in_place(|| {
            FuseMount::new(tree, content.clone(), &mnt, &options, runtime).unwrap()
        });
        fetching.await.unwrap();
        tokio::task::block_in_place(|| {
            wait_until("the caches are filled", || !is_filling(std::process::id()));
            let all = content.stats().bytes_fetched;
            let unread = || content.start_stats().unread_bytes;
            assert!(
                unread() > all / 2,
                "filling counted as reading: {} of {all} bytes are unread",
                unread()
            );
            let hits = || content.stats().memory_hits + content.stats().disk_hits;
            let before = hits();
            for id in (0..image.tree.len() as u32).map(NodeId) {
                let NodeKind::File(extent) = &image.tree.node(id).kind else { continue };
                let from = extent.offset.0 as usize;
                let path = mnt.join(OsStr::from_bytes(&image.tree.path(id)));
                let content = &tar[from..from + extent.size as usize];
                assert!(std::fs::read(&path).unwrap() == content, "{}", path.display());
            }
            parts_read.push(hits() - before);
            assert!(unread() < all / 10, "{} of {all}", unread());
            drop(mounted);
        });
    }
    assert!(parts_read[0] * 3 < parts_read[1], "{parts_read:?}");

    // While it waits for more, others can unmount.
    let image = open("third", 1).await;
    let content = image.content.clone();
    let _fetching = tokio::spawn(async move { content.fetch_start().await });
    wait_until("it waits", || image.content.start_stats().stopped);
    let options = FuseOptions { fill: true, ..FuseOptions::default() };
    let runtime = Handle::current();
    let mut mounted = tokio::task::block_in_place(|| {
        let mounted =
            FuseMount::new(Arc::clone(&image.tree), image.content.clone(), &mnt, &options, runtime);
        wait_until("it fills", || is_filling(std::process::id()));
        std::thread::sleep(Duration::from_millis(200));
        unmount(&mnt);
        mounted.unwrap()
    });
    tokio::time::timeout(Duration::from_secs(5), mounted.ended()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_killed_while_it_fills_the_kernels_caches_leaves_nobody_waiting() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let (mnt, registry) = mount_point_and_registry(&sandbox).await;
    let tar = tar(1, 60, 200_000);
    push_with_start(&registry, &tar, std::iter::once(SpanId(0)..SpanId(180)).collect());
    let name = format!("{}/a/b:v1", registry.host());
    let mount = ["mount", &name, "mnt"];
    tokio::task::block_in_place(|| {
        let mut serving = MountProcess::start(&sandbox, &mount);
        let files: Vec<PathBuf> =
            seen(&mnt, false).into_keys().map(|path| mnt.join(path)).collect();
        let contents: Vec<Vec<u8>> =
            files.iter().map(|file| std::fs::read(file).unwrap_or_default()).collect();
        let files = Arc::new(files.into_iter().zip(contents).collect::<Vec<_>>());
        serving.child.signal(rustix::process::Signal::TERM);
        assert!(serving.end().success());

        let mut filling = 0;
        for pause in 0..30 {
            let mut child = ChildProcess::spawn(
                sandbox.command(&mount).stderr(Stdio::null()).stdin(Stdio::null()),
            );
            while mounts_below(&mnt).is_empty() {
                assert!(child.ended().is_none(), "it did not mount");
            }
            let (sender, ends) = mpsc::channel();
            for reader in 0..4 {
                let files = Arc::clone(&files);
                let sender = sender.clone();
                std::thread::spawn(move || {
                    let (later, first) = files.split_at(files.len() / 4 * reader);
                    let read = |(file, content): &(PathBuf, Vec<u8>)| {
                        std::fs::read(file).map_or(true, |read| read == *content)
                    };
                    let _ = sender.send(later.iter().chain(first).all(read));
                });
            }
            std::thread::sleep(Duration::from_micros(pause * 300));
            filling += u32::from(is_filling(child.id()));
            for file in files_of_filler(child.id()) {
                assert!(!file.starts_with("socket:") && !file.starts_with("anon_inode:"), "{file}");
            }
            child.signal(rustix::process::Signal::KILL);
            assert!(child.wait().is_some(), "it has not ended {pause}");
            for _ in 0..4 {
                assert_eq!(ends.recv_timeout(PATIENCE), Ok(true), "{pause}");
            }
            system("umount", &["-l".as_ref(), mnt.as_os_str()]);
        }
        assert!(filling > 0, "none was killed while it filled the caches");
    });
}

/// The bytes of a file at an offset, from a thread of its own. The kernel reads nothing else.
fn read_at(path: &std::path::Path, at: u64) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let file = File::open(path).unwrap();
    std::thread::spawn(move || {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, at).unwrap();
        sender.send(bytes)
    });
    receiver
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_from_memory_do_not_wait_for_busy_workers() {
    const FILES: usize = 20;
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let (mnt, registry) = mount_point_and_registry(&sandbox).await;
    let tar = tar(1, FILES, 200_000);
    push(&registry, &tar);

    let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
    let source = Source::Registry(repository(&registry.host(), "a/b", None));
    let ztocs = ZtocCache::open(None, Arc::clone(&progress));
    let caches = Caches { ztocs, spans: SpanCache::open(None, 0, Arc::clone(&progress)) };
    let workers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let opening = async move {
        open(&source, &Target::Tag("v1".into()), &OpenOptions::default(), &caches, &progress)
            .await
            .unwrap()
    };
    let image = workers.spawn(opening).await.unwrap();
    tokio::task::block_in_place(|| {
        let tree = Arc::clone(&image.tree);
        let content = image.content.clone();
        let options = FuseOptions::default();
        let mounted =
            FuseMount::new(tree, content, &mnt, &options, workers.handle().clone()).unwrap();
        let file = |number: usize| mnt.join(format!("dir1/file{number}"));
        let first = read_at(&file(0), 0).recv_timeout(PATIENCE).unwrap();

        let (busy, is_busy) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        workers.spawn(async move {
            busy.send(()).unwrap();
            let _ = released.recv();
        });
        is_busy.recv_timeout(PATIENCE).unwrap();
        // More than there are threads that receive requests.
        let waiting: Vec<_> = (1..FILES).map(|number| read_at(&file(number), 100_000)).collect();
        let second = read_at(&file(0), 8192).recv_timeout(PATIENCE);
        let is_early = waiting.iter().any(|read| read.try_recv().is_ok());
        drop(release);
        for read in waiting {
            read.recv_timeout(PATIENCE).unwrap();
        }
        drop(mounted);
        let start = tar.windows(4096).position(|bytes| bytes == first).unwrap();
        assert!(second.expect("it is in memory") == tar[start + 8192..start + 12288]);
        assert!(!is_early, "nobody fetched them");
    });
    drop(image);
    workers.shutdown_background();
}

/// Makes a fine index of the image with this tag in a layout, and compares every file of a mount by
/// it with what tar unpacks.
fn assert_unpacked(layout: &Path, tag: &str) {
    let sandbox = Sandbox::new();
    let unpacked = sandbox.path("unpacked");
    let mnt = sandbox.path("mnt");
    [&unpacked, &mnt].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let name = format!("oci:{}:{tag}", layout.display());
    let index = ["index", "--kind=fine", "--min-layer-size=0", "--no-cache", "--quiet", &name];
    let output = sandbox.command(&index).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let blob =
        |digest: &Value| layout.join("blobs").join(digest.as_str().unwrap().replace(':', "/"));
    let parse =
        |path: &Path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let listed = parse(&layout.join("index.json"));
    let is_it = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == tag;
    let entry = listed["manifests"].as_array().unwrap().iter().find(is_it).unwrap();
    let manifest = parse(&blob(&entry["digest"]));
    for layer in manifest["layers"].as_array().unwrap() {
        unpack(&blob(&layer["digest"]), &unpacked);
    }
    let serving = MountProcess::start(
        &sandbox,
        &["mount", "--stats-file", "stats", "--cache-dir", "cache", &name, "mnt"],
    );
    let expected = seen(&unpacked, false);
    let found = seen(&mnt, false);
    assert!(expected.len() > 1, "{name}: nothing was unpacked");
    assert_same(&expected, &found);
    drop(serving);
    let stats = parse(&sandbox.path("stats"));
    assert!(
        stats["layers"].as_array().unwrap().iter().all(|layer| layer["how"] == "fine"),
        "{name}: {stats}"
    );
}

/// The Debian image of the corpus with a gzip layer and with each of its layers of zstd, and every
/// tagged image of one platform in the layouts below the folder `OCISEEK_IMAGES`.
#[test]
fn every_file_of_real_images_matches_tar() {
    let Some(layers) = debian_layers() else { return };
    if !can_mount() {
        return;
    }
    for name in ["go", "zstd", "gozstd", "zstd9"] {
        let debian = corpus::Image::of(&layers.join(format!("debian-rootfs.{name}.tar.gz")));
        assert_unpacked(&debian.dir.path().join("image"), "v1");
    }
    let Some(folder) = std::env::var_os("OCISEEK_IMAGES") else { return };
    for layout in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(listed) = std::fs::read(layout.join("index.json")) else { continue };
        let listed: Value = serde_json::from_slice(&listed).unwrap();
        // A copy, because the fine index is written beside the image.
        let copy = tempfile::tempdir().unwrap();
        system("cp", &[OsStr::new("-a"), layout.join(".").as_os_str(), copy.path().as_os_str()]);
        for entry in listed["manifests"].as_array().unwrap() {
            let tag = &entry["annotations"]["org.opencontainers.image.ref.name"];
            if let (Some(tag), Some(OCI_MANIFEST)) = (tag.as_str(), entry["mediaType"].as_str()) {
                assert_unpacked(copy.path(), tag);
            }
        }
    }
}
