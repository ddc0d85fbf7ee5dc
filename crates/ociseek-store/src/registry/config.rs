//! The settings of a client.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::address_filter::AllowedAddresses;
use super::credentials::{CredentialProviders, LoginOfPull};
use super::link::SharedLink;
use ociseek_format::budget::DEFAULT_LIMIT;
use ociseek_format::progress::{Progress, SilentProgress};

/// Settings of a [`Client`](super::Client). The defaults are those of the command line without
/// options.
#[derive(Clone)]
pub struct ClientConfig {
    /// The source of credentials.
    pub credentials: CredentialSource,
    /// `Some(true)`: HTTP for every registry. `Some(false)`: HTTPS for every registry. None: HTTPS,
    /// except for registries on this machine (`localhost`, 127.0.0.0/8, `::1`), which use HTTP. If
    /// any TLS setting below is given, these are probed for TLS first.
    pub plain_http: Option<bool>,
    /// PEM files of certificate authorities to trust in addition to the system's.
    pub ca_files: Vec<PathBuf>,
    /// PEM files of a client certificate chain and its key, for mutual TLS. Either both or neither.
    /// Only registries receive the certificate, not the hosts to which they redirect, and not token
    /// services elsewhere.
    pub client_cert: Option<PathBuf>,
    /// The key of `client_cert`.
    pub client_key: Option<PathBuf>,
    /// Folders with a subfolder for each registry (`HOST[:PORT]`) that has its authorities and
    /// client certificate. None for the folders of docker and podman.
    pub certs_d: Option<Vec<PathBuf>>,
    /// A folder with containerd's `hosts.toml` for each registry, such as
    /// `/etc/containerd/certs.d`: mirrors, which are asked first for what is read, and
    /// certificates. Or several with colons in between, of which the first counts that has
    /// something for a registry.
    pub hosts_dir: Option<PathBuf>,
    /// Accepts any certificate.
    pub insecure_skip_tls_verify: bool,
    /// The hosts that the client may contact: registries, token services, and targets of redirects.
    pub allowed_addresses: AllowedAddresses,
    /// Timeouts and limits for retries.
    pub limits: Limits,
    /// The memory budget of each [`Repository`](super::Repository) that the client creates, and so
    /// of each image, in bytes.
    pub max_memory: u64,
    /// What this client shares with others.
    pub link: Option<Arc<SharedLink>>,
    /// Receives the warnings of registries.
    pub progress: Arc<dyn Progress>,
}

ociseek_format::opaque_debug!(ClientConfig);

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            credentials: CredentialSource::Ambient,
            plain_http: None,
            ca_files: Vec::new(),
            client_cert: None,
            client_key: None,
            certs_d: None,
            hosts_dir: None,
            insecure_skip_tls_verify: false,
            allowed_addresses: AllowedAddresses::default(),
            limits: Limits::default(),
            max_memory: DEFAULT_LIMIT,
            link: None,
            progress: Arc::new(SilentProgress),
        }
    }
}

/// The source of credentials. They are looked up when a registry first asks for them.
#[derive(Clone, Default)]
pub enum CredentialSource {
    /// No credentials: only public content.
    Anonymous,
    /// Credentials for a single registry, under the name with which the client uses it. Other
    /// registries are accessed anonymously.
    Only {
        /// `HOST` or `HOST:PORT`.
        registry: String,
        /// The user name.
        user: String,
        /// The password or a token.
        password: String,
    },
    /// The credentials stored by `docker login` and `podman login`: first in the files that a
    /// variable names, `$DOCKER_CONFIG/config.json` and `$REGISTRY_AUTH_FILE`, then in
    /// `~/.docker/config.json` (unless `$DOCKER_CONFIG` is set),
    /// `$XDG_RUNTIME_DIR/containers/auth.json` and `$XDG_CONFIG_HOME/containers/auth.json`
    /// (`~/.config`). Each may have `credHelpers`, `credsStore` and `auths`.
    #[default]
    Ambient,
    /// The credentials of `Ambient`. For registries without a stored login, kubelet's credential
    /// providers are asked.
    Node(CredentialProviders),
    /// Only those in this file, of the same format.
    File(PathBuf),
    /// The login with which a container runtime pulled the image. For what has none, the others.
    Pull {
        /// The logins of pulls.
        login: LoginOfPull,
        /// Another source than this.
        others: Box<CredentialSource>,
    },
}

/// Shows the kind, but no secrets.
impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CredentialSource::Anonymous => "Anonymous",
            CredentialSource::Only { .. } => "Only",
            CredentialSource::Ambient => "Ambient",
            CredentialSource::Node(_) => "Node",
            CredentialSource::File(_) => "File",
            CredentialSource::Pull { .. } => "Pull",
        })
    }
}

/// Timeouts and limits for retries.
#[derive(Debug, Clone)]
pub struct Limits {
    /// For establishing a connection, including TLS.
    pub connect: Duration,
    /// From the end of a request to the headers of the response.
    pub header: Duration,
    /// Between two pieces of a body, in either direction.
    pub idle: Duration,
    /// The least speed of a download in bytes per second, measured over periods of `idle`.
    pub slowest: u64,
    /// For the response of a credential helper.
    pub helper: Duration,
    /// Tokens, and credentials that programs gave, are looked up again when a registry refuses
    /// them, if they are older than this. Files with credentials are read again at once.
    pub stale: Duration,
    /// Stored passwords for Amazon ECR that are older than this are looked up again before they
    /// expire, which is after 12 hours.
    pub ecr_login: Duration,
    /// The wait before the second try. Each further wait doubles, up to 30 s, with a random
    /// variation by half.
    pub first_wait: Duration,
    /// The limit for all waits between tries of a request, unless `patience` is longer. Waits for a
    /// connection do not count. If a registry requests a longer wait, the request fails.
    pub longest_wait: Duration,
    /// The minimum number of tries of a request, if the registry fails or does not respond.
    pub tries: u32,
    /// How long to retry if a registry cannot be connected to, or if it fails in another way after
    /// enough tries. The longest wait that the registry requests does not count. None to retry for
    /// as long as the caller waits.
    pub patience: Option<Duration>,
    /// The same if nothing listens on the port of this machine, unless the registry has answered
    /// before. `patience` if that is shorter.
    pub local_patience: Duration,
    /// How many more failures than successes a client may have over all requests before it stops
    /// retrying.
    pub failures: u32,
    /// Larger content, in bytes, is uploaded in chunks at once. Other content only if the registry
    /// asks for chunks or refuses a single request.
    pub monolithic: u64,
    /// The size of a chunk in bytes, unless the registry requests another. Only the last chunk may
    /// be smaller.
    pub chunk: u64,
    /// The number of connections for reading large blobs, all blobs together.
    pub connections: usize,
    /// The size of the parts in which a large blob is read, in bytes, if it has at least four. Each
    /// connection takes that much memory.
    pub part: u64,
    /// How many bytes of a blob may be read again after a broken connection, if the registry cannot
    /// send only the rest.
    pub reread: u64,
    /// The wait before the fallback tag is first read back after writing. It is longer if the
    /// registry is slow.
    pub settle: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: Duration::from_secs(10),
            header: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            slowest: 1024,
            helper: Duration::from_secs(30),
            stale: Duration::from_secs(60),
            ecr_login: Duration::from_secs(5 * 3600),
            first_wait: Duration::from_millis(250),
            longest_wait: Duration::from_secs(300),
            tries: 8,
            patience: Some(Duration::from_secs(30)),
            local_patience: Duration::from_secs(5),
            failures: 128,
            monolithic: u64::MAX,
            chunk: 16 << 20,
            connections: 8,
            part: 8 << 20,
            reread: 256 << 20,
            settle: Duration::from_millis(50),
        }
    }
}
