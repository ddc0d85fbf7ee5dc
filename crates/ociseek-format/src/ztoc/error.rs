//! Why bytes are not a usable ztoc.

use super::checkpoints::CheckpointsError;
use super::view::FlatbufferError;
use crate::budget::OverBudget;
use crate::digest::DigestError;
use crate::offset::SpanId;

/// Why bytes are not a usable ztoc.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ZtocError {
    #[error("not a ztoc, or a damaged one")]
    Malformed(#[from] FlatbufferError),
    #[error("the ztoc has more entries or text than its {0} bytes can hold: it reuses its parts")]
    Amplified(usize),
    #[error("the ztoc does not fit into memory")]
    Memory(#[from] OverBudget),
    #[error("unknown compression algorithm {0} in the ztoc (1 is gzip, 2 is uncompressed)")]
    Algorithm(u8),
    #[error("the ztoc gives a negative size for the {0}")]
    NegativeSize(&'static str),
    #[error("the ztoc's checkpoints cannot be used")]
    Checkpoints(#[from] CheckpointsError),
    #[error("the ztoc has {digests} span digests and a last span {last} for {spans} checkpoints")]
    SpanCount { digests: usize, last: i32, spans: u64 },
    #[error("span {0} has an invalid digest")]
    SpanDigest(SpanId, #[source] DigestError),
    #[error("entry {0} has an unknown type")]
    EntryType(usize),
    #[error("entry {0} has a negative or impossible offset or size")]
    EntryRange(usize),
    #[error("entry {0} has an invalid modification time")]
    EntryTime(usize),
}
