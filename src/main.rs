//! The program `ociseek`: see [`ociseek::cli`].

use std::process::ExitCode;

/// musl's own allocator gives small blocks back to the kernel at once, and asks for them again
/// (docs/speed.md).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    ociseek::cli::run()
}
