//! The services that index images as they are pushed.
//!
//! | module | what it does |
//! |---|---|
//! | [`job`], [`record`] | one image to be indexed, and what can become of it; a job as JSON |
//! | [`work`], [`enabled`] | the work on a job's image: its index, and its SOCI-enabled image |
//! | [`backfill`] | what was pushed before anyone listened |
//! | [`aws`] | Amazon ECR: hosts, tokens, signatures |
//! | [`lambda`] | a function of AWS Lambda |
//! | [`allow`], [`secret`] | which images may be asked for, and by whom |
//! | [`runner`] | tries jobs, tells what became of them, and gives up on them |
//! | [`backlog`], [`journal`], [`remembered`] | jobs waiting in this process, their file, and recently finished jobs |
//! | `queue` | the queue that many processes share (feature `nats`) |
//! | [`log`], [`metrics`] | what a service says of itself |
//! | [`http`] | connections within bounds; health and metrics |
//! | [`server`] | the HTTP service |

pub mod allow;
#[cfg(feature = "lambda")]
pub mod aws;
pub mod backfill;
pub mod backlog;
pub mod enabled;
pub mod http;
pub mod job;
pub mod journal;
#[cfg(feature = "lambda")]
pub mod lambda;
pub mod log;
pub mod metrics;
#[cfg(feature = "nats")]
pub mod queue;
pub mod record;
pub mod remembered;
pub mod runner;
pub mod secret;
pub mod server;
pub mod work;
