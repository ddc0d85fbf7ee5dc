//! The operations. Each is a function from options to a typed result. It reports progress as events
//! and prints nothing.
//!
//! An operation stops when its future is dropped: its requests are cancelled, and the threads that
//! index layers end when their channels close.

mod background;
#[cfg(all(feature = "fuse", target_os = "linux"))]
pub mod bundle;
pub mod consumers;
pub mod convert;
pub mod copy;
mod damage;
pub mod diff;
pub mod discover;
pub mod doctor;
pub mod extract;
mod head;
pub mod index;
pub mod inspect;
pub mod list;
pub mod maker;
#[cfg(all(feature = "fuse", target_os = "linux"))]
pub mod mount;
pub mod open;
pub mod prefetch;
pub mod prune;
pub mod remove;
pub mod report;
pub mod resolve;
#[cfg(all(feature = "fuse", target_os = "linux"))]
pub mod trace;
pub mod trust;
pub mod verify;
pub mod versions;

pub use index::index;
pub use ociseek_format::layer::TOOL_IDENTIFIER;
