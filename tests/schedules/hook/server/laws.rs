//! What must hold for the queue of the hook, whatever the order of the steps.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::Rng;
use tokio::task::{JoinHandle, JoinSet};

use super::App;
use super::work::{finish, start};
use crate::hook::backlog::{Backlog, Item, Offer};
use crate::hook::job::{Job, Unit};
use crate::hook::journal::{Entries, Entry, Journal};
use crate::hook::runner::Ending;

fn app(capacity: usize, unit: Unit, workers: usize, ending: Ending) -> Arc<App> {
    Arc::new(App::new(capacity, unit, workers, ending))
}

/// Offers jobs one after the other. Returns the answers.
fn offer(app: &Arc<App>, jobs: Vec<Job>) -> JoinHandle<Vec<Offer>> {
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let mut answers = Vec::new();
        for job in jobs {
            answers.push(app.queue.offer(job).await.expect("the journal can be written"));
        }
        answers
    })
}

fn journal(app: &App) -> &Journal {
    app.queue.local().and_then(|queue| queue.journal.as_ref()).expect("there is a journal")
}

/// Waits until all accepted jobs are done, and stops the service. Without the first, its end would
/// wake the workers.
async fn settle(app: &App, workers: JoinSet<()>) -> Entries {
    journal(app).settled().await;
    assert_eq!(finish(app, workers).await, 0);
    assert_eq!(app.queue.local().map(|queue| queue.backlog.lengths()), Some((0, 0)));
    journal(app).entries()
}

fn count(answers: &[Offer], answer: Offer) -> u32 {
    answers.iter().filter(|one| **one == answer).count() as u32
}

/// Each accepted job is done once, and no image is processed twice at the same time.
pub fn accepted_jobs_are_done_once() {
    block_on(async {
        let app = app(100, Unit::Image, 2, Ending::Done);
        let workers = start(&app);
        let job = |repository, digest| Job::new(repository, None, Some(digest));
        let offers = [
            offer(&app, vec![job("a", "1"), job("b", "1"), job("a", "2")]),
            offer(&app, vec![job("a", "1"), job("b", "1"), job("c", "1")]),
        ];
        for offers in offers {
            let answers = offers.await.unwrap();
            assert!(
                answers.iter().all(|answer| matches!(answer, Offer::Accepted | Offer::Duplicate)),
                "{answers:?}"
            );
        }
        let journal = settle(&app, workers).await;
        let once = Entry { accepted: 1, done: 1, released: 0 };
        assert!(journal.len() == 4 && journal.values().all(|entry| *entry == once), "{journal:?}");
    });
}

/// A tag that is pushed again while its image is processed is processed once more, after that.
pub fn tags_wait_for_their_image() {
    for unit in [Unit::Image, Unit::Tag] {
        block_on(async {
            let app = app(100, unit, 2, Ending::Done);
            let workers = start(&app);
            let digest = (unit == Unit::Tag).then_some("1");
            let job = |tag| Job::new("a", Some(tag), digest);
            let offers = [
                offer(&app, vec![job("x"), job("y"), job("x")]),
                offer(&app, vec![job("x"), job("z"), Job::new("b", None, Some("1"))]),
            ];
            let mut accepted = 0;
            for offers in offers {
                accepted += count(&offers.await.unwrap(), Offer::Accepted);
            }
            let journal = settle(&app, workers).await;
            assert!(
                journal.len() == 4 && journal.values().all(|entry| entry.accepted == entry.done),
                "{journal:?}"
            );
            assert_eq!(journal.values().map(|entry| entry.done).sum::<u32>(), accepted);
        });
    }
}

/// Idle workers begin jobs that wait, while others are busy: no wake-up is lost.
pub fn idle_workers_begin_waiting_jobs() {
    block_on(async {
        const WORKERS: usize = 2;
        let app = app(100, Unit::Image, WORKERS, Ending::Together(WORKERS));
        let workers = start(&app);
        for repository in ["a", "b"] {
            let offer = app.queue.offer(Job::new(repository, None, Some("1"))).await;
            assert_eq!(offer.expect("the journal can be written"), Offer::Accepted);
        }
        settle(&app, workers).await;
    });
}

/// A worker that ends a job and never returns wakes another one, for the job that waited behind it
/// or is tried again.
pub fn the_last_act_of_a_worker_wakes_another() {
    block_on(async {
        let backlog = Arc::new(Backlog::new(100, Unit::Image));
        let offer = || {
            let item = Item { job: Job::new("a", Some("x"), None), tries: 0 };
            assert_eq!(backlog.offer(item, |_| Ok::<_, Infallible>(())), Ok(Offer::Accepted));
        };
        offer();
        let item = backlog.next().await.expect("a job waits");
        let other = tokio::spawn({
            let backlog = Arc::clone(&backlog);
            async move { backlog.next().await }
        });
        let [pushed_again, done] = shuttle::rand::thread_rng().r#gen::<[bool; 2]>();
        if pushed_again {
            offer();
        }
        if done {
            backlog.finished(&item, true, |_| {})
        } else {
            assert_eq!(backlog.retry_later(item, Duration::ZERO), !pushed_again)
        }
        if done && !pushed_again {
            backlog.close();
        }
        let tries = other.await.unwrap().map(|item| item.tries);
        let wanted = match (pushed_again, done) {
            (true, _) => Some(1),
            (false, true) => None,
            (false, false) => Some(2),
        };
        assert_eq!(tries, wanted);
    });
}

/// No more jobs wait than there is room for, and no more run than there are workers.
pub fn limits_hold() {
    block_on(async {
        const CAPACITY: usize = 2;
        let app = app(CAPACITY, Unit::Image, 1, Ending::Done);
        let workers = start(&app);
        let jobs =
            |repository| ["1", "2"].map(|digest| Job::new(repository, None, Some(digest))).to_vec();
        let offers = ["a", "b", "c"].map(|repository| offer(&app, jobs(repository)));
        let watching = tokio::spawn({
            let app = Arc::clone(&app);
            async move {
                for _ in 0..8 {
                    let (waiting, running) =
                        app.queue.local().map(|queue| queue.backlog.lengths()).unwrap_or_default();
                    assert!(
                        waiting <= CAPACITY && running <= 1,
                        "{waiting} wait and {running} run"
                    );
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut accepted = 0;
        for offers in offers {
            accepted += count(&offers.await.unwrap(), Offer::Accepted);
        }
        watching.await.unwrap();
        let journal = settle(&app, workers).await;
        assert_eq!(journal.values().map(|entry| entry.done).sum::<u32>(), accepted);
    });
}

/// Jobs that fail are tried again until they are done or given up, without another event.
pub fn failed_jobs_are_tried_again() {
    block_on(async {
        let app = app(100, Unit::Image, 2, Ending::Any);
        let workers = start(&app);
        let jobs = ["1", "2", "3"].map(|digest| Job::new("a", None, Some(digest)));
        assert_eq!(offer(&app, jobs.to_vec()).await.unwrap(), [Offer::Accepted; 3]);
        let journal = settle(&app, workers).await;
        let once = Entry { accepted: 1, done: 1, released: 0 };
        assert!(journal.len() == 3 && journal.values().all(|entry| *entry == once), "{journal:?}");
    });
}

/// Jobs fail and are tried again, while the service stops at any moment, in time or not: each
/// accepted job is done, or was given up, or is left for the next start.
pub fn nothing_is_lost_at_the_end() {
    block_on(async {
        let app = app(100, Unit::Tag, 2, Ending::Any);
        let workers = start(&app);
        let job = |tag| Job::new("a", Some(tag), Some("1"));
        let offers = [
            offer(&app, vec![job("x"), Job::new("b", Some("t"), None)]),
            offer(&app, vec![job("x"), job("y"), Job::new("b", Some("t"), None)]),
        ];
        let left = finish(&app, workers).await;
        let before = journal(&app).entries();
        let mut answers = Vec::new();
        for offers in offers {
            answers.extend(offers.await.unwrap());
        }
        let journal = journal(&app).entries();
        assert_eq!(journal, before, "a job was accepted after the end");
        assert_eq!(
            journal.values().map(|entry| entry.accepted).sum::<u32>(),
            count(&answers, Offer::Accepted)
        );
        let mut least = 0;
        let mut most = 0;
        for (job, entry) in &journal {
            assert!(entry.done + entry.released <= entry.accepted, "{job:?}: {entry:?}");
            // The same tag may be accepted again while its job runs. Of those two, only the newer
            // one is tried again.
            let replaced = u32::from(job.image.digest.is_none());
            least += entry.accepted.saturating_sub(replaced).max(1).saturating_sub(entry.done);
            most += entry.accepted - entry.done;
        }
        assert!((least..=most).contains(&(left as u32)), "{left} are left: {journal:?}");
        assert!(
            journal.values().map(|entry| entry.released).sum::<u32>() as usize <= left,
            "{left}: {journal:?}"
        );
    });
}
