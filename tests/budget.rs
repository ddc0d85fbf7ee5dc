//! Images that were made to use up memory: each command gives up on them with an error that names what is too large, and stays
//! below 512 MiB while it does.

#[path = "support/faulty.rs"]
mod faulty;
#[path = "cli/support.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use faulty::{Faulty, INDEX, MANIFEST, Nature};
use ociseek::digest::Digest;
use serde_json::{Value, json};
use support::{GZIP, OCI_CONFIG, Sandbox};

const MIB: u64 = 1 << 20;
/// What is promised of every command, whatever it is given.
const PROMISED: u64 = 512 * MIB;
const SOCI: &str = "application/vnd.amazon.soci.index.v1+json";

/// How a run of the program ended: its exit code, what it wrote, and the most memory that it had, in bytes.
struct Ended {
    code: Option<i32>,
    text: String,
    peak: u64,
}

/// Runs it to its end. No process of these tests may have much more address space than is promised of its memory.
fn run(sandbox: &Sandbox, args: &[&str]) -> Ended {
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
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let high =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak = high.map_or(0, |kib: u64| kib << 10).max(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = [out, err].map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()).concat();
    Ended { code: status.code(), text, peak }
}

/// It gave up for want of memory, and says `what` it was that took so much.
fn assert_over_budget(ended: &Ended, what: &str) {
    let Ended { code, text, peak } = ended;
    assert_eq!(*code, Some(1), "{text}");
    assert!(text.contains(what) && text.contains("of the image's "), "{text}");
    assert!(text.contains("--max-memory"), "{text}");
    assert!(*peak > 0 && *peak < PROMISED, "{} MiB", peak / MIB);
}

fn descriptor(media_type: &str, digest: Digest, size: usize) -> Value {
    json!({"mediaType": media_type, "digest": digest, "size": size})
}

/// A manifest that is there under no tag; `n` makes it another.
fn manifest(registry: &Faulty, n: usize, layers: &[Value]) -> Value {
    let config = json!({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": []}, "n": n});
    let config = config.to_string();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "layers": layers,
        "config": descriptor(OCI_CONFIG, registry.add_blob(config.clone()), config.len()),
    });
    let manifest = manifest.to_string();
    let digest = Digest::sha256(manifest.as_bytes());
    registry.add_manifest(&digest.to_string(), MANIFEST, manifest.clone());
    descriptor(MANIFEST, digest, manifest.len())
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
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": platforms});
    registry.add_manifest("many", INDEX, index.to_string());
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
    // Each page has one referrer, with an annotation of 3 MiB, and leads to another page.
    let filler = "x".repeat(3 << 20);
    let registry = Faulty::start(Nature::default(), move |seen, _| {
        let (_, query) = seen.path.split_once("/referrers/")?;
        let page = query.rsplit_once("page=").map_or(0, |(_, page)| page.parse().unwrap());
        let mut referrer = descriptor(MANIFEST, Digest::sha256(format!("{page}").as_bytes()), 100);
        referrer["artifactType"] = SOCI.into();
        referrer["annotations"] = json!({"a": filler});
        let body = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [referrer]}).to_string();
        let path = seen.path.split('?').next().unwrap();
        let answer = axum::http::Response::builder().header("content-type", INDEX);
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

/// What is listed beyond the 32nd index is not read, nor replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_so_many_indexes_are_read() {
    let registry = Faulty::honest(Nature::default()).await;
    let layer = support::gzip(&support::tar(1, 1, 1000));
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
    let list = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": listed});
    registry.add_manifest(&digest.replace(':', "-"), INDEX, list.to_string());
    let image = format!("{}/a/b@{digest}", registry.host());
    let sandbox = Sandbox::new();
    let run = sandbox.json(0, &support::index(&["--format=json", "--existing=replace", &image]));
    let read = |n: usize| registry.saw("GET", listed[n]["digest"].as_str().unwrap()).len();
    assert_eq!((read(0), read(31), read(32), read(39)), (1, 1, 0, 0));
    assert_eq!(registry.saw("DELETE", "").len(), 0);
    let others = run["images"][0]["manifests"][0]["others"].as_array().unwrap();
    let unread = others.iter().filter(|other| other["unusable"].as_str().unwrap().contains("was not read")).count();
    assert_eq!((others.len(), unread), (40, 8));
}
