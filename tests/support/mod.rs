//! What the test programs share.

pub mod corpus;
pub mod faulty;
pub mod hook;
pub mod layers;
pub mod mounts;
pub mod sandbox;
pub mod schema;
pub mod servers;
pub mod soci;
pub mod tarball;
pub mod throttle;

/// This test program, told to run one test of the module (`module_path!()`) and no other.
pub fn this_test(module: &str, test: &str) -> std::process::Command {
    let (_program, module) = module.split_once("::").expect("a module of a test program");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture"]);
    command
}
