//! Credentials stored by `docker login` and `podman login`: the files, their keys, and helpers.
//!
//! Follows docker's `cli/config` (config.json) and containers-auth.json(5).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use tracing::debug;

use super::TARGET;
use super::config::CredentialSource;
use super::helper::{self, HelperError};

/// The size limit of a credentials file in bytes.
const FILE: u64 = 4 << 20;
/// A variable with the content of a credentials file.
const INLINE: &str = "DOCKER_AUTH_CONFIG";
/// Docker's name for its own registry.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credential {
    Password {
        user: String,
        password: String,
    },
    /// A refresh token, which the token service exchanges for tokens (RFC 6749 section 6).
    Identity(String),
    /// A token for the registry itself.
    Registry(String),
}

/// Shows the kind, but no secrets.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credential::Password { .. } => "Password",
            Credential::Identity(_) => "Identity",
            Credential::Registry(_) => "Registry",
        })
    }
}

/// Why existing credentials cannot be used. Messages never include a file's content or a helper's
/// output.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum CredentialError {
    #[error("{path} cannot be read", path = .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{path} is larger than {FILE} bytes", path = .path.display())]
    TooLarge { path: PathBuf },
    #[error("{path} is not a valid docker configuration: line {line}, column {column}", path = .path.display())]
    Json { path: PathBuf, line: usize, column: usize },
    #[error("{path}: the entry for {key:?} cannot be decoded", path = .path.display())]
    Entry { path: PathBuf, key: String },
    #[error("credential helper docker-credential-{name}")]
    Helper { name: String, source: HelperError },
}

/// The credentials for `repository` of `registry`. None stands for anonymous access.
pub(super) async fn find(
    source: &CredentialSource,
    registry: &str,
    repository: &str,
    limit: Duration,
) -> Result<Option<Credential>, CredentialError> {
    match source {
        CredentialSource::Anonymous => Ok(None),
        CredentialSource::Only { registry: only, .. } if !only.eq_ignore_ascii_case(registry) => Ok(None),
        CredentialSource::Only { user, password, .. } => {
            log_lookup(registry, "given", "", true);
            Ok(Some(Credential::Password { user: user.clone(), password: password.clone() }))
        }
        CredentialSource::Ambient => {
            let uid = rustix::process::getuid().as_raw();
            CredentialSettings::new(|name| std::env::var_os(name), uid).find(registry, repository, limit).await
        }
    }
}

/// The settings for credentials in the environment.
struct CredentialSettings {
    /// The value of `$DOCKER_AUTH_CONFIG`, which docker's CLI (since 28.3) and GitLab's runners
    /// prefer to the files.
    inline: Option<OsString>,
    /// The first file with an entry for the registry is used.
    files: Vec<PathBuf>,
    /// The search path for helpers.
    path: OsString,
}

impl CredentialSettings {
    fn new(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> CredentialSettings {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folder = |name: &str| variable(name).map(PathBuf::from);
        let home = folder("HOME");
        let in_home = |below: &str| home.as_ref().map(|home| home.join(below));
        let docker = folder("DOCKER_CONFIG").or_else(|| in_home(".docker")).map(|d| d.join("config.json"));
        // Without `$XDG_RUNTIME_DIR`, as for root, podman uses a system folder for each user.
        let runtime = folder("XDG_RUNTIME_DIR").map(|d| d.join("containers/auth.json"));
        let runtime = runtime.or_else(|| Some(PathBuf::from(format!("/run/containers/{uid}/auth.json"))));
        let config = folder("XDG_CONFIG_HOME").or_else(|| in_home(".config")).map(|d| d.join("containers/auth.json"));
        let files = [docker, folder("REGISTRY_AUTH_FILE"), runtime, config].into_iter().flatten().collect();
        CredentialSettings { inline: variable(INLINE), files, path: variable("PATH").unwrap_or_default() }
    }

    async fn find(
        &self,
        registry: &str,
        repository: &str,
        limit: Duration,
    ) -> Result<Option<Credential>, CredentialError> {
        if let Some(text) = &self.inline {
            let name = PathBuf::from(format!("${INLINE}"));
            let file = parse(&name, text.as_encoded_bytes())?;
            if let Some(found) = self.find_in(&name, &file, registry, repository, limit).await? {
                return Ok(Some(found));
            }
        }
        for path in &self.files {
            let Some(file) = read(path)? else { continue };
            if let Some(found) = self.find_in(path, &file, registry, repository, limit).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn find_in(
        &self,
        path: &Path,
        file: &File,
        registry: &str,
        repository: &str,
        limit: Duration,
    ) -> Result<Option<Credential>, CredentialError> {
        if let Some(name) = file.helper(registry) {
            let login = helper::get(name, server(registry), &self.path, limit).await;
            let login = login.map_err(|source| CredentialError::Helper { name: name.to_owned(), source })?;
            log_lookup(registry, &format!("docker-credential-{name}"), &path.to_string_lossy(), login.is_some());
            match login {
                Some((user, secret)) if user == "<token>" => return Ok(Some(Credential::Identity(secret))),
                Some((user, password)) => return Ok(Some(Credential::Password { user, password })),
                None => {}
            }
        }
        let entry = file.entry(registry, repository);
        log_lookup(registry, &path.to_string_lossy(), entry.map_or("", |(key, _)| key), entry.is_some());
        let Some((key, entry)) = entry else { return Ok(None) };
        let wrong = || CredentialError::Entry { path: path.to_owned(), key: key.chars().take(300).collect() };
        entry.credential().map_err(|_| wrong())
    }
}

/// Logs where credentials were looked for. `within` is the key, or the setting that named the
/// helper.
fn log_lookup(registry: &str, source: &str, within: &str, found: bool) {
    debug!(name: "credentials", target: TARGET, registry, source, within, found);
}

/// The name of a registry for helpers.
fn server(registry: &str) -> &str {
    if is_docker_hub(registry) { DOCKER_HUB } else { registry }
}

fn is_docker_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

/// None if the file does not exist.
fn read(path: &Path) -> Result<Option<File>, CredentialError> {
    let failed = |source| CredentialError::File { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut text = Vec::new();
    file.take(FILE + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE {
        return Err(CredentialError::TooLarge { path: path.to_owned() });
    }
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    parse(path, &text).map(Some)
}

fn parse(path: &Path, text: &[u8]) -> Result<File, CredentialError> {
    // serde_json's message may repeat a value from the file.
    let json =
        |e: serde_json::Error| CredentialError::Json { path: path.to_owned(), line: e.line(), column: e.column() };
    serde_json::from_slice(text).map_err(json)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl File {
    fn helper(&self, registry: &str) -> Option<&str> {
        let same = |key: &str| key == registry || is_docker_hub(registry) && is_docker_hub(host(key));
        let own = self.cred_helpers.iter().find(|(key, _)| same(key)).map(|(_, helper)| helper);
        Some(own.unwrap_or(&self.creds_store).as_str()).filter(|name| !name.is_empty())
    }

    /// The entry for the registry. Among podman's keys with a path, the one with the longest path
    /// that contains the repository.
    fn entry(&self, registry: &str, repository: &str) -> Option<(&str, &Entry)> {
        let matching = self.auths.iter().filter_map(|(key, entry)| {
            let path = matches(key, registry, repository)?;
            Some((path, key.as_str(), entry))
        });
        matching.max_by_key(|(path, _, _)| *path).map(|(_, key, entry)| (key, entry))
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
    let below = repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let version = matches!(path.trim_end_matches('/'), "" | "v1" | "v2");
    match same(name) {
        true if version => Some(0),
        true if below => Some(path.len()),
        _ => None,
    }
}

fn host(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

impl Entry {
    fn credential(&self) -> Result<Option<Credential>, InvalidEntry> {
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credential::Identity(self.identitytoken.clone())));
        }
        if !self.registrytoken.is_empty() {
            return Ok(Some(Credential::Registry(self.registrytoken.clone())));
        }
        if self.auth.is_empty() {
            let (user, password) = (self.username.clone(), self.password.clone());
            return Ok((!user.is_empty()).then_some(Credential::Password { user, password }));
        }
        let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let decoder = GeneralPurpose::new(&base64::alphabet::STANDARD, lenient);
        let decoded = decoder.decode(self.auth.trim()).map_err(|_| InvalidEntry)?;
        let decoded = String::from_utf8(decoded).map_err(|_| InvalidEntry)?;
        let (user, password) = decoded.split_once(':').ok_or(InvalidEntry)?;
        let password = password.trim_end_matches('\0').to_owned();
        Ok((!user.is_empty()).then(|| Credential::Password { user: user.to_owned(), password }))
    }
}

/// An entry whose credentials cannot be decoded.
#[derive(Debug)]
struct InvalidEntry;

#[cfg(test)]
mod tests {
    use super::*;

    fn password(user: &str, password: &str) -> Option<Credential> {
        Some(Credential::Password { user: user.into(), password: password.into() })
    }

    async fn lookup(json: &str, registry: &str, repository: &str) -> Result<Option<Credential>, CredentialError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, json).unwrap();
        let files = vec![dir.path().join("none.json"), file];
        let ambient = CredentialSettings { inline: None, files, path: OsString::new() };
        ambient.find(registry, repository, Duration::from_secs(1)).await
    }

    #[tokio::test]
    async fn entries_of_every_form() {
        // "dTpw" is u:p, "dTpwOnE" is u:p:q without padding.
        for (json, registry, want) in [
            (r#"{"auths":{"r.io":{"auth":"dTpw"}}}"#, "r.io", password("u", "p")),
            (r#"{"auths":{"r.io":{"auth":"dTpwOnE"}}}"#, "r.io", password("u", "p:q")),
            (r#"{"auths":{"https://r.io/v2/":{"auth":"dTpw"}}}"#, "r.io", password("u", "p")),
            (r#"{"auths":{"r.io/v1/":{"auth":"dTpw"}}}"#, "r.io", password("u", "p")),
            (r#"{"auths":{"r.io:5000":{"username":"u","password":"p"}}}"#, "r.io:5000", password("u", "p")),
            (r#"{"auths":{"r.io:5000":{"auth":"dTpw"}}}"#, "r.io", None),
            (r#"{"auths":{"[::1]:5000":{"auth":"dTpw"}}}"#, "[::1]:5000", password("u", "p")),
            (r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}"#, "docker.io", password("u", "p")),
            (r#"{"auths":{"docker.io":{"auth":"dTpw"}}}"#, "docker.io", password("u", "p")),
            (r#"{"auths":{"r.io":{}}}"#, "r.io", None),
            (
                r#"{"auths":{"r.io":{"auth":"dTpw","identitytoken":"T"}}}"#,
                "r.io",
                Some(Credential::Identity("T".into())),
            ),
            (r#"{"auths":{"r.io":{"registrytoken":"T"}}}"#, "r.io", Some(Credential::Registry("T".into()))),
            (r#"{"HttpHeaders":{"X":"y"},"credsStore":""}"#, "r.io", None),
            ("", "r.io", None),
        ] {
            assert_eq!(lookup(json, registry, "a/b").await.unwrap(), want, "{json}");
        }
    }

    #[tokio::test]
    async fn the_variable_takes_precedence_over_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, r#"{"auths":{"r.io":{"auth":"dTpw"},"q.io":{"auth":"dTpw"}}}"#).unwrap();
        let with = |text: &str| CredentialSettings {
            inline: Some(text.into()),
            files: vec![file.clone()],
            path: OsString::new(),
        };
        let inline = with(r#"{"auths":{"r.io":{"username":"i","password":"x"}}}"#);
        for (registry, want) in [("r.io", password("i", "x")), ("q.io", password("u", "p")), ("s.io", None)] {
            assert_eq!(inline.find(registry, "a", Duration::from_secs(1)).await.unwrap(), want);
        }
        let error = with("hunter2").find("r.io", "a", Duration::from_secs(1)).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains("$DOCKER_AUTH_CONFIG") && !text.contains("hunter2"), "{text}");
    }

    #[tokio::test]
    async fn the_longest_matching_key_of_podman_wins() {
        let json = r#"{"auths":{"r.io":{"auth":"dTpw"},"r.io/a":{"username":"a","password":"x"},
                       "r.io/a/b":{"username":"b","password":"y"}}}"#;
        assert_eq!(lookup(json, "r.io", "a/b").await.unwrap(), password("b", "y"));
        assert_eq!(lookup(json, "r.io", "a/bc").await.unwrap(), password("a", "x"));
        assert_eq!(lookup(json, "r.io", "ab").await.unwrap(), password("u", "p"));
    }

    #[tokio::test]
    async fn errors_name_a_broken_file_without_its_content() {
        for json in [r#"{"auths":"hunter2"}"#, r#"{"auths":{"r.io":{"auth":["hunter2"]}}}"#, "hunter2"] {
            let error = lookup(json, "r.io", "a").await.unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains("config.json") && !text.contains("hunter2"), "{text}");
        }
        // "aHVudGVyMg==" is hunter2, without a colon.
        let error = lookup(r#"{"auths":{"r.io":{"auth":"aHVudGVyMg=="}}}"#, "r.io", "a").await.unwrap_err();
        assert!(matches!(error, CredentialError::Entry { .. }), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn the_files_and_their_order() {
        let files = |variables: &[(&str, &str)]| {
            let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
            let files = CredentialSettings::new(get, 7).files;
            files.iter().map(|f| f.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            files(&[("HOME", "/h")]),
            ["/h/.docker/config.json", "/run/containers/7/auth.json", "/h/.config/containers/auth.json"]
        );
        assert_eq!(
            files(&[
                ("HOME", "/h"),
                ("DOCKER_CONFIG", "/d"),
                ("REGISTRY_AUTH_FILE", "/a.json"),
                ("XDG_RUNTIME_DIR", "/run/u"),
                ("XDG_CONFIG_HOME", "/c")
            ]),
            ["/d/config.json", "/a.json", "/run/u/containers/auth.json", "/c/containers/auth.json"]
        );
        assert_eq!(files(&[]), ["/run/containers/7/auth.json"]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn helpers_take_precedence_and_may_know_no_credentials() {
        let dir = tempfile::tempdir().unwrap();
        helper::tests::script(
            dir.path(),
            "has",
            r#"cat >"$0.input"; echo '{"ServerURL":"x","Username":"hu","Secret":"hp"}'"#,
        );
        helper::tests::script(dir.path(), "token", r#"echo '{"Username":"<token>","Secret":"T"}'"#);
        helper::tests::script(dir.path(), "none", "echo 'credentials not found in native keychain'; exit 1");
        let file = dir.path().join("config.json");
        let ambient = CredentialSettings { inline: None, files: vec![file.clone()], path: dir.path().into() };
        for (json, registry, want) in [
            (r#"{"credsStore":"has","auths":{"r.io":{"auth":"dTpw"}}}"#, "r.io", password("hu", "hp")),
            (r#"{"credsStore":"none","credHelpers":{"r.io":"has"}}"#, "r.io", password("hu", "hp")),
            (r#"{"credsStore":"has","credHelpers":{"r.io":"token"}}"#, "r.io", Some(Credential::Identity("T".into()))),
            (r#"{"credsStore":"none"}"#, "r.io", None),
            (r#"{"credsStore":"none","auths":{"r.io":{"auth":"dTpw"}}}"#, "r.io", password("u", "p")),
            (r#"{"credsStore":"has"}"#, "docker.io", password("hu", "hp")),
        ] {
            std::fs::write(&file, json).unwrap();
            assert_eq!(ambient.find(registry, "a", Duration::from_secs(20)).await.unwrap(), want, "{json}");
        }
        let input = std::fs::read_to_string(dir.path().join("docker-credential-has.input")).unwrap();
        assert_eq!(input, DOCKER_HUB);

        std::fs::write(&file, r#"{"credsStore":"missing"}"#).unwrap();
        let error = ambient.find("r.io", "a", Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.to_string(), "credential helper docker-credential-missing");
    }
}
