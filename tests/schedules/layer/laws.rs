//! What must hold for a layer that is read on several threads, whatever the order of the steps.

use bytes::Bytes;
use shuttle::rand::Rng;

use super::parallel::{ChunksError, Threads, index_chunks};
use super::{IndexedLayer, LayerError, LayerOptions};
use crate::budget::Budget;
use crate::codec::CHUNK;

/// More than fit into the channels between the threads.
const CHUNKS: u8 = 24;

static BLOB: [u8; CHUNKS as usize * CHUNK] = {
    let mut blob = [0; CHUNKS as usize * CHUNK];
    let mut number = 0;
    while number < CHUNKS {
        blob[number as usize * CHUNK] = number;
        number += 1;
    }
    blob
};

/// Reads the blob in batches of one or two chunks. `fails_after` is the number of the batch that
/// cannot be fetched.
fn read(
    options: LayerOptions,
    cores: usize,
    fails_after: Option<usize>,
) -> Result<IndexedLayer, ChunksError<&'static str>> {
    let mut chunks = BLOB.chunks(CHUNK).map(Bytes::from_static);
    let mut batches = 0;
    let next = || {
        if fails_after == Some(batches) {
            return Err("gone");
        }
        batches += 1;
        let batch: Vec<Bytes> = chunks.by_ref().take(1 + batches % 2).collect();
        Ok((!batch.is_empty()).then_some(batch))
    };
    index_chunks(options, None, Threads { cores, guide: None }, &Budget::default(), next)
}

/// Chunks are scanned and hashed in order, each once, however many threads decode, and whether they
/// guess right or not.
pub fn chunks_keep_their_order() {
    let all: Vec<u8> = (0..CHUNKS).collect();
    let cores = shuttle::rand::thread_rng().gen_range(1..4);
    let is_misleading = shuttle::rand::thread_rng().r#gen();
    let layer = read(LayerOptions { is_misleading, ..LayerOptions::default() }, cores, None);
    assert_eq!(layer, Ok(IndexedLayer { scanned: all.clone(), hashed: all }));
}

/// A source that fails and a broken layer end all threads, with their error.
pub fn failures_end_all_threads() {
    let cores = shuttle::rand::thread_rng().gen_range(1..4);
    let batch = shuttle::rand::thread_rng().gen_range(0..12);
    assert_eq!(read(LayerOptions::default(), cores, Some(batch)), Err(ChunksError::Next("gone")));
    let broken = LayerOptions { broken_after: Some(batch), ..LayerOptions::default() };
    assert_eq!(read(broken, cores, None), Err(ChunksError::Layer(LayerError::Broken)));
}
