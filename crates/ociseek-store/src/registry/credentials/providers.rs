//! kubelet's credential providers: the programs on a Kubernetes node that get logins for the
//! registries of its cloud.
//!
//! Follows "Configure a kubelet image credential provider" in Kubernetes' documentation, and its
//! `pkg/credentialprovider`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::docker::{HelperError, converse};
use super::{
    Credential, CredentialError, CredentialLookup, FILE, Login, LoginProgram, ProgramAnswers,
    Wanted, is_docker_hub, log_lookup,
};
use ociseek_format::glob;
use ociseek_format::printable::exact_size;

/// The size limit of a program's output in bytes.
const OUTPUT: u64 = 1 << 20;
/// The versions of the exchange with a program. They differ in their name only.
const VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];

/// The credential providers of a node. Cheap to clone.
#[derive(Clone)]
pub struct CredentialProviders(Arc<[Provider]>);

ociseek_format::opaque_debug!(CredentialProviders);

struct Provider {
    name: String,
    program: PathBuf,
    api_version: String,
    images: Vec<ImagePattern>,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

/// Why a configuration of credential providers cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ProviderConfigError {
    #[error("{path} cannot be read", path = .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is larger than {}", .path.display(), exact_size(FILE))]
    TooLarge { path: PathBuf },
    #[error("{path} has no *.json, *.yaml or *.yml", path = .path.display())]
    Empty { path: PathBuf },
    #[error("{path} is not a CredentialProviderConfig of kubelet: {why}", path = .path.display())]
    Invalid { path: PathBuf, why: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigFile {
    kind: String,
    providers: Vec<ProviderEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProviderEntry {
    name: String,
    api_version: String,
    match_images: Vec<String>,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<EnvironmentEntry>>,
}

#[derive(Deserialize)]
struct EnvironmentEntry {
    name: String,
    value: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    kind: &'a str,
    api_version: &'a str,
    image: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    kind: String,
    api_version: String,
    #[serde(default)]
    auth: Option<BTreeMap<String, AuthEntry>>,
}

#[derive(Deserialize)]
struct AuthEntry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl CredentialProviders {
    /// Reads kubelet's configuration: a file, or all `*.json`, `*.yaml` and `*.yml` of a folder in
    /// the order of their names. The programs are in the folder `programs`.
    ///
    /// # Errors
    /// If a file cannot be read or is not a valid configuration.
    pub fn open(
        config: &Path,
        programs: &Path,
    ) -> Result<CredentialProviders, ProviderConfigError> {
        let failed = |source| ProviderConfigError::File { path: config.to_owned(), source };
        let mut files = vec![config.to_owned()];
        if fs::metadata(config).map_err(failed)?.is_dir() {
            let entries: io::Result<Vec<_>> = fs::read_dir(config).and_then(Iterator::collect);
            files = entries.map_err(failed)?.into_iter().map(|entry| entry.path()).collect();
            let endings = ["json", "yaml", "yml"].map(Some);
            files.retain(|file| {
                endings.contains(&file.extension().and_then(|ending| ending.to_str()))
                    && file.is_file()
            });
            files.sort();
            if files.is_empty() {
                return Err(ProviderConfigError::Empty { path: config.to_owned() });
            }
        }
        let mut providers: Vec<Provider> = Vec::new();
        for path in files {
            let invalid = |why: String| ProviderConfigError::Invalid { path: path.clone(), why };
            let size = fs::metadata(&path).map_err(failed)?.len();
            if size > FILE {
                return Err(ProviderConfigError::TooLarge { path });
            }
            let text = fs::read_to_string(&path).map_err(failed)?;
            // JSON is YAML, too.
            let file: ConfigFile =
                serde_norway::from_str(&text).map_err(|error| invalid(error.to_string()))?;
            if file.kind != "CredentialProviderConfig" {
                return Err(invalid(format!("its kind is {:?}", file.kind)));
            }
            for entry in file.providers {
                let provider = Provider::new(entry, programs).map_err(&invalid)?;
                if providers.iter().any(|other| other.name == provider.name) {
                    return Err(invalid(format!("it has two providers named {:?}", provider.name)));
                }
                providers.push(provider);
            }
        }
        Ok(CredentialProviders(providers.into()))
    }

    /// Takes the credentials of the first provider for the image that has some.
    pub(super) async fn find(
        &self,
        wanted: &Wanted<'_>,
        programs: &mut ProgramAnswers,
        lookup: &mut CredentialLookup,
    ) {
        let Wanted { registry, repository, limit } = *wanted;
        for provider in self.0.iter().filter(|provider| provider.is_for(registry, repository)) {
            let name = provider.name.clone();
            let place = format!("credential provider {name}");
            let asking = async {
                let answer = provider.ask(registry, repository, limit).await;
                let name = provider.name.clone();
                answer.map_err(|source| CredentialError::Provider { name, source })
            };
            let repository = repository.to_owned();
            let answer = programs.of(LoginProgram::Provider { name, repository }, asking).await;
            lookup.at = answer.at;
            log_lookup(registry, &place, "", matches!(answer.login, Ok(Some(_))));
            match answer.login.clone() {
                Ok(Some((user, password))) => {
                    let login = Login::new(&user, &password);
                    return lookup.take(Credential::Password(login), place);
                }
                Ok(None) => {}
                Err(error) => lookup.failed(wanted, error),
            }
        }
    }
}

impl Provider {
    fn new(entry: ProviderEntry, programs: &Path) -> Result<Provider, String> {
        let ProviderEntry { name, api_version, match_images, args, env } = entry;
        if name.is_empty() || name.contains(['/', ' ', '\0']) || matches!(name.as_str(), "." | "..")
        {
            return Err(format!("{name:?} is not the name of a program"));
        }
        if !VERSIONS.contains(&api_version.as_str()) {
            return Err(format!(
                "provider {name} has the apiVersion {api_version:?}, which is not known"
            ));
        }
        if match_images.is_empty() {
            return Err(format!("provider {name} has no matchImages"));
        }
        Ok(Provider {
            program: programs.join(&name),
            name,
            api_version,
            images: match_images.iter().map(|pattern| ImagePattern::new(pattern)).collect(),
            args: args.unwrap_or_default(),
            env: env
                .unwrap_or_default()
                .into_iter()
                .map(|entry| (entry.name, entry.value))
                .collect(),
        })
    }

    fn is_for(&self, registry: &str, repository: &str) -> bool {
        self.images.iter().any(|pattern| pattern.matches(registry, repository))
    }

    async fn ask(
        &self,
        registry: &str,
        repository: &str,
        limit: Duration,
    ) -> Result<Option<(String, String)>, HelperError> {
        let image = format!("{registry}/{repository}");
        let request = Request {
            kind: "CredentialProviderRequest",
            api_version: &self.api_version,
            image: &image,
        };
        let input = serde_json::to_vec(&request).map_err(|_| HelperError::Answer)?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        let answer = tokio::time::timeout(limit, converse(command, &input, OUTPUT)).await;
        let (status, output) =
            answer.map_err(|_| HelperError::Hangs(limit))?.map_err(HelperError::Run)?;
        if !status.success() {
            return Err(HelperError::Failed(status));
        }
        let response: Response =
            serde_json::from_slice(&output).map_err(|_| HelperError::Answer)?;
        if response.kind != "CredentialProviderResponse" || response.api_version != self.api_version
        {
            return Err(HelperError::Answer);
        }
        // The last in alphabetical order first, as in kubelet: it has the longest path.
        let mut entries = response.auth.unwrap_or_default().into_iter().rev();
        let entry = entries.find(|(key, _)| ImagePattern::new(key).matches(registry, repository));
        let login = entry.map(|(_, AuthEntry { username, password })| (username, password));
        Ok(login.filter(|(user, password)| !user.is_empty() || !password.is_empty()))
    }
}

/// A pattern for images: `HOST[:PORT][/PATH]`, where the host may have `*` and `?`, which match no
/// dot.
#[derive(Debug)]
struct ImagePattern {
    host: String,
    port: Option<String>,
    path: String,
}

impl ImagePattern {
    fn new(text: &str) -> ImagePattern {
        let text = ["https://", "http://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))
            .unwrap_or(text);
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        let (host, port) = split_port(host);
        ImagePattern {
            host: host.to_ascii_lowercase(),
            port: port.map(str::to_owned),
            path: path.to_owned(),
        }
    }

    /// A pattern without a port is only for images without one.
    fn matches(&self, registry: &str, repository: &str) -> bool {
        // Logins for Docker Hub have its old name, and the version of its API as their path.
        if is_docker_hub(registry) && self.host == "index.docker.io" {
            return matches!(self.path.trim_end_matches('/'), "" | "v1");
        }
        let (host, port) = split_port(registry);
        let host = host.to_ascii_lowercase();
        let patterns = self.host.split('.');
        let parts = host.split('.');
        port == self.port.as_deref()
            && repository.starts_with(&self.path)
            && patterns.clone().count() == parts.clone().count()
            && patterns
                .zip(parts)
                .all(|(pattern, part)| glob::matches(pattern.as_bytes(), part.as_bytes()))
    }
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        // Not a colon of an IPv6 address.
        Some((before, port)) if !port.contains(']') => (before, Some(port)),
        _ => (host, None),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn patterns_are_those_of_kubelet() {
        for (pattern, registry, repository, wanted) in [
            ("123.dkr.ecr.*.amazonaws.com", "123.dkr.ecr.eu-west-1.amazonaws.com", "a", true),
            ("*.dkr.ecr.*.amazonaws.com", "123.dkr.ecr.eu-west-1.amazonaws.com", "a", true),
            ("*.io", "k8s.io", "a", true),
            ("*.io", "registry.k8s.io", "a", false),
            ("app*.k8s.io", "app1.k8s.io", "a", true),
            ("gcr.io/team", "gcr.io", "team/app", true),
            ("gcr.io/team", "gcr.io", "other", false),
            ("GCR.io", "gcr.io", "a", true),
            ("r.io:5000", "r.io:5000", "a", true),
            ("r.io", "r.io:5000", "a", false),
            ("r.io:5000", "r.io", "a", false),
            ("[::1]:5000", "[::1]:5000", "a", true),
            ("https://r.io", "r.io", "a", true),
            ("https://index.docker.io/v1/", "docker.io", "library/redis", true),
            ("docker.io", "docker.io", "library/redis", true),
            ("", "r.io", "a", false),
        ] {
            assert_eq!(
                ImagePattern::new(pattern).matches(registry, repository),
                wanted,
                "{pattern} {registry}"
            );
        }
    }

    fn config(provider: &str) -> String {
        format!(
            "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n{provider}"
        )
    }

    const PROVIDER: &str = "
  - name: cloud
    apiVersion: credentialprovider.kubelet.k8s.io/v1
    matchImages: ['*.cloud.io']
    defaultCacheDuration: 12h
    args: [--login]
    env: [{name: SECRET, value: hunter2}]
";

    /// Providers with one program, a shell script.
    fn providers(dir: &Path, script: &str) -> CredentialProviders {
        let source = dir.join("source");
        let program = dir.join("cloud");
        fs::write(&source, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Copied by another process, as in the tests of helpers.
        assert!(
            std::process::Command::new("cp").args([&source, &program]).status().unwrap().success()
        );
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.join("config.yaml"), config(PROVIDER)).unwrap();
        CredentialProviders::open(&dir.join("config.yaml"), dir).unwrap()
    }

    fn response(auth: &str) -> String {
        format!(
            "cat >\"$0.in\"; echo '{{\"kind\":\"CredentialProviderResponse\",\
             \"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"auth\":{auth}}}'"
        )
    }

    async fn lookup(
        providers: &CredentialProviders,
        registry: &str,
        repository: &str,
        limit: Duration,
    ) -> CredentialLookup {
        let mut lookup = CredentialLookup::new();
        let wanted = Wanted { registry, repository, limit };
        providers.find(&wanted, &mut ProgramAnswers::default(), &mut lookup).await;
        lookup
    }

    #[tokio::test]
    async fn a_program_gets_the_image_and_gives_the_login() {
        let dir = tempfile::tempdir().unwrap();
        let all = r#""a.cloud.io":{"username":"all","password":"p"}"#;
        let team = r#""a.cloud.io/team":{"username":"'$1'","password":"'$SECRET'"}"#;
        let providers = providers(dir.path(), &response(&format!("{{{all},{team}}}")));
        let limit = Duration::from_secs(20);
        let credential = lookup(&providers, "a.cloud.io", "team/app", limit).await.found.unwrap();
        let login = Credential::Password(Login::new("--login", "hunter2"));
        assert!(credential.credential == login, "{credential:?}");
        assert_eq!(&*credential.place, "credential provider cloud");
        let request = fs::read_to_string(dir.path().join("cloud.in")).unwrap();
        let version = r#""apiVersion":"credentialprovider.kubelet.k8s.io/v1""#;
        let expected = format!(
            r#"{{"kind":"CredentialProviderRequest",{version},"image":"a.cloud.io/team/app"}}"#
        );
        assert_eq!(request, expected);
        let credential = lookup(&providers, "a.cloud.io", "other", limit).await.found.unwrap();
        assert!(credential.credential == Credential::Password(Login::new("all", "p")));
        assert!(lookup(&providers, "elsewhere.io", "app", limit).await.found.is_none());
    }

    #[tokio::test]
    async fn programs_that_fail_are_an_error_without_their_output() {
        let dir = tempfile::tempdir().unwrap();
        let empty = response("null");
        for (script, is_error) in [
            (empty.as_str(), false),
            ("echo hunter2; exit 3", true),
            ("echo hunter2", true),
            ("exec yes hunter2", true),
            ("exec sleep 60", true),
            (
                r#"echo '{"kind":"Other","apiVersion":"credentialprovider.kubelet.k8s.io/v1","auth":{}}'"#,
                true,
            ),
        ] {
            let providers = providers(dir.path(), script);
            let limit = Duration::from_millis(500);
            let lookup = lookup(&providers, "a.cloud.io", "app", limit).await;
            assert!(lookup.found.is_none(), "{script}");
            assert_eq!(!lookup.failures.is_empty(), is_error, "{script}");
            assert!(!format!("{:?}", lookup.failures).contains("hunter2"), "{script}");
        }
    }

    #[test]
    fn configurations_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let open = |text: &str| {
            fs::write(dir.path().join("a.yaml"), text).unwrap();
            CredentialProviders::open(dir.path(), dir.path())
        };
        assert!(open(&config(PROVIDER)).is_ok());
        let json = r#"{"kind":"CredentialProviderConfig","apiVersion":"kubelet.config.k8s.io/v1","providers":[
            {"name":"p","apiVersion":"credentialprovider.kubelet.k8s.io/v1","matchImages":["*.io"],
             "defaultCacheDuration":"0s","tokenAttributes":null,"args":null}]}"#;
        assert!(open(json).is_ok());
        for wrong in [
            "".to_owned(),
            "kind: Pod\nproviders: []".to_owned(),
            config(&PROVIDER.replace("name: cloud", "name: ../cloud")),
            config(&PROVIDER.replace("/v1", "/v9")),
            config(&PROVIDER.replace("'*.cloud.io'", "")),
            config(&format!("{PROVIDER}{PROVIDER}")),
            "kind: &a [*a, *a]".to_owned(),
        ] {
            let error = open(&wrong).unwrap_err();
            assert!(matches!(error, ProviderConfigError::Invalid { .. }), "{wrong}: {error:?}");
        }
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        let empty = CredentialProviders::open(dir.path(), dir.path()).unwrap_err();
        assert!(matches!(empty, ProviderConfigError::Empty { .. }), "{empty:?}");
    }
}
