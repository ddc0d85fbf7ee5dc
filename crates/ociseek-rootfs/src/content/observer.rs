//! Who learns of the reads of programs, and the reasons by which failed ones are counted.

use std::time::Duration;

use super::ReadError;
use ociseek_store::StoreError;

/// Learns of the reads of an image's content.
pub trait ReadObserver: Send + Sync {
    /// A read that ended after this time, and the error if it failed. The content does not report
    /// such an error by itself.
    fn observe(&self, took: Duration, error: Option<&ReadError>);
}

impl ReadError {
    /// The reasons that [`ReadError::code`] returns.
    pub const CODES: [&str; 6] = ["cache", "deadline", "index", "login", "missing", "registry"];

    /// Why a read failed, as a stable word for programs: in metrics and logs.
    pub fn code(&self) -> &'static str {
        match self {
            ReadError::Deadline { .. } => "deadline",
            ReadError::Lost { .. } => "cache",
            ReadError::Fetch { source, .. } | ReadError::Window { source, .. } => of_store(source),
            ReadError::Unpack { source, .. } => {
                StoreError::among(&**source).map_or("index", of_store)
            }
            ReadError::NoLayer(_)
            | ReadError::Beyond { .. }
            | ReadError::Page { .. }
            | ReadError::Contradicted { .. }
            | ReadError::Span { .. }
            | ReadError::TooLarge { .. } => "index",
        }
    }
}

fn of_store(error: &StoreError) -> &'static str {
    let status = match error {
        StoreError::Registry(error) => error.status(),
        _ => None,
    };
    match status {
        Some(401 | 403) => "login",
        Some(404 | 410) => "missing",
        _ => "registry",
    }
}
