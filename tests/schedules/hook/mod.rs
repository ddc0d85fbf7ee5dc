//! The queue of the hook, its workers, and the end of the service. The schedule decides how jobs
//! end, and the journal is in memory.

#[path = "../../../crates/ociseek-hook/src/backlog.rs"]
pub mod backlog;
pub mod job;
pub mod journal;
#[path = "../../../crates/ociseek-hook/src/recent_keys.rs"]
pub mod recent_keys;
pub mod runner;
pub mod server;

pub(crate) mod log {
    pub(crate) const TARGET: &str = "hook";
}
