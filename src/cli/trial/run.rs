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

use super::{Ran, TryArgs};
use crate::cli::image_fs::OpenedImage;
use crate::cli::image_fs::bundle::mount_bundle;
use crate::cli::shared::error::{CliError, FAILED};
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::{blocking, boxed, until};
use ociseek_format::progress::causes;
use ociseek_ops::bundle::{Bundle, RunOptions};
use ociseek_ops::container::{Container, PidQuery};
use ociseek_ops::mount::{LiveMount, Prefetch, Record};
use ociseek_ops::open::RootFs;

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
    let temporary = temporary.tempdir().map_err(CliError::start)?;
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
    let started = Instant::now();
    let ran = match Container::run(args.runtime(), live_bundle.bundle.dir(), &container) {
        Ok(container) => watch(args, container, &live_bundle.live, interrupted).await,
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
    let ran = match ran {
        Ok(Watched { status: Some(status), error })
            if code(status) != 0 && (touches.is_empty() || is_of_runtime(&error)) =>
        {
            Err(format!("{} could not start it: {error}", args.runtime().display()))
        }
        Ok(watched) => Ok(Ran { touches, status: watched.status.map(code), seconds, fetched }),
        Err(error) => Err(causes(&error)),
    };
    Ok((opened.image, ran))
}

/// Whether the runtime (runc, crun) says that the program did not start. It may have read files of
/// the image before.
fn is_of_runtime(line: &str) -> bool {
    line.contains("unable to start container process") || line.contains("executable file `")
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
}

/// Waits until the container is ready or exits, and ends it.
async fn watch(
    args: &TryArgs,
    mut container: Container,
    live: &LiveMount,
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
    let mut state = Readiness::new(args, query, started);
    let mut exited = pin!(container.wait());
    let mut is_open = true;
    let status = loop {
        tokio::select! {
            biased;
            Ok(_) = &mut *interrupted => break None,
            chunk = printed.recv(), if is_open => match chunk {
                Some(chunk) => if state.has_printed(&chunk) { break None },
                None => is_open = false,
            },
            status = &mut exited => break Some(status?),
            () = tokio::time::sleep(TICK) => if state.is_ready(live).await { break None },
        }
    };
    // What it printed last.
    if status.is_some() {
        let deadline = tokio::time::Instant::now() + TICK;
        while let Ok(Some(chunk)) = tokio::time::timeout_at(deadline, printed.recv()).await {
            state.has_printed(&chunk);
        }
    }
    Ok(Watched { status, error: state.last_line() })
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
}

impl Readiness<'_> {
    fn new(args: &TryArgs, query: PidQuery, started: Instant) -> Readiness<'_> {
        let tail = Vec::new();
        Readiness { args, query, pid: None, started, tail, reads: 0, last_read: started }
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

    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        // runc logs `time="..." level=error msg="..."`.
        let message = line.split_once(" msg=\"").and_then(|(_, message)| message.strip_suffix('"'));
        message.map_or_else(|| line.to_owned(), |message| message.replace("\\\"", "\""))
    }

    async fn is_ready(&mut self, live: &LiveMount) -> bool {
        let reads = live.recorder().map_or(0, |recorder| recorder.count());
        if reads != self.reads {
            self.reads = reads;
            self.last_read = Instant::now();
        }
        let TryArgs { for_time, until_port, until_output, .. } = self.args;
        if self.started.elapsed() >= for_time.unwrap_or(LONGEST) {
            return true;
        }
        if let Some(port) = until_port {
            return self.listens(*port).await;
        }
        let settled = if self.tail.is_empty() { SETTLED_SILENT } else { SETTLED };
        for_time.is_none() && until_output.is_none() && self.last_read.elapsed() >= settled
    }

    async fn listens(&mut self, port: u16) -> bool {
        if self.pid.is_none() {
            self.pid = self.query.pid().await;
        }
        let Some(pid) = self.pid else { return false };
        let has_port = |table: &str| {
            let path = format!("/proc/{pid}/net/{table}");
            std::fs::read_to_string(path).is_ok_and(|text| is_listed(&text, port))
        };
        has_port("tcp") || has_port("tcp6")
    }
}

/// Whether a table of sockets (proc_net_tcp) has one that listens on the port.
fn is_listed(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_local = words.next().is_some_and(|local| local.ends_with(&port));
        // The state after the remote address: LISTEN.
        is_local && words.nth(1) == Some("0A")
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
        assert_eq!([8080, 80, 8081].map(|port| is_listed(table, port)), [true, false, false]);
    }
}
