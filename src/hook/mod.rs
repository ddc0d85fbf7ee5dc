//! What indexes images as they are pushed.
//!
//! | module | what it does |
//! |---|---|
//! | [`event`] | the push notifications of registries: bytes in, images out (pure) |
//! | [`aws`] | Amazon ECR: hosts, tokens, signatures |
//! | [`lambda`] | a function of AWS Lambda |
//! | [`job`] | one image to be indexed, and what becomes of it |

pub mod aws;
pub mod event;
pub mod job;
pub mod lambda;
