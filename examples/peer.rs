//! `peer libdeflate|zlib-rs|ociseek LAYER`: inflates a gzip layer and nothing else, for
//! `benches/compare` and `benches/decoder`. Prints the tar's size in bytes and the seconds that
//! inflating took, the layer in memory and the output's pages touched before.

use std::hint::black_box;
use std::io::Read;
use std::time::Instant;

use ociseek::codec::gzip::{BlockStart, GzipReader, Sink};

/// A gzip header without a name, as image builders write it, and its trailer (RFC 1952, section 2.3).
const HEADER: usize = 10;
const TRAILER: usize = 8;
/// As stores hand them out.
const CHUNK: usize = 256 << 10;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, library, path] = &arguments[..] else { panic!("peer libdeflate|zlib-rs|ociseek LAYER") };
    let blob = std::fs::read(path).expect("the layer can be read");
    let inflate = match library.as_str() {
        "libdeflate" => libdeflate,
        "zlib-rs" => zlib_rs,
        "ociseek" => ociseek,
        _ => panic!("no such library: {library}"),
    };
    // Of several members the trailer tells the length of the last one only.
    let mut plain = vec![0; ociseek(&blob, &mut [])];
    plain.fill(1);
    let started = Instant::now();
    let size = inflate(&blob, &mut plain);
    println!("{size} {}", started.elapsed().as_secs_f64());
}

/// The whole layer at once, without its checksum: as fast as it gets. Only for layers of one member.
fn libdeflate(blob: &[u8], plain: &mut [u8]) -> usize {
    let blob = &blob[HEADER..blob.len() - TRAILER];
    let made = libdeflater::Decompressor::new().deflate_decompress(blob, plain);
    assert_eq!(made, Ok(plain.len()), "the layer has one member");
    plain.len()
}

/// Into 256 KiB that are used again, with checksums.
fn zlib_rs(blob: &[u8], _plain: &mut [u8]) -> usize {
    let (mut decoder, mut slot, mut size) = (flate2::bufread::MultiGzDecoder::new(blob), vec![0; CHUNK], 0);
    loop {
        match decoder.read(&mut slot).expect("the layer is gzip") {
            0 => return size,
            read => size += black_box(&slot[..read]).len(),
        }
    }
}

/// The same, with a stop at each block.
fn ociseek(blob: &[u8], _plain: &mut [u8]) -> usize {
    struct Count(usize);
    impl Sink for Count {
        fn output(&mut self, bytes: &[u8]) {
            self.0 += black_box(bytes).len();
        }
        fn block_start(&mut self, at: BlockStart<'_>) {
            black_box(at);
        }
    }
    let (mut reader, mut count) = (GzipReader::new(), Count(0));
    for chunk in blob.chunks(CHUNK) {
        reader.push(chunk, &mut count).expect("the layer is gzip");
    }
    count.0
}
