//! A node: containerd and the snapshotter, and the clients that speak to them.

use std::collections::BTreeMap;
use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use ociseek_rootfs::fuse::{MountInfo, mounts};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;
use tempfile::TempDir;

use ociseek_testkit::child_process::{ChildProcess, kill, processes_with};
use ociseek_testkit::http::exchange;
use ociseek_testkit::mounts::{mounts_below, wait_until};
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::{free_port, run};

const CONTAINERD: &str = r#"version = 3
root = "DIR/root"
state = "DIR/state"
[grpc]
  address = "DIR/containerd.sock"
[ttrpc]
  address = "DIR/containerd.sock.ttrpc"
[proxy_plugins.ociseek]
  type = "snapshot"
  address = "DIR/ociseek.sock"
  capabilities = ["remap-ids"]
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
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "ociseek"
  disable_snapshot_annotations = false
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "PAUSE"
# In a container, the processes of pods cannot be protected from the OOM killer.
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
"#;

const CONFIG: &str = r#"socket = "DIR/ociseek.sock"
root = "DIR/lazy"
containerd = "DIR/containerd.sock"
cache-dir = "DIR/cache"
lazy-from = LAZY_FROM
metrics-listen = "METRICS"
memory = "100MiB"
"#;

/// containerd and the snapshotter in a folder. What is mounted there is unmounted in the end.
pub struct Node {
    pub dir: TempDir,
    programs: PathBuf,
    /// Where the snapshotter serves metrics.
    metrics: String,
    /// The repositories whose images start lazily: all, which are the tests' own.
    pub lazy_from: String,
    /// More lines of the snapshotter's configuration.
    pub config: String,
    /// What keeps devices besides the snapshotter.
    pub manager: Option<ServiceManager>,
}

/// Does for the snapshotter what systemd does: keeps the descriptors that it is sent, and gives
/// them to the next one (sd_notify(3), sd_listen_fds(3)).
pub struct ServiceManager(UnixDatagram);

impl ServiceManager {
    /// Listens in the folder of `node`.
    pub fn new(node: &Node) -> ServiceManager {
        let socket = UnixDatagram::bind(node.at("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        ServiceManager(socket)
    }

    /// The descriptors that it keeps, by their names.
    fn stored(&self) -> BTreeMap<String, OwnedFd> {
        let mut stored = BTreeMap::new();
        loop {
            let mut bytes = [0; 512];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            // Without CLOEXEC: it is for a child.
            let Ok(message) = recvmsg(&self.0, &mut parts, &mut control, RecvFlags::empty()) else {
                return stored;
            };
            let text = String::from_utf8(bytes[..message.bytes].to_vec()).unwrap();
            let name = text.strip_prefix("FDSTORE=1\nFDPOLL=0\nFDNAME=").map(str::to_owned);
            let sent = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
                _ => None,
            });
            assert_eq!(name.is_some(), sent.is_some(), "{text}");
            stored.extend(name.zip(sent));
            if let Some(name) = text.strip_prefix("FDSTOREREMOVE=1\nFDNAME=") {
                stored.remove(name);
            }
        }
    }
}

impl Node {
    /// `pause` is the image of the sandboxes of pods.
    pub fn new(programs: PathBuf, pause: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let config =
            CONTAINERD.replace("DIR", dir.path().to_str().unwrap()).replace("PAUSE", pause);
        fs::write(dir.path().join("containerd.toml"), config).unwrap();
        Node {
            dir,
            programs,
            metrics: format!("127.0.0.1:{}", free_port()),
            lazy_from: r#"["*"]"#.to_owned(),
            config: String::new(),
            manager: None,
        }
    }

    pub fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub fn snapshotter(&self) -> ChildProcess {
        let socket = || fs::metadata(self.at("ociseek.sock")).ok().map(|socket| socket.ino());
        let earlier = socket();
        let stored = self.manager.as_ref().map(ServiceManager::stored);
        let mut command = match &stored {
            // nohup(1) has SIGHUP ignored, which must not keep the configuration from being read.
            None => {
                let mut command = Command::new("nohup");
                command.arg(program());
                command
            }
            Some(stored) => {
                // The descriptors follow the third, and the process is the one they are meant for.
                let mut command = Command::new("bash");
                let script = "next=3; for kept in $1; do eval \"exec $next<&$kept\"; next=$((next + 1)); \
                              done; shift; LISTEN_PID=$$ exec \"$@\"";
                let numbers: Vec<String> =
                    stored.values().map(|kept| kept.as_raw_fd().to_string()).collect();
                let names: Vec<&str> = stored.keys().map(String::as_str).collect();
                command.args(["-c", script, "bash", &numbers.join(" ")]).arg(program());
                command.env("NOTIFY_SOCKET", self.at("notify"));
                command.env("LISTEN_FDS", names.len().to_string());
                command.env("LISTEN_FDNAMES", names.join(":"));
                command
            }
        };
        let config = CONFIG
            .replace("DIR", self.dir.path().to_str().unwrap())
            .replace("METRICS", &self.metrics)
            .replace("LAZY_FROM", &self.lazy_from);
        fs::write(self.at("snapshotter.toml"), config + &self.config).unwrap();
        let log = fs::File::options().create(true).append(true).open(self.at("snapshotter.log"));
        command
            .args(["snapshotter", "--config", &self.at("snapshotter.toml")])
            .process_group(0)
            .stdin(Stdio::null())
            .stderr(log.unwrap());
        let mut child = ChildProcess::spawn(&mut command);
        wait_until("the snapshotter listens", || {
            assert!(child.ended().is_none(), "the snapshotter ended");
            socket().is_some_and(|socket| Some(socket) != earlier)
        });
        if Path::new(&self.at("containerd.sock")).exists() {
            // containerd waits a second after it could not connect.
            let list = ["snapshots", "--snapshotter", "ociseek", "ls"];
            wait_until("containerd has connected again", || self.try_ctr(&list).status.success());
        }
        child
    }

    /// The lines of the snapshotter's log with this event.
    pub fn logged(&self, event: &str) -> Vec<Value> {
        let log = fs::read_to_string(self.at("snapshotter.log")).unwrap();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["event"] == event).collect()
    }

    pub fn containerd(&self) -> ChildProcess {
        self.containerd_by(Command::new(self.programs.join("containerd")))
    }

    /// containerd in a network namespace, which is named by its file.
    pub fn containerd_in(&self, network: &Path) -> ChildProcess {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", network.display())).arg(self.programs.join("containerd"));
        self.containerd_by(command)
    }

    fn containerd_by(&self, mut command: Command) -> ChildProcess {
        let path = format!("{}:{}", self.programs.display(), std::env::var("PATH").unwrap());
        let log = fs::File::create(self.at("containerd.log")).unwrap();
        command.args(["--config", &self.at("containerd.toml")]).env("PATH", path).stderr(log);
        let child = ChildProcess::spawn(&mut command);
        wait_until("containerd serves", || self.try_ctr(&["version"]).status.success());
        child
    }

    /// The status of `ociseek snapshotter status` or `images`, and its document.
    pub fn inspected(&self, what: &str) -> (Option<i32>, Value) {
        let mut command = Command::new(program());
        command.args(["snapshotter", what, "--json", "--config", &self.at("snapshotter.toml")]);
        let output = command.output().unwrap();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
    }

    /// What the snapshotter answers where it serves metrics.
    pub fn monitored(&self, path: &str) -> (u16, String) {
        exchange(&self.metrics, format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
    }

    /// The value of a metric of the snapshotter. Zero if there is none yet.
    pub fn metric(&self, name: &str) -> u64 {
        let (status, text) = self.monitored("/metrics");
        assert_eq!(status, 200, "{text}");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// How many images were unpacked for this reason.
    pub fn unpacked(&self, reason: &str) -> u64 {
        self.metric(&format!("ociseek_snapshotter_unpacked_total{{reason={reason:?}}}"))
    }

    pub fn try_ctr(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.programs.join("ctr"));
        command.args(["--address", &self.at("containerd.sock")]).args(args).stdin(Stdio::null());
        command.output().unwrap()
    }

    pub fn ctr(&self, args: &[&str]) -> String {
        self.succeeded(args, self.try_ctr(args))
    }

    /// The output of a command that must have succeeded.
    fn succeeded(&self, args: &[&str], output: Output) -> String {
        let log = || fs::read_to_string(self.at("containerd.log")).unwrap_or_default();
        assert!(
            output.status.success(),
            "ctr {args:?}: {}{}",
            String::from_utf8_lossy(&output.stderr),
            log()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn try_crictl(&self, args: &[&str]) -> Output {
        let endpoint = format!("unix://{}", self.at("containerd.sock"));
        let config = self.at("crictl.yaml");
        fs::write(
            &config,
            format!("runtime-endpoint: {endpoint}\nimage-endpoint: {endpoint}\ntimeout: 60\n"),
        )
        .unwrap();
        let mut command = Command::new(self.programs.join("crictl"));
        command.args(["--config", &config]).args(args).stdin(Stdio::null()).output().unwrap()
    }

    /// The output of crictl.
    pub fn crictl(&self, args: &[&str]) -> String {
        let output = self.try_crictl(args);
        assert!(
            output.status.success(),
            "crictl {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn pull(&self, image: &str, snapshotter: &str) {
        let pull = ["images", "pull", "--plain-http", "--snapshotter", snapshotter, image];
        // Without any snapshot, containerd answers a list by itself: it may still be waiting before
        // it connects to the snapshotter again.
        let mut output = self.try_ctr(&pull);
        wait_until("containerd has connected again", || {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // Reset if the snapshotter was killed while containerd connected.
            let is_late = ["connection refused", "connection reset by peer"]
                .iter()
                .any(|late| said.contains(late));
            if is_late {
                output = self.try_ctr(&pull);
            }
            !is_late
        });
        self.succeeded(&pull, output);
    }

    /// Removes an image, and waits for what containerd removes with it.
    pub fn remove(&self, image: &str) {
        self.ctr(&["images", "rm", "--sync", image]);
    }

    /// The output of a shell in a new container.
    pub fn shell(&self, image: &str, script: &str) -> String {
        // Several tests have such a container at the same time.
        let node = self.dir.path().file_name().unwrap().to_str().unwrap().replace('.', "");
        self.shell_in(&container(&node), image, script)
    }

    /// The output of a shell in a new container with this name.
    pub fn shell_in(&self, name: &str, image: &str, script: &str) -> String {
        self.output(&[
            "run",
            "--rm",
            "--snapshotter",
            "ociseek",
            image,
            name,
            "/bin/sh",
            "-c",
            script,
        ])
    }

    /// What a task prints. On a busy machine ctr loses the output of a task that ends before it has
    /// opened the FIFOs (containerd client/task.go: `Delete` cancels the opening), so that what
    /// printed nothing runs again.
    fn output(&self, args: &[&str]) -> String {
        (0..3).map(|_| self.ctr(args)).find(|output| !output.is_empty()).unwrap_or_default()
    }

    /// Starts a container that does nothing.
    pub fn start(&self, name: &str, image: &str) {
        let wait = "while :; do sleep 1; done";
        self.ctr(&[
            "run",
            "--detach",
            "--snapshotter",
            "ociseek",
            image,
            name,
            "/bin/sh",
            "-c",
            wait,
        ]);
    }

    /// What a file of a running container has.
    pub fn read_in(&self, name: &str, file: &str) -> String {
        static READS: AtomicUsize = AtomicUsize::new(0);
        let id = format!("read-{}", READS.fetch_add(1, Ordering::Relaxed));
        self.ctr(&["tasks", "exec", "--exec-id", &id, name, "cat", file])
    }

    /// Ends a container.
    pub fn end(&self, name: &str) {
        self.ctr(&["tasks", "rm", "--force", name]);
        self.ctr(&["containers", "rm", name]);
    }

    pub fn lazy_mounts(&self) -> Vec<String> {
        mounts_below(&self.dir.path().join("lazy/images"))
    }

    /// Where images are mounted.
    pub fn mount_points(&self) -> Vec<String> {
        let mounts = self.lazy_mounts();
        mounts.iter().map(|mount| mount.split(' ').nth(1).unwrap().to_owned()).collect()
    }

    /// The process that keeps the devices of mounts.
    pub fn keeper(&self) -> Option<i32> {
        let state = fs::read(self.at("lazy/keeper.json")).ok()?;
        let state: Value = serde_json::from_slice(&state).unwrap();
        let keeper = i32::try_from(state["keeper"]["pid"].as_i64().unwrap()).unwrap();
        processes_with(&["device-keeper"]).contains(&keeper).then_some(keeper)
    }

    pub fn kill_keeper(&self) {
        kill(&self.keeper().into_iter().collect::<Vec<_>>());
    }

    /// Kills the snapshotter, and starts another one.
    pub fn restart(&self, serving: &mut ChildProcess) {
        serving.kill();
        *serving = self.snapshotter();
    }

    /// How many requests of the mounts are not answered.
    pub fn waiting_requests(&self) -> usize {
        let control = self.dir.path().join("control");
        if !control.exists() {
            fs::create_dir(&control).unwrap();
            run(Path::new("mount"), &["-t", "fusectl", "none", control.to_str().unwrap()]);
        }
        let below = self.dir.path().join("lazy/images");
        let ours = mounts().unwrap().into_iter().filter(|mount| mount.point.starts_with(&below));
        let waiting = |mount: MountInfo| {
            fs::read_to_string(control.join(format!("{}/waiting", mount.device.1)))
        };
        ours.map(|mount| waiting(mount).unwrap().trim().parse::<usize>().unwrap()).sum()
    }

    pub fn in_dir(&self, dir: &str) -> usize {
        fs::read_dir(self.at(dir)).unwrap().count()
    }

    /// Waits until the snapshotter has no snapshot and no mount.
    pub fn wait_until_clear(&self) {
        wait_until("nothing is left", || {
            let files = self.in_dir("lazy/snapshots") + self.in_dir("lazy/images");
            files + self.lazy_mounts().len() == 0
        });
    }
}

/// A name for a container. runc's state is in one folder for all of this machine.
pub fn container(name: &str) -> String {
    format!("ociseek-{name}-{}", std::process::id())
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.at("snapshotter.log"));
            eprintln!("the snapshotter's log: {}", log.unwrap_or_default());
        }
        self.kill_keeper();
        for mount in mounts_below(self.dir.path()).iter().rev() {
            let point = mount.split(' ').nth(1).unwrap_or_default();
            let _ = Command::new("umount").args(["--lazy", point]).status();
        }
    }
}
