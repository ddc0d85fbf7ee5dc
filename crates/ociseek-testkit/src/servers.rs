//! Real registries and clients for tests: found, started on a free port of this machine, and
//! stopped at the end.
//!
//! Tools are searched in `$OCISEEK_TEST_TOOLS` (default `~/.cache/ociseek-tools/bin`), then in
//! `$PATH`. If one is missing, the test is skipped with a line that says so; if `CI` is set, it
//! fails.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Repository};
use rustix::process::Signal;
use tempfile::TempDir;

use super::child_process::ChildProcess;
use super::http::exchange;
use super::sandbox::{OCI_INDEX, OCI_MANIFEST};

/// The path of a tool. If it is missing, prints what is skipped and returns None.
pub fn tool(name: &str) -> Option<PathBuf> {
    let home =
        || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/ociseek-tools/bin"));
    let tools = std::env::var_os("OCISEEK_TEST_TOOLS").map(PathBuf::from).or_else(home);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = tools
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        skip(&format!("{name} is not installed"));
    }
    found
}

/// Likewise a tool that `.ci/tools` installs with pip.
pub fn python_tool(name: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let found =
        Some(home.join(".cache/ociseek-tools/python/bin").join(name)).filter(|file| file.is_file());
    if found.is_none() {
        skip(&format!("{name} is not installed"));
    }
    found
}

/// A repository for a client with this `USER:PASSWORD`, or without a login.
pub fn repository(registry: &str, name: &str, login: Option<&str>) -> Repository {
    let credentials = match login.and_then(|login| login.split_once(':')) {
        Some((user, password)) => CredentialSource::Only {
            registry: registry.to_owned(),
            user: user.to_owned(),
            password: password.to_owned(),
        },
        None => CredentialSource::Anonymous,
    };
    let config = ClientConfig { credentials, ..ClientConfig::default() };
    Client::new(config).unwrap().repository(registry, name).unwrap()
}

/// The folder with the real consumer, which `.ci/consumer` builds: containerd, ctr and
/// soci-snapshotter-grpc. If it is missing, prints what is skipped and returns None.
pub fn consumer() -> Option<PathBuf> {
    let cache = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/ociseek-consumer"));
    let home = std::env::var_os("OCISEEK_CONSUMER").map(PathBuf::from).or_else(cache);
    let programs =
        home.map(|dir| dir.join("bin")).filter(|dir| dir.join("soci-snapshotter-grpc").is_file());
    if programs.is_none() {
        skip("no consumer: run .ci/consumer");
    }
    programs
}

/// The environment of a program whose clock `FAKETIME` or `FAKETIME_TIMESTAMP_FILE` sets. Waits
/// take as long as before. If the library for that is missing, prints what is skipped and returns
/// None.
pub fn faketime() -> Option<[(&'static str, &'static str); 2]> {
    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    if !Path::new(LIBRARY).exists() {
        skip("faketime is not installed");
        return None;
    }
    Some([("LD_PRELOAD", LIBRARY), ("DONT_FAKE_MONOTONIC", "1")])
}

/// Says that a test, or a part of it, is left out, and why. In CI that is a failure. `tests/run`
/// prints what was left out at its end.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped: {why}");
    println!("SKIP: {why}");
    if let Some(list) = std::env::var_os("OCISEEK_LEFT_OUT") {
        let mut list = OpenOptions::new().append(true).create(true).open(list).unwrap();
        // In one call, because tests run side by side.
        list.write_all(format!("{why}\n").as_bytes()).unwrap();
    }
}

/// A running server.
pub struct Server {
    /// `127.0.0.1:PORT`, or `[::1]:PORT`.
    pub host: String,
    /// The folder of its files: configuration, passwords, certificates.
    pub dir: TempDir,
    child: ChildProcess,
}

impl Server {
    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    pub fn port(&self) -> u16 {
        self.host.rsplit(':').next().unwrap().parse().unwrap()
    }

    /// The distribution registry (without the referrers API) in memory. `sections` returns
    /// additional configuration, given a folder where it may put files.
    pub fn distribution(address: &str, sections: impl FnOnce(&Path) -> String) -> Option<Server> {
        Server::distribution_by("docker-registry", address, sections)
    }

    /// Like [`Server::distribution`], with another `program`: `distribution3` is its third major
    /// version.
    pub fn distribution_by(
        program: &str,
        address: &str,
        sections: impl FnOnce(&Path) -> String,
    ) -> Option<Server> {
        Server::distribution_from(program, address, true, |dir| {
            ("inmemory: {}".into(), sections(dir))
        })
    }

    /// The distribution registry with its files in its folder, for large layers: one of 90 MB takes
    /// docker-registry 17 s of CPU time in memory, and 0.3 s on disk.
    pub fn distribution_on_disk(program: &str) -> Option<Server> {
        Server::distribution_from(program, "127.0.0.1:0", true, |dir| {
            (
                format!("filesystem: {{rootdirectory: '{}'}}", dir.join("files").display()),
                String::new(),
            )
        })
    }

    /// Like [`Server::distribution`], without deletion, which is the default of its configuration.
    pub fn distribution_that_keeps() -> Option<Server> {
        let in_memory = |_: &Path| ("inmemory: {}".into(), String::new());
        Server::distribution_from("docker-registry", "127.0.0.1:0", false, in_memory)
    }

    /// Like [`Server::distribution`], with TLS by a [`private_ca`] in its folder.
    pub fn distribution_with_tls() -> Option<Server> {
        tool("openssl")?;
        Server::distribution("127.0.0.1:0", |dir| {
            private_ca(dir).expect("openssl is there");
            let at = |name: &str| dir.join(name).display().to_string();
            format!("  tls: {{certificate: '{}', key: '{}'}}\n", at("cert.pem"), at("key.pem"))
        })
    }

    /// `settings` returns the storage driver and additional configuration.
    fn distribution_from(
        program: &str,
        address: &str,
        deletes: bool,
        settings: impl FnOnce(&Path) -> (String, String),
    ) -> Option<Server> {
        let program = tool(program)?;
        let dir = tempfile::tempdir().unwrap();
        let (driver, sections) = settings(dir.path());
        let purging = "maintenance: {uploadpurging: {enabled: false}}";
        let config = format!(
            "version: 0.1\n\
             storage: {{{driver}, delete: {{enabled: {deletes}}}, {purging}}}\n\
             http:\n  addr: '{address}'\n  secret: x\n{sections}"
        );
        let file = dir.path().join("config.yml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(&program);
        command.arg("serve").arg(&file).env("OTEL_TRACES_EXPORTER", "none");
        let mut child = ChildProcess::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut log = BufReader::new(child.stderr());
        let mut told = String::new();
        let host = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "{} ended: {told}", program.display());
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split([',', '"', ' ']).next().unwrap().to_owned();
            }
            told += &line;
        };
        // Its log must be read, or it stops when the pipe is full.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Some(Server { host, dir, child })
    }

    /// olareg (with the referrers API) in memory.
    pub fn olareg(arguments: impl FnOnce(&Path, u16) -> Vec<String>) -> Option<Server> {
        let program = tool("olareg")?;
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut command = Command::new(program);
        command.args([
            "serve",
            "--addr",
            "127.0.0.1",
            "--store-type",
            "mem",
            "--api-delete",
            "--port",
            &port.to_string(),
        ]);
        command.args(arguments(dir.path(), port));
        Some(Server::started(command, port, dir))
    }

    /// crane's registry, in memory (no referrers API).
    pub fn crane() -> Option<Server> {
        let mut command = Command::new(tool("crane")?);
        let port = free_port();
        command.args(["registry", "serve", "--address", &format!("127.0.0.1:{port}")]);
        Some(Server::started(command, port, tempfile::tempdir().unwrap()))
    }

    fn started(mut command: Command, port: u16, dir: TempDir) -> Server {
        let host = format!("127.0.0.1:{port}");
        let child =
            ChildProcess::listening(command.stdout(Stdio::null()).stderr(Stdio::null()), &host);
        Server { host, dir, child }
    }

    /// A request without a client, which takes manifests of images and of image indexes. Returns
    /// status and body.
    pub fn request(&self, method: &str, path: &str) -> (u16, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAccept: {OCI_INDEX}, {OCI_MANIFEST}\r\nConnection: close\r\n\r\n",
            self.host
        );
        let (status, text) = exchange(&self.host, head.as_bytes());
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// A plain PUT of a manifest, without a client.
    pub fn put_manifest(&self, repository: &str, reference: &str, media_type: &str, body: &[u8]) {
        let head = format!(
            "PUT /v2/{repository}/manifests/{reference} HTTP/1.1\r\nHost: {}\r\nContent-Type: {media_type}\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.host,
            body.len()
        );
        let (status, text) = exchange(&self.host, &[head.as_bytes(), body].concat());
        assert_eq!(status, 201, "{text}");
    }
}

/// A port without a listener, below the ports that the system assigns for port 0. It is not tested
/// by binding it: if another thread starts a program at that moment, that would inherit the socket
/// and keep it open for a while.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // The first port of a hundred is bound as long as this process lives: the others are its own.
    static HUNDRED: LazyLock<(TcpListener, u16)> = LazyLock::new(|| {
        let firsts = (0..200).map(|n| 10_000 + ((std::process::id() + n) % 200) as u16 * 100);
        let mut bound =
            firsts.filter_map(|first| Some((TcpListener::bind(("127.0.0.1", first)).ok()?, first)));
        bound.next().expect("a hundred ports without an owner")
    });
    let first = HUNDRED.1;
    (0..99)
        .map(|_| first + 1 + NEXT.fetch_add(1, Ordering::Relaxed) % 99)
        .find(|port| TcpStream::connect(("127.0.0.1", *port)).is_err())
        .expect("one of a hundred ports is free")
}

/// Runs a program and returns its standard output. It does not see the user's configuration.
pub fn run(program: &Path, arguments: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .args(arguments)
        .env("HOME", home.path())
        .env("DOCKER_CONFIG", home.path())
        .env("REGCTL_CONFIG", home.path().join("regctl.json"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {errors}", program.display());
    String::from_utf8(output.stdout).unwrap()
}

/// Copies the image `v1` of a layout to this name by skopeo; `more` are arguments for it. None,
/// after a line, if it is missing.
pub fn copied_by_skopeo(layout: &Path, image: &str, more: &[&str]) -> Option<()> {
    let from = format!("oci:{}:v1", layout.display());
    let to = format!("docker://{image}");
    let copy = ["copy", "--quiet", "--all", "--dest-tls-verify=false"];
    run(&tool("skopeo")?, &[&copy, more, &[&from, &to]].concat());
    Some(())
}

/// Pushes an image for linux/amd64 of these files as layers.
pub fn pushed_by_crane(crane: &Path, image: &str, layers: &[&Path]) {
    let layers: Vec<_> = layers.iter().map(|layer| layer.to_str().unwrap()).collect();
    let append = ["append", "--insecure", "--oci-empty-base", "-f", &layers.join(","), "-t", image];
    run(crane, &append);
    let platform = ["--set-platform", "linux/amd64"];
    run(crane, &[&["mutate", "--insecure"][..], &platform, &["-t", image, image]].concat());
}

/// Creates a private authority in `dir`: `ca.pem`, and `cert.pem` and `key.pem` for servers on this
/// machine, also by the name registry.invalid, and for clients.
pub fn private_ca(dir: &Path) -> Option<()> {
    let openssl = tool("openssl")?;
    let extensions = "subjectAltName=DNS:localhost,DNS:registry.invalid,IP:127.0.0.1,IP:::1\n\
                      basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n";
    std::fs::write(dir.join("extensions"), extensions).unwrap();
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let ca_key = at("ca-key.pem");
    let ca = at("ca.pem");
    let key = at("key.pem");
    let request = at("request.pem");
    let mut authority = vec!["req", "-x509", "-days", "30", "-subj", "/CN=ociseek test authority"];
    authority.extend(new_key);
    authority.extend(["-addext", "keyUsage=critical,keyCertSign", "-keyout", &ca_key, "-out", &ca]);
    run(&openssl, &authority);
    let mut ask = vec!["req", "-subj", "/CN=localhost"];
    ask.extend(new_key);
    ask.extend(["-keyout", &key, "-out", &request]);
    run(&openssl, &ask);
    let cert = at("cert.pem");
    let extensions = at("extensions");
    let sign = [
        "x509",
        "-req",
        "-in",
        &request,
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-CAcreateserial",
        "-days",
        "30",
    ];
    run(&openssl, &[&sign[..], &["-extfile", &extensions, "-out", &cert]].concat());
    Some(())
}

/// A line of a password file (bcrypt).
pub fn htpasswd(user: &str, password: &str) -> Option<String> {
    Some(run(&tool("htpasswd")?, &["-Bbn", user, password]))
}
