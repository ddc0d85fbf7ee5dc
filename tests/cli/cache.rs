//! The ztoc cache: stored entries are found, damaged ones are ignored, and processes do not block
//! each other.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ociseek_format::digest::Digest;
use ociseek_format::layer::{BlobForm, BuiltZtoc, Outcome, UnservableCode, UnservableReason};
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::{Progress, Recorder, SilentProgress};
use ociseek_store::cache::{CacheKey, ZtocCache};
use ociseek_testkit::caches::{assert_warns_once, spoil_entry, writer, written_by_this_process};
use ociseek_testkit::sandbox::Sandbox;

fn open(dir: &Path) -> ZtocCache {
    ZtocCache::open(Some(dir), Arc::new(SilentProgress))
}

fn ztoc(content: &[u8]) -> Outcome {
    Outcome::Ztoc(BuiltZtoc {
        bytes: content.to_vec(),
        digest: Digest::sha256(content),
        spans: 3,
        entries: 17,
        uncompressed_size: 1 << 40,
        form: BlobForm::Gzip { members: Some(2) },
    })
}

fn key(layer: &Digest) -> CacheKey<'_> {
    CacheKey { layer, span_size: SpanSize::DEFAULT, build_tool_identifier: "tool v1" }
}

/// The files of entries.
/// The entries, but for the marks that a ztoc was proven.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path());
    let is_mark = |path: &PathBuf| {
        let content = fs::read(path).unwrap_or_default();
        content.windows(13).any(|text| text == b"ociseek proof")
    };
    files.filter(|p| p.file_name().unwrap().len() == 64 && !is_mark(p)).collect()
}

#[test]
fn entries_are_found_only_under_their_own_key() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(&dir.path().join("a/b"));
    let layer = Digest::sha256(b"layer");
    let other = Digest::sha256(b"other");
    assert_eq!(cache.get(key(&layer)), None);
    cache.put(key(&layer), 99, &ztoc(b"a\nztoc"));
    assert_eq!(open(&dir.path().join("a/b")).get(key(&layer)), Some((99, ztoc(b"a\nztoc"))));
    assert_eq!(cache.get(key(&other)), None);
    assert_eq!(cache.get(CacheKey { span_size: SpanSize::new(1).unwrap(), ..key(&layer) }), None);
    assert_eq!(cache.get(CacheKey { build_tool_identifier: "tool v2", ..key(&layer) }), None);
    let verdict = Outcome::Unservable(UnservableReason::new(
        UnservableCode::SparseFile,
        "why \u{2028} \"so\"",
    ));
    cache.put(key(&layer), 7, &verdict);
    assert_eq!(cache.get(key(&layer)), Some((7, verdict)));
    let nothing = ZtocCache::open(None, Arc::new(SilentProgress));
    nothing.put(key(&layer), 1, &ztoc(b"x"));
    assert_eq!(nothing.get(key(&layer)), None);
}

#[test]
fn damaged_entries_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let layer = Digest::sha256(b"layer");
    cache.put(key(&layer), 99, &ztoc(b"a ztoc"));
    let path = entries(dir.path()).remove(0);
    let good = fs::read(&path).unwrap();
    let check = |what: &str| {
        assert_eq!(cache.get(key(&layer)), None, "{what}");
        assert!(fs::symlink_metadata(&path).is_err(), "{what} is removed");
        cache.put(key(&layer), 99, &ztoc(b"a ztoc"));
        assert_eq!(cache.get(key(&layer)), Some((99, ztoc(b"a ztoc"))), "after {what}");
    };
    for cut in 0..good.len() {
        fs::write(&path, &good[..cut]).unwrap();
        assert_eq!(cache.get(key(&layer)), None, "cut at {cut}");
    }
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        fs::write(&path, flipped).unwrap();
        assert_eq!(cache.get(key(&layer)), None, "flipped at {at}");
    }
    fs::write(&path, &good).unwrap();
    spoil_entry(&path, check);
    // An entry under another name has the right digest, but is not the requested one.
    let other = Digest::sha256(b"other");
    cache.put(key(&other), 5, &ztoc(b"another"));
    let stranger = entries(dir.path()).into_iter().find(|p| *p != path).unwrap();
    fs::copy(stranger, &path).unwrap();
    check("another layer's entry");
}

#[test]
fn an_unusable_cache_warns_once() {
    let layer = Digest::sha256(b"layer");
    assert_warns_once(
        |path, progress| ZtocCache::open(Some(path), progress),
        |cache| {
            cache.put(key(&layer), 1, &ztoc(b"x"));
            assert_eq!(cache.get(key(&layer)), None);
        },
    );
}

/// The caches of ztocs and of spans are in one directory.
#[test]
fn an_unusable_directory_is_told_once() {
    let sandbox = Sandbox::with_small_image();
    std::fs::write(sandbox.path("file"), "").unwrap();
    let said = sandbox.run(&["ls", "--cache-dir=file", "oci:img"]);
    assert_eq!(said.matches("cannot use the cache").count(), 1, "{said}");
}

#[test]
fn a_lock_or_a_deleted_directory_does_not_stop_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/cache");
    let recorder = Arc::new(Recorder::default());
    let cache = ZtocCache::open(Some(&path), Arc::clone(&recorder) as Arc<dyn Progress>);
    // Remains of a stopped process of an earlier version, or of a dead NFS client.
    let lock = fs::File::create(path.join("lock")).unwrap();
    lock.lock().unwrap();
    let layer = Digest::sha256(b"layer");
    cache.put(key(&layer), 1, &ztoc(b"x"));
    assert!(cache.get(key(&layer)).is_some());
    fs::remove_dir_all(dir.path().join("a")).unwrap();
    assert_eq!(cache.get(key(&layer)), None);
    cache.put(key(&layer), 1, &ztoc(b"x"));
    assert!(cache.get(key(&layer)).is_some());
    assert_eq!(recorder.events().len(), 0, "{:?}", recorder.events());
}

#[test]
fn the_least_used_entries_are_evicted_first() {
    let dir = tempfile::tempdir().unwrap();
    let cache = ZtocCache::with_limit(Some(dir.path()), 10_000, Arc::new(SilentProgress));
    let layers: Vec<Digest> = (0..12u8).map(|i| Digest::sha256(&[i])).collect();
    let stale = dir.path().join(".tmp-dead");
    let fresh = dir.path().join(".tmp-alive");
    fs::write(&fresh, "x").unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(7200);
    fs::File::create(&stale).unwrap().set_modified(old).unwrap();
    for layer in &layers {
        cache.put(key(layer), 1, &ztoc(&[7; 1000]));
        cache.get(key(&layers[0]));
        std::thread::sleep(Duration::from_millis(5));
    }
    let total: u64 = entries(dir.path()).iter().map(|p| p.metadata().unwrap().len()).sum();
    assert!(total <= 10_000, "{total}");
    assert!(cache.get(key(&layers[0])).is_some() && cache.get(key(&layers[11])).is_some());
    assert_eq!(cache.get(key(&layers[1])), None);
    assert!(!stale.exists() && fresh.exists());
    cache.put(key(&layers[1]), 1, &ztoc(&[7; 20_000]));
    assert_eq!(cache.get(key(&layers[1])), None, "larger than the whole cache");
}

/// Not a test, but the function of processes that the tests below start.
#[test]
fn child_writer() {
    let Some((dir, rounds)) = written_by_this_process() else { return };
    let cache = open(&dir);
    for i in rounds {
        let layer = Digest::sha256(&[(i % 5) as u8]);
        cache.put(key(&layer), 42, &ztoc(&vec![(i % 5) as u8; 300_000]));
        assert!(
            cache
                .get(key(&layer))
                .is_none_or(|found| found == (42, ztoc(&vec![(i % 5) as u8; 300_000])))
        );
    }
}

#[test]
fn many_processes_share_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let mut children: Vec<_> = (0..8).map(|_| writer(module_path!(), dir.path(), false)).collect();
    for child in &mut children {
        assert!(child.end().success());
    }
    check_all(dir.path(), 5);
}

#[test]
fn the_cache_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..12u64 {
        let mut child = writer(module_path!(), dir.path(), true);
        while entries(dir.path()).is_empty() {
            assert!(child.ended().is_none(), "the writer ended by itself");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(20 + 13 * round));
        child.kill();
        check_all(dir.path(), 0);
    }
    // No lock remains.
    open(dir.path()).put(key(&Digest::sha256(&[0])), 42, &ztoc(&vec![0; 300_000]));
    check_all(dir.path(), 1);
}

/// Every entry that exists under its name is complete.
fn check_all(dir: &Path, at_least: usize) {
    let there = entries(dir).len();
    let cache = open(dir);
    let read = (0..5u8).filter(|&i| {
        cache
            .get(key(&Digest::sha256(&[i])))
            .is_some_and(|found| found == (42, ztoc(&vec![i; 300_000])))
    });
    assert_eq!(read.count(), there);
    assert!(there >= at_least);
}

#[test]
fn a_fresh_cache_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c");
    open(&path).put(key(&Digest::sha256(b"x")), 1, &ztoc(b"x"));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(entries(&path)[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
}
