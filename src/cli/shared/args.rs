//! The options that several commands share, with their environment variables and help.
//!
//! Nothing is resolved here; the commands convert the values for the library.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::error::CliError;
use super::parse::{self, PlainHttp};
use super::size::ByteSize;
use super::trust::TrustArgs;
use ociseek_format::budget::DEFAULT_LIMIT;
use ociseek_format::digest::Digest;
use ociseek_format::image::{NotIndexed, Platform};
use ociseek_format::layer::parallel::cores;
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::Progress;
use ociseek_ops::discover::index_starting_with;
use ociseek_ops::resolve::PlatformChoice;
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::registry::{CredentialProviders, LoginOfPull, ProviderConfigError, SharedLink};

/// Which platforms of an image.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlatformsArgs {
    /// Only this platform, such as linux/arm64 or linux/arm/v7; can be repeated [default: all
    /// platforms of the image]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    pub platform: Vec<Platform>,
}

/// Which one of an image's platforms.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlatformArgs {
    /// The platform, such as linux/arm64 [default: this machine's, or the only one]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_parser = parse::one_platform)]
    pub platform: Option<Platform>,
}

/// Options for the view of an image's files.
#[derive(Debug, Clone, Args)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pub platform: PlatformArgs,

    /// Read through this index: its digest, listed or not, or at least its first six digits
    /// [default: the first usable one]
    #[arg(long, value_name = "DIGEST", hide_short_help = true)]
    pub index: Option<IndexName>,

    #[command(flatten)]
    pub trust: TrustArgs,
}

/// An index of an image, as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IndexName {
    Digest(Digest),
    /// The first digits of its digest.
    Start(String),
}

impl FromStr for IndexName {
    type Err = String;

    fn from_str(text: &str) -> Result<IndexName, String> {
        match text.parse() {
            Ok(digest) => Ok(IndexName::Digest(digest)),
            Err(_) => {
                let start = parse::start_of_digest(text)?;
                Ok(IndexName::Start(start.strip_prefix("sha256:").unwrap_or(&start).to_owned()))
            }
        }
    }
}

impl IndexName {
    /// The digest of the index. Only the first digits of one have to be looked up in the image.
    pub(crate) async fn digest(
        &self,
        source: &Source,
        root: &Target,
        wanted: PlatformChoice<'_>,
        progress: &Arc<dyn Progress>,
    ) -> Result<Digest, CliError> {
        Ok(match self {
            IndexName::Digest(digest) => *digest,
            IndexName::Start(start) => {
                index_starting_with(start, source, root, wanted, progress).await?
            }
        })
    }
}

impl ViewArgs {
    /// The digest of the index that the user named, if any.
    pub(crate) async fn index(
        &self,
        source: &Source,
        root: &Target,
        progress: &Arc<dyn Progress>,
    ) -> Result<Option<Digest>, CliError> {
        let Some(index) = &self.index else { return Ok(None) };
        let wanted = match &self.platform.platform {
            Some(platform) => PlatformChoice::each_or_all(std::slice::from_ref(platform)),
            None => PlatformChoice::Host,
        };
        Ok(Some(index.digest(source, root, wanted, progress).await?))
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MinLayerArgs {
    /// Leave out layers with smaller blobs; 0 indexes all layers
    ///
    /// Small layers are faster to pull whole than to mount.
    #[arg(long, value_name = "SIZE", env = "OCISEEK_MIN_LAYER_SIZE")]
    #[arg(default_value_t = ByteSize(NotIndexed::MIN_LAYER_SIZE))]
    pub min_layer_size: ByteSize,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct LayerJobsArgs {
    /// How many layers to read in parallel [default: one per CPU]
    #[arg(hide_short_help = true)]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", value_parser = parse::number::<u16>(1, 256))]
    #[arg(allow_negative_numbers = true)]
    pub jobs: Option<u16>,
}

impl LayerJobsArgs {
    pub(crate) fn count(&self) -> usize {
        self.jobs.map_or_else(cores, usize::from)
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ImageJobsArgs {
    /// How many images to read in parallel
    #[arg(hide_short_help = true)]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", default_value_t = 8)]
    #[arg(value_parser = parse::number::<u16>(1, 256), allow_negative_numbers = true)]
    pub jobs: u16,
}

#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct FormatArgs {
    /// Output format on standard output
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,

    /// Print JSON (docs/json.md); the same as --format json
    #[arg(long)]
    json: bool,
}

impl FormatArgs {
    pub(crate) fn get(self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.format }
    }

    pub(crate) fn is_json(self) -> bool {
        self.get() == OutputFormat::Json
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Text,
    Json,
}

/// What shapes a ztoc's bytes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Indexing")]
pub(crate) struct BuildArgs {
    /// Span size: uncompressed bytes between two points where decompression can start; suffixes
    /// KiB, MiB, GiB, KB, MB, GB
    ///
    /// With smaller spans, a runtime fetches less for a small file, but the ztoc is larger: 32 KiB
    /// more for each span. A span of a gzip layer ends where a deflate block ends, so it is never
    /// smaller than a block, often a few tens of KiB.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "SIZE", env = "OCISEEK_SPAN_SIZE", default_value = "4MiB")]
    #[arg(value_parser = parse::span_size)]
    pub span_size: SpanSize,

    /// The tool name recorded in each ztoc and in the index
    ///
    /// With 'AWS SOCI CLI v0.2' and equal sizes, the digests match those of the soci tool.
    #[arg(long, value_name = "TEXT", env = "OCISEEK_BUILD_TOOL_IDENTIFIER", hide = true)]
    #[arg(default_value = ociseek_ops::TOOL_IDENTIFIER, value_parser = parse::tool_identifier)]
    pub build_tool_identifier: String,
}

/// Where all caches are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub(crate) struct CacheDirArgs {
    /// Cache directory for ztocs, so that no layer is read twice [default: $XDG_CACHE_HOME/ociseek
    /// or ~/.cache/ociseek]
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "DIR", env = "OCISEEK_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub dir: CacheDirArgs,

    /// Maximum size of the ztoc cache; the least recently used entries are removed first. 0
    /// disables it
    #[arg(
        long,
        value_name = "SIZE",
        env = "OCISEEK_ZTOC_CACHE_SIZE",
        default_value = "1GiB",
        hide = true
    )]
    pub ztoc_cache_size: ByteSize,

    /// Do not read or write the cache
    #[arg(hide_short_help = true)]
    #[arg(long, env = "OCISEEK_NO_CACHE", value_parser = parse::switch)]
    pub no_cache: bool,
}

/// The default size of the cache for layer content.
pub(crate) const CACHE_SIZE: &str = "4GiB";

/// What was read is kept for the next reader.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub(crate) struct ReadCacheArgs {
    #[command(flatten)]
    pub cache: CacheArgs,

    /// Maximum size of the cache for layer content; suffixes KiB, MiB, GiB, KB, MB, GB
    ///
    /// Content that nobody asked for takes at most four fifths of this per layer, and at most 64
    /// MiB plus 64 times the size of the layer's blob. A zstd layer that decodes to more is fetched
    /// again from its start when a read misses the cache.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "SIZE", env = "OCISEEK_CACHE_SIZE", default_value = CACHE_SIZE)]
    pub cache_size: ByteSize,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct RegistryArgs {
    /// Use these credentials instead of those from docker or podman login; for one registry only
    ///
    /// With HOST= in front, only for the registry HOST, which the servers of a node need. If
    /// another command names several registries, use docker login. Other users of this machine can
    /// see command lines: prefer the environment variable, or --password-stdin with --creds USER.
    #[arg(long, value_name = "USER:PASSWORD", env = "OCISEEK_CREDS", hide_env_values = true)]
    pub creds: Option<String>,

    /// Read the password of --creds USER from standard input
    #[arg(long, env = "OCISEEK_PASSWORD_STDIN", value_parser = parse::switch, requires = "creds")]
    #[arg(hide = true)]
    pub password_stdin: bool,

    /// Use HTTP instead of HTTPS; --plain-http=false always uses HTTPS [default: HTTP only for a
    /// registry on this machine]
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "BOOL", env = "OCISEEK_PLAIN_HTTP", value_parser = parse::plain_http)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub plain_http: Option<PlainHttp>,

    /// Also trust the certificates in this PEM file: authorities, or a registry's own; can be
    /// repeated
    ///
    /// The system's authorities ($SSL_CERT_FILE, $SSL_CERT_DIR) are always trusted, as are those
    /// for each registry in certs.d/HOST[:PORT]/*.crt under ~/.config/containers, ~/.config/docker,
    /// ~/.docker, /etc/containers and /etc/docker.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "FILE", env = "OCISEEK_CA_FILE")]
    pub ca_file: Vec<PathBuf>,

    /// Client certificate (PEM), for one registry only [default: certs.d/HOST[:PORT]/*.cert]
    ///
    /// It is sent only to the registry itself, not to hosts it redirects to. With HOST= in front,
    /// only to the registry HOST, which the servers of a node need.
    #[arg(
        long,
        value_name = "FILE",
        env = "OCISEEK_CLIENT_CERT",
        requires = "client_key",
        hide = true
    )]
    pub client_cert: Option<PathBuf>,

    /// Private key of --client-cert (PEM)
    #[arg(
        long,
        value_name = "FILE",
        env = "OCISEEK_CLIENT_KEY",
        requires = "client_cert",
        hide = true
    )]
    pub client_key: Option<PathBuf>,

    /// Skip TLS verification (insecure: allows man-in-the-middle attacks)
    #[arg(hide_short_help = true)]
    #[arg(long, env = "OCISEEK_INSECURE_SKIP_TLS_VERIFY", value_parser = parse::switch)]
    pub insecure_skip_tls_verify: bool,

    /// The same in skopeo and podman, the other way round.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(hide = true)]
    pub tls_verify: Option<bool>,

    /// As in skopeo and podman: instead of all other places.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "creds")]
    pub authfile: Option<PathBuf>,

    /// How long to retry while the registry cannot be reached, such as 30s or 5m
    ///
    /// 30s by default, and 5s if nothing listens on the port of this machine. Transient errors such
    /// as 503 are also retried for this long, and at least 7 times. A host name that cannot be
    /// resolved fails sooner, unless it has been resolved before. Reads through a mount are retried
    /// until --deadline.
    #[arg(long, value_name = "DURATION", env = "OCISEEK_RETRY_FOR")]
    #[arg(value_parser = parse::duration, hide = true)]
    pub retry_for: Option<Duration>,

    /// Give up on a request when the registry sends and accepts nothing for this long, and retry it
    ///
    /// An answer has to begin within 30s, even if this is longer.
    #[arg(long, value_name = "DURATION", env = "OCISEEK_STALL_TIMEOUT", default_value = "60s")]
    #[arg(value_parser = parse::duration, hide = true)]
    pub stall_timeout: Duration,

    /// Read large layers over up to this many connections, all of them together
    ///
    /// Registries often limit what one connection gets. Layers of 32 MiB or more are fetched in
    /// parts of 8 MiB in parallel; each connection takes that much memory.
    #[arg(long, value_name = "N", env = "OCISEEK_CONNECTIONS", default_value = "8")]
    #[arg(value_parser = parse::number::<u16>(1, 64), hide = true)]
    pub connections: u16,

    #[command(flatten)]
    pub memory: MemoryArgs,

    /// Those of [`NodeLoginArgs`].
    #[arg(skip)]
    pub providers: Option<CredentialProviders>,

    /// The login of a pull, which comes before all others.
    #[arg(skip)]
    pub pull: Option<LoginOfPull>,

    /// As [`NodeLoginArgs`] has it.
    #[arg(skip)]
    pub hosts_dir: Option<PathBuf>,

    /// What all clients of this process share.
    #[arg(skip)]
    pub link: Option<Arc<SharedLink>>,
}

/// The logins of a Kubernetes node.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logins of a Kubernetes node")]
pub(crate) struct NodeLoginArgs {
    /// Kubelet's file or folder of credential providers, which are asked if no login is stored
    ///
    /// As kubelet's option of the same name: programs that get a login for the registries of the
    /// node's cloud. Providers that want the service account of a pod are asked without one.
    #[arg(
        long,
        value_name = "PATH",
        env = "OCISEEK_IMAGE_CREDENTIAL_PROVIDER_CONFIG",
        hide_short_help = true
    )]
    #[arg(requires = "image_credential_provider_bin_dir", conflicts_with_all = ["creds", "authfile"])]
    pub image_credential_provider_config: Option<PathBuf>,

    /// The folder of the programs that --image-credential-provider-config names
    #[arg(
        long,
        value_name = "DIR",
        env = "OCISEEK_IMAGE_CREDENTIAL_PROVIDER_BIN_DIR",
        hide_short_help = true
    )]
    #[arg(requires = "image_credential_provider_config")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,

    /// Containerd's folder with a hosts.toml for each registry: mirrors, which are asked first, and
    /// certificates
    ///
    /// Usually /etc/containerd/certs.d. May be several with colons in between, as in containerd's
    /// config_path. Logins are never sent to another host than their own.
    #[arg(
        long,
        value_name = "DIR",
        env = "OCISEEK_HOSTS_DIR",
        hide_short_help = true,
        help_heading = "Registry"
    )]
    pub hosts_dir: Option<PathBuf>,
}

impl NodeLoginArgs {
    pub(crate) fn providers(&self) -> Result<Option<CredentialProviders>, ProviderConfigError> {
        let config = self.image_credential_provider_config.as_ref();
        let opened = config.zip(self.image_credential_provider_bin_dir.as_ref());
        opened.map(|(config, programs)| CredentialProviders::open(config, programs)).transpose()
    }
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct MemoryArgs {
    /// Give up on an image that needs more memory than this
    ///
    /// The limit covers what grows with the image: manifests, SOCI indexes, ztocs and file lists.
    /// The program and its buffers need another 50 to 100 MiB. An image with millions of files
    /// needs more than the default.
    #[arg(long, value_name = "SIZE", env = "OCISEEK_MAX_MEMORY", default_value_t = ByteSize(DEFAULT_LIMIT))]
    #[arg(hide_short_help = true)]
    pub max_memory: ByteSize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExistingArg {
    /// Keep an index with the same options and ociseek version; replace older ones by ociseek, and
    /// leave other tools' indexes in place
    Skip,
    /// Rebuild, replacing every existing SOCI v1 index, even those of other tools
    Replace,
    /// Keep any existing SOCI v1 index, and add none
    Keep,
}
