//! Windows are compared with the layer where the span before theirs is decoded. That may happen
//! while the page with the window is not in memory. The window is then compared before it is used;
//! or it was used earlier, and its page is fetched again.
//!
//! What a window needs of the tar must still be in memory or in the cache on disk for that; the
//! rest of it is always compared.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytes::Bytes;

use super::inner::LayerHandle;
use super::pieces::covering;
use crate::cache::PIECE;
use crate::layers::WINDOW_CHECK;
use ociseek_format::fine::SpanWindow;
use ociseek_format::layer::prove::SpanTail;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::SpanId;
use ociseek_store::lock::Hold;

/// What is known about the windows of a layer, by span. The layer's memory charge includes
/// [`WINDOW_CHECK`] for each span.
#[derive(Default)]
pub(super) struct WindowChecks(Mutex<BTreeMap<SpanId, WindowState>>);

// Half of the places in a tree's nodes may be empty, and a node has more than its entries.
const _: () = assert!(WINDOW_CHECK >= 3 * size_of::<(SpanId, WindowState)>() as u64);

enum WindowState {
    /// The span before it was decoded, and shows this.
    Shown(SpanTail),
    /// A span was decoded with it, and the span before that was not.
    Used,
    Compared,
}

impl WindowChecks {
    /// Whether a window was used that was not compared.
    pub(super) fn was_used(&self, span: SpanId) -> bool {
        matches!(self.0.hold().get(&span), Some(WindowState::Used))
    }

    fn compared(&self, span: SpanId) {
        self.0.hold().insert(span, WindowState::Compared);
    }

    fn shown(&self, span: SpanId, tail: SpanTail) {
        self.0.hold().insert(span, WindowState::Shown(tail));
    }

    /// A window is about to be used. Returns what it must be compared with before that.
    fn used(&self, span: SpanId) -> Option<SpanTail> {
        let mut states = self.0.hold();
        match states.insert(span, WindowState::Used) {
            Some(WindowState::Shown(tail)) => Some(tail),
            Some(WindowState::Compared) => {
                states.insert(span, WindowState::Compared);
                None
            }
            Some(WindowState::Used) | None => None,
        }
    }
}

impl LayerHandle {
    /// Compares the window of a span that is about to be decoded, unless that was done.
    ///
    /// # Errors
    /// If it is not what the span before it has shown.
    pub(super) fn check_used_window(&self, span: SpanId, window: &SpanWindow) -> Result<(), SpanError> {
        match self.layer.window_checks.used(span) {
            Some(tail) if !tail.agrees(window) || !self.has_parts(span, window) => Err(SpanError::Window { span }),
            Some(_) => {
                self.layer.window_checks.compared(span);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Call this after the span before `span` was decoded. `tail` is what that showed if the window
    /// of `span` was not known then.
    ///
    /// # Errors
    /// If the window has become known since, and is another one.
    pub(super) fn check_next_window(
        &self,
        span: SpanId,
        is_compared: bool,
        tail: Option<SpanTail>,
    ) -> Result<(), SpanError> {
        if is_compared {
            self.layer.window_checks.compared(span);
        }
        let Some(tail) = tail else { return Ok(()) };
        self.layer.window_checks.shown(span, tail);
        // Another task may have used it in the meantime, before this was known.
        let page = self.loaded_windows(span);
        page.as_ref().and_then(|page| page.get(span)).map_or(Ok(()), |window| self.check_used_window(span, window))
    }

    /// Whether a window has the bytes of the tar that are in memory or on disk.
    fn has_parts(&self, span: SpanId, window: &SpanWindow) -> bool {
        let spans = &self.layer.open.spans;
        let mut last = None;
        for (offset, part) in window.parts_of_tar(spans.plain_range(span).start) {
            for (holder, range) in self.layer.parts(&(offset.0..offset.0 + part.len() as u64)) {
                // Where the part begins, relative to the start of the span that holds it.
                let part_start = offset.0 as i64 - spans.plain_range(holder).start.0 as i64;
                for number in covering(&range) {
                    let id = self.piece(holder, number);
                    // Neighbours are often in the same piece.
                    let (_, piece) = match last.take().filter(|(known, _)| *known == id) {
                        Some(known) => last.insert(known),
                        None => last.insert((id, self.known_piece(holder, number))),
                    };
                    let Some(piece) = piece else { continue };
                    let at = u64::from(number) * PIECE as u64;
                    let both = range.start.max(at)..range.end.min(at + piece.len() as u64);
                    let of_piece = piece.get((both.start - at) as usize..(both.end - at) as usize);
                    let place = |at: u64| (at as i64 - part_start) as usize;
                    if of_piece != part.get(place(both.start)..place(both.end)) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// A piece that was decoded earlier.
    fn known_piece(&self, span: SpanId, number: u32) -> Option<Bytes> {
        let LayerHandle { inner, layer, .. } = self;
        inner.memory.get(self.piece(span, number)).or_else(|| {
            let is_kept = self.keeps_on_disk();
            let read = || inner.cache.read(&layer.key(span), layer.size(span), number..number + 1)?.pop();
            is_kept.then(read).flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::fine::SpanWindow;

    #[test]
    fn a_window_is_compared_once_wherever_it_is_used() {
        let (checks, span) = (WindowChecks::default(), SpanId(7));
        let tail = SpanTail::of(&SpanWindow::default());
        // Used first: it is wanted again when the span before it is decoded.
        assert!(checks.used(span).is_none());
        assert!(checks.was_used(span));
        checks.shown(span, tail);
        assert!(!checks.was_used(span));
        assert_eq!(checks.used(span), Some(tail));
        checks.compared(span);
        assert!(!checks.was_used(span));
        assert!(checks.used(span).is_none());
        assert!(!checks.was_used(span));
        assert!(checks.used(SpanId(8)).is_none());
    }
}
