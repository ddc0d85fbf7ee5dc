//! The program `ociseek`: see [`ociseek::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ociseek::cli::run()
}
