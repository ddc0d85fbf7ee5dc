//! Errors and their causes.

use std::error::Error;

use super::terminal::safe;
use ociseek_format::progress::chain;

/// The error followed by its causes, without duplicates, with characters escaped for terminals.
pub(crate) fn causes(error: &dyn Error) -> Vec<String> {
    chain(error).iter().map(|text| safe(text)).collect()
}
