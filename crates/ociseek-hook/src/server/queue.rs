//! The queue of accepted jobs: of this process, or of several.

use std::path::Path;

use crate::backlog::{Backlog, Item, Offer};
use crate::job::{Job, Unit};
use crate::journal::{Journal, JournalError};
#[cfg(feature = "nats")]
use crate::nats::{NatsError, NatsQueue, PublishOutcome};

/// The queue of this process, or a shared one.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum JobQueue {
    /// The queue of this process.
    Local(LocalQueue),
    /// A queue that several services share.
    #[cfg(feature = "nats")]
    Nats(NatsQueue),
}

/// A queue in memory, with a journal that survives the process.
#[derive(Debug)]
pub struct LocalQueue {
    /// The waiting and running jobs.
    pub backlog: Backlog,
    /// The file in which they survive the process, if there is one.
    pub journal: Option<Journal>,
}

impl LocalQueue {
    /// A queue for `capacity` jobs, counted by `unit`. The remaining jobs of the journal are
    /// already in the queue.
    ///
    /// # Errors
    /// If the journal cannot be read or written.
    pub fn new(
        capacity: usize,
        unit: Unit,
        journal: Option<&Path>,
    ) -> Result<LocalQueue, JournalError> {
        let backlog = Backlog::new(capacity, unit);
        let Some(path) = journal else { return Ok(LocalQueue { backlog, journal: None }) };
        let (journal, left) = Journal::open(path, unit)?;
        let queue = LocalQueue { backlog, journal: Some(journal) };
        for item in left {
            // These were accepted before, so they need no room.
            queue.backlog.restore(item);
        }
        Ok(queue)
    }
}

/// Why a job could not be accepted.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl JobQueue {
    /// Adds a job. It survives the machine after [`JobQueue::sync`].
    ///
    /// # Errors
    /// If a job could not be recorded. Then it is not accepted.
    pub async fn offer(&self, job: Job) -> Result<Offer, OfferError> {
        match self {
            #[cfg(feature = "nats")]
            JobQueue::Nats(queue) => Ok(match queue.publish(&job).await? {
                PublishOutcome::New => Offer::Accepted,
                PublishOutcome::Duplicate => Offer::Duplicate,
            }),
            JobQueue::Local(LocalQueue { backlog, journal }) => Ok(backlog
                .offer(Item { job, tries: 0 }, |item| {
                    journal.as_ref().map_or(Ok(()), |journal| journal.accepted(item))
                })?),
        }
    }

    /// Returns when all jobs that were accepted, or that are duplicates of others, survive a power
    /// failure, as far as they are recorded at all.
    ///
    /// # Errors
    /// If the journal could not be synced. Then no event may be confirmed.
    pub async fn sync(&self) -> Result<(), OfferError> {
        match self.local().and_then(|queue| queue.journal.as_ref()) {
            Some(journal) => Ok(journal.sync().await?),
            None => Ok(()),
        }
    }

    /// The queue of this process, if it has one.
    pub fn local(&self) -> Option<&LocalQueue> {
        match self {
            JobQueue::Local(queue) => Some(queue),
            #[cfg(feature = "nats")]
            JobQueue::Nats(_) => None,
        }
    }

    /// Whether a job would probably be accepted.
    pub fn has_room(&self) -> bool {
        match self {
            JobQueue::Local(queue) => queue.backlog.has_room(),
            #[cfg(feature = "nats")]
            JobQueue::Nats(queue) => queue.is_connected(),
        }
    }
}
