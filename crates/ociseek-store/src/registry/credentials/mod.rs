//! Credentials stored by `docker login` and `podman login`: the files, their keys, and helpers.
//!
//! Follows docker's `cli/config` (config.json) and containers-auth.json(5).

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::registry::TARGET;
use crate::registry::config::CredentialSource;
use docker::{DockerConfig, is_docker_hub, parse};

mod docker;
mod providers;

pub use docker::HelperError;
pub use providers::{CredentialProviders, ProviderConfigError};

/// The size limit of a credentials file in bytes.
const FILE: u64 = 4 << 20;
/// A variable with the content of a credentials file.
const INLINE: &str = "DOCKER_AUTH_CONFIG";
/// A variable that names podman's credentials file.
const AUTH_FILE: &str = "REGISTRY_AUTH_FILE";
/// Docker's name for its own registry.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credential {
    Password {
        user: String,
        password: String,
    },
    /// A refresh token, which the token service exchanges for tokens (RFC 6749 section 6). The user
    /// and password next to it are for a registry without a token service.
    Identity {
        token: String,
        login: Option<(String, String)>,
    },
    /// A token for the registry itself.
    Registry(String),
}

/// Shows the kind, but no secrets.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credential::Password { .. } => "Password",
            Credential::Identity { .. } => "Identity",
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
    #[error("kubelet's credential provider {name}")]
    Provider { name: String, source: HelperError },
}

/// Credentials with the place where they were found, for messages.
#[derive(Debug, Clone)]
pub(super) struct FoundCredential {
    pub credential: Credential,
    pub place: Arc<str>,
}

/// The credentials for `repository` of `registry`. None stands for anonymous access.
pub(super) async fn find(
    source: &CredentialSource,
    registry: &str,
    repository: &str,
    limit: Duration,
) -> Result<Option<FoundCredential>, CredentialError> {
    match source {
        CredentialSource::Anonymous => Ok(None),
        CredentialSource::Only { registry: only, .. } if !only.eq_ignore_ascii_case(registry) => {
            Ok(None)
        }
        CredentialSource::Only { user, password, .. } => {
            log_lookup(registry, "given", "", true);
            let credential =
                Credential::Password { user: user.clone(), password: password.clone() };
            Ok(Some(FoundCredential { credential, place: "--creds".into() }))
        }
        CredentialSource::Ambient => {
            let uid = rustix::process::getuid().as_raw();
            CredentialSettings::new(|name| std::env::var_os(name), uid)
                .find(registry, repository, limit)
                .await
        }
        CredentialSource::Node(providers) => {
            let ambient =
                Box::pin(find(&CredentialSource::Ambient, registry, repository, limit)).await?;
            match ambient {
                Some(found) => Ok(Some(found)),
                None => providers.find(registry, repository, limit).await,
            }
        }
        CredentialSource::File(path) => {
            let files = vec![path.clone()];
            let path = std::env::var_os("PATH").unwrap_or_default();
            CredentialSettings { inline: None, files, path }.find(registry, repository, limit).await
        }
    }
}

/// The file that `$REGISTRY_AUTH_FILE` names, if it does not exist. Other files are optional.
pub(super) fn missing_file(source: &CredentialSource) -> Option<PathBuf> {
    let is_ambient = matches!(source, CredentialSource::Ambient | CredentialSource::Node(_));
    let named = std::env::var_os(AUTH_FILE).filter(|path| is_ambient && !path.is_empty());
    named.map(PathBuf::from).filter(|path| !path.exists())
}

/// The settings for credentials in the environment.
struct CredentialSettings {
    /// The value of `$DOCKER_AUTH_CONFIG`, which docker's CLI (since 28.3) and GitLab's runners
    /// prefer to the files.
    inline: Option<OsString>,
    /// The first file with an entry for the registry is used: those that a variable names for this
    /// run before the others.
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
        // It should be a folder, and is often the file in it.
        let in_folder =
            |folder: PathBuf| if folder.is_file() { folder } else { folder.join("config.json") };
        let docker = folder("DOCKER_CONFIG").map(in_folder);
        let by_default = docker.is_none().then(|| in_home(".docker/config.json")).flatten();
        // Without `$XDG_RUNTIME_DIR`, as for root, podman uses a system folder for each user.
        let runtime = folder("XDG_RUNTIME_DIR").map(|d| d.join("containers/auth.json"));
        let runtime =
            runtime.or_else(|| Some(PathBuf::from(format!("/run/containers/{uid}/auth.json"))));
        let config = folder("XDG_CONFIG_HOME")
            .or_else(|| in_home(".config"))
            .map(|d| d.join("containers/auth.json"));
        let files = [docker, folder(AUTH_FILE), by_default, runtime, config]
            .into_iter()
            .flatten()
            .collect();
        CredentialSettings {
            inline: variable(INLINE),
            files,
            path: variable("PATH").unwrap_or_default(),
        }
    }

    async fn find(
        &self,
        registry: &str,
        repository: &str,
        limit: Duration,
    ) -> Result<Option<FoundCredential>, CredentialError> {
        if let Some(text) = &self.inline {
            let name = PathBuf::from(format!("${INLINE}"));
            let file = parse(&name, text.as_encoded_bytes())?;
            if let Some(found) = self.find_in(&name, &file, registry, repository, limit).await? {
                return Ok(Some(found));
            }
        }
        for path in &self.files {
            let Some(file) = read(path)? else {
                log_lookup(registry, &path.to_string_lossy(), "no such file", false);
                continue;
            };
            if let Some(found) = self.find_in(path, &file, registry, repository, limit).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn find_in(
        &self,
        path: &Path,
        file: &DockerConfig,
        registry: &str,
        repository: &str,
        limit: Duration,
    ) -> Result<Option<FoundCredential>, CredentialError> {
        let shown = path.to_string_lossy();
        if let Some(name) = file.helper(registry) {
            let login = docker::ask_helper(name, server(registry), &self.path, limit).await;
            let login = login
                .map_err(|source| CredentialError::Helper { name: name.to_owned(), source })?;
            log_lookup(registry, &format!("docker-credential-{name}"), &shown, login.is_some());
            if let Some((user, secret)) = login {
                let credential = match user.as_str() {
                    "<token>" => Credential::Identity { token: secret, login: None },
                    _ => Credential::Password { user, password: secret },
                };
                let place = format!("docker-credential-{name}, which {shown} names").into();
                return Ok(Some(FoundCredential { credential, place }));
            }
        }
        let entry = file.entry(registry, repository);
        log_lookup(registry, &shown, entry.map_or("", |(key, _)| key), entry.is_some());
        let Some((key, entry)) = entry else { return Ok(None) };
        let wrong = || CredentialError::Entry {
            path: path.to_owned(),
            key: key.chars().take(300).collect(),
        };
        let credential = entry.credential().map_err(|_| wrong())?;
        Ok(credential
            .map(|credential| FoundCredential { credential, place: shown.as_ref().into() }))
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

/// None if the file does not exist.
fn read(path: &Path) -> Result<Option<DockerConfig>, CredentialError> {
    let failed = |source| CredentialError::File { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn password(user: &str, password: &str) -> Option<Credential> {
        Some(Credential::Password { user: user.into(), password: password.into() })
    }

    async fn lookup(
        json: &str,
        registry: &str,
        repository: &str,
    ) -> Result<Option<Credential>, CredentialError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, json).unwrap();
        let files = vec![dir.path().join("none.json"), file];
        let ambient = CredentialSettings { inline: None, files, path: OsString::new() };
        let found = ambient.find(registry, repository, Duration::from_secs(1)).await?;
        Ok(found.map(|found| found.credential))
    }

    #[tokio::test]
    async fn entries_of_every_form() {
        // "dTpw" is u:p, "dTpwOnE" is u:p:q without padding.
        for (json, registry, want) in [
            (r#"{"auths":{"r.io":{"auth":"dTpw"}}}"#, "r.io", password("u", "p")),
            (r#"{"auths":{"r.io":{"auth":"dTpwOnE"}}}"#, "r.io", password("u", "p:q")),
            (r#"{"auths":{"https://r.io/v2/":{"auth":"dTpw"}}}"#, "r.io", password("u", "p")),
            (r#"{"auths":{"r.io/v1/":{"auth":"dTpw"}}}"#, "r.io", password("u", "p")),
            (
                r#"{"auths":{"r.io:5000":{"username":"u","password":"p"}}}"#,
                "r.io:5000",
                password("u", "p"),
            ),
            (r#"{"auths":{"r.io:5000":{"auth":"dTpw"}}}"#, "r.io", None),
            (r#"{"auths":{"[::1]:5000":{"auth":"dTpw"}}}"#, "[::1]:5000", password("u", "p")),
            (
                r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}"#,
                "docker.io",
                password("u", "p"),
            ),
            (r#"{"auths":{"docker.io":{"auth":"dTpw"}}}"#, "docker.io", password("u", "p")),
            (r#"{"auths":{"r.io":{}}}"#, "r.io", None),
            (
                r#"{"auths":{"r.io":{"auth":"dTpw","identitytoken":"T"}}}"#,
                "r.io",
                Some(Credential::Identity {
                    token: "T".into(),
                    login: Some(("u".into(), "p".into())),
                }),
            ),
            // As Go reads it: null is the default, the case of keys does not matter, base64 may
            // have line breaks, and text after the object is ignored.
            (
                r#"{"auths":{"other.io":null,"r.io":{"auth":"dTpw","identitytoken":null,"username":null}},
                    "credHelpers":null,"credsStore":null}"#,
                "r.io",
                password("u", "p"),
            ),
            (r#"{"Auths":{"r.io":{"AUTH":"dTpw"}}} and more"#, "r.io", password("u", "p")),
            (r#"{"auths":{"r.io":{"auth":"dT\r\npw\n"}}}"#, "r.io", password("u", "p")),
            (r#"{"auths":null,"credHelpers":{"r.io":null}}"#, "r.io", None),
            ("null", "r.io", None),
            (
                r#"{"auths":{"r.io":{"registrytoken":"T"}}}"#,
                "r.io",
                Some(Credential::Registry("T".into())),
            ),
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
        std::fs::write(&file, r#"{"auths":{"r.io":{"auth":"dTpw"},"q.io":{"auth":"dTpw"}}}"#)
            .unwrap();
        let with = |text: &str| CredentialSettings {
            inline: Some(text.into()),
            files: vec![file.clone()],
            path: OsString::new(),
        };
        let inline = with(r#"{"auths":{"r.io":{"username":"i","password":"x"}}}"#);
        for (registry, want) in
            [("r.io", password("i", "x")), ("q.io", password("u", "p")), ("s.io", None)]
        {
            let found = inline.find(registry, "a", Duration::from_secs(1)).await.unwrap();
            assert_eq!(found.map(|found| found.credential), want);
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
        for json in
            [r#"{"auths":"hunter2"}"#, r#"{"auths":{"r.io":{"auth":["hunter2"]}}}"#, "hunter2"]
        {
            let error = lookup(json, "r.io", "a").await.unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains("config.json") && !text.contains("hunter2"), "{text}");
        }
        // "aHVudGVyMg==" is hunter2, without a colon.
        let error =
            lookup(r#"{"auths":{"r.io":{"auth":"aHVudGVyMg=="}}}"#, "r.io", "a").await.unwrap_err();
        assert!(matches!(error, CredentialError::Entry { .. }), "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn the_files_and_their_order() {
        let files = |variables: &[(&str, &str)]| {
            let get = |name: &str| {
                variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
            };
            let files = CredentialSettings::new(get, 7).files;
            files.iter().map(|f| f.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            files(&[("HOME", "/h")]),
            [
                "/h/.docker/config.json",
                "/run/containers/7/auth.json",
                "/h/.config/containers/auth.json"
            ]
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
        // A variable comes before a file that is always there.
        let named =
            files(&[("HOME", "/h"), ("REGISTRY_AUTH_FILE", "/a.json"), ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(named[..2], ["/a.json", "/h/.docker/config.json"]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(files(&[("DOCKER_CONFIG", path)])[0], path);
        assert_eq!(files(&[]), ["/run/containers/7/auth.json"]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn helpers_take_precedence_and_may_know_no_credentials() {
        let dir = tempfile::tempdir().unwrap();
        docker::tests::script(
            dir.path(),
            "has",
            r#"cat >"$0.input"; echo '{"ServerURL":"x","Username":"hu","Secret":"hp"}'"#,
        );
        docker::tests::script(dir.path(), "token", r#"echo '{"Username":"<token>","Secret":"T"}'"#);
        docker::tests::script(dir.path(), "small", r#"echo '{"username":"su","secret":"sp"}'"#);
        docker::tests::script(
            dir.path(),
            "none",
            "echo 'credentials not found in native keychain'; exit 1",
        );
        let file = dir.path().join("config.json");
        let ambient =
            CredentialSettings { inline: None, files: vec![file.clone()], path: dir.path().into() };
        for (json, registry, want) in [
            (
                r#"{"credsStore":"has","auths":{"r.io":{"auth":"dTpw"}}}"#,
                "r.io",
                password("hu", "hp"),
            ),
            (r#"{"credsStore":"none","credHelpers":{"r.io":"has"}}"#, "r.io", password("hu", "hp")),
            (
                r#"{"credsStore":"has","credHelpers":{"r.io":"token"}}"#,
                "r.io",
                Some(Credential::Identity { token: "T".into(), login: None }),
            ),
            (r#"{"credsStore":"none"}"#, "r.io", None),
            (
                r#"{"credsStore":"none","auths":{"r.io":{"auth":"dTpw"}}}"#,
                "r.io",
                password("u", "p"),
            ),
            (r#"{"credsStore":"has"}"#, "docker.io", password("hu", "hp")),
            (r#"{"credsStore":"small"}"#, "r.io", password("su", "sp")),
        ] {
            std::fs::write(&file, json).unwrap();
            let found = ambient.find(registry, "a", Duration::from_secs(20)).await.unwrap();
            assert_eq!(found.map(|found| found.credential), want, "{json}");
        }
        let input =
            std::fs::read_to_string(dir.path().join("docker-credential-has.input")).unwrap();
        assert_eq!(input, DOCKER_HUB);

        std::fs::write(&file, r#"{"credsStore":"missing"}"#).unwrap();
        let error = ambient.find("r.io", "a", Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(error.to_string(), "credential helper docker-credential-missing");
    }
}
