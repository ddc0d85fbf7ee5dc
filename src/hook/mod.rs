//! What indexes images as they are pushed.
//!
//! | module | what it does |
//! |---|---|
//! | [`event`] | the push notifications of registries: bytes in, images out (pure) |
//! | [`job`] | one image to be indexed, and what becomes of it |

pub mod event;
pub mod job;
