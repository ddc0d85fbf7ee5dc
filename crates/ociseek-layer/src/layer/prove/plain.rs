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
    pub entries: Option<EntryCheck>,
    pub spans: Option<PlainSpanCheck>,
    pub fine: Option<FinePlainCheck>,
    pub differences: Differences,
}

impl PlainCheck {
    /// Checks nothing.
    pub(super) fn nothing() -> PlainCheck {
        let diff_id = Hasher::new(Algorithm::Sha256);
        PlainCheck { diff_id, size: 0, entries: None, spans: None, fine: None, differences: Differences::default() }
    }

    pub(super) fn take(&mut self) -> PlainCheck {
        std::mem::replace(self, PlainCheck::nothing())
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        if let Some(entries) = &mut self.entries {
            entries.push(bytes, &mut self.differences);
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
