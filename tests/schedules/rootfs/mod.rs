//! Spans in flight, and reads.

pub mod content;
