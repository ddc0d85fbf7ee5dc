//! A layer's complete fine document, as it is collected and as it is checked; how spans that a
//! start reads are divided in it, because smaller spans bring fewer bytes that the start does not
//! read; and how it is written.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::head::{self, FineHeader, PageOrder, decode_head, group_of};
use super::window::{self, PageWriter, StoredPage};
use super::wire::{self, Compressor};
use super::{
    Codec, FineError, FineSpans, FineStart, MAX_HEAD, PageId, SpanParts, SpanWindow, Windows,
    decode_page, entries,
};
use crate::budget::Charge;
use crate::digest::Digest;
use crate::offset::{SpanId, Uncompressed};
use crate::ztoc::FileMetadata;

/// The files, spans and windows of a layer. Windows are kept compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FineLayer {
    files: Vec<FileMetadata>,
    pub(super) spans: FineSpans,
    /// The windows of groups of neighbours, which are the pages of a document without a recorded
    /// start.
    groups: Vec<StoredPage>,
}

impl FineLayer {
    /// `windows` are those of all spans that have one, in order.
    ///
    /// # Errors
    /// If the number of windows is wrong, if entries overlap or exceed the tar, or if zstd cannot
    /// allocate memory.
    pub fn new(
        files: Vec<FileMetadata>,
        spans: FineSpans,
        windows: impl IntoIterator<Item = SpanWindow>,
    ) -> Result<FineLayer, FineError> {
        let mut groups = Groups::default();
        let mut number = 0;
        for window in windows {
            number += 1;
            if window.lead().len() != spans.lead(SpanId(number)) {
                return Err(FineError::Window { page: PageId(0), span: SpanId(number) });
            }
            groups.push(window)?;
        }
        FineLayer::of_groups(files, spans, groups)
    }

    /// Like [`FineLayer::new`], from windows that are already compressed.
    ///
    /// # Errors
    /// As [`FineLayer::new`].
    pub(crate) fn of_groups(
        files: Vec<FileMetadata>,
        spans: FineSpans,
        windows: Groups,
    ) -> Result<FineLayer, FineError> {
        entries::check(&files, spans.plain_end())?;
        let number = windows.count();
        let expected = SpanId::each(SpanId(0)..SpanId(spans.count()))
            .filter(|span| spans.has_window(*span))
            .count();
        if number != expected {
            return Err(FineError::SpanCount { expected: expected as u64, actual: number as u64 });
        }
        Ok(FineLayer { files, spans, groups: windows.finish()? })
    }

    /// The tar's entries in the tar's order.
    pub fn entries(&self) -> &[FileMetadata] {
        &self.files
    }

    /// Where spans begin, and their proofs.
    pub fn spans(&self) -> &FineSpans {
        &self.spans
    }

    /// The spans that hold the given bytes of the tar.
    pub fn spans_of(&self, plain: Range<Uncompressed>) -> Range<SpanId> {
        self.spans.covering(plain)
    }

    /// The windows in the order of the layer, a group at a time.
    pub fn windows(&self) -> impl Iterator<Item = Result<Windows, FineError>> {
        (0..self.groups.len()).map(|group| self.group(group))
    }

    /// The window of a span. None if it has none.
    ///
    /// # Errors
    /// If its group cannot be decoded.
    pub fn window(&self, span: SpanId) -> Result<Option<SpanWindow>, FineError> {
        if self.spans.has_window(span) {
            Ok(self.group(group_of(self.spans.codec(), span))?.get(span).cloned())
        } else {
            Ok(None)
        }
    }

    /// The group that holds a span's window. None for the first span, which has no window.
    pub(crate) fn group_of(&self, span: SpanId) -> Option<usize> {
        (span.0 > 0).then(|| group_of(self.spans.codec(), span))
    }

    /// The windows of a group.
    pub(crate) fn group(&self, group: usize) -> Result<Windows, FineError> {
        let page = PageId(group as u32);
        let stored = self.groups.get(group).ok_or(FineError::NoPage(page))?;
        let plain = wire::decompress(&stored.bytes, stored.plain, "pages")?;
        window::read(&self.spans, page, &members(&self.spans, group), &plain)
    }
}

/// The spans of a group.
fn members(spans: &FineSpans, group: usize) -> Vec<SpanId> {
    let count = spans.codec().page_spans();
    let first = (group * count) as u32 + 1;
    SpanId::each(SpanId(first)..SpanId((first + count as u32).min(spans.count()))).collect()
}

/// Decodes a whole document and checks all that [`decode_head`] and [`decode_page`] check. `memory`
/// grows by the size of the result before that is allocated.
///
/// # Errors
/// Those of [`decode_head`] and [`decode_page`].
pub fn decode(document: &[u8], memory: &mut Charge) -> Result<FineLayer, FineError> {
    let what = || format!("a fine document of {} bytes", document.len());
    let size = FineHeader::parse(document)?.head_size();
    let expected = size;
    let actual = document.len() as u64;
    let head = usize::try_from(size).ok().and_then(|size| document.get(..size));
    let head = decode_head(head.ok_or(FineError::HeadSize { expected, actual })?, actual, memory)?;
    memory.grow(actual, what)?;
    let mut moved = memory.budget().open();
    let mut windows = BTreeMap::new();
    let mut groups: BTreeMap<usize, StoredPage> = BTreeMap::new();
    for page in head.pages() {
        let range = head.page_range(page);
        let bytes = document.get(range.start as usize..range.end as usize).unwrap_or_default();
        let decoded = decode_page(&head, page, bytes)?;
        let spans = head.page_spans(page);
        let group = group_of(head.spans().codec(), spans[0]);
        // Pages of a recorded start of zstd are compressed more than groups are.
        let is_group = members(head.spans(), group) == spans
            && (head.spans().codec() != Codec::Zstd || !head.is_start(page));
        if let Some((_, plain)) = head.page(page).filter(|_| is_group) {
            groups.insert(group, StoredPage { bytes: bytes.to_vec(), plain });
            continue;
        }
        moved.grow(decoded.footprint() as u64, what)?;
        windows.extend(decoded.into_windows());
    }
    let (files, spans) = head.into_parts();
    let last = SpanId(spans.count().saturating_sub(1));
    let count = if spans.has_window(last) { group_of(spans.codec(), last) + 1 } else { 0 };
    let mut writer = window::PageWriter::default();
    for group in 0..count {
        if let Entry::Vacant(entry) = groups.entry(group) {
            let members = members(&spans, group);
            entry.insert(writer.write(members.iter().filter_map(|span| windows.get(span)))?);
        }
    }
    Ok(FineLayer { files, spans, groups: groups.into_values().collect() })
}

/// Collects the windows of a layer's spans in the layer's order, and compresses them.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    stored: Vec<StoredPage>,
    pending: Vec<SpanWindow>,
    count: usize,
    writer: window::PageWriter,
}

impl Groups {
    /// Adds the window of the next span, starting with the second span because the first has none.
    /// Returns the compressed size of the group that this window completes, in bytes, or 0.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub(crate) fn push(&mut self, window: SpanWindow) -> Result<usize, FineError> {
        let most = window.codec().page_spans();
        self.count += 1;
        self.pending.push(window);
        if self.pending.len() == most { self.flush() } else { Ok(0) }
    }

    fn count(&self) -> usize {
        self.count
    }

    fn finish(mut self) -> Result<Vec<StoredPage>, FineError> {
        if !self.pending.is_empty() {
            self.flush()?;
        }
        Ok(self.stored)
    }

    fn flush(&mut self) -> Result<usize, FineError> {
        let stored = self.writer.write(&self.pending)?;
        self.pending.clear();
        let size = stored.bytes.len();
        self.stored.push(stored);
        Ok(size)
    }
}

/// The spans that a span is divided into, except for the first one, which has the start and the
/// window of the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanDivision {
    pub(crate) starts: Vec<FineStart>,
    /// With their leads.
    pub(crate) windows: Vec<SpanWindow>,
}

impl SpanDivision {
    /// Approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        size_of_val(&self.starts[..])
            + self.windows.iter().map(SpanWindow::footprint).sum::<usize>()
    }
}

impl FineLayer {
    /// The same layer with some spans divided. The windows of the other spans stay as they are, and
    /// so does that of a divided span: what its parts refer to before it is in that.
    ///
    /// # Errors
    /// If a division does not belong to the layer, a window cannot be decoded, or zstd cannot
    /// allocate memory.
    pub fn divided(
        self,
        divisions: &BTreeMap<SpanId, SpanDivision>,
    ) -> Result<FineLayer, FineError> {
        if divisions.is_empty() {
            return Ok(self);
        }
        let mut starts = Vec::new();
        for (span, start) in (0..).map(SpanId).zip(self.spans.starts()) {
            starts.push(*start);
            starts.extend(divisions.get(&span).into_iter().flat_map(|division| &division.starts));
        }
        let mut groups = Groups::default();
        let add = |groups: &mut Groups, span: SpanId| {
            let windows = divisions.get(&span).into_iter().flat_map(|division| &division.windows);
            windows.cloned().try_for_each(|window| groups.push(window).map(drop))
        };
        add(&mut groups, SpanId(0))?;
        for windows in self.windows() {
            for (span, window) in windows?.into_windows() {
                groups.push(window)?;
                add(&mut groups, span)?;
            }
        }
        self.with_spans(starts, groups)
    }

    /// The layer with spans and windows as indexing makes them: no span is divided. This is the
    /// inverse of [`FineLayer::divided`].
    #[cfg(test)]
    pub(crate) fn undivided(self) -> Result<FineLayer, FineError> {
        if self.spans.codec() == Codec::Plain {
            return Ok(self);
        }
        let mut starts: Vec<FineStart> = Vec::new();
        let mut stays = vec![false; self.spans.count() as usize];
        for (start, stays) in self.spans.starts().iter().zip(&mut stays) {
            *stays = match self.spans.codec() {
                Codec::Plain | Codec::Gzip => {
                    starts.last().is_none_or(|last| start.output - last.output > super::SPAN_SIZE)
                }
                Codec::Zstd => start.bits != FineStart::DIVIDED,
            };
            starts.extend(stays.then_some(*start));
        }
        let mut groups = Groups::default();
        for windows in self.windows() {
            for (span, window) in windows?.into_windows() {
                if stays.get(span.0 as usize) == Some(&true) {
                    groups.push(window)?;
                }
            }
        }
        self.with_spans(starts, groups)
    }

    fn with_spans(self, starts: Vec<FineStart>, groups: Groups) -> Result<FineLayer, FineError> {
        let spans = &self.spans;
        let parts = SpanParts {
            layer: spans.layer(),
            codec: spans.codec(),
            blob_size: spans.blob_size(),
            tar_end: spans.tar_end(),
            span_size: spans.span_size(),
            starts,
        };
        FineLayer::of_groups(self.files, FineSpans::new(parts)?, groups)
    }
}

/// A document, and the sizes and digests that the manifest states for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedFine {
    /// The document.
    pub bytes: Vec<u8>,
    /// SHA-256 of `bytes`.
    pub digest: Digest,
    /// Bytes of the head.
    pub head_size: u64,
    /// SHA-256 of the head.
    pub head_digest: Digest,
    /// Bytes of the head and of the pages with the windows of the recorded start, which follow it.
    pub start_size: u64,
}

impl FineLayer {
    /// Encodes the layer's document with a recorded start: spans in the order of first use. Spans
    /// that `start` repeats or that the layer does not have are ignored.
    ///
    /// The same layer and start give the same bytes.
    ///
    /// # Errors
    /// If the head would be too large, or zstd cannot allocate memory.
    pub fn encode(&self, start: &[Range<SpanId>]) -> Result<EncodedFine, FineError> {
        /// Higher levels take several times as long and save only a twentieth.
        const LEVEL: i32 = 6;
        let start = normal(start, &self.spans);
        let places = PageOrder::new(&self.spans, &start);
        let pages = self.pages(&places)?;
        let spans = head::encode_spans(&self.spans, &start);
        let files = entries::encode(&self.files);
        let mut compressor = Compressor::new(LEVEL);
        let stored_spans = compressor.compress(&spans)?;
        let stored_files = compressor.compress(&files)?;
        let size = |bytes: &[u8]| {
            u32::try_from(bytes.len()).ok().filter(|size| *size as usize <= MAX_HEAD)
        };
        let sizes = |stored: &[u8], plain: &[u8]| Some([size(stored)?, size(plain)?]);
        let header = FineHeader {
            codec: self.spans.codec(),
            layer: self.spans.layer(),
            blob_size: self.spans.blob_size(),
            tar_end: self.spans.tar_end().0,
            span_size: self.spans.span_size(),
            spans: self.spans.count(),
            entries: self.files.len() as u32,
            pages: pages.len() as u32,
            start: start.len() as u32,
            spans_size: sizes(&stored_spans, &spans).ok_or(FineError::TooLarge)?,
            entries_size: sizes(&stored_files, &files).ok_or(FineError::TooLarge)?,
        };
        header.check_size()?;
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        bytes.extend_from_slice(&stored_spans);
        bytes.extend_from_slice(&stored_files);
        head::encode_proofs(&self.spans, &mut bytes);
        pages.iter().for_each(|page| head::encode_page(&page.bytes, page.plain, &mut bytes));
        let head_size = bytes.len() as u64;
        let head_digest = Digest::sha256(&bytes);
        let mut start_size = head_size;
        for (number, page) in pages.iter().enumerate() {
            bytes.extend_from_slice(&page.bytes);
            if number < places.start_pages() {
                start_size = bytes.len() as u64;
            }
        }
        Ok(EncodedFine {
            digest: Digest::sha256(&bytes),
            bytes,
            head_size,
            head_digest,
            start_size,
        })
    }

    fn pages(&self, places: &PageOrder) -> Result<Vec<StoredPage>, FineError> {
        let mut decoded: BTreeMap<usize, Windows> = BTreeMap::new();
        let mut pages = Vec::with_capacity(places.pages().len());
        let mut writer = PageWriter::default();
        let mut start_writer = PageWriter::of_start();
        for page in places.pages() {
            let spans = places.spans(page);
            let group_of = |span| group_of(self.spans.codec(), span);
            let group = group_of(spans[0]);
            let is_smaller = self.spans.codec() == Codec::Zstd && places.is_start(page);
            if !is_smaller && members(&self.spans, group) == spans {
                pages.push(
                    self.groups
                        .get(group)
                        .cloned()
                        .ok_or(FineError::NoPage(PageId(group as u32)))?,
                );
                continue;
            }
            for span in spans {
                if let Entry::Vacant(entry) = decoded.entry(group_of(*span)) {
                    entry.insert(self.group(group_of(*span))?);
                }
            }
            let writer = if is_smaller { &mut start_writer } else { &mut writer };
            pages.push(writer.write(
                spans.iter().filter_map(|span| decoded.get(&group_of(*span))?.get(*span)),
            )?);
        }
        Ok(pages)
    }
}

/// The same spans in the same order, each once, in as few ranges as possible.
fn normal(start: &[Range<SpanId>], spans: &FineSpans) -> Vec<Range<SpanId>> {
    let mut is_named = vec![false; spans.count() as usize];
    let mut normal: Vec<Range<SpanId>> = Vec::new();
    for range in start {
        for span in SpanId::each(range.start..range.end.min(SpanId(spans.count()))) {
            if std::mem::replace(&mut is_named[span.0 as usize], true) {
                continue;
            }
            match normal.last_mut().filter(|last| last.end == span) {
                Some(last) => last.end.0 += 1,
                None => normal.push(span..SpanId(span.0 + 1)),
            }
        }
    }
    normal
}
