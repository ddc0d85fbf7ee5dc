//! containerd's `hosts.toml`, changed while the snapshotter runs.

use std::fs;

use super::{Ground, Node, index, push};
use ociseek_testkit::mounts::wait_until;

#[test]
fn a_change_of_the_hosts_file_counts_for_the_next_image() {
    let Some(Ground { programs, layers, crane, registry }) = Ground::new() else { return };
    let image = push(&crane, &registry.host, "app", &[&layers.join("../small/plain-6MB.tar.gz")]);
    index(&image);
    let mut node = Node::new(programs, &image);
    node.config = format!("hosts-dir = \"{}\"\nretry-for = \"1s\"\n", node.at("certs.d"));
    let file = node
        .dir
        .path()
        .join("certs.d")
        .join(format!("{}_", registry.host.replace(':', "_")))
        .join("hosts.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    // Nothing listens there. containerd itself does not use the file.
    fs::write(&file, "server = \"http://127.0.0.1:1\"\n").unwrap();
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    node.pull(&image, "ociseek");
    assert_eq!(node.unpacked("failed"), 1);
    node.remove(&image);
    wait_until("nothing is left", || node.metric("ociseek_snapshotter_snapshots") == 0);

    fs::write(&file, format!("server = \"http://{}\"\n", registry.host)).unwrap();
    node.pull(&image, "ociseek");
    assert_eq!(node.metric("ociseek_snapshotter_images"), 1);
    serving.kill();
    containerd.kill();
}
