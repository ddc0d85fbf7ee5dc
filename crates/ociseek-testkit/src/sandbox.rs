//! Runs the program in a temporary directory, creates small images to index, and masks the parts of
//! its output that differ between runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use super::{random, schema};
use crate::image::{image_index, image_manifest};

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";
pub const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// A directory in which the program runs, with a cache and a home inside it.
pub struct Sandbox {
    pub dir: tempfile::TempDir,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        Sandbox { dir: tempfile::tempdir().unwrap() }
    }

    /// With [`small_image`] in the layout `img`.
    pub fn with_small_image() -> Sandbox {
        let sandbox = Sandbox::new();
        small_image(&sandbox.path("img"));
        sandbox
    }

    /// With [`two_platforms`] in the layout `img`.
    pub fn with_two_platforms() -> Sandbox {
        let sandbox = Sandbox::new();
        two_platforms(&sandbox.path("img"));
        sandbox
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a shell script that can be executed.
    pub fn script(&self, name: &str, body: &str) {
        let file = self.path(name);
        // Written by another process: if this process had the file open for writing, a child of
        // another test could inherit the descriptor, and running the file would fail as "busy".
        let write = format!(
            "cat >'{0}' <<'EOF'\n#!/bin/sh\n{body}\nEOF\nchmod 755 '{0}'\n",
            file.display()
        );
        assert!(Command::new("sh").args(["-c", &write]).status().unwrap().success());
    }

    /// Copies the program into the sandbox. Another process does it, for the reason given in
    /// `script`.
    pub fn copy_program(&self, name: &str) {
        assert!(Command::new("cp").arg(program()).arg(self.path(name)).status().unwrap().success());
    }

    /// The program without the user's environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .current_dir(self.dir.path())
            .env_clear()
            .env("HOME", self.dir.path())
            .env("TERM", "xterm");
        command.envs(kind_of_services(args));
        command
    }

    /// The program with the default handling of SIGHUP, even if these tests run under `nohup`,
    /// which is inherited.
    pub fn command_that_hangs_up(&self, args: &[&str]) -> Command {
        let inner = self.command(args);
        let mut command = Command::new("env");
        command.current_dir(self.dir.path()).env_clear();
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.arg("--default-signal=HUP").arg(inner.get_program()).args(inner.get_args());
        command
    }

    /// Standard output, standard error and status in one text.
    pub fn run(&self, args: &[&str]) -> String {
        shown(&mut self.command(args))
    }

    /// The JSON document of a run that must end with `status`. Checked against docs/schema.
    pub fn json(&self, status: i32, args: &[&str]) -> Value {
        let output = self.command(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{stderr}");
        let document = serde_json::from_slice(&output.stdout).unwrap();
        schema::check(args, &document);
        document
    }

    /// What `ociseek doctor` reports about all platforms of an image, used by anyone or not.
    pub fn doctor(&self, image: &str) -> Value {
        let args = &["doctor", "--json", "--all-platforms", image];
        let output = self.command(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{stderr}");
        let document = serde_json::from_slice(&output.stdout).unwrap();
        schema::check(args, &document);
        document
    }

    /// All files below `name` with their content.
    pub fn files(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut dirs = vec![self.path(name)];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    dirs.push(entry.path());
                    continue;
                }
                match std::fs::read(entry.path()) {
                    // A temporary file that was renamed meanwhile.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    content => files.push((entry.path(), content.unwrap())),
                }
            }
        }
        files.sort();
        files
    }
}

/// What the services make, which have no default: version 1. Tests of other kinds have the option,
/// which wins.
pub fn kind_of_services(args: &[&str]) -> Option<(&'static str, &'static str)> {
    let is_service = args.iter().take(2).any(|arg| matches!(*arg, "backfill" | "hook"));
    let is_help = args.iter().any(|arg| matches!(*arg, "--help" | "-h"));
    (is_service && !is_help).then_some(("OCISEEK_KIND", "v1"))
}

/// The program under test: the build that `OCISEEK_SHIPPED` names, or the one that cargo made for
/// the tests.
pub fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let shipped = std::env::var_os("OCISEEK_SHIPPED")
            .map(|path| path.into_string().expect("a path in UTF-8"));
        // Test programs are in the folder `deps` beside it.
        let built = || Some(std::env::current_exe().ok()?.parent()?.with_file_name("ociseek"));
        shipped.unwrap_or_else(|| {
            built()
                .and_then(|path| path.into_os_string().into_string().ok())
                .expect("a path in UTF-8")
        })
    });
    &PROGRAM
}

pub fn shown(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| masked(std::str::from_utf8(bytes).unwrap());
    let status =
        output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
    format!(
        "{}--- stderr ---\n{}--- status {status} ---",
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// Masks times, speeds and the version of the program, which differ between runs.
pub fn masked(text: &str) -> String {
    let text = text.replace(concat!("ociseek v", env!("CARGO_PKG_VERSION")), "ociseek vX");
    let text = text.replace(concat!("ociseek ", env!("CARGO_PKG_VERSION")), "ociseek X");
    let mut masked = String::new();
    for line in text.lines().map(str::trim_end) {
        let mut line = line.to_owned();
        if let Some(at) = line.find("\"seconds\": ").filter(|_| !line.contains("null")) {
            line.replace_range(at.., "\"seconds\": …");
        }
        // The distance from the previous column depends on the speeds above and below.
        for remark in ["from the cache", "duplicate of another layer"] {
            if let Some(before) = line.strip_suffix(remark) {
                line = format!("{}  {remark}", before.trim_end());
            }
        }
        if let Some(at) = line
            .find(", in ")
            .filter(|_| line.ends_with(" ms") || line.ends_with(" s") || line.ends_with("/s"))
        {
            line.replace_range(at.., ", in …");
        }
        if let Some(line_without_speed) = line.strip_suffix(" MB/s") {
            line = line_without_speed
                .trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
                .trim_end()
                .to_owned();
        }
        masked.push_str(&line);
        masked.push('\n');
    }
    masked
}

/// A tar of `files` files of `size` bytes of text that compresses somewhat. Each `seed` gives
/// another one.
pub fn tar(seed: u64, files: usize, size: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut letters = random::letters(seed);
    for number in 0..files {
        let content: Vec<u8> = letters.by_ref().take(size).collect();
        let mut header = tar::Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        builder.append_data(&mut header, format!("dir{seed}/file{number}"), &content[..]).unwrap();
    }
    builder.into_inner().unwrap()
}

/// A gzip of stored blocks: its bytes do not depend on the compressor that the tests are built
/// with, so snapshots can contain digests.
pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let blocks: Vec<&[u8]> = content.chunks(8000).collect();
    for (number, block) in blocks.iter().enumerate() {
        let length = block.len() as u16;
        gzip.push(u8::from(number + 1 == blocks.len()));
        gzip.extend(length.to_le_bytes());
        gzip.extend((!length).to_le_bytes());
        gzip.extend(*block);
    }
    gzip.extend(crc32fast::hash(content).to_le_bytes());
    gzip.extend((content.len() as u32).to_le_bytes());
    gzip
}

/// An OCI image layout under construction.
pub struct Layout {
    dir: PathBuf,
    index: Vec<Value>,
}

impl Layout {
    pub fn new(dir: &Path) -> Layout {
        std::fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Layout { dir: dir.to_owned(), index: Vec::new() }
    }

    pub fn blob(&self, media_type: &str, content: &[u8]) -> Value {
        let digest = Digest::sha256(content);
        std::fs::write(self.dir.join("blobs/sha256").join(digest.hex()), content).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": content.len()})
    }

    /// Adds the manifest of an image for `linux/{architecture}`.
    pub fn image(&self, architecture: &str, layers: &[Value]) -> Value {
        let config = json!({"os": "linux", "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": []}});
        let config = self.blob(OCI_CONFIG, config.to_string().as_bytes());
        let manifest = image_manifest(&config, &layers);
        self.blob(OCI_MANIFEST, manifest.to_string().as_bytes())
    }

    pub fn image_index(&self, manifests: &[Value]) -> Value {
        let index = image_index(&manifests);
        self.blob(OCI_INDEX, index.to_string().as_bytes())
    }

    /// Adds a manifest to index.json.
    pub fn tag(&mut self, mut descriptor: Value, tag: &str) {
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        self.index.push(descriptor);
        let index = image_index(&self.index);
        std::fs::write(self.dir.join("index.json"), index.to_string()).unwrap();
    }
}

/// The descriptor of a manifest in an image index.
pub fn for_platform(mut descriptor: Value, architecture: &str) -> Value {
    descriptor["platform"] = json!({"os": "linux", "architecture": architecture});
    descriptor
}

/// An image for one platform in the layout `dir` under the tag `v1`, with a gzip layer, a plain
/// one, a zstd one and a tiny one.
pub fn small_image(dir: &Path) {
    let mut layout = Layout::new(dir);
    let layers = [
        layout.blob(GZIP, &gzip(&tar(1, 4, 50_000))),
        layout.blob(PLAIN, &tar(2, 2, 30_000)),
        layout.blob(ZSTD, b"\x28\xb5\x2f\xfd, which nobody reads"),
        layout.blob(GZIP, &gzip(&tar(3, 1, 10))),
    ];
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
}

/// Two platforms that share a layer, in the layout `dir` under the tag `v1`.
pub fn two_platforms(dir: &Path) {
    let mut layout = Layout::new(dir);
    let shared = layout.blob(GZIP, &gzip(&tar(1, 4, 50_000)));
    let manifests = ["amd64", "arm64"].map(|architecture| {
        let own = layout.blob(
            GZIP,
            &gzip(&tar(architecture.len() as u64 + u64::from(architecture == "arm64"), 2, 20_000)),
        );
        for_platform(layout.image(architecture, &[shared.clone(), own]), architecture)
    });
    let index = layout.image_index(&manifests);
    layout.tag(index, "v1");
}

/// Options that make the output the same in every version: a tool identifier, small sizes, and no
/// cache.
pub const SMALL: [&str; 5] = [
    "--build-tool-identifier=test",
    "--span-size=16KiB",
    "--min-layer-size=1KiB",
    "--no-cache",
    "--jobs=2",
];

/// `index`, [`SMALL`], and `args`.
pub fn index<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["index"].into_iter().chain(SMALL).chain(args.iter().copied()).collect()
}

/// Converts the image `oci:img` like soci, to a SOCI-enabled image in the layout `enabled`.
pub fn enabled(sandbox: &Sandbox) {
    let blobs = |dir: &str| sandbox.path(dir).join("blobs/sha256");
    let read = |digest: &str| std::fs::read(blobs("img").join(&digest["sha256:".len()..])).unwrap();
    let mut layout = Layout::new(&sandbox.path("enabled"));
    for file in std::fs::read_dir(blobs("img")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), blobs("enabled").join(file.file_name())).unwrap();
    }
    let inspected = sandbox.doctor("oci:img:v1");
    let of = |value: &Value| value["digest"].as_str().unwrap().to_owned();
    let first = &inspected["manifests"][0];
    let v1 = String::from_utf8(read(&of(&first["indexes"][0]))).unwrap();
    let (before, rest) = v1.split_once(",\"subject\":{").unwrap();
    let v2 = format!("{before}{}", rest.split_once('}').unwrap().1)
        .replace("soci.index.v1", "soci.index.v2");
    let mut v2 = layout.blob(OCI_MANIFEST, v2.as_bytes());
    let mut manifest: Value = serde_json::from_slice(&read(&of(&first["manifest"]))).unwrap();
    manifest["annotations"] = json!({"com.amazon.soci.index-digest": v2["digest"]});
    let manifest = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
    v2["artifactType"] = json!("application/vnd.amazon.soci.index.v2+json");
    v2["annotations"] = json!({"com.amazon.soci.image-manifest-digest": manifest["digest"]});
    let manifests = [for_platform(manifest, "amd64"), for_platform(v2, "amd64")];
    let index = layout.image_index(&manifests);
    layout.tag(index, "v1");
}
