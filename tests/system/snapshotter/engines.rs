//! nerdctl and Docker over a lazy image: the right files, few bytes, and nothing left.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{FAST, Ground, Node, index, push};
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::servers::{Server, run, tool};
use ociseek_testkit::throttle::throttled_and_counted;

/// What containers print: two files of the image, and one that they write.
const SCRIPT: &str =
    "cat /etc/debian_version; sha256sum </usr/bin/bash; echo new >/etc/new; cat /etc/new";

/// A node with a lazy image in a registry.
struct Scene {
    node: Node,
    /// The image by a link that counts.
    image: String,
    passed: Arc<AtomicU64>,
    /// The size of the image.
    size: u64,
    /// What the script prints.
    expected: String,
    _registry: Server,
}

impl Scene {
    /// None, after a line, if something is missing.
    fn new() -> Option<Scene> {
        let Ground { programs, layers, crane, registry } = Ground::new()?;
        let debian = layers.join("debian-rootfs.go.tar.gz");
        index(&push(&crane, &registry.host, "app", &[&debian]));
        let (link, passed) = throttled_and_counted(&registry.host, FAST);
        let image = format!("{link}/app:v1");
        let script = format!(
            "tar -xzOf '{0}' etc/debian_version; tar -xzOf '{0}' usr/bin/bash | sha256sum; echo new",
            debian.display()
        );
        let expected = run(Path::new("sh"), &["-c", &script]);
        let size = debian.metadata().unwrap().len();
        let node = Node::new(programs, &image);
        Some(Scene { node, image, passed, size, expected, _registry: registry })
    }

    /// Has containerd call the snapshotter by another name.
    fn rename(&self, name: &str) {
        let file = self.node.at("containerd.toml");
        let config = std::fs::read_to_string(&file).unwrap();
        let config = config.replace("proxy_plugins.ociseek", &format!("proxy_plugins.{name}"));
        let named = format!("snapshotter = \"{name}\"");
        std::fs::write(file, config.replace("snapshotter = \"ociseek\"", &named)).unwrap();
    }

    /// A container has printed this, and only what it reads was fetched.
    fn is_lazy(&self, printed: &str) {
        assert_eq!(printed.replace('\r', ""), self.expected);
        let passed = self.passed.load(Ordering::Relaxed);
        assert!(passed < self.size / 4, "{passed} of {} bytes", self.size);
        assert!(!self.node.lazy_mounts().is_empty());
    }
}

#[test]
fn nerdctl_runs_a_lazy_image() {
    let (Some(scene), Some(nerdctl)) = (Scene::new(), tool("nerdctl")) else { return };
    // As docs/snapshotter.md says: nerdctl 2.1 passes labels only to snapshotters that it knows.
    scene.rename("nydus");
    let node = &scene.node;
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    let nerdctl = |arguments: &[&str]| {
        let mut command = Command::new(&nerdctl);
        command.args(["--address", &node.at("containerd.sock"), "--snapshotter", "nydus"]);
        command.args(["--data-root", &node.at("nerdctl"), "--cgroup-manager", "cgroupfs"]);
        command.args(["--cni-netconfpath", &node.at("cni"), "--insecure-registry"]);
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "nerdctl {arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    nerdctl(&["pull", "--quiet", &scene.image]);
    let run = ["run", "--rm", "--net=none", &scene.image, "/bin/sh", "-c", SCRIPT];
    scene.is_lazy(&nerdctl(&run));
    nerdctl(&["rmi", &scene.image]);
    scene.node.wait_until_clear();
    serving.kill();
    containerd.kill();
}

#[test]
fn docker_runs_a_lazy_image() {
    let (Some(scene), Some(dockerd), Some(curl)) = (Scene::new(), tool("dockerd"), tool("curl"))
    else {
        return;
    };
    let node = &scene.node;
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    let socket = node.at("docker.sock");
    let mut command = Command::new(dockerd);
    // As docs/snapshotter.md says.
    let daemon = json!({
        "containerd": node.at("containerd.sock"),
        // Debian's runc has no time namespaces.
        "features": {"containerd-snapshotter": true, "time-namespaces": false},
        "storage-driver": "ociseek",
    });
    std::fs::write(node.at("daemon.json"), daemon.to_string()).unwrap();
    command.args(["--config-file", &node.at("daemon.json"), "--host", &format!("unix://{socket}")]);
    // Without networks.
    command.args(["--iptables=false", "--ip6tables=false", "--bridge=none"]);
    command.arg("--userland-proxy=false");
    for (option, name) in [("--data-root", "docker"), ("--exec-root", "exec"), ("--pidfile", "pid")]
    {
        command.args([option, &node.at(name)]);
    }
    let log = std::fs::File::create(node.at("docker.log")).unwrap();
    let mut docker = ChildProcess::spawn(command.stderr(log));
    let call = |method: &str, path: &str, body: Value| {
        let url = format!("http://localhost/v1.47/{path}");
        let mut command = Command::new(&curl);
        command.args(["--silent", "--fail-with-body", "--unix-socket", &socket, "-X", method]);
        command.args(["-H", "Content-Type: application/json", "-d", &body.to_string(), &url]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(said) } else { Err(said) }
    };
    let log = || std::fs::read_to_string(node.at("docker.log")).unwrap_or_default();
    wait_until("dockerd answers", || {
        assert!(docker.ended().is_none(), "{}", log());
        call("GET", "_ping", json!({})).is_ok()
    });
    let (name, tag) = scene.image.rsplit_once(':').unwrap();
    let pulled = call("POST", &format!("images/create?fromImage={name}&tag={tag}"), json!({}));
    assert!(pulled.is_ok(), "{pulled:?} {}", log());
    let about = json!({
        "Image": scene.image, "Cmd": ["/bin/sh", "-c", SCRIPT], "Tty": true,
        "HostConfig": {"NetworkMode": "none"},
    });
    let created = call("POST", "containers/create?name=app", about).unwrap();
    assert!(created.contains("\"Id\""), "{created}");
    let started = call("POST", "containers/app/start", json!({}));
    assert!(started.is_ok(), "{started:?} {}", log());
    let ended = call("POST", "containers/app/wait", json!({})).unwrap();
    assert!(ended.contains("\"StatusCode\":0"), "{ended}");
    scene.is_lazy(&call("GET", "containers/app/logs?stdout=true&stderr=true", json!({})).unwrap());
    call("DELETE", "containers/app", json!({})).unwrap();
    call("DELETE", &format!("images/{}", scene.image), json!({})).unwrap();
    scene.node.wait_until_clear();
    docker.kill();
    serving.kill();
    containerd.kill();
}
