//! Pages: the windows of a few spans.

use super::frame::Compressor;
use super::varint::Reader;
use super::{Codec, FineError, FineHead, FineSpans, PageId, SpanWindow, frame};
use crate::digest::Digest;
use crate::offset::SpanId;

const PAGE: &str = "pages";

/// The windows of one page.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    let plain = frame::decompress(bytes, size, PAGE)?;
    read(head.spans(), page, head.page_spans(page), &plain)
}

/// Reads the windows of `members` from a decoded page.
pub(super) fn read(spans: &FineSpans, page: PageId, members: &[SpanId], plain: &[u8]) -> Result<Windows, FineError> {
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
        PageWriter { of_gzip: Compressor::new(OF_GZIP), of_zstd: Compressor::new(OF_ZSTD), plain: Vec::new() }
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
