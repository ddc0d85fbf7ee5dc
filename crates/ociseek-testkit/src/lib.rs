//! What the test programs share: images and layers, registries that are right or lie, sandboxes for
//! the program, and what they ask of a machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

pub mod answers;
pub mod blobs;
pub mod caches;
pub mod child_process;
pub mod copied;
pub mod corpus;
pub mod fault_plan;
pub mod fault_points;
pub mod faulty;
pub mod fine;
pub mod hook;
pub mod hostile;
pub mod http;
pub mod image;
pub mod inject;
pub mod layers;
pub mod mounts;
pub mod nats_relay;
pub mod power;
pub mod random;
pub mod relay;
pub mod report;
pub mod sandbox;
pub mod schema;
pub mod servers;
pub mod soci;
pub mod tarball;
pub mod terminal;
pub mod throttle;

/// The time limit for any step, on a machine that is busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of the project.
pub fn project() -> &'static Path {
    static PROJECT: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    &PROJECT
}

/// The number in a variable of the environment, by which a test runs longer or otherwise on demand.
pub fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// Whether tests that take minutes run: in CI, and where `.ci/test` or a user sets the variable. If
/// not, says that `what` is left out.
pub fn runs_long_tests(what: &str) -> bool {
    let runs = ["CI", "OCISEEK_LONG_TESTS"]
        .into_iter()
        .any(|variable| std::env::var_os(variable).is_some());
    if !runs {
        servers::skip(&format!("{what}, which takes minutes (OCISEEK_LONG_TESTS=1)"));
    }
    runs
}

/// The number of open descriptors of a process, and its memory in bytes (proc(5), VmRSS).
pub fn holds(process: u32) -> (usize, u64) {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    (descriptors, memory_of(process, "VmRSS").unwrap())
}

/// A field of proc(5), such as `VmHWM`, the peak, in bytes; None if the process has ended.
pub fn memory_of(process: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let memory = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().strip_suffix(" kB"))?;
    Some(memory.parse::<u64>().unwrap() << 10)
}

/// A folder in memory for what other programs write and sync, where there is one.
pub fn in_memory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// `sh -c SCRIPT` in a mount namespace of its own; more arguments are $0, $1 and so on.
///
/// Other tests' mounts below the folder for temporary files are not kept in it: a FUSE process
/// serves its mount until the last namespace that has a copy of it ends.
pub fn in_own_mounts(script: &str) -> Command {
    let others = std::env::temp_dir();
    let unmount = r#"awk -v below="$OTHERS/" 'index($2, below) == 1 { print $2 }' /proc/mounts | xargs -r umount --lazy"#;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &format!("{unmount} 2>/dev/null\n{script}")])
        .env("OTHERS", others);
    command
}

/// Runs [`this_test`], which must find its test and pass.
pub fn passes(child: &mut Command) {
    let output = child.output().unwrap();
    let [text, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// This test program, started for a single test of the module (`module_path!()`).
pub fn this_test(module: &str, test: &str) -> Command {
    let (_program, module) = module.split_once("::").expect("a module of a test program");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture"]);
    command
}
