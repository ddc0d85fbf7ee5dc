//! Credentials stored by `docker login` and `podman login`: the files, their keys, and helpers.
//!
//! Follows docker's `cli/config` (config.json) and containers-auth.json(5).

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tokio::time::Instant;
use tracing::debug;

use crate::registry::TARGET;
use crate::registry::config::CredentialSource;
use docker::{DockerConfig, is_docker_hub, parse};
use ociseek_format::printable::exact_size;
use ociseek_format::progress::causes;

mod docker;
mod providers;
mod pulled;

pub use docker::HelperError;
pub use providers::{CredentialProviders, ProviderConfigError};
pub use pulled::{LoginOfPull, PendingPull, PullLogin, PulledLogins};

/// The size limit of a credentials file in bytes.
const FILE: u64 = 4 << 20;
/// How many answers of programs are remembered for a registry, the last ones.
const ANSWERS: usize = 256;
/// A variable with the content of a credentials file.
const INLINE: &str = "DOCKER_AUTH_CONFIG";
/// A variable that names podman's credentials file.
const AUTH_FILE: &str = "REGISTRY_AUTH_FILE";
/// Docker's name for its own registry.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Credentials for a registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credential {
    Password(Login),
    /// A refresh token, which the token service exchanges for tokens (RFC 6749 section 6). The user
    /// and password next to it are for a registry without a token service.
    Identity {
        token: String,
        login: Option<Login>,
    },
    /// A token for the registry itself.
    Registry(String),
}

/// A user and a password, which may be any bytes (RFC 7617 section 2).
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub user: Vec<u8>,
    pub password: Vec<u8>,
}

impl Login {
    pub(super) fn new(user: &str, password: &str) -> Login {
        Login { user: user.into(), password: password.into() }
    }

    /// The value of the header `Authorization`.
    pub(super) fn basic(&self) -> String {
        let both = [&self.user[..], &self.password].join(&b':');
        format!("Basic {}", BASE64_STANDARD.encode(both))
    }
}

/// Shows the kind, but no secrets.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credential::Password(_) => "Password",
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
    #[error("{} is larger than {}", .path.display(), exact_size(FILE))]
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

/// What a search for credentials came to.
#[derive(Debug, Clone)]
pub(super) struct CredentialLookup {
    /// None stands for anonymous access.
    pub found: Option<FoundCredential>,
    /// The places that could not be read. They do not end the search, and matter only if the
    /// registry then refuses.
    pub failures: Vec<Arc<CredentialError>>,
    /// When the credentials were looked up, or given by a program.
    pub at: Instant,
}

/// A registry's repository, as it is searched for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub registry: &'a str,
    pub repository: &'a str,
    /// For the response of a credential helper.
    pub limit: Duration,
}

impl CredentialLookup {
    fn new() -> CredentialLookup {
        CredentialLookup { found: None, failures: Vec::new(), at: Instant::now() }
    }

    pub(super) fn credential(&self) -> Option<&Credential> {
        self.found.as_ref().map(|login| &login.credential)
    }

    fn failed(&mut self, wanted: &Wanted<'_>, error: impl Into<Arc<CredentialError>>) {
        let error = error.into();
        let registry = wanted.registry;
        debug!(name: "credentials", target: TARGET, registry, error = causes(&error));
        self.failures.push(error);
    }

    fn take(&mut self, credential: Credential, place: impl Into<Arc<str>>) {
        self.found = Some(FoundCredential { credential, place: place.into() });
    }
}

/// Searches for the credentials for a repository. `programs` remembers what they answer.
pub(super) async fn find(
    source: &CredentialSource,
    wanted: &Wanted<'_>,
    programs: &mut ProgramAnswers,
) -> CredentialLookup {
    let Wanted { registry, .. } = *wanted;
    let mut lookup = CredentialLookup::new();
    let source = match source {
        CredentialSource::Pull { login, others } => {
            login.find(wanted, &mut lookup);
            if lookup.found.is_some() {
                return lookup;
            }
            &**others
        }
        source => source,
    };
    match source {
        // They are not nested.
        CredentialSource::Pull { .. } => {}
        CredentialSource::Anonymous => {}
        CredentialSource::Only { registry: only, .. } if !only.eq_ignore_ascii_case(registry) => {}
        CredentialSource::Only { user, password, .. } => {
            log_lookup(registry, "given", "", true);
            lookup.take(Credential::Password(Login::new(user, password)), "--creds");
        }
        CredentialSource::Ambient | CredentialSource::Node(_) => {
            let uid = rustix::process::getuid().as_raw();
            let settings =
                CredentialSettings::new(|name| std::env::var_os(name), crate::home_dir(), uid);
            settings.find(wanted, programs, &mut lookup).await;
        }
        CredentialSource::File(path) => {
            let files = vec![path.clone()];
            let path = std::env::var_os("PATH").unwrap_or_default();
            let settings = CredentialSettings { inline: None, files, path };
            settings.find(wanted, programs, &mut lookup).await;
        }
    }
    if let (None, CredentialSource::Node(providers)) = (&lookup.found, source) {
        providers.find(wanted, programs, &mut lookup).await;
    }
    lookup
}

/// What programs answered for a registry. Asking one may take seconds.
#[derive(Default)]
pub(super) struct ProgramAnswers(Vec<ProgramAnswer>);

struct ProgramAnswer {
    program: LoginProgram,
    at: Instant,
    login: Result<Option<(String, String)>, Arc<CredentialError>>,
}

/// A program that has logins, and what it was asked for.
#[derive(PartialEq, Eq)]
enum LoginProgram {
    /// A credential helper. Its login is that of all repositories.
    Helper(String),
    Provider {
        name: String,
        repository: String,
    },
}

impl ProgramAnswers {
    /// Forgets the answers that are at least this old.
    pub(super) fn forget(&mut self, age: Duration) {
        self.0.retain(|answer| answer.at.elapsed() < age);
    }

    /// What a program answered. `ask` asks it, unless it was asked before.
    async fn of(
        &mut self,
        program: LoginProgram,
        ask: impl Future<Output = Result<Option<(String, String)>, CredentialError>>,
    ) -> &ProgramAnswer {
        let known = self.0.iter().position(|answer| answer.program == program);
        let at = match known {
            Some(at) => at,
            None => {
                let login = ask.await.map_err(Arc::new);
                if self.0.len() == ANSWERS {
                    self.0.remove(0);
                }
                self.0.push(ProgramAnswer { program, at: Instant::now(), login });
                self.0.len() - 1
            }
        };
        &self.0[at]
    }
}

/// The file that `$REGISTRY_AUTH_FILE` names, if it does not exist. Other files are optional.
pub(super) fn missing_file(source: &CredentialSource) -> Option<PathBuf> {
    let is_ambient = match source {
        CredentialSource::Pull { others, .. } => return missing_file(others),
        source => matches!(source, CredentialSource::Ambient | CredentialSource::Node(_)),
    };
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
    fn new(
        variable: impl Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
        uid: u32,
    ) -> CredentialSettings {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let folder = |name: &str| variable(name).map(PathBuf::from);
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

    /// Continues where a place cannot be read.
    async fn find(
        &self,
        wanted: &Wanted<'_>,
        programs: &mut ProgramAnswers,
        lookup: &mut CredentialLookup,
    ) {
        let inline = self.inline.as_ref().map(|text| {
            let name = PathBuf::from(format!("${INLINE}"));
            let file = parse(&name, text.as_encoded_bytes()).map(Some);
            (name, file)
        });
        let files = self.files.iter().map(|path| (path.clone(), read(path)));
        for (path, file) in inline.into_iter().chain(files) {
            match file {
                Ok(Some(file)) => self.find_in(&path, &file, wanted, programs, lookup).await,
                Ok(None) => {
                    log_lookup(wanted.registry, &path.to_string_lossy(), "no such file", false);
                }
                Err(error) => lookup.failed(wanted, error),
            }
            if lookup.found.is_some() {
                return;
            }
        }
    }

    async fn find_in(
        &self,
        path: &Path,
        file: &DockerConfig,
        wanted: &Wanted<'_>,
        programs: &mut ProgramAnswers,
        lookup: &mut CredentialLookup,
    ) {
        let Wanted { registry, repository, .. } = *wanted;
        let shown = path.to_string_lossy();
        if let Some(name) = file.helper(registry) {
            let asking = async {
                let answer =
                    docker::ask_helper(name, server(registry), &self.path, wanted.limit).await;
                answer.map_err(|source| CredentialError::Helper { name: name.to_owned(), source })
            };
            let answer = programs.of(LoginProgram::Helper(name.to_owned()), asking).await;
            let at = answer.at;
            match answer.login.clone() {
                Ok(login) => {
                    let source = format!("docker-credential-{name}");
                    log_lookup(registry, &source, &shown, login.is_some());
                    if let Some((user, secret)) = login {
                        let credential = match user.as_str() {
                            "<token>" => Credential::Identity { token: secret, login: None },
                            _ => Credential::Password(Login::new(&user, &secret)),
                        };
                        lookup.at = at;
                        return lookup.take(credential, format!("{source}, which {shown} names"));
                    }
                }
                Err(error) => {
                    lookup.at = at;
                    lookup.failed(wanted, error);
                }
            }
        }
        let entries = file.entries(registry, repository);
        log_lookup(registry, &shown, entries.first().map_or("", |e| e.0), !entries.is_empty());
        for (key, entry) in entries {
            match entry.credential() {
                Ok(Some(credential)) => return lookup.take(credential, shown.as_ref()),
                Ok(None) => {}
                Err(_) => {
                    let key = key.chars().take(300).collect();
                    lookup.failed(wanted, CredentialError::Entry { path: path.to_owned(), key });
                }
            }
        }
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
        Some(Credential::Password(Login::new(user, password)))
    }

    /// The credentials that are found, and what failed on the way.
    async fn search(
        settings: &CredentialSettings,
        registry: &str,
        repository: &str,
    ) -> (Option<Credential>, Vec<Arc<CredentialError>>) {
        let wanted = Wanted { registry, repository, limit: Duration::from_secs(20) };
        let mut lookup = CredentialLookup::new();
        settings.find(&wanted, &mut ProgramAnswers::default(), &mut lookup).await;
        (lookup.found.map(|login| login.credential), lookup.failures)
    }

    async fn lookup(
        json: &str,
        registry: &str,
        repository: &str,
    ) -> (Option<Credential>, Vec<Arc<CredentialError>>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.json");
        std::fs::write(&file, json).unwrap();
        let files = vec![dir.path().join("none.json"), file];
        let ambient = CredentialSettings { inline: None, files, path: OsString::new() };
        search(&ambient, registry, repository).await
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
                Some(Credential::Identity { token: "T".into(), login: Some(Login::new("u", "p")) }),
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
            let (credential, failures) = lookup(json, registry, "a/b").await;
            assert_eq!((credential, failures.len()), (want, 0), "{json}");
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
            assert_eq!(search(&inline, registry, "a").await.0, want);
        }
        let (credential, failures) = search(&with("hunter2"), "r.io", "a").await;
        assert_eq!(credential, password("u", "p"), "the file is read");
        let text = format!("{} {failures:?}", failures[0]);
        assert!(text.contains("$DOCKER_AUTH_CONFIG") && !text.contains("hunter2"), "{text}");
    }

    #[tokio::test]
    async fn the_longest_matching_key_of_podman_wins() {
        let json = r#"{"auths":{"r.io":{"auth":"dTpw"},"r.io/a":{"username":"a","password":"x"},
                       "r.io/a/b":{"username":"b","password":"y"}}}"#;
        for (repository, want) in
            [("a/b", password("b", "y")), ("a/bc", password("a", "x")), ("ab", password("u", "p"))]
        {
            assert_eq!(lookup(json, "r.io", repository).await.0, want);
        }
        let broken = json.replace(r#"{"username":"b","password":"y"}"#, r#"{"auth":"?"}"#);
        let (credential, failures) = lookup(&broken, "r.io", "a/b").await;
        assert_eq!((credential, failures.len()), (password("a", "x"), 1));
    }

    #[tokio::test]
    async fn errors_name_a_broken_file_without_its_content() {
        for json in
            [r#"{"auths":"hunter2"}"#, r#"{"auths":{"r.io":{"auth":["hunter2"]}}}"#, "hunter2"]
        {
            let (credential, failures) = lookup(json, "r.io", "a").await;
            assert_eq!(credential, None);
            let text = format!("{} {failures:?}", failures[0]);
            assert!(text.contains("config.json") && !text.contains("hunter2"), "{text}");
        }
        // "aHVudGVyMg==" is hunter2, without a colon.
        let (_, failures) =
            lookup(r#"{"auths":{"r.io":{"auth":"aHVudGVyMg=="}}}"#, "r.io", "a").await;
        assert!(matches!(&*failures[0], CredentialError::Entry { .. }), "{failures:?}");
        assert!(!format!("{failures:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn passwords_may_be_any_bytes() {
        // u:p\xe9, as Latin-1 has it.
        let (credential, failures) =
            lookup(r#"{"auths":{"r.io":{"auth":"dTpw6Q=="}}}"#, "r.io", "a").await;
        let login = Login { user: b"u".to_vec(), password: b"p\xe9".to_vec() };
        assert_eq!(login.basic(), "Basic dTpw6Q==");
        assert_eq!((credential, failures.len()), (Some(Credential::Password(login)), 0));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_helper_is_asked_once_for_all_repositories() {
        let dir = tempfile::tempdir().unwrap();
        let count = r#"cat >/dev/null; echo x >>"$0.asked""#;
        docker::tests::script(dir.path(), "fails", &format!("{count}; exit 3"));
        docker::tests::script(
            dir.path(),
            "has",
            &format!(r#"{count}; echo '{{"Username":"u","Secret":"p"}}'"#),
        );
        let file = dir.path().join("config.json");
        std::fs::write(&file, r#"{"credsStore":"fails"}"#).unwrap();
        let more = dir.path().join("auth.json");
        std::fs::write(&more, r#"{"credsStore":"has"}"#).unwrap();
        let path = dir.path().into();
        let ambient = CredentialSettings { inline: None, files: vec![file, more], path };
        let mut programs = ProgramAnswers::default();
        for (asked, repository) in [(1, "a"), (1, "b"), (2, "c")] {
            if asked == 2 {
                programs.forget(Duration::ZERO);
            }
            let limit = Duration::from_secs(20);
            let mut lookup = CredentialLookup::new();
            let wanted = Wanted { registry: "r.io", repository, limit };
            ambient.find(&wanted, &mut programs, &mut lookup).await;
            assert_eq!(lookup.failures.len(), 1);
            assert_eq!(lookup.found.map(|login| login.credential), password("u", "p"));
            for name in ["fails", "has"] {
                let log = dir.path().join(format!("docker-credential-{name}.asked"));
                assert_eq!(std::fs::read_to_string(log).unwrap(), "x\n".repeat(asked), "{name}");
            }
        }
    }

    #[test]
    fn the_files_and_their_order() {
        let files = |variables: &[(&str, &str)]| {
            let get = |name: &str| {
                variables.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
            };
            let home = get("HOME").map(PathBuf::from);
            let files = CredentialSettings::new(get, home, 7).files;
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
            let (credential, failures) = search(&ambient, registry, "a").await;
            assert_eq!((credential, failures.len()), (want, 0), "{json}");
        }
        let input =
            std::fs::read_to_string(dir.path().join("docker-credential-has.input")).unwrap();
        assert_eq!(input, DOCKER_HUB);

        std::fs::write(&file, r#"{"credsStore":"missing"}"#).unwrap();
        let (_, failures) = search(&ambient, "r.io", "a").await;
        assert_eq!(failures[0].to_string(), "credential helper docker-credential-missing");
    }
}
