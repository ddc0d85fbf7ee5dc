//! SIGINT, SIGTERM and SIGHUP: the first ends the work gracefully, the second at once. A server
//! with a configuration reads it again at SIGHUP.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// A signal that requests the program to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    Int,
    Term,
    /// The terminal was closed.
    Hup,
}

impl Interrupt {
    /// 128 plus the signal's number, as in shells.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Interrupt::Int => 130,
            Interrupt::Term => 143,
            Interrupt::Hup => 129,
        }
    }
}

/// timeout(1) signals the program and then its process group, and a terminal that closes may signal
/// it twice. What comes within this time is the first signal.
const ECHO: Duration = Duration::from_millis(200);

/// Waits for signals from now on, on a separate thread, so that a second one ends the process
/// whatever else it does. The receiver gets the first one.
///
/// # Errors
/// If the system refuses a signal handler or a thread.
pub(crate) fn listen() -> io::Result<oneshot::Receiver<Interrupt>> {
    let (first, received) = oneshot::channel();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().build()?;
    let mut signals = {
        let _guard = runtime.enter();
        Signals {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hup: if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) },
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async move {
            let signal = signals.next().await;
            if WAITS_FOR_INPUT.load(Ordering::SeqCst) {
                std::process::exit(i32::from(signal.exit_code()));
            }
            let _ = first.send(signal);
            signals.settle().await;
            let second = signals.next().await;
            std::process::exit(i32::from(second.exit_code()));
        });
    })?;
    Ok(received)
}

/// Whether SIGHUP has a configuration read again, and does not end the program.
static RELOADS: AtomicBool = AtomicBool::new(false);

/// Each SIGHUP from now on: it does not end the program any more, also one that nohup(1) started.
///
/// # Errors
/// If the system refuses a signal handler.
pub(crate) fn hangups() -> io::Result<Signal> {
    let hangups = signal(SignalKind::hangup())?;
    RELOADS.store(true, Ordering::SeqCst);
    Ok(hangups)
}

/// Whether the program reads what the user names before it begins to work.
static WAITS_FOR_INPUT: AtomicBool = AtomicBool::new(false);

/// Runs `read`, which may block for as long as a pipe has no writer. A signal ends the process
/// meanwhile: nothing has begun that would have to be cleaned up.
pub(crate) fn ending<T>(read: impl FnOnce() -> T) -> T {
    WAITS_FOR_INPUT.store(true, Ordering::SeqCst);
    let value = read();
    WAITS_FOR_INPUT.store(false, Ordering::SeqCst);
    value
}

struct Signals {
    int: Signal,
    term: Signal,
    hup: Option<Signal>,
}

impl Signals {
    /// Takes what else came with a signal.
    async fn settle(&mut self) {
        let mut end = std::pin::pin!(tokio::time::sleep(ECHO));
        loop {
            tokio::select! {
                biased;
                _ = self.next() => {}
                () = &mut end => return,
            }
        }
    }

    async fn next(&mut self) -> Interrupt {
        let hup = async {
            let Some(hup) = &mut self.hup else { return std::future::pending().await };
            loop {
                hup.recv().await;
                if !RELOADS.load(Ordering::SeqCst) {
                    return;
                }
            }
        };
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
            _ = hup => Interrupt::Hup,
        }
    }
}

/// Whether this program was started to survive its terminal, for example by nohup(1).
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    // The first bit is for signal 1, SIGHUP.
    mask.is_some_and(|mask| mask & 1 == 1)
}
