//! `ociseek index`.

use std::io::{self, Read};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::args::{CacheArgs, ExistingArg, Format, IndexArgs, RegistryArgs};
use super::progress::Display;
use super::report::{self, CliError};
use super::terminal::Stdout;
use super::{json, text, ztoc};
use crate::image::ImageName;
use crate::ops::TOOL_IDENTIFIER;
use crate::ops::index::{Existing, IndexOptions, IndexedImage, index};
use crate::progress::Progress;
use crate::store::archive::Archive;
use crate::store::blob::Target;
use crate::store::cache::ZtocCache;
use crate::store::layout::Layout;
use crate::store::registry::{Client, ClientConfig, CredentialSource};
use crate::store::{Destination, Source, StoreError, blocking};

/// Indexes all images, one after the other; those that fail do not keep the others from it.
pub async fn run(args: IndexArgs) -> Result<(), CliError> {
    let started = Instant::now();
    check(&args)?;
    let display = Arc::new(Display::new(args.progress, args.quiet));
    let progress: Arc<dyn Progress> = display.clone();
    let work = Work {
        options: options(&args),
        client: Client::new(client_config(args.registry, &progress).await?).map_err(StoreError::from)?,
        cache: cache(&args.cache, &progress).await,
        output: args.output,
        progress,
    };
    let mut stdout = Stdout::new();
    let mut images = Vec::new();
    let mut failed = 0;
    for name in &args.images {
        let image = name.to_string();
        let image_started = Instant::now();
        display.begin(&image);
        let result = work.index(name).await;
        display.end();
        let seconds = image_started.elapsed().as_secs_f64();
        match &result {
            Ok(_) => {}
            Err(error) => {
                failed += 1;
                report::tell(Some(&image), error);
            }
        }
        match (result, args.format) {
            (Ok(done), Format::Text) => {
                let text = match args.quiet {
                    true => text::digests(&done),
                    false => text::report(&image, work.target().as_deref(), &done, seconds, stdout.style),
                };
                stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout)?;
            }
            (Err(_), Format::Text) => {}
            (Ok(done), Format::Json) => images.push(json::Image::done(image, &done, seconds)),
            (Err(error), Format::Json) => images.push(json::Image::failed(image, report::failure(&error), seconds)),
        }
    }
    if args.format == Format::Json {
        let document = json::Document {
            tool: TOOL_IDENTIFIER,
            bytes_read: images.iter().map(|image| image.bytes_read).sum(),
            bytes_written: images.iter().map(|image| image.bytes_written).sum(),
            images,
            seconds: json::milliseconds(started.elapsed().as_secs_f64()),
        };
        let mut text = serde_json::to_vec_pretty(&document).map_err(|error| CliError::Stdout(error.into()))?;
        text.push(b'\n');
        stdout.write_whole(&text).map_err(CliError::Stdout)?;
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::Images { failed, all: args.images.len() }),
    }
}

/// What clap cannot see for itself.
fn check(args: &IndexArgs) -> Result<(), CliError> {
    let archive = args.images.iter().any(|image| matches!(image, ImageName::Archive { .. }));
    if archive && args.output.is_none() && !args.dry_run {
        return Err(CliError::Usage(
            "an archive is only read: say where the index goes, --output oci:DIR, or nowhere, --dry-run",
        ));
    }
    let password = args.registry.creds.as_deref().is_some_and(|creds| creds.contains(':'));
    if password && args.registry.password_stdin {
        return Err(CliError::Usage("--creds has a password already; with --password-stdin give --creds USER"));
    }
    if !password && args.registry.creds.is_some() && !args.registry.password_stdin {
        return Err(CliError::Usage("--creds wants USER:PASSWORD, or USER together with --password-stdin"));
    }
    Ok(())
}

fn options(args: &IndexArgs) -> IndexOptions {
    let cpus = || std::thread::available_parallelism().map_or(1, NonZero::get);
    IndexOptions {
        platforms: args.platform.clone(),
        layer: ztoc::layer_options(&args.build),
        min_layer_size: args.min_layer_size.0,
        existing: match args.existing {
            ExistingArg::Skip => Existing::Skip,
            ExistingArg::Replace => Existing::Replace,
            ExistingArg::Keep => Existing::Keep,
        },
        jobs: args.jobs.map_or_else(cpus, usize::from),
        dry_run: args.dry_run,
    }
}

async fn client_config(args: RegistryArgs, progress: &Arc<dyn Progress>) -> Result<ClientConfig, CliError> {
    Ok(ClientConfig {
        credentials: credentials(args.creds).await?,
        // Without the flag, registries on this machine are spoken to by HTTP all the same.
        plain_http: args.plain_http.then_some(true),
        ca_files: args.ca_file,
        client_cert: args.client_cert,
        client_key: args.client_key,
        insecure_skip_tls_verify: args.insecure_skip_tls_verify,
        progress: Arc::clone(progress),
        ..ClientConfig::default()
    })
}

async fn credentials(creds: Option<String>) -> Result<CredentialSource, CliError> {
    let Some(creds) = creds else { return Ok(CredentialSource::Ambient) };
    if let Some((user, password)) = creds.split_once(':') {
        return Ok(CredentialSource::Explicit { user: user.to_owned(), password: password.to_owned() });
    }
    // On another thread, so that a signal ends the wait for someone who does not type.
    let read = tokio::task::spawn_blocking(password_from_stdin).await;
    let password = read.map_err(|error| CliError::Stdin(error.into()))??;
    Ok(CredentialSource::Explicit { user: creds, password })
}

/// One line of at most 64 KiB, without its end.
fn password_from_stdin() -> Result<String, CliError> {
    let mut password = String::new();
    io::stdin().lock().take(64 << 10).read_to_string(&mut password).map_err(CliError::Stdin)?;
    let line = password.strip_suffix('\n').unwrap_or(&password);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

/// The cache, where the user wants it or where caches are.
async fn cache(args: &CacheArgs, progress: &Arc<dyn Progress>) -> Option<ZtocCache> {
    if args.no_cache {
        return None;
    }
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = args
        .cache_dir
        .clone()
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("ociseek")))
        .or_else(|| var("HOME").map(|home| home.join(".cache/ociseek")));
    let progress = Arc::clone(progress);
    tokio::task::spawn_blocking(move || ZtocCache::open(dir.as_deref(), progress)).await.ok()
}

/// What all images have in common.
struct Work {
    options: IndexOptions,
    client: Client,
    cache: Option<ZtocCache>,
    output: Option<PathBuf>,
    progress: Arc<dyn Progress>,
}

impl Work {
    async fn index(&self, name: &ImageName) -> Result<IndexedImage, CliError> {
        let (source, root, home) = self.open(name).await?;
        let destination = self.destination(home).await?;
        Ok(index(&source, &root, destination.as_ref(), self.cache.as_ref(), &self.options, &self.progress).await?)
    }

    /// Where the image is, which one it is there, and where its index goes unless the user says otherwise.
    async fn open(&self, name: &ImageName) -> Result<(Source, Target, Option<Destination>), CliError> {
        Ok(match name {
            ImageName::Registry(reference) => {
                let repository =
                    self.client.repository(&reference.registry, &reference.repository).map_err(StoreError::from)?;
                let target = match (&reference.digest, &reference.tag) {
                    (Some(digest), _) => Target::Digest(*digest),
                    (None, Some(tag)) => Target::Tag(tag.clone()),
                    (None, None) => Target::Tag("latest".to_owned()),
                };
                (Source::Registry(repository.clone()), target, Some(Destination::Registry(repository)))
            }
            ImageName::Layout { dir, select } => {
                let (dir, select) = (dir.clone(), select.clone());
                let (layout, found) = blocking(move || {
                    let layout = Layout::open(&dir)?;
                    let found = layout.find(&select)?;
                    Ok((Arc::new(layout), found))
                })
                .await?;
                (Source::Layout(Arc::clone(&layout)), Target::Digest(found.digest), Some(Destination::Layout(layout)))
            }
            ImageName::Archive { file, select } => {
                let (file, select) = (file.clone(), select.clone());
                let (archive, found) = blocking(move || {
                    let archive = Archive::open(&file)?;
                    let found = archive.find(&select)?;
                    Ok((Arc::new(archive), found))
                })
                .await?;
                (Source::Archive(archive), Target::Digest(found.digest), None)
            }
        })
    }

    /// Where the index goes. A dry run makes no layout that is not there: then it is as if nothing were in it.
    async fn destination(&self, home: Option<Destination>) -> Result<Option<Destination>, CliError> {
        let Some(dir) = self.output.clone() else { return Ok(home) };
        if self.options.dry_run && !dir.exists() {
            return Ok(None);
        }
        let dry_run = self.options.dry_run;
        let open = move || if dry_run { Layout::open(&dir) } else { Layout::open_or_create(&dir) };
        Ok(Some(Destination::Layout(Arc::new(blocking(open).await?))))
    }

    fn target(&self) -> Option<String> {
        self.output.as_ref().map(|dir| format!("oci:{}", dir.display()))
    }
}
