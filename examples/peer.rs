//! `peer libdeflate|zlib-rs LAYER`: inflates a gzip layer of one member with another library and nothing else, for `benches/compare`.
//! Prints the tar's size in bytes and the seconds that inflating took, the layer in memory and the output's pages touched before.

use std::io::Read;
use std::time::Instant;

/// A gzip header without a name, as image builders write it, and its trailer (RFC 1952, section 2.3).
const HEADER: usize = 10;
const TRAILER: usize = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, library, path] = &arguments[..] else { panic!("peer libdeflate|zlib-rs LAYER") };
    let blob = std::fs::read(path).expect("the layer can be read");
    let size = u32::from_le_bytes(*blob.last_chunk().expect("it has a trailer")) as usize;
    let inflate = match library.as_str() {
        "libdeflate" => libdeflate,
        "zlib-rs" => zlib_rs,
        _ => panic!("no such library: {library}"),
    };
    let mut plain = vec![1; size];
    let started = Instant::now();
    inflate(&blob[HEADER..blob.len() - TRAILER], &mut plain);
    println!("{size} {}", started.elapsed().as_secs_f64());
}

/// The whole layer at once: as fast as it gets.
fn libdeflate(blob: &[u8], plain: &mut [u8]) {
    let made = libdeflater::Decompressor::new().deflate_decompress(blob, plain);
    assert_eq!(made, Ok(plain.len()), "the layer has one member");
}

/// 256 KiB at a time.
fn zlib_rs(blob: &[u8], plain: &mut [u8]) {
    let mut decoder = flate2::bufread::DeflateDecoder::new(blob);
    for chunk in plain.chunks_mut(256 << 10) {
        decoder.read_exact(chunk).expect("the layer has one member");
    }
}
