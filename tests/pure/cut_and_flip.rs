//! Tests every prefix and every changed byte of twenty small layers and of their ztocs.
//!
//! Invariants under test: no input panics, is read past its end, or takes longer than a second.
//! Every layer that we accept is also accepted by zlib and Go's archive/tar, and our ztoc has the
//! same entries with the same bytes.
//!
//! CI tests a random sample. `OCISEEK_CUT_AND_FLIP=all` tests all inputs, and
//! `OCISEEK_CUT_AND_FLIP=N` the sample with seed N.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flate2::{Compression, GzBuilder};
use ociseek_format::layer::parallel::cores;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::ztoc::decode;

use crate::bodies;
use crate::bodies::listing::{Go, accepted, built, check_layer};
use ociseek_testkit::random::sampled;
use ociseek_testkit::tarball::{Block, end, entry, file, pax};
use ociseek_testkit::{layers, sandbox, soci};

/// The number of inputs in the sample.
const SAMPLE: usize = 20_000;
/// There are more inputs than this.
const LEAST: usize = 1_000_000;
/// The limit for an input, in processor time.
const LIMIT: Duration = Duration::from_secs(1);
/// The changes to each byte: single bits, or all of them.
const MASKS: [u8; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 255];

/// Files and links of all kinds.
fn usual() -> Vec<u8> {
    [
        entry(b'5', "bin/", ""),
        file("bin/program", &layers::text(1, 1500)),
        entry(b'1', "bin/other", "bin/program"),
        entry(b'2', "bin/sh", "program"),
        file("etc/empty", b""),
        file("etc/block", &[b'x'; 512]),
        entry(b'6', "run/pipe", ""),
        file(".wh.gone", b""),
        end(),
    ]
    .concat()
}

/// PAX records and attributes.
fn extended() -> Vec<u8> {
    let long = format!("{}/file", "long".repeat(40));
    [
        pax(b'x', &[("path", long.as_bytes()), ("mtime", b"1600000000.25"), ("uid", b"70000")]),
        file("short", &layers::text(2, 700)),
        pax(b'x', &[("SCHILY.xattr.user.k", b"\0\xffv"), ("linkpath", long.as_bytes())]),
        entry(b'2', "link", "short"),
        pax(b'x', &[("size", b"5"), ("uname", "M\u{fc}ller".as_bytes())]),
        Block { name: b"sized".to_vec(), size: 0, ..Block::default() }.bytes(),
        [b"hello".to_vec(), vec![0; 507]].concat(),
        end(),
    ]
    .concat()
}

/// Long names in GNU's format, and numbers that are too large for octal digits.
fn gnu() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(900);
    header.set_mode(0o4755);
    header.set_mtime(1_700_000_000);
    header.set_uid(3_000_000);
    builder.append_data(&mut header, "n".repeat(130), &layers::text(3, 900)[..]).unwrap();
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Symlink);
    builder.append_link(&mut header, "to", "t".repeat(120)).unwrap();
    builder.into_inner().unwrap()
}

/// Devices, old headers, prefixes, and archives that end without end blocks.
fn odd() -> Vec<u8> {
    let block = |name: &str, flag: u8| Block { name: name.into(), flag, ..Block::default() };
    [
        Block { prefix: b"a/prefix".to_vec(), uid: 2_000_000_000, ..block("null", b'3') }.bytes(),
        Block { magic: *b"\0\0\0\0\0\0\0\0", size: 3, ..block("old", 0) }.bytes(),
        [b"old".to_vec(), vec![0; 509]].concat(),
        Block { magic: *b"\0\0\0\0\0\0\0\0", ..block("olddir/", b'0') }.bytes(),
        Block { mtime: -5, magic: *b"ustar  \0", ..block("before", b'0') }.bytes(),
        file("last", b"bytes"),
    ]
    .concat()
}

fn gzip(level: u32, tar: &[u8], make: impl FnOnce(GzBuilder) -> GzBuilder) -> Vec<u8> {
    let mut encoder =
        make(GzBuilder::new().operating_system(255)).write(Vec::new(), Compression::new(level));
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}

fn libdeflate(tar: &[u8]) -> Vec<u8> {
    let mut compressor = libdeflater::Compressor::new(libdeflater::CompressionLvl::best());
    let mut out = vec![0; compressor.gzip_compress_bound(tar.len())];
    let length = compressor.gzip_compress(tar, &mut out).unwrap();
    out.truncate(length);
    out
}

fn zstd_frame(
    level: i32,
    tar: &[u8],
    make: impl FnOnce(&mut zstd::Encoder<'_, Vec<u8>>),
) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), level).unwrap();
    make(&mut encoder);
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}

fn fixture(name: &str) -> (String, Vec<u8>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden").join(name);
    (name.to_owned(), std::fs::read(path).expect("a fixture can be read"))
}

/// The layers, with the tools that made them.
fn small_layers() -> Vec<(String, Vec<u8>)> {
    let members =
        |tar: &[u8]| tar.chunks(1024).flat_map(|part| gzip(6, part, |b| b)).collect::<Vec<u8>>();
    let bgzip = |tar: &[u8]| {
        tar.chunks(1536)
            .flat_map(|part| gzip(6, part, |b| b.extra(&b"BC\x02\x00\xff\x3f"[..])))
            .collect::<Vec<u8>>()
    };
    let two_frames = |tar: &[u8]| {
        let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
        let (first, second) = tar.split_at(1000);
        [&zstd_frame(3, first, |_| ())[..], skipped, &zstd_frame(3, second, |_| ())].concat()
    };
    let made: [(&str, Vec<u8>); 16] = [
        ("plain, usual", usual()),
        ("plain, extended", extended()),
        ("plain, gnu", gnu()),
        ("plain, odd", odd()),
        ("zlib-rs 1", gzip(1, &usual(), |b| b)),
        ("zlib-rs 6", gzip(6, &extended(), |b| b)),
        (
            "zlib-rs 9, name and comment",
            gzip(9, &gnu(), |b| b.filename("layer.tar").comment("a layer").mtime(7)),
        ),
        ("stored", sandbox::gzip(&odd())),
        ("libdeflate", libdeflate(&usual())),
        ("flushed", layers::gzip(&extended(), 6)),
        ("members", members(&usual())),
        ("bgzip", bgzip(&gnu())),
        ("zstd 1", zstd_frame(1, &usual(), |_| ())),
        ("zstd 19", zstd_frame(19, &extended(), |_| ())),
        (
            "zstd, checksum",
            zstd_frame(3, &gnu(), |encoder| encoder.include_checksum(true).unwrap()),
        ),
        ("zstd, two frames", two_frames(&usual())),
    ];
    let by_tools = ["gnutar-gnu", "bsdtar-pax", "go-pax", "python-gnu"];
    let made = made.into_iter().map(|(name, layer)| (name.to_owned(), layer));
    made.chain(by_tools.map(|tool| fixture(&format!("layers/tree-{tool}.tar.gz")))).collect()
}

/// The ztocs, each with its layer.
fn small_ztocs() -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let made = [("usual", usual()), ("extended", extended()), ("gzip", layers::gzip(&usual(), 6))];
    let made = made
        .map(|(name, layer)| (format!("ztoc, {name}"), built(&layer).expect("it is sound"), layer));
    let by_soci = ["tree-gnutar-gnu.tar", "tree-go-pax.tar", "tree-ustar.tar.gz"].map(|name| {
        let (_, layer) = fixture(&format!("layers/{name}"));
        let (name, ztoc) = fixture(&format!("ztocs/{name}.ztoc"));
        (name, ztoc, layer)
    });
    made.into_iter().chain(by_soci).collect()
}

/// Input `number` for a layer or ztoc: first the prefixes, then each byte with each mask.
fn input(whole: &[u8], number: usize) -> Vec<u8> {
    match number.checked_sub(whole.len()) {
        None => whole[..number].to_vec(),
        Some(flip) => {
            let mut bytes = whole.to_vec();
            bytes[flip / MASKS.len()] ^= MASKS[flip % MASKS.len()];
            bytes
        }
    }
}

fn inputs(whole: &[u8]) -> usize {
    whole.len() * (1 + MASKS.len())
}

/// Whether a ztoc is accepted. Its tree and its spans are read too.
fn check_ztoc(ztoc: &[u8], layer: &[u8]) -> bool {
    bodies::ztoc(ztoc);
    let Ok(ztoc) = decode(ztoc) else { return false };
    let Ok(table) = SpanTable::new(Arc::new(ztoc)) else { return true };
    for span in table.each() {
        let range = table.blob_range(span);
        if let Some(blob) = layer.get(range.start.0 as usize..range.end.0 as usize) {
            bodies::ztocs::decode_span(&table, span, blob);
        }
    }
    true
}

/// The processor time of this thread so far. The load of the machine does not affect it.
fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux states it");
    let nanoseconds = times.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.expect("it begins with a number"))
}

#[test]
fn damaged_input_is_refused_or_read_as_by_other_decoders() {
    let go = soci::oracle_binary();
    let layers = small_layers();
    assert_eq!(layers.len(), 20);
    let ztocs = small_ztocs();
    for (name, layer) in &layers {
        accepted(layer).unwrap_or_else(|why| panic!("{name}, which is as it should be: {why}"));
        assert_eq!(check_layer(layer, go.as_deref().map(Go::start).as_mut()), Ok(true), "{name}");
    }
    type Check<'a> = Box<dyn Fn(&[u8], Option<&mut Go>) -> Result<bool, String> + Sync + 'a>;
    let layers =
        layers.iter().map(|(name, layer)| (name, layer, Box::new(check_layer) as Check<'_>));
    let ztocs = ztocs.iter().map(|(name, ztoc, layer)| {
        (
            name,
            ztoc,
            Box::new(move |ztoc: &[u8], _: Option<&mut Go>| Ok(check_ztoc(ztoc, layer)))
                as Check<'_>,
        )
    });
    let subjects: Vec<_> = layers.chain(ztocs).collect();
    let total: usize = subjects.iter().map(|(_, whole, _)| inputs(whole)).sum();
    assert!(total > LEAST, "there are only {total} inputs");
    let chosen = sampled("OCISEEK_CUT_AND_FLIP", total, SAMPLE);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut go = go.as_deref().map(Go::start);
        let mut accepted = 0_usize;
        let mut slowest = Duration::ZERO;
        let mut wrong = Vec::new();
        let mut begun = processor_time();
        while let Some(&number) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut within = number;
            let (name, whole, check) = subjects
                .iter()
                .find(|(_, whole, _)| {
                    let is_here = within < inputs(whole);
                    within -= if is_here { 0 } else { inputs(whole) };
                    is_here
                })
                .expect("it is one of all");
            let bytes = input(whole, within);
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&bytes, go.as_mut())
            }));
            let ended = processor_time();
            let took = ended - std::mem::replace(&mut begun, ended);
            slowest = slowest.max(took);
            if took > LIMIT {
                wrong.push(format!("{name}, input {within}: it took {} ms", took.as_millis()));
            }
            match checked {
                Ok(Ok(is_accepted)) => accepted += usize::from(is_accepted),
                Ok(Err(why)) => wrong.push(format!("{name}, input {within}: {why}")),
                Err(_) => wrong.push(format!("{name}, input {within}: a panic")),
            }
        }
        (accepted, slowest, wrong)
    };
    let done: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores()).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let accepted: usize = done.iter().map(|(accepted, ..)| accepted).sum();
    let slowest = done.iter().map(|(_, slowest, _)| *slowest).max().unwrap_or_default();
    let wrong: Vec<String> = done.into_iter().flat_map(|(.., wrong)| wrong).collect();
    println!(
        "cut and flip: {} of {total} inputs, {accepted} accepted, the slowest took {} ms, {} wrong",
        chosen.len(),
        slowest.as_millis(),
        wrong.len()
    );
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        chosen.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(accepted > chosen.len() / 100, "only {accepted} of {} were accepted", chosen.len());
}
