//! `ociseek snapshotter` under the real containerd: its own test suite for snapshotters, and images
//! from the pull to their removal.
//!
//! Root and FUSE; `.ci/test` sets up the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use rustix::process::Signal;
use serde_json::json;

use crate::bundle::rootfs;
use node::{Node, container};
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::corpus::{Image, debian_layers};
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::mounts::{assert_same, can_mount, seen, wait_until};
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::{self, Server, pushed_by_crane, run, tool};
use ociseek_testkit::throttle::throttled_and_counted;

mod disks;
mod engines;
mod growth;
mod hosts;
mod kubernetes;
mod logins;
mod network;
mod node;
mod operators;
mod outages;
mod races;
mod reasons;
mod starts;
mod strangers;
mod userns;

/// Bytes in a second. The speed is not tested here.
const FAST: u64 = 1 << 30;

/// The programs of `.ci/consumer`. If something is missing, prints a line.
fn programs() -> Option<PathBuf> {
    if can_mount() { servers::consumer() } else { None }
}

/// What tests of real images need.
struct Ground {
    programs: PathBuf,
    /// The layers of Debian in the corpus.
    layers: PathBuf,
    crane: PathBuf,
    registry: Server,
}

impl Ground {
    /// None, after a line, if something is missing.
    fn new() -> Option<Ground> {
        tool("runc")?;
        Some(Ground {
            programs: programs()?,
            layers: debian_layers()?,
            crane: tool("crane")?,
            registry: Server::distribution_on_disk("docker-registry")?,
        })
    }
}

#[test]
fn containerds_own_suite_passes() {
    let Some(programs) = programs() else { return };
    let redirects =
        fs::read_to_string("/sys/module/overlay/parameters/redirect_dir").unwrap_or_default();
    let dir = tempfile::tempdir().unwrap();
    let mut suite = Command::new(programs.join("snapshotter-suite"));
    suite.args(["-test.root", "-test.v"]).env("OCISEEK", program()).env("TMPDIR", dir.path());
    suite.env("OCISEEK_LAZY_FROM", "*");
    if redirects.trim() != "Y" {
        // Overlayfs does not rename directories of lower layers then.
        suite.arg("-test.skip=/Rename$");
    }
    let output = suite.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text.matches("    --- PASS: ").count();
    assert!(output.status.success() && passed >= 20, "{passed} passed: {text}");
}

/// Pushes an image of these layers to a registry, and returns its name.
fn push(crane: &Path, host: &str, name: &str, layers: &[&Path]) -> String {
    let reference = format!("{host}/{name}:v1");
    pushed_by_crane(crane, &reference, layers);
    reference
}

/// Gives an image a process that does nothing, and another name.
fn made_to_sleep(crane: &Path, from: &str, to: &str) {
    let entrypoint = ["--entrypoint", "/bin/sleep,infinity"];
    run(crane, &[&["mutate", "--insecure"], &entrypoint[..], &["-t", to, from]].concat());
}

fn index(image: &str) {
    run(
        Path::new(program()),
        &["index", "--kind=v1,fine", "--min-layer-size=0", "--quiet", "--no-cache", image],
    );
}

/// A layer of busybox. Each number gives another one, because of what follows its end.
fn numbered_rootfs(busybox: &Path, number: usize) -> Vec<u8> {
    let mut layer = rootfs(busybox);
    layer.extend([number as u8; 512]);
    layer
}

/// A registry with an indexed image of busybox, and the name of that.
async fn busybox_image() -> Option<(Faulty, String)> {
    let busybox = tool("busybox")?;
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    registry.add_image("v1", &rootfs(&busybox));
    let image = format!("{}/a/b:v1", registry.host());
    tokio::task::block_in_place(|| index(&image));
    Some((registry, image))
}

/// The names of images with one layer each, which are pushed as `v0`, `v1` and so on, and indexed.
/// Blocks.
fn indexed(registry: &Faulty, layers: impl Iterator<Item = Vec<u8>>) -> Vec<String> {
    let pushed = layers.enumerate().map(|(number, layer)| {
        registry.add_image(&format!("v{number}"), &layer);
        let image = format!("{}/a/b:v{number}", registry.host());
        index(&image);
        image
    });
    pushed.collect()
}

/// Kills the snapshotter while a container reads what must come from the registry.
fn a_container_outlives_the_snapshotter(
    node: &Node,
    image: &str,
    registry: &Server,
    serving: &mut ChildProcess,
) {
    let name = &*container("outlives");
    node.start(name, image);
    let read = |file: &str| node.read_in(name, file);
    assert!(read("/etc/issue").starts_with("Debian"));
    registry.signal(Signal::STOP);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read("/usr/share/common-licenses/GPL-3"));
        wait_until("a read waits for the registry", || node.waiting_requests() > 0);
        node.restart(serving);
        registry.signal(Signal::CONT);
        assert!(reader.join().unwrap().contains("GNU GENERAL PUBLIC LICENSE"));
    });
    assert!(read("/usr/share/common-licenses/Artistic").contains("Artistic License"));
    // An orderly stop answers what is being read, or leaves it to the next server.
    serving.stop();
    *serving = node.snapshotter();
    assert!(read("/usr/share/common-licenses/BSD").contains("Redistribution"));
    node.end(name);
}

/// Pulls, starts and removes an image, `rounds` times.
fn come_and_go(node: &Node, image: &str, rounds: usize) {
    for _ in 0..rounds {
        node.pull(image, "ociseek");
        assert_eq!(node.shell(image, "cat /etc/passwd >/dev/null && echo READY"), "READY\n");
        node.remove(image);
    }
}

/// What `status`, `images` and the metrics say of one mounted image without containers, for which
/// the link carried about `passed` bytes.
fn assert_figures(node: &Node, passed: u64, server: u32) {
    wait_until("the bytes are counted", || {
        node.metric("ociseek_snapshotter_fetched_bytes_total") > passed / 2
    });
    // containerd removes the container's snapshot in the background.
    wait_until("the container is gone", || node.metric("ociseek_snapshotter_snapshots") == 2);
    let (status, found) = node.inspected("status");
    assert_eq!(status, Some(0), "{found}");
    assert_eq!(
        (&found["running"], &found["images"], &found["mounts"]),
        (&json!(true), &json!(1), &json!(1))
    );
    assert_eq!(
        (&found["server"], found["keeper"].as_i64()),
        (&json!(server), node.keeper().map(i64::from))
    );
    let memory = found["memory_bytes"].as_u64().unwrap();
    assert!(memory > 1 << 20 && found["memory_limit_bytes"] == 100 << 20, "{found}");
    assert!(found["fetched_bytes"].as_u64().unwrap() > passed / 2, "{found}");
    let (status, found) = node.inspected("images");
    let image = &found["images"][0];
    assert_eq!(
        (status, &image["layers"], &image["users"]),
        (Some(0), &json!(2), &json!(0)),
        "{found}"
    );
    assert_eq!(image["mounts"][0]["answers"], true, "{found}");
    for (name, value) in [
        ("ociseek_snapshotter_images", 1),
        ("ociseek_snapshotter_mounts", 1),
        (r#"ociseek_snapshotter_mounts_total{result="mounted"}"#, 1),
        (r#"ociseek_snapshotter_failures_total{method="Prepare"}"#, 0),
    ] {
        assert_eq!(node.metric(name), value, "{name}");
    }
    assert!(node.metric(r#"ociseek_snapshotter_requests_total{method="Prepare"}"#) > 2);
}

/// Starts a pod with a container of `image` through the CRI, as kubelet does, and removes it.
fn a_pod_starts_lazily(node: &Node, image: &str) {
    let pod = r#"{"metadata": {"name": "pod", "namespace": "default", "uid": "1"}, "log_directory": "LOGS",
        "linux": {"security_context": {"namespace_options": {"network": 2}}}}"#;
    let container = r#"{"metadata": {"name": "app"}, "image": {"image": "IMAGE"}, "log_path": "app.log",
        "command": ["/bin/sh", "-c", "cat /f010 >/dev/null && echo READY && sleep infinity"]}"#;
    let pod_file = node.at("pod.json");
    let container_file = node.at("container.json");
    fs::write(&pod_file, pod.replace("LOGS", &node.at("logs"))).unwrap();
    fs::write(&container_file, container.replace("IMAGE", image)).unwrap();
    node.crictl(&["pull", image]);
    let pod = node.crictl(&["runp", &pod_file]);
    let container = node.crictl(&["create", pod.trim(), &container_file, &pod_file]);
    node.crictl(&["start", container.trim()]);
    let log = || fs::read_to_string(node.at("logs/app.log")).unwrap_or_default();
    wait_until("the container is ready", || log().contains("READY"));
    // The sandbox and the container.
    assert!(!node.lazy_mounts().is_empty());
    node.crictl(&["rmp", "--force", pod.trim()]);
    node.crictl(&["rmi", "--all"]);
}

#[test]
fn an_image_is_started_lazily_and_removed_without_a_trace() {
    let Some(Ground { programs, layers, crane, registry }) = Ground::new() else { return };
    let debian = layers.join("debian-rootfs.go.tar.gz");
    let files = layers.join("../small/plain-6MB.tar.gz");
    let (link, passed) = throttled_and_counted(&registry.host, FAST);
    let push = |name: &str, layers: &[&Path]| {
        (push(&crane, &registry.host, name, layers), format!("{link}/{name}:v1"))
    };
    let (two_pushed, two) = push("two", &[&debian, &files]);
    let (_, base) = push("base", &[&debian]);
    let (_, above) = push("above", &[&debian, &layers.join("../small/pax-binary-xattr.tar.gz")]);
    index(&two_pushed);
    let size = fs::metadata(&debian).unwrap().len();

    let pushed = format!("{}/two:pause", registry.host);
    let pause = format!("{link}/two:pause");
    made_to_sleep(&crane, &two_pushed, &pushed);
    index(&pushed);

    let node = Node::new(programs, &pause);
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    node.pull(&two, "ociseek");
    let pulled = passed.load(Ordering::Relaxed);
    // With the heads of the documents, 80 KB here.
    assert!(pulled < 128 << 10, "the pull took {pulled} bytes");
    assert_eq!(node.lazy_mounts(), Vec::<String>::new());
    assert_eq!(node.shell(&two, "cat /f010 >/dev/null && touch /new && echo READY"), "READY\n");
    let started = passed.load(Ordering::Relaxed);
    println!("{pulled} bytes for the pull, {started} until READY, of {size}");
    assert!(started < size / 4, "{started} of {size} bytes");
    assert_eq!(node.lazy_mounts().len(), 1);
    assert_figures(&node, started - pulled, serving.id());
    // The upper layer is not part of an image that has only the lower one, and is not indexed.
    node.pull(&base, "ociseek");
    assert_eq!(node.shell(&base, "test ! -e /f010 && test ! -e /new && echo READY"), "READY\n");
    assert_eq!(node.lazy_mounts().len(), 2);
    // Another layer above it is unpacked.
    node.pull(&above, "ociseek");
    assert_eq!(node.shell(&above, "test -e /a.txt && test ! -e /f010 && echo READY"), "READY\n");
    assert_eq!(node.lazy_mounts().len(), 2);

    // Mounts outlive the snapshotter.
    let keeper = node.keeper();
    assert!(keeper.is_some());
    node.restart(&mut serving);
    assert_eq!(node.shell(&two, "cat /etc/debian_version >/dev/null && echo READY"), "READY\n");
    assert_eq!(node.keeper(), keeper);
    a_container_outlives_the_snapshotter(&node, &two, &registry, &mut serving);
    assert!(node.metric(r#"ociseek_snapshotter_replacements_total{result="replaced"}"#) >= 2);
    // Without any process that has the device, the next container gets a new mount.
    serving.kill();
    let (status, found) = node.inspected("status");
    assert_eq!(
        (status, &found["running"], &found["silent_mounts"]),
        (Some(3), &json!(false), &json!(2))
    );
    node.kill_keeper();
    wait_until("the keeper ends", || node.keeper().is_none());
    assert_eq!(node.inspected("status").1["silent_mounts"], 2);
    serving = node.snapshotter();
    assert_eq!(node.shell(&two, "cat /etc/passwd >/dev/null && echo READY"), "READY\n");
    // containerd finds everything again.
    containerd.kill();
    drop(containerd);
    let mut containerd = node.containerd();
    assert_eq!(node.shell(&two, "echo READY"), "READY\n");

    // The files are those of an unpacked image.
    node.pull(&two, "overlayfs");
    for (snapshotter, dir) in [("ociseek", "seen"), ("overlayfs", "unpacked")] {
        fs::create_dir(node.at(dir)).unwrap();
        node.ctr(&["images", "mount", "--snapshotter", snapshotter, &two, &node.at(dir)]);
    }
    let files = |dir: &str| {
        let mut files = seen(Path::new(&node.at(dir)), false);
        // Overlayfs does not count the links of directories.
        files
            .values_mut()
            .filter(|file| file.mode & 0o170_000 == 0o040_000)
            .for_each(|file| file.links = 0);
        files
    };
    let ours = files("seen");
    assert!(ours.len() > 5000);
    assert_same(&ours, &files("unpacked"));
    // A container's mount says that attributes are not supported, which programs that compare files
    // take for an error (fs/diff_unix.go of containerd's continuity before 0.5).
    let xattr =
        |path: &str| rustix::fs::lgetxattr(node.at(path), "security.capability", &mut [0; 64][..]);
    assert_eq!(xattr("seen/etc"), Err(rustix::io::Errno::NODATA));
    let compared = node.lazy_mounts().iter().filter(|mount| mount.contains(".xattrs/")).count();
    assert_eq!(compared, 1, "{:?}", node.lazy_mounts());
    for (snapshotter, dir) in [("ociseek", "seen"), ("overlayfs", "unpacked")] {
        node.ctr(&["images", "unmount", "--snapshotter", snapshotter, "--rm", &node.at(dir)]);
    }

    for image in [&two, &base, &above] {
        node.remove(image);
    }
    node.wait_until_clear();
    let state = fs::read_to_string(node.at("lazy/state.json")).unwrap();
    assert!(state.contains(r#""rows":{}"#), "{state}");

    let before = passed.load(Ordering::Relaxed);
    a_pod_starts_lazily(&node, &two);
    let started = passed.load(Ordering::Relaxed) - before;
    println!("{started} bytes for a pod");
    assert!(started < size / 4, "{started} of {size} bytes");
    node.wait_until_clear();

    // The first round opens what is kept, such as a connection.
    come_and_go(&node, &two, 1);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", serving.id())).unwrap().count();
    node.wait_until_clear();
    let before = descriptors();
    come_and_go(&node, &two, 6);
    node.wait_until_clear();
    wait_until("no descriptor is left", || descriptors() <= before);

    // Without an index, containerd pulls and unpacks.
    node.pull(&base, "ociseek");
    assert!(passed.load(Ordering::Relaxed) > size);
    assert_eq!(node.shell(&base, "echo READY"), "READY\n");
    assert_eq!(node.lazy_mounts(), Vec::<String>::new());
    assert_eq!(node.unpacked("no-index"), 1);
    // So is an image above one that is unpacked, and that is said.
    node.pull(&above, "ociseek");
    assert_eq!(node.unpacked("unpacked-base"), 1);
    assert_eq!(node.unpacked("no-index"), 1);
    node.ctr(&["images", "rm", "--sync", &above, &base]);
    serving.stop();
    containerd.kill();
}

/// The image is copied with its fine index from a layout.
#[test]
fn layers_of_zstd_are_started_lazily() {
    let Some(programs) = programs() else { return };
    let (Some(layers), Some(_)) = (debian_layers(), tool("runc")) else { return };
    let Some(registry) = Server::distribution_on_disk("docker-registry") else { return };
    let layer = layers.join("debian-rootfs.zstd.tar.gz");
    let image = Image::of(&layer);
    let size = fs::metadata(&layer).unwrap().len();
    let ociseek = |args: &[&str]| run(Path::new(program()), args);
    ociseek(&["index", "--kind=fine", "--quiet", "--no-cache", &image.name()]);
    image.copied_to(&format!("{}/zstd:v1", registry.host), None);
    let (link, passed) = throttled_and_counted(&registry.host, FAST);
    let name = format!("{link}/zstd:v1");

    let node = Node::new(programs, &name);
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    node.pull(&name, "ociseek");
    let pulled = passed.load(Ordering::Relaxed);
    // With the heads of the documents, 80 KB here.
    assert!(pulled < 128 << 10, "the pull took {pulled} bytes");
    let script = "cat /etc/debian_version >/dev/null && sha256sum /usr/share/common-licenses/GPL-3";
    let digest = "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986";
    assert_eq!(node.shell(&name, script), format!("{digest}  /usr/share/common-licenses/GPL-3\n"));
    let started = passed.load(Ordering::Relaxed);
    println!("{pulled} bytes for the pull, {started} until READY, of {size}");
    assert!(started < size / 4, "{started} of {size} bytes");
    assert_eq!(node.lazy_mounts().len(), 1);
    // Another server reads by the same cache.
    node.restart(&mut serving);
    assert_eq!(node.shell(&name, script), format!("{digest}  /usr/share/common-licenses/GPL-3\n"));
    node.remove(&name);
    wait_until("nothing is left", || node.lazy_mounts().is_empty());
    serving.stop();
    containerd.kill();
}
