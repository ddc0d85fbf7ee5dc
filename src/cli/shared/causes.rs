//! What failed, and why.

use std::error::Error;

use super::terminal::safe;

/// What failed, then why, then why that ...; each once.
pub fn causes(error: &dyn Error) -> Vec<String> {
    let mut causes = vec![safe(&error.to_string())];
    let mut next = error.source();
    while let Some(cause) = next {
        let text = safe(&cause.to_string());
        // Some errors repeat their source.
        if causes.last().is_none_or(|last| !last.ends_with(&text)) {
            causes.push(text);
        }
        next = cause.source();
    }
    causes
}
