//! The standard library, with threads, locks, atomics and channels that shuttle schedules, and a
//! clock that stands still unless a timeout elapses.

pub use std::*;

pub mod sync {
    pub use shuttle::sync::*;
    pub use std::sync::{LazyLock, OnceLock};
}

pub mod thread {
    pub use shuttle::thread::*;
    pub use std::thread::available_parallelism;
}

pub mod time;
