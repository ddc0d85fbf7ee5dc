//! `--detach`: the program starts a second process of itself, and exits when that reports that the
//! image is mounted. Another process of this program keeps the FUSE devices of a server.
//!
//! Both are recognised before the command line is parsed: that takes time, and memory that the
//! keeper does without.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use rustix::process::{Pid, Signal, getppid, kill_process, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::set_name;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::cli::shared::error::{CliError, DONE, FAILED};
use crate::cli::shared::report::report_error;
use crate::cli::shared::signals::{self, Interrupt};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::complain;
use ociseek_rootfs::fuse::{KEEPER, keep_devices};

/// The variable that has the number of the process that started the background process.
const BACKGROUND: &str = "OCISEEK_BACKGROUND";

/// The message of the background process after mounting.
const READY: &str = "ready\n";

/// Does what [`start`] does, if the arguments clearly ask for it. Parsing all options takes this
/// process two milliseconds, and the background process does it, too.
pub(crate) fn run(arguments: &[OsString]) -> Option<ExitCode> {
    let may_be_json = std::env::var_os("OCISEEK_FORMAT").is_some();
    if may_be_json
        || is_background()
        || !is_detached(arguments.iter().skip(1).map(|typed| typed.as_encoded_bytes()))
    {
        return None;
    }
    let started = signals::listen().and_then(|mut interrupted| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(start(&mut interrupted)))
    });
    let error = match started.map_err(CliError::start).flatten() {
        Ok(()) => return Some(ExitCode::from(DONE)),
        Err(error) => error,
    };
    if !error.is_reported() {
        report_error(None, &error);
    }
    Some(ExitCode::from(error.exit_code()))
}

/// Names this process, which was started by the path of its parent's program, `/proc/self/exe`.
pub(crate) fn name_process() {
    // A wrong name does no harm.
    let _ = set_name(c"ociseek");
}

/// Keeps the devices of mounts, if the arguments of this process say so. Its standard input is the
/// socket on which they come.
pub(crate) fn run_keeper(arguments: &[OsString]) -> Option<ExitCode> {
    if arguments.get(1).is_none_or(|typed| typed != KEEPER) {
        return None;
    }
    name_process();
    let listener = io::stdin().as_fd().try_clone_to_owned();
    Some(match listener.and_then(|listener| keep_devices(&listener)) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => {
            complain(&format!("error: {error}"));
            ExitCode::from(FAILED)
        }
    })
}

/// Whether these arguments, without the program's name, make a mount or a bundle that a background
/// process serves. False if they could also ask for another thing: help, JSON, or a removal.
fn is_detached<'a>(mut arguments: impl Iterator<Item = &'a [u8]>) -> bool {
    let is_other = |typed: &[u8]| {
        let is_short = typed.starts_with(b"-") && !typed.starts_with(b"--");
        let others: [&[u8]; 5] = [b"--help", b"--version", b"--json", b"--format", b"--rm"];
        (is_short && typed.iter().any(|letter| matches!(letter, b'h' | b'V')))
            || others.iter().any(|other| typed.starts_with(other))
    };
    // Options before the name have no values.
    let Some(command) = arguments.find(|typed| !typed.starts_with(b"-") || is_other(typed)) else {
        return false;
    };
    let mut is_detached = false;
    for typed in arguments.take_while(|typed| *typed != b"--") {
        if is_other(typed) {
            return false;
        }
        is_detached |= typed == b"--detach";
    }
    is_detached && matches!(command, b"mount" | b"bundle")
}

/// Whether this is the background process of `--detach`. Its own children inherit the variable, but
/// have another parent.
pub(crate) fn is_background() -> bool {
    let parent = getppid().map(|parent| parent.to_string());
    parent.is_some() && std::env::var(BACKGROUND).ok() == parent
}

/// Starts this program again with the same arguments, and waits until it is ready. The background
/// process reports its own errors.
pub(crate) async fn start(interrupted: &mut oneshot::Receiver<Interrupt>) -> Result<(), CliError> {
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_else(|| "ociseek".into())).args(arguments);
    command.stdout(Stdio::piped()).env(BACKGROUND, std::process::id().to_string());
    let mut child = command.spawn().map_err(CliError::start)?;
    let mut output = ChildOutput::default();
    if let Some(stdout) = child.stdout.take() {
        let stdout = BufReader::new(stdout);
        tokio::select! {
            biased;
            Ok(signal) = interrupted => {
                stop(child.id(), signal);
                // It reports the interruption itself, and removes what it created.
                let _ = child.wait().await;
                return Err(CliError::exit(signal.exit_code()));
            }
            read = read_output(stdout) => output = read.map_err(CliError::start)?,
        }
    }
    Stdout::new().print(output.document)?;
    if output.is_ready {
        return Ok(());
    }
    let status = child.wait().await.map_err(CliError::start)?;
    // A process that was killed by a signal has reported nothing.
    let failed =
        || CliError::start(io::Error::other(format!("the background process exited ({status})")));
    let code = status.code().ok_or_else(failed)?;
    Err(CliError::exit(u8::try_from(code).unwrap_or(FAILED)))
}

/// The standard output of the background process.
#[derive(Default)]
struct ChildOutput {
    /// The JSON document about the mount or its failure. Empty unless requested.
    document: String,
    is_ready: bool,
}

/// Reads until the process is ready or has exited.
async fn read_output(mut stdout: impl AsyncBufRead + Unpin) -> io::Result<ChildOutput> {
    let mut document = String::new();
    loop {
        let start = document.len();
        let is_over = stdout.read_line(&mut document).await? == 0;
        let is_ready = document[start..] == *READY;
        if is_ready {
            document.truncate(start);
        }
        if is_over || is_ready {
            return Ok(ChildOutput { document, is_ready });
        }
    }
}

fn stop(child: Option<u32>, signal: Interrupt) {
    let signal = match signal {
        Interrupt::Int => Signal::INT,
        Interrupt::Term => Signal::TERM,
        Interrupt::Hup => Signal::HUP,
    };
    if let Some(pid) = child.and_then(|id| Pid::from_raw(id.cast_signed())) {
        // It may already have exited.
        let _ = kill_process(pid, signal);
    }
}

/// The log of the background process, for the time after nobody listens to its output.
pub(crate) struct Log(File);

impl Log {
    /// None for no log.
    pub(crate) fn open(path: Option<&Path>) -> Result<Log, CliError> {
        let path = path.map_or_else(|| PathBuf::from("/dev/null"), Path::to_owned);
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        Ok(Log(opened.map_err(CliError::write(&path))?))
    }

    /// Leaves the session of the parent process, and reports that the image is mounted.
    ///
    /// # Errors
    /// If the parent process no longer waits for the report.
    pub(crate) fn ready(self) -> Result<(), CliError> {
        let leave = || -> io::Result<()> {
            let null = File::open("/dev/null")?;
            let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
            setsid()?;
            name_process();
            dup2_stdin(null)?;
            dup2_stderr(self.0)?;
            let mut stdout = io::stdout().lock();
            stdout.write_all(READY.as_bytes())?;
            stdout.flush()?;
            dup2_stdout(nowhere)?;
            Ok(())
        };
        leave().map_err(CliError::start)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_what_clearly_asks_for_a_background_process_is_started_in_one() {
        let is_detached = |line: &str| super::is_detached(line.split(' ').map(str::as_bytes));
        for line in [
            "mount --detach a b",
            "-q mount a b --detach",
            "bundle --cache-dir=c --detach a b -- sh --help -h --rm",
        ] {
            assert!(is_detached(line), "{line}");
        }
        for line in [
            "",
            "mount a b",
            "ls --detach a",
            "--detach mount a b",
            "mount a b -- --detach",
            "bundle a b --detach=1",
            "mount --detach --help",
            "mount -qh --detach a b",
            "mount --detach --json a b",
            "mount --detach --format=json a b",
            "bundle --rm a --detach",
            "--version mount --detach a b",
            "--progress none mount --detach a b",
        ] {
            assert!(!is_detached(line), "{line}");
        }
    }
}
