//! Images that are designed to use up memory: each command fails with an error that names what is
//! too large, and stays below 512 MiB.

use crate::support::sandbox;
use crate::support::tarball;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::faulty::{Faulty, Nature};
use crate::support::memory_of;
use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, PLAIN, Sandbox};
use flate2::Compression;
use flate2::write::GzEncoder;
use ociseek::digest::Digest;
use ociseek::image::Descriptor;
use ociseek::image::soci::{SociIndex, ZtocRef};
use ociseek::layer::{LayerIndexer, LayerOptions, Outcome};
use serde_json::{Value, json};

pub const MIB: u64 = 1 << 20;
/// The memory limit of every command for any input.
pub const PROMISED: u64 = 512 * MIB;
const SOCI: &str = "application/vnd.amazon.soci.index.v1+json";

/// The end of a run of the program: its exit code, its output, and its peak memory in bytes.
pub struct Ended {
    pub code: Option<i32>,
    pub text: String,
    pub peak: u64,
}

/// Runs the program. The address space of its process is limited to little more than the memory
/// limit.
pub fn run(sandbox: &Sandbox, args: &[&str]) -> Ended {
    let mut command = Command::new("prlimit");
    command.arg("--as=2147483648").arg(env!("CARGO_BIN_EXE_ociseek")).args(args);
    command.current_dir(sandbox.dir.path()).env_clear().env("HOME", sandbox.dir.path());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let (out, err) = (sandbox.path("out"), sandbox.path("err"));
    let file = |path| std::fs::File::create(path).unwrap();
    command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err));
    let mut child = command.spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        // Before that, the process is a copy of this one.
        let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default();
        if name == "ociseek\n" {
            peak = memory_of(child.id(), "VmHWM").unwrap_or_default().max(peak);
        }
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = [out, err].map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()).concat();
    Ended { code: status.code(), text, peak }
}

/// Checks that it failed because of the memory limit, and names `what`.
fn assert_over_budget(ended: &Ended, what: &str) {
    let Ended { code, text, peak } = ended;
    assert_eq!(*code, Some(1), "{text}");
    assert!(text.contains(what) && text.contains("bytes allowed for the image"), "{text}");
    assert!(text.contains("--max-memory"), "{text}");
    assert!(*peak > 0 && *peak < PROMISED, "{} MiB", peak / MIB);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_are_limited_together() {
    let registry = Faulty::honest(Nature::default()).await;
    let layer = descriptor(GZIP, registry.add_blob("x"), 1);
    let platforms: Vec<Value> = (0..20)
        .map(|n| {
            let mut platform = manifest(&registry, n, &vec![layer.clone(); 4000]);
            platform["platform"] = json!({"os": "linux", "architecture": format!("a{n}")});
            platform
        })
        .collect();
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": platforms});
    registry.add_manifest("many", OCI_INDEX, index.to_string());
    let image = format!("{}/a/b:many", registry.host());
    let sandbox = Sandbox::new();
    for command in ["index", "verify", "doctor"] {
        assert_over_budget(&run(&sandbox, &[command, "--max-memory=48MiB", &image]), "manifest sha256:");
    }
    let more = run(&sandbox, &["index", "--quiet", &image]);
    assert_eq!(more.code, Some(0), "{}", more.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_referrers_is_limited() {
    // Each page has a referrer with an annotation of 3 MiB, and a link to another page.
    let filler = "x".repeat(3 << 20);
    let registry = Faulty::start(Nature::default(), move |seen, _| {
        let (_, query) = seen.path.split_once("/referrers/")?;
        let page = query.rsplit_once("page=").map_or(0, |(_, page)| page.parse().unwrap());
        let mut referrer = descriptor(OCI_MANIFEST, Digest::sha256(format!("{page}").as_bytes()), 100);
        referrer["artifactType"] = SOCI.into();
        referrer["annotations"] = json!({"a": filler});
        let body = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [referrer]}).to_string();
        let path = seen.path.split('?').next().unwrap();
        let answer = axum::http::Response::builder().header("content-type", OCI_INDEX);
        let answer = answer.header("link", format!("<{path}?page={}>; rel=\"next\"", page + 1));
        Some(answer.body(body.into()).unwrap())
    })
    .await;
    let layer = descriptor(GZIP, registry.add_blob("x"), 1);
    let image = manifest(&registry, 0, &[layer]);
    let image = format!("{}/a/b@{}", registry.host(), image["digest"].as_str().unwrap());
    let sandbox = Sandbox::new();
    for args in [["index", &image], ["verify", &image]] {
        assert_over_budget(&run(&sandbox, &args), "the list of referrers of sha256:");
    }
}

/// Entries after the 32nd index are neither read nor replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_so_many_indexes_are_read() {
    let registry = Faulty::honest(Nature::default()).await;
    let layer = sandbox::gzip(&sandbox::tar(1, 1, 1000));
    let layer = descriptor(GZIP, registry.add_blob(layer.clone()), layer.len());
    let image = manifest(&registry, 0, &[layer]);
    let listed: Vec<Value> = (1..=40)
        .map(|n| {
            let mut other = manifest(&registry, n, &[]);
            other["artifactType"] = SOCI.into();
            other
        })
        .collect();
    let digest = image["digest"].as_str().unwrap();
    let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed});
    registry.add_manifest(&digest.replace(':', "-"), OCI_INDEX, list.to_string());
    let image = format!("{}/a/b@{digest}", registry.host());
    let sandbox = Sandbox::new();
    let run = sandbox.json(0, &sandbox::index(&["--format=json", "--existing=replace", &image]));
    let read = |n: usize| registry.saw("GET", listed[n]["digest"].as_str().unwrap()).len();
    assert_eq!((read(0), read(31), read(32), read(39)), (1, 1, 0, 0));
    assert_eq!(registry.saw("DELETE", "").len(), 0);
    let others = run["images"][0]["manifests"][0]["others"].as_array().unwrap();
    let unread = others.iter().filter(|other| other["unusable"].as_str().unwrap().contains("was not read")).count();
    assert_eq!((others.len(), unread), (40, 8));
}

/// An image with the same layer, a plain tar, `times` times, and an index with `ztoc` for it.
/// Returns its name.
fn with_ztoc(registry: &Faulty, layer: &[u8], times: usize, ztoc: &[u8]) -> String {
    let layer_descriptor = descriptor(PLAIN, registry.add_blob(layer.to_vec()), layer.len());
    let image = manifest(registry, 0, &vec![layer_descriptor; times]);
    let subject: Descriptor = serde_json::from_value(image.clone()).unwrap();
    let reference = ZtocRef {
        ztoc: registry.add_blob(ztoc.to_vec()),
        size: ztoc.len() as u64,
        layer: Digest::sha256(layer),
        layer_media_type: PLAIN.into(),
        span_size: 512,
    };
    registry.add_blob("{}");
    let index = SociIndex {
        layers: vec![reference; times],
        subject: Some(subject),
        build_tool_identifier: "test".into(),
        prefetch: Vec::new(),
    }
    .encode();
    registry.add_manifest(&index.descriptor.digest.to_string(), OCI_MANIFEST, index.bytes);
    let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [index.descriptor]});
    let digest = image["digest"].as_str().unwrap();
    registry.add_manifest(&digest.replace(':', "-"), OCI_INDEX, list.to_string());
    format!("{}/a/b@{digest}", registry.host())
}

/// A ztoc can belong to any number of equal layers. It is fetched, decoded and kept once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_that_is_there_200_times_is_kept_once() {
    let layer = sandbox::tar(1, 1, 8 << 20);
    let options = LayerOptions { span_size: 512, build_tool_identifier: "test".into(), fine: false };
    let mut indexer = LayerIndexer::new(options, None);
    indexer.push(&layer).unwrap();
    let Outcome::Ztoc(ztoc) = indexer.finish().unwrap().outcome else { panic!("it has a ztoc") };
    let registry = Faulty::honest(Nature::default()).await;
    let image = with_ztoc(&registry, &layer, 200, &ztoc.bytes);
    let sandbox = Sandbox::new();
    // A budget that it does not fit into even once.
    for command in ["ls", "verify"] {
        let ended = run(&sandbox, &[command, "--max-memory=1MiB", &image]);
        assert_over_budget(&ended, &ztoc.digest.to_string());
    }
    let before = registry.saw("GET", &ztoc.digest.to_string()).len();
    let ended = run(&sandbox, &["ls", &image]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(!ended.text.contains("without its ztoc"), "{}", ended.text);
    assert_eq!(registry.saw("GET", &ztoc.digest.to_string()).len(), before + 1);
    assert!(ended.peak < 96 * MIB, "{} MiB", ended.peak / MIB);
}

/// A flatbuffer that is written by hand, front to back.
#[derive(Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    /// A table of `size` bytes after its vtable. Returns its position.
    fn table(&mut self, fields: &[u16], size: usize) -> usize {
        let vtable = self.0.len();
        for word in [4 + 2 * fields.len() as u16, size as u16].iter().chain(fields) {
            self.0.extend(word.to_le_bytes());
        }
        let at = self.0.len();
        self.0.resize(at + size, 0);
        self.set(at, (at - vtable) as u32);
        at
    }

    fn set(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Sets the offset at `at` to the end, and appends a vector.
    fn vector(&mut self, at: usize, bytes: &[u8]) {
        self.set(at, (self.0.len() - at) as u32);
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
    }
}

/// A ztoc with `spans` spans that share a digest, which takes 4 bytes for each of them.
fn one_digest_for_all(spans: u32) -> Vec<u8> {
    let mut inner = Buffer(vec![0; 4]);
    let table = inner.table(&[4, 8, 16], 24);
    inner.set(0, table as u32);
    inner.set(table + 4, 2);
    inner.set(table + 8, 1);
    inner.set(table + 16, spans);

    let mut buffer = Buffer(vec![0; 4]);
    let root = buffer.table(&[4, 8, 16, 24, 12, 32], 36);
    buffer.set(0, root as u32);
    buffer.vector(root + 4, b"0.9");
    buffer.vector(root + 8, b"test");
    buffer.set(root + 16, spans);
    buffer.set(root + 24, spans);
    let files = buffer.table(&[0], 4);
    buffer.set(root + 12, (files - (root + 12)) as u32);
    let spans_table = buffer.table(&[4, 8, 12, 16], 20);
    buffer.set(root + 32, (spans_table - (root + 32)) as u32);
    buffer.0[spans_table + 4] = 2;
    buffer.set(spans_table + 8, spans - 1);
    buffer.vector(spans_table + 16, &inner.0);
    let at = spans_table + 12;
    buffer.set(at, (buffer.0.len() - at) as u32);
    buffer.0.extend(spans.to_le_bytes());
    for span in 0..spans {
        buffer.0.extend((4 * (spans - span)).to_le_bytes());
    }
    let digest = Digest::sha256(b"").to_string();
    buffer.0.extend((digest.len() as u32).to_le_bytes());
    buffer.0.extend(digest.as_bytes());
    buffer.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn span_digests_are_not_used_twice() {
    assert_eq!(ociseek::ztoc::decode(&one_digest_for_all(2)).map(|ztoc| ztoc.span_digests.len()), Ok(2));
    let ztoc = one_digest_for_all(2 << 20);
    assert!(ociseek::ztoc::decode(&ztoc).unwrap_err().to_string().contains("reuses its parts"));
    let registry = Faulty::honest(Nature::default()).await;
    let image = with_ztoc(&registry, &sandbox::tar(1, 1, 1000), 1, &ztoc);
    let ended = run(&Sandbox::new(), &["ls", &image]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.text.contains("reuses its parts"), "{}", ended.text);
    assert!(ended.peak < 96 * MIB, "{} MiB", ended.peak / MIB);
}

/// A gzip layer with `entries` entries of 60,000 PAX records each: in memory some ten times as
/// large as in the tar, and a thousand times as large as the blob.
fn pax_layer(entries: usize, n: u8) -> Vec<u8> {
    let keys: Vec<String> = (0..60_000).map(|key| format!("{key:05}")).collect();
    let records: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b"v"[..])).collect();
    let entry = [tarball::pax(b'x', &records), tarball::file("a", &[n])].concat();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&[entry.repeat(entries), tarball::end()].concat()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_entries_of_a_layer_are_limited() {
    let registry = Faulty::honest(Nature::default()).await;
    let image = |n: u8, layers: Vec<Vec<u8>>| {
        let layers: Vec<Value> =
            layers.into_iter().map(|layer| descriptor(GZIP, registry.add_blob(layer.clone()), layer.len())).collect();
        let image = manifest(&registry, n.into(), &layers);
        format!("{}/a/b@{}", registry.host(), image["digest"].as_str().unwrap())
    };
    let sandbox = Sandbox::new();
    let large = pax_layer(16, 0);
    let digest = Digest::sha256(&large).to_string();
    std::fs::write(sandbox.path("large"), &large).unwrap();
    let ended = run(&sandbox, &["ztoc", "create", "--max-memory=64MiB", "large", "--output", "ztoc"]);
    assert_over_budget(&ended, "large: the layer does not fit into memory");
    let large = image(0, vec![large]);
    for args in [&["index", "--min-layer-size=0"][..], &["ls"]] {
        let ended = run(&sandbox, &[args, &["--no-cache", "--max-memory=64MiB", &large]].concat());
        assert_over_budget(&ended, &format!("layer {digest} does not fit into memory"));
        assert!(ended.peak < 160 * MIB, "{} MiB", ended.peak / MIB);
    }
    // Two layers that fit one after the other, but not together.
    let two = image(1, vec![pax_layer(5, 1), pax_layer(5, 2)]);
    let args = ["index", "--min-layer-size=0", "--no-cache", "--jobs=2", "--max-memory=80MiB", &two];
    let ended = run(&sandbox, &args);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.peak < 160 * MIB, "{} MiB", ended.peak / MIB);
}
