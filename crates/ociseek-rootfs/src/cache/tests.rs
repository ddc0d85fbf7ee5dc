//! Files that several spans share.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::place::{SpanPlace, in_one_file};
use super::{PIECE, SpanCache, SpanKey};
use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::progress::{Recorder, SilentProgress};

fn open(dir: &Path) -> SpanCache {
    SpanCache::open(Some(dir), 1 << 30, Arc::new(SilentProgress))
}

/// The bytes of spans of these sizes, and their places.
fn spans(sizes: &[usize]) -> Vec<(Vec<u8>, SpanPlace)> {
    let bytes: Vec<Vec<u8>> = sizes
        .iter()
        .enumerate()
        .map(|(seed, size)| (0..*size).map(|i| (seed * 7 + (i ^ i >> 8 ^ i >> 16)) as u8).collect())
        .collect();
    let key = |span: &Vec<u8>| SpanKey::plain(&Digest::sha256(span), span.len() as u64);
    let keys: Vec<(SpanKey, u64)> =
        bytes.iter().map(|span| (key(span), span.len() as u64)).collect();
    bytes.into_iter().zip(in_one_file(&keys)).collect()
}

fn read(cache: &SpanCache, place: &SpanPlace) -> Option<Vec<u8>> {
    let pieces = place.size().div_ceil(PIECE as u64) as u32;
    cache.read(place, 0..pieces).map(|pieces| pieces.concat())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir.join("spans")).unwrap().map(|file| file.unwrap().path()).collect()
}

/// What the files in the cache take of the disk.
fn on_disk(dir: &Path) -> u64 {
    files(dir).iter().map(|path| path.metadata().unwrap().blocks() * 512).sum()
}

/// None is written over another, whatever their sizes and in whatever order they come.
#[test]
fn spans_of_a_file_are_read_as_they_were_written() {
    const SIZES: [usize; 7] = [1, 100, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 500];
    for round in 0..60 {
        let count = 2 + round % 9;
        let sizes: Vec<usize> = (0..count).map(|n| SIZES[(round * 31 + n * n) % 7]).collect();
        let spans = spans(&sizes);
        let dir = tempfile::tempdir().unwrap();
        let cache = open(dir.path());
        let order: Vec<usize> = (0..count).map(|n| (round + n * 7) % count).collect();
        let mut written = BTreeSet::new();
        for number in order {
            let (span, place) = &spans[number];
            assert_eq!(cache.has(place), written.contains(&number), "{sizes:?}");
            assert!(cache.put(place, span));
            written.insert(number);
            for (span, place) in written.iter().map(|known| &spans[*known]) {
                assert!(cache.has(place));
                assert!(read(&cache, place).as_ref() == Some(span), "{sizes:?}");
            }
        }
        assert_eq!(files(dir.path()).len(), 1);
    }
}

#[test]
fn damage_is_found_and_repaired_without_losing_other_spans() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let spans = spans(&[PIECE + 10, 2 * PIECE, 300]);
    spans.iter().for_each(|(span, place)| assert!(cache.put(place, span)));
    let path = files(dir.path()).remove(0);
    let good = fs::read(&path).unwrap();
    let is_right =
        |number: usize| read(&cache, &spans[number].1).as_ref() == Some(&spans[number].0);
    assert!((0..3).all(is_right));
    let mut damaging = 0;
    for at in (0..good.len()).filter(|at| good[*at] != 0).step_by(997) {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        fs::write(&path, flipped).unwrap();
        let lost: Vec<usize> = (0..3).filter(|number| !is_right(*number)).collect();
        assert!(lost.len() <= 1, "flipped at {at}: {lost:?}");
        for number in lost {
            assert!(read(&cache, &spans[number].1).is_none(), "flipped at {at}");
            assert!(cache.put(&spans[number].1, &spans[number].0));
            damaging += 1;
        }
        assert!((0..3).all(is_right), "flipped at {at}");
    }
    assert!(damaging > 100, "{damaging}");
    for length in [0, 100, good.len() / 2, good.len() - 1] {
        fs::write(&path, &good[..length]).unwrap();
        let shortened = (0..3).filter(|number| !is_right(*number)).count();
        assert!(shortened > 0, "{length}");
        for (span, place) in &spans {
            assert!(read(&cache, place).is_none_or(|bytes| bytes == *span), "{length}");
            assert!(cache.put(place, span));
        }
        assert!((0..3).all(is_right), "{length}");
    }
}

/// A process that is killed while it writes leaves pieces without a head.
#[test]
fn a_span_is_there_when_its_head_is() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    // So much is written before the span is complete.
    let spans = spans(&[100, 5 << 20, 100]);
    cache.put(&spans[0].1, &spans[0].0);
    let before = on_disk(dir.path());
    let (span, place) = &spans[1];
    let mut writer = cache.writer(place).unwrap();
    for piece in span[..4 << 20].chunks(PIECE) {
        assert!(writer.write(&Bytes::copy_from_slice(piece)));
    }
    assert!(on_disk(dir.path()) >= before + (4 << 20));
    assert!(!cache.has(place) && read(&cache, place).is_none());
    drop(writer);
    assert!(on_disk(dir.path()) <= before + (64 << 10), "{}", on_disk(dir.path()));
    assert!(cache.put(place, span));
    assert!(read(&cache, place).as_ref() == Some(span));
    assert!(read(&cache, &spans[0].1).as_ref() == Some(&spans[0].0));
}

#[test]
fn another_span_at_the_same_place_is_not_taken_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let one = spans(&[1000, 2000, 3000]);
    // The same first span and sizes, as if the others had been altered.
    let keys: Vec<(SpanKey, u64)> = [&one[0].0[..], &[1; 2000], &[2; 3000]]
        .map(|span| (SpanKey::plain(&Digest::sha256(span), span.len() as u64), span.len() as u64))
        .into();
    let other = in_one_file(&keys);
    one.iter().for_each(|(span, place)| assert!(cache.put(place, span)));
    assert!(cache.has(&other[0]) && !cache.has(&other[1]));
    assert_eq!(read(&cache, &other[1]), None);
    assert!(cache.put(&other[1], &[1; 2000]));
    assert!(
        !cache.has(&one[1].1) && read(&cache, &other[1]).is_some_and(|bytes| bytes == [1; 2000])
    );
    assert!(read(&cache, &one[2].1).as_ref() == Some(&one[2].0));
    assert_eq!(files(dir.path()).len(), 1);
}

#[test]
fn what_is_no_file_of_spans_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let spans = spans(&[PIECE, 100]);
    let outside = dir.path().join("outside");
    fs::write(&outside, "x").unwrap();
    cache.put(&spans[0].1, &spans[0].0);
    let path = files(dir.path()).remove(0);
    let replaced = |what: &str| {
        assert!(cache.put(&spans[1].1, &spans[1].0), "{what}");
        assert!(read(&cache, &spans[1].1).as_ref() == Some(&spans[1].0), "{what}");
        fs::remove_file(&path).unwrap();
    };
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&outside, &path).unwrap();
    replaced("a symbolic link");
    fs::create_dir_all(path.join("full")).unwrap();
    replaced("a directory");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(read(&cache, &spans[1].1), None);
    assert!(!path.exists(), "a file of a tebibyte");
    fs::remove_dir_all(dir.path().join("spans")).unwrap();
    replaced("a missing directory");
    assert_eq!(fs::read(&outside).unwrap(), b"x");
}

/// Holes are free.
#[test]
fn files_are_evicted_by_what_they_take_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let max = 40 << 20;
    let recorder = Arc::new(Recorder::default());
    let cache = SpanCache::open(Some(dir.path()), max, Arc::clone(&recorder) as _);
    let mut first = Vec::new();
    for file in 0..30usize {
        // The span of 3 MiB before it is not stored: a hole.
        let mut spans = spans(&[3 << 20, (1 << 20) + file]);
        let stored = spans.remove(1);
        assert!(cache.put(&stored.1, &stored.0));
        first.push(stored);
    }
    assert!(first.iter().all(|(_, place)| cache.has(place)));
    for file in 30..60usize {
        let spans = spans(&[3 << 20, (1 << 20) + file]);
        assert!(cache.put(&spans[1].1, &spans[1].0));
    }
    assert!(on_disk(dir.path()) <= max + (2 << 20), "{}", on_disk(dir.path()));
    let left = first.iter().filter(|(_, place)| cache.has(place)).count();
    assert!(left < 30, "{left}");
    assert_eq!(recorder.events().len(), 0, "{:?}", recorder.events());
}
