//! `ociseek snapshotter status` and `ociseek snapshotter images`.

use std::fmt::Write as _;
use std::iter;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::config;
use crate::cli::shared::args::{FormatArgs, OutputFormat};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Stdout, Style, safe};
use ociseek_ops::mount_server::StartRecord;
use ociseek_snapshotter::{KeptImage, KeptState, kept, memory};

/// Which snapshotter.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Its socket [default: that of the configuration, or /run/ociseek/snapshotter.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Where its snapshots are [default: as configured, or /var/lib/ociseek/snapshotter]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Its configuration file
    #[arg(long, value_name = "FILE", env = "OCISEEK_SNAPSHOTTER_CONFIG")]
    pub config: Option<PathBuf>,
}

const STATUS_LONG_ABOUT: &str = "\
Shows whether the snapshotter runs, and what it keeps: snapshots, images whose layers are not pulled, their mounts, \
and the memory of all processes.

The numbers come from the snapshotter's directory and the kernel, so they are also there when it does not run. \
Memory is the proportional set size of the snapshotter and of the processes of its mounts.";

const STATUS_AFTER_HELP: &str = "\
Examples:
  ociseek snapshotter status --config /etc/ociseek/snapshotter.toml
  ociseek snapshotter status --json | jq .memory_bytes

JSON: docs/json.md describes each field.

Exit status: 0 it runs and the servers of all mounts answer, 1 failure, 2 usage error, 3 it does not run, or the \
server of a mount does not answer.";

/// Show whether the snapshotter runs and what it keeps
#[derive(Debug, Args)]
#[command(long_about = STATUS_LONG_ABOUT, after_help = STATUS_AFTER_HELP)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub place: PlaceArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

const IMAGES_LONG_ABOUT: &str = "\
Lists the images whose layers are not pulled: how many layers, how many containers and other snapshots use them, \
whether they are mounted, the process that serves the mount, its memory (proportional set size), the bytes fetched for \
the mount, and whether a start was recorded (--record-starts).

It reads the snapshotter's directory, so the snapshotter need not run.";

const IMAGES_AFTER_HELP: &str = "\
JSON: docs/json.md describes each field.

Exit status: 0 success, 1 failure, 2 usage error.";

/// List the images that are mounted instead of pulled
#[derive(Debug, Args)]
#[command(long_about = IMAGES_LONG_ABOUT, after_help = IMAGES_AFTER_HELP)]
pub(crate) struct ImagesArgs {
    #[command(flatten)]
    pub place: PlaceArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) fn status(args: StatusArgs) -> Result<(), CliError> {
    let (socket, root) = place(args.place)?;
    let status = Status::of(&socket, &root, &look(&root)?);
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(&status)?,
        OutputFormat::Text => status.text(stdout.style),
    };
    stdout.print(text)?;
    if status.running && status.silent_mounts == 0 { Ok(()) } else { Err(CliError::NotServing) }
}

pub(super) fn images(args: ImagesArgs) -> Result<(), CliError> {
    let (_, root) = place(args.place)?;
    let images = Images::of(&root, &look(&root)?);
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(&images)?,
        OutputFormat::Text => images.text(stdout.style),
    };
    stdout.print(text)
}

/// The socket and the directory.
fn place(args: PlaceArgs) -> Result<(PathBuf, PathBuf), CliError> {
    let configured = config::or_defaults(args.config.as_deref())?;
    Ok((args.socket.unwrap_or(configured.socket), args.root.unwrap_or(configured.root)))
}

fn look(root: &Path) -> Result<KeptState, CliError> {
    kept(root).map_err(|source| CliError::Read { path: root.to_owned(), source })
}

/// The process that listens on a socket. Must be called on a tokio runtime.
fn listener(connection: &UnixStream) -> Option<u32> {
    connection.set_nonblocking(true).ok()?;
    let connection = tokio::net::UnixStream::from_std(connection.try_clone().ok()?).ok()?;
    connection.peer_cred().ok()?.pid().map(i32::cast_unsigned)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Status {
    /// The path of the socket.
    socket: String,
    /// Whether a process listens on the socket.
    running: bool,
    /// The directory of the snapshots.
    root: String,
    /// The number of snapshots.
    snapshots: usize,
    /// The number of images whose layers are not pulled.
    images: usize,
    /// The number of mounts.
    mounts: usize,
    /// The number of mounts whose servers do not answer.
    silent_mounts: usize,
    /// The memory of the snapshotter and of the processes of all mounts: their proportional set
    /// size in bytes.
    memory_bytes: u64,
    /// The memory that they may use together, or null if the snapshotter never ran.
    memory_limit_bytes: Option<u64>,
    /// The number of bytes fetched for these mounts, a few seconds ago.
    fetched_bytes: u64,
}

impl Status {
    fn of(socket: &Path, root: &Path, kept: &KeptState) -> Status {
        let mounts = || kept.images.iter().flat_map(|image| &image.mounts);
        let connection = UnixStream::connect(socket);
        let snapshotter = connection.as_ref().ok().and_then(listener).and_then(memory);
        Status {
            socket: socket.display().to_string(),
            running: connection.is_ok(),
            root: root.display().to_string(),
            snapshots: kept.snapshots,
            images: kept.images.len(),
            mounts: mounts().count(),
            silent_mounts: mounts().filter(|mount| !mount.answers).count(),
            memory_bytes: mounts().filter_map(|mount| mount.memory).chain(snapshotter).sum(),
            memory_limit_bytes: kept.memory_limit,
            fetched_bytes: mounts().map(|mount| mount.fetched).sum(),
        }
    }

    fn text(&self, style: Style) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<9}  {value}");
        };
        let running = if self.running { style.green("running") } else { style.red("not running") };
        line("service", format!("{running} ({})", safe(&self.socket)));
        line("state", safe(&self.root));
        line("snapshots", self.snapshots.to_string());
        line("images", self.images.to_string());
        let silent = match self.silent_mounts {
            0 => String::new(),
            silent => style.red(&format!(", {silent} without an answer")),
        };
        line("mounts", format!("{}{silent}", self.mounts));
        let limit = self
            .memory_limit_bytes
            .map(|limit| format!(" (limit {})", human(limit)))
            .unwrap_or_default();
        line("memory", human(self.memory_bytes) + &limit);
        line("fetched", human(self.fetched_bytes));
        text
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Images {
    /// The directory of the snapshots.
    root: String,
    /// The images whose layers are not pulled, by name.
    images: Vec<Image>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Image {
    /// The name with the digest of the manifest, as it was pulled first. Other images with the same
    /// layers share its snapshots and are not listed.
    image: String,
    /// How many of its layers are snapshots.
    layers: usize,
    /// The containers and other active snapshots and views over it.
    users: usize,
    /// The file with its recorded start, for `ociseek index --profile`, or null.
    start: Option<String>,
    /// Its mounts. There are several if images have different numbers of its layers.
    mounts: Vec<Mount>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Mount {
    /// The mount point.
    point: String,
    /// Whether the server answers.
    answers: bool,
    /// The process that serves it, or null.
    server: Option<u32>,
    /// The proportional set size of that process, and of the one that keeps the mount's device, in
    /// bytes, or null.
    memory_bytes: Option<u64>,
    /// The number of bytes fetched for it, a few seconds ago.
    fetched_bytes: u64,
}

impl Images {
    fn of(root: &Path, kept: &KeptState) -> Images {
        let images = kept.images.iter().map(|image| Image::of(root, image));
        Images { root: root.display().to_string(), images: images.collect() }
    }

    fn text(&self, style: Style) -> String {
        let line = |[mount, users, layers, server, memory, fetched, start, image]: [&str; 8]| {
            format!(
                "{mount:<8}  {users:>5}  {layers:>6}  {server:>8}  {memory:>10}  {fetched:>10}  {start:<8}  {image}\n"
            )
        };
        let header =
            line(["MOUNT", "USERS", "LAYERS", "SERVER", "MEMORY", "FETCHED", "START", "IMAGE"]);
        let mut text = style.dim(header.trim_end()) + "\n";
        for image in &self.images {
            let users = image.users.to_string();
            let layers = image.layers.to_string();
            let name = safe(&image.image);
            let start = if image.start.is_some() { "recorded" } else { "" };
            if image.mounts.is_empty() {
                text += &line(["none", &users, &layers, "", "", "", start, &name]);
            }
            let figures = [&*users, &layers, start];
            // The figures of the image are those of all its mounts.
            for (mount, [users, layers, start]) in
                image.mounts.iter().zip(iter::once(figures).chain(iter::repeat([""; 3])))
            {
                let state = if mount.answers { "mounted" } else { "silent" };
                let server = mount.server.map(|server| server.to_string()).unwrap_or_default();
                let memory = mount.memory_bytes.map(human).unwrap_or_default();
                let fetched = human(mount.fetched_bytes);
                text += &line([state, users, layers, &server, &memory, &fetched, start, &name]);
            }
        }
        if let Some(start) = self.images.iter().find_map(|image| image.start.as_ref()) {
            text += &format!(
                "\nto use a recorded start: ociseek index --kind fine --profile {} IMAGE\n",
                safe(start)
            );
        }
        if self.images.is_empty() {
            return format!("{} in {}\n", counted(0, "image", "images"), safe(&self.root));
        }
        text
    }
}

impl Image {
    fn of(root: &Path, kept: &KeptImage) -> Image {
        let start = StartRecord::file_of(root, &kept.name).filter(|path| path.exists());
        let mounts = kept.mounts.iter().map(|mount| Mount {
            point: mount.point.display().to_string(),
            answers: mount.answers,
            server: mount.server,
            memory_bytes: mount.memory,
            fetched_bytes: mount.fetched,
        });
        Image {
            image: kept.name.clone(),
            layers: kept.layers,
            users: kept.users,
            start: start.map(|path| path.display().to_string()),
            mounts: mounts.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ociseek_snapshotter::KeptMount;

    use super::*;

    #[test]
    fn the_figures_of_an_image_are_shown_once() {
        let mount = |point: &str| KeptMount {
            point: point.into(),
            answers: true,
            server: Some(7),
            memory: Some(2048),
            fetched: 0,
        };
        let mounts = vec![mount("/lazy/images/1/fs"), mount("/lazy/images/2/fs")];
        let image = KeptImage { name: "one@x".into(), layers: 3, users: 5, mounts };
        let state = KeptState { snapshots: 4, images: vec![image], memory_limit: None };
        let text = Images::of(Path::new("/lazy"), &state).text(Style::plain());
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["mounted", "5", "3", "7", "2.0", "KiB", "0", "B", "one@x"]);
        assert_eq!(rows[1], ["mounted", "7", "2.0", "KiB", "0", "B", "one@x"]);
    }
}
