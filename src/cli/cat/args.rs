//! The options of `ociseek cat`.

use std::ffi::OsString;

use clap::Args;

use crate::cli::shared::read_image::ReadArgs;
use ociseek_format::image::ImageName;

const CAT_LONG_ABOUT: &str = "\
Prints files of an image without pulling it. From layers covered by a SOCI index, only the spans that hold the file \
are fetched. Other layers are read once, and the cache keeps their ztocs.

IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive from docker save.";

const CAT_AFTER_HELP: &str = "\
Examples:
  ociseek cat debian:13 /etc/os-release
  ociseek cat --stats ghcr.io/acme/app:1.4 /app/config.json";

/// Print files of an image without pulling it
#[derive(Debug, Args)]
#[command(long_about = CAT_LONG_ABOUT, after_help = CAT_AFTER_HELP)]
pub(crate) struct CatArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// The files; symbolic links are followed inside the image
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,

    #[command(flatten)]
    pub read: ReadArgs,
}
