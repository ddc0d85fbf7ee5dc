//! What a client is told before it speaks to any registry.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::gate::Reach;
use crate::budget::DEFAULT_LIMIT;
use crate::progress::{Progress, Silent};

/// Settings of a [`Client`](super::Client). The default is what a user without flags gets.
#[derive(Clone)]
pub struct ClientConfig {
    /// As whom registries are asked.
    pub credentials: CredentialSource,
    /// `Some(true)`: HTTP for every registry. `Some(false)`: HTTPS for every registry. `None`:
    /// HTTPS, but for registries on this machine (`localhost`, 127.0.0.0/8, `::1`), which are
    /// spoken to by HTTP; if any TLS setting below is given for them they are asked whether they
    /// speak TLS first.
    pub plain_http: Option<bool>,
    /// PEM files of certificate authorities to trust beside the system's.
    pub ca_files: Vec<PathBuf>,
    /// PEM files of a client's certificate chain and of its key, for mutual TLS. Both or neither.
    /// Registries are shown it, but not the hosts to which they redirect, and not token services
    /// elsewhere.
    pub client_cert: Option<PathBuf>,
    /// The key of `client_cert`.
    pub client_key: Option<PathBuf>,
    /// Folders with one folder for each registry (`HOST[:PORT]`) in which its authorities and its
    /// client certificate lie, as docker and podman have them. `None`: theirs.
    pub certs_d: Option<Vec<PathBuf>>,
    /// Any certificate is as good as any other.
    pub insecure_skip_tls_verify: bool,
    /// Where the client may go: registries, token services, and where these send it.
    pub reach: Reach,
    /// How long to wait, and how often to try again.
    pub limits: Limits,
    /// Bytes of memory for each [`Repository`](super::Repository) that the client hands out, and so for each image.
    pub max_memory: u64,
    /// Takes the warnings of registries.
    pub progress: Arc<dyn Progress>,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            credentials: CredentialSource::Ambient,
            plain_http: None,
            ca_files: Vec::new(),
            client_cert: None,
            client_key: None,
            certs_d: None,
            insecure_skip_tls_verify: false,
            reach: Reach::default(),
            limits: Limits::default(),
            max_memory: DEFAULT_LIMIT,
            progress: Arc::new(Silent),
        }
    }
}

/// Where credentials come from. They are looked up when a registry first asks for them.
#[derive(Clone, Default)]
pub enum CredentialSource {
    /// Nowhere: what the registry gives to everyone.
    Anonymous,
    /// These, for this registry (as it is named to the client); the others are asked as anyone.
    Only {
        /// `HOST` or `HOST:PORT`.
        registry: String,
        /// The user, or what the registry takes for one.
        user: String,
        /// The password, or a token in its place.
        password: String,
    },
    /// What docker and podman were told by `login`: `$DOCKER_CONFIG/config.json` or `~/.docker/config.json` with its
    /// `credHelpers`, `credsStore` and `auths`; then `$REGISTRY_AUTH_FILE`, `$XDG_RUNTIME_DIR/containers/auth.json` and
    /// `$XDG_CONFIG_HOME/containers/auth.json` (`~/.config`).
    #[default]
    Ambient,
}

/// Says which, and no secret.
impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CredentialSource::Anonymous => "Anonymous",
            CredentialSource::Only { .. } => "Only",
            CredentialSource::Ambient => "Ambient",
        })
    }
}

/// How long to wait for what, and how often to try again.
#[derive(Debug, Clone)]
pub struct Limits {
    /// To a connection, TLS included.
    pub connect: Duration,
    /// From the end of a request to the header of its answer.
    pub header: Duration,
    /// Between two pieces of a body, either way.
    pub idle: Duration,
    /// Bytes a second that a download must bring, measured over spans of `idle`.
    pub slowest: u64,
    /// To the answer of a credential helper.
    pub helper: Duration,
    /// Before the second try; each further wait doubles, up to 30 s, give or take the half.
    pub first_wait: Duration,
    /// All waits before new tries of one request together, unless `patience` is longer; a registry
    /// that asks for more is not waited for.
    pub longest_wait: Duration,
    /// Tries of one request that the registry answers with failures, or does not answer at all, at least.
    pub tries: u32,
    /// For how long a registry is tried again that cannot be connected to, or that fails otherwise
    /// and was tried often enough. `None`: until the caller does not want it any more.
    pub patience: Option<Duration>,
    /// Failures that a client may meet beyond its successes, over all requests, before it stops to try again.
    pub failures: u32,
    /// Content of more bytes than this is uploaded in chunks, the last but one of `chunk` bytes each.
    pub monolithic: u64,
    /// Bytes of a chunk, unless the registry asks for larger ones.
    pub chunk: u64,
    /// Connections over which large blobs are read, all of them together.
    pub connections: usize,
    /// Bytes of the parts in which a large blob is read, if there are at least four. Each
    /// connection takes as much memory.
    pub part: u64,
    /// Bytes of a blob that may be read again, when it broke off and the registry cannot send the rest alone.
    pub reread: u64,
    /// Before the fallback tag is read back for the first time after it was written; it is longer
    /// where the registry is slow.
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
            first_wait: Duration::from_millis(250),
            longest_wait: Duration::from_secs(300),
            tries: 8,
            patience: Some(Duration::from_secs(30)),
            failures: 128,
            monolithic: 64 << 20,
            chunk: 16 << 20,
            connections: 8,
            part: 8 << 20,
            reread: 256 << 20,
            settle: Duration::from_millis(50),
        }
    }
}
