use std::process::ExitCode;

fn main() -> ExitCode {
    ociseek::cli::run()
}
