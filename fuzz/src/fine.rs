//! Untrusted fine documents: any bytes, and valid documents with changes.
//!
//! Invariants under test: no panic; decoding takes at most the budget; a head and the pages give
//! the same result as the whole document; accepted documents survive encoding and decoding.

use std::sync::LazyLock;

use ociseek_format::budget::{Budget, Charge};
use ociseek_format::codec::WINDOW;
use ociseek_format::digest::{ChainState, Digest};
use ociseek_format::fine::{
    self, Codec, FineHead, FineLayer, FineSpans, FineStart, PageId, SpanParts, SpanWindow, Windows,
};
use ociseek_format::internals::UsedBytes;
use ociseek_format::offset::{Compressed, SpanId, Uncompressed};
use ociseek_format::time::Time;
use ociseek_format::ztoc::FileMetadata;

/// The memory limit for a document, in bytes.
const ROOM: u64 = 32 << 20;
/// The number of spans in the documents that are changed: two full pages and a partial one.
const SPANS: u32 = 20;
/// The size of each span in bytes of the tar.
const SPAN: u64 = 64 << 10;
/// The size of each span in bytes of the blob.
const STRIDE: u64 = 1001;

/// A plain tar, a gzip, and the gzip with a recorded start.
static SOUND: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    let encode = |codec, start: &[_]| layer(codec).encode(start).expect("it is small").bytes;
    let start = [SpanId(10)..SpanId(13), SpanId(2)..SpanId(9)];
    [encode(Codec::Plain, &[]), encode(Codec::Gzip, &[]), encode(Codec::Gzip, &start)]
});

fn layer(codec: Codec) -> FineLayer {
    let start = |number: u32| {
        let plain = u64::from(number) * SPAN;
        let (input, bits) = match codec {
            Codec::Plain => (plain, 0),
            Codec::Gzip => (u64::from(number) * STRIDE + 10, (number % 2 * 5) as u8),
            Codec::Zstd => unreachable!("such documents come from a layer"),
        };
        FineStart {
            input: Compressed(input),
            output: Uncompressed(plain),
            bits,
            state: ChainState::INITIAL,
        }
    };
    let tar_end = u64::from(SPANS) * SPAN;
    let parts = SpanParts {
        layer: Digest::sha256(b"layer"),
        codec,
        blob_size: if codec == Codec::Plain { tar_end } else { u64::from(SPANS) * STRIDE },
        tar_end: Uncompressed(tar_end),
        span_size: SPAN,
        starts: (0..SPANS).map(start).collect(),
    };
    let spans = FineSpans::new(parts).expect("they are in order");
    // The bytes before each border, and bytes at small distances in a window that does not
    // compress.
    let window = |number: u32| {
        let FineStart { input, bits, .. } = start(number);
        let lead = vec![
            number as u8;
            (input.0.next_multiple_of(64) - input.0) as usize + usize::from(bits != 0)
        ];
        let mut noise = number;
        let bytes: [u8; WINDOW] = std::array::from_fn(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 24) as u8
        });
        let mut used = UsedBytes::default();
        (0..4).for_each(|part| used.mark(part * 8000..part * 8000 + 20 + number as usize));
        SpanWindow::new(&lead, &bytes, &used)
    };
    let windows = (1..SPANS).filter(|number| spans.has_window(SpanId(*number))).map(window);
    let windows: Vec<_> = windows.collect();
    FineLayer::new((0..30).map(file).collect(), spans, windows).expect("it is sound")
}

fn file(number: u64) -> FileMetadata {
    let name = format!("usr/lib/module-{}/file-{number}", number / 5);
    FileMetadata {
        name: name.into_bytes().into(),
        offset: Uncompressed(512 + number * 2048),
        size: number * 37,
        mode: 0o644,
        uid: number as u32 % 4,
        uname: (*b"root").into(),
        mtime: (number % 5 != 4).then_some(Time { seconds: 1_700_000_000, nanos: number as u32 }),
        ..FileMetadata::default()
    }
}

/// The first byte chooses: a document without changes, or a valid one with changes of four bytes
/// each: two for the position, one for the operation, and one for the value.
pub fn decode(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let Some(sound) = usize::from(first % 4).checked_sub(1).map(|number| &SOUND[number]) else {
        return read(rest);
    };
    let mut document = sound.clone();
    for &[low, high, how, value] in rest.as_chunks().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % document.len().max(1);
        match how % 8 {
            0 => document.truncate(at),
            1 => document.insert(at, value),
            2 if at < document.len() => drop(document.remove(at)),
            3 if at < document.len() => document[at] = value,
            4 => document.iter_mut().skip(at).take(4).for_each(|byte| *byte = value),
            _ if at < document.len() => document[at] ^= 1 << (value % 8),
            _ => {}
        }
    }
    if first >= 128 {
        tell_digests(&mut document);
    }
    if document == *sound {
        assert!(fine::decode(&document, &mut room()).is_ok(), "a sound document was refused");
    }
    read(&document);
}

fn room() -> Charge {
    Budget::new(ROOM).open()
}

/// The size of the head in bytes, and the number of pages (docs/contributing/fine-format.md).
fn head(document: &[u8]) -> Option<(usize, usize)> {
    let field = |at: usize| {
        let bytes = document.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let spans = field(72)?;
    let pages = field(80)?;
    let size = 104 + field(88)? + field(96)? + 32 * spans.saturating_sub(1) + 40 * pages;
    (size <= document.len()).then_some((size, pages))
}

/// Writes the actual digests of the pages into the head, so that digests do not reveal changes of
/// pages.
fn tell_digests(document: &mut [u8]) {
    let Some((size, pages)) = head(document) else { return };
    let (head, mut rest) = document.split_at_mut(size);
    for entry in head[size - 40 * pages..].as_chunks_mut::<40>().0 {
        let length = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) as usize;
        let Some((page, after)) = rest.split_at_mut_checked(length) else { return };
        entry[8..].copy_from_slice(Digest::sha256(page).as_bytes());
        rest = after;
    }
}

fn windows(layer: &FineLayer) -> Vec<(SpanId, SpanWindow)> {
    layer.windows().flat_map(|windows| windows.expect("it was checked").into_windows()).collect()
}

fn read(document: &[u8]) {
    let whole = fine::decode(document, &mut room());
    let size = head(document).map_or(document.len(), |(size, _)| size);
    let head = fine::decode_head(&document[..size], document.len() as u64, &mut room());
    let pages = head.as_ref().ok().map(|head| read_pages(head, document));
    let Ok(layer) = whole else { return };
    let head = head.expect("the document was taken");
    let pages = pages.flatten().expect("and its pages");
    assert_eq!((layer.entries(), layer.spans()), (head.entries(), head.spans()));
    let mut windows_of_pages: Vec<_> = pages.into_iter().flat_map(Windows::into_windows).collect();
    windows_of_pages.sort_by_key(|(span, _)| span.0);
    assert_eq!(windows(&layer), windows_of_pages);

    for start in [head.start(), &[]] {
        let encoded = layer.encode(start).expect("it is within the budget");
        assert_eq!(layer.encode(start).as_ref(), Ok(&encoded));
        assert_eq!(encoded.digest, Digest::sha256(&encoded.bytes));
        let again =
            fine::decode(&encoded.bytes, &mut Budget::new(2 * ROOM).open()).expect("it is our own");
        assert_eq!((again.entries(), again.spans()), (layer.entries(), layer.spans()));
        assert_eq!(windows(&again), windows_of_pages);
    }
}

/// The windows of all pages, if they are valid. Pages follow the head without gaps.
fn read_pages(head: &FineHead, document: &[u8]) -> Option<Vec<Windows>> {
    let mut end = head.size();
    let pages = head.pages().map(|page| {
        let range = head.page_range(page);
        assert_eq!(range.start, end);
        end = range.end;
        let bytes = &document[range.start as usize..range.end as usize];
        let windows = fine::decode_page(head, page, bytes).ok()?;
        assert!(windows.footprint() < 2 << 20, "a page takes {} bytes", windows.footprint());
        assert!(windows.iter().map(|(span, _)| span).eq(head.page_spans(page).iter().copied()));
        assert!(fine::decode_page(head, page, &bytes[1..]).is_err(), "other bytes were taken");
        Some(windows)
    });
    let pages: Vec<_> = pages.collect();
    assert_eq!(end, document.len() as u64);
    assert!(fine::decode_page(head, PageId(pages.len() as u32), document).is_err());
    pages.into_iter().collect()
}
