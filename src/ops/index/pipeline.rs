//! One layer on two threads: one decodes, the other hashes.

use std::sync::mpsc::sync_channel;
use std::thread;

use bytes::Bytes;

use crate::digest::Digest;
use crate::layer::{IndexedLayer, LayerError, LayerHashes, LayerOptions, LayerScan, Spans};

/// How many chunks may wait to be hashed: enough to even out chunks that decode to much and to little.
const CHUNKS: usize = 4;

/// Indexes a blob, of which digest and size in bytes may be known. `next` gives its chunks and `None` at its end; it waits for the wire.
/// Decodes on this thread and hashes on another one: what is waited for is the longer of the two, which is decoding, or for a plain tar hashing.
///
/// # Errors
/// The outer one is that of `next`. The inner one tells that the layer is broken.
pub fn index_chunks<E>(
    options: LayerOptions,
    expected: Option<(Digest, u64)>,
    mut next: impl FnMut() -> Result<Option<Bytes>, E>,
) -> Result<Result<IndexedLayer, LayerError>, E> {
    let (mut scan, mut hashes) = LayerScan::new(options, expected);
    thread::scope(|scope| {
        let (scanned, to_hash) = sync_channel::<(Bytes, Spans)>(CHUNKS);
        let hashing = scope.spawn(move || {
            for (chunk, spans) in to_hash {
                hashes.push(&chunk, &spans);
            }
            LayerHashes::finish(hashes)
        });
        while let Some(chunk) = next()? {
            match scan.push(&chunk) {
                // Nobody takes it only if that thread panicked, which joining it passes on.
                Ok(spans) => drop(scanned.send((chunk, spans))),
                Err(error) => return Ok(Err(error)),
            }
        }
        match scan.end() {
            Ok(spans) => drop(scanned.send((Bytes::new(), spans))),
            Err(error) => return Ok(Err(error)),
        }
        drop(scanned);
        match hashing.join() {
            Ok(hashed) => Ok(scan.finish(hashed)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
