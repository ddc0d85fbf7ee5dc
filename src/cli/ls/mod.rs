//! `ociseek ls`.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use clap::{Arg, ArgAction, Args};

use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::error::CliError;
use crate::cli::shared::parse::{self, NonEmptyPath};
use crate::cli::shared::progress::Display;
use crate::cli::shared::read_image::{FoundImage, ReadArgs, tell_path, tell_stats};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::quoted;
use crate::cli::shared::trust::{UseOfFiles, tell_trust};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::{Descriptor, ImageName};
use ociseek_format::path::clean;
use ociseek_format::tree::{NodeId, Tree};
use ociseek_format::ztoc::FileMetadata;
use ociseek_ops::discover::discover;
use ociseek_ops::open::{DocumentFetch, OpenImageError, RootFs, open_layers_of};
use ociseek_ops::trust::{Chosen, IndexChoice, choose};
use ociseek_rootfs::layers::OpenLayer;
use text::{Detail, NameStyle};

pub(super) mod json;
mod text;

const LS_LONG_ABOUT: &str = "\
Lists the files of an image, sorted by name, without pulling it. For layers covered by a SOCI index, only the ztocs \
are fetched. Other layers are read once, and the cache keeps their ztocs.

The layers are flattened the way containerd unpacks them. IMAGE is as for ociseek index, or \
docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive from docker save.";

const LS_AFTER_HELP: &str = "\
On a terminal, names are quoted for the shell; otherwise they are printed unchanged.

Examples:
  ociseek ls -l python:3.13 /usr/local/bin
  ociseek ls -R --json oci:app | jq -r '.entries[] | select(.size > 10000000) | .path'
  ociseek ls --layer 0 -l oci:app

JSON: docs/json.md describes each field.";

/// List the files of an image without pulling it
#[derive(Debug, Args)]
#[command(long_about = LS_LONG_ABOUT, after_help = LS_AFTER_HELP)]
// -h has the meaning that it has for ls.
#[command(disable_help_flag = true, arg = Arg::new("help").long("help").action(ArgAction::Help).help("Print help"))]
#[command(arg = always("all", 'a'), arg = always("one", '1'))]
pub(crate) struct LsArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Files or directories; symbolic links are followed inside the image
    #[arg(value_name = "PATH", default_value = "/", value_parser = NonEmptyPath)]
    pub paths: Vec<OsString>,

    /// Show type and mode, links, owner, size, modification time (UTC) and symbolic link targets
    #[arg(long, short)]
    pub long: bool,

    /// With --long: print sizes with a unit, such as 17.3MiB
    #[arg(long = "human-readable", short = 'h')]
    pub human: bool,

    /// List directories themselves, not their contents
    #[arg(long, short, conflicts_with_all = ["recursive", "layer"])]
    pub directory: bool,

    /// List subdirectories recursively
    #[arg(long, short = 'R')]
    pub recursive: bool,

    /// List only this layer, counted from 0 at the bottom, as in its tar: not flattened, with
    /// whiteouts
    #[arg(long, value_name = "N", value_parser = parse::layer)]
    pub layer: Option<usize>,

    #[command(flatten)]
    pub read: ReadArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

/// An option of ls for behaviour that is always on here.
fn always(name: &'static str, letter: char) -> Arg {
    let help = "No effect: all files are always listed, one per line";
    Arg::new(name).short(letter).action(ArgAction::SetTrue).help(help)
}

pub(super) async fn run(args: LsArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let display = Arc::new(Display::new(verbosity));
    let image = args.image.to_string();
    let find = async || FoundImage::new(&args.image, &args.read, display.clone()).await;
    let mut stdout = Stdout::new();
    let names = if io::stdout().is_terminal() { NameStyle::Quoted } else { NameStyle::Raw };
    let detail = match (args.long, args.human) {
        (false, _) => Detail::Name,
        (true, false) => Detail::Long,
        (true, true) => Detail::Human,
    };
    let [first, others @ ..] = &args.paths[..] else { return Ok(()) };
    if !others.is_empty() && (args.layer.is_some() || args.format.is_json()) {
        return Err(CliError::usage("with --layer and with --json, ls takes one PATH"));
    }
    let path = first.as_bytes();
    if let Some(number) = args.layer {
        let opening = async { open_one(&find().await?, &args, number).await };
        let (layer, open) = display.during(&image, opening).await?;
        let files = open.map().files.all();
        let entries = entries(&files, path);
        if entries.is_empty() && !is_root(path) {
            return Err(CliError::new(format!(
                "the layer has no entry at or below {}",
                quoted(path)
            )));
        }
        let out = BufWriter::with_capacity(64 << 10, &mut stdout);
        let written = if args.format.is_json() {
            json::layer(&image, &layer, &entries, out)
        } else {
            text::layer(&entries, detail, names, out)
        };
        return written.map_err(CliError::stdout);
    }
    let opening = async { find().await?.open(&args.read, false).await };
    let rootfs = display.during(&image, opening).await?;
    let mut failed = 0;
    for (place, path) in args.paths.iter().enumerate() {
        let listing = match Listing::of(&rootfs, path.as_bytes(), &args) {
            Ok(listing) => listing,
            Err(error) if others.is_empty() => return Err(error),
            Err(error) => {
                failed += 1;
                tell_path(path.as_bytes(), &error);
                continue;
            }
        };
        // As ls does.
        if !others.is_empty() && !args.directory {
            let gap = if place > 0 { "\n" } else { "" };
            stdout.print(format!("{gap}{}:\n", quoted(path.as_bytes())))?;
        }
        let out = BufWriter::with_capacity(64 << 10, &mut stdout);
        let written = if args.format.is_json() {
            json::tree(&image, &rootfs, &listing, out)
        } else {
            text::tree(&rootfs.tree, &listing, detail, names, out)
        };
        written.map_err(CliError::stdout)?;
    }
    if args.read.stats {
        tell_stats(&rootfs);
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::some(failed, args.paths.len(), "paths failed")),
    }
}

/// Opens a single layer, which need not be a complete file system.
async fn open_one(
    image: &FoundImage,
    args: &LsArgs,
    number: usize,
) -> Result<(Descriptor, OpenLayer), CliError> {
    let FoundImage { name, source, root, index, caches, progress } = image;
    let read = &args.read;
    let platform = read.view.platform.platform.as_ref();
    let index = index.as_ref();
    let source = &source.with_documents_in(&caches.ztocs);
    let discovered = discover(source, root, platform, index, progress).await?;
    let rules = read.view.trust.rules(name, UseOfFiles::Show)?;
    let choice = IndexChoice { requested: index, rules: &rules, soci_only: !read.view.trust.fine };
    let Chosen { image: discovered, trust, .. } =
        choose(source, discovered, choice, &caches.ztocs, &**progress).await?;
    let layers = discovered.layers.len();
    let layer = discovered
        .layers
        .get(number)
        .cloned()
        .ok_or(OpenImageError::NoLayer { wanted: number, layers })?;
    let fetch = DocumentFetch::default();
    let opened =
        open_layers_of(source, &discovered, &trust, vec![layer.clone()], &fetch, caches, progress)
            .await;
    let open = opened.map_err(OpenImageError::from)?.swap_remove(0);
    tell_trust(name, trust.of(&layer.digest, open.how));
    Ok((layer, open))
}

/// The entries at or below `path`, sorted by their cleaned names as bytes. Entries with the same
/// name are in the tar's order.
fn entries<'a>(files: &'a [FileMetadata], path: &[u8]) -> Vec<&'a FileMetadata> {
    let wanted = clean(path);
    let mut entries: Vec<(Vec<&[u8]>, &FileMetadata)> = (files.iter())
        .map(|file| (clean(&file.name), file))
        .filter(|(parts, _)| parts.starts_with(&wanted))
        .collect();
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    entries.into_iter().map(|(_, file)| file).collect()
}

fn is_root(path: &[u8]) -> bool {
    clean(path).is_empty()
}

/// The selected part of the tree.
pub(crate) enum Listing {
    /// A single file with the name that was typed.
    File { name: Vec<u8>, node: NodeId },
    /// Directories with their displayed paths. Only one, unless `recursive` is set.
    Directories { list: Vec<(Vec<u8>, NodeId)>, recursive: bool },
}

impl Listing {
    pub(crate) fn of(rootfs: &RootFs, path: &[u8], args: &LsArgs) -> Result<Listing, CliError> {
        let tree = &rootfs.tree;
        // Like ls: -l and -d show a link itself.
        let node = tree.resolve(path, !args.long && !args.directory)?;
        if args.directory || !tree.node(node).kind.is_directory() {
            return Ok(Listing::File { name: path.to_vec(), node });
        }
        let mut list = vec![(path.to_vec(), node)];
        if args.recursive {
            list = below(tree, path, node);
        }
        Ok(Listing::Directories { list, recursive: args.recursive })
    }
}

/// A directory and all directories below it, parents first, in the order of their names. Not
/// recursive, because a tree may be deep.
fn below(tree: &Tree, path: &[u8], root: NodeId) -> Vec<(Vec<u8>, NodeId)> {
    let mut directories = Vec::new();
    let mut ahead = vec![(path.to_vec(), root)];
    while let Some((path, directory)) = ahead.pop() {
        let children: Vec<_> = tree
            .children(directory)
            .filter(|(_, child)| tree.node(*child).kind.is_directory())
            .collect();
        ahead.extend(children.into_iter().rev().map(|(name, child)| (join(&path, name), child)));
        directories.push((path, directory));
    }
    directories
}

/// A path below a directory, as ls writes it.
fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.last() {
        None | Some(b'/') => [directory, name].concat(),
        Some(_) => [directory, b"/", name].concat(),
    }
}
