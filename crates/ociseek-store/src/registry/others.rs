//! Other repositories with the same content: what is named by its digest is the same everywhere.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::error::RegistryError;
use crate::lock::Hold;

/// How long found repositories count.
const FRESH: Duration = Duration::from_secs(30);
/// How many of them are asked.
const MOST: usize = 8;

/// The other repositories, as far as they are known.
pub(super) struct Others<R> {
    find: Arc<dyn Fn() -> BoxFuture<'static, Vec<R>> + Send + Sync>,
    found: tokio::sync::Mutex<Option<(Instant, Vec<R>)>>,
    /// The one that had the content last, after the repository itself had refused it.
    current: Mutex<Option<R>>,
}

impl<R: Clone> Others<R> {
    /// Those that `find` returns when they are needed.
    pub(super) fn new(
        find: Arc<dyn Fn() -> BoxFuture<'static, Vec<R>> + Send + Sync>,
    ) -> Others<R> {
        Others { find, found: tokio::sync::Mutex::default(), current: Mutex::default() }
    }

    async fn found(&self) -> Vec<R> {
        let mut found = self.found.lock().await;
        match &*found {
            Some((at, repositories)) if at.elapsed() < FRESH => repositories.clone(),
            _ => {
                let mut repositories = (self.find)().await;
                repositories.truncate(MOST);
                *found = Some((Instant::now(), repositories.clone()));
                repositories
            }
        }
    }

    /// What `ask` gets from `itself`, or from another one, which is asked first from then on.
    pub(super) async fn ask<T, F>(
        &self,
        itself: &R,
        ask: impl Fn(R) -> F,
    ) -> Result<T, RegistryError>
    where
        F: Future<Output = Result<T, RegistryError>>,
    {
        let current = self.current.hold().clone();
        let is_elsewhere = current.is_some();
        let error = match ask(current.unwrap_or_else(|| itself.clone())).await {
            Err(error) if is_gone(&error) => error,
            answer => return answer,
        };
        let itself = is_elsewhere.then(|| itself.clone());
        for other in itself.into_iter().chain(self.found().await) {
            if let Ok(answer) = ask(other.clone()).await {
                *self.current.hold() = Some(other);
                return Ok(answer);
            }
        }
        Err(error)
    }
}

/// Whether a repository does not have the content any more, or not for this login.
fn is_gone(error: &RegistryError) -> bool {
    matches!(error.status(), Some(401 | 403 | 404 | 410))
}
