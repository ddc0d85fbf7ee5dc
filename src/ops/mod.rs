//! The operations. Each is a function from options to a typed result. It reports progress as events
//! and prints nothing.
//!
//! An operation stops when its future is dropped: its requests are cancelled, and the threads that
//! index layers end when their channels close.

mod background;
#[cfg(mounts)]
pub mod bundle;
pub mod consumers;
pub mod convert;
pub mod copy;
pub mod diff;
pub mod discover;
pub mod doctor;
pub mod extract;
mod head;
pub mod index;
pub mod inspect;
pub mod list;
pub mod maker;
#[cfg(mounts)]
pub mod mount;
pub mod open;
pub mod prefetch;
pub mod prune;
pub mod remove;
pub mod report;
pub mod resolve;
#[cfg(mounts)]
pub mod trace;
pub mod verify;
pub mod versions;

pub use crate::layer::TOOL_IDENTIFIER;
pub use index::index;
