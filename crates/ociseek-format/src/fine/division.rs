//! Layers with divided spans, because a start reads these: smaller spans bring fewer
//! bytes that it does not read.

use std::collections::BTreeMap;

use super::{Codec, FineError, FineLayer, FineSpans, FineStart, Groups, SPAN_SIZE, SpanParts, SpanWindow};
use crate::offset::SpanId;

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
        size_of_val(&self.starts[..]) + self.windows.iter().map(SpanWindow::footprint).sum::<usize>()
    }
}

impl FineLayer {
    /// The same layer with some spans divided. The windows of the other spans stay as they are, and
    /// so does that of a divided span: what its parts refer to before it is in that.
    ///
    /// # Errors
    /// If a division does not belong to the layer, a window cannot be decoded, or zstd cannot
    /// allocate memory.
    pub fn divided(self, divisions: &BTreeMap<SpanId, SpanDivision>) -> Result<FineLayer, FineError> {
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
    ///
    /// # Errors
    /// If a window cannot be decoded, or zstd cannot allocate memory.
    pub fn undivided(self) -> Result<FineLayer, FineError> {
        if self.spans.codec() == Codec::Plain {
            return Ok(self);
        }
        let mut starts: Vec<FineStart> = Vec::new();
        let mut stays = vec![false; self.spans.count() as usize];
        for (start, stays) in self.spans.starts().iter().zip(&mut stays) {
            *stays = match self.spans.codec() {
                Codec::Plain | Codec::Gzip => starts.last().is_none_or(|last| start.output - last.output > SPAN_SIZE),
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
