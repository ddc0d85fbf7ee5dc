//! Where accepted jobs go.

use std::path::Path;

use super::super::backlog::{Backlog, Item, Offer};
use super::super::job::Job;
use super::super::journal::{Journal, JournalError};

/// The queue of this process, or that of others.
pub enum Sink {
    Here(Here),
}

/// A queue in memory, and the journal that outlives it.
pub struct Here {
    pub backlog: Backlog,
    pub journal: Option<Journal>,
}

impl Here {
    /// A queue for `capacity` jobs. With a journal, what is left in it from before stands in the queue already.
    ///
    /// # Errors
    /// When the journal cannot be read or written.
    pub fn new(capacity: usize, journal: Option<&Path>) -> Result<Here, JournalError> {
        let Some(path) = journal else { return Ok(Here { backlog: Backlog::new(capacity), journal: None }) };
        let (journal, left) = Journal::open(path)?;
        let here = Here { backlog: Backlog::new(capacity), journal: Some(journal) };
        for item in left {
            // Accepted is accepted: what was taken before does not ask for room.
            here.backlog.restore(item);
        }
        Ok(here)
    }
}

/// Why a job could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl Sink {
    pub async fn offer(&self, job: Job) -> Result<Offer, SinkError> {
        match self {
            Sink::Here(Here { backlog, journal }) => {
                let keep = |item: &Item| journal.as_ref().map_or(Ok(()), |journal| journal.accepted(item));
                Ok(backlog.offer(Item { job, tries: 0 }, keep)?)
            }
        }
    }

    /// How many jobs wait, and how many are being done.
    pub fn lengths(&self) -> (usize, usize) {
        match self {
            Sink::Here(here) => here.backlog.lengths(),
        }
    }

    pub fn has_room(&self) -> bool {
        match self {
            Sink::Here(here) => here.backlog.has_room(),
        }
    }
}
