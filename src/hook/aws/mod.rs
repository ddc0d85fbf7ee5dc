//! What indexing in Amazon ECR needs of AWS, and no more of it: the tokens of its registries, and signatures.
//!
//! The SDK does all of this and much more: aws-sdk-ecr alone brings some hundred crates. One call
//! and its signature are these files.

mod ecr;
mod sigv4;

pub use ecr::{Ecr, EcrError, Token};
