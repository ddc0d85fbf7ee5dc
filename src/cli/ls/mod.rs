//! `ociseek ls`.

use std::io::{self, BufWriter, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::cli::shared::error::CliError;
use crate::cli::shared::progress::Display;
use crate::cli::shared::quote::quoted;
use crate::cli::shared::read_image::{FoundImage, tell_stats};
use crate::cli::shared::talk::TalkArgs;
use crate::cli::shared::terminal::Stdout;
use args::LsArgs;
use listing::Listing;
use ociseek_format::image::Descriptor;
use ociseek_format::layer::clean;
use ociseek_format::ztoc::FileMetadata;
use ociseek_ops::discover::discover;
use ociseek_ops::open::{OpenImageError, open_layers_of};
use ociseek_rootfs::layers::OpenLayer;
use text::{Detail, NameStyle};

pub(super) mod args;
pub(super) mod json;
mod listing;
mod text;

pub(super) async fn run(args: LsArgs, talk: TalkArgs) -> Result<(), CliError> {
    let (display, image) = (Arc::new(Display::new(talk)), args.image.to_string());
    let find = async || FoundImage::new(&args.image, &args.read, display.clone()).await;
    let mut stdout = Stdout::new();
    let names = if io::stdout().is_terminal() { NameStyle::Quoted } else { NameStyle::Raw };
    let detail = match (args.long, args.human) {
        (false, _) => Detail::Name,
        (true, false) => Detail::Long,
        (true, true) => Detail::Human,
    };
    let path = args.path.as_bytes();
    if let Some(number) = args.layer {
        let opening = async { open_one(&find().await?, &args, number).await };
        let (layer, open) = display.during(&image, opening).await?;
        let entries = entries(&open.map().files, path);
        if entries.is_empty() && !is_root(path) {
            return Err(CliError::NoEntry(quoted(path)));
        }
        let out = BufWriter::with_capacity(64 << 10, &mut stdout);
        let written = match args.format.is_json() {
            true => json::layer(&image, &layer, &entries, out),
            false => text::layer(&entries, detail, names, out),
        };
        return written.map_err(CliError::Stdout);
    }
    let opening = async { find().await?.open(&args.read, false).await };
    let rootfs = display.during(&image, opening).await?;
    let listing = Listing::of(&rootfs, path, &args)?;
    let out = BufWriter::with_capacity(64 << 10, &mut stdout);
    let written = match args.format.is_json() {
        true => json::tree(&image, &rootfs, &listing, out),
        false => text::tree(&rootfs.tree, &listing, detail, names, out),
    };
    written.map_err(CliError::Stdout)?;
    if args.read.stats {
        tell_stats(&rootfs);
    }
    Ok(())
}

/// Opens a single layer, which need not be a complete file system.
async fn open_one(image: &FoundImage, args: &LsArgs, number: usize) -> Result<(Descriptor, OpenLayer), CliError> {
    let FoundImage { source, root, caches, progress } = image;
    let read = &args.read;
    let (platform, index) = (read.view.platform.platform.as_ref(), read.view.index.as_ref());
    let source = &source.with_documents_in(&caches.ztocs);
    let found = discover(source, root, platform, index, progress).await?;
    let layers = found.layers.len();
    let layer = found.layers.get(number).cloned().ok_or(OpenImageError::NoLayer { wanted: number, layers })?;
    let opened = open_layers_of(source, &found, vec![layer.clone()], false, caches, progress).await;
    let open = opened.map_err(OpenImageError::from)?.swap_remove(0);
    Ok((layer, open))
}

/// The entries at or below `path`, sorted by their cleaned names as bytes. Entries with the same
/// name are in the tar's order.
fn entries<'a>(files: &'a [FileMetadata], path: &[u8]) -> Vec<&'a FileMetadata> {
    let wanted = clean(path);
    let mut found: Vec<(Vec<&[u8]>, &FileMetadata)> =
        (files.iter()).map(|file| (clean(&file.name), file)).filter(|(parts, _)| parts.starts_with(&wanted)).collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found.into_iter().map(|(_, file)| file).collect()
}

fn is_root(path: &[u8]) -> bool {
    clean(path).is_empty()
}
