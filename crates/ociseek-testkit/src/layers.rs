//! A layer to tamper with, and its ztoc.
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use ociseek_format::layer::{BuiltZtoc, LayerIndexer, LayerOptions, Outcome};
use ociseek_format::offset::SpanSize;
use ociseek_format::ztoc::{Ztoc, decode};

use crate::random::letters;
use crate::tarball::{end, entry, file, pax};

pub const SPAN: u64 = 16 << 10;

pub fn text(seed: u64, size: usize) -> Vec<u8> {
    letters(seed).take(size).collect()
}

/// A tar with files, directories, links and attributes. Its 20 spans hold 10 files.
pub fn tar() -> Vec<u8> {
    let mut tar = entry(b'5', "dir/", "");
    for number in 0..8 {
        tar.extend(file(&format!("dir/file{number}"), &text(number, 40_000)));
    }
    tar.extend(file("dir/empty", b""));
    tar.extend(pax(b'x', &[("SCHILY.xattr.user.k", b"\0\xffv"), ("mtime", b"1600000000.5")]));
    tar.extend(file("dir/attributes", b"some"));
    tar.extend(entry(b'1', "dir/hard", "dir/file1"));
    tar.extend(entry(b'2', "dir/soft", "file1"));
    tar.extend(entry(b'2', "dir/out", "/"));
    tar.extend(file(".wh.gone", b""));
    tar.extend(end());
    tar
}

pub fn gzip(tar: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    // Blocks of a few kilobytes, so that there are borders for checkpoints.
    for chunk in tar.chunks(6000) {
        encoder.write_all(chunk).expect("memory");
        encoder.flush().expect("memory");
    }
    encoder.finish().expect("memory")
}

/// The ztoc that ociseek builds, which names `tool`.
pub fn built(layer: &[u8], span_size: u64, tool: &str) -> BuiltZtoc {
    let options = LayerOptions {
        span_size: SpanSize::new(span_size).unwrap(),
        build_tool_identifier: tool.into(),
        fine: false,
    };
    let mut indexer = LayerIndexer::new(options, None);
    indexer.push(layer).expect("the layer is sound");
    match indexer.finish().expect("the layer is sound").outcome {
        Outcome::Ztoc(built) => built,
        Outcome::Unservable(why) => panic!("{why}"),
    }
}

/// The same, decoded.
pub fn ztoc(layer: &[u8], span_size: u64) -> Ztoc {
    decode(&built(layer, span_size, "test").bytes).expect("ours can be read")
}
