//! Features for developers: `doctor`, logins stored by other tools, errors with hints, completions,
//! manual pages, versions.

mod commands;
mod doctor;
mod hints;
mod logins;
mod network;

use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::{Server, run, tool};

/// Copies the layout `dir` of the sandbox to `a/b:v1` of a registry. `more` are arguments for
/// skopeo. Returns the name there.
fn push(sandbox: &Sandbox, dir: &str, server: &Server, more: &[&str]) -> Option<String> {
    let skopeo = tool("skopeo")?;
    let (from, to) = (
        format!("oci:{}:v1", sandbox.path(dir).display()),
        format!("docker://{}/a/b:v1", server.host),
    );
    run(
        &skopeo,
        &[&["copy", "--quiet", "--all", "--dest-tls-verify=false"], more, &[&from, &to]].concat(),
    );
    Some(format!("{}/a/b:v1", server.host))
}
