//! Records which bytes of a window the following output refers to, until that output is too far
//! away to reach the window.

use super::{Inflate, WINDOW};
use crate::codec::Used;

/// The bytes of the window before `origin` that output has referred to.
#[derive(Default)]
pub(super) struct Tracker {
    /// Where in the buffer the watched output starts. Output more than 32 KiB after it cannot reach
    /// the window.
    origin: usize,
    is_on: bool,
    used: Used,
}

impl Tracker {
    /// Where in the buffer tracking ends; 0 if it is off.
    #[inline]
    pub(super) fn end(&self) -> usize {
        if self.is_on { self.origin + WINDOW } else { 0 }
    }

    /// Records a match that begins at `from` in the buffer.
    #[inline]
    pub(super) fn note(&mut self, from: usize, length: usize) {
        if from < self.origin {
            // A match reaches back no further than the window, and `origin` is at least that far into the buffer.
            let first = (from + WINDOW).saturating_sub(self.origin);
            self.used.mark(first..first + length);
        }
    }

    /// The buffer's content has moved towards its start.
    pub(super) fn shift(&mut self, by: usize) {
        self.origin = self.origin.saturating_sub(by);
    }
}

impl Inflate {
    /// Starts to record which bytes of [`Inflate::window`] the output from here on refers to.
    pub fn track(&mut self) {
        let tracker = self.tracker.get_or_insert_default();
        tracker.used.clear();
        (tracker.origin, tracker.is_on) = (self.end, true);
    }

    /// Stops what [`Inflate::track`] started and returns the bytes used, if 32 KiB of output
    /// followed. `once` returns them earlier, because no more output follows. Returns None if
    /// tracking is off or not finished.
    pub fn tracked(&mut self, once: bool) -> Option<&Used> {
        let tracker = self.tracker.as_mut().filter(|tracker| tracker.is_on)?;
        if !once && self.end < tracker.end() {
            return None;
        }
        tracker.is_on = false;
        Some(&tracker.used)
    }

    /// Whether output from here on is watched.
    #[inline]
    pub(super) fn is_tracking(&self) -> bool {
        self.tracker.as_ref().is_some_and(|tracker| self.end < tracker.end())
    }
}
