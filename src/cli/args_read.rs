//! What can be typed to read an indexed image: the options of `inspect`, `ls`, `cat` and `verify`.

use std::ffi::OsString;

use clap::Args;

use super::args::{CacheArgs, Format, ProgressStyle, RegistryArgs};
use super::size::ByteSize;
use crate::digest::Digest;
use crate::image::{ImageName, Platform};

const INSPECT_LONG_ABOUT: &str = "\
Shows which SOCI indexes an image has and what they hold: who made them, how they were found, which layers they cover and \
how much of the image that is, the sizes of the ztocs, and what a consumer makes of it.

No layer is read. IMAGE is named as for ociseek index.";

const INSPECT_AFTER_HELP: &str = "\
Examples:
  ociseek inspect ghcr.io/acme/app:1.4
  ociseek inspect --format json oci:app | jq '.manifests[].coverage'
  ociseek inspect --ztoc 3f1c22ab oci:app

JSON: the documentation of the crate, module cli::inspect_json, says what each field means.";

/// Show which SOCI indexes an image has and what they hold
#[derive(Debug, Args)]
#[command(long_about = INSPECT_LONG_ABOUT, after_help = INSPECT_AFTER_HELP)]
pub struct InspectArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Only this platform, such as linux/arm64; may be repeated [default: all platforms of the image]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    pub platform: Vec<Platform>,

    /// Look through this SOCI index, listed or not [default: the first that can be used]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    /// Show everything in one ztoc: its spans and its files
    ///
    /// The ztoc is named by its own digest or by that of its layer, or by the first digits of one.
    #[arg(long, value_name = "DIGEST")]
    pub ztoc: Option<String>,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// How an image is read.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The platform, such as linux/arm64 [default: this machine's, or the only one]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_parser = super::parse::one_platform)]
    pub platform: Option<Platform>,

    /// Read through this SOCI index, listed or not [default: the first that can be used]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    /// Say on standard error how many bytes of the layers were fetched
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub cache: ReadCacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// What was read is kept for the next reader.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cache")]
pub struct ReadCacheArgs {
    #[command(flatten)]
    pub cache: CacheArgs,

    /// How much of the content of layers is kept in the cache; suffixes KiB, MiB, GiB
    ///
    /// Of one layer at most four fifths of this are kept unasked, and at most 64 MiB and 64 times
    /// the size of its blob. A zstd layer that is larger when decoded is fetched again, from its
    /// start, when something is read that the cache lacks.
    #[arg(long, value_name = "SIZE", env = "OCISEEK_CACHE_SIZE", default_value = "4GiB")]
    pub cache_size: ByteSize,
}

const LS_LONG_ABOUT: &str = "\
Lists the files of an image, sorted by name, without pulling it: with a SOCI index only the ztocs are fetched. Layers that \
no index covers are read once, and what was learned is kept in the cache.

The layers are flattened as containerd unpacks them. IMAGE is named as for ociseek index.";

const LS_AFTER_HELP: &str = "\
On a terminal names are quoted so that a shell takes them; else they are written as they are.

Examples:
  ociseek ls -l python:3.13 /usr/local/bin
  ociseek ls -R --json oci:app | jq -r '.entries[] | select(.size > 10000000) | .path'
  ociseek ls --layer 0 -l oci:app

JSON: the documentation of the crate, module cli::ls_json, says what each field means.";

/// List the files of an image without pulling it
#[derive(Debug, Args)]
#[command(long_about = LS_LONG_ABOUT, after_help = LS_AFTER_HELP)]
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

    /// List what is in directories, too, and in those below them
    #[arg(long, short = 'R')]
    pub recursive: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// Only this layer, counted from 0 at the bottom, as its tar has it: whiteouts and all, not flattened
    #[arg(long, value_name = "N")]
    pub layer: Option<usize>,

    #[command(flatten)]
    pub read: ReadArgs,
}

const CAT_LONG_ABOUT: &str = "\
Prints files of an image without pulling it: of layers that a SOCI index covers only the spans are fetched that hold the \
file. Layers that no index covers are read once, and what was learned is kept in the cache.

IMAGE is named as for ociseek index.";

const CAT_AFTER_HELP: &str = "\
Examples:
  ociseek cat debian:13 /etc/os-release
  ociseek cat --stats ghcr.io/acme/app:1.4 /app/config.json";

/// Print files of an image without pulling it
#[derive(Debug, Args)]
#[command(long_about = CAT_LONG_ABOUT, after_help = CAT_AFTER_HELP)]
pub struct CatArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Files in it; symbolic links are followed inside the image
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,

    #[command(flatten)]
    pub read: ReadArgs,
}

const VERIFY_LONG_ABOUT: &str = "\
Proves the SOCI indexes of an image against the image.

Each layer that an index covers is downloaded once and decoded from front to back by decoders that are not ours (zlib-rs). \
What comes out is compared with the index: the layer's digest and its diff ID, the digest, window and position of every \
span, every file's metadata, and every file's bytes as they are read through the spans. So is all that a consumer would \
refuse. IMAGE is named as for ociseek index.";

const VERIFY_AFTER_HELP: &str = "\
Examples:
  ociseek verify ghcr.io/acme/app:1.4
  ociseek verify --quick --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek verify --format json oci:app | jq '.manifests[].indexes[].layers[].differences'

JSON: the documentation of the crate, module cli::verify_json, says what each field means.

Exit status: 0 the indexes are right, 1 it could not be told (or there is no index), 2 wrong usage, 3 something differs, \
129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Prove the SOCI indexes of an image against its layers
#[derive(Debug, Args)]
#[command(long_about = VERIFY_LONG_ABOUT, after_help = VERIFY_AFTER_HELP)]
pub struct VerifyArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Download no layer: look at the documents, and at some spans of each layer
    #[arg(long)]
    pub quick: bool,

    /// With --quick: how many spans of each layer are read
    #[arg(long, value_name = "N", default_value_t = 4, requires = "quick")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub spans: u32,

    /// With --quick: which spans are read; the same number means the same spans [default: others each time]
    #[arg(long, value_name = "N", requires = "quick")]
    pub seed: Option<u64>,

    /// Only this platform, such as linux/arm64; may be repeated [default: all platforms of the image]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    pub platform: Vec<Platform>,

    /// Only this SOCI index, listed or not [default: all that are found]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    /// How many layers are read side by side [default: one for each CPU]
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Progress on standard error
    #[arg(long, value_name = "STYLE", env = "OCISEEK_PROGRESS", value_enum, default_value_t = ProgressStyle::Auto)]
    pub progress: ProgressStyle,

    #[command(flatten)]
    pub registry: RegistryArgs,
}
