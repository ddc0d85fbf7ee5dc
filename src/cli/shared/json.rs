//! What the documents of several commands have in common.

use serde::Serialize;

#[derive(Serialize)]
pub struct Failure {
    pub message: String,
    pub causes: Vec<String>,
    pub hint: Option<String>,
}

/// Seconds with three digits behind the point: more would be noise.
pub fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}
