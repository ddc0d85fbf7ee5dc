//! Runs a container from a bundle with an OCI runtime, to see what it reads.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use serde::Deserialize;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use ociseek_format::image::json::parse_lenient;

/// Why a container could not be run.
#[derive(Debug, thiserror::Error)]
pub enum OciRuntimeError {
    #[error("{}: {}", .0.display(), why_missing(.0))]
    Missing(PathBuf),
    #[error("cannot run {}", runtime.display())]
    Run { runtime: PathBuf, source: io::Error },
}

fn why_missing(runtime: &Path) -> &'static str {
    match runtime.components().count() {
        1 => "not found in PATH",
        _ if runtime.exists() => "not an executable file",
        _ => "not found",
    }
}

/// A container of an OCI runtime (runc, crun, ...) in the foreground. When this is dropped, it is
/// killed and deleted from the runtime.
pub struct Container {
    runtime: PathBuf,
    name: OsString,
    child: Child,
    ended: bool,
}

ociseek_format::opaque_debug!(Container);

impl Container {
    /// Runs the bundle in `dir`, without a standard input. What the container prints is for
    /// [`take_output`](Container::take_output).
    ///
    /// # Errors
    /// If the runtime cannot be started.
    pub fn run(runtime: &Path, dir: &Path, name: &str) -> Result<Container, OciRuntimeError> {
        let mut command = Command::new(runtime);
        command.arg("run").arg("--bundle").arg(dir).arg(name);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => OciRuntimeError::Missing(runtime.to_owned()),
            _ => OciRuntimeError::Run { runtime: runtime.to_owned(), source },
        })?;
        Ok(Container { runtime: runtime.to_owned(), name: name.into(), child, ended: false })
    }

    /// Its standard output and standard error. None if they were taken before.
    pub fn take_output(&mut self) -> Option<(ChildStdout, ChildStderr)> {
        Some((self.child.stdout.take()?, self.child.stderr.take()?))
    }

    /// What asks for the container's first process.
    pub fn pid_query(&self) -> PidQuery {
        PidQuery { runtime: self.runtime.clone(), name: self.name.clone() }
    }

    /// Waits for the container to exit. The status is the container's, or the runtime's own if it
    /// could not start the container.
    ///
    /// # Errors
    /// If waiting for the runtime fails.
    pub async fn wait(&mut self) -> Result<ExitStatus, OciRuntimeError> {
        let status = self.child.wait().await;
        self.ended = status.is_ok();
        status.map_err(|source| OciRuntimeError::Run { runtime: self.runtime.clone(), source })
    }

    /// Kills all processes in it. Blocks briefly.
    fn kill(&mut self) {
        for (verb, option, signal) in [("kill", "--all", Some("KILL")), ("delete", "--force", None)]
        {
            let mut command = std::process::Command::new(&self.runtime);
            command.args([verb, option]).arg(&self.name).args(signal);
            // This may fail for a container that was never started.
            let _ =
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        let _ = self.child.start_kill();
    }
}

/// Asks a runtime for the first process of a container.
#[derive(Debug, Clone)]
pub struct PidQuery {
    runtime: PathBuf,
    name: OsString,
}

impl PidQuery {
    /// None if the container does not run.
    pub async fn pid(&self) -> Option<u32> {
        #[derive(Deserialize)]
        struct State {
            pid: u32,
        }
        let mut command = Command::new(&self.runtime);
        command.arg("state").arg(&self.name).stdin(Stdio::null()).kill_on_drop(true);
        let state = command.output().await.ok()?;
        parse_lenient::<State>(&state.stdout).ok().map(|state| state.pid).filter(|pid| *pid > 0)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}
