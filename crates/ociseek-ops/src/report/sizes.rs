//! Estimates what a recorded start would fetch if the layers had spans of another size.
//!
//! Larger spans are combined from the actual ones, as the indexer would do: a span ends at the
//! first border that is at least its size away. Smaller spans cannot be seen in a ztoc, which has
//! no borders inside its spans, so spans are assumed to be cut and compressed evenly. Also, a
//! record is incomplete for them: of the reads that need no new span, it only has the first of each
//! file. So there is an upper bound too, which assumes that each file was read to its end, within
//! the spans that are known to be needed.

use std::collections::BTreeSet;
use std::ops::Range;

use super::layers::{LayerBreakdown, Lazy, UncoveredReason};
use super::start::{Fetch, Reads, StartupFetch};
use super::{FineDocuments, once};
use crate::doctor::why_not;
use crate::open::RootFs;
use ociseek_format::codec::WINDOW;
use ociseek_format::fine::{FineHead, PageId, SPAN_SIZE};
use ociseek_format::image::{Descriptor, LayerKind, NotIndexed};
use ociseek_format::layer::span::SpanTable;
use ociseek_format::layer::{LayerMap, Starts};
use ociseek_format::offset::{LayerId, SpanId, SpanSize, Uncompressed};
use ociseek_format::ztoc::Checkpoints;
use ociseek_rootfs::layers::LayerAccess;

/// The sizes to estimate, in bytes.
const SIZES: [u64; 4] = [256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Estimates for the actual spans, and then for each of [`SIZES`]. Without an index, the latter
/// assume one that covers all possible layers.
pub(super) fn sizes(
    image: &RootFs,
    layers: &[LayerBreakdown],
    same: &[LayerId],
    reads: &Reads,
) -> Vec<Fetch> {
    let opened: Vec<_> = image.content.layers().collect();
    let tables = |is_lazy: &dyn Fn(&LayerBreakdown) -> bool| -> Vec<ReadPlan<'_>> {
        let each = once(same).filter_map(|id| {
            Some((id, opened.get(id.0 as usize)?.spans(), layers.get(id.0 as usize)?))
        });
        each.map(|(number, now, layer)| ReadPlan {
            number,
            now,
            by: is_lazy(layer).then_some(now),
            size: layer.descriptor.size,
        })
        .collect()
    };
    let now = tables(&|layer| layer.lazy == Lazy::Yes);
    let mut all = vec![fetch(&now, None, reads)];
    let could = tables(&|layer| match layer.lazy {
        Lazy::Yes => true,
        Lazy::No(UncoveredReason::NoIndex(None)) => {
            let opened = image.layers.get(layer.number.0 as usize);
            opened.is_some_and(|l| matches!(l.how, LayerAccess::Fine | LayerAccess::Local))
        }
        Lazy::No(_) => false,
    });
    if could.iter().any(|way| way.by.is_some()) {
        let lazy = || could.iter().filter_map(|way| way.by);
        let is_now = |size: u64| lazy().all(|table| table.map().span_size() == size);
        let others = SIZES.into_iter().filter(|size| image.index.is_none() || !is_now(*size));
        all.extend(others.map(|size| fetch(&could, Some(size), reads)));
    }
    all
}

/// With the documents of the fine index, and without one for the layers that have none.
pub(super) fn by_fine(
    image: &RootFs,
    layers: &[LayerBreakdown],
    same: &[LayerId],
    documents: &FineDocuments,
    reads: &Reads,
) -> Fetch {
    let opened: Vec<_> = image.content.layers().collect();
    let each = once(same).filter_map(|id| {
        Some((id, opened.get(id.0 as usize)?.spans(), layers.get(id.0 as usize)?))
    });
    let ways = each.map(|(number, now, layer)| {
        let without = (layer.lazy == Lazy::Yes).then_some(now);
        let by = documents.spans.get(&layer.descriptor.digest).or(without);
        ReadPlan { number, now, by, size: layer.descriptor.size }
    });
    fetch(&ways.collect::<Vec<_>>(), None, reads)
}

/// What the start fetches by an index of each kind. `known` is what it fetches by those of the
/// image. What the image lacks is estimated for an index with the default settings.
pub(super) fn startup(
    image: &RootFs,
    layers: &[LayerBreakdown],
    same: &[LayerId],
    documents: &FineDocuments,
    reads: &Reads,
    (by_soci, by_fine): (Option<&Fetch>, &Fetch),
) -> StartupFetch {
    let opened: Vec<_> = image.content.layers().collect();
    let estimated = |size: u64, is_lazy: &dyn Fn(&Descriptor) -> bool| {
        let mut sum = Fetch { span_size: Some(size), ..Fetch::default() };
        for id in once(same) {
            let Some((open, layer)) = opened.get(id.0 as usize).zip(layers.get(id.0 as usize))
            else {
                continue;
            };
            if is_lazy(&layer.descriptor) {
                add_estimate(&mut sum, open.spans(), layer, reads.recorded(id));
            } else {
                sum.whole = sum.whole.saturating_add(layer.descriptor.size);
            }
        }
        sum
    };
    let has_soci = image.index.is_some();
    let has_fine = !documents.spans.is_empty();
    let soci = match by_soci {
        Some(fetch) if has_soci => *fetch,
        _ => estimated(SpanSize::DEFAULT.get(), &|layer| why_not(layer).is_none()),
    };
    let can_be_fine = |layer: &Descriptor| match why_not(layer) {
        None => true,
        Some(NotIndexed::Kind(LayerKind::Zstd)) => layer.size >= NotIndexed::MIN_LAYER_SIZE,
        Some(_) => false,
    };
    let fine = if has_fine { *by_fine } else { estimated(SPAN_SIZE, &can_be_fine) };
    StartupFetch { soci, has_soci, fine, has_fine }
}

/// Adds what a start fetches of a layer with spans of this size, and of its ztoc or document.
fn add_estimate(
    sum: &mut Fetch,
    table: &SpanTable<LayerMap>,
    layer: &LayerBreakdown,
    recorded: &[Range<u64>],
) {
    let is_fine = sum.span_size == Some(SPAN_SIZE);
    let touched = touched(table, sum.span_size, recorded);
    let bytes = match &table.map().starts {
        // These spans are those of the decoded tar.
        Starts::Unpacked { .. } => scaled(touched.bytes, layer.descriptor.size, layer.plain),
        _ => touched.bytes,
    };
    sum.spans += touched.all;
    sum.read += touched.spans;
    sum.bytes = sum.bytes.saturating_add(bytes);
    let checkpoints = match &table.map().starts {
        Starts::InBlob(Checkpoints::Uncompressed { .. }) => 0,
        // Of each window only what is referred to, compressed, in pages.
        _ if is_fine => touched.spans.saturating_mul(WINDOW as u64 / 4),
        _ => touched.all.saturating_mul(WINDOW as u64),
    };
    sum.checkpoints = sum.checkpoints.saturating_add(checkpoints);
}

/// How a layer is read.
struct ReadPlan<'a> {
    number: LayerId,
    /// The spans as they are.
    now: &'a SpanTable<LayerMap>,
    /// The ones that it is read with. None if it is pulled whole.
    by: Option<&'a SpanTable<LayerMap>>,
    /// The size of its blob in bytes.
    size: u64,
}

fn fetch(layers: &[ReadPlan<'_>], span_size: Option<u64>, reads: &Reads) -> Fetch {
    let mut sum = Fetch { span_size, ..Fetch::default() };
    let mut at_most = 0u64;
    let mut is_cut = false;
    for ReadPlan { number, now, by, size } in layers {
        let Some(table) = by else {
            sum.whole = sum.whole.saturating_add(*size);
            continue;
        };
        let recorded = touched(table, span_size, reads.recorded(*number));
        sum.spans += recorded.all;
        sum.read += recorded.spans;
        sum.bytes = sum.bytes.saturating_add(recorded.bytes);
        let files = clipped(reads.whole(*number), now, &reads.spans(*number, now));
        at_most = at_most.saturating_add(touched(table, span_size, &files).bytes);
        is_cut |= recorded.is_cut;
        match &table.map().starts {
            Starts::InBlob(Checkpoints::Gzip { .. }) => {
                sum.checkpoints =
                    sum.checkpoints.saturating_add(recorded.all.saturating_mul(WINDOW as u64));
            }
            Starts::Fine(head) => {
                sum.checkpoints = sum.checkpoints.saturating_add(document(head, table, &files));
                // Its spans are smaller than those that the reads were recorded with.
                is_cut = true;
            }
            Starts::InBlob(Checkpoints::Uncompressed { .. }) | Starts::Unpacked { .. } => {}
        }
    }
    sum.at_most = is_cut.then_some(at_most);
    sum
}

/// The size of the parts of a fine document that are fetched to read `ranges` of the tar, in bytes:
/// its head, the pages of its recorded start, and those with the windows of other spans.
fn document(head: &FineHead, table: &SpanTable<LayerMap>, ranges: &[Range<u64>]) -> u64 {
    let spans = ranges.iter().flat_map(|range| {
        let spans = table.covering(Uncompressed(range.start)..Uncompressed(range.end));
        (spans.start.0..spans.end.0).map(SpanId)
    });
    let pages: BTreeSet<PageId> = spans.filter_map(|span| head.page_of(span)).collect();
    let pages = pages
        .into_iter()
        .map(|page| head.page_range(page))
        .filter(|page| page.start >= head.start_size());
    pages.map(|page| page.end - page.start).fold(head.start_size(), u64::saturating_add)
}

/// The parts of `ranges` inside `spans`. Both must be in order.
fn clipped(
    ranges: &[Range<u64>],
    table: &SpanTable<LayerMap>,
    spans: &[SpanId],
) -> Vec<Range<u64>> {
    let mut clipped = Vec::new();
    let mut ahead = ranges;
    for span in spans {
        let plain = table.plain_range(*span);
        while let Some(range) = ahead.first().filter(|range| range.start < plain.end.0) {
            let part = range.start.max(plain.start.0)..range.end.min(plain.end.0);
            if !part.is_empty() {
                clipped.push(part);
            }
            if range.end > plain.end.0 {
                break;
            }
            ahead = &ahead[1..];
        }
    }
    clipped
}

/// The spans that ranges of a tar need.
#[derive(Default)]
struct SpanSet {
    all: u64,
    spans: u64,
    bytes: u64,
    /// Whether spans were cut.
    is_cut: bool,
}

/// `ranges` must be sorted and disjoint.
fn touched(table: &SpanTable<LayerMap>, span_size: Option<u64>, ranges: &[Range<u64>]) -> SpanSet {
    let mut touched = SpanSet::default();
    let mut ahead = ranges;
    let mut open: Option<Piece> = None;
    for span in (0..table.count()).map(SpanId) {
        let plain = table.plain_range(span);
        let blob = table.blob_range(span);
        let piece = Piece {
            plain: plain.start.0..plain.end.0,
            bytes: blob.end.0.saturating_sub(blob.start.0),
            parts: 1,
        };
        let Some(size) = span_size else {
            touched.add(&piece, &mut ahead);
            continue;
        };
        let length = piece.plain.end - piece.plain.start;
        if length >= size.saturating_mul(2) {
            open.take().iter().for_each(|piece| touched.add(piece, &mut ahead));
            touched.is_cut = true;
            touched.add(&Piece { parts: length / size, ..piece }, &mut ahead);
            continue;
        }
        match &mut open {
            Some(open) if piece.plain.start - open.plain.start < size => {
                open.plain.end = piece.plain.end;
                open.bytes = open.bytes.saturating_add(piece.bytes);
            }
            _ => open.replace(piece).iter().for_each(|piece| touched.add(piece, &mut ahead)),
        }
    }
    open.iter().for_each(|piece| touched.add(piece, &mut ahead));
    touched
}

/// A span, possibly cut into equal parts.
struct Piece {
    plain: Range<u64>,
    bytes: u64,
    parts: u64,
}

impl SpanSet {
    fn add(&mut self, piece: &Piece, ahead: &mut &[Range<u64>]) {
        self.all += piece.parts;
        let length = piece.plain.end.saturating_sub(piece.plain.start);
        // The number of parts that were already counted.
        let mut counted = 0;
        while let Some(range) = ahead.first().filter(|range| range.start < piece.plain.end) {
            let within = range.start.max(piece.plain.start)..range.end.min(piece.plain.end);
            if !within.is_empty() {
                let part = |at: u64| scaled(at, piece.parts, length);
                let first = part(within.start - piece.plain.start).max(counted);
                let end = (part(within.end - 1 - piece.plain.start) + 1).min(piece.parts);
                if first < end {
                    self.spans += end - first;
                    let bytes = |part| scaled(part, piece.bytes, piece.parts);
                    self.bytes = self.bytes.saturating_add(bytes(end) - bytes(first));
                    counted = end;
                }
            }
            if range.end > piece.plain.end {
                return;
            }
            *ahead = &ahead[1..];
        }
    }
}

/// `at * to / of`.
fn scaled(at: u64, to: u64, of: u64) -> u64 {
    (u128::from(at) * u128::from(to) / u128::from(of.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use ociseek_format::layer::{LayerIndexer, LayerOptions, Outcome};
    use ociseek_format::offset::SpanSize;
    use ociseek_format::ztoc;

    /// A plain layer with one file of `size` bytes, which starts at byte 512 of its tar.
    fn table(size: usize, span_size: u64) -> SpanTable<LayerMap> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(size as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, "file", &vec![b'x'; size][..]).unwrap();
        let tar = tar.into_inner().unwrap();
        let span_size = SpanSize::new(span_size).unwrap();
        let mut indexer =
            LayerIndexer::new(LayerOptions { span_size, ..LayerOptions::default() }, None);
        indexer.push(&tar).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else {
            panic!("it has a ztoc")
        };
        SpanTable::new(Arc::new(ztoc::decode(&built.bytes).unwrap().into())).unwrap()
    }

    fn sums(touched: &SpanSet) -> (u64, u64, u64) {
        (touched.all, touched.spans, touched.bytes)
    }

    /// Spans of a plain tar only depend on the span size, so their estimate is exact.
    #[test]
    fn estimates_match_a_real_index_of_that_span_size() {
        const SIZE: usize = 64 * 1024 - 1536;
        let ranges = [600..5000, 9000..9001, 30_000..40_000, 64_000..65_000];
        for now in [1024, 4096, 16_384] {
            let now = table(SIZE, now);
            for other in [1024, 2048, 4096, 8192, 16_384, 32_768] {
                let exact = touched(&table(SIZE, other), None, &ranges);
                assert_eq!(sums(&touched(&now, Some(other), &ranges)), sums(&exact), "{other}");
            }
        }
    }

    #[test]
    fn files_are_clipped_to_the_needed_spans() {
        let table = table(64 * 1024 - 1536, 4096);
        let ranges = [100..300, 4000..9000, 20_000..20_001, 30_000..30_100];
        assert_eq!(
            clipped(&ranges, &table, &[SpanId(0), SpanId(1), SpanId(7)]),
            [100..300, 4000..4096, 4096..8192, 30_000..30_100]
        );
        assert_eq!(clipped(&ranges, &table, &[]), []);
    }
}
