//! Other repositories with the same content: what is named by its digest is the same everywhere.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::error::RegistryError;
use crate::lock::Hold;

/// How long found repositories count.
const FRESH: Duration = Duration::from_secs(30);
/// How many of them are asked.
const MOST: usize = 8;
/// How long a repository may be silent before others are asked, too.
const SILENT: Duration = Duration::from_secs(5);

/// The other repositories, as far as they are known.
pub(super) struct Others<R> {
    find: Arc<dyn Fn() -> BoxFuture<'static, Vec<R>> + Send + Sync>,
    found: tokio::sync::Mutex<Option<(Instant, Vec<R>)>>,
    /// The one that had the content last, after the repository itself had failed. None for itself.
    current: Mutex<Option<R>>,
    /// [`SILENT`], and less in tests.
    silent: Duration,
}

impl<R: Clone> Others<R> {
    /// Those that `find` returns when they are needed.
    pub(super) fn new(
        find: Arc<dyn Fn() -> BoxFuture<'static, Vec<R>> + Send + Sync>,
    ) -> Others<R> {
        let found = tokio::sync::Mutex::default();
        Others { find, found, current: Mutex::default(), silent: SILENT }
    }

    async fn found(&self) -> Vec<R> {
        let mut known = self.found.lock().await;
        match &*known {
            Some((at, repositories)) if at.elapsed() < FRESH => repositories.clone(),
            _ => {
                let mut repositories = (self.find)().await;
                repositories.truncate(MOST);
                *known = Some((Instant::now(), repositories.clone()));
                repositories
            }
        }
    }

    /// What `ask` gets from `itself`, or from another one, which is asked first from then on.
    /// Others are asked if the first one fails or is silent.
    pub(super) async fn ask<T, F>(
        &self,
        itself: &R,
        ask: impl Fn(R) -> F,
    ) -> Result<T, RegistryError>
    where
        F: Future<Output = Result<T, RegistryError>>,
    {
        let current = self.current.hold().clone();
        let from_others = self.ask_others(itself, current.as_ref(), &ask);
        // In boxes: these futures are large, and are part of others.
        let mut first = Box::pin(ask(current.clone().unwrap_or_else(|| itself.clone())));
        tokio::pin!(from_others);
        let error = match timeout(self.silent, &mut first).await {
            Ok(Err(error)) => error,
            Ok(answer) => return answer,
            Err(_) => tokio::select! {
                answer = &mut from_others => match answer {
                    Some(answer) => return Ok(answer),
                    None => return first.await,
                },
                answer = &mut first => match answer {
                    Err(error) => error,
                    answer => return answer,
                },
            },
        };
        from_others.await.ok_or(error)
    }

    /// As [`Others::ask`], after the one that is asked first sent something wrong: it is asked
    /// last.
    pub(super) async fn ask_again<T, F>(
        &self,
        itself: &R,
        ask: impl Fn(R) -> F,
    ) -> Result<T, RegistryError>
    where
        F: Future<Output = Result<T, RegistryError>>,
    {
        let current = self.current.hold().clone();
        match self.ask_others(itself, current.as_ref(), &ask).await {
            Some(answer) => Ok(answer),
            None => Box::pin(ask(current.unwrap_or_else(|| itself.clone()))).await,
        }
    }

    /// The first answer of those that are not asked first: `itself`, if there is a `current` one,
    /// and those that are found.
    async fn ask_others<T, F>(
        &self,
        itself: &R,
        current: Option<&R>,
        ask: &impl Fn(R) -> F,
    ) -> Option<T>
    where
        F: Future<Output = Result<T, RegistryError>>,
    {
        // None is the repository itself.
        let itself_later = current.map(|_| None);
        for other in itself_later.into_iter().chain(self.found().await.into_iter().map(Some)) {
            let asked = ask(other.clone().unwrap_or_else(|| itself.clone()));
            if let Ok(Ok(answer)) = timeout(self.silent, Box::pin(asked)).await {
                *self.current.hold() = other;
                return Some(answer);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_silent_repository_is_replaced_by_one_that_answers() {
        let find = || async { vec!["silent too", "other"] }.boxed();
        let silent = Duration::from_millis(200);
        let others = Others { silent, ..Others::new(Arc::new(find)) };
        let ask = |name: &'static str| async move {
            match name {
                "other" => Ok(name),
                _ => pending().await,
            }
        };
        let begun = Instant::now();
        assert_eq!(others.ask(&"itself", ask).await.unwrap(), "other");
        assert!(begun.elapsed() >= 2 * silent);
        // From then on, it is asked first.
        assert_eq!(others.ask(&"itself", ask).now_or_never().unwrap().unwrap(), "other");
    }

    #[tokio::test]
    async fn every_failure_and_wrong_content_lead_to_the_others() {
        let others = Others::new(Arc::new(|| async { vec!["other"] }.boxed()));
        let refused = || RegistryError::BlobTooLarge {
            digest: ociseek_format::digest::Digest::sha256(b""),
            size: 2,
            limit: 1,
        };
        let failing = |name| async move { if name == "other" { Ok(name) } else { Err(refused()) } };
        assert_eq!(others.ask(&"itself", failing).await.unwrap(), "other");
        // From then on, the other one is asked first, unless it was wrong.
        let any = |name: &'static str| async move { Ok(name) };
        assert_eq!(others.ask(&"itself", any).await.unwrap(), "other");
        assert_eq!(others.ask_again(&"itself", any).await.unwrap(), "itself");
        assert_eq!(others.ask_again(&"itself", any).await.unwrap(), "other");
        let nobody = |_| async { Err::<&str, _>(refused()) };
        assert!(matches!(
            others.ask_again(&"itself", nobody).await,
            Err(RegistryError::BlobTooLarge { .. })
        ));
    }

    #[tokio::test]
    async fn a_repository_that_is_only_slow_is_waited_for() {
        let silent = Duration::from_millis(20);
        let others =
            Others { silent, ..Others::new(Arc::new(|| async { vec!["silent"] }.boxed())) };
        let ask = |name: &'static str| async move {
            if name == "silent" {
                return pending().await;
            }
            tokio::time::sleep(10 * silent).await;
            Ok(name)
        };
        assert_eq!(others.ask(&"itself", ask).await.unwrap(), "itself");
    }
}
