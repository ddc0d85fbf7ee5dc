//! Schedules: the project's hand-written synchronisation under many orders of its steps, which
//! shuttle chooses.
//!
//! The files that are checked are included from the project unchanged. The packages in `std` and
//! `tokio` replace the real ones for this crate. The modules here replace the rest of the project,
//! as far as the files use it, and leave out everything that has no part in the synchronisation.

#[path = "../../crates/ociseek-format/src/budget.rs"]
pub mod budget;
#[path = "../../crates/ociseek-store/src/lock.rs"]
mod lock;
#[path = "../../crates/ociseek-format/src/offset.rs"]
mod offset;
#[path = "../../crates/ociseek-format/src/opaque.rs"]
mod opaque;

// The files name each other by the crates that they are in.
extern crate self as ociseek_format;
extern crate self as ociseek_store;

pub mod budget_laws;
pub mod codec;
pub mod hook;
pub mod layer;
pub mod rootfs;
pub mod schedules;

use hook::{backlog, job, journal, log, runner};

/// The cache of spans, and what the log calls the caches.
mod cache {
    pub(crate) struct Claim;

    pub(crate) const TARGET: &str = "cache";
}

mod progress {
    use std::error::Error;

    pub(crate) fn causes(error: &dyn Error) -> String {
        error.to_string()
    }
}

/// No schedule depends on how sizes are written.
mod printable {
    pub(crate) fn exact_size(bytes: u64) -> String {
        bytes.to_string()
    }

    pub(crate) fn human_size(bytes: u64) -> String {
        bytes.to_string()
    }
}

mod digest {
    use std::fmt;

    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Digest(pub u32);

    impl fmt::Display for Digest {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }
}

mod ztoc {
    pub use crate::codec::{Checkpoint, Checkpoints, Ztoc};
}
