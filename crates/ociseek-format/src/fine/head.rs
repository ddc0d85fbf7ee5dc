//! The head of a document: the part that every reader needs, and the digests that prove the rest.

use std::fmt;
use std::ops::Range;

use super::wire::{self, Reader};
use super::{Codec, FineError, FineSpans, FineStart, MAX_HEAD, SpanParts, entries};
use crate::budget::Charge;
use crate::digest::{ChainState, Digest};
use crate::offset::{Compressed, SpanId, Uncompressed};
use crate::ztoc::FileMetadata;

const MAGIC: [u8; 7] = *b"OSKFINE";
/// The version of documents of each codec. Readers that know only the first one refuse those of
/// zstd layers.
fn version(codec: Codec) -> u8 {
    match codec {
        Codec::Plain | Codec::Gzip => 1,
        Codec::Zstd => 2,
    }
}
/// The size of the fixed part at the start of the head, in bytes.
pub(super) const HEADER: usize = 104;
/// The size of a span's proof, in bytes.
const PROOF: usize = 32;
/// The size of a page's entry in the head, in bytes: two lengths and a digest.
const PAGE: usize = 40;
const SPANS: &str = "spans";
const ENTRIES: &str = "entries";

/// The number of a page of a document, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The decoded head of a document: everything except the windows. Its entries may be elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FineHead {
    spans: FineSpans,
    files: Vec<FileMetadata>,
    start: Vec<Range<SpanId>>,
    places: PageOrder,
    pages: Vec<Page>,
    size: u64,
    start_size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    range: Range<u64>,
    plain: u32,
    digest: Digest,
}

/// The fixed part of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FineHeader {
    pub codec: Codec,
    pub layer: Digest,
    pub blob_size: u64,
    pub tar_end: u64,
    pub span_size: u64,
    pub spans: u32,
    pub entries: u32,
    pub pages: u32,
    /// The number of ranges in the recorded start.
    pub start: u32,
    /// The sizes of the two frames in bytes, stored and decoded.
    pub spans_size: [u32; 2],
    pub entries_size: [u32; 2],
}

impl FineHeader {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.push(version(self.codec));
        out.push(match self.codec {
            Codec::Plain => 0,
            Codec::Gzip => 1,
            Codec::Zstd => 2,
        });
        out.extend_from_slice(&[0; 7]);
        out.extend_from_slice(self.layer.as_bytes());
        [self.blob_size, self.tar_end, self.span_size]
            .iter()
            .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        let counts = [self.spans, self.entries, self.pages, self.start];
        let sizes = [self.spans_size, self.entries_size];
        counts
            .iter()
            .chain(sizes.as_flattened())
            .for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
    }

    /// # Errors
    /// If the format or version is not the expected one, or the head would be too large.
    pub(super) fn parse(bytes: &[u8]) -> Result<FineHeader, FineError> {
        let mut reader = Reader::new(bytes, "header");
        if reader.bytes(MAGIC.len()).ok() != Some(&MAGIC[..]) {
            return Err(FineError::Magic);
        }
        let stated = reader.byte()?;
        if !(1..=2).contains(&stated) {
            return Err(FineError::Version(stated));
        }
        let codec = match reader.byte()? {
            0 => Codec::Plain,
            1 => Codec::Gzip,
            2 => Codec::Zstd,
            other => return Err(FineError::Codec(other)),
        };
        if stated != version(codec) {
            return Err(FineError::VersionOfCodec { version: stated, codec });
        }
        if reader.bytes(7)? != [0; 7] {
            return Err(FineError::Reserved);
        }
        let layer = Digest::from_sha256(array(reader.bytes(32)?));
        let mut long = || Ok::<_, FineError>(u64::from_le_bytes(array(reader.bytes(8)?)));
        let blob_size = long()?;
        let tar_end = long()?;
        let span_size = long()?;
        let mut word = || Ok::<_, FineError>(u32::from_le_bytes(array(reader.bytes(4)?)));
        let spans = word()?;
        let entries = word()?;
        let pages = word()?;
        let start = word()?;
        let spans_size = [word()?, word()?];
        let entries_size = [word()?, word()?];
        let header = FineHeader {
            codec,
            layer,
            blob_size,
            tar_end,
            span_size,
            spans,
            entries,
            pages,
            start,
            spans_size,
            entries_size,
        };
        header.check_size().map(|()| header)
    }

    /// # Errors
    /// If the head would be too large, stored or decoded.
    pub(super) fn check_size(&self) -> Result<(), FineError> {
        let most = self.size(0).max(self.size(1));
        if most > MAX_HEAD as u64 { Err(FineError::TooLarge) } else { Ok(()) }
    }

    /// The stored size of the head in bytes.
    pub(super) fn head_size(&self) -> u64 {
        self.size(0)
    }

    /// The head's size with its frames stored (`form` 0) or decoded (1).
    fn size(&self, form: usize) -> u64 {
        let frames = u64::from(self.spans_size[form]) + u64::from(self.entries_size[form]);
        let proofs = u64::from(self.spans.saturating_sub(1)) * PROOF as u64;
        HEADER as u64 + frames + proofs + u64::from(self.pages) * PAGE as u64
    }
}

/// Converts a slice of known length.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

/// Which page holds which windows. The pages of the recorded start come first:
/// [`Codec::page_spans`] windows each, in the order of the start. The other pages follow in the
/// order of the layer. Each holds what the start left of a group of as many neighbours, so a start
/// changes only the groups that it takes windows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PageOrder {
    /// The spans of all pages.
    order: Vec<SpanId>,
    /// Where in `order` each page ends.
    ends: Vec<usize>,
    /// The number of pages that belong to the recorded start.
    start_pages: usize,
    /// The page of each span.
    page_of: Vec<Option<PageId>>,
}

/// The group of neighbours that a span belongs to. The span must not be the first one.
pub(super) fn group_of(codec: Codec, span: SpanId) -> usize {
    (span.0 as usize - 1) / codec.page_spans()
}

impl PageOrder {
    /// Memory for each span, in bytes.
    const PER_SPAN: u64 = 32;

    /// `start` must not repeat a span, and all its spans must exist.
    pub(super) fn new(spans: &FineSpans, start: &[Range<SpanId>]) -> PageOrder {
        let has_window = |span: &SpanId| spans.has_window(*span);
        let mut order: Vec<_> =
            start.iter().cloned().flat_map(SpanId::each).filter(has_window).collect();
        let mut ends: Vec<usize> =
            (0..order.len()).step_by(spans.codec().page_spans()).skip(1).collect();
        ends.extend((!order.is_empty()).then_some(order.len()));
        let start_pages = ends.len();
        let mut is_placed = vec![false; spans.count() as usize];
        order.iter().for_each(|span| is_placed[span.0 as usize] = true);
        for span in SpanId::each(SpanId(0)..SpanId(spans.count())).filter(has_window) {
            if is_placed[span.0 as usize] {
                continue;
            }
            let group = |span| group_of(spans.codec(), span);
            let continues = ends.len() > start_pages
                && order.last().is_some_and(|last| group(*last) == group(span));
            order.push(span);
            match ends.last_mut().filter(|_| continues) {
                Some(end) => *end = order.len(),
                None => ends.push(order.len()),
            }
        }
        let mut places =
            PageOrder { order, ends, start_pages, page_of: vec![None; spans.count() as usize] };
        for page in places.pages() {
            for at in places.members(page) {
                places.page_of[places.order[at].0 as usize] = Some(page);
            }
        }
        places
    }

    pub(super) fn pages(&self) -> impl ExactSizeIterator<Item = PageId> + use<> {
        (0..self.ends.len() as u32).map(PageId)
    }

    /// The spans of a page, in the order in which it stores their windows.
    pub(super) fn spans(&self, page: PageId) -> &[SpanId] {
        &self.order[self.members(page)]
    }

    fn members(&self, page: PageId) -> Range<usize> {
        let end = |number: usize| self.ends.get(number).copied().unwrap_or(self.order.len());
        let first = (page.0 as usize).checked_sub(1).map_or(0, end);
        first..end(page.0 as usize)
    }

    pub(super) fn start_pages(&self) -> usize {
        self.start_pages
    }

    /// Whether a page belongs to the recorded start.
    pub(super) fn is_start(&self, page: PageId) -> bool {
        (page.0 as usize) < self.start_pages
    }
}

/// Encodes the spans, column by column, as distances from one to the next, followed by the recorded
/// start.
pub(super) fn encode_spans(spans: &FineSpans, start: &[Range<SpanId>]) -> Vec<u8> {
    let mut out = Vec::new();
    let starts = spans.starts();
    if spans.codec() != Codec::Plain {
        wire::put(&mut out, starts[0].input.0);
        starts.windows(2).for_each(|two| wire::put(&mut out, two[1].input - two[0].input));
        starts.windows(2).for_each(|two| wire::put(&mut out, two[1].output - two[0].output));
        out.extend(starts[1..].iter().map(|start| start.bits));
    }
    for range in start {
        wire::put(&mut out, range.start.0.into());
        wire::put(&mut out, (range.end.0 - range.start.0).into());
    }
    out
}

/// Encodes the proofs.
pub(super) fn encode_proofs(spans: &FineSpans, out: &mut Vec<u8>) {
    spans.starts()[1..].iter().for_each(|start| out.extend_from_slice(&start.state.to_bytes()));
}

/// Encodes the head's entry for a page.
pub(super) fn encode_page(stored: &[u8], plain: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    out.extend_from_slice(&(plain as u32).to_le_bytes());
    out.extend_from_slice(Digest::sha256(stored).as_bytes());
}

fn decode_starts(
    header: &FineHeader,
    reader: &mut Reader<'_>,
    proofs: &[u8],
) -> Result<Vec<FineStart>, FineError> {
    let mut states = vec![ChainState::INITIAL];
    states.extend(proofs.as_chunks().0.iter().map(|bytes| ChainState::from_bytes(*bytes)));
    let at_start = FineStart {
        input: Compressed(0),
        output: Uncompressed(0),
        bits: 0,
        state: ChainState::INITIAL,
    };
    let mut starts: Vec<_> =
        states.into_iter().map(|state| FineStart { state, ..at_start }).collect();
    if header.codec == Codec::Plain {
        for (number, start) in (0..).zip(&mut starts) {
            let at = header.span_size.checked_mul(number).ok_or_else(|| reader.out_of_range())?;
            (start.input, start.output) = (Compressed(at), Uncompressed(at));
        }
        return Ok(starts);
    }
    let mut at = 0u64;
    for start in &mut starts {
        at = at.checked_add(reader.number()?).ok_or_else(|| reader.out_of_range())?;
        start.input = Compressed(at);
    }
    let mut at = 0u64;
    for start in &mut starts[1..] {
        at = at.checked_add(reader.number()?).ok_or_else(|| reader.out_of_range())?;
        start.output = Uncompressed(at);
    }
    for start in &mut starts[1..] {
        start.bits = reader.byte()?;
    }
    Ok(starts)
}

fn decode_start(
    header: &FineHeader,
    reader: &mut Reader<'_>,
) -> Result<Vec<Range<SpanId>>, FineError> {
    // A range takes at least two bytes.
    if header.start as usize > reader.left() / 2 {
        return Err(FineError::Short(SPANS));
    }
    let mut is_named = vec![false; header.spans as usize];
    let mut ranges = Vec::with_capacity(header.start as usize);
    for _ in 0..header.start {
        let first = reader.number()?;
        let count = reader.number()?;
        let end = first.checked_add(count).filter(|end| count > 0 && *end <= header.spans.into());
        let end = end.ok_or(FineError::Start(first))?;
        for span in first..end {
            if std::mem::replace(&mut is_named[span as usize], true) {
                return Err(FineError::Start(span));
            }
        }
        ranges.push(SpanId(first as u32)..SpanId(end as u32));
    }
    Ok(ranges)
}

/// The entries of a head as they are stored in it.
#[derive(Debug, Clone)]
pub struct StoredEntries<T = Box<[u8]>> {
    frame: T,
    /// The size of the decoded frame in bytes.
    plain: u32,
    count: u32,
    /// The end of the tar.
    end: Uncompressed,
}

impl<T: AsRef<[u8]>> StoredEntries<T> {
    /// The number of entries.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Decodes and checks the entries. `memory` grows by what they take.
    ///
    /// # Errors
    /// If they are not valid, or do not fit into memory.
    pub(crate) fn decode(&self, memory: &mut Charge) -> Result<Vec<FileMetadata>, FineError> {
        let StoredEntries { ref frame, plain, count, end } = *self;
        decode_entries(StoredEntries { frame: frame.as_ref(), plain, count, end }, memory)
    }
}

fn decode_entries(
    stored: StoredEntries<&[u8]>,
    memory: &mut Charge,
) -> Result<Vec<FileMetadata>, FineError> {
    let StoredEntries { frame, plain, count, end } = stored;
    let _decoded = memory.budget().charge(plain.into(), || format!("the list of {count} files"))?;
    let decoded = wire::decompress(frame, plain as usize, ENTRIES)?;
    let files = entries::decode(&decoded, count as usize, memory)?;
    entries::check(&files, end)?;
    Ok(files)
}

/// The memory that the list of files in a document takes, without decoding it, in bytes: while an
/// image is opened, and afterwards, both with the tree of these files. `head` begins with the
/// document. A head that lies cannot be decoded.
///
/// # Errors
/// If the bytes are not the beginning of a document.
pub fn list_memory(head: &[u8]) -> Result<[u64; 2], FineError> {
    /// A file in the tree and in its lookup tables while that is made, and in the tree alone.
    const MADE: u64 = 256;
    const NODE: u64 = 80;
    /// What a reader keeps of a span.
    const SPAN: u64 = 400;
    let header = FineHeader::parse(head)?;
    let plain = u64::from(header.entries_size[1]);
    let files = u64::from(header.entries).min(plain / entries::LEAST as u64);
    let listed = size_of::<FileMetadata>() as u64 + MADE;
    let spans = u64::from(header.spans) * SPAN;
    Ok([files * listed + 3 * plain + spans, files * NODE + 2 * plain + spans])
}

/// Decodes and checks a head whose digest the caller has verified. `document_size` is the size of
/// the whole document in bytes. `memory` grows by the size of the result before that is allocated.
///
/// # Errors
/// If the bytes are not a head, if its parts contradict each other or the sizes, or if it does not
/// fit into memory.
pub fn decode_head(
    head: &[u8],
    document_size: u64,
    memory: &mut Charge,
) -> Result<FineHead, FineError> {
    let (mut head, entries) = decode_parts(head, document_size, memory)?;
    head.files = entries.decode(memory)?;
    Ok(head)
}

/// Like [`decode_head`], but leaves the entries as they are stored, for a reader that has the
/// [`Tree`](crate::tree::Tree) already and may never need them. They were valid when that was made.
///
/// # Errors
/// As for [`decode_head`], but not for the entries.
pub fn decode_spans(
    head: &[u8],
    document_size: u64,
    memory: &mut Charge,
) -> Result<(FineHead, StoredEntries), FineError> {
    let (head, StoredEntries { frame, plain, count, end }) =
        decode_parts(head, document_size, memory)?;
    // With what they take when they are decoded.
    let size =
        frame.len() as u64 + u64::from(plain) + u64::from(count) * size_of::<FileMetadata>() as u64;
    memory.grow(size, || format!("the list of {count} files"))?;
    Ok((head, StoredEntries { frame: frame.into(), plain, count, end }))
}

/// The head without its entries, and these.
fn decode_parts<'a>(
    head: &'a [u8],
    document_size: u64,
    memory: &mut Charge,
) -> Result<(FineHead, StoredEntries<&'a [u8]>), FineError> {
    /// A span while it is decoded and afterwards, and its place in a page.
    const SPAN: u64 = 2 * size_of::<FineStart>() as u64 + 8 + PageOrder::PER_SPAN;
    let header = FineHeader::parse(head)?;
    let expected = header.head_size();
    let actual = head.len() as u64;
    if expected != actual {
        return Err(FineError::HeadSize { expected, actual });
    }
    let what = || format!("what the head of a fine document of {actual} bytes holds");
    memory.grow(
        u64::from(header.spans) * SPAN + u64::from(header.pages) * size_of::<Page>() as u64,
        what,
    )?;
    let _decoded = memory.budget().charge(header.spans_size[1].into(), what)?;

    let mut sections = Reader::new(&head[HEADER..], "sections");
    let stored = sections.bytes(header.spans_size[0] as usize)?;
    let stored_entries = sections.bytes(header.entries_size[0] as usize)?;
    let proofs = sections.bytes(header.spans.saturating_sub(1) as usize * PROOF)?;
    let stored_pages = sections.bytes(header.pages as usize * PAGE)?;
    if header.spans == 0 {
        return Err(FineError::SpanCount { expected: 1, actual: 0 });
    }

    let decoded = wire::decompress(stored, header.spans_size[1] as usize, SPANS)?;
    let mut reader = Reader::new(&decoded, SPANS);
    let starts = decode_starts(&header, &mut reader, proofs)?;
    let start = decode_start(&header, &mut reader)?;
    reader.end()?;
    let FineHeader { layer, codec, blob_size, tar_end, span_size, .. } = header;
    let tar_end = Uncompressed(tar_end);
    let spans = FineSpans::new(SpanParts { layer, codec, blob_size, tar_end, span_size, starts })?;

    let places = PageOrder::new(&spans, &start);
    let (pages, size) = decode_pages(&header, &places, stored_pages)?;
    if size != document_size {
        return Err(FineError::DocumentSize { expected: size, actual: document_size });
    }
    let start_size = places
        .start_pages()
        .checked_sub(1)
        .and_then(|last| pages.get(last))
        .map(|page| page.range.end);
    let start_size = start_size.unwrap_or(actual);

    let frame = stored_entries;
    let plain = header.entries_size[1];
    let end = spans.plain_end();
    let entries = StoredEntries { frame, plain, count: header.entries, end };
    let head =
        FineHead { spans, files: Vec::new(), start, places, pages, size: actual, start_size };
    Ok((head, entries))
}

/// Decodes the list of pages. Also returns the end of the last one.
fn decode_pages(
    header: &FineHeader,
    places: &PageOrder,
    stored: &[u8],
) -> Result<(Vec<Page>, u64), FineError> {
    let expected = places.pages().len() as u64;
    if u64::from(header.pages) != expected {
        return Err(FineError::PageCount { expected, actual: header.pages.into() });
    }
    let mut pages = Vec::with_capacity(header.pages as usize);
    let mut end = header.head_size();
    for (page, entry) in places.pages().zip(stored.chunks_exact(PAGE)) {
        let stored = u32::from_le_bytes(array(&entry[..4]));
        let plain = u32::from_le_bytes(array(&entry[4..8]));
        if [stored, plain].iter().any(|size| *size == 0 || *size as usize > header.codec.max_page())
        {
            return Err(FineError::PageSize(page));
        }
        let range = end..end + u64::from(stored);
        end = range.end;
        pages.push(Page { range, plain, digest: Digest::from_sha256(array(&entry[8..])) });
    }
    Ok((pages, end))
}

impl FineHead {
    /// The layer's digest, a SHA-256.
    pub fn layer(&self) -> Digest {
        self.spans.layer()
    }

    /// Bytes of the layer's blob.
    pub fn blob_size(&self) -> u64 {
        self.spans.blob_size()
    }

    /// The tar's entries in the tar's order. Empty if a layer map was built from this head, because
    /// the map took them.
    pub fn entries(&self) -> &[FileMetadata] {
        &self.files
    }

    pub(crate) fn take_entries(&mut self) -> Vec<FileMetadata> {
        std::mem::take(&mut self.files)
    }

    /// Where spans begin, and their proofs.
    pub fn spans(&self) -> &FineSpans {
        &self.spans
    }

    /// The entries and the spans.
    pub fn into_parts(self) -> (Vec<FileMetadata>, FineSpans) {
        (self.files, self.spans)
    }

    /// The spans that a recorded start reads, in the order of first use, each at most once. May be
    /// empty.
    pub fn start(&self) -> &[Range<SpanId>] {
        &self.start
    }

    /// Bytes of the head.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the head and of the pages with the windows of the recorded start, which follow it.
    pub fn start_size(&self) -> u64 {
        self.start_size
    }

    /// All pages in order. Those of the recorded start come first.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = PageId> + use<> {
        self.places.pages()
    }

    /// Whether a page belongs to the recorded start.
    pub(super) fn is_start(&self, page: PageId) -> bool {
        self.places.is_start(page)
    }

    /// The page that holds a span's window. None if the span is decoded without one.
    pub fn page_of(&self, span: SpanId) -> Option<PageId> {
        self.places.page_of.get(span.0 as usize).copied().flatten()
    }

    /// The spans whose windows a page holds, in the page's order. Empty if the page does not exist.
    pub fn page_spans(&self, page: PageId) -> &[SpanId] {
        self.places.spans(page)
    }

    /// The byte range of a page in the document. Empty if the page does not exist.
    pub fn page_range(&self, page: PageId) -> Range<u64> {
        self.pages.get(page.0 as usize).map_or(0..0, |page| page.range.clone())
    }

    /// The SHA-256 of a page, and its decoded size in bytes.
    pub(super) fn page(&self, page: PageId) -> Option<(Digest, usize)> {
        self.pages.get(page.0 as usize).map(|page| (page.digest, page.plain as usize))
    }

    /// The bytes of the blob to fetch for a span: [`FineSpans::fetch_range`].
    pub fn fetch_range(&self, span: SpanId) -> Range<Compressed> {
        self.spans.fetch_range(span)
    }

    /// A digest of everything that decides what a span decodes to: its bytes, the positions where
    /// decoding starts and ends in them, and its window, as far as that is known before the page is
    /// fetched. Two documents of one layer may give the same bytes different identities. `span`
    /// must be below the count.
    pub fn identity(&self, span: SpanId) -> Digest {
        let blob = self.spans.fetch_range(span);
        let plain = self.spans.plain_range(span);
        let start = &self.spans.starts()[span.0 as usize];
        let mut text = self.layer().as_bytes().to_vec();
        text.extend_from_slice(match self.spans.codec() {
            Codec::Plain => b"plain",
            Codec::Gzip => b"gzip",
            Codec::Zstd => b"zstd",
        });
        for number in
            [blob.start.0, blob.end.0, plain.start.0, plain.end.0, start.input.0, start.bits.into()]
        {
            text.extend_from_slice(&number.to_le_bytes());
        }
        text.extend_from_slice(&start.state.to_bytes());
        let next = self.spans.starts().get(span.0 as usize + 1);
        next.iter().for_each(|next| text.extend_from_slice(&next.state.to_bytes()));
        if let Some((page, (digest, _))) =
            self.page_of(span).and_then(|page| Some((page, self.page(page)?)))
        {
            let slot = self.page_spans(page).iter().position(|member| *member == span).unwrap_or(0);
            text.push(slot as u8);
            text.extend_from_slice(digest.as_bytes());
        }
        Digest::sha256(&text)
    }
}
