//! What is wrong with an index.

use ociseek_format::code::Code;

/// A difference from the index, the manifest or the config, or a fault that no consumer accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A stable word for programs.
    pub code: Code,
    /// The description for people, on one line.
    pub text: String,
}

impl Problem {
    pub(super) fn new(code: Code, text: impl Into<String>) -> Problem {
        Problem { code, text: text.into() }
    }
}
