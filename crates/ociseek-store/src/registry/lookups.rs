//! Lookups of names. A thread waits for each, also after those who asked gave up: the system's
//! resolver cannot be stopped (constellation-rs/amadeus#81: a hundred threads for one host). So all
//! who ask for a name at the same time share one, whichever client they use.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex};

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::lock::Hold;

/// Those of this process.
pub(super) static LOOKUPS: LazyLock<Lookups> = LazyLock::new(Lookups::default);

type Found = Result<Vec<SocketAddr>, Arc<io::Error>>;

/// The lookups that have not ended, by name.
#[derive(Clone, Default)]
pub(super) struct Lookups(Arc<Mutex<HashMap<String, watch::Receiver<Option<Found>>>>>);

/// Asks the system.
pub(super) fn system_lookup(name: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((name, 0).to_socket_addrs()?.collect())
}

impl Lookups {
    /// The addresses of `name`. `look` blocks.
    pub(super) async fn of(
        &self,
        name: &str,
        look: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> Found {
        let mut found = self.running(name, look);
        let found = found.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        // Its runtime has ended.
        found.unwrap_or_else(|| Err(Arc::new(io::ErrorKind::Interrupted.into())))
    }

    fn running(
        &self,
        name: &str,
        look: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> watch::Receiver<Option<Found>> {
        let mut running = self.0.hold();
        if let Some(found) = running.get(name).filter(|found| found.has_changed().is_ok()) {
            return found.clone();
        }
        let (sender, receiver) = watch::channel(None);
        running.insert(name.to_owned(), receiver.clone());
        let (all, name) = (self.clone(), name.to_owned());
        spawn_blocking(move || {
            let found = look(&name).map_err(Arc::new);
            all.0.hold().remove(&name);
            sender.send_replace(Some(found));
        });
        receiver
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn a_name_is_looked_up_once_at_a_time() {
        let lookups = Lookups::default();
        let asked = Arc::new(AtomicU32::new(0));
        let address: SocketAddr = "192.0.2.1:0".parse().unwrap();
        for round in 1..=2 {
            let (go_on, answer) = mpsc::channel::<()>();
            let answer = Arc::new(Mutex::new(answer));
            let look = || {
                let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
                move |_: &str| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    answer.hold().recv().unwrap();
                    Ok(vec![address])
                }
            };
            // These give up at once.
            for _ in 0..8 {
                assert!(lookups.of("r.example", look()).now_or_never().is_none());
            }
            assert!(lookups.of("other.example", |_| Ok(vec![])).await.unwrap().is_empty());
            let all = join_all((0..8).map(|_| lookups.of("r.example", look())));
            let send = async { go_on.send(()).unwrap() };
            let (found, ()) = tokio::join!(all, send);
            assert!(found.into_iter().all(|found| found.unwrap() == [address]));
            assert_eq!(asked.load(Ordering::Relaxed), round);
        }
        assert!(lookups.0.hold().is_empty());
    }

    #[test]
    fn a_lookup_of_a_runtime_that_has_ended_is_not_waited_for() {
        let lookups = Lookups::default();
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, receiver) = watch::channel(None);
        lookups.0.hold().insert("r.example".to_owned(), receiver);
        drop(sender);
        let found = runtime().block_on(lookups.of("r.example", |_| Ok(vec![])));
        assert!(found.unwrap().is_empty());
    }
}
