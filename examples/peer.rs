//! `peer libdeflate|zlib-rs|ociseek LAYER`: only inflates a gzip layer, for `benches/compare` and
//! `benches/decoder`. Prints the tar's size in bytes and the seconds for inflating, with the layer
//! in memory and the output's pages already allocated.

use std::hint::black_box;
use std::io::Read;
use std::time::Instant;

use ociseek_format::internals::{BlockStart, GzipReader, Sink};

/// The size of a gzip header without a name, as written by image builders. The trailer follows RFC
/// 1952, section 2.3.
const HEADER: usize = 10;
const TRAILER: usize = 8;
/// The size of chunks from stores.
const CHUNK: usize = 256 << 10;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, library, path] = &arguments[..] else {
        panic!("peer libdeflate|zlib-rs|ociseek LAYER")
    };
    let blob = std::fs::read(path).expect("the layer can be read");
    let inflate = match library.as_str() {
        "libdeflate" => libdeflate,
        "zlib-rs" => zlib_rs,
        "ociseek" => ociseek,
        _ => panic!("no such library: {library}"),
    };
    // With several members, the trailer only has the length of the last one.
    let mut plain = vec![0; ociseek(&blob, &mut [])];
    plain.fill(1);
    let started = Instant::now();
    let size = inflate(&blob, &mut plain);
    println!("{size} {}", started.elapsed().as_secs_f64());
}

/// The whole layer at once, without its checksum, for the highest speed. Only for layers with a
/// single member.
fn libdeflate(blob: &[u8], plain: &mut [u8]) -> usize {
    let blob = &blob[HEADER..blob.len() - TRAILER];
    let made = libdeflater::Decompressor::new().deflate_decompress(blob, plain);
    assert_eq!(made, Ok(plain.len()), "the layer has one member");
    plain.len()
}

/// Into a reused buffer of 256 KiB, with checksums.
fn zlib_rs(blob: &[u8], _plain: &mut [u8]) -> usize {
    let mut decoder = flate2::bufread::MultiGzDecoder::new(blob);
    let mut slot = vec![0; CHUNK];
    let mut size = 0;
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
    let mut reader = GzipReader::new();
    let mut count = Count(0);
    for chunk in blob.chunks(CHUNK) {
        reader.push(chunk, &mut count).expect("the layer is gzip");
    }
    count.0
}
