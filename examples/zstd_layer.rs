//! `zstd_layer decode|index|spans|gzip LAYER`: one way to read a zstd layer, for `benches/zstd`.
//! Prints the tar's size in bytes, the seconds of wall time, and the size of the fine document (0
//! if none is made). The layer is in memory.
//!
//! - `decode`: libzstd decodes the layer, and its SHA-256 is computed, on one thread.
//! - `index`: the layer is indexed with a fine document, on two threads.
//! - `spans`: each span is read by that document as a mount does, on one thread.
//! - `gzip`: the layer is decoded, compressed with gzip at level 6, and that is indexed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::time::Instant;

use bytes::Bytes;
use ociseek_format::budget::Budget;
use ociseek_format::codec::ZstdReader;
use ociseek_format::digest::{Algorithm, Hasher};
use ociseek_format::fine::FineLayer;
use ociseek_format::layer::LayerOptions;
use ociseek_format::layer::parallel::{Threads, index_chunks};
use ociseek_format::layer::prove::decode_to_next;
use ociseek_format::offset::SpanId;

/// The size of chunks from stores.
const CHUNK: usize = 256 << 10;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, way, path] = &arguments[..] else { panic!("zstd_layer decode|index|spans|gzip LAYER") };
    let blob = Bytes::from(std::fs::read(path).expect("the layer can be read"));
    let by = if way == "spans" { Some(index(&blob)) } else { None };
    let started = Instant::now();
    let mut size = 0;
    let document = match (way.as_str(), by) {
        ("decode", _) => {
            decode(&blob, &mut |bytes| size += black_box(bytes).len());
            None
        }
        ("index", _) => Some(index(&blob)),
        ("spans", Some(layer)) => {
            size = spans(&layer, &blob);
            None
        }
        ("gzip", _) => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
            decode(&blob, &mut |bytes| gzip.write_all(bytes).expect("it is memory"));
            Some(index(&gzip.finish().expect("it is memory").into()))
        }
        _ => panic!("no such way: {way}"),
    };
    let seconds = started.elapsed().as_secs_f64();
    if let Some(layer) = &document {
        size = layer.spans().tar_end().0 as usize;
    }
    let encoded =
        document.map_or(0, |layer| layer.encode(&[]).expect("it can be encoded").bytes.len());
    println!("{size} {seconds} {encoded}");
}

fn decode(blob: &[u8], out: &mut impl FnMut(&[u8])) {
    let mut reader = ZstdReader::new().expect("there is memory");
    let mut hasher = Hasher::new(Algorithm::Sha256);
    for chunk in blob.chunks(CHUNK) {
        hasher.update(chunk);
        let decoded = reader.push(chunk, &mut |bytes| {
            out(bytes);
            io::Result::Ok(())
        });
        decoded.expect("the layer is zstd");
    }
    black_box(hasher.finish());
}

fn index(blob: &Bytes) -> FineLayer {
    let options = LayerOptions { fine: true, ..LayerOptions::default() };
    let mut rest = blob.clone();
    let next = || {
        let chunk = rest.split_to(CHUNK.min(rest.len()));
        Ok::<_, Infallible>((!chunk.is_empty()).then(|| vec![chunk]))
    };
    let indexed =
        index_chunks(options, None, Threads { cores: 2, guide: None }, &Budget::default(), next);
    indexed.expect("the layer can be indexed").fine.expect("it can have a document")
}

fn spans(layer: &FineLayer, blob: &[u8]) -> usize {
    let windows =
        layer.windows().flat_map(|windows| windows.expect("they can be read").into_windows());
    let windows: BTreeMap<_, _> = windows.collect();
    let mut size = 0;
    for span in SpanId::each(SpanId(0)..SpanId(layer.spans().count())) {
        let range = layer.spans().fetch_range(span);
        let bytes = &blob[range.start.0 as usize..range.end.0 as usize];
        let both = [windows.get(&span), windows.get(&SpanId(span.0 + 1))];
        let decoded = decode_to_next(layer.spans(), span, both, bytes, &mut |bytes| {
            size += black_box(bytes).len();
            ControlFlow::Continue(())
        });
        decoded.expect("the document is right");
    }
    size
}
