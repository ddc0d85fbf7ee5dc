//! The options of `ociseek ls`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Args};

use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::read_image::ReadArgs;
use ociseek_format::image::ImageName;

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

    /// A file or directory; symbolic links are followed inside the image
    #[arg(default_value = "/")]
    pub path: OsString,

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
    #[arg(long, value_name = "N")]
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
