//! Credential helpers: programs that store docker's credentials (docker-credential-helpers'
//! protocol, verb `get`).

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::de::{IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::go_json::{self, GoObject};

/// The size limit of a helper's output in bytes.
const OUTPUT: u64 = 64 << 10;

/// Why a helper returned no credentials. Messages never include its output.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum HelperError {
    #[error("its name is not a file name")]
    Name,
    #[error("not found in $PATH")]
    Missing,
    #[error("it cannot be run")]
    Run(#[source] io::Error),
    #[error("it did not answer within {} s", .0.as_secs_f32())]
    Hangs(Duration),
    #[error("it failed: {0}")]
    Failed(ExitStatus),
    #[error("its output is not valid credentials")]
    Answer,
}

/// The user and secret that the helper has for `server`. None if it has none.
pub(super) async fn get(
    name: &str,
    server: &str,
    path: &OsStr,
    limit: Duration,
) -> Result<Option<(String, String)>, HelperError> {
    let program = find(name, path)?;
    let answer = tokio::time::timeout(limit, ask(program, server)).await;
    let (status, output) = answer.map_err(|_| HelperError::Hangs(limit))?.map_err(HelperError::Run)?;
    if !status.success() {
        // docker recognizes this case by the same words.
        let text = String::from_utf8_lossy(&output);
        let none = ["credentials not found", "no credentials server URL", "no credentials username"];
        return if none.iter().any(|words| text.contains(words)) { Ok(None) } else { Err(HelperError::Failed(status)) };
    }
    let answer = HelperAnswer::deserialize(&mut serde_json::Deserializer::from_slice(&output));
    let answer = answer.map_err(|_| HelperError::Answer)?;
    Ok(Some((answer.username, answer.secret)).filter(|(user, secret)| !user.is_empty() || !secret.is_empty()))
}

#[derive(Default)]
struct HelperAnswer {
    username: String,
    secret: String,
}

impl GoObject for HelperAnswer {
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error> {
        match key {
            "username" => self.username = go_json::value(values)?,
            "secret" => self.secret = go_json::value(values)?,
            _ => drop(values.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for HelperAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HelperAnswer, D::Error> {
        go_json::deserialize(deserializer)
    }
}

/// Finds the program in `$PATH`. The name comes from a configuration file, so it must not lead to
/// another folder.
fn find(name: &str, path: &OsStr) -> Result<PathBuf, HelperError> {
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(HelperError::Name);
    }
    let program = format!("docker-credential-{name}{}", std::env::consts::EXE_SUFFIX);
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(&program)).find(|file| file.is_file()).ok_or(HelperError::Missing)
}

async fn ask(program: PathBuf, server: &str) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut command = Command::new(program);
    command.arg("get");
    converse(command, server.as_bytes(), OUTPUT).await
}

/// Runs a program with this input. Returns at most `most` bytes of its output.
pub(super) async fn converse(mut command: Command, input: &[u8], most: u64) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input).await {
            // The program may answer without reading its input.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
    }
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(most).read_to_end(&mut output).await?;
    }
    Ok((child.wait().await?, output))
}

#[cfg(all(test, unix))]
pub(super) mod tests {
    use std::path::Path;

    use super::*;

    /// Writes a helper: a shell script.
    pub(crate) fn script(dir: &Path, name: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        let (text, file) = (dir.join(format!("{name}.sh")), dir.join(format!("docker-credential-{name}")));
        std::fs::write(&text, format!("#!/bin/sh\n{body}\n")).unwrap();
        // Copied by another process: if this process had the file open for writing, a child of
        // another test could inherit the descriptor, and running the file would fail as "busy".
        assert!(std::process::Command::new("cp").args([&text, &file]).status().unwrap().success());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[tokio::test]
    async fn errors_of_a_helper_do_not_contain_its_output() {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "hangs", "exec sleep 60");
        script(dir.path(), "fails", "echo hunter2; exit 3");
        script(dir.path(), "junk", "echo hunter2");
        script(dir.path(), "endless", "exec yes hunter2");
        let get = |name: &'static str, limit| get(name, "r.io", dir.path().as_os_str(), limit);
        let begun = std::time::Instant::now();
        let error = get("hangs", Duration::from_millis(200)).await.unwrap_err();
        assert!(matches!(error, HelperError::Hangs(_)), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        for name in ["fails", "junk", "endless", "missing", "../x", "a/b"] {
            let error = get(name, Duration::from_secs(20)).await.unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{name}: {error:?}");
        }
    }
}
