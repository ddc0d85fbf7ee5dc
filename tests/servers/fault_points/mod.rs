//! Makes every request, every message to a queue and every access to a file fail once, or kills the
//! program there.
//!
//! Laws: a run ends with the right result, or with an error and its exit code. Nothing that is
//! listed is incomplete. The next run, without faults, gives the same result as if there had never
//! been one.
//!
//! CI tests a sample of the points. `OCISEEK_FAULT_POINTS=all` tests all of them, and
//! `OCISEEK_FAULT_POINTS=N` the sample with seed N; `OCISEEK_FAULT_JOBS=TEXT` only those of jobs
//! with this text in their names. Each test prints the number of its points, and fails if it has
//! fewer than `fault_points.rs` of ociseek-testkit demands.

mod before;
mod files;
mod jobs;
#[cfg(feature = "nats")]
mod messages;
#[cfg(feature = "nats")]
mod queue;
mod reads;
mod requests;
mod whole;
