//! `fine LAYER...`: what collecting a fine document costs. For each layer, in CPU seconds of one
//! thread: indexing without and with it, and encoding it; and the sizes of the document and of its
//! head. Each is the least of five runs.

use std::error::Error;

use ociseek_format::layer::{IndexedLayer, LayerError, LayerIndexer, LayerOptions};

const RUNS: usize = 5;

/// Nanoseconds of CPU that this thread has used.
fn cpu() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0)
}

fn index(blob: &[u8], fine: bool) -> Result<IndexedLayer, LayerError> {
    let mut indexer = LayerIndexer::new(LayerOptions { fine, ..LayerOptions::default() }, None);
    blob.chunks(256 << 10).try_for_each(|chunk| indexer.push(chunk))?;
    indexer.finish()
}

/// The least CPU time of some runs, in seconds, and the last result.
fn timed<T>(mut run: impl FnMut() -> T) -> (f64, T) {
    let mut once = || {
        let start = cpu();
        let result = run();
        ((cpu() - start) as f64 / 1e9, result)
    };
    let first = once();
    (1..RUNS).fold(first, |(least, _), _| {
        let (seconds, result) = once();
        (least.min(seconds), result)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("    layer MB  without s   with s     more  encode s  document   head  spans");
    for path in std::env::args().skip(1) {
        let blob = std::fs::read(&path)?;
        let (without, _) = timed(|| index(&blob, false));
        let (with, indexed) = timed(|| index(&blob, true));
        let Some(layer) = indexed?.fine else {
            println!("{path}: it gets no fine document");
            continue;
        };
        let (encoding, encoded) = timed(|| layer.encode(&[]));
        let encoded = encoded?;
        let percent = |part: f64, of: f64| 100.0 * part / of;
        println!(
            "{:12.2} {without:10.3} {with:8.3} {:+7.1}% {encoding:9.3} {:8.2}% {:5.2}% {:6}  {path}",
            blob.len() as f64 / 1e6,
            percent(with - without, without),
            percent(encoded.bytes.len() as f64, blob.len() as f64),
            percent(encoded.head_size as f64, blob.len() as f64),
            layer.spans().count(),
        );
    }
    Ok(())
}
