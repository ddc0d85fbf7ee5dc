//! A layer's complete fine document, as it is collected and as it is checked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::head::{FineHeader, decode_head, group_of};
use super::pages::{self, StoredPage};
use super::{Codec, FineError, FineSpans, PageId, SpanWindow, Windows, decode_page, entries, frame};
use crate::budget::Charge;
use crate::offset::{SpanId, Uncompressed};
use crate::ztoc::FileMetadata;

/// The files, spans and windows of a layer. Windows are kept compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FineLayer {
    pub(super) files: Vec<FileMetadata>,
    pub(super) spans: FineSpans,
    /// The windows of groups of neighbours, which are the pages of a document without a recorded
    /// start.
    pub(super) groups: Vec<StoredPage>,
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
        let (mut groups, mut number) = (Groups::default(), 0);
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
        let expected = SpanId::each(SpanId(0)..SpanId(spans.count())).filter(|span| spans.has_window(*span)).count();
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
        match self.spans.has_window(span) {
            true => Ok(self.group(group_of(self.spans.codec(), span))?.get(span).cloned()),
            false => Ok(None),
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
        let plain = frame::decompress(&stored.bytes, stored.plain, "pages")?;
        pages::read(&self.spans, page, &members(&self.spans, group), &plain)
    }
}

/// The spans of a group.
pub(super) fn members(spans: &FineSpans, group: usize) -> Vec<SpanId> {
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
    let (expected, actual) = (size, document.len() as u64);
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
        let is_group =
            members(head.spans(), group) == spans && (head.spans().codec() != Codec::Zstd || !head.is_start(page));
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
    let mut writer = pages::PageWriter::default();
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
    writer: pages::PageWriter,
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
