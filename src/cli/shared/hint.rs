//! Hints: what the user can do about an error. They name options, which the library does not know.

use std::io;

use super::error::{CliError, FAILED, ForUser};
use super::store_hint::cause_hint;
use ociseek_format::image::TagError;
use ociseek_format::tree::PathError;
use ociseek_hook::aws::EcrError;
use ociseek_hook::backfill::StateError;
use ociseek_hook::job::JobError;
use ociseek_hook::journal::JournalError;
use ociseek_hook::lambda::RuntimeApiError;
#[cfg(feature = "nats")]
use ociseek_hook::nats::NatsError;
use ociseek_hook::server::ServeError;
#[cfg(mounts)]
use ociseek_node::store::StoreMountError;
#[cfg(mounts)]
use ociseek_ops::bundle::BundleError;
#[cfg(mounts)]
use ociseek_ops::container::OciRuntimeError;
use ociseek_ops::convert::{ConvertError, are_small};
use ociseek_ops::discover::{DiscoverError, UnusableIndexError};
use ociseek_ops::doctor::DoctorError;
use ociseek_ops::index::{IndexError, RefusedImage, RefusedManifest};
use ociseek_ops::obsolete::ObsoleteError;
use ociseek_ops::open::OpenImageError;
use ociseek_ops::remove::RemoveError;
use ociseek_ops::report::ReportError;
use ociseek_ops::resolve::ResolveError;
use ociseek_ops::startup_files::ProgramError;
use ociseek_ops::verify::VerifyError;
use ociseek_ops::versions::MakeError;
use ociseek_rootfs::content::ReadError;
#[cfg(mounts)]
use ociseek_rootfs::fuse::MountError;
use ociseek_store::StoreError;
use ociseek_store::registry::ProviderConfigError;

/// Errors without hints of their own. [`cause_hint`] finds the one of a store's error.
macro_rules! without_hint {
    ($($error:ty,)*) => { $(impl ForUser for $error {})* };
}
without_hint! {
    ReadError,
    ReportError,
    ProviderConfigError,
    RuntimeApiError,
    EcrError,
    StoreError,
}

impl ForUser for IndexError {
    fn hint(&self) -> Option<String> {
        match self {
            IndexError::Resolve(ResolveError::NoPlatform { .. }) => {
                Some("omit --platform to index all platforms of the image".into())
            }
            IndexError::BrokenLayer { .. } => Some(
                "nothing was pushed for this image; if the image can be pulled, the layer was \
                 damaged in transit: try again"
                    .into(),
            ),
            IndexError::Refused(refused) => refused_hint(refused),
            IndexError::Enabled { .. } => Some(
                "ociseek convert --fine --replace-tag IMAGE IMAGE makes one that the image \
                 names"
                    .into(),
            ),
            IndexError::Resolve(error) => error.hint(),
            _ => None,
        }
    }
}

impl ForUser for ConvertError {
    fn hint(&self) -> Option<String> {
        match self {
            ConvertError::Index(error) => error.hint(),
            ConvertError::NoPlatform { .. } => Some(
                "omit --platform to index all platforms of the \
                 image"
                    .into(),
            ),
            ConvertError::NothingToIndex { layers } if are_small(layers) => Some(
                "all layers are small and faster to pull whole; --min-layer-size 0 indexes \
                 them anyway"
                    .into(),
            ),
            ConvertError::Occupied { .. } => Some(
                "choose another tag; ociseek convert --replace-tag replaces an image that is \
                 not SOCI-enabled"
                    .into(),
            ),
            ConvertError::Moved { .. } | ConvertError::Changed { .. } => {
                Some("run it again for the image that the tag names now".into())
            }
            ConvertError::SourceTag { .. } => Some(
                "use another tag, or --replace-tag, which leaves the original reachable only \
                 by its digest"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// An existing index is checked as it is.
fn refused_hint(refused: &RefusedImage) -> Option<String> {
    let stays = |m: &RefusedManifest| m.stays.is_some() && !m.shortfalls.is_empty();
    refused
        .manifests
        .iter()
        .any(stays)
        .then(|| "--existing replace rebuilds the existing index".into())
}

impl ForUser for OpenImageError {
    fn hint(&self) -> Option<String> {
        match self {
            OpenImageError::Discover(error) => error.hint(),
            OpenImageError::Tree(_) => {
                Some("ociseek ls --layer N lists the files of one layer".into())
            }
            _ => None,
        }
    }
}

impl ForUser for VerifyError {
    fn hint(&self) -> Option<String> {
        match self {
            VerifyError::Discover(error) => error.hint(),
            VerifyError::Saved => Some("omit --quick and --index".into()),
            _ => None,
        }
    }
}

impl ForUser for DiscoverError {
    fn hint(&self) -> Option<String> {
        match self {
            DiscoverError::Resolve(error) => error.hint(),
            DiscoverError::Index { source: UnusableIndexError::Fetch(_), .. } => None,
            DiscoverError::Index { .. } | DiscoverError::NoIndex { .. } => {
                Some("ociseek doctor --verbose lists the image's indexes".into())
            }
            DiscoverError::SeveralIndexes { .. } => Some("name one of them in full".into()),
            _ => None,
        }
    }
}

impl ForUser for ResolveError {
    fn hint(&self) -> Option<String> {
        match self {
            ResolveError::Lost { is_enabled, .. } => {
                Some(lost_hint(*is_enabled, "ociseek convert ORIGINAL NAME"))
            }
            ResolveError::NoPlatform { .. } => {
                Some("choose one of the image's platforms with --platform".into())
            }
            _ => None,
        }
    }
}

/// The image index was found, so the name and the login are right. `convert` is the command for a
/// SOCI-enabled image.
pub(crate) fn lost_hint(is_enabled: bool, convert: &str) -> String {
    if is_enabled {
        format!(
            "to repair it, run this with the original image and the options that it was made with: \
             {convert}"
        )
    } else {
        "push the image again, or choose another of its platforms with --platform".to_owned()
    }
}

/// The hint for an image that a hook or `backfill` could not index.
pub(crate) fn job_hint(error: &JobError) -> Option<String> {
    let own = match error {
        JobError::Index(error) => error.hint(),
        JobError::Enabled { source, .. } => source.hint(),
        _ => None,
    };
    own.or_else(|| cause_hint(error))
}

impl ForUser for ServeError {
    fn hint(&self) -> Option<String> {
        match self {
            ServeError::NoSecret(_) => Some(
                "use --secret-file FILE or OCISEEK_HOOK_SECRET (openssl rand -hex 32 makes one), or \
                 --listen 127.0.0.1:8080"
                    .into(),
            ),
            ServeError::Listen { address, source } => match source.kind() {
                io::ErrorKind::AddrInUse => Some(format!(
                    "another process listens there: ss -ltnp 'sport = {}' shows it",
                    address.port()
                )),
                io::ErrorKind::AddrNotAvailable => Some(
                    "the address is not one of this machine: ip address lists those that are".into(),
                ),
                io::ErrorKind::PermissionDenied => {
                    Some("ports below 1024 are for root: use --listen IP:8080".into())
                }
                _ => None,
            },
        }
    }
}

#[cfg(feature = "nats")]
impl ForUser for NatsError {
    fn hint(&self) -> Option<String> {
        let NatsError::Connect { server, .. } = self else { return None };
        Some(format!(
            "check that {server} is right and reachable, and that nats-server runs there with \
             JetStream (nats-server -js)"
        ))
    }
}

impl ForUser for StateError {
    fn hint(&self) -> Option<String> {
        match self {
            StateError::Other { .. } => {
                Some("use the options of the earlier run, or another file".into())
            }
            StateError::Io { path, source } if source.kind() == io::ErrorKind::NotFound => {
                Some(CliError::make_dir(path.parent()?))
            }
            StateError::Io { .. } => None,
        }
    }
}

impl ForUser for JournalError {
    fn hint(&self) -> Option<String> {
        self.missing_dir().map(CliError::make_dir)
    }
}

impl ForUser for DoctorError {
    fn hint(&self) -> Option<String> {
        if let DoctorError::Discover(error) = self { error.hint() } else { None }
    }
}

impl ForUser for ObsoleteError {
    fn hint(&self) -> Option<String> {
        if let ObsoleteError::Resolve(error) = self { error.hint() } else { None }
    }
}

impl ForUser for RemoveError {
    fn hint(&self) -> Option<String> {
        if let RemoveError::Resolve(error) = self { error.hint() } else { None }
    }
}

impl ForUser for PathError {
    fn hint(&self) -> Option<String> {
        match self {
            PathError::NotFound(path) if path.iter().any(|byte| b"*?[".contains(byte)) => Some(
                "paths are literal, without patterns: ociseek ls -R IMAGE lists all files".into(),
            ),
            _ => None,
        }
    }
}

impl ForUser for ProgramError {
    fn hint(&self) -> Option<String> {
        match self {
            ProgramError::NotFound(name) if name.contains(' ') => {
                Some("write the words of a command without quotes, or -- sh -c 'COMMAND'".into())
            }
            ProgramError::NotFound(_) => {
                Some("ociseek ls -R IMAGE lists all files of the image".into())
            }
            ProgramError::NoInterpreter { interpreter, .. } if interpreter.ends_with('\r') => {
                Some("its lines end as on Windows: save it with Unix line ends".into())
            }
            _ => None,
        }
    }

    /// As for a shell, docker and podman.
    fn exit_code(&self) -> u8 {
        match self {
            ProgramError::NotExecutable { .. } | ProgramError::Directory(_) => 126,
            ProgramError::NotFound(_) | ProgramError::NoInterpreter { .. } => 127,
            _ => FAILED,
        }
    }
}

#[cfg(mounts)]
impl ForUser for OciRuntimeError {
    fn hint(&self) -> Option<String> {
        matches!(self, OciRuntimeError::Missing(_)).then(|| {
            "install an OCI runtime (Debian: apt install runc), or select one with --runtime \
             PROGRAM"
                .into()
        })
    }
}

impl From<TagError> for CliError {
    fn from(error: TagError) -> CliError {
        let hint = if matches!(error, TagError::NoTag(_)) {
            "add the tag to the image name, REPOSITORY:TAG@DIGEST, or use {digest} (its first 12 \
             digits) instead of {tag}"
        } else {
            "use another tag in --kind v2=TAG, such as v2={tag}-soci"
        };
        CliError::because("cannot name the SOCI-enabled image", error).with_hint(hint)
    }
}

impl From<MakeError> for CliError {
    fn from(error: MakeError) -> CliError {
        match error {
            MakeError::Tag(error) => error.into(),
            MakeError::Index(error) => (*error).into(),
        }
    }
}

#[cfg(mounts)]
impl From<StoreMountError> for CliError {
    fn from(error: StoreMountError) -> CliError {
        match error {
            StoreMountError::State { dir, source } => CliError::write(&dir)(source),
            StoreMountError::Start(source) => CliError::start(source),
            StoreMountError::Mount(error) => error.into(),
        }
    }
}

#[cfg(mounts)]
impl ForUser for MountError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            MountError::Missing(dir) => format!("create it with mkdir {}", dir.display()),
            MountError::NotADirectory(_) | MountError::NotEmpty(_) => "use an empty \
                                                                       directory"
                .into(),
            MountError::Stale { point, ours: true } => {
                format!(
                    "clear it with umount -l {0} (as a user: fusermount3 -uz {0}), or use \
                     --replace",
                    point.display()
                )
            }
            MountError::Stale { point, ours: false } => {
                format!(
                    "it is not ociseek's; clear it with umount -l {0} (as a user: fusermount3 -uz \
                     {0})",
                    point.display()
                )
            }
            MountError::Occupied { point, .. } => {
                format!(
                    "unmount it with umount {0} (as a user: fusermount3 -u {0}), or use \
                     --replace",
                    point.display()
                )
            }
            MountError::Busy(point) => {
                format!("fuser -vm {} lists the processes using it", point.display())
            }
            MountError::NoDevice(_) => {
                "load the kernel module with modprobe fuse; a container needs --device /dev/fuse \
                 --cap-add SYS_ADMIN"
                    .into()
            }
            MountError::DeviceRefused(_) => {
                "run as root, or allow users to open it: chmod 666 /dev/fuse (the default on most \
                 systems)"
                    .into()
            }
            MountError::NoHelper => "run as root, or install it (Debian: apt install fuse3)".into(),
            MountError::AllowOther => "add the line user_allow_other to /etc/fuse.conf, or omit \
                                       --allow-other"
                .into(),
            MountError::RootOnly => "run as root, or omit --suid and --dev".into(),
            _ => return None,
        })
    }
}

#[cfg(mounts)]
impl ForUser for BundleError {
    fn hint(&self) -> Option<String> {
        match self {
            BundleError::NotRoot => Some(
                "run as root; ociseek mount also works for other \
                 users"
                    .into(),
            ),
            BundleError::Exists(dir) => {
                Some(format!("remove it with ociseek bundle --rm {}", dir.display()))
            }
            BundleError::NotEmpty(_) => Some(
                "use an empty directory, or one that does not exist \
                 yet"
                .into(),
            ),
            BundleError::Foreign { .. } | BundleError::Replaceable { .. } => Some(
                "root must own DIR and its parent directories, and nobody else may write to the \
                 parents unless they are \
                 sticky like /tmp: use /run/NAME, for example"
                    .into(),
            ),
            BundleError::NoCommand => Some("give a command after --".into()),
            BundleError::InUse { pid, .. } => {
                Some(format!("end its container first (runc list; runc kill), or kill {pid}"))
            }
            BundleError::Held(dir) => Some(format!(
                "its files are still in use: fuser -vm {} lists the processes",
                dir.display()
            )),
            BundleError::Overlay { .. } => Some(
                "see the kernel log (dmesg) for the reason; overlays cannot be nested, so use a \
                 DIR on a disk or a tmpfs"
                    .into(),
            ),
            BundleError::Mount(error) => error.hint(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ociseek_format::budget::OverBudget;
    use ociseek_format::digest::Digest;
    use ociseek_store::layout::LayoutError;

    use super::*;
    use crate::cli::shared::store_hint::store_hint;

    #[test]
    fn an_error_of_a_store_is_found_below_those_of_any_command() {
        let no_image = || StoreError::from(LayoutError::NoImage { path: "dir".into() });
        let digest = Digest::sha256(b"x");
        let wanted = store_hint(&no_image());
        assert!(wanted.is_some());
        let discover = || DiscoverError::Resolve(ResolveError::Find(no_image()));
        let errors: [CliError; 6] = [
            no_image().into(),
            discover().into(),
            VerifyError::from(discover()).into(),
            VerifyError::Config { digest, source: no_image() }.into(),
            ConvertError::from(IndexError::Attach { index: digest, source: no_image() }).into(),
            ObsoleteError::List { subject: digest, source: no_image() }.into(),
        ];
        for error in errors {
            assert_eq!(error.hint(), wanted, "{error:?}");
        }
        let memory =
            StoreError::from(OverBudget { what: "layer".into(), needed: 2, used: 0, limit: 1 });
        let memory = CliError::from(ConvertError::Find(memory)).hint();
        assert!(memory.is_some_and(|hint| hint.contains("--max-memory")));
    }
}
