//! Documents of handmade layers.

use super::*;
use crate::budget::{Budget, Charge};
use crate::codec::zstd::ZstdState;
use crate::codec::{UsedBytes, WINDOW};
use crate::digest::{Algorithm, ChainState, Digest, Hasher};
use crate::offset::{Compressed, SpanId, Uncompressed};
use crate::tar::{OwnerName, PaxRecord};
use crate::time::Time;
use crate::ztoc::{FileKind, FileMetadata};

const SPAN: u64 = 64 << 10;

fn unlimited() -> Charge {
    Budget::new(u64::MAX).open()
}

/// Bytes without repetition.
fn noise(size: usize, mut seed: u32) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    (0..size).map(|_| next()).collect()
}

fn file(number: u64) -> FileMetadata {
    let text = |text: String| text.into_bytes().into_boxed_slice();
    let is_link = number % 3 == 1;
    FileMetadata {
        name: text(format!("usr/lib/python3/module-{}/file-{number}", number / 5)),
        kind: if is_link { FileKind::Symlink } else { FileKind::Regular },
        offset: Uncompressed(512 + number * 2048),
        size: if is_link { 0 } else { 100 + number * 7 % 900 },
        linkname: text(if is_link { format!("../file-{}", number - 1) } else { String::new() }),
        mode: 0o644 + number as i64 % 2 * 0o111,
        uid: number as u32 % 4 * 1000,
        gid: u32::MAX,
        uname: (*b"root").into(),
        gname: OwnerName::default(),
        mtime: (number % 5 != 4)
            .then_some(Time { seconds: 1_700_000_000 - number as i64, nanos: 5 }),
        devmajor: -1,
        devminor: number as i64,
        pax: (0..number % 3)
            .map(|n| PaxRecord {
                key: text(format!("key{n}"))[..].into(),
                value: text(format!("{number}"))[..].into(),
            })
            .collect(),
    }
}

/// A blob and its spans: 5 bits before every other checkpoint, and borders at all distances.
pub(super) fn spans(count: u32, codec: Codec) -> (FineSpans, Vec<u8>) {
    let stride = if codec == Codec::Plain { SPAN } else { 1001 };
    let blob = noise((u64::from(count) * stride) as usize - 100, count);
    let starts = (0..count).map(|number| {
        let input = u64::from(number) * stride;
        let output = u64::from(number) * SPAN;
        let start = FineStart {
            input: Compressed(input),
            output: Uncompressed(output),
            bits: 0,
            state: ChainState::INITIAL,
        };
        match codec {
            Codec::Plain => start,
            Codec::Gzip => {
                FineStart { input: Compressed(input + 10), bits: (number % 2 * 5) as u8, ..start }
            }
            Codec::Zstd => {
                FineStart { bits: if number % 5 == 4 { FineStart::DIVIDED } else { 0 }, ..start }
            }
        }
    });
    let state = |border: u64| {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(&blob[..border as usize]);
        hasher.chain_state().unwrap()
    };
    let starts = starts.map(|start| FineStart { state: state(start.border()), ..start }).collect();
    let tar_end =
        if codec == Codec::Plain { blob.len() as u64 } else { u64::from(count) * SPAN - 5 };
    let parts = SpanParts {
        layer: Digest::sha256(&blob),
        codec,
        blob_size: blob.len() as u64,
        tar_end: Uncompressed(tar_end),
        span_size: SPAN,
        starts,
    };
    (FineSpans::new(parts).unwrap(), blob)
}

fn window(spans: &FineSpans, span: SpanId, blob: &[u8]) -> SpanWindow {
    let bytes: [u8; WINDOW] = noise(WINDOW, span.0).try_into().unwrap();
    let mut used = UsedBytes::default();
    let start = &spans.starts()[span.0 as usize];
    let number = span.0 as usize;
    (0..WINDOW).step_by(100 + number).for_each(|at| used.mark(at..at + number));
    if spans.codec() == Codec::Zstd {
        let lead = &blob[start.first() as usize..start.border() as usize];
        let state =
            ZstdState { window: 0x58, has_checksum: number % 2 == 1, ..ZstdState::initial() };
        let parts = used.ranges().map(|range| (range.start * 30, range.len()));
        let bytes_used = used.ranges().flat_map(|range| bytes[range].to_vec()).collect();
        let block = SpanWindow::of_zstd(state, 30 * WINDOW as u32, parts, bytes_used);
        return if number % 4 == 3 { SpanWindow::of_frame() } else { block }.led_by(lead);
    }
    SpanWindow::new(&blob[start.first() as usize..start.border() as usize], &bytes, &used)
}

/// A layer with `count` spans, and its blob.
pub(super) fn layer(count: u32, codec: Codec) -> (FineLayer, Vec<u8>) {
    let (spans, blob) = spans(count, codec);
    let members: Vec<_> =
        SpanId::each(SpanId(0)..SpanId(count)).filter(|span| spans.has_window(*span)).collect();
    let windows: Vec<_> = members.iter().map(|span| window(&spans, *span, &blob)).collect();
    let entries = (spans.plain_end().0 / 2048).min(40);
    (FineLayer::new((0..entries).map(file).collect(), spans, windows).unwrap(), blob)
}

pub(super) fn ranges(start: &[(u32, u32)]) -> Vec<std::ops::Range<SpanId>> {
    start.iter().map(|(from, to)| SpanId(*from)..SpanId(*to)).collect()
}

#[test]
fn documents_round_trip() {
    let starts: [&[(u32, u32)]; 5] = [
        &[],
        &[(0, 1)],
        &[(17, 20), (3, 5)],
        &[(29, 30), (0, 12)],
        &[(5, 9), (7, 40), (2, 1), (99, 100)],
    ];
    let gzip = [(1, Codec::Gzip), (2, Codec::Gzip), (9, Codec::Gzip), (30, Codec::Gzip)];
    for (count, codec) in
        [&gzip[..], &[(5, Codec::Plain), (1, Codec::Zstd), (30, Codec::Zstd)]].concat()
    {
        let (layer, blob) = layer(count, codec);
        for start in starts.map(ranges) {
            let encoded = layer.encode(&start).unwrap();
            assert_eq!(encoded.digest, Digest::sha256(&encoded.bytes));
            assert_eq!(
                encoded.head_digest,
                Digest::sha256(&encoded.bytes[..encoded.head_size as usize])
            );
            let decoded = decode(&encoded.bytes, &mut unlimited()).unwrap();
            assert_eq!(decoded, layer);
            assert_eq!(decoded.encode(&start).unwrap(), encoded, "encoded again");

            let head = &encoded.bytes[..encoded.head_size as usize];
            let head = decode_head(head, encoded.bytes.len() as u64, &mut unlimited()).unwrap();
            assert_eq!((head.entries(), head.spans()), (layer.entries(), layer.spans()));
            assert_eq!(
                (head.layer(), head.blob_size()),
                (Digest::sha256(&blob), blob.len() as u64)
            );
            assert_eq!((head.size(), head.start_size()), (encoded.head_size, encoded.start_size));
            check_pages(&head, &encoded.bytes, &blob);

            let mut named: Vec<_> = head.start().iter().cloned().flat_map(SpanId::each).collect();
            let first = start.iter().cloned().flat_map(SpanId::each).find(|span| span.0 < count);
            assert_eq!(named.first().copied(), first);
            let is_read = |span: &SpanId| start.iter().any(|range| range.contains(span));
            let mut read: Vec<_> = SpanId::each(SpanId(0)..SpanId(count)).filter(is_read).collect();
            let pages = named.iter().filter_map(|span| head.page_of(*span));
            assert!(pages.clone().all(|page| head.page_range(page).end <= encoded.start_size));
            assert!(pages.clone().is_sorted(), "in the order of first use");
            named.sort();
            read.sort();
            assert_eq!(named, read);
        }
    }
}

/// Checks that every window is where the head says, and that pages are contiguous.
fn check_pages(head: &FineHead, document: &[u8], blob: &[u8]) {
    let mut end = head.size();
    for page in head.pages() {
        let range = head.page_range(page);
        assert_eq!(range.start, end);
        end = range.end;
        let mut bytes = document[range.start as usize..range.end as usize].to_vec();
        let windows = decode_page(head, page, &bytes).unwrap();
        assert!(windows.iter().len() <= 8 && windows.footprint() > 0);
        for (span, decoded) in windows.iter() {
            assert_eq!(head.page_of(span), Some(page));
            assert_eq!(*decoded, window(head.spans(), span, blob));
            assert_eq!(windows.get(span), Some(decoded));
        }
        *bytes.last_mut().unwrap() ^= 1;
        assert!(matches!(decode_page(head, page, &bytes), Err(FineError::PageDigest { .. })));
    }
    assert_eq!(end, document.len() as u64);
    assert_eq!(decode_page(head, PageId(99), b""), Err(FineError::NoPage(PageId(99))));
    assert_eq!(
        (head.page_range(PageId(99)), head.page_of(SpanId(99)), head.page_of(SpanId(0))),
        (0..0, None, None)
    );
}

#[test]
fn windows_keep_only_the_bytes_in_use() {
    let window: [u8; WINDOW] = noise(WINDOW, 1).try_into().unwrap();
    for (from, to) in [(0, WINDOW), (0, 0), (0, 1), (WINDOW - 1, WINDOW), (5, 9000)] {
        let is_used = |at: usize| (from..to).contains(&at) && !at.is_multiple_of(1000);
        let mut used = UsedBytes::default();
        (0..WINDOW).filter(|at| is_used(*at)).for_each(|at| used.mark(at..at + 1));
        let sparse = SpanWindow::new(b"lead", &window, &used);
        let mut bytes = Vec::new();
        sparse.write(&mut bytes);
        assert_eq!(
            SpanWindow::read(&mut wire::Reader::new(&bytes, "x"), Codec::Gzip, 4),
            Ok(sparse.clone())
        );
        for fill in [0, 0xaa] {
            let expected: [u8; WINDOW] =
                std::array::from_fn(|at| if is_used(at) { window[at] } else { fill });
            assert_eq!(*sparse.expand(fill), expected);
        }
        assert_eq!(sparse.used(), (0..WINDOW).filter(|at| is_used(*at)).count());
    }
}

#[test]
fn hash_states_verify_spans() {
    for (count, codec) in
        [(1, Codec::Gzip), (20, Codec::Gzip), (3, Codec::Plain), (20, Codec::Zstd)]
    {
        let (spans, blob) = spans(count, codec);
        let mut end = 0;
        for span in SpanId::each(SpanId(0)..SpanId(count)) {
            let range = spans.fetch_range(span);
            assert_eq!(range.start, Compressed(end), "spans cover the blob");
            end = range.end.0;
            let bytes = &blob[range.start.0 as usize..range.end.0 as usize];
            assert!(spans.proves(span, bytes));
            for at in [0, bytes.len() / 2, bytes.len() - 1] {
                let mut wrong = bytes.to_vec();
                wrong[at] ^= 1;
                assert!(!spans.proves(span, &wrong));
            }
            assert!(!spans.proves(span, &bytes[1..]));
            assert!(!spans.proves(span, &[bytes, &[0]].concat()));
        }
        assert_eq!(end, blob.len() as u64);
        assert!(!spans.proves(SpanId(count), b""));
    }
}

#[test]
fn spans_cover_the_whole_tar() {
    let (spans, _) = spans(4, Codec::Gzip);
    let end = 4 * SPAN - 5;
    let covering = |from, to| spans.covering(Uncompressed(from)..Uncompressed(to));
    assert_eq!(spans.plain_end(), Uncompressed(end));
    assert_eq!(spans.plain_range(SpanId(3)), Uncompressed(3 * SPAN)..Uncompressed(end));
    assert_eq!(covering(0, 1), SpanId(0)..SpanId(1));
    assert_eq!(covering(SPAN - 1, SPAN), SpanId(0)..SpanId(1));
    assert_eq!(covering(SPAN - 1, SPAN + 1), SpanId(0)..SpanId(2));
    assert_eq!(covering(SPAN, u64::MAX), SpanId(1)..SpanId(4));
    assert!(covering(end, u64::MAX).is_empty() && covering(7, 7).is_empty());
}

#[test]
fn memory_is_charged_before_it_is_taken() {
    let (layer, _) = layer(30, Codec::Gzip);
    let encoded = layer.encode(&ranges(&[(3, 9)])).unwrap();
    let head = &encoded.bytes[..encoded.head_size as usize];
    let budget = Budget::new(u64::MAX);
    let mut memory = budget.open();
    decode_head(head, encoded.bytes.len() as u64, &mut memory).unwrap();
    let files: usize = layer.entries().iter().map(FileMetadata::footprint).sum();
    assert!(budget.used() >= files as u64);
    for limit in [0, 1000, budget.used() - 1] {
        let decoded = decode_head(head, encoded.bytes.len() as u64, &mut Budget::new(limit).open());
        assert!(matches!(decoded, Err(FineError::Memory(_))), "{limit}");
    }
    assert!(matches!(
        decode(&encoded.bytes, &mut Budget::new(budget.used()).open()),
        Err(FineError::Memory(_))
    ));
}

#[test]
fn documents_with_different_spans_have_different_identities() {
    let (layer, _) = layer(30, Codec::Gzip);
    let head = |start: &[(u32, u32)]| {
        let encoded = layer.encode(&ranges(start)).unwrap();
        let head = &encoded.bytes[..encoded.head_size as usize];
        decode_head(head, encoded.bytes.len() as u64, &mut unlimited()).unwrap()
    };
    let without = head(&[]);
    let with = head(&[(3, 9)]);
    let mut all: Vec<_> =
        SpanId::each(SpanId(0)..SpanId(30)).map(|span| without.identity(span)).collect();
    assert_eq!(with.identity(SpanId(20)), all[20], "its window is in the same page");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 30);
}
