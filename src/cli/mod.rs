//! The command line: options in, text and exit codes out.

use std::process::ExitCode;

/// Runs the program; the one entry point of `main`.
pub fn run() -> ExitCode {
    ExitCode::SUCCESS
}
