//! Resolves the reads of a recorded start in an image: from paths of files, following links, to
//! ranges of the layers' tars, and to the number of spans and bytes that it fetches.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{FilePlace, place, same};
use crate::open::RootFs;
use crate::prefetch::{file_at, part};
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_rootfs::record::RecordedRead;

/// How many missing paths are named.
const NAMED: usize = 10;

/// A summary of what a start needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartTotals {
    /// The number of files that it reads.
    pub files: u64,
    /// How many bytes of layers it fetches, with the actual spans and including layers that are
    /// pulled completely.
    pub bytes: u64,
    /// How many bytes of the layers' tars it reads.
    pub plain: u64,
    /// The number of recorded files that this image does not have.
    pub missing: u64,
    /// Some of their paths, from the root, without a leading slash.
    pub missing_paths: Vec<Vec<u8>>,
}

/// Why a record cannot be used for an image.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "the image has none of the {0} files that the profile recorded: it is the profile of another image"
    )]
    OtherImage(u64),
}

/// The reads of a start, by layer.
pub(super) struct Reads {
    /// By the first layer with the same blob: the recorded ranges of its tar, sorted and disjoint.
    recorded: BTreeMap<LayerId, Vec<Range<u64>>>,
    /// The same, if each of the files had been read to its end.
    whole: BTreeMap<LayerId, Vec<Range<u64>>>,
    places: BTreeSet<FilePlace>,
    missing: u64,
    missing_paths: Vec<Vec<u8>>,
}

impl Reads {
    /// # Errors
    /// If none of the recorded files is in the image.
    pub(super) fn of(image: &RootFs, reads: &[RecordedRead]) -> Result<Reads, StartError> {
        let same = same(image);
        let (mut recorded, mut whole): (BTreeMap<_, Vec<_>>, BTreeMap<_, Vec<_>>) =
            Default::default();
        let mut places = BTreeSet::new();
        let mut missing = BTreeSet::new();
        // Most files are read several times.
        let mut known = BTreeMap::new();
        for read in reads {
            let located = known.entry(&read.path[..]).or_insert_with(|| {
                let file = file_at(&image.tree, &read.path).ok()?;
                Some((file, file.stored_in(0..file.size())?))
            });
            let Some((file, extent)) = located else {
                missing.insert(&read.path[..]);
                continue;
            };
            let place = place(&same, extent);
            let layer = place.0;
            if places.insert(place) {
                whole
                    .entry(layer)
                    .or_default()
                    .push(extent.offset.0..extent.offset.0.saturating_add(extent.size));
            }
            if let Some(part) = part(file, read.offset, read.size) {
                recorded.entry(layer).or_default().push(part.range().start.0..part.range().end.0);
            }
        }
        if places.is_empty() {
            return Err(StartError::OtherImage(missing.len() as u64));
        }
        for ranges in recorded.values_mut().chain(whole.values_mut()) {
            *ranges = apart(std::mem::take(ranges));
        }
        let missing_paths = missing.iter().take(NAMED).map(|path| path.to_vec()).collect();
        Ok(Reads { recorded, whole, places, missing: missing.len() as u64, missing_paths })
    }

    /// Whether the file at `place` was read. Its layer must be the first one with the same blob.
    pub(super) fn has(&self, place: FilePlace) -> bool {
        self.places.contains(&place)
    }

    pub(super) fn recorded(&self, layer: LayerId) -> &[Range<u64>] {
        self.recorded.get(&layer).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn whole(&self, layer: LayerId) -> &[Range<u64>] {
        self.whole.get(&layer).map(Vec::as_slice).unwrap_or_default()
    }

    /// The spans of a layer that hold recorded bytes, in order.
    pub(super) fn spans(&self, layer: LayerId, table: &SpanTable<LayerMap>) -> Vec<SpanId> {
        let covering =
            |range: &Range<u64>| table.covering(Uncompressed(range.start)..Uncompressed(range.end));
        let mut spans: Vec<SpanId> =
            self.recorded(layer).iter().flat_map(|range| SpanId::each(covering(range))).collect();
        spans.dedup();
        spans
    }

    /// The summary. `sizes` are the estimates, starting with the actual spans.
    pub(super) fn start(self, sizes: &[Fetch]) -> StartTotals {
        let bytes = sizes.first().map_or(0, |fetch| fetch.bytes.saturating_add(fetch.whole));
        let Reads { recorded, places, missing, missing_paths, .. } = self;
        let plain = recorded.values().flatten().map(|range| range.end - range.start).sum();
        StartTotals { files: places.len() as u64, bytes, plain, missing, missing_paths }
    }
}

/// Sorts ranges, drops empty ones, and joins those that touch.
fn apart(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

/// What a recorded startup fetches by an index of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupFetch {
    /// By a SOCI index.
    pub soci: Fetch,
    /// Whether the image has that index. Otherwise the figures are estimates.
    pub has_soci: bool,
    /// By a fine index.
    pub fine: Fetch,
    /// Whether the image has that index. Otherwise the figures are estimates.
    pub has_fine: bool,
}

/// What a start fetches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetch {
    /// The span size in bytes of the tar. None for the actual spans.
    pub span_size: Option<u64>,
    /// The number of spans in the layers that are read lazily.
    pub spans: u64,
    /// The size of the checkpoints in their ztocs, which are fetched before anything is read, in
    /// bytes. By a fine index: of the parts of its documents that are fetched.
    pub checkpoints: u64,
    /// The number of spans that the start needs.
    pub read: u64,
    /// The size of these spans in the layers' blobs, in bytes.
    pub bytes: u64,
    /// An upper bound for `bytes`: the size if each file was read to its end, within the actual
    /// spans that the start needs. None if that makes no difference.
    pub at_most: Option<u64>,
    /// The size of the layers that are pulled completely, in bytes.
    pub whole: u64,
}

impl Fetch {
    /// What the start fetches of the layers and of the index, in bytes. The only definition of
    /// what a startup needs: its share is this, of the size of all layers.
    pub fn needed(&self) -> u64 {
        self.bytes.saturating_add(self.whole).saturating_add(self.checkpoints)
    }

    /// An upper bound for all that is fetched during the start, in bytes.
    pub fn total(&self) -> u64 {
        self.at_most
            .unwrap_or(self.bytes)
            .saturating_add(self.whole)
            .saturating_add(self.checkpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_merged() {
        let ranges = vec![10..20, 0..5, 5..5, 20..21, 18..19, 30..40];
        assert_eq!(apart(ranges), [0..5, 10..21, 30..40]);
    }
}
