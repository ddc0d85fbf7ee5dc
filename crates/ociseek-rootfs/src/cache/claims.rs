//! Claims on spans: who fetches a span claims it, so that other images of this process that have
//! the same layer wait for it instead of fetching it too.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::SpanKey;
use ociseek_store::lock::Hold;

/// The claimed spans of all clones of a cache.
#[derive(Default)]
pub(super) struct Claims(Mutex<HashSet<SpanKey>>);

/// The result of [`super::SpanCache::claim`].
pub(crate) enum ClaimOutcome {
    /// The span is ours to fetch.
    Granted(Claim),
    /// Another task has claimed it.
    Taken,
    /// It would not be stored, so it must be fetched without a claim.
    Unavailable,
}

/// A claimed span. Others may claim it after this is dropped.
pub(crate) struct Claim {
    claims: Arc<Claims>,
    key: SpanKey,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.0.hold().remove(&self.key);
    }
}

impl Claims {
    pub(super) fn claim(self: &Arc<Self>, key: &SpanKey) -> ClaimOutcome {
        if !self.0.hold().insert(*key) {
            return ClaimOutcome::Taken;
        }
        ClaimOutcome::Granted(Claim { claims: Arc::clone(self), key: *key })
    }
}
