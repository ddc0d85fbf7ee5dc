//! The error of the program, and its exit codes.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use super::signals::Interrupt;
use ociseek_format::budget::OverBudget;
use ociseek_format::image::{ImageName, ImageNameError, JsonError, TagError};
use ociseek_format::layer::{LayerError, UnservableReason};
use ociseek_format::tree;
use ociseek_format::ztoc::ZtocError;
use ociseek_hook::backfill::StateError;
use ociseek_hook::journal::JournalError;
use ociseek_hook::secret::SecretError;
use ociseek_hook::server::ServeError;
#[cfg(mounts)]
use ociseek_ops::bundle::BundleError;
#[cfg(mounts)]
use ociseek_ops::container::OciRuntimeError;
use ociseek_ops::convert::ConvertError;
use ociseek_ops::discover::DiscoverError;
use ociseek_ops::doctor::{DoctorError, NoIndex};
use ociseek_ops::extract::ExtractError;
use ociseek_ops::index::{IndexError, RefusedImage};
#[cfg(mounts)]
use ociseek_ops::layer_store::StoreMountError;
use ociseek_ops::obsolete::ObsoleteError;
use ociseek_ops::open::OpenImageError;
use ociseek_ops::prefetch::PathListError;
use ociseek_ops::remove::RemoveError;
use ociseek_ops::report::ReportError;
use ociseek_ops::startup_files::ProgramError;
use ociseek_ops::verify::VerifyError;
use ociseek_ops::verify::signature::TrustError;
use ociseek_ops::versions::MakeError;
use ociseek_rootfs::content::ReadError;
#[cfg(mounts)]
use ociseek_rootfs::fuse::MountError;
use ociseek_rootfs::record::RecordError;
use ociseek_store::StoreError;
use ociseek_store::registry::ProviderConfigError;

pub(crate) const DONE: u8 = 0;
pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
/// Verification found differences, or no consumer uses an index.
pub(crate) const DIFFERENT: u8 = 3;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error("{0}")]
    Usage(&'static str),
    #[error(transparent)]
    LogFilter(#[from] LogFilterError),
    #[error(
        "cannot index {0}: docker save keeps no manifest to attach an index to, and its uncompressed layers have \
         different digests from those of a pushed image, so the index would not fit that image either"
    )]
    IndexSaved(String),
    #[error(
        "{0} is not pushed: its layers are not compressed, and registries store layers as they get them"
    )]
    PushSaved(String),
    /// Some images failed. Each failure was already reported.
    #[error("{failed} of {all} images failed")]
    Images { failed: usize, all: usize },
    /// Verification found differences, which were listed.
    #[error("verification found differences")]
    Differs,
    /// Nothing starts the image lazily. The reasons were listed.
    #[error("no runtime starts the image lazily")]
    Unused,
    /// The numbers were printed.
    #[cfg(mounts)]
    #[error("the service does not run, or the server of a mount does not answer")]
    NotServing,
    #[error("interrupted")]
    Interrupted(Interrupt),
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Only an estimate was made.
    #[error("no startup was recorded, because no container could run: {why}")]
    NotRecorded { why: String },
    /// The exit status of another process, which has reported its error.
    #[error("exit status {0}")]
    Exit(u8),

    #[error(transparent)]
    Index(Box<IndexError>),
    #[error(transparent)]
    Convert(Box<ConvertError>),
    #[error("cannot name the SOCI-enabled image")]
    Tag(#[from] TagError),
    #[error(transparent)]
    Open(Box<OpenImageError>),
    #[error(transparent)]
    Path(#[from] tree::PathError),
    #[error(transparent)]
    Content(#[from] ReadError),
    #[error("is {0}, not a file")]
    NoContent(&'static str),
    #[error("the layer has no entry at or below {0}")]
    NoEntry(String),
    /// Some paths failed. Each failure was already reported.
    #[error("{failed} of {all} paths failed")]
    Paths { failed: usize, all: usize },
    #[error(transparent)]
    Verify(Box<VerifyError>),
    /// Nothing to verify.
    #[error("{source}")]
    NoIndex { image: Box<ImageName>, why: NoIndex, source: Box<dyn Error + Send + Sync> },
    /// A manifest that the image index lists is missing or damaged.
    #[error("{image} is incomplete")]
    Incomplete { image: Box<ImageName>, is_enabled: bool, source: Box<VerifyError> },
    #[error(transparent)]
    Discover(Box<DiscoverError>),
    #[error(transparent)]
    Doctor(Box<DoctorError>),
    #[error("{typed} is {what}, not an image name")]
    LocalHere { typed: String, what: &'static str, hint: String },
    #[error("{typed:?} is neither a file nor an image")]
    ImageName { typed: String, source: ImageNameError },
    #[error(transparent)]
    Obsolete(Box<ObsoleteError>),
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// Some images could not be examined. Each was listed with the reason.
    #[error("{failed} of {all} images could not be read")]
    Listed { failed: usize, all: usize },
    #[cfg(mounts)]
    #[error("{0:?} is not the root directory of a host with systemd: it has no systemctl")]
    NotAHost(PathBuf),
    #[cfg(mounts)]
    #[error("systemd does not run on the host at {0:?}: it has no /run/systemd/system")]
    NoSystemd(PathBuf),
    #[error("--creds has an empty {what}: is a variable not set?")]
    EmptyLogin { what: &'static str },
    #[error("no cache directory: $XDG_CACHE_HOME is not set, and the user has no home folder")]
    NoCacheDir,
    /// Some indexes could not be removed. Each was listed with the reason.
    #[error("{failed} of {all} indexes could not be removed")]
    NotRemoved { failed: usize, all: usize, source: StoreError },
    #[cfg(mounts)]
    #[error(transparent)]
    Mount(#[from] MountError),
    #[cfg(mounts)]
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[cfg(mounts)]
    #[error(transparent)]
    Runtime(#[from] OciRuntimeError),
    /// Not transparent, so that hints find the store's error among the sources.
    #[error("{0}")]
    Store(#[from] StoreError),

    #[cfg(mounts)]
    #[error("{}: the snapshotter cannot use it", path.display())]
    Snapshots { path: PathBuf, source: ociseek_snapshotter::SnapshotError },
    #[cfg(mounts)]
    #[error(transparent)]
    Config(#[from] crate::cli::snapshotter::ConfigFileError),

    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("{}: not a recorded startup", path.display())]
    Profile { path: PathBuf, source: RecordError },
    #[error("{}: not a prefetch list", path.display())]
    Prefetch { path: PathBuf, source: PathListError },
    #[error("{}: the policy cannot be used", path.display())]
    Policy { path: PathBuf, source: PolicyError },
    #[error("{}: not a usable key or certificate", path.display())]
    Trust { path: PathBuf, source: TrustError },
    #[error("{}: not a usable ztoc", path.display())]
    Ztoc { path: PathBuf, source: ZtocError },
    #[error("{}: not a ztoc: it is larger than {limit} bytes", path.display())]
    ZtocTooLarge { path: PathBuf, limit: u64 },
    #[error("{}: the layer is broken", path.display())]
    Layer { path: PathBuf, source: LayerError },
    #[error("{}: the layer does not fit into memory", path.display())]
    LayerMemory { path: PathBuf, source: OverBudget },
    #[error("{}: no ztoc written: no consumer could serve files from this layer", path.display())]
    Unservable { path: PathBuf, source: UnservableReason },

    #[error("{}: cannot extract", path.display())]
    Extract { path: PathBuf, source: ExtractError },

    #[error(transparent)]
    Hook(#[from] HookError),

    #[error(transparent)]
    CredentialProviders(#[from] ProviderConfigError),
    #[error("{}: cannot read", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} already exists", .0.display())]
    Exists(PathBuf),
    #[error("{}: cannot write", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot write standard output")]
    Stdout(#[source] io::Error),
    #[error("cannot read standard input")]
    Stdin(#[source] io::Error),
    #[error("cannot start")]
    Start(#[source] io::Error),
}

/// The value of `OCISEEK_LOG` if it is not a valid filter.
#[derive(Debug, thiserror::Error)]
#[error("OCISEEK_LOG: {0:?} is neither a level nor TARGET=LEVEL")]
pub(crate) struct LogFilterError(pub String);

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("{field}: {why}")]
    Value { field: &'static str, why: String },
    #[error("{0} is empty: omit it to skip the rule")]
    EmptyList(&'static str),
    #[error("it has no rules")]
    NoRule,
}

/// Boxes large errors, to keep results small.
macro_rules! boxed {
    ($($error:ident => $variant:ident),*) => {
        $(impl From<$error> for CliError {
            fn from(error: $error) -> CliError {
                CliError::$variant(Box::new(error))
            }
        })*
    };
}
boxed!(
    IndexError => Index, ConvertError => Convert, OpenImageError => Open,
    VerifyError => Verify, DiscoverError => Discover, DoctorError => Doctor,
    ObsoleteError => Obsolete
);

impl From<MakeError> for CliError {
    fn from(error: MakeError) -> CliError {
        match error {
            MakeError::Tag(error) => error.into(),
            MakeError::Index(error) => CliError::Index(error),
        }
    }
}

#[cfg(mounts)]
impl From<StoreMountError> for CliError {
    fn from(error: StoreMountError) -> CliError {
        match error {
            StoreMountError::State { dir, source } => CliError::Write { path: dir, source },
            StoreMountError::Start(source) => CliError::Start(source),
            StoreMountError::Mount(error) => error.into(),
        }
    }
}

impl CliError {
    /// The only image or path failed, and the failure was already reported.
    pub(crate) fn is_reported(&self) -> bool {
        #[cfg(mounts)]
        if matches!(self, CliError::NotServing) {
            return true;
        }
        matches!(
            self,
            CliError::Images { all: 1, .. }
                | CliError::Paths { all: 1, .. }
                | CliError::Differs
                | CliError::Unused
                | CliError::Exit(_)
        )
    }

    /// The command printed its JSON document, or can no longer print one.
    pub(crate) fn is_in_document(&self) -> bool {
        #[cfg(mounts)]
        if matches!(self, CliError::NotServing) {
            return true;
        }
        matches!(
            self,
            CliError::Images { .. }
                | CliError::Paths { .. }
                | CliError::Listed { .. }
                | CliError::NotRemoved { .. }
                | CliError::Differs
                | CliError::Unused
                | CliError::Exit(_)
                | CliError::Interrupted(_)
                | CliError::Stdout(_)
                | CliError::Hook(HookError::Backfill { .. })
        )
    }

    /// The refusal, if an index falls short of --strict or --min-coverage.
    pub(crate) fn refused(&self) -> Option<&RefusedImage> {
        let error = match self {
            CliError::Index(error) => error,
            CliError::Convert(error) => match &**error {
                ConvertError::Index(error) => error,
                _ => return None,
            },
            _ => return None,
        };
        match &**error {
            IndexError::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_)
            | CliError::LogFilter(_)
            | CliError::IndexSaved(_)
            | CliError::PushSaved(_)
            | CliError::ImageName { .. }
            | CliError::LocalHere { .. } => USAGE,
            CliError::Differs | CliError::Unused => DIFFERENT,
            #[cfg(mounts)]
            CliError::NotServing => DIFFERENT,
            CliError::Interrupted(signal) => signal.exit_code(),
            CliError::Exit(code) => *code,
            // As for a shell, docker and podman.
            CliError::Program(ProgramError::NotExecutable { .. }) => 126,
            CliError::Program(ProgramError::NotFound(_)) => 127,
            _ => FAILED,
        }
    }
}

/// Why a service or a walk through registries failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    /// Some images or lists failed. Each was reported on standard output.
    #[error("{what}")]
    Backfill { what: String, hint: Option<String> },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Queue(#[from] ociseek_hook::nats::NatsError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{}: not a usable secret file", path.display())]
    SecretFile { path: PathBuf, source: SecretError },
    #[error("the secret is not valid")]
    Secret(#[from] SecretError),
    #[error("{}: other users can {what} this secret (mode {mode:o})", path.display())]
    OpenSecret { path: PathBuf, mode: u32, what: &'static str },
    #[error(transparent)]
    State(#[from] StateError),
    #[error("not running as an AWS Lambda function: AWS_LAMBDA_RUNTIME_API is not set")]
    NotInLambda,
    #[error(transparent)]
    LambdaRuntime(#[from] ociseek_hook::lambda::RuntimeApiError),
    #[error(transparent)]
    Ecr(#[from] ociseek_hook::aws::EcrError),
}
