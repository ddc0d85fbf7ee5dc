//! A pod with a network of its own: the CNI plugins bridge, host-local and portmap.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{FAST, Ground, Node, index, made_to_sleep, push};
use ociseek_testkit::mounts::wait_until;
use ociseek_testkit::servers::{run, skip, tool};
use ociseek_testkit::throttle::throttled_and_counted;

/// Where Debian has the CNI plugins (containernetworking-plugins).
const PLUGINS: &str = "/usr/lib/cni";

const NETWORK: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "ipam": {"type": "host-local",
    "dataDir": "DIR/addresses", "ranges": [[{"subnet": "10.88.37.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;

const POD: &str = r#"{"metadata": {"name": "web", "namespace": "default", "uid": "web"}, "hostname": "web",
  "log_directory": "DIR/logs", "port_mappings": [{"container_port": 8000, "host_port": 8080}], "linux": {}}"#;

/// perl-base is all that Debian's minimal root file system has for this.
const CONTAINER: &str = r#"{"metadata": {"name": "app"}, "image": {"image": "IMAGE"}, "log_path": "app.log",
  "command": ["perl", "-E", "SCRIPT"], "linux": {}}"#;

const SCRIPT: &str = "use Socket; socket(S, PF_INET, SOCK_STREAM, 0); setsockopt(S, SOL_SOCKET, SO_REUSEADDR, 1); \
                      bind(S, sockaddr_in(8000, INADDR_ANY)) or die; listen(S, 5); $| = 1; say 'READY'; \
                      while (accept(C, S)) { open(F, '/etc/debian_version'); print C <F>; close C }";

/// A network namespace with a name, until it is dropped.
struct Network(String);

impl Network {
    fn new() -> Network {
        let name = format!("ociseek-{}", std::process::id());
        run(Path::new("ip"), &["netns", "add", &name]);
        let network = Network(name);
        network.run(&["ip", "link", "set", "lo", "up"]);
        network
    }

    fn file(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    /// The output of a command in it.
    fn run(&self, command: &[&str]) -> String {
        run(Path::new("nsenter"), &[&[&*format!("--net={}", self.file())], command].concat())
    }

    /// What a server in it sends.
    fn received(&self, address: &str, port: u16) -> String {
        self.run(&["bash", "-c", &format!("cat < /dev/tcp/{address}/{port}")])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

#[test]
fn a_lazy_pod_has_an_address_and_a_port_of_the_host() {
    let Some(Ground { programs, layers, crane, registry }) = Ground::new() else { return };
    if !Path::new(PLUGINS).join("bridge").exists() {
        return skip(&format!("no CNI plugins in {PLUGINS}"));
    }
    let (Some(_), Some(_)) = (tool("ip"), tool("iptables")) else { return };
    let pushed = push(&crane, &registry.host, "app", &[&layers.join("debian-rootfs.go.tar.gz")]);
    made_to_sleep(&crane, &pushed, &pushed);
    index(&pushed);
    let (link, passed) = throttled_and_counted(&registry.host, FAST);
    let image = format!("{link}/app:v1");

    let node = Node::new(programs, &image);
    let dir = node.dir.path().to_str().unwrap();
    fs::create_dir(node.at("net.d")).unwrap();
    fs::write(node.at("net.d/pods.conflist"), NETWORK.replace("DIR", dir)).unwrap();
    let config = fs::read_to_string(node.at("containerd.toml")).unwrap();
    let cni = format!(
        "[plugins.\"io.containerd.cri.v1.runtime\".cni]\n  bin_dirs = [\"{PLUGINS}\"]\n  conf_dir = \"{}\"\n",
        node.at("net.d")
    );
    fs::write(node.at("containerd.toml"), config + &cni).unwrap();
    fs::write(node.at("pod.json"), POD.replace("DIR", dir)).unwrap();
    let container = CONTAINER.replace("IMAGE", &image).replace("SCRIPT", SCRIPT);
    fs::write(node.at("container.json"), container).unwrap();

    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    node.crictl(&["pull", &image]);
    containerd.kill();
    // The registry is in the network of the host, and so is the snapshotter, which alone reads from
    // now on.
    let network = Network::new();
    let mut containerd = node.containerd_in(Path::new(&network.file()));
    let pod = node.crictl(&["runp", &node.at("pod.json")]);
    let container = node.crictl(&[
        "create",
        "--no-pull",
        pod.trim(),
        &node.at("container.json"),
        &node.at("pod.json"),
    ]);
    node.crictl(&["start", container.trim()]);
    let log = || fs::read_to_string(node.at("logs/app.log")).unwrap_or_default();
    wait_until("the container is ready", || log().contains("READY"));
    let inspected: Value = serde_json::from_str(&node.crictl(&["inspectp", pod.trim()])).unwrap();
    let address = inspected["status"]["network"]["ip"].as_str().unwrap();
    assert!(address.starts_with("10.88.37."), "{inspected}");
    assert!(network.received(address, 8000).starts_with("12."));
    assert!(network.received("10.88.37.1", 8080).starts_with("12."));
    assert_eq!(node.lazy_mounts().len(), 1);
    let moved = passed.load(std::sync::atomic::Ordering::Relaxed);
    let size = fs::metadata(layers.join("debian-rootfs.go.tar.gz")).unwrap().len();
    assert!(moved < size / 4, "{moved} of {size} bytes");

    // kubelet counts the disk there.
    let usage: Value = serde_json::from_str(&node.crictl(&["imagefsinfo"])).unwrap();
    let file_systems = &usage["status"]["imageFilesystems"];
    assert_eq!(file_systems[0]["fsId"], json!({ "mountpoint": node.at("lazy") }), "{usage}");

    node.crictl(&["rmp", "--force", pod.trim()]);
    node.crictl(&["rmi", "--all"]);
    wait_until("nothing is left", || node.lazy_mounts().is_empty());
    serving.kill();
    containerd.kill();
}
