//! What can be typed behind `ociseek ls`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Args};

use crate::cli::shared::args::FormatArgs;
use crate::cli::shared::reading::ReadArgs;
use crate::image::ImageName;

const LS_LONG_ABOUT: &str = "\
Lists the files of an image, sorted by name, without pulling it: with a SOCI index only the ztocs are fetched. Layers that \
no index covers are read once, and what was learned is kept in the cache.

The layers are flattened as containerd unpacks them. \
IMAGE is named as for ociseek index; what docker save wrote is docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER].";

const LS_AFTER_HELP: &str = "\
On a terminal names are quoted so that a shell takes them; else they are written as they are.

Examples:
  ociseek ls -l python:3.13 /usr/local/bin
  ociseek ls -R --json oci:app | jq -r '.entries[] | select(.size > 10000000) | .path'
  ociseek ls --layer 0 -l oci:app

JSON: docs/json.md says what each field means.";

/// List the files of an image without pulling it
#[derive(Debug, Args)]
#[command(long_about = LS_LONG_ABOUT, after_help = LS_AFTER_HELP)]
// -h is what it is for ls.
#[command(disable_help_flag = true, arg = Arg::new("help").long("help").action(ArgAction::Help).help("Print help"))]
#[command(arg = always("all", 'a'), arg = always("one", '1'))]
pub struct LsArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// A file or directory in it; symbolic links are followed inside the image
    #[arg(default_value = "/")]
    pub path: OsString,

    /// Show type and mode, links, owner, size, time of modification (UTC) and where symbolic links lead to
    #[arg(long, short)]
    pub long: bool,

    /// With --long: sizes with a unit, such as 17.3MiB
    #[arg(long = "human-readable", short = 'h')]
    pub human: bool,

    /// List a directory itself, not what is in it
    #[arg(long, short, conflicts_with_all = ["recursive", "layer"])]
    pub directory: bool,

    /// List what is in directories, too, and in those below them
    #[arg(long, short = 'R')]
    pub recursive: bool,

    #[command(flatten)]
    pub format: FormatArgs,

    /// Only this layer, counted from 0 at the bottom, as its tar has it: whiteouts and all, not flattened
    #[arg(long, value_name = "N")]
    pub layer: Option<usize>,

    #[command(flatten)]
    pub read: ReadArgs,
}

/// An option of ls that says what is always done here.
fn always(name: &'static str, letter: char) -> Arg {
    let help = "Nothing more than without: all files are listed, one a line";
    Arg::new(name).short(letter).action(ArgAction::SetTrue).help(help)
}
