//! The services that index images as they are pushed.
//!
//! What decides whether an event leads to a request at all:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ociseek_hook::allow::AllowList;
//!
//! let rules = vec!["registry.example/team/*".parse()?, "*.registry.example".parse()?];
//! let allowed = AllowList::new(rules, false);
//! assert!(allowed.admits(&"registry.example/team/app:v1".parse()?));
//! assert!(allowed.admits(&"eu.registry.example/other/app:v1".parse()?));
//! assert!(!allowed.admits(&"registry.example/other/app:v1".parse()?));
//! assert!(!allowed.admits(&"metadata.internal/team/app:v1".parse()?));
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`job`], [`record`] | an image to be indexed, and the possible results; a job as JSON |
//! | [`work`], [`enabled`], `skip` | processing a job's image: its index, and its SOCI-enabled image |
//! | [`backfill`] | images that were pushed before the service ran |
//! | [`aws`] | Amazon ECR: tokens, signatures |
//! | [`lambda`] | a function of AWS Lambda |
//! | [`allow`], [`secret`] | which images may be requested, and by whom |
//! | [`runner`] | runs jobs, retries them, and reports their results |
//! | [`backlog`], [`journal`], [`recent_keys`] | jobs waiting in this process, their file, and recently finished jobs |
//! | `nats` | the queue for several processes (feature `nats`) |
//! | [`log`], [`metrics`] | logs and metrics of a service |
//! | [`http`] | limited connections; health and metrics |
//! | [`server`] | the HTTP service |

pub mod allow;
pub mod aws;
pub mod backfill;
pub mod backlog;
pub mod enabled;
pub mod http;
pub mod job;
pub mod journal;
pub mod lambda;
pub mod log;
pub mod logging;
pub mod metrics;
#[cfg(feature = "nats")]
pub mod nats;
pub mod recent_keys;
pub mod record;
pub mod runner;
pub mod secret;
pub mod server;
mod skip;
pub mod work;
