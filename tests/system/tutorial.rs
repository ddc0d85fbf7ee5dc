//! docs/tutorial.md: a shell runs its commands in order, and the container starts lazily.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::corpus::debian_layers;
use crate::support::sandbox::program;
use crate::support::servers::{Server, consumer, run, skip, tool};

/// The commands of the page: its `sh` blocks. `console` blocks need tools that this machine lacks.
fn commands(page: &str) -> String {
    let (mut commands, mut indent) = (String::from("set -eu\n"), None);
    for line in page.lines() {
        let text = line.trim_start();
        match indent {
            None if text == "```sh" => indent = Some(line.len() - text.len()),
            Some(_) if text == "```" => indent = None,
            Some(width) => {
                commands += line.get(width..).unwrap_or_default();
                commands.push('\n');
            }
            None => {}
        }
    }
    commands
}

#[test]
fn the_tutorial_leads_to_a_lazy_start() {
    let Some((consumer, layer)) = pieces() else { return };
    let (Some(crane), Some(_)) = (tool("crane"), tool("runc")) else { return };
    let Some(server) = Server::distribution_on_disk("docker-registry") else { return };
    let image = format!("{}/demo:v1", server.host);
    run(&crane, &["append", "--insecure", "--oci-empty-base", "-f", &layer.display().to_string(), "-t", &image]);
    run(&crane, &["mutate", "--insecure", "--set-platform", "linux/amd64", "--cmd", "/bin/sh", "-t", &image, &image]);

    let dir = tempfile::tempdir().expect("a temporary folder");
    let programs = dir.path().join("bin");
    std::fs::create_dir(&programs).expect("a folder");
    symlink(program(), programs.join("ociseek")).expect("a link");
    let path = std::env::var("PATH").expect("there is one");
    let path = format!("{}:{}:{path}", programs.display(), consumer.display());

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/tutorial.md");
    let script = commands(&std::fs::read_to_string(page).expect("the tutorial is there"));
    assert!(script.contains("ctr ") && script.contains("ociseek convert"), "{script}");
    let output = Command::new("bash")
        .args(["-c", &script])
        .env("PATH", path)
        .env("IMAGE", &image)
        .env("HOME", dir.path())
        .env("TMPDIR", dir.path())
        .stdin(Stdio::null())
        .output()
        .expect("bash runs");
    let (said, talk) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{talk}");

    // The output that the page describes.
    let first = said.lines().find(|line| line.contains("soci-snapshotter 0.10 or later")).expect("doctor's first row");
    assert!(first.contains("lazy"), "{first}");
    // The index has 2 MiB and the layer 89. On a busy machine, ctr may report less than the index.
    let pulled = said.lines().rfind(|line| line.contains("total:")).expect("the pull's last line");
    let mut total = pulled.split("total:").nth(1).expect("is there").split_whitespace();
    let (number, unit) = (total.next().expect("an amount"), total.next().expect("a unit"));
    let number: f64 = number.parse().expect("a number");
    let is_little = unit == "B" || unit.starts_with("Ki") || unit.starts_with("Mi") && number < 10.0;
    assert!(is_little, "a layer was pulled: {pulled}");
    assert!(said.contains("fuse.rawBridge") && said.contains("remote snapshot successfully prepared"), "{said}");
    // With containerd, with `bundle`, and with `trace`, which uses its standard output for the
    // records.
    let starts = |text: &str| text.lines().filter(|line| *line == "ID=debian").count();
    assert_eq!((starts(&said), starts(&talk)), (2, 1), "{said}\n{talk}");
    assert!(talk.contains("this start reads"), "{talk}");
    let left = std::fs::read_to_string("/proc/mounts").expect("is there");
    assert!(!left.contains(&dir.path().display().to_string()), "mounts are left behind: {left}");
}

/// The snapshotter with its containerd, and a layer with a shell.
fn pieces() -> Option<(PathBuf, PathBuf)> {
    let layer = debian_layers()?.join("debian-rootfs.go.tar.gz");
    let consumer = consumer()?;
    if !Path::new("/dev/fuse").exists() {
        skip("no /dev/fuse");
        return None;
    }
    Some((consumer, layer))
}
