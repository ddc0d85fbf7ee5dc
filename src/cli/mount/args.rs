//! What can be typed behind `ociseek mount`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::lazy::args::{LazyArgs, ServeArgs};
use crate::image::ImageName;

const MOUNT_LONG_ABOUT: &str = "\
Mounts an image's root file system on DIR, read-only. Nothing is pulled: what is read is fetched when it is read, by the \
image's SOCI index. Layers without one (small, or compressed with zstd) are read whole, and indexed here, before the files are there; \
the cache keeps what was learned.

IMAGE is named as for ociseek index; what docker save wrote is docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER].
DIR must be there and be empty.

Every byte is checked against the index. What cannot be had within the deadline, or is not what the index says, is an \
input/output error for the one who reads, with the reason in a warning; the next read tries again.

As root it needs nothing but /dev/fuse. Other users need fusermount3 (Debian: fuse3).";

const MOUNT_AFTER_HELP: &str = "\
Examples:
  Look into an image:
    mkdir /mnt/python && ociseek mount python:3.13 /mnt/python

  In a script:
    ociseek mount --detach --log mount.log ghcr.io/acme/app:1.4 /mnt/app
    ls /mnt/app/etc
    umount /mnt/app                      (as a user: fusermount3 -u /mnt/app)

  After the process was killed (\"Transport endpoint is not connected\"):
    ociseek mount --replace ghcr.io/acme/app:1.4 /mnt/app

--record: each line is {\"ms\", \"path\", \"layer\", \"offset\", \"size\", \"spans\"}: a read that was the first of its file, or the \
first to need one of these spans of the layer.

--stats: docs/json.md says what each field means.

Exit status: 0 once it was mounted and was unmounted or stopped by SIGINT, SIGTERM or SIGHUP; 1 failed, 2 wrong usage, 130 or \
143 interrupted before it was mounted.";

/// Mount an image's files without pulling it
#[derive(Debug, Args)]
#[command(long_about = MOUNT_LONG_ABOUT, after_help = MOUNT_AFTER_HELP)]
pub struct MountArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Where its files shall be
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Mount one layer alone, as if it were the image; they are counted from 0, the lowest
    #[arg(long, value_name = "N")]
    pub layer: Option<usize>,

    #[command(flatten)]
    pub serve: ServeArgs,

    /// Take the place of an ociseek mount on DIR, also of one whose process is gone
    #[arg(long)]
    pub replace: bool,

    /// Let other users in too; the modes of the files then tell who may read what
    #[arg(long)]
    pub allow_other: bool,

    /// Honour set-user-ID bits and file capabilities (root only)
    #[arg(long)]
    pub suid: bool,

    /// Let device files work (root only)
    #[arg(long)]
    pub dev: bool,

    #[command(flatten)]
    pub lazy: LazyArgs,
}
