//! The number of spans and bytes that a start fetches.

/// What a start fetches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fetch {
    /// The span size in bytes of the tar. None for the actual spans.
    pub span_size: Option<u64>,
    /// The number of spans in the layers that are read lazily.
    pub spans: u64,
    /// The size of the checkpoints in their ztocs, which are fetched before anything is read, in
    /// bytes. By a fine index: of the parts of its documents that are fetched.
    pub checkpoints: u64,
    /// The number of spans that the start needs.
    pub read: u64,
    /// The size of these spans in the layers' blobs, in bytes.
    pub bytes: u64,
    /// An upper bound for `bytes`: the size if each file was read to its end, within the actual
    /// spans that the start needs. None if that makes no difference.
    pub at_most: Option<u64>,
    /// The size of the layers that are pulled completely, in bytes.
    pub whole: u64,
}

impl Fetch {
    /// An upper bound for all that is fetched during the start, in bytes.
    pub fn total(&self) -> u64 {
        self.at_most.unwrap_or(self.bytes).saturating_add(self.whole).saturating_add(self.checkpoints)
    }
}
