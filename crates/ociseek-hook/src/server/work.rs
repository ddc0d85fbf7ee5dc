//! Runs the jobs of a service with its own queue.

use std::sync::Arc;

use tokio::task::JoinSet;
use tracing::error;

use super::App;
use super::notify::events_of;
use super::queue::LocalQueue;
use crate::backlog::{Item, Unfinished};
use crate::journal::{Journal, JournalError};
use crate::log::TARGET;
use crate::runner::{JobOutcome, TRIES};
use ociseek_format::progress::causes;

pub(super) fn start(app: &Arc<App>) -> JoinSet<()> {
    let mut workers = JoinSet::new();
    if app.queue.local().is_none() {
        return workers;
    }
    for _ in 0..app.config.workers.max(1) {
        let app = Arc::clone(app);
        workers.spawn(async move { work(&app).await });
    }
    workers
}

async fn work(app: &App) {
    let Some(queue) = app.queue.local() else { return };
    while let Some(item) = queue.backlog.next().await {
        // The job may have killed the process each time, and remained in the journal.
        if item.tries > TRIES {
            let reason = "the process died each time it worked on this job".into();
            app.runner.give_up(&item.job, item.tries - 1, &reason);
            end(app, queue, &item, false).await;
            continue;
        }
        note(queue, |journal| journal.begun(&item));
        match app.runner.run(&item.job, item.tries, TRIES).await {
            JobOutcome::Done(_) => end(app, queue, &item, true).await,
            JobOutcome::Dead(reason) => {
                app.runner.give_up(&item.job, item.tries, &reason);
                end(app, queue, &item, false).await;
            }
            // False if the same job already waits. Then it is in the journal.
            JobOutcome::Again(wait) => drop(queue.backlog.retry_later(item, wait)),
        }
    }
}

async fn end(app: &App, queue: &LocalQueue, item: &Item, done: bool) {
    queue.backlog.finished(item, done, |next| note(queue, |journal| journal.done(item, next)));
    if !done {
        // If the sender repeats the event, it wants the job to be tried again.
        app.seen.lock().await.forget(&events_of(app, &item.job));
    }
}

/// Accepted jobs are in the journal. If other lines cannot be written, a job may run twice, which
/// is harmless.
fn note(queue: &LocalQueue, write: impl FnOnce(&Journal) -> Result<(), JournalError>) {
    if let Some(Err(error)) = queue.journal.as_ref().map(write) {
        error!(name: "journal", target: TARGET, error = causes(&error));
    }
}

/// Lets jobs continue for as long as they may, and returns how many are left.
pub(super) async fn finish(app: &App, mut workers: JoinSet<()>) -> usize {
    let Some(queue) = app.queue.local() else { return 0 };
    queue.backlog.close();
    let all = async { while workers.join_next().await.is_some() {} };
    let in_time = tokio::time::timeout(app.config.drain, all).await.is_ok();
    if !in_time {
        workers.shutdown().await;
    }
    let Unfinished { running, waiting } = queue.backlog.drain();
    match &queue.journal {
        // The last try of a waiting job was not cut off, so it counts.
        Some(_) => running.iter().for_each(|item| note(queue, |journal| journal.released(item))),
        None => running.iter().chain(&waiting).for_each(|item| {
            app.runner.give_up(
                &item.job,
                item.tries,
                &"the service stopped before the job was done".into(),
            );
        }),
    }
    running.len() + waiting.len()
}
