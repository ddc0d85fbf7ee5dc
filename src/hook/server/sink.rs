//! Where accepted jobs go.

use std::path::Path;

use crate::hook::backlog::{Backlog, Item, Offer};
use crate::hook::job::{Job, Unit};
use crate::hook::journal::{Journal, JournalError};
#[cfg(feature = "nats")]
use crate::hook::queue::{Published, Queue, QueueError};

/// The queue of this process, or that of others.
#[allow(clippy::large_enum_variant, reason = "there is one of them at a time")]
pub enum Sink {
    /// The queue of this process.
    Here(Here),
    /// A queue that services share.
    #[cfg(feature = "nats")]
    Queue(Queue),
}

/// A queue in memory, and the journal that outlives it.
pub struct Here {
    /// The jobs that wait and run.
    pub backlog: Backlog,
    /// The file in which they outlive the process, if there is one.
    pub journal: Option<Journal>,
}

impl Here {
    /// A queue for `capacity` jobs, which count by `unit`. With a journal, what is left in it from
    /// before stands in the queue already.
    ///
    /// # Errors
    /// When the journal cannot be read or written.
    pub fn new(capacity: usize, unit: Unit, journal: Option<&Path>) -> Result<Here, JournalError> {
        let backlog = Backlog::new(capacity, unit);
        let Some(path) = journal else { return Ok(Here { backlog, journal: None }) };
        let (journal, left) = Journal::open(path, unit)?;
        let here = Here { backlog, journal: Some(journal) };
        for item in left {
            // Accepted is accepted: what was taken before does not ask for room.
            here.backlog.restore(item);
        }
        Ok(here)
    }
}

/// Why a job could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SinkError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl Sink {
    /// # Errors
    /// When it could not be written down where it must be: then it is not taken.
    pub async fn offer(&self, job: Job) -> Result<Offer, SinkError> {
        match self {
            #[cfg(feature = "nats")]
            Sink::Queue(queue) => Ok(match queue.publish(&job).await? {
                Published::New => Offer::Accepted,
                Published::Duplicate => Offer::Duplicate,
            }),
            Sink::Here(Here { backlog, journal }) => {
                let keep = |item: &Item| journal.as_ref().map_or(Ok(()), |journal| journal.accepted(item));
                Ok(backlog.offer(Item { job, tries: 0 }, keep)?)
            }
        }
    }

    /// The queue of this process, if it has one.
    pub fn here(&self) -> Option<&Here> {
        match self {
            Sink::Here(here) => Some(here),
            #[cfg(feature = "nats")]
            Sink::Queue(_) => None,
        }
    }

    /// Whether a job would be taken, as far as that can be said.
    pub fn has_room(&self) -> bool {
        match self {
            Sink::Here(here) => here.backlog.has_room(),
            #[cfg(feature = "nats")]
            Sink::Queue(queue) => queue.is_connected(),
        }
    }
}
