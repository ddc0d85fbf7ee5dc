//! What is known of a registry's referrers API.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a registry is known to have the referrers API. The opposite is not remembered: it may be
/// true of only one of several servers, and asking again costs no time.
#[derive(Default)]
pub(super) struct ReferrersApi(AtomicBool);

impl ReferrersApi {
    pub(super) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn found(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
