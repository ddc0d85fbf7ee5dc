//! Runs a container from a bundle with an OCI runtime, to see what it reads.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use tokio::process::{Child, Command};

/// Why a container could not be run.
#[derive(Debug, thiserror::Error)]
pub enum OciRuntimeError {
    #[error("{}: not found in PATH", .0.display())]
    Missing(PathBuf),
    #[error("cannot run {}", runtime.display())]
    Run { runtime: PathBuf, source: io::Error },
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
    /// Runs the bundle in `dir`. The container's standard output goes to `stdout`.
    ///
    /// # Errors
    /// If the runtime cannot be started.
    pub fn run(
        runtime: &Path,
        dir: &Path,
        name: &str,
        stdout: Stdio,
    ) -> Result<Container, OciRuntimeError> {
        let mut command = Command::new(runtime);
        command.arg("run").arg("--bundle").arg(dir).arg(name).stdout(stdout);
        let child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => OciRuntimeError::Missing(runtime.to_owned()),
            _ => OciRuntimeError::Run { runtime: runtime.to_owned(), source },
        })?;
        Ok(Container { runtime: runtime.to_owned(), name: name.into(), child, ended: false })
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

impl Drop for Container {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}
