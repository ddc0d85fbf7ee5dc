//! Registries that fail under a running mount.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use super::bytes;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::image::Image;
use ociseek_testkit::mounts::{self, MountProcess, can_mount, mounts_below, packed, wait_until};
use ociseek_testkit::sandbox::{self, Sandbox};
use ociseek_testkit::servers::free_port;
use rustix::process::Signal;
use serde_json::json;

const HONEST: u8 = 0;
const TAMPERED: u8 = 1;
const SILENT: u8 = 2;
const BROKEN: u8 = 3;

/// An image with a file of a million bytes.
fn image(sandbox: &Sandbox) -> Image {
    std::fs::create_dir(sandbox.path("source")).unwrap();
    std::fs::write(sandbox.path("source/file"), bytes(3, 1_000_000)).unwrap();
    packed_image(sandbox)
}

/// An image of what is in `source`.
fn packed_image(sandbox: &Sandbox) -> Image {
    let tar = packed(&sandbox.path("source"));
    let layer = mounts::compressed(&tar);
    let config = serde_json::from_slice(&mounts::config(&[tar], &json!({}))).unwrap();
    Image::new(&config, [(sandbox::GZIP, layer)])
}

/// A registry with this image as `a/b:v1`, whose behaviour depends on `mood`.
async fn registry(image: &Image, at: &str, mood: &Arc<AtomicU8>) -> Faulty {
    let digest = image.descriptors()[0].digest.to_string();
    let mood = Arc::clone(mood);
    let registry = Faulty::at(at, RegistrySettings::with_referrers(), move |seen, faulty| {
        if !seen.is("GET", &digest) {
            return None;
        }
        match mood.load(Ordering::SeqCst) {
            HONEST => None,
            TAMPERED => {
                let truth = faulty.truth_now(seen);
                let (head, body) = truth.into_parts();
                let body =
                    futures_util::FutureExt::now_or_never(axum::body::to_bytes(body, 1 << 30));
                let mut bytes = body.unwrap().unwrap().to_vec();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                Some(Response::from_parts(head, Body::from(bytes)))
            }
            SILENT => {
                let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
                Some(Response::builder().status(206).body(Body::from_stream(never)).unwrap())
            }
            _ => {
                Some(Response::builder().status(StatusCode::NOT_FOUND).body(Body::empty()).unwrap())
            }
        }
    })
    .await;
    image.add_to(&registry, "v1");
    registry
}

#[test]
fn reads_fail_while_the_registry_fails_and_recover() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let mood = Arc::new(AtomicU8::new(HONEST));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let registry = runtime.block_on(registry(&image(&sandbox), "127.0.0.1:0", &mood));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let name = format!("{}/a/b:v1", registry.host());
    mounts::index(&sandbox, &name);
    mood.store(TAMPERED, Ordering::SeqCst);
    let mut serving =
        MountProcess::start(&sandbox, &["mount", "--deadline", "3", "--no-cache", &name, "mnt"]);
    let file = sandbox.path("mnt/file");
    let eio = |what: &str| {
        let begun = Instant::now();
        let error = std::fs::read(&file).expect_err(what);
        assert_eq!(
            error.raw_os_error(),
            Some(rustix::io::Errno::IO.raw_os_error()),
            "{what}: {error}"
        );
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {:?}", begun.elapsed());
    };
    eio("a layer that was tampered with");
    wait_until("the reason", || serving.stderr().contains("warning: "));
    let warning = serving.stderr();
    assert!(warning.contains("sha256:") && warning.contains("span"), "{warning}");

    mood.store(SILENT, Ordering::SeqCst);
    eio("a registry that says nothing");
    // A waiting reader can be killed.
    let mut cat = Command::new("cat");
    let mut cat = ChildProcess::spawn(cat.arg(&file).stdout(Stdio::null()).stderr(Stdio::null()));
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    cat.kill();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());

    // What missed the deadline is not waited for again within a second.
    mood.store(BROKEN, Ordering::SeqCst);
    let requests = || registry.saw("GET", "/blobs/").len();
    let before = requests();
    wait_until("a request", || {
        eio("a registry that has lost the layer");
        requests() > before
    });

    mood.store(HONEST, Ordering::SeqCst);
    wait_until("the content", || {
        std::fs::read(&file).is_ok_and(|read| read == bytes(3, 1_000_000))
    });
    serving.child.signal(Signal::TERM);
    assert_eq!(serving.end().code(), Some(0));
    assert_eq!(mounts_below(sandbox.dir.path()).len(), 0);
}

#[test]
fn a_read_survives_a_registry_restart() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let mood = Arc::new(AtomicU8::new(HONEST));
    let start = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    };
    let first = start();
    let image = image(&sandbox);
    // A port that nobody else is given while the registry is down.
    let host = format!("127.0.0.1:{}", free_port());
    first.block_on(registry(&image, &host, &mood));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let name = format!("{host}/a/b:v1");
    mounts::index(&sandbox, &name);
    // Shorter than the outage, because readers only depend on the deadline.
    let options = ["mount", "--retry-for=1s", "--no-cache", &name, "mnt"];
    let mut serving = MountProcess::start(&sandbox, &options);
    first.shutdown_timeout(Duration::from_secs(10));
    let file = sandbox.path("mnt/file");
    let reader = std::thread::spawn(move || std::fs::read(file));
    let waiting = format!("cannot connect to {host} (");
    wait_until("it says that it waits", || serving.stderr().contains(&waiting));
    std::thread::sleep(Duration::from_secs(2));
    assert!(!reader.is_finished(), "{:?}", reader.join());
    let second = start();
    second.block_on(registry(&image, &host, &mood));
    assert!(reader.join().unwrap().unwrap() == bytes(3, 1_000_000));
    serving.child.signal(Signal::TERM);
    assert_eq!(serving.end().code(), Some(0));
}

#[test]
fn reads_continue_while_the_disk_of_the_cache_does_not_answer() {
    if !can_mount() || !rustix::process::geteuid().is_root() || !mounts::have(&["fsfreeze"]) {
        return;
    }
    const FILES: u64 = 12;
    let sandbox = Sandbox::new();
    for dir in ["source", "cache", "mnt", "another"] {
        std::fs::create_dir(sandbox.path(dir)).unwrap();
    }
    let content = |number: u64| bytes(number, 900_000);
    for number in 0..FILES {
        std::fs::write(sandbox.path(&format!("source/{number}")), content(number)).unwrap();
    }
    let image = packed_image(&sandbox);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mood = Arc::new(AtomicU8::new(HONEST));
    let registry = runtime.block_on(registry(&image, "127.0.0.1:0", &mood));
    let name = format!("{}/a/b:v1", registry.host());
    mounts::index(&sandbox, &name);
    let cache = sandbox.path("cache");
    mounts::mount_disk(&sandbox.path("disk"), 64 << 20, &cache);
    let args = ["mount", "--deadline", "20", "--cache-dir", "cache", &name, "mnt"];
    let mut serving = MountProcess::start(&sandbox, &args);
    let read = |number: u64| std::fs::read(sandbox.path(&format!("mnt/{number}"))).unwrap();
    assert!(read(0) == content(0));
    let frozen = mounts::Frozen::new(&cache);
    // Before it is known that the disk hangs, and afterwards.
    assert!((0..4).all(|number| read(number) == content(number)));
    std::thread::sleep(Duration::from_secs(3));
    assert!((4..8).all(|number| read(number) == content(number)));
    // Another process opens the image.
    let another = ["mount", "--deadline", "20", "--cache-dir", "cache", &name, "another"];
    let mut another = MountProcess::start(&sandbox, &another);
    let by_another = |number: u64| std::fs::read(sandbox.path(&format!("another/{number}")));
    assert!((0..4).all(|number| by_another(number).unwrap() == content(number)));
    mounts::unmount(&sandbox.path("another"));
    drop(frozen);
    assert!(another.end().success(), "{}", another.stderr());
    assert!((0..FILES).all(|number| read(number) == content(number)));
    mounts::unmount(&sandbox.path("mnt"));
    assert!(serving.end().success(), "{}", serving.stderr());
    mounts::unmount(&cache);
}
