//! What can be typed behind `ociseek bundle`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::lazy::args::{ContainerArgs, LazyArgs, ServeArgs};
use crate::image::ImageName;

const BUNDLE_LONG_ABOUT: &str = "\
Makes DIR an OCI runtime bundle of an image that is not there: its root file system is a lazy mount (see ociseek mount) with a \
writable overlay on top. A container starts while its image is still in the registry:

  ociseek bundle --detach IMAGE DIR && runc run -b DIR NAME

config.json is made from the image's config: entrypoint and command, environment, user (by the image's own /etc/passwd and \
/etc/group), working directory. Of its labels only org.opencontainers.image.* become annotations, since runtimes obey others. \
The rest is as docker has it: capabilities, mounts, masked paths. It may be edited before the container starts. The image must be \
for Linux.

DIR is made if it is not there; else it must be empty and belong to root. It is closed to others. The directories above it must \
belong to root too, and be writable by nobody else unless they are sticky as /tmp is. It must not lie on an overlay itself. Needs root.";

const BUNDLE_AFTER_HELP: &str = "\
Examples:
  ociseek bundle --detach redis:7 /run/redis && runc run -b /run/redis redis
  ociseek bundle --rm /run/redis

  With another command than the image's:
    ociseek bundle --detach --tty debian:12 /run/deb -- bash && runc run -b /run/deb deb; ociseek bundle --rm /run/deb

In the foreground it stays until SIGINT, SIGTERM or SIGHUP, and then takes everything down. Either way, what the container wrote is \
lost when the bundle is taken down.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 or 143 interrupted before the bundle was there.";

/// Make an OCI runtime bundle that starts before its image is there
#[derive(Debug, Args)]
#[command(long_about = BUNDLE_LONG_ABOUT, after_help = BUNDLE_AFTER_HELP)]
#[command(
    override_usage = "ociseek bundle [OPTIONS] <IMAGE> <DIR> [-- <COMMAND>...]\n       ociseek bundle --rm <DIR>"
)]
pub struct BundleArgs {
    /// The image
    #[arg(value_name = "IMAGE", required_unless_present = "rm")]
    pub image: Option<ImageName>,

    /// The bundle's directory
    #[arg(value_name = "DIR", required_unless_present = "rm")]
    pub dir: Option<PathBuf>,

    /// The container's command instead of the image's
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<String>,

    /// Take the bundle in DIR down: its container must have ended. No mount is left, and of DIR what was there before
    #[arg(long, value_name = "DIR", conflicts_with_all = ["image", "dir", "command"])]
    pub rm: Option<PathBuf>,

    #[command(flatten)]
    pub serve: ServeArgs,

    #[command(flatten)]
    pub container: ContainerArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,
}
