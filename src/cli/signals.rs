//! SIGINT and SIGTERM: the first ends the work in good order, the second at once.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// A signal that asks to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    Int,
    Term,
}

impl Interrupt {
    /// 128 + the signal's number, as shells count.
    pub fn exit_code(self) -> u8 {
        match self {
            Interrupt::Int => 130,
            Interrupt::Term => 143,
        }
    }
}

/// Waits for both signals from now on, on a thread of its own, so that a second one ends the process whatever the rest of
/// it does. The receiver gets the first.
///
/// # Errors
/// When the system refuses a signal handler or a thread.
pub fn listen() -> io::Result<oneshot::Receiver<Interrupt>> {
    let (first, received) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut int, mut term) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async move {
            let _ = first.send(next(&mut int, &mut term).await);
            let second = next(&mut int, &mut term).await;
            std::process::exit(i32::from(second.exit_code()));
        });
    })?;
    Ok(received)
}

/// Two ends for work on a thread, which no signal can drop: while the first one is there, the second says that it shall go on.
pub fn wanted() -> (Arc<()>, impl Fn() -> bool + Send + 'static) {
    let wanted = Arc::new(());
    let seen = Arc::downgrade(&wanted);
    (wanted, move || seen.strong_count() > 0)
}

async fn next(int: &mut Signal, term: &mut Signal) -> Interrupt {
    tokio::select! {
        _ = int.recv() => Interrupt::Int,
        _ = term.recv() => Interrupt::Term,
    }
}
