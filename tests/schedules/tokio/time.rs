//! Timeouts.

use std::pin::Pin;
use std::task::{Context, Poll};
pub use std::time::{Duration, Instant};
use std::time::{reach, timeouts_elapse};

use shuttle::rand::Rng;

/// The future did not end in time.
#[derive(Debug, PartialEq, Eq)]
pub struct Elapsed;

/// A future with a time limit.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    at: Instant,
}

pub fn timeout<F: Future>(time: Duration, future: F) -> Timeout<F> {
    timeout_at(Instant::now() + time, future)
}

pub fn timeout_at<F: Future>(at: Instant, future: F) -> Timeout<F> {
    Timeout { future: Box::pin(future), at }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        if !timeouts_elapse() {
            return Poll::Pending;
        }
        if self.at <= Instant::now() || shuttle::rand::thread_rng().gen_ratio(1, 8) {
            reach(self.at);
            return Poll::Ready(Err(Elapsed));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
