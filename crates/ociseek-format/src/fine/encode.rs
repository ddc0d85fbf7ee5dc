//! Writes documents.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::frame::Compressor;
use super::head::{self, FineHeader, PageOrder, group_of};
use super::layer::members;
use super::pages::{PageWriter, StoredPage};
use super::{Codec, FineError, FineLayer, FineSpans, MAX_HEAD, PageId, Windows, entries};
use crate::digest::Digest;
use crate::offset::SpanId;

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
        let (spans, files) = (head::encode_spans(&self.spans, &start), entries::encode(&self.files));
        let mut compressor = Compressor::new(LEVEL);
        let (stored_spans, stored_files) = (compressor.compress(&spans)?, compressor.compress(&files)?);
        let size = |bytes: &[u8]| u32::try_from(bytes.len()).ok().filter(|size| *size as usize <= MAX_HEAD);
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
        let (head_size, head_digest) = (bytes.len() as u64, Digest::sha256(&bytes));
        let mut start_size = head_size;
        for (number, page) in pages.iter().enumerate() {
            bytes.extend_from_slice(&page.bytes);
            if number < places.start_pages() {
                start_size = bytes.len() as u64;
            }
        }
        Ok(EncodedFine { digest: Digest::sha256(&bytes), bytes, head_size, head_digest, start_size })
    }

    fn pages(&self, places: &PageOrder) -> Result<Vec<StoredPage>, FineError> {
        let mut decoded: BTreeMap<usize, Windows> = BTreeMap::new();
        let mut pages = Vec::with_capacity(places.pages().len());
        let (mut writer, mut start_writer) = (PageWriter::default(), PageWriter::of_start());
        for page in places.pages() {
            let spans = places.spans(page);
            let group_of = |span| group_of(self.spans.codec(), span);
            let group = group_of(spans[0]);
            let is_smaller = self.spans.codec() == Codec::Zstd && places.is_start(page);
            if !is_smaller && members(&self.spans, group) == spans {
                pages.push(self.groups.get(group).cloned().ok_or(FineError::NoPage(PageId(group as u32)))?);
                continue;
            }
            for span in spans {
                if let Entry::Vacant(entry) = decoded.entry(group_of(*span)) {
                    entry.insert(self.group(group_of(*span))?);
                }
            }
            let writer = if is_smaller { &mut start_writer } else { &mut writer };
            pages.push(writer.write(spans.iter().filter_map(|span| decoded.get(&group_of(*span))?.get(*span)))?);
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
