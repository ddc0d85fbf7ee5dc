//! Counting what is done.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::model::ContentStats;
use crate::store::{Part, StoreError};

#[derive(Default)]
pub(super) struct Counts {
    pub requests: Count,
    pub bytes_fetched: Count,
    pub spans_decoded: Count,
    pub memory_hits: Count,
    pub disk_hits: Count,
    pub retries: Count,
    pub errors: Count,
    pub image_bytes: Count,
}

#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counts {
    pub fn stats(&self) -> ContentStats {
        ContentStats {
            requests: self.requests.get(),
            bytes_fetched: self.bytes_fetched.get(),
            spans_decoded: self.spans_decoded.get(),
            memory_hits: self.memory_hits.get(),
            disk_hits: self.disk_hits.get(),
            retries: self.retries.get(),
            errors: self.errors.get(),
            image_bytes: self.image_bytes.get(),
        }
    }
}

/// A part of a layer that counts what it costs, however its reading ends.
pub(super) struct CountedPart<'a> {
    part: Part,
    counts: &'a Counts,
    given: u64,
}

impl<'a> CountedPart<'a> {
    pub fn new(part: Part, counts: &'a Counts) -> CountedPart<'a> {
        CountedPart { part, counts, given: 0 }
    }

    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        let chunk = self.part.next().await?;
        let length = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        self.given += length;
        self.counts.bytes_fetched.add(length);
        Ok(chunk)
    }
}

impl Drop for CountedPart<'_> {
    fn drop(&mut self) {
        let requests = u64::from(self.part.requests());
        self.counts.requests.add(requests);
        self.counts.retries.add(requests.saturating_sub(1));
        self.counts.bytes_fetched.add(self.part.extra(self.given));
    }
}
