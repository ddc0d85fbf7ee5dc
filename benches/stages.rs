//! `cargo bench --bench stages`: the cost of each stage of indexing and reading a layer. The layer
//! is `$OCISEEK_BENCH_LAYER` (gzip, one member), or a generated one of 24 MB. `benches/compare`
//! prints ratios to other tools, measured in the same run.

use std::hint::black_box;
use std::io::{Read, Seek, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use ociseek_format::budget::Budget;
use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::internals::{BlockStart, GzipReader, Sink};
use ociseek_format::layer::parallel::{Threads, index_chunks};
use ociseek_format::layer::span::SpanTable;
use ociseek_format::layer::{LayerIndexer, LayerOptions, Outcome};
use ociseek_format::offset::{SpanId, SpanSize};
use ociseek_format::tar::Walker;
use ociseek_format::ztoc;

/// The size of chunks from stores.
const CHUNK: usize = 256 << 10;
/// The size of a gzip header without a name, and of the trailer (RFC 1952, section 2.3).
const HEADER: usize = 10;
const TRAILER: usize = 8;

struct Layer {
    blob: Vec<u8>,
    tar: Vec<u8>,
}

fn layer() -> Layer {
    let blob = match std::env::var_os("OCISEEK_BENCH_LAYER") {
        Some(path) => std::fs::read(path).expect("the layer can be read"),
        None => made(),
    };
    let mut tar = Vec::new();
    flate2::read::MultiGzDecoder::new(&blob[..]).read_to_end(&mut tar).expect("the layer is gzip");
    Layer { blob, tar }
}

/// Files of words from a small vocabulary, in all lengths, with some noise. They compress about
/// like a layer.
fn made() -> Vec<u8> {
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let words: Vec<Vec<u8>> =
        (0..4000).map(|_| (0..2 + random(12)).map(|_| b'a' + random(26) as u8).collect()).collect();
    let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(
        Vec::new(),
        flate2::Compression::default(),
    ));
    for file in 0..1200u64 {
        let mut content = Vec::new();
        while content.len() < (1 << (file % 16)) {
            let rare = random(4000) + 1;
            content.extend_from_slice(&words[random(rare) as usize]);
            content.push(if random(9) == 0 { random(256) as u8 } else { b' ' });
        }
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append_data(&mut header, format!("usr/share/d{}/f{file}", file % 40), &content[..])
            .expect("is in memory");
    }
    let mut gzip = tar.into_inner().expect("is in memory");
    gzip.flush().expect("is in memory");
    gzip.finish().expect("is in memory")
}

struct Nothing;

impl Sink for Nothing {
    fn output(&mut self, bytes: &[u8]) {
        black_box(bytes);
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        black_box(at.input);
    }
}

fn group<'a>(
    criterion: &'a mut Criterion,
    name: &str,
    bytes: usize,
) -> BenchmarkGroup<'a, criterion::measurement::WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Bytes(bytes as u64)).sample_size(10);
    group
}

fn stages(criterion: &mut Criterion) {
    let Layer { blob, tar } = layer();
    let options = LayerOptions {
        span_size: SpanSize::DEFAULT,
        build_tool_identifier: "bench".into(),
        fine: false,
    };
    let index = || {
        let mut indexer = LayerIndexer::new(options.clone(), None);
        for chunk in blob.chunks(CHUNK) {
            indexer.push(chunk).expect("the layer is sound");
        }
        match indexer.finish().expect("the layer is sound").outcome {
            Outcome::Ztoc(ztoc) => ztoc,
            Outcome::Unservable(why) => panic!("{why}"),
        }
    };

    let mut file = tempfile::tempfile().expect("there is a temporary folder");
    file.write_all(&blob).expect("the blob can be written");
    let mut reading = group(criterion, "reading (bytes of blob)", blob.len());
    reading.bench_function("from the page cache", |bench| {
        let mut chunk = vec![0; CHUNK];
        bench.iter(|| {
            file.rewind().expect("is a file");
            while file.read(&mut chunk).expect("can be read") > 0 {
                black_box(&chunk);
            }
        });
    });
    reading.finish();

    let mut codec = group(criterion, "codec (bytes of tar)", tar.len());
    codec.bench_function("inflate by libdeflate, no CRC-32", |bench| {
        let mut libdeflate = libdeflater::Decompressor::new();
        let mut plain = vec![0; tar.len()];
        let deflate = &blob[HEADER..blob.len() - TRAILER];
        bench.iter(|| {
            libdeflate.deflate_decompress(deflate, &mut plain).expect("the layer is sound")
        });
    });
    codec.bench_function("CRC-32", |bench| bench.iter(|| crc32fast::hash(&tar)));
    codec.bench_function("inflate with block stops and CRC-32", |bench| {
        bench.iter(|| {
            let mut reader = GzipReader::new();
            for chunk in blob.chunks(CHUNK) {
                reader.push(chunk, &mut Nothing).expect("the layer is sound");
            }
            reader.finish().expect("the layer is whole")
        });
    });
    codec.finish();

    let mut walk = group(criterion, "tar (bytes of tar)", tar.len());
    walk.bench_function("walk", |bench| {
        bench.iter(|| {
            let mut walker = Walker::new();
            let mut entries = 0;
            for chunk in tar.chunks(CHUNK) {
                walker.push(chunk, &mut |_| entries += 1).expect("the layer is sound");
            }
            entries
        });
    });
    walk.finish();

    let mut hashing = group(criterion, "hashing (bytes of blob)", blob.len());
    hashing.bench_function("one SHA-256", |bench| {
        bench.iter(|| {
            let mut hasher = Hasher::new(Algorithm::Sha256);
            hasher.update(&blob);
            hasher.finish()
        });
    });
    hashing.bench_function("two SHA-256 at once", |bench| {
        bench.iter(|| {
            let mut a = Hasher::new(Algorithm::Sha256);
            let mut b = Hasher::new(Algorithm::Sha256);
            Hasher::update_both(&mut a, &mut b, &blob);
            (a.finish(), b.finish())
        });
    });
    hashing.finish();

    let mut indexer = group(criterion, "indexer (bytes of tar)", tar.len());
    indexer.bench_function("one thread", |bench| bench.iter(index));
    let shared = bytes::Bytes::from(blob.clone());
    for cores in [1, 2, 4, 8] {
        indexer.bench_function(format!("threads for {cores} cores"), |bench| {
            bench.iter(|| {
                let mut at = (0..shared.len()).step_by(CHUNK);
                let next = || {
                    let chunk = |at| shared.slice(at..shared.len().min(at + CHUNK));
                    Ok::<_, std::convert::Infallible>(at.next().map(|at| vec![chunk(at)]))
                };
                let threads = Threads { cores, guide: None };
                let budget = Budget::new(u64::MAX);
                index_chunks(options.clone(), None, threads, &budget, next)
                    .expect("the layer is sound")
            });
        });
    }
    indexer.finish();

    let ztoc = ztoc::decode(&index().bytes).expect("is ours");
    let mut encoding = group(criterion, "ztoc (bytes of ztoc)", ztoc::encode(&ztoc).len());
    encoding.bench_function("encode and hash", |bench| {
        bench.iter(|| Digest::sha256(&ztoc::encode(&ztoc)))
    });
    encoding.finish();

    let table = SpanTable::new(Arc::new(ztoc)).expect("is ours");
    let mut spans = group(criterion, "span read (bytes of tar)", tar.len());
    spans.bench_function("every span from its checkpoint", |bench| {
        bench.iter(|| {
            for span in (0..table.count()).map(SpanId) {
                let range = table.blob_range(span);
                let compressed = &blob[range.start.0 as usize..range.end.0 as usize];
                let mut take = |bytes: &[u8]| {
                    black_box(bytes);
                    ControlFlow::Continue(())
                };
                table.decode(span, compressed, &mut take).expect("the layer is sound");
            }
        });
    });
    spans.finish();
}

criterion_group!(benches, stages);
criterion_main!(benches);
