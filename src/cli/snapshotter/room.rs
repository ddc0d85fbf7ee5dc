//! The memory for the lists of files of all images, which many images want at once when a node is
//! filled or has started.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::cli::shared::error::CliError;
use ociseek_format::budget::Budget;
use ociseek_ops::ahead::ListMemory;
use ociseek_ops::is_over_budget;
use ociseek_ops::judge::NotLazy;

/// How often an image that waits looks whether memory was given back.
const LOOK: Duration = Duration::from_millis(100);
/// For how long an image waits while no memory is returned. An image that was opened returns
/// what only opening took after five seconds.
const WAIT: Duration = Duration::from_secs(8);

/// The memory for opening, of all images together.
pub(super) struct OpeningMemory {
    budget: Budget,
    /// Held by the image that waits for memory. The others wait for their turn.
    turn: Mutex<()>,
}

impl OpeningMemory {
    pub(super) fn new(bytes: u64) -> OpeningMemory {
        OpeningMemory { budget: Budget::new(bytes), turn: Mutex::default() }
    }

    /// A budget for an image, within that of all.
    pub(super) fn of_an_image(&self) -> Budget {
        self.budget.within()
    }

    /// Whether an image with these lists can be opened beside all `others` that are not open yet:
    /// one at a time, and when all are open, a quarter is left for what changes.
    ///
    /// # Errors
    /// Otherwise it is unpacked: its containers could not start.
    pub(super) fn check(&self, lists: ListMemory, others: u64) -> Result<(), NotLazy> {
        let limit = self.budget.limit();
        let used = self.budget.used().saturating_add(others);
        let is_full = used.saturating_add(lists.kept) > limit / 4 * 3;
        if is_full || used.saturating_add(lists.opening) > limit {
            Err(NotLazy::Memory { used, limit })
        } else {
            Ok(())
        }
    }

    /// Opens an image. If the lists of others leave no memory for that, waits until they take less.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) async fn open<T, Opening>(&self, open: impl Fn() -> Opening) -> Result<T, CliError>
    where
        Opening: Future<Output = Result<T, CliError>>,
    {
        // A small image does not wait for a large one.
        match open().await {
            Err(error) if is_over_budget(&error) => {}
            opened => return opened,
        }
        let _turn = self.turn.lock().await;
        loop {
            let error = match open().await {
                Err(error) if is_over_budget(&error) => error,
                opened => return opened,
            };
            let used = self.budget.used();
            let end = Instant::now() + WAIT;
            while self.budget.used() >= used {
                if used == 0 || Instant::now() > end {
                    return Err(error);
                }
                sleep(LOOK).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::budget::Charge;
    use ociseek_ops::open::OpenImageError;

    #[test]
    fn a_quarter_of_the_memory_is_left_to_open_images() {
        let memory = OpeningMemory::new(400);
        let check = |opening, lists, others| {
            memory
                .check(ListMemory { opening, kept: lists }, others)
                .map_err(|reason| reason.code())
        };
        assert_eq!(check(150, 50, 250), Ok(()));
        assert_eq!(check(150, 50, 251), Err("memory"));
        assert_eq!(check(401, 50, 0), Err("memory"));
        let open = memory.of_an_image();
        let _open = open.charge(250, String::new).unwrap();
        assert_eq!(check(150, 50, 0), Ok(()));
        assert_eq!(check(150, 50, 1), Err("memory"));
    }

    #[tokio::test]
    async fn an_image_waits_until_others_give_memory_back() {
        let memory = OpeningMemory::new(100);
        let open = |bytes: u64| {
            let budget = memory.of_an_image();
            async move {
                let charge = budget.charge(bytes, String::new).map_err(OpenImageError::from)?;
                Ok::<Charge, CliError>(charge)
            }
        };
        let first = memory.open(|| open(80)).await.unwrap();
        let giving_back = async {
            sleep(LOOK * 2).await;
            drop(first);
        };
        let (second, ()) = tokio::join!(memory.open(|| open(50)), giving_back);
        drop(second.unwrap());
        // Nobody else has memory.
        let error = memory.open(|| open(101)).await.unwrap_err();
        assert!(is_over_budget(&error));
    }
}
