//! Claims on spans, spans in flight, and reads.

pub mod cache;
pub mod content;
