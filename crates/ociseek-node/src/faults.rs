//! For tests: a snapshotter whose images cannot be mounted. It is killed at each of its changes to
//! files, or these fail.
//!
//! The program of the tests is started again as the snapshotter, by `inject.c` of ociseek-testkit.
//! It prints the number of each call that was answered.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending, ready};

use super::lazy::{ImageLayers, LazyImages, OpenedLayers};
use super::messages::{CommitRequest, CreateRequest, SnapshotError};
use super::rows::{LazyStack, SnapshotKind};
use super::snapshotter::{IMAGE, LAYER, MANIFEST, Snapshotter, TARGET};

/// An image of the layers `a` and `b`, and one that states their names for others. They cannot
/// be mounted.
struct Unmountable;

impl LazyImages for Unmountable {
    fn layers<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Option<ImageLayers>> {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        let (digests, chains, document) = match image {
            "host/name:tag@manifest" => ("a b", "chain-a chain-b", "document"),
            "host/name:tag@other-document" => ("a b", "chain-a chain-b", "another"),
            "host/name:tag@hanging" => ("h", "chain-h", "document"),
            "host/name:tag@lying" => ("x y", "chain-a chain-b", "document"),
            _ => return ready(None).boxed(),
        };
        let documents = vec![Some(document.to_owned()), None];
        let layers = ImageLayers { digests: words(digests), chains: words(chains), documents };
        ready(Some(layers)).boxed()
    }

    fn cannot_share(&self, _: &str, _: &str, _: &str) {}

    fn lies_on_unpacked(&self, _: &str) {}

    fn open<'a>(
        &'a self,
        stack: &'a LazyStack,
        _: &'a Path,
    ) -> BoxFuture<'a, Result<OpenedLayers, String>> {
        if stack.top.image.ends_with("@hanging") {
            return pending().boxed();
        }
        ready(Err("the registry is away".to_owned())).boxed()
    }
}

pub(crate) async fn open(root: &Path) -> Result<Snapshotter, SnapshotError> {
    Snapshotter::open(root, Arc::new(Unmountable), 512 << 20).await
}

pub(crate) fn request(key: &str, parent: &str, labels: &[(&str, &str)]) -> CreateRequest {
    let labels = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    CreateRequest { key: key.to_owned(), parent: parent.to_owned(), labels }
}

pub(crate) fn layer(parent: &str, target: &str, manifest: &str, digest: &str) -> CreateRequest {
    let labels =
        [(TARGET, target), (IMAGE, "host/name:tag"), (MANIFEST, manifest), (LAYER, digest)];
    request("unpacking", parent, &labels)
}

/// The faults that inject.c makes.
const MODES: [&str; 4] = ["kill", "torn", "eio", "enospc"];
/// How many children run at the same time.
const WORKERS: usize = 8;
/// The variable with the directory of the snapshotter to run.
const ROOT: &str = "OCISEEK_SNAPSHOTTER_FAULTS";

/// The snapshots after each call.
const AFTER: [&str; 10] = [
    "",
    "one",
    "ONE",
    "ONE two",
    "ONE seen two",
    "ONE chain-a seen two",
    "ONE chain-a two",
    "ONE chain-a",
    "chain-a",
    "chain-a",
];

/// Makes call number `number`, from 1. Whether it was answered as expected.
async fn call(snapshotter: &Snapshotter, root: &Path, number: usize) -> bool {
    let create =
        async |kind, key, parent| snapshotter.create(kind, request(key, parent, &[])).await.is_ok();
    match number {
        1 => {
            create(SnapshotKind::Active, "one", "").await
                && fs::write(root.join("snapshots/1/fs/file"), "x").is_ok()
        }
        2 => snapshotter
            .commit(CommitRequest { name: "ONE".into(), key: "one".into(), ..Default::default() })
            .await
            .is_ok(),
        3 => create(SnapshotKind::Active, "two", "ONE").await,
        4 => create(SnapshotKind::View, "seen", "ONE").await,
        5 => snapshotter
            .create(SnapshotKind::Active, layer("", "chain-a", "manifest", "a"))
            .await
            .is_err(),
        6 => snapshotter.remove("seen").await.is_ok(),
        7 => snapshotter.remove("two").await.is_ok(),
        8 => snapshotter.remove("ONE").await.is_ok(),
        _ => snapshotter.cleanup().await.is_ok(),
    }
}

/// The snapshotter that is killed. As a test, it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn child() {
    let Some(root) = std::env::var_os(ROOT).map(PathBuf::from) else { return };
    let snapshotter = open(&root).await.expect("it starts where nothing was");
    for number in 1..AFTER.len() {
        if call(&snapshotter, &root, number).await {
            println!("answered {number}");
        }
    }
}

/// inject.c, compiled. None if it cannot run here.
fn injector(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ociseek-testkit/src/inject.c");
    let program = dir.join("inject");
    let built = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(source).status();
    let runs = || {
        let mut command = Command::new(&program);
        command.arg(dir).args(["writes", "count", "0", "/dev/null", "true"]);
        command.status().is_ok_and(|status| status.success())
    };
    let can_run =
        cfg!(target_arch = "x86_64") && built.is_ok_and(|status| status.success()) && runs();
    if !can_run {
        println!("skipped: no gcc, or this system does not allow ptrace and seccomp");
    }
    can_run.then_some(program)
}

/// Runs the child with a fault at change number `at`. The number of changes, and the last call that
/// was answered.
fn run(injector: &Path, root: &Path, mode: &str, at: usize) -> (usize, usize) {
    let report = root.with_added_extension("report");
    let mut command = Command::new(injector);
    command.arg(root).args(["writes", mode, &at.to_string()]).arg(&report);
    command.arg(std::env::current_exe().unwrap()).args(["faults::child", "--exact", "--nocapture"]);
    let output = command.env(ROOT, root).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let answered =
        text.lines().filter_map(|line| line.split_once("answered ")?.1.trim().parse().ok()).max();
    let report = fs::read_to_string(report).unwrap();
    (report.lines().next().unwrap().parse().unwrap(), answered.unwrap_or(0))
}

fn names(snapshotter: &Snapshotter) -> String {
    snapshotter.list(&[]).unwrap().into_iter().map(|info| info.name).collect::<Vec<_>>().join(" ")
}

/// The names of the files in a directory.
fn files(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// Runs the child in `root` with a fault, and looks at what it left. The number of its changes.
async fn fault(injector: &Path, root: &Path, mode: &str, at: usize) -> usize {
    fs::create_dir(root).unwrap();
    let (changes, answered) = run(injector, root, mode, at);
    let what = format!("{mode} at {at} of {changes}, {answered} answered");
    let snapshotter = open(root).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let listed = names(&snapshotter);
    if !matches!(mode, "eio" | "enospc") {
        // The next call was made or not.
        assert!(AFTER[answered..].iter().take(2).any(|after| *after == listed), "{what}: {listed}");
    }
    let with_files = listed.split(' ').filter(|name| !matches!(*name, "" | "chain-a")).count();
    assert_eq!(files(&root.join("snapshots")).len(), with_files, "{what}: {listed}");
    assert!(
        !listed.contains("ONE") || root.join("snapshots/1/fs/file").exists(),
        "{what}: {listed}"
    );
    let rest = files(root);
    assert!(rest.iter().all(|name| !name.starts_with("unfinished")), "{what}: {rest:?}");
    for key in ["seen", "two", "one", "ONE", "chain-a"] {
        if listed.split(' ').any(|name| name == key) {
            snapshotter.remove(key).await.unwrap_or_else(|error| panic!("{what}, {key}: {error}"));
        }
    }
    snapshotter.cleanup().await.unwrap_or_else(|error| panic!("{what}, cleanup: {error}"));
    assert_eq!(
        (names(&snapshotter).as_str(), files(&root.join("snapshots")).len()),
        ("", 0),
        "{what}"
    );
    drop(snapshotter);
    fs::remove_dir_all(root).unwrap();
    changes
}

#[test]
fn no_fault_leaves_a_part_of_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let Some(injector) = injector(dir.path()) else { return };
    let points = AtomicUsize::new(0);
    let begun = AtomicUsize::new(0);
    let ended = MODES.map(|_| AtomicBool::new(false));
    // Each waits for the disk most of the time.
    let work = |worker: usize| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let root = dir.path().join(worker.to_string());
        while !ended.iter().all(|ended| ended.load(Ordering::Relaxed)) {
            let point = begun.fetch_add(1, Ordering::Relaxed);
            let mode = point % MODES.len();
            let at = point / MODES.len();
            if !ended[mode].load(Ordering::Relaxed) {
                let changes = runtime.block_on(fault(&injector, &root, MODES[mode], at));
                ended[mode].fetch_or(at >= changes, Ordering::Relaxed);
                points.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            scope.spawn(move || work(worker));
        }
    });
    println!("{points:?} points");
    assert!(points.into_inner() > 200, "too few");
}
