//! `ociseek store` under the real podman: images from the pull to their removal, docs/podman.md to
//! the letter, and what a store must not give away.
//!
//! Root, FUSE and runc. crun, which podman prefers, wants rights that containers lack.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::Ordering;

use base64::Engine;
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::flatten::entry::{self, dir, file, hard_link, opaque, whiteout};
use crate::tutorial::commands;
use ociseek_testkit::child_process::{ChildProcess, kill, processes_with};
use ociseek_testkit::corpus::debian_layers;
use ociseek_testkit::mounts::{
    FileAttributes, assert_same, can_mount, compressed, mounts_below, seen, wait_until,
};
use ociseek_testkit::sandbox::program;
use ociseek_testkit::schema;
use ociseek_testkit::servers::{Server, pushed_by_crane, run, tool};
use ociseek_testkit::throttle::throttled_and_counted;

/// Bytes in a second. The speed is not tested here.
const FAST: u64 = 1 << 30;

/// In a container, limits cannot be raised, and there is no systemd.
const ENGINE: &str = r#"[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
netns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"#;

/// A machine with podman, and a store that it looks into.
struct Machine {
    dir: TempDir,
}

impl Machine {
    /// None, after a line, if podman or a right is missing.
    fn new() -> Option<Machine> {
        if !can_mount() || tool("podman").is_none() || tool("runc").is_none() {
            return None;
        }
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(machine.at("layers")).unwrap();
        for (name, store) in [("lazy", true), ("whole", false)] {
            let at = machine.at(name);
            let stores = format!(
                "[storage.options]\nadditionallayerstores = [\"{}:ref\"]\n",
                machine.at("layers")
            );
            let stores = if store { stores } else { String::new() };
            let storage = format!(
                "[storage]\ndriver = \"overlay\"\ngraphroot = \"{at}/graph\"\nrunroot = \"{at}/run\"\n"
            );
            fs::write(machine.at(&format!("{name}.conf")), storage + &stores).unwrap();
        }
        fs::write(machine.at("containers.conf"), ENGINE).unwrap();
        Some(machine)
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Lets podman use this registry without TLS.
    fn allow(&self, host: &str) {
        let text = format!("[[registry]]\nlocation = \"{host}\"\ninsecure = true\n");
        fs::write(self.at("registries.conf"), text).unwrap();
    }

    /// podman with the storage of this name: `lazy`, with the store, or `whole`.
    fn command(&self, storage: &str, args: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(args).stdin(Stdio::null());
        command.env("CONTAINERS_STORAGE_CONF", self.at(&format!("{storage}.conf")));
        command.env("CONTAINERS_CONF", self.at("containers.conf"));
        command.env("CONTAINERS_REGISTRIES_CONF", self.at("registries.conf"));
        command
    }

    fn try_podman(&self, storage: &str, args: &[&str]) -> Output {
        self.command(storage, args).output().unwrap()
    }

    fn podman(&self, args: &[&str]) -> String {
        said(&self.try_podman("lazy", args))
    }

    /// Runs a command in a new container, and has its output.
    fn shell(&self, image: &str, script: &str) -> String {
        self.podman(&["run", "--rm", image, "/bin/sh", "-c", script])
    }

    /// The command of a store with further options.
    fn store_command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(program());
        let arguments = [
            "store",
            "--root",
            &self.at("state"),
            "--cache-dir",
            &self.at("cache"),
            &self.at("layers"),
        ];
        command.args(arguments).args(more).env("OCISEEK_LAZY_FROM", "*");
        command.stdin(Stdio::null()).stdout(Stdio::null()).env("HOME", self.dir.path());
        command
    }

    /// The processes that keep the store's device.
    fn keepers(&self) -> Vec<i32> {
        let state = fs::read_to_string(self.at("state/keeper.json")).unwrap_or_default();
        let named = |keeper: &i32| state.contains(&format!("\"pid\":{keeper},"));
        processes_with(&["device-keeper"]).into_iter().filter(named).collect()
    }

    /// A store with further options.
    fn store(&self, more: &[&str]) -> Store {
        let log = self.at("store.log");
        let file = fs::File::options().append(true).create(true).open(&log).unwrap();
        let before = fs::read_to_string(&log).unwrap().len();
        let mut command = self.store_command(more);
        command.stderr(file);
        let mut store =
            Store { child: ChildProcess::spawn(&mut command), log: PathBuf::from(log), before };
        wait_until("the store is ready", || {
            assert!(store.child.ended().is_none(), "{}", store.log());
            store.log().contains("layers are served at ")
        });
        store
    }

    /// The layers that the store notes down as used.
    fn used(&self) -> usize {
        let state: serde_json::Value =
            serde_json::from_slice(&fs::read(self.at("state/layers.json")).unwrap()).unwrap();
        state["layers"].as_array().unwrap().len()
    }

    /// The files of an image, as a container sees them. The root itself differs: podman makes it.
    fn files(&self, storage: &str, image: &str) -> BTreeMap<PathBuf, FileAttributes> {
        let point = said(&self.try_podman(storage, &["image", "mount", image]));
        let mut files = seen(Path::new(point.trim()), true);
        said(&self.try_podman(storage, &["image", "umount", image]));
        files.remove(Path::new(""));
        // Overlayfs does not count the links of directories.
        files
            .values_mut()
            .filter(|file| file.mode & 0o170_000 == 0o040_000)
            .for_each(|file| file.links = 0);
        files
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for storage in ["lazy", "whole"] {
            let _ = self.command(storage, &["rm", "--all", "--force", "--time", "0"]).output();
        }
        for line in mounts_below(self.dir.path()).iter().rev() {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(line.split(' ').nth(1).unwrap_or_default())
                .status();
        }
    }
}

struct Store {
    child: ChildProcess,
    log: PathBuf,
    before: usize,
}

impl Store {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()[self.before..].to_owned()
    }

    fn end(mut self, signal: Signal) {
        self.child.signal(signal);
        let status = self.child.end();
        assert!(status.success() || signal == Signal::KILL, "{status}");
    }
}

fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}{err}");
    out.into_owned()
}

/// A registry behind a link that counts, with images.
struct Images {
    server: Server,
    link: String,
    passed: std::sync::Arc<std::sync::atomic::AtomicU64>,
    crane: PathBuf,
}

impl Images {
    fn new(machine: &Machine) -> Option<Images> {
        let crane = tool("crane")?;
        let server = Server::distribution_on_disk("docker-registry")?;
        let (link, passed) = throttled_and_counted(&server.host, FAST);
        machine.allow(&link);
        Some(Images { server, link, passed, crane })
    }

    /// Pushes an image of these files, and returns its name behind the link.
    fn push(&self, name: &str, layers: &[&Path]) -> String {
        let reference = format!("{}/{name}", self.server.host);
        pushed_by_crane(&self.crane, &reference, layers);
        format!("{}/{name}", self.link)
    }

    fn index(&self, name: &str, more: &[&str]) {
        let image = format!("{}/{name}", self.server.host);
        run(Path::new(program()), &[&["index", "--quiet", "--no-cache", &image], more].concat());
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

#[test]
fn podman_starts_images_lazily_and_releases_them() {
    let (Some(machine), Some(layers)) = (Machine::new(), debian_layers()) else { return };
    let Some(images) = Images::new(&machine) else { return };
    let debian = layers.join("debian-rootfs.go.tar.gz");
    let files = layers.join("../small/plain-6MB.tar.gz");
    let size = fs::metadata(&debian).unwrap().len();
    let two = images.push("two:v1", &[&debian, &files]);
    images.index("two:v1", &["--kind", "fine", "--min-layer-size=0"]);
    // The same layers in another repository, of which the index leaves out the small one.
    let mixed = images.push("mixed:v1", &[&debian, &files]);
    let pushed = format!("{}/mixed:v1", images.server.host);
    // podman keeps one image of each config.
    run(&images.crane, &["mutate", "--insecure", "--env", "OTHER=1", "-t", &pushed, &pushed]);
    images.index("mixed:v1", &[]);

    let store = machine.store(&[]);
    machine.podman(&["pull", "--quiet", &two]);
    let pulled = images.passed();
    assert_eq!(machine.shell(&two, "cat /f010 >/dev/null && touch /new && echo READY"), "READY\n");
    let started = images.passed();
    println!("{pulled} bytes after the pull, {started} at READY, of {size}");
    assert!(started < size / 4, "{started} of {size} bytes");
    assert_eq!(machine.used(), 2);

    machine.podman(&["pull", "--quiet", &mixed]);
    assert_eq!(machine.used(), 3, "the layer without an index is podman's");
    assert_eq!(machine.shell(&mixed, "cat /f010 >/dev/null && echo READY"), "READY\n");
    assert!(images.passed() - started < size / 4);

    // Releasing one image leaves the layers of the other.
    machine.podman(&["rmi", &mixed]);
    assert_eq!(machine.used(), 2);

    // The tag moves, and the store is killed: what podman has is found again.
    images.push("two:v1", &[&files]);
    store.end(Signal::KILL);
    let store = machine.store(&["--replace"]);
    assert_eq!(
        machine.shell(&two, "cat /f011 /etc/issue"),
        machine.shell(&two, "cat /f011 /etc/issue")
    );
    assert!(machine.shell(&two, "cat /etc/issue").contains("Debian"));

    // A store that is stopped serves its containers until they end. The next one is used meanwhile.
    let container =
        machine.podman(&["run", "--detach", &two, "/bin/sh", "-c", "while :; do sleep 1; done"]);
    let exec = |script: &str| machine.podman(&["exec", container.trim(), "/bin/sh", "-c", script]);
    exec("true");
    store.child.signal(Signal::TERM);
    wait_until("the store leaves", || store.log().contains("containers use layers"));
    let next = machine.store(&[]);
    assert!(exec("cat /usr/share/common-licenses/GPL-3").contains("GNU GENERAL PUBLIC LICENSE"));
    assert_eq!(machine.shell(&two, "echo READY"), "READY\n");
    machine.podman(&["rm", "--force", "--time", "0", container.trim()]);
    let mut store = store;
    assert!(store.child.end().success());

    // The registry is away: files that nobody has read cannot be read, and the image can be
    // removed.
    next.end(Signal::TERM);
    fs::remove_dir_all(machine.at("cache")).unwrap();
    let store = machine.store(&["--deadline", "2s"]);
    assert_eq!(machine.shell(&two, "echo READY"), "READY\n");
    images.server.signal(Signal::STOP);
    let output = machine.try_podman(
        "lazy",
        &["run", "--rm", &two, "/bin/sh", "-c", "cat /usr/share/common-licenses/GPL-2"],
    );
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("error"),
        "{output:?}"
    );
    assert!(store.log().contains("warning: "), "{}", store.log());
    machine.podman(&["rmi", &two]);
    assert_eq!(machine.used(), 0);
    images.server.signal(Signal::CONT);
    store.end(Signal::TERM);
    assert!(mounts_below(Path::new(&machine.at("layers"))).is_empty());
}

#[test]
fn containers_outlive_a_store_that_is_killed() {
    let (Some(machine), Some(layers)) = (Machine::new(), debian_layers()) else { return };
    let Some(images) = Images::new(&machine) else { return };
    let debian = layers.join("debian-rootfs.go.tar.gz");
    let files = layers.join("../small/plain-6MB.tar.gz");
    let two = images.push("two:v1", &[&debian, &files]);
    images.index("two:v1", &["--kind", "fine", "--min-layer-size=0"]);
    let mut store = machine.store(&[]);
    machine.podman(&["pull", "--quiet", &two]);
    let container =
        machine.podman(&["run", "--detach", &two, "/bin/sh", "-c", "while :; do sleep 1; done"]);
    let exec = |script: &str| machine.podman(&["exec", container.trim(), "/bin/sh", "-c", script]);
    assert!(exec("cat /etc/issue").contains("Debian"));
    let status = |code: i32, service: &str| {
        let root = format!("--root={}", machine.at("state"));
        let output =
            Command::new(program()).args(["store", "status", &root, "--json"]).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        schema::check(&["store", "status"], &document);
        assert_eq!(output.status.code(), Some(code), "{service}: {document}");
        let images = document["images"].as_array().unwrap();
        assert_eq!((images.len(), &images[0]["layers"]), (1, &2.into()), "{document}");
        assert!(images[0]["image"].as_str().unwrap().contains("two:v1"), "{document}");
    };
    status(0, "a store runs");
    let mounted = mounts_below(Path::new(&machine.at("layers")));
    // What is read waits for the next store, also one that is started as by the systemd unit.
    for (more, file, content) in [
        (&[][..], "GPL-3", "GNU GENERAL PUBLIC LICENSE"),
        (&["--replace"], "Artistic", "Artistic License"),
    ] {
        wait_until("a process keeps the device", || machine.keepers().len() == 1);
        store.end(Signal::KILL);
        store = std::thread::scope(|scope| {
            let reader = scope.spawn(|| exec(&format!("cat /usr/share/common-licenses/{file}")));
            let next = machine.store(more);
            assert!(reader.join().unwrap().contains(content));
            next
        });
        assert_eq!(mounts_below(Path::new(&machine.at("layers"))), mounted);
        assert_eq!(machine.shell(&two, "cat /f010 >/dev/null && echo READY"), "READY\n");
    }
    // podman works while no store runs, and what containers read still waits.
    wait_until("a process keeps the device", || machine.keepers().len() == 1);
    store.end(Signal::KILL);
    let mut command = machine.command("lazy", &["ps", "--quiet"]);
    let mut listing = ChildProcess::spawn(command.stdout(Stdio::null()));
    wait_until("podman answers without a store", || listing.ended().is_some());
    assert!(listing.ended().is_some_and(|status| status.success()));
    status(3, "no store runs");
    store = std::thread::scope(|scope| {
        let reader = scope.spawn(|| exec("cat /usr/share/common-licenses/GFDL-1.3"));
        let next = machine.store(&[]);
        assert!(reader.join().unwrap().contains("GNU Free Documentation License"));
        next
    });
    // A second store does not disturb one that is alive.
    let mut refused = machine.store_command(&["--replace"]);
    let output = refused.stderr(Stdio::piped()).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("another layer store uses it"),
        "{output:?}"
    );
    assert!(exec("cat /usr/share/common-licenses/BSD").contains("Redistribution"));
    // Without the process that keeps the device, containers must be started again.
    kill(&machine.keepers());
    store.end(Signal::KILL);
    let store = machine.store(&["--replace"]);
    assert_eq!(machine.shell(&two, "cat /f011 >/dev/null && echo READY"), "READY\n");
    machine.podman(&["rm", "--force", "--time", "0", container.trim()]);
    // The next store opens the image while its registry is away: what that said is on disk, as long
    // as the image is used.
    let answers = || fs::read_dir(machine.at("state/answers")).unwrap().count();
    assert_eq!(answers(), 1);
    store.end(Signal::TERM);
    images.server.signal(Signal::STOP);
    let store = machine.store(&["--deadline", "2s"]);
    assert_eq!(machine.shell(&two, "cat /f011 >/dev/null && echo READY"), "READY\n");
    images.server.signal(Signal::CONT);
    machine.podman(&["rmi", &two]);
    assert_eq!(machine.used(), 0);
    store.end(Signal::TERM);
    wait_until("no process is left", || machine.keepers().is_empty());
    assert!(mounts_below(Path::new(&machine.at("layers"))).is_empty());
}

/// One that hangs is not one that ended: it may go on at any time.
#[test]
fn podman_works_while_a_store_hangs() {
    let (Some(machine), Some(layers)) = (Machine::new(), debian_layers()) else { return };
    let Some(images) = Images::new(&machine) else { return };
    let two = images.push("two:v1", &[&layers.join("debian-rootfs.go.tar.gz")]);
    images.index("two:v1", &["--kind", "fine", "--min-layer-size=0"]);
    let store = machine.store(&[]);
    machine.podman(&["pull", "--quiet", &two]);
    let container =
        machine.podman(&["run", "--detach", &two, "/bin/sh", "-c", "while :; do sleep 1; done"]);
    let pid = machine.podman(&["inspect", "--format", "{{.State.Pid}}", container.trim()]);
    let read = |file: &str| {
        // Not by podman, which would lock the container meanwhile.
        fs::read(format!("/proc/{}/root/usr/share/common-licenses/{file}", pid.trim())).unwrap()
    };
    let is_answering = || {
        let root = format!("--root={}", machine.at("state"));
        Command::new(program()).args(["store", "status", &root]).output().unwrap().status.success()
    };
    for file in ["GPL-3", "Artistic"] {
        assert!(is_answering());
        store.child.signal(Signal::STOP);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || read(file).len());
            for args in [&["ps", "--quiet"][..], &["images", "--quiet"]] {
                let mut command = machine.command("lazy", args);
                let mut listing = ChildProcess::spawn(command.stdout(Stdio::null()));
                wait_until("podman answers while the store hangs", || listing.ended().is_some());
                assert!(listing.ended().is_some_and(|status| status.success()), "{args:?}");
            }
            assert!(!is_answering());
            // What containers read still waits.
            assert!(!reader.is_finished());
            store.child.signal(Signal::CONT);
            assert!(reader.join().unwrap() > 1000);
        });
        wait_until("the store answers", is_answering);
        assert_eq!(machine.shell(&two, "cat /etc/passwd >/dev/null && echo READY"), "READY\n");
    }
    machine.podman(&["rm", "--force", "--time", "0", container.trim()]);
    machine.podman(&["rmi", &two]);
    assert_eq!(machine.used(), 0);
    store.end(Signal::TERM);
    wait_until("no process is left", || machine.keepers().is_empty());
    assert!(mounts_below(Path::new(&machine.at("layers"))).is_empty());
}

/// What overlayfs shows of mounted layers is what it shows of those that podman unpacked.
#[test]
fn files_are_those_that_podman_unpacks() {
    let (Some(machine), Some(layers)) = (Machine::new(), debian_layers()) else { return };
    let Some(images) = Images::new(&machine) else { return };
    let middle = vec![
        whiteout("d/f"),
        dir("d/sub/").xattr("user.k", "upper"),
        opaque("d/sub"),
        file("d/sub/new", "new"),
        whiteout("gone"),
        file("turned", "now a file"),
        whiteout("to-d"),
        hard_link("d/sub/same", "d/sub/new"),
    ];
    let top = vec![dir("d/").mode(0o755), file("d/f", "back"), dir("gone/"), whiteout("capable")];
    let made = [entry::motley(), middle, top].map(|layer| compressed(&entry::tar(&layer)));
    let made: Vec<PathBuf> = (0..)
        .zip(&made)
        .map(|(number, layer): (u32, _)| {
            let path = machine.dir.path().join(format!("{number}.tar.gz"));
            fs::write(&path, layer).unwrap();
            path
        })
        .collect();
    let made = images.push("made:v1", &made.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    let corpus = ["plain-6MB", "dot-slash-names", "pax-binary-xattr", "mtime-zero"];
    let corpus = corpus.map(|name| layers.join(format!("../small/{name}.tar.gz")));
    let corpus = images.push("corpus:v1", &corpus.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    for name in ["made:v1", "corpus:v1"] {
        images.index(name, &["--kind", "fine", "--min-layer-size=0"]);
    }
    let store = machine.store(&["--share-layers"]);
    for image in [&made, &corpus] {
        for storage in ["lazy", "whole"] {
            said(&machine.try_podman(storage, &["pull", "--quiet", image]));
        }
        let mut lazy = machine.files("lazy", image);
        let mut whole = machine.files("whole", image);
        // Directories without an entry get the time of unpacking.
        let is_implied = |file: &&mut FileAttributes| {
            file.mode & 0o170_000 == 0o040_000 && file.time == Some((0, 0))
        };
        for (path, file) in lazy.iter_mut().map(|(path, file)| (path.clone(), file)) {
            if is_implied(&file) {
                file.time = None;
                whole.entry(path).and_modify(|file| file.time = None);
            }
        }
        assert_same(&lazy, &whole);
        assert!(lazy.len() > 10);
    }
    assert_eq!(machine.used(), 7);
    // podman reads the layers' blobs, and compares them with the digests that it was told.
    machine.podman(&["save", "--quiet", "-o", &machine.at("saved.tar"), &made]);
    store.end(Signal::TERM);
}

#[test]
fn a_store_has_only_layers_of_images_in_registries() {
    let Some(machine) = Machine::new() else { return };
    let Some(images) = Images::new(&machine) else { return };
    let layer = machine.dir.path().join("layer.tar.gz");
    fs::write(&layer, compressed(&entry::tar(&[file("f", "content")]))).unwrap();
    let image = images.push("app:v1", &[&layer]);
    images.index("app:v1", &["--kind", "fine", "--min-layer-size=0"]);
    let digest = ociseek_format::digest::Digest::sha256(&fs::read(&layer).unwrap());
    let store = machine.store(&[]);
    let root = PathBuf::from(machine.at("layers"));
    let named = |name: &str| root.join(base64::engine::general_purpose::STANDARD.encode(name));
    let fault = |path: &Path| {
        let error = path.symlink_metadata().expect_err("nothing is there");
        Errno::from_io_error(&error).unwrap()
    };
    assert!(named(&image).join(digest.to_string()).join("diff/f").exists());
    // Names that are not base64, or of something else than an image in a registry.
    let longest = "x".repeat(2000);
    for name in ["x", "=", "..x", "YQ", "YQ==YQ==", &longest[..200], &longest[..255]] {
        assert_eq!(fault(&root.join(name)), Errno::NOENT, "{name}");
    }
    assert_eq!(fault(&root.join(&longest)), Errno::NAMETOOLONG);
    for name in [
        "oci:/etc",
        "oci-archive:/x.tar",
        "docker-archive:/x.tar",
        "../../etc",
        "a b",
        "\0",
        "",
        "A:v1",
    ] {
        let at = named(name);
        assert!(at == root || fault(&at) == Errno::NOENT, "{name}");
    }
    // Layers that the image does not have.
    for layer in
        ["sha256:", "sha256:0", "x", &format!("sha256:{}", "0".repeat(64)), &format!("{digest}0")]
    {
        assert_eq!(fault(&named(&image).join(layer)), Errno::NOENT, "{layer}");
    }
    let missing = named(&format!("{}/none:v1", images.link)).join(digest.to_string());
    assert_eq!(fault(&missing), Errno::IO);
    assert!(store.log().contains("cannot open"), "{}", store.log());
    // Nothing can be changed.
    let at = named(&image).join(digest.to_string());
    for refused in [
        fs::write(at.join("info"), "x"),
        fs::write(at.join("other"), "x"),
        fs::create_dir(root.join("new")),
        fs::remove_file(at.join("diff/f")),
        fs::rename(at.join("diff/f"), at.join("diff/g")),
        symlink("x", at.join("diff/link")),
    ] {
        assert_eq!(Errno::from_io_error(&refused.expect_err("refused")).unwrap(), Errno::ROFS);
    }
    // A runtime's notes, more often ended than begun.
    assert_eq!(fs::write(at.join("use"), "").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(machine.used(), 1);
    for _ in 0..3 {
        assert_eq!(fs::remove_dir(&at).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
    assert_eq!(machine.used(), 0);
    // Nothing is said of the layer that only the image's config claims.
    let info: serde_json::Value =
        serde_json::from_slice(&fs::read(at.join("info")).unwrap()).unwrap();
    let tar =
        ociseek_format::digest::Digest::sha256(&entry::tar(&[file("f", "content")])).to_string();
    assert!(info["diff-digest"].is_string() && info["diff-digest"] != tar, "{info}");
    assert!(info["compressed-diff-digest"].is_null(), "{info}");
    assert_eq!(fs::read(at.join("blob")).unwrap(), fs::read(&layer).unwrap());
    store.end(Signal::TERM);

    // The operator says whose word an attached index is.
    let manifest =
        run(&images.crane, &["digest", "--insecure", &format!("{}/app:v1", images.server.host)]);
    let pinned =
        named(&format!("{}/app@{}", images.link, manifest.trim())).join(digest.to_string());
    let of_host = &*format!("{}/app", images.link);
    for (rule, is_there) in [("registry.example/*", false), (of_host, true)] {
        let store = machine.store(&["--lazy-from", rule]);
        assert_eq!(pinned.join("diff").exists(), is_there, "{rule}");
        store.end(Signal::TERM);
    }
}

/// How podman looks for layers since version 5.1. Older ones, as here, pull such an image as any
/// other.
#[test]
fn layers_are_found_by_what_they_are_read_by() {
    let Some(machine) = Machine::new() else { return };
    let Some(images) = Images::new(&machine) else { return };
    let layer = machine.dir.path().join("layer.tar.gz");
    let content = entry::tar(&[file("f", "content")]);
    fs::write(&layer, compressed(&content)).unwrap();
    images.push("app:v1", &[&layer]);
    let at = |tag: &str| format!("{}/app:{tag}", images.server.host);
    let convert = |more: &[&str], tag: &str| {
        let args = ["convert", "--quiet", "--no-cache", "--min-layer-size=0"];
        run(Path::new(program()), &[&args, more, &[&at("v1"), &at(tag)]].concat());
        run(&images.crane, &["manifest", "--insecure", "--platform", "linux/amd64", &at(tag)])
    };
    let toc = |manifest: &str| {
        let manifest: serde_json::Value = serde_json::from_str(manifest).unwrap();
        manifest["layers"][0]["annotations"]["containerd.io/snapshot/stargz/toc.digest"]
            .as_str()
            .map(str::to_owned)
    };
    let plain = convert(&[], "plain");
    let soci = convert(&["--toc-digests"], "soci");
    let fine = convert(&["--fine", "--toc-digests"], "fine");
    assert_eq!(toc(&plain), None);
    let by_ztoc = toc(&soci).unwrap();
    let by_head = toc(&fine).unwrap();
    assert_ne!(by_ztoc, by_head);
    // An image that names something else, as anyone can write.
    let other = format!("sha256:{}", "0".repeat(64));
    let lie = machine.dir.path().join("lie.json");
    fs::write(&lie, fine.replace(&by_head, &other)).unwrap();
    let url = format!("http://{}/v2/app/manifests/lie", images.server.host);
    let upload = format!("@{}", lie.display());
    let kind = "Content-Type: application/vnd.oci.image.manifest.v1+json";
    run(Path::new("curl"), &["-sSf", "-X", "PUT", "-H", kind, "--data-binary", &upload, &url]);

    let store = machine.store(&[]);
    let named = |tag: &str, layer: &str| {
        let name =
            base64::engine::general_purpose::STANDARD.encode(format!("{}/app:{tag}", images.link));
        PathBuf::from(machine.at("layers")).join(name).join(layer)
    };
    for (tag, layer) in [("soci", &by_ztoc), ("fine", &by_head)] {
        let found = named(tag, layer);
        assert_eq!(fs::read_to_string(found.join("diff/f")).unwrap(), "content");
        let info: serde_json::Value =
            serde_json::from_slice(&fs::read(found.join("info")).unwrap()).unwrap();
        let diff = ociseek_format::digest::Digest::sha256(&content).to_string();
        assert_eq!(
            (&info["toc-digest"], &info["flags"]["expected-layer-diffid"]),
            (&(&**layer).into(), &diff.into())
        );
        assert!(
            info["diff-digest"].is_null() && info["compressed-diff-digest"].is_null(),
            "{info}"
        );
    }
    for (tag, layer) in [
        ("plain", &by_ztoc),
        ("soci", &by_head),
        ("fine", &by_ztoc),
        ("lie", &other),
        ("lie", &by_head),
    ] {
        assert!(!named(tag, layer).exists(), "{tag} {layer}");
    }
    // Without a store, and where podman pulls parts of eStargz layers, it is an image as any other.
    let partial = fs::read_to_string(machine.at("whole.conf")).unwrap().replace("whole", "partial")
        + "[storage.options]\npull_options = {enable_partial_images = \"true\"}\n";
    fs::write(machine.at("partial.conf"), partial).unwrap();
    for storage in ["whole", "partial"] {
        let image = format!("{}/app:fine", images.link);
        said(&machine.try_podman(storage, &["pull", "--quiet", &image]));
        assert_eq!(machine.files(storage, &image).len(), 1, "{storage}");
    }
    store.end(Signal::TERM);
}

#[test]
fn the_page_about_podman_is_right() {
    let (Some(machine), Some(layers)) = (Machine::new(), debian_layers()) else { return };
    let Some(images) = Images::new(&machine) else { return };
    let image = images.push("demo:v1", &[&layers.join("debian-rootfs.go.tar.gz")]);
    images.index("demo:v1", &["--kind", "fine"]);
    let programs = machine.dir.path().join("bin");
    fs::create_dir(&programs).unwrap();
    symlink(program(), programs.join("ociseek")).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/podman.md");
    let script = commands(&fs::read_to_string(page).unwrap());
    assert!(script.contains("ociseek store") && script.contains("podman run"), "{script}");
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).stdin(Stdio::null()).env("IMAGE", &image);
    bash.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
    bash.env("TMPDIR", machine.dir.path()).env("HOME", machine.dir.path());
    bash.env("CONTAINERS_CONF", machine.at("containers.conf"));
    bash.env("CONTAINERS_REGISTRIES_CONF", machine.at("registries.conf"));
    let text = said(&bash.output().unwrap());
    assert!(text.contains("ID=debian"), "{text}");
    let size = fs::metadata(layers.join("debian-rootfs.go.tar.gz")).unwrap().len();
    assert!(images.passed() < size / 4, "{} of {size} bytes", images.passed());
    assert!(mounts_below(machine.dir.path()).is_empty());
}
