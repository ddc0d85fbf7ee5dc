//! Tasks in the background.

use std::pin::Pin;

use tokio::task::AbortHandle;

/// A task that ends when this is dropped.
#[derive(Debug)]
pub struct BackgroundTask(AbortHandle);

impl BackgroundTask {
    /// Starts a task on the caller's tokio runtime.
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> BackgroundTask {
        // One type for all tasks, since the runtime's code is compiled for each.
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        BackgroundTask(tokio::spawn(task).abort_handle())
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
