//! Runs a command, and ends it on signals.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::cli::shared::error::CliError;
use crate::cli::shared::signals::Interrupt;

/// How long registries may take to answer the cancellation of uploads after a signal.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// After an interruption, waits for the cancellation of uploads.
pub(super) async fn settled(result: Result<(), CliError>) -> Result<(), CliError> {
    if matches!(result, Err(CliError::Interrupted(_))) {
        settle().await;
    }
    result
}

/// Waits briefly for requests of dropped work: cancellations of uploads.
async fn settle() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let idle = async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(LAST_REQUESTS, idle).await;
}

/// Runs `work` until it is done, or drops it at the first signal.
pub(super) async fn until<T>(
    interrupted: &mut oneshot::Receiver<Interrupt>,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    tokio::select! {
        biased;
        Ok(signal) = interrupted => Err(CliError::Interrupted(signal)),
        result = work => result,
    }
}

/// The future of `make` on the heap. Those of commands are large, and a stack never returns memory
/// to the kernel. Not inlined: a function has room on its stack for all futures that it makes, and
/// touches all of it.
#[inline(never)]
pub(super) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::pin(make())
}

/// Runs `work` on a thread that may block.
pub(super) async fn blocking<T: Send + 'static, E: Into<CliError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, CliError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(E::into),
        Err(error) => match error.try_into_panic() {
            // A panic on the thread continues on this one.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(CliError::Start(error.into())),
        },
    }
}
