//! The cache of decoded spans: what it keeps and drops, and that it never causes failures.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use ociseek_format::digest::Digest;
use ociseek_format::progress::{Progress, Recorder, SilentProgress};
use ociseek_rootfs::cache::{PIECE, SpanCache, SpanKey, SpanPlace};
use ociseek_testkit::caches::{assert_warns_once, spoil_entry, writer, written_by_this_process};
use ociseek_testkit::{passes, this_test};

const PLENTY: u64 = 1 << 30;

fn open(dir: &Path) -> SpanCache {
    SpanCache::open(Some(dir), PLENTY, Arc::new(SilentProgress))
}

fn span(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|i| seed ^ (i ^ i >> 8 ^ i >> 16) as u8).collect()
}

fn place(span: &[u8]) -> SpanPlace {
    let size = span.len() as u64;
    SpanPlace::alone(SpanKey::plain(&Digest::sha256(span), size), size)
}

fn all(span: &[u8]) -> std::ops::Range<u32> {
    0..span.len().div_ceil(PIECE) as u32
}

fn read(cache: &SpanCache, span: &[u8]) -> Option<Vec<u8>> {
    cache.read(&place(span), all(span)).map(|pieces| pieces.concat())
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let listed = fs::read_dir(dir.join("spans")).into_iter().flatten().filter_map(Result::ok);
    listed.map(|e| e.path()).filter(|p| p.file_name().is_some_and(|n| n.len() == 64)).collect()
}

#[test]
fn cached_spans_are_read_whole_and_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    for length in [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 17] {
        let span = span(length as u8, length);
        assert!(!cache.has(&place(&span)));
        assert!(read(&cache, &span).is_none());
        cache.put(&place(&span), &span);
        assert!(cache.has(&place(&span)));
        assert!(read(&open(dir.path()), &span).is_some_and(|found| found == span), "{length}");
        for number in all(&span) {
            let piece = cache.read(&place(&span), number..number + 1).unwrap().concat();
            let from = number as usize * PIECE;
            assert!(piece == span[from..length.min(from + PIECE)], "{length} {number}");
        }
        let end = all(&span).end;
        assert_eq!(cache.read(&place(&span), end..end + 1), None, "behind the last piece");
        assert!(cache.has(&place(&span)), "and it is still there");
        let other = SpanPlace::alone(*place(&span).key(), length as u64 + 1);
        assert_eq!(cache.read(&other, 0..1), None, "another size");
        cache.put(&place(&span), &span);
    }
    let path = dir.path().join("spans");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(entries(dir.path())[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let nothing = SpanCache::open(None, PLENTY, Arc::new(SilentProgress));
    nothing.put(&place(b"x"), b"x");
    assert!(!nothing.is_enabled() && read(&nothing, b"x").is_none());
}

#[test]
fn incomplete_spans_are_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    let cache =
        SpanCache::open(Some(dir.path()), PLENTY, Arc::clone(&recorder) as Arc<dyn Progress>);
    let span = span(1, 3 * PIECE);
    let mut writer = cache.writer(&place(&span)).unwrap();
    assert!(writer.write(&Bytes::copy_from_slice(&span[..PIECE])));
    drop(writer);
    assert_eq!(
        fs::read_dir(dir.path().join("spans")).unwrap().count(),
        0,
        "nothing is left behind"
    );
    let mut writer = cache.writer(&place(&span)).unwrap();
    assert!(writer.write(&Bytes::copy_from_slice(&span[..PIECE])));
    writer.finish();
    assert!(read(&cache, &span).is_none());
    assert_eq!(fs::read_dir(dir.path().join("spans")).unwrap().count(), 0);
}

#[test]
fn damaged_spans_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let span = span(3, PIECE + 100);
    cache.put(&place(&span), &span);
    let path = entries(dir.path()).remove(0);
    let good = fs::read(&path).unwrap();
    let check = |what: &str| {
        assert!(read(&cache, &span).is_none(), "{what}");
        assert!(fs::symlink_metadata(&path).is_err(), "{what} is removed");
        cache.put(&place(&span), &span);
        assert!(read(&cache, &span).is_some_and(|found| found == span), "after {what}");
    };
    let head = good.len() - span.len();
    for at in (0..head).chain([head, head + PIECE - 1, head + PIECE, good.len() - 1]) {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        fs::write(&path, flipped).unwrap();
        assert!(read(&cache, &span).is_none(), "flipped at {at}");
    }
    for cut in [0, 1, 31, 32, 71, head - 1, head, good.len() - 1] {
        fs::write(&path, &good[..cut]).unwrap();
        assert!(read(&cache, &span).is_none(), "cut at {cut}");
    }
    fs::write(&path, &good).unwrap();
    spoil_entry(&path, check);
    // Valid, but another span's.
    let other = self::span(4, PIECE + 100);
    cache.put(&place(&other), &other);
    let stranger = entries(dir.path()).into_iter().find(|p| *p != path).unwrap();
    fs::copy(stranger, &path).unwrap();
    check("another span's entry");
}

#[test]
fn a_damaged_piece_does_not_affect_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let span = span(3, 4 * PIECE);
    cache.put(&place(&span), &span);
    let path = entries(dir.path()).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 1] ^= 1;
    fs::write(&path, bytes).unwrap();
    assert!(cache.read(&place(&span), 0..3).is_some(), "only what is read is hashed");
    assert_eq!(cache.read(&place(&span), 2..4), None);
}

#[test]
fn an_unusable_cache_warns_once() {
    assert_warns_once(
        |path, progress| SpanCache::open(Some(path), PLENTY, progress),
        |cache| {
            cache.put(&place(b"span"), b"span");
            assert_eq!(read(cache, b"span"), None);
        },
    );
}

#[test]
fn a_deleted_directory_is_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/cache");
    let recorder = Arc::new(Recorder::default());
    let cache = SpanCache::open(Some(&path), PLENTY, Arc::clone(&recorder) as Arc<dyn Progress>);
    for _ in 0..2 {
        assert!(cache.put(&place(b"span"), b"span"));
        assert!(read(&cache, b"span").is_some());
        fs::remove_dir_all(dir.path().join("a")).unwrap();
        assert_eq!(read(&cache, b"span"), None);
    }
    assert_eq!(recorder.events().len(), 0, "{:?}", recorder.events());
}

/// A full disk: a failed write only means that the entry is missing.
#[test]
fn a_file_size_limit_is_treated_like_a_full_disk() {
    if std::env::var_os("OCISEEK_TEST_FULL").is_none() {
        let me = this_test(module_path!(), "a_file_size_limit_is_treated_like_a_full_disk");
        // 64 KiB, without a signal when the limit is exceeded.
        let mut limited = Command::new("sh");
        limited.args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\""]);
        limited.arg(me.get_program()).args(me.get_args());
        return passes(limited.env("OCISEEK_TEST_FULL", "1"));
    }
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    let cache =
        SpanCache::open(Some(dir.path()), PLENTY, Arc::clone(&recorder) as Arc<dyn Progress>);
    let large = span(1, 1 << 20);
    for _ in 0..3 {
        cache.put(&place(&large), &large);
        assert!(read(&cache, &large).is_none());
    }
    assert_eq!(recorder.events().len(), 1, "{:?}", recorder.events());
    assert_eq!(
        fs::read_dir(dir.path().join("spans")).unwrap().count(),
        0,
        "nothing is left behind"
    );
    cache.put(&place(b"small"), b"small");
    assert!(read(&cache, b"small").is_some());
}

#[test]
fn the_least_used_spans_are_evicted_first() {
    let dir = tempfile::tempdir().unwrap();
    let cache = SpanCache::open(Some(dir.path()), 1_000_000, Arc::new(SilentProgress));
    let spans: Vec<Vec<u8>> = (0..20).map(|seed| span(seed, 100_000)).collect();
    for (number, span) in spans.iter().enumerate() {
        let before = entries(dir.path());
        cache.put(&place(span), span);
        // The entries need different ages.
        let new = entries(dir.path()).into_iter().find(|path| !before.contains(path)).unwrap();
        let old = SystemTime::now() - Duration::from_secs(5000 - number as u64 * 100);
        fs::File::options().append(true).open(new).unwrap().set_modified(old).unwrap();
        // A used entry is kept.
        assert!(read(&cache, &spans[0]).is_some(), "{number}");
        let total: u64 = entries(dir.path()).iter().map(|p| p.metadata().unwrap().len()).sum();
        assert!(total <= 1_000_000, "{total}");
    }
    assert!(read(&cache, &spans[19]).is_some());
    assert!(read(&cache, &spans[1]).is_none());
    let huge = span(99, 600_000);
    cache.put(&place(&huge), &huge);
    assert!(read(&cache, &huge).is_none(), "more than half of the cache");
    // Entries of other processes count too.
    let others = open(dir.path());
    for seed in 100..130 {
        others.put(&place(&span(seed, 100_000)), &span(seed, 100_000));
    }
    cache.put(&place(b"x"), b"x");
    let fresh = SpanCache::open(Some(dir.path()), 1_000_000, Arc::new(SilentProgress));
    fresh.put(&place(b"y"), b"y");
    let total: u64 = entries(dir.path()).iter().map(|p| p.metadata().unwrap().len()).sum();
    assert!(total <= 1_000_000, "{total}");
}

/// Not a test, but the function of processes that the tests below start.
#[test]
fn child_writer() {
    let Some((dir, rounds)) = written_by_this_process() else { return };
    let cache = open(&dir);
    for i in rounds {
        let span = span((i % 5) as u8, 300_000);
        cache.put(&place(&span), &span);
        assert!(read(&cache, &span).is_none_or(|found| found == span));
    }
}

#[test]
fn many_processes_share_the_cache_despite_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut children: Vec<_> = (0..8).map(|_| writer(module_path!(), dir.path(), false)).collect();
    for child in &mut children {
        assert!(child.end().success());
    }
    check_all(dir.path());
    assert_eq!(entries(dir.path()).len(), 5);
    for round in 0..8u64 {
        let mut child = writer(module_path!(), dir.path(), true);
        std::thread::sleep(Duration::from_millis(20 + 13 * round));
        child.kill();
        check_all(dir.path());
    }
}

/// Every entry that exists under its name is complete.
fn check_all(dir: &Path) {
    let cache = open(dir);
    let there = entries(dir).len();
    let whole = (0..5u8)
        .map(|seed| span(seed, 300_000))
        .filter(|span| read(&cache, span).as_ref() == Some(span));
    assert_eq!(whole.count(), there);
}
