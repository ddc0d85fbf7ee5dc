//! What can be typed: the options, their environment variables, and the help that teaches them.
//!
//! Nothing is resolved here; [`super::index`] and [`super::ztoc`] turn what was typed into what the library takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub use super::args_backfill::BackfillArgs;
use super::args_convert::ConvertArgs;
#[cfg(feature = "nats")]
pub use super::args_hook::HookWorkerArgs;
pub use super::args_hook::{HookCommand, HookServeArgs};
pub use super::args_lifecycle::{CacheCommand, CopyArgs, DiffArgs, ListArgs, PruneArgs, RmArgs};
pub use super::args_mount::{
    BundleArgs, ContainerArgs, LazyArgs, MountArgs, NetArg, ServeArgs, TraceArgs, TraceFormat,
};
pub use super::args_prefetch::PrefetchArgs;
pub use super::args_read::{CatArgs, InspectArgs, LsArgs, ReadArgs, ReadCacheArgs, VerifyArgs};
use super::args_reuse::ReuseArgs;
use super::args_versions::VersionsArgs;
pub use super::doctor_args::DoctorArgs;
use super::size::ByteSize;
use super::ztoc_args::{ZtocExtractArgs, ZtocVerifyArgs};
use crate::budget::DEFAULT_LIMIT;
use crate::image::{ImageName, Platform};
use crate::ops::coverage::Share;

const ABOUT: &str = "Makes the layers of existing container images seekable";

const LONG_ABOUT: &str = "\
Makes the layers of existing container images seekable, so that containers start before their image is pulled.

ociseek reads each layer of an image once, writes down where decompression can start and where each file lies (a ztoc), \
and attaches the result to the image as a SOCI index, an OCI referrer. The image itself is never changed: its tags, \
manifests and layers keep their digests.";

const AFTER_HELP: &str = "\
Exit status: 0 done, 1 failed, 2 wrong usage, 3 verification found differences, or doctor no consumer, 129, 130 or 143 ended by a hangup, an \
interrupt, a termination.

Start here: ociseek index --help";

#[derive(Debug, Parser)]
#[command(name = "ociseek", version, about = ABOUT, long_about = LONG_ABOUT, after_help = AFTER_HELP)]
#[command(max_term_width = 100, propagate_version = true, disable_help_subcommand = true)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Index(Box<IndexArgs>),
    Convert(Box<ConvertArgs>),
    Inspect(Box<InspectArgs>),
    Ls(Box<LsArgs>),
    Cat(Box<CatArgs>),
    Verify(Box<VerifyArgs>),
    Mount(Box<MountArgs>),
    Bundle(Box<BundleArgs>),
    Trace(Box<TraceArgs>),
    Doctor(Box<DoctorArgs>),
    List(Box<ListArgs>),
    Copy(Box<CopyArgs>),
    Rm(Box<RmArgs>),
    Prune(Box<PruneArgs>),
    Diff(Box<DiffArgs>),
    #[command(subcommand)]
    Hook(HookCommand),
    Backfill(Box<BackfillArgs>),
    #[command(subcommand)]
    Ztoc(ZtocCommand),
    #[command(subcommand)]
    Cache(CacheCommand),
    Completions(CompletionsArgs),
    Man(ManArgs),
    Version(VersionArgs),
}

const INDEX_LONG_ABOUT: &str = "\
Builds the SOCI index of each IMAGE and attaches it.

Each layer is read once, as a stream: nothing is unpacked and no temporary disk is used. Layers that cannot be served \
lazily (too small, zstd, sparse files, ...) are left out with the reason, and consumers pull those whole. A layer that is \
broken (wrong digest, wrong checksum, cut) is an error: then nothing is pushed for that image.

IMAGE is one of

  [REGISTRY/]REPOSITORY[:TAG][@DIGEST]
    an image in a registry, named as for docker pull; the index is pushed there
    (a registry on this machine, such as localhost:5000, is spoken to by plain HTTP)
  oci:DIR[:TAG|@DIGEST]
    an OCI image layout; the index is written into it
  oci-archive:FILE[:TAG]
    a tar of a layout, as docker save (25 or newer) and BuildKit (type=oci) write it; it is read in
    place, so say where the index goes: --output or --dry-run

Several IMAGEs are done one after the other; if one fails the others are still done, and the exit status is 1.";

const INDEX_AFTER_HELP: &str = "\
Credentials come from docker's config.json ($DOCKER_CONFIG or ~/.docker), its credential helpers, or podman's auth.json: \
after docker login, nothing is left to say.

Examples:
  Index an image where it is, all platforms:
    ociseek index ghcr.io/acme/app:1.4

  See what would come of it, write nothing:
    ociseek index --dry-run python:3.13

  One platform, every layer however small, a local registry:
    ociseek index --platform linux/arm64 --min-layer-size 0 localhost:5000/app

  A layout on disk, no registry:
    skopeo copy docker://python:3.13 oci:python:3.13
    ociseek index oci:python:3.13

  What docker save wrote; the index goes into a layout of its own:
    docker save app:1.4 -o app.tar
    ociseek index --output oci:app-index oci-archive:app.tar

  Both versions, the SOCI-enabled image as app:1.4-soci:
    ociseek index --v2 '{tag}-soci' ghcr.io/acme/app:1.4

  In CI, for programs:
    ociseek index --format json --progress none $IMAGE | jq -r '.images[].manifests[].index.digest'

  As a gate, by the digest that was pushed, with a table on the job's page:
    ociseek index --strict --min-coverage 80% --step-summary $GITHUB_STEP_SUMMARY $IMAGE@$DIGEST

Who reads the index: soci-snapshotter, with `[pull_modes.soci_v1] enable = true` or when it is given the index digest. With its \
default settings it reads the SOCI-enabled image (--v2).

JSON: one document, {\"images\": [{\"image\", \"status\", \"manifests\": [{\"platform\", \"status\", \"index\", \"layers\": [...]}], \
\"enabled\", \"error\"}]}. Fields are only ever added. The documentation of the crate, module cli::json, says what each one means.

Exit status: 0 done (also when layers are left out), 1 an image failed or falls short of what was asked of it, \
2 wrong usage, 129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Build the SOCI index of images and attach it
#[derive(Debug, Args)]
#[command(long_about = INDEX_LONG_ABOUT, after_long_help = INDEX_AFTER_HELP)]
#[command(after_help = "Examples and what an IMAGE can be: ociseek index --help")]
pub struct IndexArgs {
    /// The images to index
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<ImageName>,

    /// Only this platform, such as linux/arm64 or linux/arm/v7; may be repeated [default: all platforms of the image]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    #[arg(help_heading = "What is indexed")]
    pub platform: Vec<Platform>,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub prefetch: PrefetchArgs,

    /// Leave out layers whose blobs are smaller; 0 indexes all
    ///
    /// A small layer is pulled whole faster than it is mounted.
    #[arg(long, value_name = "SIZE", env = "OCISEEK_MIN_LAYER_SIZE", default_value = "10MiB")]
    #[arg(help_heading = "What is indexed")]
    pub min_layer_size: ByteSize,

    #[command(flatten)]
    pub reuse: ReuseArgs,

    /// What to do when the image has a SOCI index already
    #[arg(long, value_name = "RULE", env = "OCISEEK_EXISTING", value_enum, default_value_t = ExistingArg::Skip)]
    #[arg(help_heading = "What is indexed")]
    pub existing: ExistingArg,

    /// How many layers are read side by side [default: one for each CPU]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", value_parser = clap::value_parser!(u16).range(1..=256))]
    #[arg(help_heading = "What is indexed")]
    pub jobs: Option<u16>,

    #[command(flatten)]
    pub versions: VersionsArgs,

    /// Stop reading layers after this time, such as 10m or 90s, and attach what is done by then
    ///
    /// It counts for all IMAGEs together; attaching comes on top. Consumers pull the layers that are left whole. Another run goes
    /// on where this one stopped: what is attached is not read again. A layer that is not read to
    /// its end in one run has to be read from its start by the next, so that a layer which needs
    /// more time than this is never done: then the report says so, and only a longer --timeout
    /// helps. Time that was up is no failure; the JSON has what is left.
    #[arg(long, value_name = "DURATION", env = "OCISEEK_TIMEOUT", value_parser = super::parse::duration)]
    #[arg(help_heading = "What is indexed")]
    pub timeout: Option<Duration>,

    /// Fail if a layer is left out for another reason than its size
    ///
    /// Then nothing is attached to the image, on none of its platforms, and each such layer is named: zstd, foreign,
    /// encrypted, sparse files, PAX global headers, and whatever else a consumer could not serve. Where an index is there
    /// already, it is that one's layers that count.
    #[arg(long, env = "OCISEEK_STRICT", value_parser = FalseyValueParser::new(), help_heading = "What must be reached")]
    pub strict: bool,

    /// Fail if the index covers less of the image: a share of the compressed bytes of its layers, such as 80%
    ///
    /// Then nothing is attached to the image, on none of its platforms. Each platform must reach it. Layers below
    /// --min-layer-size do not count, so that an image of small layers only passes. Layers that
    /// cannot be served count as not covered; to fail for any of them, see --strict.
    #[arg(long, value_name = "PERCENT", env = "OCISEEK_MIN_COVERAGE", value_parser = super::parse::share)]
    #[arg(help_heading = "What must be reached")]
    pub min_coverage: Option<Share>,

    /// Write the index into an OCI layout, oci:DIR, rather than to where the image is
    ///
    /// The layout is made if it is not there. It holds the index and its ztocs, not the image; with
    /// --v2 also the SOCI-enabled image, with all its layers.
    #[arg(long, short, value_name = "oci:DIR", env = "OCISEEK_OUTPUT", value_parser = super::parse::layout_dir)]
    #[arg(help_heading = "Where it goes")]
    pub output: Option<PathBuf>,

    /// Build and report, but write nothing anywhere
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new(), help_heading = "Where it goes")]
    pub dry_run: bool,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    /// Append the digests, as NAME=VALUE lines, to this file: $GITHUB_OUTPUT, or a dotenv report in GitLab
    ///
    /// The names: status (ok or failed), image_digest, index_digest (the first), index_digests (all, with a comma between
    /// them), coverage (the least of all platforms, in percent), enabled_digest (of the first
    /// SOCI-enabled image). Written also when the run fails.
    #[arg(long, value_name = "FILE", env = "OCISEEK_STEP_OUTPUTS", help_heading = "In CI")]
    pub step_outputs: Option<PathBuf>,

    /// Append a table of what was done, in Markdown, to this file: $GITHUB_STEP_SUMMARY
    #[arg(long, value_name = "FILE", env = "OCISEEK_STEP_SUMMARY", help_heading = "In CI")]
    pub step_summary: Option<PathBuf>,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    #[arg(help_heading = "What is printed")]
    pub format: Format,

    /// Print nothing but index digests, and the digest of the SOCI-enabled image (and errors): no
    /// report, no progress, no warnings
    #[arg(long, short, env = "OCISEEK_QUIET", value_parser = FalseyValueParser::new())]
    #[arg(help_heading = "What is printed")]
    pub quiet: bool,

    /// Progress on standard error
    #[arg(long, value_name = "STYLE", env = "OCISEEK_PROGRESS", value_enum, default_value_t = ProgressStyle::Auto)]
    #[arg(help_heading = "What is printed")]
    pub progress: ProgressStyle,
}

/// What shapes a ztoc's bytes.
#[derive(Debug, Args)]
#[command(next_help_heading = "What is indexed")]
pub struct BuildArgs {
    /// Bytes of content between two places where decompression can start; suffixes KiB, MiB, GiB
    ///
    /// Smaller spans mean less to fetch for a small file, and a bigger ztoc: 32 KiB more for each span.
    #[arg(long, value_name = "SIZE", env = "OCISEEK_SPAN_SIZE", default_value = "4MiB")]
    #[arg(value_parser = super::parse::span_size)]
    pub span_size: ByteSize,

    /// The name that stands in each ztoc and in the index as its maker
    ///
    /// With 'AWS SOCI CLI v0.2' and equal sizes the digests are those of the soci tool.
    #[arg(long, value_name = "TEXT", env = "OCISEEK_BUILD_TOOL_IDENTIFIER")]
    #[arg(default_value = crate::ops::TOOL_IDENTIFIER, value_parser = super::parse::tool_identifier)]
    pub build_tool_identifier: String,
}

/// Where all caches are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheDirArgs {
    /// Where ztocs are kept, so that no layer is read twice [default: $XDG_CACHE_HOME/ociseek or ~/.cache/ociseek]
    #[arg(long, value_name = "DIR", env = "OCISEEK_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    #[command(flatten)]
    pub dir: CacheDirArgs,

    /// How much the ztocs in the cache may take; those that were not used for longest go first. 0 keeps none
    #[arg(long, value_name = "SIZE", env = "OCISEEK_ZTOC_CACHE_SIZE", default_value = "1GiB")]
    pub ztoc_cache_size: ByteSize,

    /// Neither read nor write the cache
    #[arg(long, env = "OCISEEK_NO_CACHE", value_parser = FalseyValueParser::new())]
    pub no_cache: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Registry")]
pub struct RegistryArgs {
    /// Log in with these instead of what docker login or podman login left; for one registry only
    ///
    /// If a command names several registries, use docker login. Other users of this machine can see
    /// a command line: prefer the environment variable, or --password-stdin with --creds USER.
    #[arg(long, value_name = "USER:PASSWORD", env = "OCISEEK_CREDS", hide_env_values = true)]
    pub creds: Option<String>,

    /// Read the password of --creds USER from standard input
    #[arg(long, env = "OCISEEK_PASSWORD_STDIN", value_parser = FalseyValueParser::new(), requires = "creds")]
    pub password_stdin: bool,

    /// Speak HTTP without TLS to the registry; --plain-http=false: always TLS [default: HTTP only
    /// to a registry on this machine]
    #[arg(long, value_name = "BOOL", env = "OCISEEK_PLAIN_HTTP", value_parser = super::parse::plain_http)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub plain_http: Option<PlainHttp>,

    /// Trust the certificates in this PEM file too: authorities, or a registry's own certificate; may be repeated
    ///
    /// Also trusted are the system's authorities ($SSL_CERT_FILE, $SSL_CERT_DIR) and, for each registry, those in
    /// certs.d/HOST[:PORT]/*.crt below ~/.config/containers, ~/.config/docker, ~/.docker,
    /// /etc/containers and /etc/docker.
    #[arg(long, value_name = "FILE", env = "OCISEEK_CA_FILE")]
    pub ca_file: Vec<PathBuf>,

    /// Identify with this client certificate (PEM) [default: certs.d/HOST[:PORT]/*.cert]; for one registry only
    ///
    /// Only the registry itself is shown it, not the hosts to which it redirects.
    #[arg(long, value_name = "FILE", env = "OCISEEK_CLIENT_CERT", requires = "client_key")]
    pub client_cert: Option<PathBuf>,

    /// The private key of --client-cert (PEM)
    #[arg(long, value_name = "FILE", env = "OCISEEK_CLIENT_KEY", requires = "client_cert")]
    pub client_key: Option<PathBuf>,

    /// Accept any TLS certificate: whoever is in between can then read and change everything
    #[arg(long, env = "OCISEEK_INSECURE_SKIP_TLS_VERIFY", value_parser = FalseyValueParser::new())]
    pub insecure_skip_tls_verify: bool,

    /// How long to keep trying while the registry cannot be reached, such as 30s or 5m
    ///
    /// Errors that may pass, such as 503, are retried for this long too, and at least 7 times. A
    /// host name that cannot be resolved fails sooner, unless it could be before. Reads through a
    /// mount are retried until --deadline.
    #[arg(long, value_name = "DURATION", env = "OCISEEK_RETRY_FOR", default_value = "30s")]
    #[arg(value_parser = super::parse::duration)]
    pub retry_for: Duration,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Limits")]
pub struct MemoryArgs {
    /// Give up on an image that needs more memory than this
    ///
    /// What counts is what grows with the image: its manifests and SOCI indexes, its ztocs, the
    /// file lists of its layers. The program and its buffers come on top, some 50 to 100 MiB. An
    /// image of millions of files needs more than the default.
    #[arg(long, value_name = "SIZE", env = "OCISEEK_MAX_MEMORY", default_value_t = ByteSize(DEFAULT_LIMIT))]
    pub max_memory: ByteSize,
}

/// Whether registries are spoken to without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainHttp {
    Always,
    Never,
    /// Only those on this machine.
    Local,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExistingArg {
    /// Done if it is the same: same options, same ociseek version. An older one of ours is replaced, another tool's is
    /// left where it is
    Skip,
    /// Build anew and take the place of every SOCI index (v1) there is, whoever made it
    Replace,
    /// Any SOCI index (v1) that is there stays the only one
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressStyle {
    /// Bars on a terminal, else plain
    Auto,
    /// A line every few seconds
    Plain,
    /// Nothing but warnings
    None,
}

/// Build, show, prove or read through the ztoc of one layer
#[derive(Debug, Subcommand)]
pub enum ZtocCommand {
    Create(ZtocCreateArgs),
    Show(ZtocShowArgs),
    Extract(ZtocExtractArgs),
    Verify(ZtocVerifyArgs),
}

const CREATE_LONG_ABOUT: &str = "\
Builds the ztoc of one layer blob: a gzip or a plain tar, told apart by their content.

If the layer is broken, or if no consumer could serve files from its ztoc, the reason is printed, the exit status is 1, \
and nothing is written.";

const CREATE_AFTER_HELP: &str = "\
Examples:
  ociseek ztoc create layer.tar.gz --output layer.ztoc
  curl -fsSL $BLOB_URL | ociseek ztoc create - --output layer.ztoc
  ociseek ztoc create --span-size 64KiB layer.tar --output - | ociseek ztoc show -";

/// Build the ztoc of one layer blob
#[derive(Debug, Args)]
#[command(long_about = CREATE_LONG_ABOUT, after_help = CREATE_AFTER_HELP)]
pub struct ZtocCreateArgs {
    /// The layer's blob; - is standard input
    pub layer: PathBuf,

    /// Where the ztoc is written; - is standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// A ztoc that the layer has already, of other options: several cores decode faster by it. The result is the same without
    #[arg(long, value_name = "FILE")]
    pub guide: Option<PathBuf>,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

const SHOW_AFTER_HELP: &str = "\
Names and records that are not UTF-8 stay recoverable: JSON carries them in base64 under the field's name with `_b64`, and \
text shows the odd bytes as \\xNN.

Examples:
  ociseek ztoc show layer.ztoc
  ociseek ztoc show --format json layer.ztoc | jq '.entries[] | select(.size > 1000000) | .name'";

/// Print everything that is in a ztoc
#[derive(Debug, Args)]
#[command(after_help = SHOW_AFTER_HELP)]
pub struct ZtocShowArgs {
    /// The ztoc; - is standard input
    pub file: PathBuf,

    /// Text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

const COMPLETIONS_AFTER_HELP: &str = "\
Examples:
  ociseek completions bash > /etc/bash_completion.d/ociseek
  ociseek completions zsh > \"${fpath[1]}/_ociseek\"
  ociseek completions fish > ~/.config/fish/completions/ociseek.fish";

/// Print the completion script of a shell
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_AFTER_HELP)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Print the manual page, or write those of all commands
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ociseek man | man -l -\n  ociseek man --output /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Write ociseek.1, and a page for each command, into this directory
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Print version, commit, target, and whose format is written
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Print one JSON document; commit is null where the build did not know it
    #[arg(long)]
    pub json: bool,
}
