//! Hints: what the user can do about an error. They name options, which the library does not know.

use std::error::Error;
use std::path::Path;

use super::error::{CliError, HookError};
use super::registry_hint::registry_hint;
use super::terminal::quoted;
use ociseek_format::image::{ImageName, ImageSelector, TagError};
use ociseek_format::progress::sources;
use ociseek_format::tree::PathError;
use ociseek_hook::backfill::StateError;
use ociseek_hook::job::JobError;
#[cfg(feature = "nats")]
use ociseek_hook::nats::NatsError;
use ociseek_hook::server::ServeError;
#[cfg(mounts)]
use ociseek_ops::bundle::BundleError;
#[cfg(mounts)]
use ociseek_ops::container::OciRuntimeError;
use ociseek_ops::convert::{ConvertError, are_small};
use ociseek_ops::discover::{DiscoverError, UnusableIndexError};
use ociseek_ops::doctor::{DoctorError, NoIndex};
use ociseek_ops::extract::ExtractError;
use ociseek_ops::index::{IndexError, RefusedImage, RefusedManifest};
use ociseek_ops::is_over_budget;
use ociseek_ops::obsolete::ObsoleteError;
use ociseek_ops::open::OpenImageError;
use ociseek_ops::remove::RemoveError;
use ociseek_ops::resolve::ResolveError;
use ociseek_ops::startup_files::ProgramError;
use ociseek_ops::verify::VerifyError;
#[cfg(mounts)]
use ociseek_rootfs::fuse::MountError;
use ociseek_store::StoreError;
use ociseek_store::layout::LayoutError;

/// What the user can do about it, if known.
pub(super) fn hint(error: &CliError) -> Option<String> {
    if is_over_budget(error) {
        return Some("raise --max-memory (OCISEEK_MAX_MEMORY) if you trust the image".into());
    }
    own_hint(error).or_else(|| cause_hint(error))
}

/// The hint for the first cause that is an error of a store.
pub(crate) fn cause_hint(error: &(dyn Error + 'static)) -> Option<String> {
    sources(error).find_map(|cause| match cause.downcast_ref() {
        Some(error) => store_hint(error),
        None => registry_hint(cause.downcast_ref()?),
    })
}

/// The hint for what only this command knows.
fn own_hint(error: &CliError) -> Option<String> {
    match error {
        CliError::LogFilter(_) => Some(
            "levels are off, error, warn, info, debug and trace; for example: OCISEEK_LOG=ociseek=debug,rustls=trace \
             (docs/environment.md lists the targets)"
                .into(),
        ),
        CliError::NoIndex { image, why, source } => match (source.downcast_ref(), why) {
            (Some(VerifyError::NoIndex(..)), NoIndex::Impossible { has_large_zstd: true, .. }) => Some(or_fine(image)),
            _ => to_index(image, why).or_else(|| Some(why.to_string())),
        },
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
        CliError::LocalHere { hint, .. } => Some(hint.clone()),
        CliError::Index(error) => index_hint(error),
        CliError::Convert(error) => convert_hint(error),
        CliError::Tag(TagError::NoTag(_)) => Some(
            "add the tag to the image name, REPOSITORY:TAG@DIGEST, or use {digest} (its first 12 digits) instead \
             of {tag}"
                .into(),
        ),
        CliError::Tag(_) => Some("use another tag in --kind v2=TAG, such as v2={tag}-soci".into()),
        CliError::Discover(error) => discover_hint(error),
        CliError::Doctor(error) => match &**error {
            DoctorError::Discover(error) => discover_hint(error),
            _ => None,
        },
        CliError::Open(error) => open_hint(error),
        CliError::Obsolete(error) => match &**error {
            ObsoleteError::Resolve(error) => resolve_hint(error),
            _ => None,
        },
        CliError::Remove(RemoveError::Resolve(error)) => resolve_hint(error),
        CliError::Path(PathError::NotFound(path)) if path.iter().any(|b| b"*?[".contains(b)) => {
            Some("paths are literal, without patterns: ociseek ls -R IMAGE lists all files".into())
        }
        #[cfg(mounts)]
        CliError::NotAHost(_) => {
            Some(
                "in a container, name the directory where the host's / is mounted, such as /host; on the host, /"
                    .into(),
            )
        }
        CliError::Program(ProgramError::NotFound(name)) if name.contains(' ') => {
            Some("write the words of a command without quotes, or -- sh -c 'COMMAND'".into())
        }
        CliError::Program(ProgramError::NotFound(_)) => {
            Some("ociseek ls -R IMAGE lists all files of the image".into())
        }
        #[cfg(mounts)]
        CliError::NoSystemd(_) => {
            Some("have its own service manager run ociseek snapshotter --config FILE".into())
        }
        CliError::EmptyLogin { .. } => {
            Some("write --creds USER:PASSWORD, or --creds USER --password-stdin".into())
        }
        CliError::NoCacheDir => Some("set one with --cache-dir DIR".into()),
        CliError::NotRemoved { source, .. } => delete_hint(source),
        CliError::Verify(error) => verify_hint(error),
        CliError::Incomplete { image, is_enabled, .. } => Some(lost_hint(*is_enabled, &convert_original(image))),
        #[cfg(mounts)]
        CliError::Mount(error) => mount_hint(error),
        #[cfg(mounts)]
        CliError::Bundle(error) => bundle_hint(error),
        #[cfg(mounts)]
        CliError::Runtime(OciRuntimeError::Missing(_)) => {
            Some("install an OCI runtime (Debian: apt install runc), or select one with --runtime PROGRAM".into())
        }
        CliError::Hook(error) => hook_hint(error),
        CliError::Write { path, source } if source.kind() == std::io::ErrorKind::NotFound => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists())?;
            Some(format!("create its directory first: mkdir -p {}", quoted(dir.as_os_str().as_encoded_bytes())))
        }
        #[cfg(mounts)]
        CliError::Config(error) if error.is_missing() => Some(
            "ociseek snapshotter --print-config > FILE writes one with all keys; docs/snapshotter.md describes them"
                .into(),
        ),
        CliError::Exists(_) => Some("use --force to replace it".into()),
        CliError::Extract { source: ExtractError::Exists { .. }, .. } => {
            Some("use --force to replace existing files, or an empty directory for --output".into())
        }
        CliError::Profile { .. } => {
            Some("ociseek try IMAGE --record FILE records one, and so does ociseek mount --record".into())
        }
        CliError::Unservable { .. } => Some("ociseek index leaves out such layers and indexes the others".into()),
        _ => None,
    }
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
        IndexError::Enabled { .. } => {
            Some("ociseek convert --fine --replace-tag IMAGE IMAGE makes one that the image names".into())
        }
        IndexError::Resolve(error) => resolve_hint(error),
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
        ConvertError::Occupied { .. } => {
            Some("choose another tag; ociseek convert --replace-tag replaces an image that is not SOCI-enabled".into())
        }
        ConvertError::Moved { .. } | ConvertError::Changed { .. } => {
            Some("run it again for the image that the tag names now".into())
        }
        ConvertError::SourceTag { .. } => {
            Some("use another tag, or --replace-tag, which leaves the original reachable only by its digest".into())
        }
        _ => None,
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

fn open_hint(error: &OpenImageError) -> Option<String> {
    match error {
        OpenImageError::Discover(error) => discover_hint(error),
        OpenImageError::Tree(_) => Some("ociseek ls --layer N lists the files of one layer".into()),
        _ => None,
    }
}

/// Many registries do not delete manifests unless they are configured to.
fn delete_hint(error: &StoreError) -> Option<String> {
    match error {
        // GitHub and Docker Hub answer 405, Quay and Harbor 403 to logins that may only push,
        // Google 400 and 409 for a manifest that a tag or an index still names.
        StoreError::Registry(error)
            if error.refused_method() == Some("DELETE")
                && matches!(error.status(), Some(400 | 409 | 412)) =>
        {
            Some(format!(
                "{} does not delete a manifest that a tag or an image index still names, or that is immutable: \
                 remove those first, with the registry's own tool",
                error.host().unwrap_or("the registry")
            ))
        }
        StoreError::Registry(error)
            if error.refused_method() == Some("DELETE")
                && matches!(error.status(), Some(401 | 403)) =>
        {
            Some(format!(
                "{} does not let this login delete manifests: use one that may, or the registry's own tool",
                error.host().unwrap_or("the registry")
            ))
        }
        StoreError::Registry(error) if matches!(error.status(), Some(405 | 501)) => Some(format!(
            "{} does not allow deleting manifests: enable it (distribution: REGISTRY_STORAGE_DELETE_ENABLED=true), \
             or use the registry's own tool",
            error.host().unwrap_or("the registry")
        )),
        _ => None,
    }
}

fn verify_hint(error: &VerifyError) -> Option<String> {
    match error {
        VerifyError::Discover(error) => discover_hint(error),
        VerifyError::Saved => Some("omit --quick and --index".into()),
        _ => None,
    }
}

fn discover_hint(error: &DiscoverError) -> Option<String> {
    match error {
        DiscoverError::Resolve(error) => resolve_hint(error),
        DiscoverError::Index { source: UnusableIndexError::Fetch(_), .. } => None,
        DiscoverError::Index { .. } | DiscoverError::NoIndex { .. } => {
            Some("ociseek doctor --verbose lists the image's indexes".into())
        }
        DiscoverError::SeveralIndexes { .. } => Some("name one of them in full".into()),
        _ => None,
    }
}

fn resolve_hint(error: &ResolveError) -> Option<String> {
    match error {
        ResolveError::Lost { is_enabled, .. } => {
            Some(lost_hint(*is_enabled, "ociseek convert ORIGINAL NAME"))
        }
        ResolveError::NoPlatform { .. } => {
            Some("choose one of the image's platforms with --platform".into())
        }
        _ => None,
    }
}

/// The image index was found, so the name and the login are right. `convert` is the command for a
/// SOCI-enabled image.
fn lost_hint(is_enabled: bool, convert: &str) -> String {
    if is_enabled {
        format!(
            "to repair it, run this with the original image and the options that it was made with: {convert}"
        )
    } else {
        "push the image again, or choose another of its platforms with --platform".to_owned()
    }
}

/// The hint for an image that a hook or `backfill` could not index.
pub(crate) fn job_hint(error: &JobError) -> Option<String> {
    let own = match error {
        JobError::Index(error) => index_hint(error),
        JobError::Enabled { source, .. } => convert_hint(source),
        _ => None,
    };
    own.or_else(|| cause_hint(error))
}

fn store_hint(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Registry(error) => registry_hint(error),
        StoreError::Local(LayoutError::NoImage { .. }) => Some(
            "what ociseek index --output oci:DIR writes is an index without its image: name the image that it \
             was made for"
                .into(),
        ),
        _ => None,
    }
}

fn hook_hint(error: &HookError) -> Option<String> {
    match error {
        HookError::Backfill { hint, .. } => hint.clone(),
        HookError::Serve(ServeError::NoSecret(_)) => Some(
            "use --secret-file FILE or OCISEEK_HOOK_SECRET (openssl rand -hex 32 makes one), or --listen \
             127.0.0.1:8080"
                .into(),
        ),
        HookError::SecretFile { .. } | HookError::Secret(_) => {
            Some("generate a secret with openssl rand -hex 32".into())
        }
        #[cfg(feature = "nats")]
        HookError::Queue(NatsError::Connect { server, .. }) => Some(format!(
            "check that {server} is right and reachable, and that nats-server runs there with JetStream \
             (nats-server -js)"
        )),
        HookError::OpenSecret { path, .. } => Some(format!("chmod 600 {}", path.display())),
        HookError::State(StateError::Other { .. }) => {
            Some("use the options of the earlier run, or another file".into())
        }
        HookError::NotInLambda => Some("docs/hook-lambda.md shows how to deploy ociseek as a function".into()),
        _ => None,
    }
}

#[cfg(mounts)]
fn mount_hint(error: &MountError) -> Option<String> {
    Some(match error {
        MountError::Missing(dir) => format!("create it with mkdir {}", dir.display()),
        MountError::NotADirectory(_) | MountError::NotEmpty(_) => "use an empty directory".into(),
        MountError::Stale { point, ours: true } => {
            format!("clear it with umount -l {0} (as a user: fusermount3 -uz {0}), or use --replace", point.display())
        }
        MountError::Stale { point, ours: false } => {
            format!(
                "it is not ociseek's; clear it with umount -l {0} (as a user: fusermount3 -uz {0})",
                point.display()
            )
        }
        MountError::Occupied { point, .. } => {
            format!("unmount it with umount {0} (as a user: fusermount3 -u {0}), or use --replace", point.display())
        }
        MountError::Busy(point) => format!("fuser -vm {} lists the processes using it", point.display()),
        MountError::NoDevice(_) => {
            "load the kernel module with modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN".into()
        }
        MountError::DeviceRefused(_) => {
            "run as root, or allow users to open it: chmod 666 /dev/fuse (the default on most systems)".into()
        }
        MountError::NoHelper => "run as root, or install it (Debian: apt install fuse3)".into(),
        MountError::AllowOther => "add the line user_allow_other to /etc/fuse.conf, or omit --allow-other".into(),
        MountError::RootOnly => "run as root, or omit --suid and --dev".into(),
        _ => return None,
    })
}

#[cfg(mounts)]
fn bundle_hint(error: &BundleError) -> Option<String> {
    match error {
        BundleError::NotRoot => Some("run as root; ociseek mount also works for other users".into()),
        BundleError::Exists(dir) => Some(format!("remove it with ociseek bundle --rm {}", dir.display())),
        BundleError::NotEmpty(_) => Some("use an empty directory, or one that does not exist yet".into()),
        BundleError::Foreign { .. } | BundleError::Replaceable { .. } => Some(
            "root must own DIR and its parent directories, and nobody else may write to the parents unless they are \
             sticky like /tmp: use /run/NAME, for example"
                .into(),
        ),
        BundleError::NoCommand => Some("give a command after --".into()),
        BundleError::InUse { pid, .. } => {
            Some(format!("end its container first (runc list; runc kill), or kill {pid}"))
        }
        BundleError::Held(dir) => {
            Some(format!("its files are still in use: fuser -vm {} lists the processes", dir.display()))
        }
        BundleError::Overlay { .. } => Some(
            "see the kernel log (dmesg) for the reason; overlays cannot be nested, so use a DIR on a disk or a tmpfs"
                .into(),
        ),
        BundleError::Mount(error) => mount_hint(error),
        _ => None,
    }
}

/// The command that gives an image of one platform an index, or other advice. None if nothing
/// helps.
pub(crate) fn to_index(image: &ImageName, why: &NoIndex) -> Option<String> {
    match why {
        NoIndex::Possible => Some(format!(
            "ociseek convert {} {}",
            quoted_name(image),
            quoted(new_name(image).as_bytes())
        )),
        NoIndex::Impossible { has_large_zstd: true, .. } => Some(WITH_GZIP.into()),
        NoIndex::Small | NoIndex::Impossible { .. } => None,
    }
}

/// What helps with layers that no consumer serves.
pub(crate) const WITH_GZIP: &str = "build the image with gzip layers: docker buildx build --output \
     type=image,compression=gzip,force-compression=true";

/// What helps an image of zstd layers without any index.
pub(crate) fn or_fine(image: &ImageName) -> String {
    match image {
        ImageName::Archive { .. } | ImageName::Saved { .. } => WITH_GZIP.to_owned(),
        _ => format!(
            "{WITH_GZIP}; or, for ociseek's own mount, bundle and snapshotter: ociseek index --kind fine {}",
            quoted_name(image)
        ),
    }
}

/// A name for the SOCI-enabled image of this image, in the same place; for archives, in a layout.
pub(crate) fn new_name(image: &ImageName) -> String {
    let layout = |file: &Path| format!("oci:{}-soci", file.with_extension("").display());
    match image {
        ImageName::Registry(reference) => {
            let place = format!("{}/{}", reference.registry, reference.repository);
            match (&reference.tag, &reference.digest) {
                (Some(tag), _) => format!("{place}:{tag}-soci"),
                (None, Some(digest)) => format!("{place}:{}-soci", digest.short()),
                (None, None) => format!("{place}:latest-soci"),
            }
        }
        ImageName::Layout { dir, select } => match select {
            ImageSelector::Tag(tag) => format!("oci:{}:{tag}-soci", dir.display()),
            ImageSelector::Digest(digest) => {
                format!("oci:{}:{}-soci", dir.display(), digest.short())
            }
            ImageSelector::Any => format!("oci:{}:soci", dir.display()),
        },
        ImageName::Archive { file, .. } | ImageName::Saved { file, .. } => layout(file),
    }
}

pub(crate) fn quoted_name(image: &ImageName) -> String {
    quoted(image.to_string().as_bytes())
}

/// From the SOCI-enabled image itself.
pub(crate) fn convert_again(image: &ImageName) -> String {
    format!("ociseek convert {} {}", quoted(image.to_string().as_bytes()), name_for(image))
}

/// From the original, if the SOCI-enabled image cannot be read.
pub(crate) fn convert_original(image: &ImageName) -> String {
    format!("ociseek convert ORIGINAL {}", name_for(image))
}

/// Whether a converted image can have this name.
pub(crate) fn has_tag(image: &ImageName) -> bool {
    match image {
        ImageName::Registry(reference) => reference.digest.is_none(),
        ImageName::Layout { select, .. } => matches!(select, ImageSelector::Tag(_)),
        ImageName::Archive { .. } | ImageName::Saved { .. } => false,
    }
}

/// Its own name if that can be the name of a converted image, and otherwise a new one.
fn name_for(image: &ImageName) -> String {
    if has_tag(image) { quoted(image.to_string().as_bytes()) } else { "NEW-NAME".to_owned() }
}

#[cfg(test)]
mod tests {
    use ociseek_format::digest::Digest;

    use super::*;
    use ociseek_format::budget::OverBudget;

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
            assert_eq!(hint(&error), wanted, "{error:?}");
        }
        let memory =
            StoreError::from(OverBudget { what: "layer".into(), needed: 2, used: 0, limit: 1 });
        let memory = hint(&ConvertError::Find(memory).into());
        assert!(memory.is_some_and(|hint| hint.contains("--max-memory")));
    }
}
