//! Runs the bodies of the fuzz targets on the fixtures, on inputs that fuzzing found worth keeping,
//! on mutations of both, and on every input that once crashed one.

use crate::bodies;
use ociseek_testkit::soci;
use std::path::{Path, PathBuf};

fn files(dir: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(path).expect("a fixture can be read")))
        .collect();
    found.sort();
    found
}

/// Runs a body on each seed, on some mutations of it, and on inputs that once crashed it. The
/// target's own seeds are added.
fn replay(target: &str, mut seeds: Vec<(PathBuf, Vec<u8>)>, body: fn(&[u8])) {
    seeds.extend(files(&format!("fuzz/seeds/{target}")));
    assert!(seeds.len() > 10, "{target}: only {} seeds", seeds.len());
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    for (_, seed) in seeds.iter().chain(&files(&format!("fuzz/regressions/{target}"))) {
        body(seed);
        for _ in 0..if seed.len() < 50_000 { 8 } else { 1 } {
            let mut mutated = seed.clone();
            for _ in 0..1 + random(3) {
                let at = random(mutated.len());
                match random(4) {
                    0 => mutated.truncate(at),
                    1 => mutated.insert(at, random(256) as u8),
                    2 if at < mutated.len() => mutated[at] = random(256) as u8,
                    _ if at < mutated.len() => mutated[at] ^= 1 << random(8),
                    _ => {}
                }
            }
            body(&mutated);
        }
    }
}

fn layers(ending: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = files("fixtures/golden/layers");
    found.retain(|(path, bytes)| path.to_string_lossy().ends_with(ending) && bytes.len() < 200_000);
    found
}

#[test]
fn inflate() {
    // The deflate data of gzip layers, after a plain header.
    let mut seeds = layers(".gz");
    seeds.retain(|(_, bytes)| bytes.len() > 10 && bytes[3] == 0);
    seeds.iter_mut().for_each(|(_, bytes)| drop(bytes.drain(..10)));
    replay("inflate", seeds, bodies::inflate);
}

#[test]
fn gzip_reader() {
    replay("gzip", layers(".gz"), bodies::gzip);
}

#[test]
fn span_decoder() {
    // The same deflate data as a span that claims 4 KiB.
    let mut seeds = layers(".gz");
    seeds.retain(|(_, bytes)| bytes.len() > 10 && bytes[3] == 0);
    seeds.iter_mut().for_each(|(_, bytes)| drop(bytes.splice(..10, [0, 0, 128, 5])));
    replay("span", seeds, bodies::span);
}

#[test]
fn tar_walker() {
    replay("tar", layers(".tar"), bodies::tar);
}

#[test]
fn zstd_frames() {
    // Frames, and what frames are made of.
    let mut seeds = layers(".tar");
    seeds.truncate(24);
    seeds
        .iter_mut()
        .step_by(2)
        .for_each(|(_, bytes)| *bytes = zstd::encode_all(&bytes[..], 3).expect("it is written"));
    replay("zstd", seeds, bodies::zstd);
}

#[test]
fn zstd_blocks() {
    let mut seeds = layers(".tar");
    seeds.truncate(24);
    seeds
        .iter_mut()
        .step_by(2)
        .for_each(|(_, bytes)| *bytes = zstd::encode_all(&bytes[..], 3).expect("it is written"));
    seeds.extend(files("fuzz/seeds/zstd"));
    seeds.extend(files("fuzz/regressions/zstd"));
    replay("zstd_scan", seeds, bodies::zstd_scan);
}

#[test]
fn zstd_states() {
    // A window, some content, and then changes.
    let seed = |n: u8| vec![0x40 + n, n, n.wrapping_mul(5), 0, n % 16, n.wrapping_mul(7)];
    replay(
        "zstd_resume",
        (0..40).map(|n| (PathBuf::new(), seed(n))).collect(),
        bodies::zstd_resume,
    );
}

#[test]
fn headers_of_registries() {
    replay("headers", Vec::new(), bodies::headers);
}

#[test]
fn listings() {
    if soci::oracle_binary().is_some() {
        replay("listing", layers(".tar"), bodies::listing);
    }
}

#[test]
fn ztoc_decoder() {
    replay("ztoc", files("fixtures/golden/ztocs"), bodies::ztoc);
}

#[test]
fn fine_documents() {
    // The empty input, each valid document, and documents with a change in the header, the frames,
    // the list of pages, or the pages.
    let change = |first: u8, turn: u16| {
        let [low, high] = (turn * 97).to_le_bytes();
        vec![first, low, high, turn as u8, (turn * 31) as u8]
    };
    let seeds = (0..4).flat_map(|first| {
        (0..60).flat_map(move |turn| [change(first, turn), change(first | 128, turn)])
    });
    let seeds = (0..4).map(|first| vec![first]).chain(seeds).map(|seed| (PathBuf::new(), seed));
    replay("fine", seeds.collect(), bodies::fine);
}

#[test]
fn layer_indexer() {
    replay("layer", layers(""), bodies::layer);
}

#[test]
fn two_hashes_at_once() {
    replay("sha256", layers(".tar"), bodies::sha256);
}

#[test]
#[cfg(target_os = "linux")]
fn blocks_of_the_allocator() {
    // A zeroed block of each size, resized to each other, and freed.
    let resized =
        |from: u8| (0..10).flat_map(move |to| [0, from, 6, to, 0, 0]).collect::<Vec<u8>>();
    let seeds = (0..40).step_by(3).map(|form| (PathBuf::new(), resized(form)));
    replay("blocks", seeds.collect(), bodies::blocks);
}

/// All JSON documents below a folder.
fn documents(dir: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(
                std::fs::read_dir(path)
                    .expect("it can be listed")
                    .map(|entry| entry.expect("it is there").path()),
            );
        } else if let Ok(bytes) = std::fs::read(&path)
            && bytes.starts_with(b"{")
        {
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

#[test]
fn documents_of_registries() {
    let mut seeds = documents("fixtures/demo");
    seeds.extend(documents("fixtures/signatures/images"));
    replay("documents", seeds, bodies::documents);
}

#[test]
fn notifications_of_registries() {
    // The first byte chooses the kind of headers.
    let seeds: Vec<_> = documents("crates/ociseek-format/src/event/payloads")
        .into_iter()
        .flat_map(|(path, body)| {
            (0..32).map(move |first| (path.clone(), [&[first][..], &body].concat()))
        })
        .collect();
    replay("events", seeds, bodies::events);
}
