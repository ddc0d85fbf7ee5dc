//! The program `ociseek`: see [`ociseek::cli`].

use std::process::ExitCode;

#[cfg(target_env = "musl")]
mod allocator;

/// musl's own allocator gives small blocks back to the kernel at once, and asks for them again
/// (docs/contributing/speed.md).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: allocator::WithLargeBlocks<dlmalloc::GlobalDlmalloc> =
    allocator::WithLargeBlocks(dlmalloc::GlobalDlmalloc);

fn main() -> ExitCode {
    ociseek::cli::run()
}
