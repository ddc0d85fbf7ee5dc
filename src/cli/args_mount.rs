//! The options of the commands that serve an image's files while something runs.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use super::args::{ReadCacheArgs, RegistryArgs};
use crate::digest::Digest;
use crate::image::{ImageName, Platform};
use crate::ops::mount::Prefetch;

/// What all commands share that serve an image's files while something runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "How the image is read")]
pub struct LazyArgs {
    /// The platform, such as linux/arm64 [default: this machine's, or the only one]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM")]
    pub platform: Option<Platform>,

    /// Read through this SOCI index, listed or not [default: the first that can be used]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<Digest>,

    /// Fetch in the background what nobody has read yet
    #[arg(long, env = "OCISEEK_PREFETCH", value_parser = FalseyValueParser::new())]
    pub prefetch: bool,

    /// Do not fetch ahead what the index lists for that
    #[arg(long, env = "OCISEEK_IGNORE_PREFETCH_LIST", value_parser = FalseyValueParser::new())]
    pub ignore_prefetch_list: bool,

    /// How long a read waits for the registry before it ends with an input/output error
    ///
    /// For a second after that, other reads of the same bytes fail at once: the kernel asks twice
    /// for what a program waits for.
    #[arg(long, value_name = "SECONDS", env = "OCISEEK_DEADLINE", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub deadline: u64,

    /// At the end, write figures to this file, as JSON: times, requests, bytes fetched, cache hits
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    #[command(flatten)]
    pub cache: ReadCacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    /// Print nothing but errors
    #[arg(long, short, env = "OCISEEK_QUIET", value_parser = FalseyValueParser::new())]
    #[arg(help_heading = "What is printed")]
    pub quiet: bool,
}

impl LazyArgs {
    pub fn prefetching(&self) -> Prefetch {
        Prefetch { ignore_lists: self.ignore_prefetch_list, all: self.prefetch }
    }
}

/// How a command that serves files goes on.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Stay until stopped or unmounted; the default
    #[arg(long, conflicts_with = "detach")]
    pub foreground: bool,

    /// Come back when the files are there, and leave a process behind that serves them until they are unmounted
    #[arg(long)]
    pub detach: bool,

    /// With --detach: where warnings go once the files are there
    #[arg(long, value_name = "FILE", requires = "detach")]
    pub log: Option<PathBuf>,

    /// Record what is read first, in order, as lines of JSON: `index --prefetch-profile` takes them
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// This is the process that --detach leaves behind.
    #[arg(long, hide = true)]
    pub detached: bool,
}

const MOUNT_LONG_ABOUT: &str = "\
Mounts an image's root file system on DIR, read-only. Nothing is pulled: what is read is fetched when it is read, by the \
image's SOCI index. Layers without one (small, or compressed with zstd) are read whole, and indexed here, before the files are there; \
the cache keeps what was learned.

IMAGE is named as for ociseek index. DIR must be there and be empty.

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

--stats: {\"image\", \"manifest\", \"index\", \"layers\": [{\"digest\", \"size\", \"how\", \"bytes_read\"}], \"content\": \
{\"requests\", \"bytes_fetched\", \"image_bytes\", \"spans_decoded\", \"memory_hits\", \"disk_hits\", \"retries\", \"errors\"}, \
\"seconds_to_mount\", \"seconds_mounted\"}.

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

/// How a container runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Container")]
pub struct ContainerArgs {
    /// Run this instead of the image's entrypoint and command; empty: only what comes after --
    #[arg(long, value_name = "PROGRAM")]
    pub entrypoint: Option<String>,

    /// The container's network: none but its own loopback, or this machine's, with its /etc/resolv.conf and /etc/hosts
    #[arg(long, value_name = "KIND", value_enum, default_value_t = NetArg::None)]
    pub net: NetArg,

    /// Give the container a terminal
    #[arg(long)]
    pub tty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetArg {
    None,
    Host,
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    Text,
    Json,
    Jsonl,
}

const TRACE_LONG_ABOUT: &str = "\
Runs a container of an image that is not there (see ociseek bundle), and tells what it read: the files in the order in which \
they were needed, their spans, and how much of the image a start needs, whatever the cache had of it.

The bundle is made in a temporary directory ($TMPDIR) and taken down again. Needs root and an OCI runtime.";

const TRACE_AFTER_HELP: &str = "\
Without --output the report is standard output, and what the container prints there goes to standard error. With --output the \
container has standard output to itself. A summary goes to standard error.

Examples:
  See what a start reads:
    ociseek trace python:3.13 -- python3 -c 'print(1)'

  Record a start, and have consumers prefetch what it read:
    ociseek trace registry.example/app:v1 > start.jsonl
    ociseek index --prefetch-profile start.jsonl registry.example/app:v1

  For programs:
    ociseek trace --format json --output boot.json redis:7 -- redis-server --version

jsonl: a line {\"ms\", \"path\", \"layer\", \"offset\", \"size\", \"spans\"} for each read that was the first of its file or the \
first to need one of these spans, as mount --record writes them.

json: {\"image\", \"manifest\", \"status\", \"seconds\", \"needed\": {\"files\", \"spans\", \"bytes\"}, \"touches\": [the same], \
\"content\": figures as of mount --stats}.

Exit status: the container's. 1 also when ociseek itself fails, 2 wrong usage, 130 or 143 interrupted.";

/// Run a container and tell which files and spans it read
#[derive(Debug, Args)]
#[command(long_about = TRACE_LONG_ABOUT, after_help = TRACE_AFTER_HELP)]
pub struct TraceArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// The container's command instead of the image's
    #[arg(value_name = "COMMAND", last = true)]
    pub command: Vec<String>,

    /// Write the report to this file
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The report: a table for people, one JSON document, or JSON lines that `index --prefetch-profile` takes
    /// [default: text on a terminal, jsonl elsewhere]
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum)]
    pub format: Option<TraceFormat>,

    /// The OCI runtime
    #[arg(long, value_name = "PROGRAM", env = "OCISEEK_RUNTIME", default_value = "runc")]
    pub runtime: PathBuf,

    #[command(flatten)]
    pub container: ContainerArgs,

    #[command(flatten)]
    pub lazy: LazyArgs,
}
