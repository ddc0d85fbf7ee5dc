//! Tasks.

pub use shuttle_tokio::task::{
    AbortHandle, JoinError, JoinHandle, spawn, spawn_blocking, yield_now,
};

/// A set of tasks, which are aborted when it is dropped.
pub struct JoinSet<T>(shuttle_tokio::task::JoinSet<T>);

impl<T: Send + 'static> JoinSet<T> {
    #[expect(clippy::new_without_default, reason = "as in tokio")]
    pub fn new() -> JoinSet<T> {
        JoinSet(shuttle_tokio::task::JoinSet::new())
    }

    pub fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        self.0.spawn(task)
    }

    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.join_next().await
    }

    pub async fn shutdown(&mut self) {
        self.0.abort_all();
        while self.0.join_next().await.is_some() {}
    }
}
