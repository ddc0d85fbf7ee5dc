//! What failed, and why.

use std::error::Error;

use super::terminal::safe;
use crate::progress::chain;

/// What failed, then why, then why that ...; each once, fit for a terminal.
pub(crate) fn causes(error: &dyn Error) -> Vec<String> {
    chain(error).iter().map(|text| safe(text)).collect()
}
