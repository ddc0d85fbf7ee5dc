//! docs/tutorial.md: a shell runs its commands in order, and the container starts lazily.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use ociseek_testkit::corpus::debian_layers;
use ociseek_testkit::layers::{gzip, text};
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::{Server, consumer, run, skip, tool};
use ociseek_testkit::tarball::{end, file};

/// The commands of the page: its `sh` blocks. `console` blocks need tools that this machine lacks.
pub fn commands(page: &str) -> String {
    let mut commands = String::from("set -eu\n");
    let mut indent = None;
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
    let (host, received) = counted(&server.host);
    let image = format!("{host}/demo:v1");
    let dir = tempfile::tempdir().expect("a temporary folder");
    // The first layer is one without a ztoc, as in most images: while the snapshotter waits for
    // somebody to unpack it, containerd downloads the others.
    let first = dir.path().join("first.tar.gz");
    let last = dir.path().join("last.tar.gz");
    std::fs::write(&first, packed("srv/first", 2 << 20)).expect("a layer");
    std::fs::write(&last, packed("srv/last", 100)).expect("a layer");
    let layers = [first, layer.clone(), last].map(|file| file.display().to_string());
    let append = ["append", "--insecure", "--oci-empty-base", "-t", &image];
    run(
        &crane,
        &append.into_iter().chain(layers.iter().flat_map(|file| ["-f", file])).collect::<Vec<_>>(),
    );
    run(
        &crane,
        &[
            "mutate",
            "--insecure",
            "--set-platform",
            "linux/amd64",
            "--cmd",
            "/bin/sh",
            "-t",
            &image,
            &image,
        ],
    );

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
    let said = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{talk}");

    // The output that the page describes.
    let first = said
        .lines()
        .find(|line| line.contains("soci-snapshotter 0.10 or later"))
        .expect("doctor's first row");
    assert!(first.contains("lazy"), "{first}");
    // The pull and the start: the ztocs, the small layers, and the spans that a shell reads.
    let received = received.lock().expect("nobody panicked");
    let of = |client: &str| {
        received.iter().filter(|(name, _)| name.starts_with(client)).map(|(_, n)| n).sum::<u64>()
    };
    let all = of("containerd/") + of("soci");
    let size = std::fs::metadata(&layer).expect("is there").len();
    assert!((1 << 20..size / 3).contains(&all), "of {size} bytes came {received:?}");
    assert!(said.contains("total:"), "{said}");
    assert!(
        said.contains("fuse.rawBridge") && said.contains("remote snapshot successfully prepared"),
        "{said}"
    );
    // With containerd and with `bundle`; `try` shows what its containers print as messages.
    let starts = |text: &str| text.lines().filter(|line| *line == "ID=debian").count();
    assert_eq!((starts(&said), starts(&talk)), (2, 2), "{said}\n{talk}");
    assert_eq!(said.matches("Load it lazily: ").count(), 2, "{said}");
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

/// A layer with one file.
fn packed(path: &str, size: usize) -> Vec<u8> {
    gzip(&[file(path, &text(7, size)), end()].concat(), 1)
}

/// How many bytes each client got, by the User-Agent of its connections.
type Received = Arc<Mutex<BTreeMap<String, u64>>>;

/// A proxy before the server that counts. It runs until the process ends.
fn counted(server: &str) -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let host = listener.local_addr().expect("is bound").to_string();
    let server = server.to_owned();
    let received = Received::default();
    let counts = Arc::clone(&received);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(&server).expect("it listens");
            let counts = Arc::clone(&counts);
            thread::spawn(move || pass_on(client, server, &counts));
        }
    });
    (host, received)
}

fn pass_on(mut client: TcpStream, mut server: TcpStream, received: &Received) {
    let mut piece = vec![0; 64 << 10];
    let Ok(mut read) = client.read(&mut piece) else { return };
    let head = String::from_utf8_lossy(&piece[..read]);
    let name = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("user-agent: ").map(str::to_owned));
    let name = name.unwrap_or_default();
    let mut from = server.try_clone().expect("a socket");
    let mut to = client.try_clone().expect("a socket");
    let counts = Arc::clone(received);
    thread::spawn(move || {
        let mut piece = vec![0; 64 << 10];
        while let Ok(read) = from.read(&mut piece)
            && read > 0
            && to.write_all(&piece[..read]).is_ok()
        {
            *counts.lock().expect("nobody panicked").entry(name.clone()).or_default() +=
                read as u64;
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    while read > 0 && server.write_all(&piece[..read]).is_ok() {
        read = client.read(&mut piece).unwrap_or(0);
    }
    let _ = server.shutdown(Shutdown::Write);
}
