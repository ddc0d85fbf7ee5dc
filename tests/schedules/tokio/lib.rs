//! tokio as shuttle schedules it, with what `shuttle-tokio` lacks: timeouts that may elapse at any
//! moment, and `JoinSet::shutdown`.

pub use shuttle_tokio::{runtime, spawn, sync};

pub mod task;
pub mod time;
