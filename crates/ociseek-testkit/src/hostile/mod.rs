//! Images that were made to use up memory, and how commands are run on them: with little more
//! address space than the memory limit, so a single huge allocation ends the process and is
//! noticed.

mod documents;
pub mod ztocs;

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use ociseek_format::digest::Digest;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::blobs::SOCI;
use super::child_process::ChildProcess;
use super::faulty::Faulty;
use super::image::{image_index, image_manifest};
use super::memory_of;
use super::random::letters;
use super::sandbox::{
    GZIP, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Sandbox, ZSTD, gzip, kind_of_services, program, tar,
};
use super::servers::tool;
use super::tarball::{Block, end, entry, file, pax};

pub const MIB: u64 = 1 << 20;
/// The memory limit of every command for any input.
pub const PROMISED: u64 = 512 * MIB;
/// Much longer than any command takes.
const HANGS: Duration = Duration::from_secs(240);

/// The end of a run of the program: its exit code, its output, and its peak memory in bytes, which
/// is 0 if it ended before anybody looked.
pub struct Ended {
    pub code: Option<i32>,
    pub text: String,
    pub peak: u64,
}

impl Ended {
    /// What was wrong: it crashed, has no exit status of its own, or took more memory than it may.
    pub fn fault(&self) -> Option<String> {
        let is_over = self.text.contains("panicked") || self.text.contains("overflowed its stack");
        let is_wrong = !matches!(self.code, Some(0 | 1 | 3)) || self.peak >= PROMISED;
        let text: String = self.text.chars().take(500).collect();
        (is_over || is_wrong).then(|| format!("{:?}, {} MiB: {text}", self.code, self.peak / MIB))
    }
}

/// The program with 2 GiB of address space.
pub fn limited(sandbox: &Sandbox, args: &[&str]) -> Command {
    // By its path: to search it in another PATH, this process would be copied with all its images.
    let mut command = Command::new(tool("prlimit").expect("util-linux is installed"));
    command.arg("--as=2147483648").arg(program()).args(args);
    command.current_dir(sandbox.dir.path()).env_clear().env("HOME", sandbox.dir.path());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(kind_of_services(args));
    command
}

/// Runs the program, limited.
pub fn run(sandbox: &Sandbox, args: &[&str]) -> Ended {
    run_until(sandbox, args, |_| false)
}

/// Runs the program, limited. `is_done` looks at the file of its standard error from time to time;
/// once it returns true, the program is asked to end.
pub fn run_until(
    sandbox: &Sandbox,
    args: &[&str],
    mut is_done: impl FnMut(&Path) -> bool,
) -> Ended {
    let out = sandbox.path("out");
    let err = sandbox.path("err");
    let file = |path| File::create(path).unwrap();
    let mut command = limited(sandbox, args);
    let mut child =
        ChildProcess::spawn(command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err)));
    let mut peak = 0;
    let mut is_asked = false;
    let begun = Instant::now();
    let status = loop {
        // Before that, the process is a copy of this one.
        let name =
            std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default();
        if name == "ociseek\n" {
            peak = memory_of(child.id(), "VmHWM").unwrap_or_default().max(peak);
        }
        if let Some(status) = child.ended() {
            break status;
        }
        if !is_asked && is_done(&err) {
            is_asked = true;
            child.signal(Signal::TERM);
        }
        assert!(begun.elapsed() < HANGS, "{args:?} does not end");
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = [out, err].map(|path| {
        let mut text = Vec::new();
        File::open(path).unwrap().take(MIB).read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    });
    Ended { code: status.code(), text: text.concat(), peak }
}

pub fn descriptor(media_type: &str, digest: Digest, size: usize) -> Value {
    json!({"mediaType": media_type, "digest": digest, "size": size})
}

/// A manifest without a tag. Each `n` gives another one.
pub fn manifest(registry: &Faulty, n: usize, layers: &[Value]) -> Value {
    let diff_ids = vec![Digest::sha256(b"any"); layers.len()];
    let rootfs = json!({"type": "layers", "diff_ids": diff_ids});
    let config = json!({"os": "linux", "architecture": "amd64", "rootfs": rootfs, "n": n});
    let config = config.to_string();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": layers,
        "config": descriptor(OCI_CONFIG, registry.add_blob(config.clone()), config.len()),
    });
    let manifest = manifest.to_string();
    let digest = Digest::sha256(manifest.as_bytes());
    registry.add_manifest(&digest.to_string(), OCI_MANIFEST, manifest.clone());
    descriptor(OCI_MANIFEST, digest, manifest.len())
}

/// The name of an image without a tag.
pub fn name(registry: &Faulty, image: &Value) -> String {
    format!("{}/a/b@{}", registry.host(), image["digest"].as_str().unwrap())
}

/// Lists these manifests as the referrers of an image, by the tag schema.
pub fn list(registry: &Faulty, image: &Value, referrers: &[Value]) {
    let list = image_index(&referrers);
    registry.add_manifest(
        &image["digest"].as_str().unwrap().replace(':', "-"),
        OCI_INDEX,
        list.to_string(),
    );
}

/// An image in a registry.
pub struct HostileImage {
    pub what: &'static str,
    pub name: String,
    /// Whether an index makes it hostile, which must be read before it is replaced.
    pub has_index: bool,
}

/// All images.
pub fn images(registry: &Faulty) -> Vec<HostileImage> {
    let of = |has_index| move |(what, name)| HostileImage { what, name, has_index };
    let layers = layers(registry);
    let ztocs = ztocs::images(registry);
    let documents = documents::images(registry);
    layers
        .into_iter()
        .map(of(false))
        .chain(ztocs.into_iter().chain(documents).map(of(true)))
        .collect()
}

fn compressed(pieces: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    pieces.for_each(|piece| encoder.write_all(&piece).unwrap());
    encoder.finish().unwrap()
}

/// A tar with one file of zeros, in pieces.
fn zeros(mib: u64) -> impl Iterator<Item = Vec<u8>> {
    let header =
        Block { name: b"zeros".to_vec(), size: (mib << 20) as i64, ..Block::default() }.bytes();
    std::iter::once(header).chain((0..mib).map(|_| vec![0; 1 << 20])).chain([end()])
}

fn zstd(pieces: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    pieces.for_each(|piece| encoder.write_all(&piece).unwrap());
    encoder.finish().unwrap()
}

/// A layer that repeats bytes after 120 MiB of zeros, several times.
fn far_references() -> Vec<u8> {
    let noise: Vec<u8> = letters(5).take(1 << 20).collect();
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.long_distance_matching(true).unwrap();
    let mib = 3 * 121 + 1;
    let header = Block { name: b"l0".to_vec(), size: mib << 20, ..Block::default() };
    encoder.write_all(&header.bytes()).unwrap();
    for number in 0..mib {
        encoder.write_all(if number % 121 == 0 { &noise } else { &[0; 1 << 20] }).unwrap();
    }
    encoder.write_all(&end()).unwrap();
    encoder.finish().unwrap()
}

/// The descriptor of a layer in the registry.
fn layer(registry: &Faulty, kind: &str, blob: Vec<u8>) -> Value {
    let size = blob.len();
    descriptor(kind, registry.add_blob(blob), size)
}

/// An image with these layers. Returns its name.
fn image(registry: &Faulty, n: usize, layers: &[(&str, Vec<u8>)]) -> String {
    let layers: Vec<Value> =
        layers.iter().map(|(kind, blob)| layer(registry, kind, blob.clone())).collect();
    name(registry, &manifest(registry, n, &layers))
}

/// A manifest with this text, under a tag.
fn document(registry: &Faulty, tag: &str, kind: &str, text: impl Into<String>) -> String {
    registry.add_manifest(tag, kind, text.into());
    format!("{}/a/b:{tag}", registry.host())
}

/// Images whose layers, manifests or lists are hostile, by their fault.
fn layers(registry: &Faulty) -> Vec<(&'static str, String)> {
    let small = || gzip(&tar(1, 1, 1000));
    let many_names = (0..100_000).map(|n| entry(b'0', &format!("dir/{n}"), "")).chain([end()]);
    let many_members = || (0..50_000).flat_map(|_| gzip(b"")).collect::<Vec<u8>>();
    let xattr = vec![b'x'; 60_000];
    let attributes = (0..500).flat_map(|n| {
        let records = [("SCHILY.xattr.user.k", &xattr[..])];
        [pax(b'x', &records), file(&format!("f{n}"), b"")]
    });
    let long_names = (0..80).flat_map(|n| {
        let path = format!("{}/{n}", "d/".repeat(500_000));
        [pax(b'x', &[("path", path.as_bytes())]), file("f", b"")]
    });
    let chain =
        (0..5000).map(|n| entry(b'2', &format!("l{n}"), &format!("l{}", n + 1))).chain([end()]);
    let skipped = {
        let frame = [&b"\x50\x2a\x4d\x18"[..], &0_u32.to_le_bytes()].concat();
        frame.repeat(500_000)
    };
    let tiny = [file("f", &letters(7).take(200_000).collect::<Vec<u8>>()), end()].concat();
    // A frame header with a window of 2 MiB, and raw blocks (RFC 8878 section 3.1.1.2).
    let blocks = {
        let last = tiny.len() - 1;
        let block = |(n, byte): (usize, &u8)| [u8::from(n == last) | 1 << 3, 0, 0, *byte];
        let frame = b"\x28\xb5\x2f\xfd\x00\x58".iter().copied();
        frame.chain(tiny.iter().enumerate().flat_map(block)).collect::<Vec<u8>>()
    };
    let frames = tiny.chunks(4).flat_map(|four| zstd::encode_all(four, 1).unwrap()).collect();
    // A frame that requests a window of 2 GiB.
    let window = b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00".to_vec();
    let own_index = {
        let empty = image_index(&json!([])).to_string();
        let mut digest = registry.add_manifest("loop", OCI_INDEX, empty);
        for _ in 0..40 {
            let one = descriptor(OCI_INDEX, digest, 100);
            let text = image_index(&vec![one; 500]).to_string();
            digest = registry.add_manifest("loop", OCI_INDEX, text);
        }
        format!("{}/a/b:loop", registry.host())
    };
    let wide_config = {
        let labels: serde_json::Map<String, Value> =
            (0..100_000).map(|n| (format!("k{n}"), json!("v"))).collect();
        let config = json!({
            "os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [Digest::sha256(b"x")]},
            "config": {"Labels": labels},
        })
        .to_string();
        let layer = small();
        let text = image_manifest(
            &descriptor(OCI_CONFIG, registry.add_blob(config.clone()), config.len()),
            &[descriptor(GZIP, registry.add_blob(layer.clone()), layer.len())],
        );
        document(registry, "labels", OCI_MANIFEST, text.to_string())
    };
    let listed = {
        let image = manifest(registry, 90, &[layer(registry, GZIP, small())]);
        let entry = |n: usize| {
            let mut entry = descriptor(OCI_MANIFEST, Digest::sha256(&n.to_le_bytes()), 100);
            entry["artifactType"] = SOCI.into();
            entry
        };
        list(registry, &image, &(0..15_000).map(entry).collect::<Vec<Value>>());
        name(registry, &image)
    };
    vec![
        ("512 MiB of zeros in gzip", image(registry, 1, &[(GZIP, compressed(zeros(512)))])),
        ("1 GiB of zeros in zstd", image(registry, 2, &[(ZSTD, zstd(zeros(1024)))])),
        ("100,000 names in a folder", image(registry, 3, &[(GZIP, compressed(many_names))])),
        (
            "50,000 empty gzip members",
            image(registry, 4, &[(GZIP, [many_members(), small()].concat())]),
        ),
        ("500,000 skippable zstd frames", image(registry, 5, &[(ZSTD, skipped)])),
        ("200,000 zstd blocks of a byte", image(registry, 14, &[(ZSTD, blocks)])),
        ("50,000 zstd frames of four bytes", image(registry, 15, &[(ZSTD, frames)])),
        ("a zstd window of 2 GiB", image(registry, 6, &[(ZSTD, window)])),
        ("spans of zstd that refer to 120 MiB", image(registry, 13, &[(ZSTD, far_references())])),
        (
            "30 MB of attributes",
            image(registry, 7, &[(GZIP, compressed(attributes.chain([end()])))]),
        ),
        ("80 names of 1 MB", image(registry, 8, &[(GZIP, compressed(long_names.chain([end()])))])),
        ("a chain of 5,000 links", image(registry, 9, &[(GZIP, compressed(chain))])),
        ("9,000 layers that are one", image(registry, 10, &vec![(GZIP, small()); 9000])),
        (
            "a manifest of 2,000,000 brackets",
            document(registry, "deep", OCI_MANIFEST, "[".repeat(2_000_000)),
        ),
        ("a manifest of 300,000 keys", {
            let keys: String = (0..300_000).map(|n| format!("\"{n}\":0,")).collect();
            document(registry, "wide", OCI_MANIFEST, format!("{{{keys}\"schemaVersion\":2}}"))
        }),
        ("indexes in indexes, 500 to the 40th", own_index),
        ("100,000 labels", wide_config),
        ("15,000 listed indexes", listed),
    ]
}
