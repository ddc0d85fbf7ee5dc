//! Runs a container of the image until it is ready, and returns what it read.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval_at};

use super::answer::{RunFacts, joined};
use super::{Ran, TryArgs};
use crate::cli::image_fs::OpenedImage;
use crate::cli::image_fs::bundle::mount_bundle;
use crate::cli::shared::error::{CliError, DONE, FAILED};
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::terminal::{Style, complain, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{blocking, boxed, until};
use ociseek_format::progress::causes;
use ociseek_ops::bundle::{Bundle, RunOptions};
use ociseek_ops::container::{Container, PidQuery};
use ociseek_ops::mount::{LiveMount, Prefetch, Record};
use ociseek_ops::open::RootFs;
use ociseek_ops::resolve::host_architecture;
use ociseek_store::durable::without_path;

/// The most reads that are recorded.
const MAX_READS: usize = 1_000_000;
/// How often the container is looked at.
const TICK: Duration = Duration::from_millis(100);
/// A server that has printed something is ready when it reads nothing new for this long; one that
/// prints nothing, after the longer time.
const SETTLED: Duration = Duration::from_secs(3);
const SETTLED_SILENT: Duration = Duration::from_secs(10);
/// The longest startup.
const LONGEST: Duration = Duration::from_secs(3600);
/// How much of what the container prints is read at a time.
const CHUNK: usize = 16 << 10;

/// Why no container can be run here.
#[derive(Debug, thiserror::Error)]
pub(super) enum Missing {
    #[error("running a container needs root")]
    Root,
    #[error("{} is not in PATH", .0.display())]
    Runtime(PathBuf),
    #[error("there is no /dev/fuse")]
    Fuse,
}

/// What is missing to run a container. None if it can be tried.
pub(super) fn missing(runtime: &Path) -> Option<Missing> {
    let is_program = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let is_there = match runtime.components().count() {
        1 => std::env::split_paths(&search).any(|dir| is_program(&dir.join(runtime))),
        _ => is_program(runtime),
    };
    match is_there {
        _ if !rustix::process::geteuid().is_root() => Some(Missing::Root),
        false => Some(Missing::Runtime(runtime.to_owned())),
        true if !Path::new("/dev/fuse").exists() => Some(Missing::Fuse),
        true => None,
    }
}

/// Runs the container.
pub(super) async fn container(
    args: &TryArgs,
    image: RootFs,
    name: &str,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(RootFs, Result<Ran, String>), CliError> {
    // Dropped last: a directory that contains a mount must not be deleted.
    let mut temporary = tempfile::Builder::new();
    temporary.prefix("ociseek-try-").permissions(Permissions::from_mode(0o700));
    let temporary = match temporary.tempdir() {
        Ok(temporary) => temporary,
        Err(error) => {
            let dir = std::env::temp_dir();
            let why = format!(
                "cannot create a directory in {} (TMPDIR): {}",
                safe(&dir.display().to_string()),
                without_path(error)
            );
            return Ok((image, Err(why)));
        }
    };
    let dir = temporary.path().join("bundle");
    let options = RunOptions {
        command: args.command(),
        entrypoint: args.entrypoint(),
        terminal: false,
        host_network: args.host_network,
    };
    let opened = OpenedImage::of(image, name, verbosity);
    let source = name.to_owned();
    let mounting = boxed(async || {
        let bundle = blocking(move || Bundle::new(&dir, &source)).await?;
        let record = Some(Record::Memory(MAX_READS));
        mount_bundle(&opened, bundle, &options, record, Prefetch::default()).await
    });
    let live_bundle = match until(interrupted, mounting).await {
        Ok(live_bundle) => live_bundle,
        Err(error) if error.is_interrupted() => return Err(error),
        Err(error) => return Ok((opened.image, Err(causes(&error)))),
    };
    let container = format!("ociseek-try-{}", std::process::id());
    // Those of its users, for config.json.
    let noted = live_bundle.live.touches().len();
    let started = Instant::now();
    let ran = match Container::run(args.runtime(), live_bundle.bundle.dir(), &container) {
        Ok(container) => {
            watch(args, container, &live_bundle.live, verbosity.quiet, interrupted).await
        }
        Err(error) => Err(error.into()),
    };
    let seconds = started.elapsed().as_secs_f64();
    let touches = live_bundle.live.touches();
    if let Err(error) = live_bundle.take_down(&opened).await {
        // A directory with a remaining mount must not be deleted.
        let _ = temporary.keep();
        return Err(error);
    }
    let fetched = opened.image.content.stats().bytes_fetched;
    let runtime = args.runtime().display();
    let is_of_runtime = |error: &str| {
        RUNTIME_ERRORS.iter().any(|text| error.contains(text)) || lacks_interpreter(error)
    };
    let not_started = |error: &str| {
        let why = RUNTIME_ERRORS.iter().fold(error, |why, text| {
            why.split_once(text).map_or(why, |(_, why)| why.trim_start_matches(": "))
        });
        format!("{runtime} could not start it: {why}")
    };
    let ran = match ran {
        // Not even its program was read.
        Ok(Watched { status: Some(_), error, .. }) if touches.len() == noted => {
            let error = if error.is_empty() { "it read nothing of the image" } else { &error };
            Err(not_started(error))
        }
        Ok(Watched { status: Some(status), error, .. })
            if code(status) != DONE && is_of_runtime(&error) =>
        {
            Err(not_started(&error))
        }
        Ok(Watched { status: Some(status), error, .. })
            if code(status) != DONE
                && error.contains("exec format error")
                && is_foreign(&opened.image) =>
        {
            let platform = opened.image.platform.as_ref().map(ToString::to_string);
            let platform = platform.unwrap_or_default();
            Err(format!("this machine does not run programs for {platform}: {error}"))
        }
        Ok(watched) => {
            let status = watched.status.map(code);
            let is_alone = args.command.len() <= 1 && args.entrypoint.is_none();
            let is_mute = is_alone && status == Some(DONE) && !watched.has_printed;
            let Watched { missed, ports, .. } = watched;
            let facts = RunFacts { status, missed, ports, is_mute, seconds, fetched };
            Ok(Ran { touches, facts })
        }
        Err(error) => Err(causes(&error)),
    };
    Ok((opened.image, ran))
}

/// What runtimes (runc, crun) say if the program did not start. They may have read files of the
/// image before.
const RUNTIME_ERRORS: [&str; 3] =
    ["runc run failed", "unable to start container process", "crun: "];

/// Whether it is what runc says of a program whose interpreter the image does not have.
fn lacks_interpreter(error: &str) -> bool {
    error.starts_with("exec ") && error.ends_with(": no such file or directory")
}

/// Whether the image is for another architecture than this machine's.
fn is_foreign(image: &RootFs) -> bool {
    let platform = image.platform.as_ref().map(|platform| platform.normalized().architecture);
    platform.is_some_and(|architecture| architecture != host_architecture())
}

/// The exit status as in a shell.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

struct Watched {
    /// None if it was ended.
    status: Option<ExitStatus>,
    /// The last line that it printed.
    error: String,
    has_printed: bool,
    /// As in [`RunFacts`].
    missed: Option<String>,
    ports: Vec<u16>,
}

/// Waits until the container is ready or exits, and ends it.
async fn watch(
    args: &TryArgs,
    mut container: Container,
    live: &LiveMount,
    is_quiet: bool,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<Watched, CliError> {
    let started = Instant::now();
    let (sender, mut printed) = mpsc::channel(16);
    if let Some((stdout, stderr)) = container.take_output() {
        tokio::spawn(forward(stdout, sender.clone()));
        tokio::spawn(forward(stderr, sender.clone()));
    }
    drop(sender);
    let query = container.pid_query();
    let mut state = Readiness::new(args, query, started, is_quiet);
    let mut exited = pin!(container.wait());
    let mut is_open = true;
    let mut has_come = false;
    // Before the output, which may never pause.
    let mut ticks = interval_at(tokio::time::Instant::now() + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let status = loop {
        tokio::select! {
            biased;
            Ok(_) = &mut *interrupted => break None,
            _ = ticks.tick() => match state.look(live).await {
                Look::Ready => { has_come = true; break None }
                Look::TooLate => break None,
                Look::Wait => {}
            },
            chunk = printed.recv(), if is_open => match chunk {
                Some(chunk) => if state.has_printed(&chunk) { has_come = true; break None },
                None => is_open = false,
            },
            status = &mut exited => break Some(status?),
        }
    };
    // What it printed last.
    if status.is_some() {
        let deadline = tokio::time::Instant::now() + TICK;
        while let Ok(Some(chunk)) = tokio::time::timeout_at(deadline, printed.recv()).await {
            has_come |= state.has_printed(&chunk);
        }
    }
    let missed = state.awaited().filter(|_| !has_come);
    let ports = if missed.is_some() { state.ports } else { Vec::new() };
    Ok(Watched {
        status,
        error: last_line(&state.tail),
        has_printed: !state.tail.is_empty(),
        missed,
        ports,
    })
}

/// Passes on to standard error what the container prints: standard output is for the answer.
async fn forward(mut from: impl AsyncRead + Unpin, to: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let chunk = buffer[..count].to_vec();
        let _ = std::io::Write::write_all(&mut std::io::stderr(), &chunk);
        if to.send(chunk).await.is_err() {
            break;
        }
    }
}

/// Whether the container is ready.
struct Readiness<'a> {
    args: &'a TryArgs,
    query: PidQuery,
    pid: Option<u32>,
    started: Instant,
    /// The end of what it printed.
    tail: Vec<u8>,
    reads: usize,
    last_read: Instant,
    /// The ports that it listens on.
    ports: Vec<u16>,
    /// Whether the user knows what is awaited.
    is_told: bool,
}

/// What a look at the container shows.
enum Look {
    Ready,
    Wait,
    TooLate,
}

impl Readiness<'_> {
    fn new(args: &TryArgs, query: PidQuery, started: Instant, is_quiet: bool) -> Readiness<'_> {
        Readiness {
            args,
            query,
            pid: None,
            started,
            tail: Vec::new(),
            reads: 0,
            last_read: started,
            ports: Vec::new(),
            is_told: is_quiet,
        }
    }

    /// What it is to do until it is ready, if that was said.
    fn awaited(&self) -> Option<String> {
        let port = self.args.until_port.map(|port| format!("listen on port {port}"));
        let print = self.args.until_output.as_ref().map(|text| format!("print {text:?}"));
        match (port, print) {
            (Some(port), Some(print)) => Some(format!("{port} or {print}")),
            (port, print) => port.or(print),
        }
    }

    /// Whether it is ready by what it printed.
    fn has_printed(&mut self, chunk: &[u8]) -> bool {
        self.tail.extend_from_slice(chunk);
        let wanted = self.args.until_output.as_ref().filter(|text| !text.is_empty());
        let is_ready = wanted.is_some_and(|text| {
            self.tail.windows(text.len()).any(|window| window == text.as_bytes())
        });
        let keep = wanted.map_or(0, |text| text.len()).max(CHUNK);
        self.tail.drain(..self.tail.len().saturating_sub(keep));
        is_ready
    }

    async fn look(&mut self, live: &LiveMount) -> Look {
        let reads = live.recorder().map_or(0, |recorder| recorder.count());
        if reads != self.reads {
            self.reads = reads;
            self.last_read = Instant::now();
        }
        let TryArgs { for_time, until_port, until_output, .. } = self.args;
        if let Some(port) = until_port {
            self.ports = self.listening().await;
            if self.ports.contains(port) {
                return Look::Ready;
            }
        }
        let is_awaited = until_port.is_some() || until_output.is_some();
        if self.started.elapsed() >= for_time.unwrap_or(LONGEST) {
            return if is_awaited { Look::TooLate } else { Look::Ready };
        }
        let settled = if self.tail.is_empty() { SETTLED_SILENT } else { SETTLED };
        if is_awaited && self.last_read.elapsed() >= SETTLED_SILENT {
            self.tell_awaited();
        }
        let is_settled = self.last_read.elapsed() >= settled;
        if for_time.is_none() && !is_awaited && is_settled { Look::Ready } else { Look::Wait }
    }

    /// Says once why this takes so long.
    fn tell_awaited(&mut self) {
        let Some(awaited) = self.awaited().filter(|_| !self.is_told) else { return };
        self.is_told = true;
        let note = Style::stderr().dim("note:");
        let ports = match &self.ports[..] {
            [] => String::new(),
            ports => format!(", and listens on {}", joined(ports)),
        };
        complain(&safe(&format!(
            "{note} the container reads nothing more, but did not {awaited} yet{ports}; Ctrl-C ends it"
        )));
    }

    /// The TCP ports that it listens on.
    async fn listening(&mut self) -> Vec<u16> {
        if self.pid.is_none() {
            self.pid = self.query.pid().await;
        }
        let Some(pid) = self.pid else { return Vec::new() };
        let mut ports = Vec::new();
        for table in ["tcp", "tcp6"] {
            let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}"));
            ports.extend(listed(&text.unwrap_or_default()));
        }
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

/// The last line that is not empty.
fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    // runc logs `time="..." level=error msg="..."`.
    let message = line.split_once(" msg=\"").and_then(|(_, message)| message.strip_suffix('"'));
    message.map_or_else(|| line.to_owned(), |message| message.replace("\\\"", "\""))
}

/// The ports that a table of sockets (proc_net_tcp) shows as listening.
fn listed(table: &str) -> impl Iterator<Item = u16> {
    table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (_, port) = words.next()?.rsplit_once(':')?;
        // The state after the remote address: LISTEN.
        words.nth(1).filter(|state| *state == "0A")?;
        u16::from_str_radix(port, 16).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: 00000000:1F90 00000000:0000 0A 00000000:00000000\n   \
             1: 0100007F:0050 0100007F:1F91 01 00000000:00000000\n";
        assert_eq!(listed(table).collect::<Vec<_>>(), [8080]);
    }
}
