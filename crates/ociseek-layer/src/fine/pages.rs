//! Pages: the windows of a few spans.

use super::frame::Compressor;
use super::varint::Reader;
use super::{FineError, FineHead, FineSpans, PageId, SpanWindow, frame};
use crate::digest::Digest;
use crate::offset::SpanId;

const PAGE: &str = "pages";

/// The windows of one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    windows: Vec<(SpanId, SpanWindow)>,
}

impl Windows {
    /// The window of a span, if it is in this page.
    pub fn get(&self, span: SpanId) -> Option<&SpanWindow> {
        self.windows.iter().find(|(member, _)| *member == span).map(|(_, window)| window)
    }

    /// All of them, in the page's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SpanId, &SpanWindow)> {
        self.windows.iter().map(|(span, window)| (*span, window))
    }

    /// Each with its span, for whoever keeps them one by one.
    pub fn into_windows(self) -> Vec<(SpanId, SpanWindow)> {
        self.windows
    }

    /// Approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        self.windows.iter().map(|(_, window)| 8 + window.footprint()).sum()
    }
}

/// Decodes and checks a page of the document that `head` is of. `bytes` are those of
/// [`FineHead::page_range`]. It takes at most 2 MiB of memory.
///
/// # Errors
/// If their digest is not the one that the head says, or if they are not the windows of the page's spans.
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
        let window = SpanWindow::read(&mut reader, spans.lead(span));
        windows.push((span, window.map_err(|_| FineError::Window { page, span })?));
    }
    reader.end()?;
    Ok(Windows { windows })
}

/// A page as it is stored, with its size when it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub bytes: Vec<u8>,
    pub plain: usize,
}

/// Writes windows as pages, one after the other.
#[derive(Debug)]
pub(super) struct Writer {
    compressor: Compressor,
    plain: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Writer {
        /// Higher ones take three times as long, for a twentieth less.
        const LEVEL: i32 = 3;
        Writer { compressor: Compressor::new(LEVEL), plain: Vec::new() }
    }
}

impl Writer {
    /// The next page.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub(super) fn write<'a>(&mut self, windows: impl IntoIterator<Item = &'a SpanWindow>) -> Result<Stored, FineError> {
        self.plain.clear();
        windows.into_iter().for_each(|window| window.write(&mut self.plain));
        Ok(Stored { bytes: self.compressor.compress(&self.plain)?, plain: self.plain.len() })
    }
}
