//! The single place that converts errors to text, hints and exit codes. The library does not know
//! options; hints name them.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use super::causes::causes;
use super::json::Failure;
use super::layers::text::shortfalls;
use super::policy::PolicyError;
use super::quote::quoted;
use super::registry_hint::registry_hint;
use super::signals::Interrupt;
use super::talk::LogFilterError;
use super::terminal::{Style, complain, safe};
use crate::budget::OverBudget;
#[cfg(feature = "hook")]
use crate::cli::hook::error::HookError;
#[cfg(mounts)]
use crate::cli::lazy::error::LazyError;
use crate::image::{ImageNameError, TagError};
use crate::layer::{LayerError, Unservable};
use crate::ops::convert::{ConvertError, are_small};
use crate::ops::copy::CopyError;
use crate::ops::diff::DiffError;
use crate::ops::discover::{DiscoverError, Unusable};
use crate::ops::doctor::DoctorError;
use crate::ops::extract::ExtractError;
use crate::ops::index::{IndexError, Refused, RefusedManifest};
use crate::ops::inspect::ZtocFailure;
use crate::ops::open::OpenImageError;
use crate::ops::prefetch::PathListError;
use crate::ops::prune::PruneError;
use crate::ops::remove::RemoveError;
use crate::ops::report::ReportError;
use crate::ops::resolve::ResolveError;
use crate::ops::verify::VerifyError;
use crate::ops::verify::signature::TrustError;
use crate::ops::versions::MakeError;
use crate::rootfs::content::ReadError;
use crate::rootfs::layers;
use crate::rootfs::record::RecordError;
use crate::store::StoreError;
use crate::store::layout::LayoutError;
use crate::store::registry::RegistryError;
use crate::tree;
use crate::ztoc::ZtocError;

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
    #[error("{0} is not pushed: its layers are not compressed, and registries store layers as they get them")]
    PushSaved(String),
    /// Some images failed. Each failure was already reported.
    #[error("{failed} of {all} images failed")]
    Images { failed: usize, all: usize },
    /// Verification found differences, which were listed.
    #[error("verification found differences")]
    Differs,
    /// No consumer uses an index of the image. The reasons were listed.
    #[error("no consumer uses an index of the image")]
    Unused,
    #[error("interrupted")]
    Interrupted(Interrupt),
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
    #[error(transparent)]
    Discover(Box<DiscoverError>),
    #[error(transparent)]
    Doctor(Box<DoctorError>),
    #[error(transparent)]
    Copy(Box<CopyError>),
    #[error(transparent)]
    Diff(Box<DiffError>),
    #[error("{0} is a file, not an image name")]
    ArchiveHere(String),
    #[error("{typed:?} is neither a file nor an image")]
    ImageName { typed: String, source: ImageNameError },
    #[error(transparent)]
    Prune(Box<PruneError>),
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// Some images could not be examined. Each was listed with the reason.
    #[error("{failed} of {all} images could not be read")]
    Listed { failed: usize, all: usize },
    #[error("no cache directory: neither $XDG_CACHE_HOME nor $HOME is set")]
    NoCacheDir,
    /// Some indexes could not be removed. Each was listed with the reason.
    #[error("{failed} of {all} indexes could not be removed")]
    NotRemoved { failed: usize, all: usize, source: StoreError },
    #[error(transparent)]
    ReadZtoc(Box<ZtocFailure>),
    #[error("{0:?} matches no ztoc of the image, or more than one")]
    NoZtoc(String),
    #[cfg(mounts)]
    #[error(transparent)]
    Lazy(#[from] LazyError),
    #[error(transparent)]
    Store(#[from] StoreError),

    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("{}: not the profile of a start", path.display())]
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
    Unservable { path: PathBuf, source: Unservable },

    #[error("{}: cannot extract", path.display())]
    Extract { path: PathBuf, source: ExtractError },

    #[cfg(feature = "hook")]
    #[error(transparent)]
    Hook(#[from] HookError),

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
    IndexError => Index, ConvertError => Convert, ZtocFailure => ReadZtoc, OpenImageError => Open,
    VerifyError => Verify, DiscoverError => Discover, DoctorError => Doctor, CopyError => Copy,
    PruneError => Prune, DiffError => Diff
);

impl From<MakeError> for CliError {
    fn from(error: MakeError) -> CliError {
        match error {
            MakeError::Tag(error) => error.into(),
            MakeError::Index(error) => CliError::Index(error),
        }
    }
}

impl CliError {
    /// The only image or path failed, and the failure was already reported.
    pub(crate) fn was_told(&self) -> bool {
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
        match self {
            CliError::Images { .. }
            | CliError::Paths { .. }
            | CliError::Listed { .. }
            | CliError::NotRemoved { .. }
            | CliError::Differs
            | CliError::Unused
            | CliError::Exit(_)
            | CliError::Interrupted(_)
            | CliError::Stdout(_) => true,
            #[cfg(feature = "hook")]
            CliError::Hook(HookError::Backfill { .. }) => true,
            _ => false,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_)
            | CliError::LogFilter(_)
            | CliError::IndexSaved(_)
            | CliError::PushSaved(_)
            | CliError::ImageName { .. }
            | CliError::ArchiveHere(_) => USAGE,
            CliError::Differs | CliError::Unused => DIFFERENT,
            CliError::Interrupted(signal) => signal.exit_code(),
            CliError::Exit(code) => *code,
            _ => FAILED,
        }
    }
}

/// Reports an error on standard error. `about` is the affected image.
pub(crate) fn tell(about: Option<&str>, error: &CliError) {
    let style = Style::stderr();
    let what = match about {
        Some(about) => format!("{}: {}", safe(about), message(error)),
        None => message(error),
    };
    complain(&format!("{} {what}", style.red("error:")));
    details(error).iter().for_each(|line| complain(&format!("  {line}")));
    if let Some(hint) = hint(error) {
        complain(&format!("{} {hint}", style.green("hint:")));
    }
}

/// The parts of an error about several things.
fn details(error: &CliError) -> Vec<String> {
    match error {
        CliError::Index(error) => match &**error {
            IndexError::Refused(refused) => shortfalls(refused),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// The error for programs.
pub(crate) fn failure(error: &CliError) -> Failure {
    Failure { message: message(error), causes: causes(error), hint: hint(error) }
}

/// All causes on one line.
fn message(error: &CliError) -> String {
    in_one_line(error)
}

/// The message of an error within other output.
pub(crate) fn in_one_line(error: &dyn Error) -> String {
    causes(error).join(": ")
}

/// What the user can do about it, if known.
fn hint(error: &CliError) -> Option<String> {
    if is_over_budget(error) {
        return Some("raise --max-memory (OCISEEK_MAX_MEMORY) if you trust the image".into());
    }
    match error {
        CliError::Usage(_) => Some("see the command's --help".into()),
        CliError::LogFilter(_) => Some(
            "levels are off, error, warn, info, debug and trace; for example: OCISEEK_LOG=ociseek=debug,rustls=trace \
             (docs/environment.md lists the targets)"
                .into(),
        ),
        CliError::IndexSaved(image) => Some(format!(
            "push the image (docker push) and index it in the registry, or convert the archive to a SOCI-enabled \
             image: ociseek convert {} oci:DIR",
            quoted(image.as_bytes())
        )),
        CliError::PushSaved(archive) => Some(format!(
            "skopeo copy {} docker://NAME compresses the layers, as docker load and docker push do; then run ociseek \
             convert on NAME, or write to a layout, oci:DIR",
            quoted(archive.as_bytes())
        )),
        CliError::ArchiveHere(file) => Some(format!("to read the file, use oci-archive:{file}")),
        CliError::Index(error) => index_hint(error),
        CliError::Convert(error) => convert_hint(error),
        CliError::Tag(TagError::NoTag(_)) => Some(
            "add the tag to the image name, REPOSITORY:TAG@DIGEST, or use {digest} (its first 12 digits) instead \
             of {tag}"
                .into(),
        ),
        CliError::Tag(_) => Some("use another tag for --v2 or --v2-only, such as {tag}-soci".into()),
        CliError::Discover(error) => discover_hint(error),
        CliError::Doctor(error) => match &**error {
            DoctorError::Discover(error) => discover_hint(error),
            DoctorError::Blob { source, .. } => store_hint(source),
        },
        CliError::ReadZtoc(error) => match &**error {
            ZtocFailure::Fetch(error) => discover_hint(error),
            ZtocFailure::Decode { .. } => None,
        },
        CliError::Open(error) => open_hint(error),
        CliError::Copy(error) => copy_hint(error),
        CliError::Diff(error) => match &**error {
            DiffError::Discover(error) => discover_hint(error),
            DiffError::NoIndex(_) => Some("create one with ociseek index".into()),
            DiffError::Ztoc { .. } => None,
        },
        CliError::Prune(error) => match &**error {
            PruneError::Tags(error) => registry_hint(error),
            _ => None,
        },
        CliError::Remove(error) => remove_hint(error),
        CliError::NoCacheDir => Some("set one with --cache-dir DIR".into()),
        CliError::NotRemoved { source, .. } => delete_hint(source),
        CliError::Verify(error) => verify_hint(error),
        CliError::NoZtoc(_) => Some("ociseek inspect without --ztoc lists the ztocs".into()),
        #[cfg(mounts)]
        CliError::Lazy(error) => error.hint(),
        #[cfg(feature = "hook")]
        CliError::Hook(error) => error.hint(),
        CliError::Store(error) => store_hint(error),
        CliError::Exists(_) => Some("use --force to replace it".into()),
        CliError::Extract { source: ExtractError::Exists { .. }, .. } => {
            Some("use --force to replace existing files, or an empty directory for --output".into())
        }
        CliError::Profile { .. } => {
            Some("ociseek trace IMAGE > FILE records one, and so does ociseek mount --record".into())
        }
        CliError::Unservable { .. } => Some("ociseek index leaves out such layers and indexes the others".into()),
        _ => None,
    }
}

/// Whether the memory limit for an image was exceeded.
fn is_over_budget(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let of_store = |error: &StoreError| {
            matches!(error, StoreError::Memory(_) | StoreError::Registry(RegistryError::Memory(_)))
        };
        if cause.is::<OverBudget>() || cause.downcast_ref::<StoreError>().is_some_and(of_store) {
            return true;
        }
        next = cause.source();
    }
    false
}

pub(crate) fn index_hint(error: &IndexError) -> Option<String> {
    match error {
        IndexError::Resolve(ResolveError::NoPlatform { .. }) => {
            Some("omit --platform to index all platforms of the image".into())
        }
        IndexError::BrokenLayer { .. } => Some(
            "nothing was pushed for this image; if the image can be pulled, the layer was damaged in transit: try again"
                .into(),
        ),
        IndexError::Refused(refused) => refused_hint(refused),
        IndexError::Resolve(error) => resolve_hint(error),
        IndexError::Document { source, .. }
        | IndexError::Referrers { source, .. }
        | IndexError::ReadLayer { source, .. }
        | IndexError::Push { source, .. }
        | IndexError::Attach { source, .. } => store_hint(source),
        _ => None,
    }
}

pub(crate) fn convert_hint(error: &ConvertError) -> Option<String> {
    match error {
        ConvertError::Index(error) => index_hint(error),
        ConvertError::NoPlatform { .. } => Some("omit --platform to index all platforms of the image".into()),
        ConvertError::NothingToIndex { layers } if are_small(layers) => {
            Some("all layers are small and faster to pull whole; --min-layer-size 0 indexes them anyway".into())
        }
        ConvertError::SourceTag { .. } => {
            Some("use another tag, or --replace-tag, which leaves the original reachable only by its digest".into())
        }
        error => error.store().and_then(store_hint),
    }
}

/// An existing index is checked as it is.
fn refused_hint(refused: &Refused) -> Option<String> {
    let stays = |m: &RefusedManifest| m.stays.is_some() && !m.shortfalls.is_empty();
    refused.manifests.iter().any(stays).then(|| "--existing replace rebuilds the existing index".into())
}

fn open_hint(error: &OpenImageError) -> Option<String> {
    match error {
        OpenImageError::Discover(error) => discover_hint(error),
        OpenImageError::Config { source, .. } | OpenImageError::Layer(layers::OpenError::Read { source, .. }) => {
            store_hint(source)
        }
        OpenImageError::Tree(_) => Some("ociseek ls --layer N lists the files of one layer".into()),
        _ => None,
    }
}

fn copy_hint(error: &CopyError) -> Option<String> {
    match error {
        CopyError::Find(source)
        | CopyError::Read { source, .. }
        | CopyError::Referrers { source, .. }
        | CopyError::Blob { source, .. }
        | CopyError::Push { source, .. }
        | CopyError::Tag { source, .. } => store_hint(source),
        CopyError::Json { .. } | CopyError::Schema1(_) | CopyError::Size { .. } | CopyError::TooMany => None,
    }
}

fn remove_hint(error: &RemoveError) -> Option<String> {
    match error {
        RemoveError::Resolve(error) => resolve_hint(error),
        RemoveError::List { source, .. } | RemoveError::Read { source, .. } | RemoveError::Unlist { source, .. } => {
            store_hint(source)
        }
        RemoveError::Version2(_) => None,
    }
}

/// Many registries do not delete manifests unless they are configured to.
fn delete_hint(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Registry(error) if matches!(error.status(), Some(405 | 501)) => Some(format!(
            "{} does not allow deleting manifests: enable it (distribution: REGISTRY_STORAGE_DELETE_ENABLED=true), \
             or use the registry's own tool",
            error.host().unwrap_or("the registry")
        )),
        _ => store_hint(error),
    }
}

fn verify_hint(error: &VerifyError) -> Option<String> {
    match error {
        VerifyError::Discover(error) => discover_hint(error),
        VerifyError::NoIndex(_) => Some("create one with ociseek index".into()),
        VerifyError::Saved => Some("omit --quick and --index".into()),
        VerifyError::Listing { source, .. }
        | VerifyError::Config { source, .. }
        | VerifyError::Index { source, .. }
        | VerifyError::Signatures { source, .. }
        | VerifyError::Prefetch { source, .. }
        | VerifyError::Document { source, .. }
        | VerifyError::Layer { source, .. } => store_hint(source),
        VerifyError::Memory { .. } | VerifyError::DocumentMemory { .. } | VerifyError::Thread { .. } => None,
    }
}

fn discover_hint(error: &DiscoverError) -> Option<String> {
    match error {
        DiscoverError::Resolve(error) => resolve_hint(error),
        DiscoverError::Index { source: Unusable::Fetch(source), .. } | DiscoverError::Ztoc { source, .. } => {
            store_hint(source)
        }
        DiscoverError::Index { .. } => Some("ociseek inspect lists the image's indexes".into()),
        DiscoverError::ZtocTooLarge { .. } => None,
    }
}

fn resolve_hint(error: &ResolveError) -> Option<String> {
    match error {
        ResolveError::Find(source) | ResolveError::Document { source, .. } => store_hint(source),
        ResolveError::NoPlatform { .. } => Some("choose one of the image's platforms with --platform".into()),
        _ => None,
    }
}

pub(crate) fn store_hint(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Registry(error) => registry_hint(error),
        StoreError::Local(LayoutError::NoImage { .. }) => Some(
            "what ociseek index --output oci:DIR writes is an index without its image: name the image that it \
             was made for"
                .into(),
        ),
        StoreError::Local(_)
        | StoreError::Read { .. }
        | StoreError::Range { .. }
        | StoreError::Thread
        | StoreError::Memory(_) => None,
    }
}
