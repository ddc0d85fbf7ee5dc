//! Decoding in the middle of a stream, from a forged checkpoint.
//!
//! Invariants under test: no panic; never more bytes than the ztoc claims, and exactly those on
//! success; the same bytes as with single bytes of input, which never enter the decoder's fast
//! loop.

use std::ops::ControlFlow;
use std::sync::Arc;

use ociseek_format::digest::Digest;
use ociseek_format::internals::{BlockStart, GzipReader, Sink};
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::offset::{Compressed, SpanId, SpanSize, Uncompressed};
use ociseek_format::ztoc::{Checkpoint, Checkpoints, VERSION, Ztoc};

/// The limit for the claimed size of a span.
const MOST: u64 = 8 << 20;

/// Four bytes state how many bits of the fifth belong to the span, the window, and the claimed
/// size. The rest is the span.
pub fn decode(data: &[u8]) {
    let Some((&[bits, window, low, high], blob)) = data.split_first_chunk() else { return };
    let bits = if blob.is_empty() { 0 } else { bits % 8 };
    let claimed = (u64::from(low) << (high % 16)).min(MOST);
    let window: Box<[u8; 32768]> =
        Box::new(std::array::from_fn(|i| if window == 0 { 0 } else { (i as u8) ^ window }));
    let input = Compressed(u64::from(bits != 0));
    let checkpoint = Checkpoint { input, output: Uncompressed(0), bits, window };
    let ztoc = Ztoc {
        version: VERSION.into(),
        build_tool_identifier: Box::default(),
        compressed_size: Compressed(blob.len() as u64),
        uncompressed_size: Uncompressed(claimed),
        files: Vec::new(),
        checkpoints: Checkpoints::Gzip {
            span_size: SpanSize::new(1).unwrap(),
            list: vec![checkpoint.clone()],
        },
        span_digests: vec![Digest::sha256(blob)],
    };
    let table = SpanTable::new(Arc::new(ztoc)).expect("one checkpoint at the start is in order");
    let mut decoded = Vec::new();
    let result = table.decode(SpanId(0), blob, &mut |piece| {
        decoded.extend_from_slice(piece);
        ControlFlow::Continue(())
    });
    assert!(decoded.len() as u64 <= claimed);
    match &result {
        Ok(()) => assert_eq!(decoded.len() as u64, claimed),
        Err(SpanError::Short { found, .. }) => assert_eq!(decoded.len() as u64, *found),
        Err(SpanError::Gzip { .. }) => {}
        Err(other) => panic!("{other}"),
    }
    if blob.len() < 20_000 {
        let slow = bytewise(&checkpoint, blob, claimed as usize);
        let common = slow.len().min(decoded.len());
        assert_eq!(slow[..common], decoded[..common]);
        assert!(result.is_err() || slow == decoded);
    }
}

struct Taken(Vec<u8>);

impl Sink for Taken {
    fn output(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn block_start(&mut self, _at: BlockStart<'_>) {}
}

fn bytewise(checkpoint: &Checkpoint, blob: &[u8], most: usize) -> Vec<u8> {
    let Checkpoint { input, output, bits, window } = checkpoint;
    let at = BlockStart { input: *input, output: *output, bits: *bits, window };
    let mut reader = GzipReader::resume(at, blob.first().copied().unwrap_or(0));
    let mut taken = Taken(Vec::new());
    for byte in blob[input.0 as usize..].chunks(1) {
        if taken.0.len() >= most || reader.push(byte, &mut taken).is_err() {
            break;
        }
    }
    taken.0.truncate(most);
    taken.0
}
