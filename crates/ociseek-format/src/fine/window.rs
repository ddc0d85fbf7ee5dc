//! The windows of spans, which keep only the bytes that are referred to, and the pages that store
//! the windows of a few spans.

use super::wire::{self, Compressor, Reader};
use super::{BLOCK, Codec, FineError, FineHead, FineSpans, PageId};
use crate::codec::zstd::ZstdState;
use crate::codec::{UsedBytes, WINDOW};
use crate::digest::Digest;
use crate::offset::{SpanId, Uncompressed};

/// What decoding a span needs in addition to its fetched bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanWindow {
    /// The bytes of the blob from the span's first byte to the next border: at most 64.
    lead: Box<[u8]>,
    start: Start,
    /// The parts of the window that the span refers to, and their number. For each part, two
    /// varints: how many bytes are skipped before it, and its length minus one.
    parts: Box<[u8]>,
    count: u32,
    /// The bytes of all parts.
    bytes: Box<[u8]>,
}

/// What a span begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Start {
    /// A deflate block.
    #[default]
    Gzip,
    /// A frame of zstd, which needs no window.
    Frame,
    Block(Box<ZstdStart>),
}

/// What a span of zstd begins with.
const FRAME: u8 = 0;
const BLOCK_WITHOUT_CHECKSUM: u8 = 1;
const BLOCK_WITH_CHECKSUM: u8 = 2;

/// A block of zstd.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ZstdStart {
    state: ZstdState,
    /// The size of the window in bytes: as much as the span refers to.
    length: u32,
}

/// The parts of a window, as they are collected.
#[derive(Default)]
struct WindowParts {
    encoded: Vec<u8>,
    count: u32,
    end: usize,
}

impl WindowParts {
    fn add(&mut self, from: usize, end: usize) {
        wire::put(&mut self.encoded, (from - self.end) as u64);
        wire::put(&mut self.encoded, (end - from - 1) as u64);
        (self.count, self.end) = (self.count + 1, end);
    }
}

impl SpanWindow {
    /// Creates a span's window from its bytes before the border and the bytes of `window`, the 32
    /// KiB before the span, that are `used`.
    ///
    /// # Panics
    /// If `lead` has more than 64 bytes.
    pub fn new(lead: &[u8], window: &[u8; WINDOW], used: &UsedBytes) -> SpanWindow {
        /// Most ranges are shorter. Copying this many bytes takes less time than calling memcpy.
        const COPY: usize = 32;
        // Counted first, so that little grows.
        let (count, size) =
            used.ranges().fold((0, 0), |(count, size), range| (count + 1, size + range.len()));
        let mut parts = WindowParts::default();
        let mut bytes = vec![0; size + COPY];
        parts.encoded.reserve(count * 3);
        let mut end = 0;
        for range in used.ranges() {
            parts.add(range.start, range.end);
            let from = &window[range.start..];
            let to = &mut bytes[end..];
            match (from.first_chunk::<COPY>(), to.first_chunk_mut::<COPY>()) {
                // The next range overwrites what follows this one.
                (Some(from), Some(to)) if range.len() <= COPY => *to = *from,
                _ => to[..range.len()].copy_from_slice(&from[..range.len()]),
            }
            end += range.len();
        }
        bytes.truncate(size);
        SpanWindow {
            parts: parts.encoded.into(),
            count: parts.count,
            bytes: bytes.into(),
            ..SpanWindow::default()
        }
        .led_by(lead)
    }

    /// Creates the window of a span that begins with a block of zstd. It has `length` bytes. Of
    /// these, `bytes` are kept. `parts` says where in the window: where each begins, and its size,
    /// in order.
    pub(crate) fn of_zstd(
        state: ZstdState,
        length: u32,
        parts: impl IntoIterator<Item = (usize, usize)>,
        bytes: Vec<u8>,
    ) -> SpanWindow {
        let mut encoded = WindowParts::default();
        parts.into_iter().for_each(|(from, size)| encoded.add(from, from + size));
        let start = Start::Block(Box::new(ZstdStart { state, length }));
        let lead = Box::default();
        let count = encoded.count;
        SpanWindow { lead, start, parts: encoded.encoded.into(), count, bytes: bytes.into() }
    }

    /// The window of a span that begins with a frame of zstd.
    pub(crate) fn of_frame() -> SpanWindow {
        SpanWindow { start: Start::Frame, ..SpanWindow::default() }
    }

    /// The codec of the layers that have such windows.
    pub(super) fn codec(&self) -> Codec {
        match self.start {
            Start::Gzip => Codec::Gzip,
            Start::Frame | Start::Block(_) => Codec::Zstd,
        }
    }

    fn zstd(&self) -> Option<&ZstdStart> {
        match &self.start {
            Start::Block(start) => Some(start),
            Start::Gzip | Start::Frame => None,
        }
    }

    /// Replaces the lead.
    pub(crate) fn led_by(self, lead: &[u8]) -> SpanWindow {
        assert!(lead.len() as u64 <= BLOCK, "a border is the next multiple of 64");
        SpanWindow { lead: lead.into(), ..self }
    }

    /// The bytes of the blob from the span's first byte to the next border.
    pub fn lead(&self) -> &[u8] {
        &self.lead
    }

    /// The number of window bytes that the span refers to.
    pub fn used(&self) -> usize {
        self.bytes.len()
    }

    /// The size of its encoding in bytes, without the lead, at most.
    pub(crate) fn encoded_size(&self) -> usize {
        let state = self.zstd().map_or(0, |start| start.state.tables.len());
        self.parts.len() + self.bytes.len() + state + 24
    }

    /// The window of a gzip span, oldest byte first. Bytes that the span does not refer to are
    /// `fill`.
    pub fn expand(&self, fill: u8) -> Box<[u8; WINDOW]> {
        let mut window = Box::new([fill; WINDOW]);
        for (from, part) in self.parts() {
            window[from..from + part.len()].copy_from_slice(part);
        }
        window
    }

    /// The state to decode a zstd span from. None for a span that begins with a frame.
    pub(crate) fn state(&self) -> Option<&ZstdState> {
        self.zstd().map(|start| &start.state)
    }

    /// The state and dictionary to decode a zstd span with. Bytes that the span does not refer to
    /// are `fill`. None for a span that begins with a frame.
    pub fn dictionary(&self, fill: u8) -> Option<(&ZstdState, Vec<u8>)> {
        let ZstdStart { state, length } = self.zstd()?;
        let (mut dictionary, start) = state.dictionary(*length as usize, fill);
        for (from, part) in self.parts() {
            dictionary[start + from..start + from + part.len()].copy_from_slice(part);
        }
        Some((state, dictionary))
    }

    /// Whether the bytes that are not left out are those of `window`.
    pub(crate) fn is_part_of(&self, window: &[u8; WINDOW]) -> bool {
        self.parts().all(|(from, part)| window[from..from + part.len()] == *part)
    }

    /// The parts, each with where it begins in the window.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut at = 0;
        let mut bytes = &self.bytes[..];
        let mut encoded = Reader::new(&self.parts, "window");
        (0..self.count).map_while(move |_| {
            let gap = encoded.number().ok()? as usize;
            let more = encoded.number().ok()? as usize;
            let from = at + gap;
            let length = more + 1;
            let (part, rest) = bytes.split_at(length);
            (at, bytes) = (from + length, rest);
            Some((from, part))
        })
    }

    /// The parts as bytes of the tar, each with its offset in it. The window ends at `at`. What
    /// would be before the tar is left out.
    pub fn parts_of_tar(&self, at: Uncompressed) -> impl Iterator<Item = (Uncompressed, &[u8])> {
        let length = if self.codec() == Codec::Gzip { WINDOW } else { self.length() };
        self.parts().filter_map(move |(from, part)| {
            let offset = at.0 as i64 - length as i64 + from as i64;
            let first = usize::try_from(-offset).unwrap_or(0);
            Some((Uncompressed(offset.max(0) as u64), part.get(first..)?))
        })
    }

    /// The size of the window of a zstd span in bytes.
    pub(crate) fn length(&self) -> usize {
        self.zstd().map_or(0, |start| start.length as usize)
    }

    /// Approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        let state =
            self.zstd().map_or(0, |start| size_of::<ZstdStart>() + start.state.tables.len() + 32);
        size_of::<SpanWindow>()
            + self.lead.len()
            + self.parts.len()
            + self.bytes.len()
            + state
            + 3 * 16
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lead);
        match &self.start {
            Start::Gzip => {}
            Start::Frame => return out.push(FRAME),
            Start::Block(start) => {
                let ZstdState { window, has_checksum, tables } = &start.state;
                out.push(if *has_checksum { BLOCK_WITH_CHECKSUM } else { BLOCK_WITHOUT_CHECKSUM });
                out.push(*window);
                wire::put(out, tables.len() as u64);
                out.extend_from_slice(tables);
                wire::put(out, start.length.into());
            }
        }
        wire::put(out, self.count.into());
        out.extend_from_slice(&self.parts);
        out.extend_from_slice(&self.bytes);
    }

    /// Reads a window with a lead of `lead` bytes, as [`SpanWindow::write`] wrote it.
    ///
    /// # Errors
    /// If the bytes are not a valid window.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        codec: Codec,
        lead: usize,
    ) -> Result<SpanWindow, FineError> {
        let lead = reader.bytes(lead)?.into();
        let mut start = Start::Gzip;
        let mut limit = WINDOW as u64;
        if codec == Codec::Zstd {
            let has_checksum = match reader.byte()? {
                FRAME => return Ok(SpanWindow { lead, ..SpanWindow::of_frame() }),
                BLOCK_WITHOUT_CHECKSUM => false,
                BLOCK_WITH_CHECKSUM => true,
                _ => return Err(reader.out_of_range()),
            };
            let window = reader.byte()?;
            let size = reader.length()?;
            let state = ZstdState { window, has_checksum, tables: reader.bytes(size)?.into() };
            limit = reader.number()?;
            let reach = state.reach().ok_or_else(|| reader.out_of_range())?;
            if limit > ZstdState::MAX_WINDOW || reach > limit {
                return Err(reader.out_of_range());
            }
            start = Start::Block(Box::new(ZstdStart { state, length: limit as u32 }));
        }
        let count = reader.length()?;
        let mut parts = WindowParts::default();
        let mut end = 0u64;
        let mut size = 0;
        for number in 0..count {
            let gap = reader.number()?;
            let more = reader.number()?;
            if gap >= limit || more >= limit || (gap == 0 && number > 0) {
                return Err(reader.out_of_range());
            }
            let from = end + gap;
            end = from + more + 1;
            if end > limit {
                return Err(reader.out_of_range());
            }
            parts.add(from as usize, end as usize);
            size += more as usize + 1;
        }
        let count = parts.count;
        let parts = parts.encoded.into();
        Ok(SpanWindow { lead, start, parts, count, bytes: reader.bytes(size)?.into() })
    }
}

const PAGE: &str = "pages";

/// The windows of one page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Windows {
    windows: Vec<(SpanId, SpanWindow)>,
}

impl Windows {
    /// The window of a span, if this page has it.
    pub fn get(&self, span: SpanId) -> Option<&SpanWindow> {
        self.windows.iter().find(|(member, _)| *member == span).map(|(_, window)| window)
    }

    /// All windows, in the page's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SpanId, &SpanWindow)> {
        self.windows.iter().map(|(span, window)| (*span, window))
    }

    /// The windows by value, each with its span.
    pub fn into_windows(self) -> Vec<(SpanId, SpanWindow)> {
        self.windows
    }

    /// Approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        self.windows.iter().map(|(_, window)| 8 + window.footprint()).sum()
    }
}

/// Decodes and checks a page of the document with this `head`. `bytes` are those of
/// [`FineHead::page_range`]. Takes at most twice the size limit of a page in memory: 2 MiB, or 8
/// MiB for zstd.
///
/// # Errors
/// If the digest differs from the one in the head, or the bytes are not the windows of the page's
/// spans.
pub fn decode_page(head: &FineHead, page: PageId, bytes: &[u8]) -> Result<Windows, FineError> {
    let (expected, size) = head.page(page).ok_or(FineError::NoPage(page))?;
    let actual = Digest::sha256(bytes);
    if actual != expected {
        return Err(FineError::PageDigest { page, expected, actual });
    }
    let plain = wire::decompress(bytes, size, PAGE)?;
    read(head.spans(), page, head.page_spans(page), &plain)
}

/// Reads the windows of `members` from a decoded page.
pub(super) fn read(
    spans: &FineSpans,
    page: PageId,
    members: &[SpanId],
    plain: &[u8],
) -> Result<Windows, FineError> {
    let mut reader = Reader::new(plain, PAGE);
    let mut windows = Vec::with_capacity(members.len());
    for &span in members {
        let window = SpanWindow::read(&mut reader, spans.codec(), spans.lead(span));
        windows.push((span, window.map_err(|_| FineError::Window { page, span })?));
    }
    reader.end()?;
    Ok(Windows { windows })
}

/// A stored page and its decoded size in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredPage {
    pub bytes: Vec<u8>,
    pub plain: usize,
}

/// Encodes windows as pages, one after the other.
#[derive(Debug)]
pub(super) struct PageWriter {
    of_gzip: Compressor,
    of_zstd: Compressor,
    plain: Vec<u8>,
}

impl Default for PageWriter {
    fn default() -> PageWriter {
        /// For windows of gzip, level 3 takes twice as long and saves only a twentieth.
        const OF_GZIP: i32 = 1;
        /// For those of zstd, level 2 saves a sixteenth. Level 3 saves another fortieth, but the
        /// thread that does this would then take longer than the one that decodes.
        const OF_ZSTD: i32 = 2;
        PageWriter {
            of_gzip: Compressor::new(OF_GZIP),
            of_zstd: Compressor::new(OF_ZSTD),
            plain: Vec::new(),
        }
    }
}

impl PageWriter {
    /// For pages of the recorded start of a zstd layer, which are few.
    pub(super) fn of_start() -> PageWriter {
        /// Saves a tenth compared with level 2. Higher levels save nothing more.
        const LEVEL: i32 = 15;
        PageWriter { of_zstd: Compressor::new(LEVEL), ..PageWriter::default() }
    }

    /// Encodes the next page.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub(super) fn write<'a>(
        &mut self,
        windows: impl IntoIterator<Item = &'a SpanWindow>,
    ) -> Result<StoredPage, FineError> {
        self.plain.clear();
        let mut bytes_at = None;
        for window in windows {
            window.write(&mut self.plain);
            bytes_at = (window.codec() == Codec::Zstd).then(|| self.plain.len() - window.used());
        }
        let bytes = match bytes_at {
            // A page of zstd has one window. Its numbers and its bytes have other statistics.
            Some(at) => self.of_zstd.compress_both(&self.plain[..at], &self.plain[at..]),
            None => self.of_gzip.compress(&self.plain),
        };
        Ok(StoredPage { bytes: bytes?, plain: self.plain.len() })
    }
}
