//! Documents of zstd layers: every span decodes to its bytes, however the layer was compressed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use proptest::prelude::*;
use zstd::zstd_safe::CParameter;

use super::spans::assert_tails;
use super::{index, noise, options, text};
use crate::budget::Budget;
use crate::digest::Algorithm;
use crate::fine::{
    self, Codec, FineLayer, FineStart, SPAN_SIZE, SpanDivision, SpanParts, SpanWindow,
};
use crate::layer::parallel::{ChunksError, Threads, index_chunks};
use crate::layer::prove::{LayerProof, decode_to_next};
use crate::layer::span::{SpanError, SpanTable};
use crate::layer::{
    IndexedLayer, LayerError, LayerIndexer, LayerMap, Outcome, UnservableCode, divide_span,
};
use crate::offset::{SpanId, Uncompressed};

/// A tar with one file, whose words are repeated at all distances.
fn tar(size: usize, seed: u64) -> Vec<u8> {
    let mut content = Vec::new();
    while content.len() < size {
        let part = noise(4, seed + content.len() as u64);
        let length = 1000 + usize::from(part[0]) * 1000;
        match part[1] % 8 {
            0 => content.extend(noise(length, seed + u64::from(part[2]))),
            1 => content.resize(content.len() + length, part[2]),
            2..5 if content.len() > length => {
                let from = (content.len() - length) / 256 * usize::from(part[3]);
                content.extend_from_within(from..from + length);
            }
            _ => content.extend(text(length, seed + u64::from(part[2] % 16))),
        }
    }
    content.truncate(size);
    one_file(&content)
}

/// A tar with one file of `content`.
fn one_file(content: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "words", content).unwrap();
    archive.into_inner().unwrap()
}

#[derive(Debug, Clone)]
struct Encoding {
    level: i32,
    parameters: Vec<CParameter>,
    /// How many frames, and how often the encoder is flushed in each, which ends a block.
    frames: usize,
    flushes: usize,
    is_sized: bool,
    has_skippable: bool,
}

fn encodings() -> impl Strategy<Value = Encoding> {
    let parameter = prop_oneof![
        Just(vec![]),
        Just(vec![CParameter::EnableLongDistanceMatching(true), CParameter::WindowLog(27)]),
        (10u32..=23).prop_map(|log| vec![CParameter::WindowLog(log)]),
        (1024u32..100_000).prop_map(|size| vec![CParameter::TargetCBlockSize(size)]),
        (3u32..=7, 1u32..100).prop_map(|(least, length)| vec![
            CParameter::MinMatch(least),
            CParameter::TargetLength(length)
        ]),
    ];
    let rest = (1usize..5, 0usize..30, any::<bool>(), any::<bool>(), any::<bool>());
    (prop_oneof![4 => -3i32..=12, 1 => 13i32..=19], parameter, rest).prop_map(
        |(level, mut parameters, (frames, flushes, is_sized, has_skippable, checksum))| {
            parameters.push(CParameter::ChecksumFlag(checksum));
            Encoding { level, parameters, frames, flushes, is_sized, has_skippable }
        },
    )
}

fn encode(tar: &[u8], encoding: &Encoding) -> Vec<u8> {
    use std::io::Write;
    let mut blob = Vec::new();
    for part in tar.chunks(tar.len().div_ceil(encoding.frames)) {
        if encoding.has_skippable {
            blob.extend_from_slice(b"\x5e\x2a\x4d\x18\x07\0\0\0skipped");
        }
        let mut encoder = zstd::stream::Encoder::new(&mut blob, encoding.level).unwrap();
        encoding.parameters.iter().for_each(|parameter| encoder.set_parameter(*parameter).unwrap());
        if encoding.is_sized {
            encoder.set_pledged_src_size(Some(part.len() as u64)).unwrap();
        }
        for piece in part.chunks(part.len().div_ceil(encoding.flushes + 1)) {
            encoder.write_all(piece).unwrap();
            if encoding.flushes > 0 {
                encoder.flush().unwrap();
            }
        }
        encoder.finish().unwrap();
    }
    blob
}

fn document(blob: &[u8], chunk: usize) -> FineLayer {
    let indexed = index(blob, chunk);
    assert!(
        matches!(&indexed.outcome, Outcome::Unservable(why) if why.code == UnservableCode::Compression)
    );
    let fine = indexed.fine.unwrap();
    assert_eq!(fine.spans().codec(), Codec::Zstd);
    fine
}

fn blob_of<'a>(layer: &FineLayer, blob: &'a [u8], span: SpanId) -> &'a [u8] {
    let range = layer.spans().fetch_range(span);
    &blob[range.start.0 as usize..range.end.0 as usize]
}

/// Reads every span as a reader does, by the encoded document.
fn read_all(layer: &FineLayer, blob: &[u8], tar: &[u8]) {
    let encoded = layer.encode(&[SpanId(1)..SpanId(2)]).unwrap();
    let mut memory = Budget::new(u64::MAX).open();
    let head = &encoded.bytes[..encoded.head_size as usize];
    let head = fine::decode_head(head, encoded.bytes.len() as u64, &mut memory).unwrap();
    assert_eq!(&fine::decode(&encoded.bytes, &mut memory).unwrap(), layer);
    let mut windows = BTreeMap::new();
    for page in head.pages() {
        let range = head.page_range(page);
        let bytes = &encoded.bytes[range.start as usize..range.end as usize];
        windows.extend(fine::decode_page(&head, page, bytes).unwrap().into_windows());
    }
    let table = SpanTable::new(Arc::new(LayerMap::from(head))).unwrap();
    for span in table.each() {
        let mut plain = Vec::new();
        let window = windows.get(&span);
        let mut take = |piece: &[u8]| {
            plain.extend_from_slice(piece);
            ControlFlow::Continue(())
        };
        table.decode_with(span, window, blob_of(layer, blob, span), &mut take).unwrap();
        let range = table.plain_range(span);
        assert!(plain == tar[range.start.0 as usize..range.end.0 as usize], "span {span}");
        let next = windows.get(&SpanId(span.0 + 1));
        let bytes = blob_of(layer, blob, span);
        decode_to_next(layer.spans(), span, [window, next], bytes, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    assert_tails(layer, blob, tar);
}

/// Whether `verify` finds nothing wrong.
fn holds(layer: &FineLayer, blob: &[u8]) -> bool {
    let fine = Some(Arc::new(layer.clone()));
    let mut proof = LayerProof::with_fine(None, fine, Algorithm::Sha256, Algorithm::Sha256);
    proof.push(blob);
    proof.finish().of_document.list.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_span_decodes_whatever_the_encoder(
        encoding in encodings(),
        size in 500_000usize..3_000_000,
        padding in prop_oneof![Just(0), 0usize..2 << 20],
        seed in any::<u32>(),
        chunk in 1usize..300_000,
        reads in prop::collection::vec((0u64..3_000_000, 1u64..300_000), 0..8),
    ) {
        let mut tar = tar(size, seed.into());
        tar.resize(tar.len() + padding, 0);
        let blob = encode(&tar, &encoding);
        let layer = document(&blob, blob.len());
        prop_assert!(document(&blob, chunk) == layer, "in chunks of {}", chunk);
        read_all(&layer, &blob, &tar);
        prop_assert!(holds(&layer, &blob));

        let reads: Vec<_> = reads.iter().map(|(from, size)| Uncompressed(*from)..Uncompressed(from + size)).collect();
        let divisions = divisions(&layer, &blob, &reads);
        let divided = layer.clone().divided(&divisions).unwrap();
        let new: usize = divisions.values().map(|division| division.starts.len()).sum();
        prop_assert_eq!(divided.spans().count() as usize, layer.spans().count() as usize + new);
        read_all(&divided, &blob, &tar);
        prop_assert!(holds(&divided, &blob));
        prop_assert!(divided.clone().undivided().unwrap() == layer);

        // A reader of what it is divided for fetches no more than before.
        let fetched = |layer: &FineLayer| -> Vec<SpanId> {
            let spans: BTreeSet<SpanId> =
                reads.iter().flat_map(|read| SpanId::each(layer.spans_of(read.clone()))).collect();
            spans.into_iter().collect()
        };
        let size_of = |layer: &FineLayer| -> u64 {
            let range = |span: SpanId| layer.spans().fetch_range(span);
            fetched(layer).into_iter().map(range).map(|range| range.end - range.start).sum()
        };
        prop_assert!(size_of(&divided) <= size_of(&layer));
        // Reading all of it divides the layer in the same way: a start is carried over as that.
        let again: Vec<_> = fetched(&divided).into_iter().map(|span| divided.spans().plain_range(span)).collect();
        prop_assert_eq!(self::divisions(&layer, &blob, &again), divisions);
    }
}

/// The divisions of all spans that hold bytes of `reads`.
fn divisions(
    layer: &FineLayer,
    blob: &[u8],
    reads: &[Range<Uncompressed>],
) -> BTreeMap<SpanId, SpanDivision> {
    let spans = reads.iter().flat_map(|read| SpanId::each(layer.spans_of(read.clone())));
    let divide = |span| {
        let window = layer.window(span).unwrap();
        let bytes = blob_of(layer, blob, span);
        (span, divide_span(layer.spans(), span, window.as_ref(), bytes, reads).unwrap())
    };
    spans.map(divide).collect()
}

#[test]
fn zeros_after_the_tar_may_have_spans_of_their_own() {
    let mut spans_after = 0;
    for (level, padding) in
        [1, 3, 6, 19].into_iter().flat_map(|level| [10, 300, 800, 2048].map(|kib| (level, kib)))
    {
        let mut tar = one_file(&noise(700_000, 5));
        tar.resize(tar.len() + (padding << 10), 0);
        let blob = zstd::stream::encode_all(&tar[..], level).unwrap();
        let layer = document(&blob, blob.len());
        read_all(&layer, &blob, &tar);
        assert!(holds(&layer, &blob), "level {level}, {padding} KiB");
        let starts = layer.spans().starts();
        let end = layer.spans().tar_end();
        spans_after += usize::from(starts.iter().any(|start| start.output > end));
    }
    assert!(spans_after > 2, "{spans_after}");
}

#[test]
fn spans_are_divided_where_reads_begin_and_end() {
    // Words of a file that compress by about half.
    let tar = one_file(&text(3 << 20, 9));
    let blob = zstd::stream::encode_all(&tar[..], 1).unwrap();
    let layer = document(&blob, blob.len());
    let first = Uncompressed(1_500_000);
    let end = Uncompressed(1_700_000);
    let divisions = divisions(&layer, &blob, std::slice::from_ref(&(first..end)));
    let starts: Vec<FineStart> =
        divisions.values().flat_map(|division| division.starts.clone()).collect();
    assert!(starts.iter().all(|start| start.bits == FineStart::DIVIDED));
    let divided = layer.clone().divided(&divisions).unwrap();
    let read = divided.spans_of(first..end);
    let plain = divided.spans().plain_range(read.start).start
        ..divided.spans().plain_range(SpanId(read.end.0 - 1)).end;
    // Blocks hold at most 128 KiB, so little more is read, and nothing in it is divided.
    assert!(plain.start <= first && first - plain.start < 192 << 10, "{plain:?}");
    assert!(plain.end >= end && plain.end - end < 192 << 10, "{plain:?}");
    assert!(starts.iter().all(|start| start.output <= first || start.output >= end), "{starts:?}");
    assert!(divided.spans().count() > layer.spans().count());
}

#[test]
fn spans_that_begin_in_one_piece_of_the_output_have_their_own_leads() {
    let tar = tar(2_136_577, 3_076_543_123);
    let parameters = vec![CParameter::ChecksumFlag(false)];
    let is_sized = false;
    let encoding =
        Encoding { level: 0, parameters, frames: 3, flushes: 8, is_sized, has_skippable: false };
    let blob = encode(&tar, &encoding);
    let layer = document(&blob, blob.len());
    let read = |from, size| Uncompressed(from)..Uncompressed(from + size);
    let mut closest = u64::MAX;
    for first in (500_000..2_000_000).step_by(250_000) {
        let divisions = divisions(&layer, &blob, &[read(first, 1), read(first + 100_000, 80_000)]);
        let starts: Vec<u64> = divisions
            .values()
            .flat_map(|division| &division.starts)
            .map(|start| start.output.0)
            .collect();
        closest = starts.windows(2).map(|two| two[1] - two[0]).fold(closest, u64::min);
        let divided = layer.clone().divided(&divisions).unwrap();
        read_all(&divided, &blob, &tar);
        assert!(holds(&divided, &blob));
    }
    assert!(closest < 128 << 10, "{closest}");
}

#[test]
fn windows_of_a_start_are_compressed_more() {
    let blob = zstd::stream::encode_all(&tar(20_000_000, 3)[..], 1).unwrap();
    let layer = document(&blob, blob.len());
    let all = SpanId(0)..SpanId(layer.spans().count());
    let plain = layer.encode(&[]).unwrap();
    let start = layer.encode(std::slice::from_ref(&all)).unwrap();
    let [of_plain, of_start] = [&plain, &start].map(|one| one.bytes.len() as u64 - one.head_size);
    assert_eq!(start.start_size, start.bytes.len() as u64);
    assert!(of_start * 100 < of_plain * 99, "{of_start} of {of_plain}");
    // Without the start, it is the document that indexing makes.
    let decoded = fine::decode(&start.bytes, &mut Budget::new(u64::MAX).open()).unwrap();
    assert!(decoded.encode(&[]).unwrap() == plain);
}

/// A layer of several spans, most of which have a window.
fn sample() -> (Vec<u8>, Vec<u8>) {
    // All of it refers to what was 150,000 to 250,000 bytes before.
    let mut content = Vec::new();
    while content.len() < 6_000_000 {
        let new = noise(3500, content.len() as u64);
        content.extend_from_slice(&new);
        if let Some(from) = content.len().checked_sub(150_000 + 400 * usize::from(new[0])) {
            content.extend_from_within(from..from + 500);
        }
    }
    let tar = one_file(&content);
    let parameters = vec![CParameter::ChecksumFlag(true)];
    let encoding = Encoding {
        level: 1,
        parameters,
        frames: 2,
        flushes: 0,
        is_sized: true,
        has_skippable: true,
    };
    let blob = encode(&tar, &encoding);
    (tar, blob)
}

#[test]
fn single_bytes_give_the_same_document() {
    let (_, blob) = sample();
    assert!(document(&blob, 1) == document(&blob, blob.len()));
}

#[test]
fn spans_begin_where_little_is_referred_to() {
    // Each section has a block that the others of it are made of.
    const SECTION: usize = 5 << 17;
    let section = |number: u64| {
        let block = noise(1 << 17, number);
        let pieces: Vec<&[u8]> = block.chunks(1 << 10).collect();
        let more = (0..4 << 7).flat_map(|at: usize| pieces[(at * 37 + at / 128) % pieces.len()]);
        block.iter().chain(more).copied().collect::<Vec<u8>>()
    };
    let content: Vec<u8> = (0..20).flat_map(section).collect();
    let tar = one_file(&content);
    let blob = zstd::stream::encode_all(&tar[..], 3).unwrap();
    let layer = document(&blob, 100_000);
    let starts = layer.spans().starts();
    // Encoders do not end all blocks there.
    assert!(starts.iter().all(|start| start.output.0 % (SECTION as u64) < 32 << 10), "{starts:?}");
    assert!(starts.windows(2).all(|two| two[1].output - two[0].output > SPAN_SIZE));
    assert!(starts.len() > 8, "{}", starts.len());
    // Elsewhere, it would be 128 KiB.
    let windows = layer.windows().flat_map(|windows| windows.unwrap().into_windows());
    assert!(windows.into_iter().all(|(_, window)| window.used() < 32 << 10));
    read_all(&layer, &blob, &tar);
}

#[test]
fn wrong_documents_are_found() {
    let (_, blob) = sample();
    let layer = document(&blob, blob.len());
    assert!(holds(&layer, &blob));
    let spans = layer.spans();
    let windows: Vec<SpanWindow> = layer
        .windows()
        .flat_map(|windows| windows.unwrap().into_windows())
        .map(|(_, window)| window)
        .collect();
    let with = |starts: &[FineStart], windows: Vec<SpanWindow>| {
        let parts = SpanParts {
            layer: spans.layer(),
            codec: spans.codec(),
            blob_size: spans.blob_size(),
            tar_end: spans.tar_end(),
            span_size: spans.span_size(),
            starts: starts.to_vec(),
        };
        FineLayer::new(layer.entries().to_vec(), fine::FineSpans::new(parts).unwrap(), windows)
            .unwrap()
    };
    assert!(with(spans.starts(), windows.clone()) == layer);
    let number = windows.iter().rposition(|window| window.used() > 0).unwrap();
    let span = SpanId(number as u32);
    let (mut state, mut dictionary) =
        windows[number].dictionary(0).map(|(state, bytes)| (state.clone(), bytes)).unwrap();

    // Another byte in the window, and other tables.
    let before = windows[number].parts().next().map(|(from, _)| from).unwrap();
    let start = dictionary.len() - windows[number].length();
    dictionary[start + before] ^= 1;
    let parts: Vec<(usize, usize)> =
        windows[number].parts().map(|(from, part)| (from, part.len())).collect();
    let bytes: Vec<u8> = parts
        .iter()
        .flat_map(|(from, size)| &dictionary[start + from..start + from + size])
        .copied()
        .collect();
    let lead = windows[number].lead();
    let other = SpanWindow::of_zstd(
        state.clone(),
        windows[number].length() as u32,
        parts.clone(),
        bytes.clone(),
    )
    .led_by(lead);
    state.has_checksum ^= true;
    let flag =
        SpanWindow::of_zstd(state, windows[number].length() as u32, parts, bytes).led_by(lead);
    for wrong in [other, flag, SpanWindow::of_frame().led_by(lead)] {
        let changed: Vec<_> = (0..windows.len())
            .map(|at| if at == number { wrong.clone() } else { windows[at].clone() })
            .collect();
        assert!(!holds(&with(spans.starts(), changed), &blob));
        // The span before tells too.
        let own = layer.window(span).unwrap();
        let decoded = decode_to_next(
            spans,
            span,
            [own.as_ref(), Some(&wrong)],
            blob_of(&layer, &blob, span),
            &mut |_| ControlFlow::Continue(()),
        );
        assert!(matches!(decoded, Err(SpanError::Window { .. })), "{decoded:?}");
    }

    // Another place in the tar, or in the blob.
    for change in
        [|start: &mut FineStart| start.output.0 += 1, |start: &mut FineStart| start.input.0 += 1]
    {
        let mut starts = spans.starts().to_vec();
        change(&mut starts[number + 1]);
        if starts[number + 1].input.0 % 64 == 1 {
            continue;
        }
        let lead = |window: &SpanWindow, start: &FineStart| {
            window.clone().led_by(&vec![0; (start.border() - start.input.0) as usize])
        };
        let mut windows = windows.clone();
        windows[number] = lead(&windows[number], &starts[number + 1]);
        assert!(!holds(&with(&starts, windows), &blob));
        let own = layer.window(span).unwrap();
        let wrong = with(
            &starts,
            layer
                .windows()
                .flat_map(|w| w.unwrap().into_windows())
                .enumerate()
                .map(
                    |(at, (_, window))| {
                        if at == number { lead(&window, &starts[number + 1]) } else { window }
                    },
                )
                .collect(),
        );
        let decoded = decode_to_next(
            wrong.spans(),
            span,
            [own.as_ref(), None],
            blob_of(&wrong, &blob, span),
            &mut |_| ControlFlow::Continue(()),
        );
        assert!(decoded.is_err());
    }
}

#[test]
fn damaged_layers_are_refused() {
    let (_, blob) = sample();
    let indexed = |blob: &[u8]| {
        let mut indexer = LayerIndexer::new(options(), None);
        indexer.push(blob)?;
        indexer.finish()
    };
    assert!(indexed(&blob).is_ok());
    // The checksum is compared: any byte of the content counts.
    for at in [blob.len() / 7, blob.len() / 2, blob.len() - 2] {
        let mut damaged = blob.clone();
        damaged[at] ^= 4;
        assert!(indexed(&damaged).is_err(), "{at}");
    }
    assert!(indexed(&blob[..blob.len() - 1]).is_err());
    let too_large = b"\x28\xb5\x2f\xfd\0\x89\x01\0\0";
    let error = indexed(&[&too_large[..], &[0; 512]].concat()).unwrap_err().to_string();
    assert!(error.contains("150994944 bytes") && error.contains("128 MiB"), "{error}");
}

#[test]
fn chunked_layers_are_resumed_by_frame() {
    // As podman pushes them: a frame for each chunk, and the table of contents in skippable frames.
    let tar = tar(3_000_000, 12);
    let mut blob = Vec::new();
    for chunk in tar.chunks(50_000) {
        blob.extend(zstd::bulk::compress(chunk, 3).unwrap());
    }
    for content in [&zstd::bulk::compress(b"{\"version\": 1}", 3).unwrap()[..], &[7; 64]] {
        blob.extend(
            [&b"\x50\x2a\x4d\x18"[..], &(content.len() as u32).to_le_bytes(), content].concat(),
        );
    }
    let layer = document(&blob, 10_000);
    assert!(layer.spans().count() > 4, "{}", layer.spans().count());
    read_all(&layer, &blob, &tar);
    assert!(holds(&layer, &blob));
    let windows = layer.windows().flat_map(|windows| windows.unwrap().into_windows());
    assert!(
        windows
            .into_iter()
            .all(|(_, window)| window == SpanWindow::of_frame().led_by(window.lead()))
    );
}

fn within(blob: &[u8], memory: u64) -> Result<IndexedLayer, ChunksError<()>> {
    let mut chunks = vec![vec![bytes::Bytes::copy_from_slice(blob)]];
    let threads = Threads { cores: 2, guide: None };
    index_chunks(options(), None, threads, &Budget::new(memory), || Ok(chunks.pop()))
}

#[test]
fn what_windows_wait_for_is_charged() {
    // Raw blocks in a frame with a window of 128 MiB: what follows may refer to all of it.
    let tar = one_file(&noise(13 << 20, 5));
    let blocks = tar
        .chunks(1 << 17)
        .flat_map(|block| [&((block.len() as u32) << 3).to_le_bytes()[..3], block].concat());
    let blob: Vec<u8> =
        b"\x28\xb5\x2f\xfd\0\x88".iter().copied().chain(blocks).chain(*b"\x01\0\0").collect();
    let blob = blob.chunks(100_000).map(bytes::Bytes::copy_from_slice);
    let within = |memory| {
        let mut chunks = blob.clone();
        let threads = Threads { cores: 2, guide: None };
        index_chunks(options(), None, threads, &Budget::new(memory), || {
            Ok::<_, ()>(chunks.next().map(|one| vec![one]))
        })
    };
    let refused = within(10 << 20).unwrap_err();
    let ChunksError::Layer(LayerError::Memory(over)) = refused else { panic!("{refused:?}") };
    assert_eq!(over.what, "what is read ahead of it");
    let layer = within(64 << 20).unwrap().fine.unwrap();
    assert!(layer.spans().count() > 10);
}

#[test]
fn a_long_skippable_frame_waits_for_nothing() {
    // The last span before it refers to earlier bytes, and ends after it.
    let tar = one_file(&noise(300_000, 7).repeat(3));
    let frame = |bytes: &[u8]| zstd::stream::encode_all(bytes, 3).unwrap();
    let skipped =
        [&b"\x50\x2a\x4d\x18"[..], &(20u32 << 20).to_le_bytes(), &vec![7; 20 << 20]].concat();
    let blob = [frame(&tar[..700_000]), skipped, frame(&tar[700_000..])].concat();
    let mut chunks = blob.chunks(100_000).map(bytes::Bytes::copy_from_slice);
    let next = || Ok::<_, ()>(chunks.next().map(|chunk| vec![chunk]));
    let indexed = index_chunks(
        options(),
        None,
        Threads { cores: 2, guide: None },
        &Budget::new(8 << 20),
        next,
    );
    let layer = indexed.unwrap().fine.unwrap();
    assert!(layer == document(&blob, blob.len()));
    read_all(&layer, &blob, &tar);
}

#[test]
fn layers_that_refer_to_much_have_a_document() {
    // One window for all of the second half would be too large.
    let half = noise(9 << 20, 5);
    let tar = one_file(&[&half[..], &half].concat());
    let parameters = vec![CParameter::EnableLongDistanceMatching(true), CParameter::WindowLog(24)];
    let encoding = Encoding {
        level: 3,
        parameters,
        frames: 1,
        flushes: 0,
        is_sized: true,
        has_skippable: false,
    };
    let blob = encode(&tar, &encoding);
    read_all(&document(&blob, 1 << 20), &blob, &tar);
}

#[test]
fn layers_without_a_place_for_spans_have_no_document() {
    // The tables of these blocks have one symbol each, so decoding cannot resume after them.
    let block =
        [&(10u32 << 3 | 2 << 1).to_le_bytes()[..3], b"\x08a", b"\x01\x54\x01\0\x34\xfc\xff\x01"]
            .concat();
    let blocks = 520;
    let header = &mut tar::Header::new_gnu();
    let size = blocks << 17;
    header.set_path("letters").unwrap();
    header.set_size(size as u64);
    header.set_cksum();
    let frame = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).unwrap();
    let frames = [&b"\x28\xb5\x2f\xfd\0\x38"[..], &block.repeat(blocks), b"\x01\0\0"].concat();
    let blob = [frame(header.as_bytes()), frames, frame(&[0; 1024])].concat();
    assert_eq!(zstd::stream::decode_all(&blob[..]).unwrap().len(), 512 + size + 1024);
    let indexed = within(&blob, 512 << 20).unwrap();
    assert!(indexed.fine.is_none());
    assert!(
        matches!(indexed.outcome, Outcome::Unservable(why) if why.code == UnservableCode::SpanTooLarge)
    );
}
