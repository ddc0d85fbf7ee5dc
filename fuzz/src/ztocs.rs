//! Ztocs, as far as a reader uses them: the tree of their files, and their spans.
//!
//! Invariants under test: no panic; the decoded size is limited by the input; a ztoc survives
//! encoding and decoding; the path that a tree states for a file leads to that file; a span decodes
//! to the number of bytes that the ztoc states, or gives an error.

use std::ops::ControlFlow;
use std::sync::Arc;

use ociseek_format::digest::Digest;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::SpanId;
use ociseek_format::tree::{NodeId, PathError, Tree};
use ociseek_format::ztoc::{self, FileMetadata, Ztoc};

/// How many spans of a ztoc are decoded, and about how many files of a tree are looked up.
const MOST: usize = 8;
/// The limit for the size of these spans, in bytes of the blob.
const LARGEST: u64 = 16 << 10;

/// The bytes are both the ztoc and, repeated, the blob.
pub fn read(data: &[u8]) {
    let Ok(decoded) = ztoc::decode(data) else { return };
    let text: usize = decoded
        .files
        .iter()
        .map(|f| f.name.len() + f.linkname.len() + f.uname.len() + f.gname.len())
        .sum();
    assert!(text <= 2 * data.len(), "{} bytes decoded to {text} bytes of text", data.len());
    let encoded = ztoc::encode(&decoded);
    assert_eq!(ztoc::decode(&encoded).as_ref(), Ok(&decoded));
    assert_eq!(ztoc::encode(&decoded), encoded);
    look_up(&decoded.files);
    if let Ok(table) = SpanTable::new(Arc::new(decoded)) {
        decode_first(&table, data);
    }
}

/// Resolves some paths of the trees of these files: as an image of one layer, and as one of two.
fn look_up(files: &[FileMetadata]) {
    let (lower, upper) = files.split_at(files.len() / 2);
    let trees = [Tree::flatten([files]), Tree::flatten([lower, upper])];
    for tree in trees.iter().flatten() {
        for number in (0..tree.len()).step_by(tree.len().div_ceil(MOST)) {
            let node = NodeId(number as u32);
            match tree.resolve(&tree.path(node), false) {
                Err(PathError::TooLong) => {}
                found => assert_eq!(found, Ok(node)),
            }
        }
    }
}

/// Decodes the first spans from parts of `blob`, which is repeated up to the size of the layer. The
/// ztoc gets the digests of these parts, because others are refused before they are decoded.
fn decode_first(table: &SpanTable, blob: &[u8]) {
    let parts = table.each().take(MOST).filter_map(|span| {
        let range = table.blob_range(span);
        let size = range.end - range.start;
        let from = (range.start.0 % blob.len() as u64) as usize;
        let part = blob.iter().cycle().skip(from).take(size as usize).copied();
        (size <= LARGEST).then(|| (span, part.collect()))
    });
    let parts: Vec<(SpanId, Vec<u8>)> = parts.collect();
    let mut forged = Ztoc::clone(table.ztoc());
    for (span, part) in &parts {
        forged.span_digests[span.0 as usize] = Digest::sha256(part);
    }
    let forged = SpanTable::new(Arc::new(forged)).expect("it has the same spans");
    parts.iter().for_each(|(span, part)| decode_span(&forged, *span, part));
}

/// Decodes a span from any bytes.
pub fn decode_span(table: &SpanTable, span: SpanId, blob: &[u8]) {
    let plain = table.plain_range(span);
    let expected = plain.end - plain.start;
    let mut length = 0;
    let decoded = table.decode(span, blob, &mut |piece| {
        length += piece.len() as u64;
        ControlFlow::Continue(())
    });
    let is_right = length == expected || decoded.is_err() && length < expected;
    assert!(is_right, "span {span} decoded to {length} bytes, not {expected}: {decoded:?}");
}
