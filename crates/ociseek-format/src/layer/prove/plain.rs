//! The checks on the layer decoded from start to end: its digest, its entries, its spans.

use super::difference::Differences;
use super::entries::EntryCheck;
use super::fine::FinePlainCheck;
use super::spans::PlainSpanCheck;
use crate::digest::{Algorithm, Hasher};

/// The users of the plain bytes.
pub(super) struct PlainCheck {
    pub diff_id: Hasher,
    pub size: u64,
    /// The entries of the ztoc.
    pub entries: Option<EntryCheck>,
    /// Those of the fine document, unless they equal the ztoc's.
    pub fine_entries: Option<EntryCheck>,
    pub spans: Option<PlainSpanCheck>,
    pub fine: Option<FinePlainCheck>,
    /// The differences of the ztoc's spans.
    pub differences: Differences,
}

impl PlainCheck {
    /// Checks nothing.
    pub(super) fn nothing() -> PlainCheck {
        PlainCheck {
            diff_id: Hasher::new(Algorithm::Sha256),
            size: 0,
            entries: None,
            fine_entries: None,
            spans: None,
            fine: None,
            differences: Differences::default(),
        }
    }

    pub(super) fn take(&mut self) -> PlainCheck {
        std::mem::replace(self, PlainCheck::nothing())
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        for entries in [&mut self.entries, &mut self.fine_entries].into_iter().flatten() {
            entries.push(bytes);
        }
        if let Some(fine) = &mut self.fine {
            fine.push(bytes);
        }
        match &mut self.spans {
            Some(spans) => spans.push(bytes, &mut self.diff_id, &mut self.differences),
            None => self.diff_id.update(bytes),
        }
    }
}
