//! The parts of AWS that indexing in Amazon ECR needs: the tokens of its registries, and
//! signatures.
//!
//! The AWS SDK includes all of this, but aws-sdk-ecr alone has some hundred crates as dependencies.
//! These files implement a single call and its signature.

mod ecr;
mod sigv4;

pub use ecr::{Ecr, EcrError, Token};
