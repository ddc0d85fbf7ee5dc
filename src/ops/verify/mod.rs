//! Proving that an index says what is in its image.

mod difference;
mod entries;
pub mod layer;
mod spans;
mod straight;

pub use difference::Difference;
