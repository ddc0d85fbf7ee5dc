//! What can be typed behind `ociseek ztoc`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::shared::args::{BuildArgs, FormatArgs, MemoryArgs};

/// Build, show, prove or read through the ztoc of one layer
#[derive(Debug, Subcommand)]
pub enum ZtocCommand {
    Create(ZtocCreateArgs),
    Show(ZtocShowArgs),
    Extract(ZtocExtractArgs),
    Verify(ZtocVerifyArgs),
}

const CREATE_LONG_ABOUT: &str = "\
Builds the ztoc of one layer blob: a gzip or a plain tar, told apart by their content.

If the layer is broken, or if no consumer could serve files from its ztoc, the reason is printed, the exit status is 1, \
and nothing is written.";

const CREATE_AFTER_HELP: &str = "\
Examples:
  ociseek ztoc create layer.tar.gz --output layer.ztoc
  curl -fsSL $BLOB_URL | ociseek ztoc create - --output layer.ztoc
  ociseek ztoc create --span-size 64KiB layer.tar --output - | ociseek ztoc show -";

/// Build the ztoc of one layer blob
#[derive(Debug, Args)]
#[command(long_about = CREATE_LONG_ABOUT, after_help = CREATE_AFTER_HELP)]
pub struct ZtocCreateArgs {
    /// The layer's blob; - is standard input
    pub layer: PathBuf,

    /// Where the ztoc is written; - is standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// A ztoc that the layer has already, of other options: several cores decode faster by it. The result is the same without
    #[arg(long, value_name = "FILE")]
    pub guide: Option<PathBuf>,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

const SHOW_AFTER_HELP: &str = "\
Names and records that are not UTF-8 stay recoverable: JSON carries them in base64 under the field's name with `_b64`, and \
text shows the odd bytes as \\xNN.

Examples:
  ociseek ztoc show layer.ztoc
  ociseek ztoc show --format json layer.ztoc | jq '.entries[] | select(.size > 1000000) | .name'";

/// Print everything that is in a ztoc
#[derive(Debug, Args)]
#[command(after_help = SHOW_AFTER_HELP)]
pub struct ZtocShowArgs {
    /// The ztoc; - is standard input
    pub file: PathBuf,

    #[command(flatten)]
    pub format: FormatArgs,
}

const EXTRACT_LONG_ABOUT: &str = "\
Writes the regular files of a layer into a directory, read through the spans of its ztoc.

It is what a lazy mount reads, without the mount. Regular files and their hard links are written, with permissions (but for \
setuid and the like) and times; symbolic links, devices and fifos are left out. Whiteouts are files like others. Nothing is \
ever written outside of the directory, whatever the entries' names say, and no symbolic link below it is followed.

At the first span whose digest is wrong, and at anything else that is not as the ztoc says, it stops with exit status 1. \
Files that were complete before that stay; no file is ever left half-written.";

/// Write the files of a layer into a directory, read through its ztoc
#[derive(Debug, Args)]
#[command(long_about = EXTRACT_LONG_ABOUT)]
#[command(after_help = "Example:\n  ociseek ztoc extract --layer layer.tar.gz --ztoc layer.ztoc --output files")]
pub struct ZtocExtractArgs {
    /// The layer's blob
    #[arg(long, value_name = "FILE")]
    pub layer: PathBuf,

    /// Its ztoc; - is standard input
    #[arg(long, value_name = "FILE")]
    pub ztoc: PathBuf,

    /// Where the files go; the directory is made if it is not there
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// Replace files that are there already [default: stop at the first one]
    #[arg(long)]
    pub force: bool,
}

const VERIFY_LONG_ABOUT: &str = "\
Proves a ztoc against its layer.

The layer is decoded straight through by a decoder that is not ours (zlib-rs), and all that the ztoc says is held against what \
comes out: the digest of each span, the place and the window of each checkpoint, each entry with its metadata and the place of \
its header, and the bytes that each span decodes to from its checkpoint, which are all that files are read from. What \
consumers are known to refuse is found too.

Every difference is listed, and the exit status is 3 if there is one.";

/// Prove a ztoc against its layer
#[derive(Debug, Args)]
#[command(long_about = VERIFY_LONG_ABOUT)]
#[command(after_help = "Example:\n  ociseek ztoc verify --layer layer.tar.gz --ztoc layer.ztoc")]
pub struct ZtocVerifyArgs {
    /// The layer's blob; - is standard input
    #[arg(long, value_name = "FILE")]
    pub layer: PathBuf,

    /// Its ztoc
    #[arg(long, value_name = "FILE")]
    pub ztoc: PathBuf,

    #[command(flatten)]
    pub format: FormatArgs,
}
