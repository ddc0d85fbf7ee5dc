//! `ociseek ztoc`: commands about the ztoc of a layer.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::shared::args::{BuildArgs, FormatArgs, MemoryArgs, OutputFormat};
use crate::cli::shared::error::CliError;
use crate::cli::shared::terminal::Stdout;
use ociseek_format::ztoc::{MAX_ENCODED, Ztoc, decode};

pub(super) mod create;
pub(super) mod extract;
pub(super) mod json;
pub(super) mod text;
pub(super) mod verify;

/// Build, show, verify or read through the ztoc of one layer
#[derive(Debug, Subcommand)]
pub(crate) enum ZtocCommand {
    Create(ZtocCreateArgs),
    Show(ZtocShowArgs),
    Extract(ZtocExtractArgs),
    Verify(ZtocVerifyArgs),
}

const CREATE_LONG_ABOUT: &str = "\
Builds the ztoc of one layer blob, a gzip or a plain tar (detected by content).

If the layer is broken, or if no consumer could serve files from its ztoc, ociseek prints the reason, writes \
nothing, and exits with status 1.";

const CREATE_AFTER_HELP: &str = "\
Examples:
  ociseek ztoc create layer.tar.gz --output layer.ztoc
  curl -fsSL $BLOB_URL | ociseek ztoc create - --output layer.ztoc
  ociseek ztoc create --span-size 64KiB layer.tar --output - | ociseek ztoc show -";

/// Build the ztoc of one layer blob
#[derive(Debug, Args)]
#[command(long_about = CREATE_LONG_ABOUT, after_help = CREATE_AFTER_HELP)]
pub(crate) struct ZtocCreateArgs {
    /// The layer's blob; - for standard input
    pub layer: PathBuf,

    /// Where to write the ztoc; - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,

    /// An existing ztoc of the layer with other options, to decode faster on several cores; the
    /// result is the same
    #[arg(long, value_name = "FILE")]
    pub guide: Option<PathBuf>,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

const SHOW_AFTER_HELP: &str = "\
Names and records that are not UTF-8 are preserved: JSON has them in base64, in a field with the suffix `_b64`, and \
text shows the bytes as \\xNN.

Examples:
  ociseek ztoc show layer.ztoc
  ociseek ztoc show --format json layer.ztoc | jq '.entries[] | select(.size > 1000000) | .name'";

/// Print everything in a ztoc
#[derive(Debug, Args)]
#[command(after_help = SHOW_AFTER_HELP)]
pub(crate) struct ZtocShowArgs {
    /// The ztoc; - for standard input
    pub file: PathBuf,

    #[command(flatten)]
    pub format: FormatArgs,
}

const EXTRACT_LONG_ABOUT: &str = "\
Writes the regular files of a layer into a directory, read through the spans of its ztoc, as a lazy mount would.

Regular files and their hard links are written, with times and permissions (except setuid and similar bits); symbolic \
links, devices and fifos are skipped. Whiteouts are written as ordinary files. Nothing is ever written outside the \
directory, whatever the names of the entries, and symbolic links in it are not followed.

It stops with exit status 1 at the first span with a wrong digest, or at any other mismatch with the ztoc. Completed \
files are kept; no file is ever left half-written.";

/// Write the files of a layer into a directory, read through its ztoc
#[derive(Debug, Args)]
#[command(long_about = EXTRACT_LONG_ABOUT)]
#[command(after_help = "Example:\n  ociseek ztoc extract --layer layer.tar.gz --ztoc layer.ztoc --output files")]
pub(crate) struct ZtocExtractArgs {
    /// The layer's blob
    #[arg(long, value_name = "FILE")]
    pub layer: PathBuf,

    /// Its ztoc; - for standard input
    #[arg(long, value_name = "FILE")]
    pub ztoc: PathBuf,

    /// Where to write the files; the directory is created if needed
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// Replace existing files [default: stop at the first one]
    #[arg(long)]
    pub force: bool,
}

const VERIFY_LONG_ABOUT: &str = "\
Verifies a ztoc against its layer.

The layer is decoded from start to end by an independent decoder (zlib-rs), and the result is compared with \
everything the ztoc says: the digest of each span, the position and window of each checkpoint, the metadata and \
header position of each entry, and the bytes that each span decodes to from its checkpoint. Anything that consumers \
are known to reject is also reported.

Every difference is listed; the exit status is 3 if there is any.";

/// Verify a ztoc against its layer
#[derive(Debug, Args)]
#[command(long_about = VERIFY_LONG_ABOUT)]
#[command(after_help = "Example:\n  ociseek ztoc verify --layer layer.tar.gz --ztoc layer.ztoc")]
pub(crate) struct ZtocVerifyArgs {
    /// The layer's blob; - for standard input
    #[arg(long, value_name = "FILE")]
    pub layer: PathBuf,

    /// Its ztoc
    #[arg(long, value_name = "FILE")]
    pub ztoc: PathBuf,

    #[command(flatten)]
    pub format: FormatArgs,
}

/// Prints everything in a ztoc.
pub(crate) fn show(args: &ZtocShowArgs, stdout: &mut Stdout) -> Result<(), CliError> {
    let (bytes, ztoc) = read_ztoc(&args.file)?;
    match args.format.get() {
        OutputFormat::Text => text::write(&bytes, &ztoc, stdout),
        OutputFormat::Json => json::write(&bytes, &ztoc, stdout),
    }
    .map_err(CliError::Stdout)
}

/// Reads a ztoc, up to the size limit of ztocs.
pub(crate) fn read_ztoc(path: &Path) -> Result<(Vec<u8>, Ztoc), CliError> {
    let bytes = read_ztoc_bytes(path)?;
    let ztoc = decode(&bytes).map_err(|source| CliError::Ztoc { path: path.to_owned(), source })?;
    Ok((bytes, ztoc))
}

/// Reads a ztoc without decoding it.
pub(crate) fn read_ztoc_bytes(path: &Path) -> Result<Vec<u8>, CliError> {
    let limit = MAX_ENCODED as u64;
    let mut bytes = Vec::new();
    open(path)?.take(limit + 1).read_to_end(&mut bytes).map_err(|source| unreadable(path, source))?;
    if bytes.len() as u64 > limit {
        return Err(CliError::ZtocTooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

pub(crate) fn is_std(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>, CliError> {
    if is_std(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    Ok(Box::new(file))
}

pub(crate) fn unreadable(path: &Path, source: io::Error) -> CliError {
    if is_std(path) { CliError::Stdin(source) } else { CliError::Read { path: path.to_owned(), source } }
}
