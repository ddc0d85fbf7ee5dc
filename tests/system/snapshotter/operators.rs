//! What who runs many nodes sees of one, and can change without a restart.

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use tokio::runtime::Handle;

use super::node::Node;
use super::{busybox_image, indexed, numbered_rootfs, programs};
use crate::bundle::UNREAD;
use ociseek_node::serves;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, ReceivedRequest, RegistrySettings, problem};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::servers::tool;

/// Replaces the configuration, and has it read.
pub fn reload(node: &Node, serving: &ChildProcess, config: &str, result: &str) {
    let metric = format!("ociseek_snapshotter_reloads_total{{result=\"{result}\"}}");
    let before = node.metric(&metric);
    fs::write(node.at("snapshotter.toml"), config).unwrap();
    serving.signal(Signal::HUP);
    wait_until("the configuration is read", || node.metric(&metric) > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_are_measured_and_the_configuration_is_read_again() {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let refuses = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&refuses);
    let settings = RegistrySettings::with_referrers();
    let lie = move |request: &ReceivedRequest, _: &Faulty| {
        let is_refused = refused.load(Ordering::Relaxed) && request.path.contains("/blobs/");
        is_refused.then(|| problem(403, "DENIED", "the login ended"))
    };
    let registry = Faulty::start(settings, lie).await;
    tokio::task::block_in_place(|| {
        let images = indexed(&registry, (0..2).map(|number| numbered_rootfs(&busybox, number)));
        let node = Node::new(programs, &images[0]);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let metric = |name: &str| node.metric(&format!("ociseek_snapshotter_{name}"));
        node.pull(&images[0], "ociseek");
        assert_eq!(node.shell(&images[0], "echo READY"), "READY\n");
        let file = format!("{}/srv/unread", node.mount_points()[0]);
        assert!(metric("read_seconds_count") > 0);
        assert!(metric("registry_requests_total{code=\"2xx\"}") > 0);
        assert!(metric("registry_request_seconds_count") > 0);
        assert!(metric("cache_bytes") > 0 && metric("cache_limit_bytes") == 4 << 30);
        assert!(metric("cache_misses_total") > 0);
        assert_eq!(node.logged("mounted").len(), 1);

        refuses.store(true, Ordering::Relaxed);
        assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert!(metric("read_failures_total{reason=\"login\"}") > 0);
        // Each span has an error of its own, and the image one line.
        let failed = node.logged("read-failed");
        assert_eq!((failed.len(), &failed[0]["reason"]), (1, &"login".into()), "{failed:?}");
        refuses.store(false, Ordering::Relaxed);

        let valid = fs::read_to_string(node.at("snapshotter.toml")).unwrap();
        reload(&node, &serving, "lazy-from = []", "failed");
        reload(&node, &serving, "nonsense = 1", "failed");
        assert_eq!(node.logged("not-reloaded").len(), 2);
        let excluding = valid
            .replace("[\"*\"]", &format!("[\"*\", \"!{}/a/*\"]", registry.host()))
            .replace("/cache\"", "/another\"");
        reload(&node, &serving, &excluding, "reloaded");
        assert_eq!(node.logged("reloaded")[0]["changed"], "[\"lazy-from\"]");
        assert_eq!(node.logged("needs-restart")[0]["keys"], "[\"cache-dir\"]");
        node.pull(&images[1], "ociseek");
        assert_eq!(node.unpacked("not-listed"), 1);
        // What is mounted stays.
        assert_eq!(fs::read(&file).unwrap().len(), UNREAD);
        reload(&node, &serving, &format!("{valid}log-level = \"warn\"\n"), "reloaded");
        for image in &images {
            node.remove(image);
        }
        wait_until("nothing is mounted", || node.lazy_mounts().is_empty());
        assert_eq!(node.logged("unmounted").len(), 0);
        serving.stop();
    });
}

/// A mount that does not answer: another file system is mounted on it, and nobody serves that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_mount_that_is_silent_is_counted_until_it_answers() {
    let (Some(programs), Some((_registry, image))) = (programs(), busybox_image().await) else {
        return;
    };
    tokio::task::block_in_place(|| {
        let node = Node::new(programs, &image);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        node.pull(&image, "ociseek");
        assert_eq!(node.shell(&image, "echo READY"), "READY\n");
        let silent = || {
            let counted = node.metric("ociseek_snapshotter_silent_mounts");
            let socket = node.at("ociseek.sock");
            let is_serving = Handle::current().block_on(serves(Path::new(&socket))).unwrap();
            (counted, node.monitored("/readyz").0, node.monitored("/healthz").0, is_serving)
        };
        assert_eq!(silent(), (0, 200, 200, true));
        let point = &node.mount_points()[0];
        let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = CString::new(data).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("nobody", point, "fuse", flags, Some(data.as_c_str())).unwrap();
        wait_until("the mount is silent", || silent() == (1, 503, 200, false));
        assert_eq!(node.inspected("status").0, Some(3));
        unmount(point, UnmountFlags::DETACH).unwrap();
        drop(device);
        wait_until("the mount answers", || silent() == (0, 200, 200, true));
        assert_eq!(node.shell(&image, "echo READY"), "READY\n");
        serving.stop();
    });
}

/// A limit of what all mounts receive, which is changed while a read waits for it, the rest of an
/// image, which arrives only if that is configured, and the figures of the cache with both.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_fetched_is_limited_and_the_rest_of_images_comes_if_asked_for() {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    tokio::task::block_in_place(|| {
        let images = indexed(&registry, (0..2).map(|number| numbered_rootfs(&busybox, number)));
        let mut node = Node::new(programs, &images[0]);
        let mut serving = node.snapshotter();
        let _containerd = node.containerd();
        let metric = |node: &Node, name: &str| node.metric(&format!("ociseek_snapshotter_{name}"));
        let start = |node: &Node, image: &str| {
            node.pull(image, "ociseek");
            assert_eq!(node.shell(image, "echo READY"), "READY\n");
        };
        let fetched = |node: &Node| metric(node, "fetched_bytes_total");
        start(&node, &images[0]);
        let file = format!("{}/srv/unread", node.mount_points()[0]);
        let valid = fs::read_to_string(node.at("snapshotter.toml")).unwrap();
        // The file takes some hours at this speed.
        reload(&node, &serving, &format!("{valid}bandwidth = \"8kbit\"\n"), "reloaded");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| fs::read(&file));
            wait_until("a read waits", || node.waiting_requests() > 0);
            assert!(fetched(&node) < UNREAD as u64 / 2 && !reader.is_finished());
            reload(&node, &serving, &valid, "reloaded");
            assert_eq!(reader.join().unwrap().unwrap().len(), UNREAD);
        });

        reload(&node, &serving, &format!("{valid}prefetch = true\n"), "reloaded");
        wait_until("the bytes are counted", || fetched(&node) >= UNREAD as u64);
        let before = fetched(&node);
        start(&node, &images[1]);
        // Nobody reads it.
        wait_until("the rest is there", || fetched(&node) >= before + UNREAD as u64);

        assert!(metric(&node, "cache_bytes") >= 2 * UNREAD as u64);
        assert_eq!(metric(&node, "cache_evictions_total"), 0);
        node.config = "cache-size = \"20MiB\"\n".to_owned();
        node.restart(&mut serving);
        wait_until("the cache answers, not the kernel", || {
            fadvise(fs::File::open(&file).unwrap(), 0, None, Advice::DontNeed).unwrap();
            assert_eq!(fs::read(&file).unwrap().len(), UNREAD);
            metric(&node, "cache_hits_total") > 0
        });
        node.config = "cache-size = \"4MiB\"\n".to_owned();
        node.restart(&mut serving);
        wait_until("there is room in the cache", || metric(&node, "cache_bytes") <= 4 << 20);
        assert!(metric(&node, "cache_evictions_total") > 0);
        serving.stop();
    });
}

#[test]
fn a_snapshotter_that_cannot_listen_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(at("taken"), "").unwrap();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().to_string();
    let own = [format!("--root={}", at("root")), format!("--cache-dir={}", at("cache"))];
    for refused in [
        [format!("--socket={}", at("taken")), "--metrics-listen=127.0.0.1:0".to_owned()],
        [format!("--socket={}", at("socket")), format!("--metrics-listen={port}")],
    ] {
        let mut command = std::process::Command::new(ociseek_testkit::sandbox::program());
        command.args(["snapshotter", "--lazy-from=*"]).args(&own).args(&refused);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{refused:?}");
        let left: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["taken"], "{}", String::from_utf8_lossy(&output.stderr));
    }
}
