//! docker's config.json, read as docker reads it: the credentials in it, and the names of helpers;
//! and these helpers, programs that store docker's credentials (docker-credential-helpers'
//! protocol, verb `get`). JSON objects are read as Go programs do.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::{Credential, CredentialError, Login};

pub(super) fn is_docker_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

/// The content of a file.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<DockerConfig, CredentialError> {
    // serde_json's message may repeat a value from the file.
    let json = |e: serde_json::Error| CredentialError::Json {
        path: path.to_owned(),
        line: e.line(),
        column: e.column(),
    };
    // Like docker, ignore what follows the object.
    DockerConfig::deserialize(&mut serde_json::Deserializer::from_slice(text)).map_err(json)
}

#[derive(Default)]
pub(super) struct DockerConfig {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, Option<String>>,
    creds_store: String,
}

#[derive(Default)]
pub(super) struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl GoObject for DockerConfig {
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error> {
        match key {
            "auths" => self.auths = go_value(values)?,
            "credhelpers" => self.cred_helpers = go_value(values)?,
            "credsstore" => self.creds_store = go_value(values)?,
            _ => drop(values.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl GoObject for AuthEntry {
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error> {
        match key {
            "auth" => self.auth = go_value(values)?,
            "username" => self.username = go_value(values)?,
            "password" => self.password = go_value(values)?,
            "identitytoken" => self.identitytoken = go_value(values)?,
            "registrytoken" => self.registrytoken = go_value(values)?,
            _ => drop(values.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for DockerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DockerConfig, D::Error> {
        go_object(deserializer)
    }
}

impl<'de> Deserialize<'de> for AuthEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AuthEntry, D::Error> {
        go_object(deserializer)
    }
}

impl DockerConfig {
    pub(super) fn helper(&self, registry: &str) -> Option<&str> {
        let same =
            |key: &str| key == registry || is_docker_hub(registry) && is_docker_hub(host(key));
        let own = self.cred_helpers.iter().find(|(key, _)| same(key)).map(|(_, helper)| helper);
        let own = own.map(|helper| helper.as_deref().unwrap_or_default());
        Some(own.unwrap_or(&self.creds_store)).filter(|name| !name.is_empty())
    }

    /// The entries for the registry. Of podman's keys with a path, those that contain the
    /// repository, the longest first.
    pub(super) fn entries(&self, registry: &str, repository: &str) -> Vec<(&str, &AuthEntry)> {
        let matching = self.auths.iter().rev().filter_map(|(key, entry)| {
            let path = matches(key, registry, repository)?;
            Some((path, key.as_str(), entry))
        });
        let mut matching: Vec<_> = matching.collect();
        matching.sort_by_key(|(path, _, _)| Reverse(*path));
        matching.into_iter().map(|(_, key, entry)| (key, entry)).collect()
    }
}

/// How many bytes of the repository's name an entry's key matches. None if the entry is for
/// something else.
fn matches(key: &str, registry: &str, repository: &str) -> Option<usize> {
    let same = |host: &str| host == registry || is_docker_hub(host) && is_docker_hub(registry);
    if key.contains("://") {
        // docker's old form: a URL whose path is the version of an API.
        return same(host(key)).then_some(0);
    }
    let (name, path) = key.split_once('/').unwrap_or((key, ""));
    let below =
        repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let version = matches!(path.trim_end_matches('/'), "" | "v1" | "v2");
    match same(name) {
        true if version => Some(0),
        true if below => Some(path.len()),
        _ => None,
    }
}

/// Whether a login that names its server is for this registry.
pub(super) fn is_for_registry(server: &str, registry: &str) -> bool {
    let server = host(server);
    server == registry || is_docker_hub(server) && is_docker_hub(registry)
}

fn host(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

impl AuthEntry {
    pub(super) fn of_user(username: String, password: String) -> AuthEntry {
        AuthEntry { username, password, ..AuthEntry::default() }
    }

    pub(super) fn of(auth: String, identitytoken: String, registrytoken: String) -> AuthEntry {
        AuthEntry { auth, identitytoken, registrytoken, ..AuthEntry::default() }
    }

    pub(super) fn credential(&self) -> Result<Option<Credential>, InvalidEntry> {
        if !self.identitytoken.is_empty() {
            let login = self.login().unwrap_or_default();
            return Ok(Some(Credential::Identity { token: self.identitytoken.clone(), login }));
        }
        if !self.registrytoken.is_empty() {
            return Ok(Some(Credential::Registry(self.registrytoken.clone())));
        }
        Ok(self.login()?.map(Credential::Password))
    }

    /// The user and password.
    fn login(&self) -> Result<Option<Login>, InvalidEntry> {
        if self.auth.is_empty() {
            let login = Login::new(&self.username, &self.password);
            return Ok(Some(login).filter(|login| !login.user.is_empty()));
        }
        let lenient =
            GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let decoder = GeneralPurpose::new(&base64::alphabet::STANDARD, lenient);
        // `base64` breaks long lines.
        let encoded: String = self.auth.split_ascii_whitespace().collect();
        let decoded = decoder.decode(encoded).map_err(|_| InvalidEntry)?;
        let colon = decoded.iter().position(|byte| *byte == b':').ok_or(InvalidEntry)?;
        let user = decoded[..colon].to_vec();
        let mut password = decoded[colon + 1..].to_vec();
        while password.last() == Some(&0) {
            password.pop();
        }
        Ok((!user.is_empty()).then_some(Login { user, password }))
    }
}

/// An entry whose credentials cannot be decoded.
#[derive(Debug)]
pub(super) struct InvalidEntry;

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
pub(super) async fn ask_helper(
    name: &str,
    server: &str,
    path: &OsStr,
    limit: Duration,
) -> Result<Option<(String, String)>, HelperError> {
    let program = find(name, path)?;
    let answer = tokio::time::timeout(limit, ask(program, server)).await;
    let (status, output) =
        answer.map_err(|_| HelperError::Hangs(limit))?.map_err(HelperError::Run)?;
    if !status.success() {
        // docker recognizes this case by the same words.
        let text = String::from_utf8_lossy(&output);
        let none =
            ["credentials not found", "no credentials server URL", "no credentials username"];
        return if none.iter().any(|words| text.contains(words)) {
            Ok(None)
        } else {
            Err(HelperError::Failed(status))
        };
    }
    let answer = HelperAnswer::deserialize(&mut serde_json::Deserializer::from_slice(&output));
    let answer = answer.map_err(|_| HelperError::Answer)?;
    Ok(Some((answer.username, answer.secret))
        .filter(|(user, secret)| !user.is_empty() || !secret.is_empty()))
}

#[derive(Default)]
struct HelperAnswer {
    username: String,
    secret: String,
}

impl GoObject for HelperAnswer {
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error> {
        match key {
            "username" => self.username = go_value(values)?,
            "secret" => self.secret = go_value(values)?,
            _ => drop(values.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for HelperAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HelperAnswer, D::Error> {
        go_object(deserializer)
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
    folders
        .map(|folder| folder.join(&program))
        .find(|file| file.is_file())
        .ok_or(HelperError::Missing)
}

async fn ask(program: PathBuf, server: &str) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut command = Command::new(program);
    command.arg("get");
    converse(command, server.as_bytes(), OUTPUT).await
}

/// Runs a program with this input. Returns at most `most` bytes of its output.
pub(super) async fn converse(
    mut command: Command,
    input: &[u8],
    most: u64,
) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
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

/// An object whose keys are read in any case.
trait GoObject: Default {
    /// Takes the value for `key`, which is in lower case. Values of unknown keys must be taken as
    /// well.
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error>;
}

/// For implementations of `Deserialize`.
fn go_object<'de, D: Deserializer<'de>, T: GoObject>(deserializer: D) -> Result<T, D::Error> {
    struct ObjectVisitor<T>(PhantomData<T>);

    impl<'de, T: GoObject> Visitor<'de> for ObjectVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<T, E> {
            Ok(T::default())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
            let mut object = T::default();
            while let Some(key) = map.next_key::<String>()? {
                object.set(&key.to_ascii_lowercase(), &mut map)?;
            }
            Ok(object)
        }
    }

    deserializer.deserialize_any(ObjectVisitor(PhantomData))
}

/// The next value, or its default for null.
fn go_value<'de, A: MapAccess<'de>, T: serde::Deserialize<'de> + Default>(
    values: &mut A,
) -> Result<T, A::Error> {
    Ok(values.next_value::<Option<T>>()?.unwrap_or_default())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes a helper: a shell script.
    pub(crate) fn script(dir: &Path, name: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        let text = dir.join(format!("{name}.sh"));
        let file = dir.join(format!("docker-credential-{name}"));
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
        let get =
            |name: &'static str, limit| ask_helper(name, "r.io", dir.path().as_os_str(), limit);
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
