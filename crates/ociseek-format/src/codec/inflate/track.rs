//! Records the matches that refer to what was decoded before a block, until the output is too far
//! away from the block's start to reach it.

use super::{Inflate, WINDOW};

/// More than the matches of 32 KiB, each with at least 3 bytes, and of one that begins
/// there.
const MOST: usize = 1 << 14;

/// A match that refers to output before a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackReference {
    /// Where it begins in the output that it is reported for.
    pub to: u32,
    /// How far back it refers.
    pub distance: u16,
    /// Its length in bytes.
    pub length: u16,
}

/// What a loop of the decoder reports its matches to.
pub(super) trait Track {
    /// Where in the buffer the recording ends.
    fn end(&self) -> usize;

    /// Takes a match that begins at `to` in the buffer.
    fn note(&mut self, to: usize, distance: usize, length: usize);
}

/// Records nothing.
pub(super) struct NoTracker;

impl Track for NoTracker {
    #[inline(always)]
    fn end(&self) -> usize {
        usize::MAX
    }

    #[inline(always)]
    fn note(&mut self, _to: usize, _distance: usize, _length: usize) {}
}

/// The matches of one step that refer to what is before `origin`.
pub(super) struct Tracker {
    /// Where in the buffer the block starts. Output more than 32 KiB after it cannot reach further
    /// back.
    origin: usize,
    references: Box<[BackReference; MOST]>,
    count: usize,
}

impl Track for Tracker {
    #[inline(always)]
    fn end(&self) -> usize {
        self.origin + WINDOW
    }

    #[inline(always)]
    fn note(&mut self, to: usize, distance: usize, length: usize) {
        // Always written, but only counted if it refers to what is before. So nothing branches.
        self.references[self.count % MOST] =
            BackReference { to: to as u32, distance: distance as u16, length: length as u16 };
        self.count += usize::from(to - distance < self.origin);
    }
}

impl Tracker {
    fn new() -> Tracker {
        Tracker { origin: 0, references: Box::new([BackReference::default(); MOST]), count: 0 }
    }

    /// The buffer's content has moved towards its start.
    pub(super) fn shift(&mut self, by: usize) {
        self.origin = self.origin.saturating_sub(by);
    }
}

impl Inflate {
    /// Starts to record the matches that refer to what was decoded so far.
    pub fn track(&mut self) {
        let tracker = self.tracker.get_or_insert_with(|| Box::new(Tracker::new()));
        (tracker.origin, tracker.count) = (self.end, 0);
    }

    /// The matches of the last step that refer to what was decoded before [`Inflate::track`]. Each
    /// is returned once, in the order of the output of that step, in which positions are counted.
    pub fn references(&mut self) -> &[BackReference] {
        let Some(tracker) = &mut self.tracker else { return &[] };
        let count = std::mem::take(&mut tracker.count).min(MOST);
        let references = &mut tracker.references[..count];
        references.iter_mut().for_each(|reference| reference.to -= self.start as u32);
        references
    }

    /// Whether output from here on is watched.
    #[inline]
    pub(super) fn is_tracking(&self) -> bool {
        self.tracker.as_ref().is_some_and(|tracker| self.end < tracker.end())
    }
}
