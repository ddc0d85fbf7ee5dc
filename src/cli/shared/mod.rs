//! What several commands need.

pub mod args;
pub mod build;
pub mod caches;
pub mod causes;
pub mod consumer;
pub mod difference;
pub mod habits;
pub mod json;
pub mod layers;
pub mod parse;
pub mod place;
pub mod policy;
pub mod prefetch;
pub mod progress;
pub mod quote;
pub mod reading;
pub mod registry_hint;
pub mod report;
pub mod reuse;
pub mod signals;
pub mod size;
pub mod source;
pub mod terminal;
pub mod variables;
pub mod versions;
