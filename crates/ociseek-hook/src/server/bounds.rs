//! Limits for the size, rate and duration of requests.

use ociseek_store::lock::Hold;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::BytesMut;
use futures_util::StreamExt;

/// A token bucket: `rate` per second on average, with bursts of several seconds' worth.
pub(super) struct Bucket {
    rate: f64,
    full: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(super) fn new(rate: u32, seconds: u32) -> Bucket {
        let full = f64::from(rate) * f64::from(seconds);
        Bucket { rate: rate.into(), full, state: Mutex::new((full, Instant::now())) }
    }

    /// Takes a token, if there is one.
    pub(super) fn take(&self) -> bool {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> bool {
        let mut state = self.state.hold();
        let (level, at) = *state;
        let level = (level + now.saturating_duration_since(at).as_secs_f64() * self.rate).min(self.full);
        let taken = level >= 1.0;
        *state = (if taken { level - 1.0 } else { level }, now);
        taken
    }
}

/// Why a body was not read.
pub(super) enum BodyError {
    TooLarge,
    TooSlow,
    Broken,
}

/// Reads a body of at most `limit` bytes that arrives within `patience`.
pub(super) async fn read(body: Body, limit: usize, patience: Duration) -> Result<BytesMut, BodyError> {
    let read = async {
        let mut chunks = body.into_data_stream();
        let mut bytes = BytesMut::new();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| BodyError::Broken)?;
            if bytes.len() + chunk.len() > limit {
                return Err(BodyError::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    tokio::time::timeout(patience, read).await.unwrap_or(Err(BodyError::TooSlow))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_does_not_exceed_its_rate_over_time() {
        let bucket = Bucket::new(10, 2);
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let taken = (0..100).filter(|_| bucket.take_at(at(0.0))).count();
        assert_eq!(taken, 20);
        let taken = (0..1000).filter(|n| bucket.take_at(at(f64::from(*n) / 100.0))).count();
        assert!((98..=102).contains(&taken), "{taken}");
        let taken = (0..100).filter(|_| bucket.take_at(at(1000.0))).count();
        assert_eq!(taken, 20, "what was not taken is not kept for ever");
    }
}
