//! The time that a read, or a fetch in the background, may take. Each part of the work gets what is
//! left of it: no retry and no second request has a deadline of its own.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::ReadError;
use ociseek_format::digest::Digest;
use ociseek_format::offset::SpanId;

/// When the deadline is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadBudget {
    begun: Instant,
    deadline: Duration,
}

impl ReadBudget {
    /// All of the deadline, from now on.
    pub(super) fn new(deadline: Duration) -> ReadBudget {
        ReadBudget { begun: Instant::now(), deadline }
    }

    /// How long the work has taken so far.
    pub(super) fn elapsed(self) -> Duration {
        self.begun.elapsed()
    }

    /// What `work` returns. None if the deadline is over before.
    pub(super) async fn wait<T>(self, work: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.begun + self.deadline, work).await.ok()
    }

    /// The error of a span that did not arrive in time.
    pub(super) fn exceeded(self, layer: Digest, span: SpanId) -> ReadError {
        ReadError::Deadline { layer, span, after: self.deadline }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn each_part_of_the_work_gets_what_is_left() {
        let deadline = Duration::from_secs(600);
        let spent = deadline - Duration::from_millis(50);
        let budget = ReadBudget { begun: Instant::now() - spent, deadline };
        assert_eq!(budget.wait(ready(1)).await, Some(1));
        // With a deadline of its own, a part would end in ten minutes.
        assert_eq!(budget.wait(pending::<u8>()).await, None);
        assert_eq!(budget.wait(pending::<u8>()).await, None);
        assert!(budget.elapsed() >= deadline);
    }
}
