//! Properties that hold for every layer and every way of reading it.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::layer::{
    BuiltZtoc, IndexedLayer, LayerError, LayerIndexer, LayerOptions, Outcome,
};
use ociseek_format::offset::{Compressed, SpanId, SpanSize};
use ociseek_format::ztoc::{self, Checkpoints};
use proptest::prelude::*;

/// A tar of files with these sizes. Their bytes are a mix of noise and a repeated line.
fn tar_of(sizes: &[usize], noise: u32) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut state = noise | 1;
    for (number, &size) in sizes.iter().enumerate() {
        let data: Vec<u8> = (0..size)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if noise.is_multiple_of(3) {
                    b"all work and no play "[i % 21]
                } else {
                    (state >> 24) as u8 & 0x3f
                }
            })
            .collect();
        let mut header = tar::Header::new_ustar();
        header.set_size(size as u64);
        header.set_mode(0o644);
        header.set_mtime(1_700_000_000);
        builder
            .append_data(&mut header, format!("dir{}/file{number}", number % 3), &data[..])
            .unwrap();
    }
    builder.into_inner().unwrap()
}

/// The tar as gzip with `members` members.
fn gzip(tar: &[u8], level: u32, members: usize) -> Vec<u8> {
    let mut blob = Vec::new();
    for part in tar.chunks(tar.len().div_ceil(members).max(1)) {
        let mut encoder = GzEncoder::new(&mut blob, Compression::new(level));
        encoder.write_all(part).unwrap();
        encoder.finish().unwrap();
    }
    blob
}

fn options(span_size: u64) -> LayerOptions {
    LayerOptions {
        span_size: SpanSize::new(span_size).unwrap(),
        build_tool_identifier: "laws".to_owned(),
        fine: false,
    }
}

fn index(
    blob: &[u8],
    span_size: u64,
    chunks: impl IntoIterator<Item = usize>,
) -> Result<IndexedLayer, LayerError> {
    let mut indexer = LayerIndexer::new(options(span_size), None);
    let mut rest = blob;
    for size in chunks {
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        indexer.push(chunk)?;
        rest = after;
    }
    indexer.push(rest)?;
    indexer.finish()
}

fn ztoc_of(layer: IndexedLayer) -> BuiltZtoc {
    match layer.outcome {
        Outcome::Ztoc(built) => built,
        Outcome::Unservable(why) => panic!("left out: {why}"),
    }
}

/// The position of damage is reported as the block, the member's header or the trailing bytes, none
/// of which depends on the chunks.
#[test]
fn errors_do_not_depend_on_chunking() {
    let tar = tar_of(&[5_000, 70_000], 1);
    let two = gzip(&tar, 6, 2);
    let mut damaged = two.clone();
    let late = damaged.len() * 3 / 4;
    damaged[late..late + 30].fill(0xff);
    let cases = [
        ("trailing bytes that begin as a member does", [&two[..], b"\x1fx, and more"].concat()),
        ("a header with reserved flags", [&two[..], b"\x1f\x8b\x08\xe0\0\0\0\0\0\0"].concat()),
        ("damage in the second member", damaged),
        ("a cut in a header", [&two[..], b"\x1f\x8b\x08"].concat()),
    ];
    for (name, blob) in cases {
        let whole = index(&blob, 4096, []);
        assert!(
            !matches!(&whole, Ok(IndexedLayer { outcome: Outcome::Ztoc(_), .. })),
            "{name}: {whole:?}"
        );
        for size in [1, 7, 1000] {
            let chunks = std::iter::repeat_n(size, blob.len().div_ceil(size));
            assert_eq!(index(&blob, 4096, chunks), whole, "{name}, in chunks of {size}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Chunk boundaries do not matter, and a ztoc states what it was built from.
    #[test]
    fn any_chunking_gives_the_same_ztoc(
        sizes in prop::collection::vec(0usize..60_000, 0..12),
        noise: u32,
        level in 0u32..10,
        members in 1usize..5,
        plain: bool,
        span_size in 1u64..100_000,
        chunks in prop::collection::vec(1usize..5_000, 0..64),
    ) {
        let tar = tar_of(&sizes, noise);
        let blob = if plain { tar.clone() } else { gzip(&tar, level, members) };
        let whole = ztoc_of(index(&blob, span_size, []).unwrap());
        let bytewise = ztoc_of(index(&blob, span_size, std::iter::repeat_n(1, blob.len())).unwrap());
        prop_assert_eq!(&whole.bytes, &bytewise.bytes);
        let chunked = ztoc_of(index(&blob, span_size, chunks).unwrap());
        prop_assert_eq!(&whole.bytes, &chunked.bytes);

        let read = ztoc::decode(&whole.bytes).unwrap();
        prop_assert_eq!(ztoc::encode(&read), whole.bytes);
        prop_assert_eq!(read.files.len(), sizes.len());
        for (file, &size) in read.files.iter().zip(&sizes) {
            prop_assert_eq!(file.size, size as u64);
        }
        // Each checkpoint's window must be the tar before it, and raw deflate must resume there
        // with the tar after it.
        if let Checkpoints::Gzip { list, .. } = &read.checkpoints {
            for checkpoint in list {
                let at = checkpoint.output.0 as usize;
                let before = &tar[at.saturating_sub(32_768)..at];
                prop_assert!(checkpoint.window.ends_with(before));
                prop_assert!(checkpoint.window[..32_768 - before.len()].iter().all(|&b| b == 0));
            }
        }
    }

    /// A truncated blob or one with a changed bit never gives a ztoc if its digest is known, and
    /// never panics.
    #[test]
    fn damage_is_always_found(
        sizes in prop::collection::vec(0usize..20_000, 1..6),
        noise: u32,
        at: prop::sample::Index,
        bit in 0u8..8,
        cut: bool,
    ) {
        let blob = gzip(&tar_of(&sizes, noise), 6, 2);
        let digest = ociseek_format::digest::Digest::sha256(&blob);
        let mut damaged = blob.clone();
        let at = at.index(blob.len());
        if cut { damaged.truncate(at) } else { damaged[at] ^= 1 << bit }
        let mut indexer = LayerIndexer::new(options(4096), Some((digest, blob.len() as u64)));
        let result = indexer.push(&damaged).and_then(|()| indexer.finish());
        prop_assert!(result.is_err());
    }

    /// Truncation is detected even if the digest is not known.
    #[test]
    fn truncated_gzip_is_always_found(sizes in prop::collection::vec(0usize..20_000, 1..6), noise: u32,
                                  at: prop::sample::Index) {
        let blob = gzip(&tar_of(&sizes, noise), 6, 1);
        let at = at.index(blob.len());
        let result = index(&blob[..at], 4096, []);
        prop_assert!(at == 0 || result.is_err());
    }

    #[test]
    fn noise_never_panics(blob in prop::collection::vec(any::<u8>(), 0..3000), gzip_magic: bool) {
        let mut blob = blob;
        if gzip_magic {
            blob.splice(0..0, *b"\x1f\x8b\x08\0\0\0\0\0\0\x03");
        }
        let _ = index(&blob, 1000, []);
        let _ = ztoc::decode(&blob);
    }

    /// A damaged ztoc is refused or read, without panics.
    #[test]
    fn damaged_ztocs_never_panic(
        sizes in prop::collection::vec(0usize..3_000, 0..6),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = ztoc_of(index(&gzip(&tar_of(&sizes, 1), 6, 1), 4096, []).unwrap()).bytes;
        // Windows take most of the space, but nothing in them can be invalid: change the 300 bytes
        // before them, and the bytes after them.
        let behind = bytes.len() - 33_000;
        for (at, value) in flips {
            let at = at.index(300 + behind);
            let at = if at < 300 { at } else { bytes.len() - (at - 300) - 1 };
            bytes[at] = value;
        }
        let _ = ztoc::decode(&bytes);
    }
}

#[test]
fn an_indexer_repeats_its_error() {
    let mut indexer = LayerIndexer::new(options(4096), None);
    let blob = [b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x07".to_vec(), vec![0; 600]].concat();
    let first = indexer.push(&blob).unwrap_err();
    assert_eq!(indexer.push(b"more").unwrap_err(), first);
    assert_eq!(indexer.finish().unwrap_err(), first);
}

/// All bytes that the spans of a layer hold, read span by span from its blob.
fn through_spans(blob: &[u8], built: &BuiltZtoc) -> Vec<u8> {
    let table = SpanTable::new(Arc::new(ztoc::decode(&built.bytes).unwrap())).unwrap();
    let mut plain = Vec::new();
    for span in (0..table.count()).map(SpanId) {
        let range = table.blob_range(span);
        let expected = table.plain_range(span);
        assert_eq!(expected.start.0, plain.len() as u64);
        let bytes = &blob[range.start.0 as usize..range.end.0 as usize];
        let mut take = |piece: &[u8]| {
            plain.extend_from_slice(piece);
            ControlFlow::Continue(())
        };
        table.decode(span, bytes, &mut take).unwrap();
        assert_eq!(expected.end.0, plain.len() as u64);
        if !expected.is_empty() {
            assert_eq!(table.covering(expected), span..SpanId(span.0 + 1));
        }
    }
    plain
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn spans_match_a_straight_read(
        sizes in proptest::collection::vec(0_usize..60_000, 1..8),
        noise in any::<u32>(),
        level in 0_u32..=9,
        members in 1_usize..4,
        span_size in prop_oneof![Just(1_u64), 1_u64..4096, Just(1 << 16), Just(1 << 22)],
        plain in any::<bool>(),
    ) {
        let tar = tar_of(&sizes, noise);
        let blob = if plain { tar.clone() } else { gzip(&tar, level, members) };
        let built = ztoc_of(index(&blob, span_size.max(if plain { 512 } else { 1 }), []).unwrap());
        let read = through_spans(&blob, &built);
        prop_assert_eq!(&read[..], &tar[..read.len()]);
        prop_assert!(read.len() as u64 >= built.uncompressed_size);
    }

    #[test]
    fn damaged_spans_never_decode_to_wrong_bytes(at in any::<prop::sample::Index>(), bit in 0_u8..8) {
        let tar = tar_of(&[50_000, 3, 20_000], 7);
        let mut blob = gzip(&tar, 6, 1);
        let built = ztoc_of(index(&blob, 4096, []).unwrap());
        let table = SpanTable::new(Arc::new(ztoc::decode(&built.bytes).unwrap())).unwrap();
        let at = at.index(blob.len());
        blob[at] ^= 1 << bit;
        for span in (0..table.count()).map(SpanId) {
            let range = table.blob_range(span);
            let is_hit = range.contains(&Compressed(at as u64));
            let bytes = &blob[range.start.0 as usize..range.end.0 as usize];
            let decoded = table.decode(span, bytes, &mut |_| ControlFlow::Continue(()));
            prop_assert_eq!(matches!(decoded, Err(SpanError::Digest { .. })), is_hit, "{:?}", decoded);
        }
    }
}
