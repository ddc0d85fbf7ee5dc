//! `ociseek snapshotter` under the real containerd: its own test suite for snapshotters, and images
//! from the pull to their removal.
//!
//! Root and FUSE; `.ci/test` sets up the rest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use ociseek::rootfs::fuse::{MountInfo, mounts};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::child_process::ChildProcess;
use crate::support::corpus::debian_layers;
use crate::support::mounts::{assert_same, can_mount, mounts_below, seen, wait_until};
use crate::support::sandbox::program;
use crate::support::servers::{self, Server, run, tool};
use crate::support::throttle::throttled_and_counted;

const CONTAINERD: &str = r#"version = 3
root = "DIR/root"
state = "DIR/state"
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]
[grpc]
  address = "DIR/containerd.sock"
[ttrpc]
  address = "DIR/containerd.sock.ttrpc"
[proxy_plugins.ociseek]
  type = "snapshot"
  address = "DIR/ociseek.sock"
  [proxy_plugins.ociseek.exports]
    root = "DIR/lazy"
    enable_remote_snapshot_annotations = "true"
[plugins."io.containerd.transfer.v1.local"]
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "linux/amd64"
    snapshotter = "ociseek"
  [[plugins."io.containerd.transfer.v1.local".unpack_config]]
    platform = "linux/amd64"
    snapshotter = "overlayfs"
"#;
/// Bytes in a second. The speed is not tested here.
const FAST: u64 = 1 << 30;

/// The programs of `.ci/consumer`. If something is missing, prints a line.
fn programs() -> Option<PathBuf> {
    if can_mount() { servers::consumer() } else { None }
}

#[test]
fn containerds_own_suite_passes() {
    let Some(programs) = programs() else { return };
    let redirects = fs::read_to_string("/sys/module/overlay/parameters/redirect_dir").unwrap_or_default();
    let dir = tempfile::tempdir().unwrap();
    let mut suite = Command::new(programs.join("snapshotter-suite"));
    suite.args(["-test.root", "-test.v"]).env("OCISEEK", program()).env("TMPDIR", dir.path());
    if redirects.trim() != "Y" {
        // Overlayfs does not rename directories of lower layers then.
        suite.arg("-test.skip=/Rename$");
    }
    let output = suite.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text.matches("    --- PASS: ").count();
    assert!(output.status.success() && passed >= 20, "{passed} passed: {text}");
}

/// containerd and the snapshotter in a folder. What is mounted there is unmounted in the end.
struct Node {
    dir: TempDir,
    programs: PathBuf,
}

impl Node {
    fn new(programs: PathBuf) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let config = CONTAINERD.replace("DIR", dir.path().to_str().unwrap());
        fs::write(dir.path().join("containerd.toml"), config).unwrap();
        Node { dir, programs }
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn snapshotter(&self) -> ChildProcess {
        let _ = fs::remove_file(self.at("ociseek.sock"));
        let mut command = Command::new(program());
        command.args(["snapshotter", "--quiet", "--socket", &self.at("ociseek.sock"), "--root", &self.at("lazy")]);
        // containerd names images by digest; their indexes are not signed here.
        command.args(["--trust", "repository", "--cache-dir", &self.at("cache")]).stdin(Stdio::null());
        let mut child = ChildProcess::spawn(&mut command);
        wait_until("the snapshotter listens", || {
            assert!(child.ended().is_none(), "the snapshotter ended");
            Path::new(&self.at("ociseek.sock")).exists()
        });
        child
    }

    fn containerd(&self) -> ChildProcess {
        let path = format!("{}:{}", self.programs.display(), std::env::var("PATH").unwrap());
        let log = fs::File::create(self.at("containerd.log")).unwrap();
        let mut command = Command::new(self.programs.join("containerd"));
        command.args(["--config", &self.at("containerd.toml")]).env("PATH", path).stderr(log);
        let child = ChildProcess::spawn(&mut command);
        wait_until("containerd serves", || self.try_ctr(&["version"]).status.success());
        child
    }

    fn try_ctr(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.programs.join("ctr"));
        command.args(["--address", &self.at("containerd.sock")]).args(args).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn ctr(&self, args: &[&str]) -> String {
        let output = self.try_ctr(args);
        let log = || fs::read_to_string(self.at("containerd.log")).unwrap_or_default();
        assert!(output.status.success(), "ctr {args:?}: {}{}", String::from_utf8_lossy(&output.stderr), log());
        String::from_utf8(output.stdout).unwrap()
    }

    fn pull(&self, image: &str, snapshotter: &str) {
        self.ctr(&["images", "pull", "--plain-http", "--snapshotter", snapshotter, image]);
    }

    /// The output of a shell in a new container.
    fn shell(&self, image: &str, script: &str) -> String {
        let name = "ociseek-test";
        self.ctr(&["run", "--rm", "--snapshotter", "ociseek", image, name, "/bin/sh", "-c", script])
    }

    fn lazy_mounts(&self) -> Vec<String> {
        mounts_below(&self.dir.path().join("lazy/images"))
    }

    /// The processes that serve mounts.
    fn servers(&self) -> Vec<i32> {
        let below = self.at("lazy/images/");
        let serves = |pid: &i32| {
            let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.contains(&below) && arguments.contains("--detached")
        };
        let entries = fs::read_dir("/proc").unwrap();
        entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok()).filter(serves).collect()
    }

    /// How many requests of the mounts are not answered.
    fn waiting_requests(&self) -> usize {
        let control = self.dir.path().join("control");
        if !control.exists() {
            fs::create_dir(&control).unwrap();
            run(Path::new("mount"), &["-t", "fusectl", "none", control.to_str().unwrap()]);
        }
        let below = self.dir.path().join("lazy/images");
        let ours = mounts().unwrap().into_iter().filter(|mount| mount.point.starts_with(&below));
        let waiting = |mount: MountInfo| fs::read_to_string(control.join(format!("{}/waiting", mount.device.1)));
        ours.map(|mount| waiting(mount).unwrap().trim().parse::<usize>().unwrap()).sum()
    }

    fn kill_servers(&self) {
        for server in self.servers() {
            kill_process(Pid::from_raw(server).unwrap(), Signal::KILL).unwrap();
        }
    }

    fn in_dir(&self, dir: &str) -> usize {
        fs::read_dir(self.at(dir)).unwrap().count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for mount in mounts_below(self.dir.path()).iter().rev() {
            let point = mount.split(' ').nth(1).unwrap_or_default();
            let _ = Command::new("umount").args(["--lazy", point]).status();
        }
    }
}

/// Kills the servers of mounts while a container reads what must come from the registry.
fn servers_are_replaced(node: &Node, image: &str, registry: &Server) {
    let name = "ociseek-outlives";
    let wait = "while :; do sleep 1; done";
    node.ctr(&["run", "--detach", "--snapshotter", "ociseek", image, name, "/bin/sh", "-c", wait]);
    let read = |id: &str, file: &str| node.ctr(&["tasks", "exec", "--exec-id", id, name, "cat", file]);
    assert!(read("before", "/etc/issue").starts_with("Debian"));
    let before = node.servers();
    registry.signal(Signal::STOP);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read("meanwhile", "/usr/share/common-licenses/GPL-3"));
        wait_until("a read waits for the registry", || node.waiting_requests() > 0);
        node.kill_servers();
        registry.signal(Signal::CONT);
        assert!(reader.join().unwrap().contains("GNU GENERAL PUBLIC LICENSE"));
    });
    wait_until("the servers are replaced", || node.servers().len() == before.len());
    assert!(node.servers().iter().all(|server| !before.contains(server)));
    assert!(read("after", "/usr/share/common-licenses/Artistic").contains("Artistic License"));
    node.ctr(&["tasks", "kill", "--signal", "SIGKILL", name]);
    node.ctr(&["containers", "rm", name]);
}

#[test]
fn an_image_is_started_lazily_and_removed_without_a_trace() {
    let Some(programs) = programs() else { return };
    let (Some(layers), Some(crane), Some(_)) = (debian_layers(), tool("crane"), tool("runc")) else { return };
    let Some(registry) = Server::distribution_on_disk("docker-registry") else { return };
    let (debian, files) = (layers.join("debian-rootfs.go.tar.gz"), layers.join("../small/plain-6MB.tar.gz"));
    let (link, passed) = throttled_and_counted(&registry.host, FAST);
    let push = |name: &str, layers: &[&Path]| {
        let reference = format!("{}/{name}:v1", registry.host);
        let layers: Vec<_> = layers.iter().map(|layer| layer.to_str().unwrap()).collect();
        run(&crane, &["append", "--insecure", "--oci-empty-base", "-f", &layers.join(","), "-t", &reference]);
        run(&crane, &["mutate", "--insecure", "--set-platform", "linux/amd64", "-t", &reference, &reference]);
        (reference, format!("{link}/{name}:v1"))
    };
    let (pushed, two) = push("two", &[&debian, &files]);
    let (_, base) = push("base", &[&debian]);
    let (_, above) = push("above", &[&debian, &layers.join("../small/pax-binary-xattr.tar.gz")]);
    run(Path::new(program()), &["index", "--fine", "--min-layer-size=0", "--quiet", "--no-cache", &pushed]);
    let size = fs::metadata(&debian).unwrap().len();

    let node = Node::new(programs);
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    node.pull(&two, "ociseek");
    let pulled = passed.load(Ordering::Relaxed);
    assert!(pulled < 64 << 10, "the pull took {pulled} bytes");
    assert_eq!(node.lazy_mounts(), Vec::<String>::new());
    assert_eq!(node.shell(&two, "cat /f010 >/dev/null && touch /new && echo READY"), "READY\n");
    let started = passed.load(Ordering::Relaxed);
    println!("{pulled} bytes for the pull, {started} until READY, of {size}");
    assert!(started < size / 4, "{started} of {size} bytes");
    assert_eq!(node.lazy_mounts().len(), 1);

    // The upper layer is not part of an image that has only the lower one, and is not indexed.
    node.pull(&base, "ociseek");
    assert_eq!(node.shell(&base, "test ! -e /f010 && test ! -e /new && echo READY"), "READY\n");
    assert_eq!(node.lazy_mounts().len(), 2);
    // Another layer above it is unpacked.
    node.pull(&above, "ociseek");
    assert_eq!(node.shell(&above, "test -e /a.txt && test ! -e /f010 && echo READY"), "READY\n");
    assert_eq!(node.lazy_mounts().len(), 2);

    // Mounts outlive the snapshotter.
    let before = node.servers();
    assert_eq!(before.len(), 2);
    serving.kill();
    drop(serving);
    let mut serving = node.snapshotter();
    assert_eq!(node.shell(&two, "cat /etc/debian_version >/dev/null && echo READY"), "READY\n");
    assert_eq!(node.servers(), before);
    servers_are_replaced(&node, &two, &registry);
    // Without both, the next container gets a new mount.
    serving.kill();
    drop(serving);
    node.kill_servers();
    wait_until("the servers end", || node.servers().is_empty());
    let mut serving = node.snapshotter();
    assert_eq!(node.shell(&two, "cat /etc/passwd >/dev/null && echo READY"), "READY\n");
    assert_eq!(node.servers().len(), 1);
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
        files.values_mut().filter(|file| file.mode & 0o170_000 == 0o040_000).for_each(|file| file.links = 0);
        files
    };
    let ours = files("seen");
    assert!(ours.len() > 5000);
    assert_same(&ours, &files("unpacked"));
    for (snapshotter, dir) in [("ociseek", "seen"), ("overlayfs", "unpacked")] {
        node.ctr(&["images", "unmount", "--snapshotter", snapshotter, "--rm", &node.at(dir)]);
    }

    for image in [&two, &base, &above] {
        node.ctr(&["images", "rm", "--sync", image]);
    }
    let left = || node.in_dir("lazy/snapshots") + node.in_dir("lazy/images") + node.lazy_mounts().len();
    wait_until("nothing is left", || left() == 0 && node.servers().is_empty());
    let state = fs::read_to_string(node.at("lazy/state.json")).unwrap();
    assert!(state.contains(r#""rows":{}"#), "{state}");

    // Without an index, containerd pulls and unpacks.
    node.pull(&base, "ociseek");
    assert!(passed.load(Ordering::Relaxed) > size);
    assert_eq!(node.shell(&base, "echo READY"), "READY\n");
    assert_eq!(node.lazy_mounts(), Vec::<String>::new());
    node.ctr(&["images", "rm", "--sync", &base]);
    serving.signal(Signal::TERM);
    assert!(serving.end().success());
    containerd.kill();
}
