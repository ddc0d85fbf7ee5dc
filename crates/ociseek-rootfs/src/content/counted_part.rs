//! Counts what a request of a part of a layer takes.

use bytes::Bytes;

use super::model::{Counts, Purpose};
use ociseek_store::{Part, StoreError};

/// A part of a layer that adds up its costs, however reading it ends.
pub(super) struct CountedPart<'a> {
    part: Part,
    counts: &'a Counts,
    purpose: Purpose,
    delivered: u64,
}

impl<'a> CountedPart<'a> {
    pub(super) fn new(part: Part, counts: &'a Counts, purpose: Purpose) -> CountedPart<'a> {
        CountedPart { part, counts, purpose, delivered: 0 }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let chunk = self.part.next().await?;
        let length = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        self.delivered += length;
        self.add_bytes(length);
        Ok(chunk)
    }
}

impl CountedPart<'_> {
    fn add_bytes(&self, bytes: u64) {
        self.counts.bytes_fetched.add(bytes);
        if self.purpose == Purpose::Start {
            self.counts.start_bytes.add(bytes);
        }
    }
}

impl Drop for CountedPart<'_> {
    fn drop(&mut self) {
        let requests = u64::from(self.part.requests());
        self.counts.requests.add(requests);
        self.counts.retries.add(requests.saturating_sub(1));
        if self.purpose == Purpose::Start {
            self.counts.start_requests.add(requests);
        }
        self.add_bytes(self.part.extra(self.delivered));
    }
}
