//! What the workers use of the service.

use std::time::Duration;

use tokio::sync::Mutex;

use super::backlog::Backlog;
use super::job::Unit;
use super::journal::Journal;
use super::recent_keys::RecentKeys;
use super::runner::{Ending, Runner};

pub mod laws;
#[path = "../../../../crates/ociseek-hook/src/server/queue.rs"]
pub mod queue;
#[path = "../../../../crates/ociseek-hook/src/server/work.rs"]
mod work;

use queue::{JobQueue, LocalQueue};
struct App {
    pub runner: Runner,
    pub queue: JobQueue,
    pub config: ServerConfig,
    seen: Mutex<RecentKeys>,
}

struct ServerConfig {
    pub workers: usize,
    pub drain: Duration,
}

impl App {
    fn new(capacity: usize, unit: Unit, workers: usize, ending: Ending) -> App {
        let local =
            LocalQueue { backlog: Backlog::new(capacity, unit), journal: Some(Journal::default()) };
        App {
            runner: Runner::new(ending),
            queue: JobQueue::Local(local),
            config: ServerConfig { workers, drain: Duration::from_secs(10) },
            seen: Mutex::default(),
        }
    }
}

mod notify {
    use super::App;
    use crate::hook::job::Job;

    pub(super) fn events_of(app: &App, job: &Job) -> String {
        job.key(app.runner.unit())
    }
}
