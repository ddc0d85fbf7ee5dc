//! What can be typed behind `ociseek ztoc extract` and `ociseek ztoc verify`.

use std::path::PathBuf;

use clap::Args;

use super::args::Format;

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

    /// Text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}
