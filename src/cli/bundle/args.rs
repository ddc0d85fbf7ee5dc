//! The options of `ociseek bundle`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::lazy::args::{ContainerArgs, LazyArgs, ServeArgs};
use crate::cli::shared::args::FormatArgs;
use ociseek_format::image::ImageName;

const BUNDLE_LONG_ABOUT: &str = "\
Creates an OCI runtime bundle in DIR without pulling the image: its root file system is a lazy mount (see ociseek \
mount) with a writable overlay on top. A container starts while its image is still in the registry:

  ociseek bundle --detach IMAGE DIR && runc run -b DIR NAME

config.json follows the image's config: entrypoint and command, environment, user (from the image's /etc/passwd and \
/etc/group) and working directory. Only org.opencontainers.image.* labels become annotations, since runtimes act on \
others. Everything else is as in docker: capabilities, mounts, masked paths. You can edit the file before starting the \
container. The image must be for Linux.

DIR is created if needed; otherwise it must be empty and owned by root. Other users cannot access it. Its parent \
directories must also be owned by root, and writable by nobody else unless they are sticky like /tmp. It cannot be \
on an overlay. Requires root.";

const BUNDLE_AFTER_HELP: &str = "\
Examples:
  ociseek bundle --detach redis:7 /run/redis && runc run -b /run/redis redis
  ociseek bundle --rm /run/redis

  With a command other than the image's:
    ociseek bundle --detach --tty debian:12 /run/deb -- bash && runc run -b /run/deb deb; ociseek bundle --rm /run/deb

In the foreground it runs until SIGINT, SIGTERM or SIGHUP and then removes the bundle. Removing the bundle always \
discards what the container wrote.

Exit status: 0 success, 1 failure, 2 usage error, 129, 130 or 143 interrupted before the bundle was ready.";

/// Create an OCI runtime bundle without pulling the image
#[derive(Debug, Args)]
#[command(long_about = BUNDLE_LONG_ABOUT, after_long_help = BUNDLE_AFTER_HELP)]
#[command(
    override_usage = "ociseek bundle [OPTIONS] <IMAGE> <DIR> [-- <COMMAND>...]\n       ociseek bundle --rm <DIR>"
)]
pub(crate) struct BundleArgs {
    /// The image
    #[arg(value_name = "IMAGE", required_unless_present = "rm")]
    pub image: Option<ImageName>,

    /// The bundle's directory
    #[arg(value_name = "DIR", required_unless_present = "rm")]
    pub dir: Option<PathBuf>,

    /// The container's command, instead of the image's
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<String>,

    /// Remove the bundle in DIR and its mounts; its container must have exited
    #[arg(long, value_name = "DIR", conflicts_with_all = ["image", "dir", "command"])]
    pub rm: Option<PathBuf>,

    #[command(flatten)]
    pub serve: ServeArgs,

    #[command(flatten)]
    pub container: ContainerArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}
