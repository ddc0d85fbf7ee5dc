//! Shared by the commands that read an image's files: options, opening the image, and reporting
//! what that cost.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::args::{ReadCacheArgs, RegistryArgs, ViewArgs};
use super::error::CliError;
use super::size::{counted, human};
use super::source::Images;
use super::terminal::{complain, quoted};
use super::trust::{UseOfFiles, tell_trust};
use super::{caches, report};
use ociseek_format::digest::Digest;
use ociseek_format::image::ImageName;
use ociseek_format::progress::Progress;
use ociseek_format::tree::PathError;
use ociseek_ops::open::{OpenOptions, RootFs, open};
use ociseek_rootfs::content::ContentOptions;
use ociseek_rootfs::layers::Caches;
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::registry::Limits;

/// How long a read may take, apart from the time for which a failing registry is retried.
const READ_LIMIT: Duration = Duration::from_secs(120);

/// Options for reading an image.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub view: ViewArgs,

    /// Print on standard error how many bytes of the layers were fetched
    #[arg(long, help_heading = clap::builder::Resettable::Reset)]
    pub stats: bool,

    #[command(flatten)]
    pub cache: ReadCacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// An image that was found, before any of its layers is read.
pub(crate) struct FoundImage {
    pub name: ImageName,
    pub source: Source,
    pub root: Target,
    /// The index that the user named.
    pub index: Option<Digest>,
    pub caches: Caches,
    pub progress: Arc<dyn Progress>,
}

impl FoundImage {
    pub(crate) async fn new(
        name: &ImageName,
        args: &ReadArgs,
        progress: Arc<dyn Progress>,
    ) -> Result<FoundImage, CliError> {
        let images = Images::new(args.registry.clone(), [name], &progress).await?;
        let (source, root) = images.open(name).await?;
        let index = args.view.index(&source, &root, &progress).await?;
        let caches = caches::reading(&args.cache, &progress).await?;
        Ok(FoundImage { name: name.clone(), source, root, index, caches, progress })
    }

    /// With `soci_only`, ignores fine indexes.
    pub(crate) async fn open(&self, args: &ReadArgs, soci_only: bool) -> Result<RootFs, CliError> {
        let trust = &args.view.trust;
        let retried = args.registry.retry_for.or(Limits::default().patience).unwrap_or_default();
        let options = OpenOptions {
            trust: trust.rules(&self.name, UseOfFiles::Show)?,
            platform: args.view.platform.platform.clone(),
            index: self.index,
            soci_only: soci_only || !trust.fine,
            // A command waits for a registry as long as --retry-for says, and then for the bytes.
            content: ContentOptions {
                deadline: READ_LIMIT.saturating_add(retried),
                retry_forever: false,
                ..ContentOptions::default()
            },
            ..OpenOptions::default()
        };
        let image = open(&self.source, &self.root, &options, &self.caches, &self.progress).await?;
        tell_trust(&self.name, image.trust());
        Ok(image)
    }
}

/// Reports on standard error what was fetched of the layers.
pub(crate) fn tell_stats(rootfs: &RootFs) {
    let stats = rootfs.content.stats();
    let opening: u64 = rootfs.layers.iter().map(|layer| layer.bytes_read).sum();
    let opened = match opening {
        0 => String::new(),
        bytes => format!(", {} of it to open layers without a ztoc", human(bytes)),
    };
    complain(&format!(
        "fetched {} bytes of {} ({} of {}) in {}{opened}",
        stats.bytes_fetched,
        stats.image_bytes,
        human(stats.bytes_fetched),
        human(stats.image_bytes),
        counted(stats.requests, "request", "requests"),
    ));
}

/// Reports that one of several paths failed. The others are still processed.
pub(crate) fn tell_path(path: &[u8], error: &CliError) {
    let name = path.strip_prefix(b"/").unwrap_or(path);
    let says_it = matches!(
        error.downcast_ref(),
        Some(PathError::NotFound(at) | PathError::NotDirectory(at)) if at == name
    );
    report::report_error((!says_it).then(|| quoted(path)).as_deref(), error);
}
