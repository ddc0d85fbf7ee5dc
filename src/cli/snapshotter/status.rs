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
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, cut, fitted, safe, terminal_width};
use ociseek_node::{KeptImage, KeptMount, KeptState, StartRecord, kept, memory};
use ociseek_rootfs::content::RestStats;
use ociseek_rootfs::fuse::ProcessId;

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
and its memory.

The numbers come from the snapshotter's directory and the kernel, so they are also there when it does not run. \
Memory is the proportional set size of the snapshotter and of the process that keeps the devices of its mounts.";

const STATUS_AFTER_HELP: &str = "\
Examples:
  ociseek snapshotter status --config /etc/ociseek/snapshotter.toml
  ociseek snapshotter status --json | jq .memory_bytes

JSON: docs/json.md describes each field.

Exit status: 0 it runs and all mounts answer, 1 failure, 2 usage error, 3 it does not run, or a mount does not answer.";

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
whether they are mounted, the bytes fetched for the mount, how much of its rest was fetched in the background \
(--prefetch), and whether a startup was recorded (--record-starts).

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
    let Place { socket, root, memory } = place(args.place)?;
    let status = Status::of(&socket, &root, memory, &look(&root)?);
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(&status)?,
        OutputFormat::Text => fitted(&status.text(stdout.style), terminal_width()),
    };
    stdout.print(text)?;
    if status.running && status.silent_mounts == 0 { Ok(()) } else { Err(CliError::not_serving()) }
}

pub(super) fn images(args: ImagesArgs) -> Result<(), CliError> {
    let root = place(args.place)?.root;
    let images = Images::of(&root, &look(&root)?);
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(&images)?,
        OutputFormat::Text => images.text(stdout.style, terminal_width()),
    };
    stdout.print(text)
}

/// What is known of a snapshotter without asking it.
struct Place {
    socket: PathBuf,
    root: PathBuf,
    /// The memory that it may use, in bytes.
    memory: u64,
}

fn place(args: PlaceArgs) -> Result<Place, CliError> {
    // One that was typed is meant to be there.
    if let Some(root) = &args.root {
        std::fs::read_dir(root).map_err(CliError::read(root))?;
    }
    let configured = config::or_defaults(args.config.as_deref())?;
    Ok(Place {
        socket: args.socket.unwrap_or(configured.socket),
        root: args.root.unwrap_or(configured.root),
        memory: configured.memory.0,
    })
}

fn look(root: &Path) -> Result<KeptState, CliError> {
    kept(root).map_err(CliError::read(root))
}

/// The process that began to listen on a socket. None if the kernel does not say. Must be called on
/// a tokio runtime.
fn listener(connection: &UnixStream) -> Option<i32> {
    connection.set_nonblocking(true).ok()?;
    let connection = tokio::net::UnixStream::from_std(connection.try_clone().ok()?).ok()?;
    connection.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Status {
    /// The path of the socket.
    socket: String,
    /// Whether a process serves the socket.
    running: bool,
    /// The directory of the snapshots.
    root: String,
    /// The number of snapshots.
    snapshots: usize,
    /// The number of images whose layers are not pulled.
    images: usize,
    /// The number of mounts.
    mounts: usize,
    /// The number of mounts that do not answer.
    silent_mounts: usize,
    /// The process that serves the mounts, or null.
    server: Option<u32>,
    /// The process that keeps the devices of the mounts, or null.
    keeper: Option<u32>,
    /// The memory of both: their proportional set size in bytes.
    memory_bytes: u64,
    /// The memory that the server may use, as configured.
    memory_limit_bytes: u64,
    /// The number of bytes fetched for these mounts, a few seconds ago.
    fetched_bytes: u64,
    /// How far the rest of the mounted images has been fetched in the background, or null.
    rest: Option<Rest>,
}

/// How far the rest of images has been fetched in the background.
#[derive(Serialize, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Rest {
    /// The unpacked bytes of layers that came into the cache.
    bytes: u64,
    /// All unpacked bytes of the layers.
    of_bytes: u64,
    /// Those for which the cache is too small.
    unfit_bytes: u64,
}

impl Rest {
    /// Of all these mounts together. None if nothing is fetched for any of them.
    fn of<'a>(mounts: impl Iterator<Item = &'a KeptMount>) -> Option<Rest> {
        let rests = mounts.filter_map(|mount| mount.fetched.rest);
        rests.map(Rest::from).reduce(|one, other| Rest {
            bytes: one.bytes.saturating_add(other.bytes),
            of_bytes: one.of_bytes.saturating_add(other.of_bytes),
            unfit_bytes: one.unfit_bytes.saturating_add(other.unfit_bytes),
        })
    }

    fn percent(self) -> u64 {
        let percent = u128::from(self.bytes) * 100 / u128::from(self.of_bytes.max(1));
        u64::try_from(percent).unwrap_or(100).min(100)
    }

    fn text(self) -> String {
        let unfit = match self.unfit_bytes {
            0 => String::new(),
            unfit => format!("; {} do not fit the cache", human(unfit)),
        };
        format!(
            "{} of {} fetched in the background{unfit}",
            human(self.bytes),
            human(self.of_bytes)
        )
    }
}

impl From<RestStats> for Rest {
    fn from(stats: RestStats) -> Rest {
        let RestStats { bytes, of_bytes, unfit_bytes } = stats;
        Rest { bytes, of_bytes, unfit_bytes }
    }
}

impl Status {
    fn of(socket: &Path, root: &Path, memory_limit: u64, state: &KeptState) -> Status {
        let mounts = || state.images.iter().flat_map(|image| &image.mounts);
        let connection = UnixStream::connect(socket);
        let server = connection.as_ref().ok().and_then(listener);
        // The socket is kept open while nobody serves it.
        let running =
            connection.is_ok() && server.is_none_or(|server| ProcessId::of(server).is_some());
        let server = server.filter(|_| running).map(i32::cast_unsigned);
        Status {
            socket: socket.display().to_string(),
            running,
            root: root.display().to_string(),
            snapshots: state.snapshots,
            images: state.images.len(),
            mounts: mounts().count(),
            silent_mounts: mounts().filter(|mount| !mount.answers).count(),
            server,
            keeper: state.keeper,
            memory_bytes: [server, state.keeper].into_iter().flatten().filter_map(memory).sum(),
            memory_limit_bytes: memory_limit,
            fetched_bytes: mounts().map(|mount| mount.fetched.bytes).sum(),
            rest: Rest::of(mounts()),
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
        let limit = human(self.memory_limit_bytes);
        line("memory", format!("{} (limit {limit})", human(self.memory_bytes)));
        line("fetched", human(self.fetched_bytes));
        if let Some(rest) = self.rest {
            line("rest", rest.text());
        }
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
    /// The file with its recorded startup, for `ociseek index --profile`, or null.
    start: Option<String>,
    /// Its mounts. There are several if images have different numbers of its layers.
    mounts: Vec<Mount>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Mount {
    /// The mount point.
    point: String,
    /// Whether it answers.
    answers: bool,
    /// The number of bytes fetched for it, a few seconds ago.
    fetched_bytes: u64,
    /// How far the rest of the image has been fetched in the background, or null.
    rest: Option<Rest>,
}

impl Images {
    fn of(root: &Path, state: &KeptState) -> Images {
        let images = state.images.iter().map(|image| Image::of(root, image));
        Images { root: root.display().to_string(), images: images.collect() }
    }

    /// For a terminal of this width: if it is too narrow for the names, these have lines of their
    /// own.
    fn text(&self, style: Style, columns: Option<usize>) -> String {
        let figures = |[mount, users, layers, fetched, rest, start]: [&str; 6]| {
            format!("{mount:<8}  {users:>5}  {layers:>6}  {fetched:>10}  {rest:>4}  {start:<8}")
        };
        let header = figures(["MOUNT", "USERS", "LAYERS", "FETCHED", "REST", "START"]);
        let longest = self.images.iter().map(|image| image.image.chars().count()).max();
        let is_narrow =
            columns.is_some_and(|columns| header.len() + 2 + longest.unwrap_or(0) > columns);
        let line = |[mount, users, layers, fetched, rest, start, image]: [&str; 7]| {
            let figures = figures([mount, users, layers, fetched, rest, start]);
            match is_narrow {
                true => format!("{image}\n{}\n", cut(figures.trim_end(), columns)),
                false => format!("{figures}  {image}\n"),
            }
        };
        let header = match is_narrow {
            true => cut(header.trim_end(), columns),
            false => format!("{header}  IMAGE"),
        };
        let mut text = style.dim(&header) + "\n";
        for image in &self.images {
            let users = image.users.to_string();
            let layers = image.layers.to_string();
            let name = safe(&image.image);
            let start = if image.start.is_some() { "recorded" } else { "" };
            if image.mounts.is_empty() {
                text += &line(["none", &users, &layers, "", "", start, &name]);
            }
            let figures = [&*users, &layers, start];
            // The figures of the image are those of all its mounts.
            for (mount, [users, layers, start]) in
                image.mounts.iter().zip(iter::once(figures).chain(iter::repeat([""; 3])))
            {
                let state = if mount.answers { "mounted" } else { "silent" };
                let fetched = human(mount.fetched_bytes);
                let rest = mount.rest.map_or(String::new(), |rest| format!("{}%", rest.percent()));
                text += &line([state, users, layers, &fetched, &rest, start, &name]);
            }
        }
        if let Some(start) = self.images.iter().find_map(|image| image.start.as_ref()) {
            let next = format!("ociseek index --kind fine --profile {} IMAGE", safe(start));
            text += &fitted(&format!("\nto use a recorded startup: {next}\n"), columns);
        }
        if self.images.is_empty() {
            return format!("{} in {}\n", counted(0, "image", "images"), safe(&self.root));
        }
        text
    }
}

impl Image {
    fn of(root: &Path, image: &KeptImage) -> Image {
        let start = StartRecord::file_of(root, &image.name).filter(|path| path.exists());
        let mounts = image.mounts.iter().map(|mount| Mount {
            point: mount.point.display().to_string(),
            answers: mount.answers,
            fetched_bytes: mount.fetched.bytes,
            rest: mount.fetched.rest.map(Rest::from),
        });
        Image {
            image: image.name.clone(),
            layers: image.layers,
            users: image.users,
            start: start.map(|path| path.display().to_string()),
            mounts: mounts.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ociseek_node::{Fetched, KeptMount};

    use super::*;

    #[test]
    fn the_figures_of_an_image_are_shown_once() {
        let mount = |point: &str| KeptMount {
            point: point.into(),
            answers: true,
            fetched: Fetched::default(),
        };
        let mounts = vec![mount("/lazy/images/1/fs"), mount("/lazy/images/2/fs")];
        let image = KeptImage { name: "one@x".into(), layers: 3, users: 5, mounts };
        let state = KeptState { snapshots: 4, images: vec![image], keeper: None };
        let text = Images::of(Path::new("/lazy"), &state).text(Style::plain(), None);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["mounted", "5", "3", "0", "B", "one@x"]);
        assert_eq!(rows[1], ["mounted", "0", "B", "one@x"]);
    }

    #[test]
    fn names_have_lines_of_their_own_on_a_narrow_terminal() {
        let image = KeptImage { name: "one@x".into(), layers: 3, users: 5, mounts: Vec::new() };
        let state = KeptState { snapshots: 4, images: vec![image], keeper: None };
        let text = |columns| Images::of(Path::new("/lazy"), &state).text(Style::plain(), columns);
        assert_eq!(text(Some(58)), text(None));
        assert_eq!(
            text(Some(57)),
            "MOUNT     USERS  LAYERS     FETCHED  REST  START\none@x\nnone          5       3\n"
        );
        assert!(text(Some(20)).starts_with("MOUNT     USERS  LA\u{2026}\none@x\n"));
    }
}
