//! Opens images by the names that users type.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use super::args::RegistryArgs;
use super::error::CliError;
use super::parse::{self, PlainHttp};
use super::terminal::quoted;
use ociseek_format::budget::Budget;
use ociseek_format::image::{
    ImageName, ImageNameError, ImageSelector, LayerKind, Reference, is_canonical_registry,
};
use ociseek_format::progress::Progress;
use ociseek_ops::convert::SourceImage;
use ociseek_ops::discover::DiscoverError;
use ociseek_ops::list::NamedTarget;
use ociseek_ops::resolve::{PlatformChoice, resolve};
use ociseek_store::archive::Archive;
use ociseek_store::blob::Target;
use ociseek_store::layout::{Layout, LayoutError};
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits, Repository};
use ociseek_store::{Destination, Source, StoreError, blocking};

/// The error for what was understood as an image on Docker Hub, and is something else: a file or
/// folder in the working directory, or a registry.
fn misread(name: &ImageName) -> Option<CliError> {
    let ImageName::Registry(image) = name else { return None };
    not_on_docker_hub(&image.registry, &image.repository, image.tag.as_deref())
}

fn not_on_docker_hub(registry: &str, repository: &str, tag: Option<&str>) -> Option<CliError> {
    if registry != "docker.io" {
        return None;
    }
    let file = repository.strip_prefix("library/").unwrap_or(repository);
    let is_archive = parse::is_archive(file);
    // Official images, those without a slash, have no dot in their names.
    let is_host = repository.starts_with("library/")
        && !is_archive
        && (file == "localhost" || file.contains('.'));
    let (typed, what, hint) = if is_archive && Path::new(file).is_file() {
        // BuildKit and docker save write an archive of a layout, older versions and podman another.
        let kind = match Archive::open(Path::new(file)) {
            Err(LayoutError::Saved { .. }) => "docker-archive",
            _ => "oci-archive",
        };
        (file.to_owned(), "a file", format!("to read the file, use {kind}:{file}"))
    } else if is_archive && repository.starts_with("library/") {
        let hint =
            "there is no such file; an archive is named oci-archive:FILE or docker-archive:FILE";
        (file.to_owned(), "the name of an archive", hint.to_owned())
    } else if Path::new(file).is_file() {
        let hint = match Path::new(file).parent() {
            Some(dir) if dir.join("oci-layout").is_file() => {
                format!("to read the layout, use oci:{}", dir.display())
            }
            _ if file.ends_with(".ztoc") => {
                format!("to see what is in a ztoc, use ociseek ztoc show {file}")
            }
            _ => {
                "write REPOSITORY:TAG, oci:DIR, oci-archive:FILE or docker-archive:FILE".to_owned()
            }
        };
        (file.to_owned(), "a file", hint)
    } else if is_host {
        let tag = tag.filter(|tag| *tag != "latest");
        let is_port = tag.is_none_or(|tag| tag.bytes().all(|byte| byte.is_ascii_digit()));
        if let (Some(tag), false) = (tag, is_port) {
            let hint = format!("a slash is between a registry and a repository: {file}/{tag}");
            let typed = format!("{file}:{tag}");
            return Some(not_a_name(&typed, "a registry with a tag", hint));
        }
        let host = format!("{file}{}", tag.map(|port| format!(":{port}")).unwrap_or_default());
        let hint = format!(
            "name a repository in it, such as {host}/REPOSITORY or {host}/REPOSITORY:TAG; ociseek backfill --dry-run \
             {host} lists all of its images"
        );
        (host, "a registry", hint)
    } else {
        Path::new(file).join("oci-layout").is_file().then_some(())?;
        let hint = format!("to read the layout, use oci:{file}");
        (file.to_owned(), "a folder with an image layout", hint)
    };
    Some(not_a_name(&typed, what, hint))
}

fn not_a_name(typed: &str, what: &str, hint: String) -> CliError {
    CliError::usage(format!("{typed} is {what}, not an image name")).with_hint(hint)
}

/// Opens images. Clients are shared by all images.
pub(crate) struct Images {
    client: Client,
    progress: Arc<dyn Progress>,
    /// For each image, in bytes.
    max_memory: u64,
}

impl Images {
    /// For these `images` and no others. Reads a password from standard input if requested. Sends
    /// nothing yet.
    pub(crate) async fn new<'a>(
        args: RegistryArgs,
        images: impl IntoIterator<Item = &'a ImageName>,
        progress: &Arc<dyn Progress>,
    ) -> Result<Images, CliError> {
        let images: Vec<&ImageName> = images.into_iter().collect();
        if let Some(error) = images.iter().find_map(|name| misread(name)) {
            return Err(error);
        }
        Images::at(args, images.into_iter().filter_map(registry), progress).await
    }

    /// For images in these registries, and for local ones.
    pub(crate) async fn at<'a>(
        args: RegistryArgs,
        registries: impl Iterator<Item = &'a str>,
        progress: &Arc<dyn Progress>,
    ) -> Result<Images, CliError> {
        let config = client_config(args, Registries::of(registries), progress).await?;
        let max_memory = config.max_memory;
        let client = Client::new(config).map_err(StoreError::from)?;
        Ok(Images { client, progress: Arc::clone(progress), max_memory })
    }

    /// A repository, by its name and its registry's name.
    pub(crate) fn repository_at(
        &self,
        registry: &str,
        repository: &str,
    ) -> Result<Repository, CliError> {
        Ok(self.client.repository(registry, repository).map_err(StoreError::from)?)
    }

    /// The store of the image, and its tag or digest there.
    pub(crate) async fn open(&self, name: &ImageName) -> Result<(Source, Target), CliError> {
        let SourceImage { source, root, .. } = self.open_root(name).await?;
        Ok((source, root))
    }

    /// The repository of an image.
    pub(crate) fn repository(&self, reference: &Reference) -> Result<Repository, CliError> {
        Ok(self
            .client
            .repository(&reference.registry, &reference.repository)
            .map_err(StoreError::from)?)
    }

    /// Like [`Images::open`], with the image's entry in a layout's index.json.
    pub(crate) async fn open_root(&self, name: &ImageName) -> Result<SourceImage, CliError> {
        Ok(match name {
            ImageName::Registry(reference) => {
                let source = Source::Registry(self.repository(reference)?);
                SourceImage { source, root: Target::of(reference), descriptor: None }
            }
            ImageName::Layout { dir, select } => {
                let dir = dir.clone();
                let select = select.clone();
                let budget = Budget::new(self.max_memory);
                let (layout, descriptor) = blocking(move || {
                    let (dir, select) = at_first_colon(dir, select);
                    let layout = Layout::open(&dir)?.with_budget(budget);
                    let descriptor = layout.find(&select)?;
                    Ok((Arc::new(layout), descriptor))
                })
                .await?;
                let root = Target::Digest(descriptor.digest);
                SourceImage { source: Source::Layout(layout), root, descriptor: Some(descriptor) }
            }
            ImageName::Archive { file, select } => {
                let file = file.clone();
                let select = select.clone();
                self.archive(select, move |select| {
                    let (file, select) = at_first_colon(file, select);
                    Ok((Archive::open(&file)?, select))
                })
                .await?
            }
            ImageName::Saved { file, select } => {
                let file = file.clone();
                let select = select.clone();
                let progress = Arc::clone(&self.progress);
                let open = move |any| Ok((Archive::open_saved(&file, &select, &*progress)?, any));
                self.archive(ImageSelector::Any, open).await?
            }
        })
    }

    async fn archive(
        &self,
        select: ImageSelector,
        open: impl FnOnce(ImageSelector) -> Result<(Archive, ImageSelector), LayoutError>
        + Send
        + 'static,
    ) -> Result<SourceImage, CliError> {
        let budget = Budget::new(self.max_memory);
        let (archive, descriptor) = blocking(move || {
            let (archive, select) = open(select)?;
            let archive = archive.with_budget(budget);
            let descriptor = archive.find(&select)?;
            Ok((Arc::new(archive), descriptor))
        })
        .await?;
        let root = Target::Digest(descriptor.digest);
        Ok(SourceImage { source: Source::Archive(archive), root, descriptor: Some(descriptor) })
    }
}

/// A layout or archive and one of its images. containers/image ends the path at its first colon, so
/// that a full name can follow (`oci:DIR:localhost/app:1`). The path is split in the same way here
/// if the path as typed does not exist.
fn at_first_colon(path: PathBuf, select: ImageSelector) -> (PathBuf, ImageSelector) {
    let full = match (&select, path.to_str().and_then(|path| path.split_once(':'))) {
        (ImageSelector::Tag(tag), Some((path, name))) => {
            Some((PathBuf::from(path), format!("{name}:{tag}")))
        }
        _ => None,
    };
    match full {
        Some((short, name)) if !path.exists() && short.exists() => {
            (short, ImageSelector::Tag(name))
        }
        _ => (path, select),
    }
}

/// Refuses to push uncompressed layers of a `docker save` archive to registries.
///
/// # Errors
/// If the image has such a layer, or cannot be read.
pub(crate) async fn refuse_plain_layers(
    name: &ImageName,
    source: &Source,
    root: &Target,
    progress: &Arc<dyn Progress>,
) -> Result<(), CliError> {
    if !matches!(name, ImageName::Saved { .. }) {
        return Ok(());
    }
    let image =
        resolve(source, root, PlatformChoice::All, progress).await.map_err(DiscoverError::from)?;
    let mut layers = image.manifests.iter().flat_map(|manifest| &manifest.layers);
    if layers.any(|layer| LayerKind::of(&layer.media_type) == LayerKind::Uncompressed) {
        let archive = name.to_string();
        Err(CliError::usage(format!(
            "{archive} is not pushed: its layers are not compressed, and registries store layers as \
             they get them"
        ))
        .with_hint(format!(
            "skopeo copy {} docker://NAME compresses the layers, as docker load and docker push do; \
             then run ociseek convert on NAME, or write to a layout, oci:DIR",
            quoted(archive.as_bytes())
        )))
    } else {
        Ok(())
    }
}

/// The registry of an image, if it is in one.
pub(crate) fn registry(image: &ImageName) -> Option<&str> {
    match image {
        ImageName::Registry(reference) => Some(&reference.registry),
        ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
    }
}

/// The registries that a command may access.
pub(crate) enum Registries<'a> {
    None,
    One(&'a str),
    Several,
}

impl<'a> Registries<'a> {
    pub(crate) fn of(names: impl Iterator<Item = &'a str>) -> Registries<'a> {
        names.fold(Registries::None, |all, name| match all {
            Registries::None => Registries::One(name),
            Registries::One(other) if other.eq_ignore_ascii_case(name) => Registries::One(other),
            Registries::One(_) | Registries::Several => Registries::Several,
        })
    }
}

/// A layout to write to. If it is missing, the first write creates it.
pub(crate) async fn output_layout(dir: PathBuf) -> Result<Layout, CliError> {
    Ok(blocking(move || Layout::open_or_new(&dir)).await?)
}

/// A layout, with all its images.
pub(crate) async fn layout_images(
    dir: PathBuf,
) -> Result<(Arc<Layout>, Vec<NamedTarget>), CliError> {
    let opened = blocking(move || {
        let layout = Layout::open(&dir)?;
        let images = layout.images()?;
        Ok((Arc::new(layout), images))
    });
    let (layout, images) = opened.await?;
    let place = |(name, digest)| NamedTarget { name, target: Target::Digest(digest) };
    Ok((layout, images.into_iter().map(place).collect()))
}

/// The default destination of an image's index: the store of the image. None for archives, which
/// cannot be written.
pub(crate) fn home(source: &Source) -> Option<Destination> {
    match source {
        Source::Registry(repository) => Some(Destination::Registry(repository.clone())),
        Source::Layout(layout) => Some(Destination::Layout(Arc::clone(layout))),
        Source::Archive(_) => None,
    }
}

/// The registry that a login or a certificate is for, if it is given as `HOST=`, and the rest.
fn for_host(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((host, rest)) if is_canonical_registry(&host.to_ascii_lowercase()) => {
            (Some(host), rest)
        }
        _ => (None, text),
    }
}

/// For a command that learns from others which registries to ask: a login or a certificate must
/// say which one it is for. Otherwise, anyone who names an image would get it.
///
/// # Errors
/// If one does not.
pub(crate) fn check_hosts(args: &RegistryArgs) -> Result<(), CliError> {
    if args.creds.as_deref().is_some_and(|creds| for_host(creds).0.is_none()) {
        return Err(CliError::usage(
            "creds would be sent to every registry that an image names: write HOST=USER:PASSWORD, such as \
             registry.example=USER:PASSWORD",
        ));
    }
    let cert = args.client_cert.as_deref().map(Path::to_string_lossy);
    if cert.is_some_and(|cert| for_host(&cert).0.is_none()) {
        return Err(CliError::usage(
            "client-cert would be shown to every registry that an image names: write HOST=FILE, such as \
             registry.example=/etc/ociseek/client.pem, or store it in certs.d/HOST",
        ));
    }
    Ok(())
}

/// Leaves out a login and a certificate that are for another registry.
fn only_for(mut args: RegistryArgs, registries: &Registries<'_>) -> RegistryArgs {
    let is_for = |host: &str| match registries {
        Registries::One(registry) => registry.eq_ignore_ascii_case(host),
        Registries::None | Registries::Several => false,
    };
    // Of several registries, the client gives a login to its own.
    let is_several = matches!(registries, Registries::Several);
    if let Some(creds) = &args.creds
        && let (Some(host), login) = for_host(creds)
        && !is_several
    {
        args.creds = is_for(host).then(|| login.to_owned());
    }
    if let Some(path) = args.client_cert.clone()
        && let (Some(host), file) = for_host(&path.to_string_lossy())
        && !is_several
    {
        args.client_cert = is_for(host).then(|| PathBuf::from(file));
        args.client_key = args.client_key.filter(|_| is_for(host));
    }
    args
}

/// Checks that clap cannot express.
fn check(args: &RegistryArgs, registries: &Registries<'_>) -> Result<(), CliError> {
    let (host, login) = args.creds.as_deref().map(for_host).unwrap_or_default();
    let password = login.contains(':');
    if password && args.password_stdin {
        return Err(CliError::usage(
            "--creds already has a password; with --password-stdin use --creds USER",
        ));
    }
    if !password && args.creds.is_some() && !args.password_stdin {
        return Err(CliError::usage(
            "--creds expects USER:PASSWORD, or USER with --password-stdin",
        ));
    }
    if let Some((user, secret)) = login.split_once(':')
        && (user.is_empty() || secret.is_empty())
    {
        let what = if user.is_empty() { "user" } else { "password" };
        return Err(CliError::new(format!("--creds has an empty {what}: is a variable not set?"))
            .with_hint("write --creds USER:PASSWORD, or --creds USER --password-stdin"));
    }
    match registries {
        // Credentials must not be sent to a registry that they are not meant for.
        Registries::Several if args.creds.is_some() && host.is_none() => Err(CliError::usage(
            "--creds works for one registry, but the command names several: write HOST=USER:PASSWORD, use docker \
             login, or run the command once for each",
        )),
        Registries::Several if args.client_cert.is_some() => Err(CliError::usage(
            "--client-cert works for one registry, but the command names several: store a certificate for each in \
             certs.d/HOST, or run the command once for each",
        )),
        _ => Ok(()),
    }
}

/// The client settings for `registries`. Reads a password from standard input if requested.
pub(crate) async fn client_config(
    args: RegistryArgs,
    registries: Registries<'_>,
    progress: &Arc<dyn Progress>,
) -> Result<ClientConfig, CliError> {
    let args = only_for(args, &registries);
    check(&args, &registries)?;
    let credentials = match args.authfile {
        Some(path) => {
            std::fs::metadata(&path).map_err(CliError::read(&path))?;
            CredentialSource::File(path)
        }
        None => match args.providers {
            Some(providers) => CredentialSource::Node(providers),
            None => credentials(args.creds, registries).await?,
        },
    };
    let credentials = match args.pull {
        Some(login) => CredentialSource::Pull { login, others: Box::new(credentials) },
        None => credentials,
    };
    for path in &args.ca_file {
        std::fs::metadata(path).map_err(CliError::read(path))?;
    }
    Ok(ClientConfig {
        credentials,
        // Without the option, registries on this machine are still accessed by HTTP.
        plain_http: match args.plain_http {
            Some(PlainHttp::Always) => Some(true),
            Some(PlainHttp::Never) => Some(false),
            Some(PlainHttp::Local) | None => None,
        },
        ca_files: args.ca_file,
        client_cert: args.client_cert,
        client_key: args.client_key,
        hosts_dir: args.hosts_dir,
        insecure_skip_tls_verify: args.insecure_skip_tls_verify || args.tls_verify == Some(false),
        max_memory: args.memory.max_memory.0,
        link: args.link,
        limits: limits(args.retry_for, args.stall_timeout, args.connections),
        progress: Arc::clone(progress),
        ..ClientConfig::default()
    })
}

fn limits(retry_for: Option<Duration>, stall_timeout: Duration, connections: u16) -> Limits {
    let usual = Limits::default();
    Limits {
        patience: retry_for.or(usual.patience),
        local_patience: retry_for.unwrap_or(usual.local_patience),
        header: usual.header.min(stall_timeout),
        idle: stall_timeout,
        connections: connections.into(),
        ..usual
    }
}

async fn credentials(
    creds: Option<String>,
    registries: Registries<'_>,
) -> Result<CredentialSource, CliError> {
    let Some(creds) = creds else { return Ok(CredentialSource::Ambient) };
    let (registry, creds) = match (registries, for_host(&creds)) {
        (Registries::One(registry), _) => (registry, &*creds),
        (Registries::Several, (Some(host), login)) => (host, login),
        _ => return Ok(CredentialSource::Ambient),
    };
    let registry = registry.to_owned();
    if let Some((user, password)) = creds.split_once(':') {
        return Ok(CredentialSource::Only {
            registry,
            user: user.to_owned(),
            password: password.to_owned(),
        });
    }
    // On another thread, so that a signal can end the wait for input.
    let read = tokio::task::spawn_blocking(password_from_stdin).await;
    let password = read.map_err(CliError::stdin)??;
    if password.is_empty() {
        return Err(CliError::usage("--password-stdin: standard input is empty"));
    }
    // The password of these users of Google's registries is the file of a key.
    let is_file = creds.starts_with("_json_key");
    if password.contains(['\n', '\r']) && !is_file {
        return Err(CliError::usage(
            "--password-stdin: standard input has several lines; a password is one line",
        ));
    }
    Ok(CredentialSource::Only { registry, user: creds.to_owned(), password })
}

/// At most 64 KiB, without the last newline.
fn password_from_stdin() -> Result<String, CliError> {
    let mut password = String::new();
    io::stdin().lock().take(64 << 10).read_to_string(&mut password).map_err(CliError::stdin)?;
    let line = password.strip_suffix('\n').unwrap_or(&password);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// An image, or all images of a repository or layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListPlace {
    Repository { registry: String, repository: String },
    Image(ImageName),
}

impl ListPlace {
    /// Refuses what is neither an image nor a repository.
    ///
    /// # Errors
    /// If it is a file, a folder or a registry.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        let wrong = match self {
            ListPlace::Repository { registry, repository } => {
                not_on_docker_hub(registry, repository, None)
            }
            ListPlace::Image(image) => misread(image),
        };
        wrong.map_or(Ok(()), Err)
    }

    /// The image; of a repository, the one with the default tag.
    pub(crate) fn image(&self) -> Result<ImageName, CliError> {
        match self {
            ListPlace::Repository { .. } => {
                self.to_string().parse().map_err(|_| CliError::usage("not the name of an image"))
            }
            ListPlace::Image(image) => Ok(image.clone()),
        }
    }

    /// The registry, if it is in one.
    pub(crate) fn registry(&self) -> Option<&str> {
        match self {
            ListPlace::Repository { registry, .. } => Some(registry),
            ListPlace::Image(image) => registry(image),
        }
    }
}

impl FromStr for ListPlace {
    type Err = ImageNameError;

    fn from_str(typed: &str) -> Result<ListPlace, ImageNameError> {
        Ok(match typed.parse()? {
            // The default tag of a name without one does not appear in the text.
            ImageName::Registry(image)
                if image.digest.is_none()
                    && !typed.rsplit('/').next().is_some_and(|last| last.contains(':')) =>
            {
                ListPlace::Repository { registry: image.registry, repository: image.repository }
            }
            image => ListPlace::Image(image),
        })
    }
}

impl fmt::Display for ListPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListPlace::Repository { registry, repository } => write!(f, "{registry}/{repository}"),
            ListPlace::Image(image) => image.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_for_the_host_before_it() {
        for (text, host, rest) in [
            ("r.example=u:p", Some("r.example"), "u:p"),
            ("localhost:5000=u:p=q", Some("localhost:5000"), "u:p=q"),
            ("u:p=q", None, "u:p=q"),
            ("user=x:p", None, "user=x:p"),
            ("/etc/a=b.pem", None, "/etc/a=b.pem"),
            ("r.example=/etc/a.pem", Some("r.example"), "/etc/a.pem"),
        ] {
            assert_eq!(for_host(text), (host, rest), "{text}");
        }
    }

    #[test]
    fn a_name_without_a_tag_is_a_repository() {
        let shown = |typed: &str| match typed.parse().unwrap() {
            place @ ListPlace::Repository { .. } => format!("repository {place}"),
            place @ ListPlace::Image(_) => format!("image {place}"),
        };
        for (typed, want) in [
            ("localhost:5000/a/b", "repository localhost:5000/a/b"),
            ("debian", "repository docker.io/library/debian"),
            ("localhost:5000/a/b:v1", "image localhost:5000/a/b:v1"),
            ("debian:latest", "image docker.io/library/debian:latest"),
            ("oci:dir", "image oci:dir"),
        ] {
            assert_eq!(shown(typed), want);
        }
        assert!("docker://a".parse::<ListPlace>().is_err());
    }
}
