//! Features for developers: `doctor`, logins stored by other tools, errors with hints, completions,
//! manual pages, versions.

mod commands;
mod doctor;
mod hints;
mod logins;
mod network;

use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::{Server, copied_by_skopeo};

/// Copies the layout `dir` of the sandbox to `a/b:v1` of a registry. `more` are arguments for
/// skopeo. Returns the name there.
fn push(sandbox: &Sandbox, dir: &str, server: &Server, more: &[&str]) -> Option<String> {
    let image = format!("{}/a/b:v1", server.host);
    copied_by_skopeo(&sandbox.path(dir), &image, more)?;
    Some(image)
}
