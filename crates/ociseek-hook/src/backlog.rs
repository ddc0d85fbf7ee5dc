//! The queue of jobs in this process. It is bounded, contains each image (or each tag of it) once,
//! and takes turns between repositories. No image is processed twice at the same time.

use ociseek_store::lock::Hold;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::job::{Job, Unit};
use super::recent_keys::RecentKeys;

/// A repository may use at most this fraction of the queue.
const SHARE: usize = 4;

/// A job and its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The job to do.
    pub job: Job,
    /// How many times it was started.
    pub tries: u32,
}

/// The result of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It waits for its turn.
    Accepted,
    /// It waits, is running, or was completed a moment ago.
    Duplicate,
    /// The queue is full for now.
    Full,
    /// There is room, but not for more jobs of this repository.
    RepositoryFull,
    /// The queue accepts no more jobs.
    Closed,
}

/// The jobs that remain when a queue ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Those whose last try was cut off.
    pub running: Vec<Item>,
    /// Those that were not started, and those whose last try failed.
    pub waiting: Vec<Item>,
}

/// The queue of this process. All methods can be called from any task.
pub struct Backlog {
    state: Mutex<State>,
    changed: Notify,
    capacity: usize,
    unit: Unit,
}

ociseek_format::opaque_debug!(Backlog);

#[derive(Default)]
struct State {
    /// By repository. No list is empty.
    waiting: HashMap<String, VecDeque<Item>>,
    /// The repositories in `waiting`, starting with the one whose turn it is.
    turns: VecDeque<String>,
    /// Jobs to be retried, by time. The number distinguishes jobs with the same time.
    later: BTreeMap<(Instant, u64), Item>,
    number: u64,
    /// By repository, the jobs for an image that is being processed: another tag of it, or the same
    /// tag, which may name another image by the time the first job ends. No list is empty.
    behind: HashMap<String, VecDeque<Item>>,
    /// The keys of all waiting jobs.
    queued: HashSet<String>,
    /// By image.
    running: BTreeMap<String, Item>,
    done: RecentKeys,
    closed: bool,
}

impl State {
    fn queue(&mut self, item: Item) {
        let repository = repository(&item.job);
        let line = self.waiting.entry(repository.clone()).or_default();
        if line.is_empty() {
            self.turns.push_back(repository);
        }
        line.push_back(item);
    }

    fn take(&mut self, now: Instant, unit: Unit) -> Option<Item> {
        while let Some(due) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let item = due.remove();
            self.queue(item);
        }
        loop {
            let repository = self.turns.pop_front()?;
            let line = self.waiting.get_mut(&repository)?;
            let item = line.pop_front();
            if line.is_empty() {
                self.waiting.remove(&repository);
            } else {
                self.turns.push_back(repository.clone());
            }
            let mut item = item?;
            let image = item.job.image_key();
            if self.running.contains_key(&image) {
                self.behind.entry(repository).or_default().push_back(item);
                continue;
            }
            item.tries += 1;
            self.queued.remove(&item.job.key(unit));
            self.running.insert(image, item.clone());
            return Some(item);
        }
    }

    /// Returns the first job that waits for the end of this one, which is no longer running.
    fn ended(&mut self, job: &Job) -> Option<Item> {
        let image = job.image_key();
        self.running.remove(&image);
        let repository = repository(job);
        let behind = self.behind.get_mut(&repository)?;
        let next = behind.iter().position(|item| item.job.image_key() == image);
        let next = next.and_then(|place| behind.remove(place));
        if behind.is_empty() {
            self.behind.remove(&repository);
        }
        self.queue(next.clone()?);
        next
    }

    /// How many jobs of a repository wait for their turn.
    fn waiting_of(&self, repository: &str) -> usize {
        [&self.waiting, &self.behind]
            .iter()
            .map(|lines| lines.get(repository).map_or(0, VecDeque::len))
            .sum()
    }
}

impl Backlog {
    /// A queue for `capacity` jobs. `unit` decides which jobs are the same.
    pub fn new(capacity: usize, unit: Unit) -> Backlog {
        Backlog { state: Mutex::default(), changed: Notify::new(), capacity: capacity.max(1), unit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.hold()
    }

    /// Adds a job if it is new and there is room. `keep` records it first; if that fails, the job
    /// is not added.
    pub fn offer<E>(
        &self,
        item: Item,
        keep: impl FnOnce(&Item) -> Result<(), E>,
    ) -> Result<Offer, E> {
        let key = item.job.key(self.unit);
        let image = item.job.image_key();
        let now = Instant::now();
        let mut state = self.state();
        if state.closed {
            return Ok(Offer::Closed);
        }
        // A tag may name another image by now, even while the job is running.
        let is_running = item.job.image.digest.is_some()
            && state.running.get(&image).is_some_and(|running| running.job.key(self.unit) == key);
        if state.queued.contains(&key) || is_running || state.done.knows(&key, now) {
            return Ok(Offer::Duplicate);
        }
        if state.queued.len() >= self.capacity {
            return Ok(Offer::Full);
        }
        if state.waiting_of(&repository(&item.job)) >= (self.capacity / SHARE).max(1) {
            return Ok(Offer::RepositoryFull);
        }
        keep(&item)?;
        state.queued.insert(key);
        if state.running.contains_key(&image) {
            state.behind.entry(repository(&item.job)).or_default().push_back(item);
            return Ok(Offer::Accepted);
        }
        state.queue(item);
        drop(state);
        self.changed.notify_one();
        Ok(Offer::Accepted)
    }

    /// Adds a job that was accepted earlier, even if there is no room.
    pub fn restore(&self, item: Item) {
        let mut state = self.state();
        if state.queued.insert(item.job.key(self.unit)) {
            state.queue(item);
        }
    }

    /// The next job, from the repository whose turn it is. None if the queue is closed and no job
    /// is due.
    pub async fn next(&self) -> Option<Item> {
        loop {
            let (due, closed) = {
                let mut state = self.state();
                if let Some(item) = state.take(Instant::now(), self.unit) {
                    if !state.turns.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(item);
                }
                (state.later.first_key_value().map(|((due, _), _)| *due), state.closed)
            };
            match due {
                // At the end, failed jobs that wait for a retry are not waited for.
                _ if closed => {
                    self.changed.notify_one();
                    return None;
                }
                Some(due) => {
                    let _ = tokio::time::timeout_at(due, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Ends a job. If it is `done`, the same image is not accepted again for a while. `note`
    /// records that, together with the job that waited behind it, before another job for the same
    /// name can be offered.
    pub fn finished(&self, item: &Item, done: bool, note: impl FnOnce(Option<&Item>)) {
        let key = item.job.key(self.unit);
        let mut state = self.state();
        let next = state.ended(&item.job);
        if done && item.job.stays_done(self.unit) {
            state.done.add(key.clone(), Instant::now());
        }
        note(next.as_ref().filter(|next| next.job.key(self.unit) == key));
        drop(state);
        self.changed.notify_one();
    }

    /// Schedules a failed job for a retry. Returns false if the same job already waits.
    pub fn retry_later(&self, item: Item, wait: Duration) -> bool {
        let mut state = self.state();
        state.ended(&item.job);
        let is_new = state.queued.insert(item.job.key(self.unit));
        if is_new {
            state.number += 1;
            let number = state.number;
            state.later.insert((Instant::now() + wait, number), item);
        }
        drop(state);
        self.changed.notify_one();
        is_new
    }

    /// Accepts no more jobs. Queued ones are still returned.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }

    /// Removes and returns all unfinished jobs.
    pub fn drain(&self) -> Unfinished {
        let mut state = self.state();
        let state = &mut *state;
        state.queued.clear();
        state.turns.clear();
        let running = std::mem::take(&mut state.running).into_values().collect();
        let waiting = state.waiting.drain().flat_map(|(_, line)| line);
        let behind = std::mem::take(&mut state.behind).into_values().flatten();
        let later = std::mem::take(&mut state.later).into_values();
        Unfinished { running, waiting: waiting.chain(behind).chain(later).collect() }
    }

    /// The number of waiting jobs and of running jobs.
    pub fn lengths(&self) -> (usize, usize) {
        let state = self.state();
        (state.queued.len(), state.running.len())
    }

    /// Whether a job of a repository without other jobs would be accepted.
    pub fn has_room(&self) -> bool {
        let state = self.state();
        !state.closed && state.queued.len() < self.capacity
    }
}

fn repository(job: &Job) -> String {
    format!("{}/{}", job.image.registry, job.image.repository)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use ociseek_format::digest::Digest;

    fn item(repository: &str, n: u32) -> Item {
        let digest = Digest::sha256(&n.to_le_bytes());
        Item {
            job: Job { image: format!("r.example/{repository}@{digest}").parse().unwrap() },
            tries: 0,
        }
    }

    fn tagged(repository: &str) -> Item {
        Item { job: Job { image: format!("r.example/{repository}:t").parse().unwrap() }, tries: 0 }
    }

    fn offer(backlog: &Backlog, item: Item) -> Offer {
        backlog.offer(item, |_| Ok::<_, Infallible>(())).unwrap()
    }

    /// How many jobs were running and waiting.
    fn drained(backlog: &Backlog) -> (usize, usize) {
        let Unfinished { running, waiting } = backlog.drain();
        (running.len(), waiting.len())
    }

    #[tokio::test]
    async fn an_image_is_queued_once() {
        let backlog = Backlog::new(100, Unit::Image);
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Accepted);
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Duplicate);
        assert_eq!(
            offer(&backlog, item("b", 1)),
            Offer::Accepted,
            "the same digest in another repository"
        );
        let first = backlog.next().await.unwrap();
        assert_eq!((offer(&backlog, item("a", 1)), first.tries), (Offer::Duplicate, 1));
        backlog.finished(&first, true, |_| {});
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Duplicate);
        let second = backlog.next().await.unwrap();
        backlog.finished(&second, false, |_| {});
        assert_eq!(
            offer(&backlog, item("b", 1)),
            Offer::Accepted,
            "it failed, so it may come again"
        );
    }

    #[tokio::test]
    async fn a_tag_may_be_queued_again_while_its_job_runs() {
        let backlog = Backlog::new(100, Unit::Image);
        assert_eq!(offer(&backlog, tagged("a")), Offer::Accepted);
        assert_eq!(offer(&backlog, tagged("a")), Offer::Duplicate);
        let first = backlog.next().await.unwrap();
        assert_eq!(offer(&backlog, tagged("a")), Offer::Accepted);
        assert_eq!(offer(&backlog, tagged("a")), Offer::Duplicate);
        offer(&backlog, tagged("b"));
        assert_eq!(backlog.next().await.unwrap().job.image.repository, "b", "not two at a time");
        assert_eq!(backlog.lengths(), (1, 2));
        backlog.finished(&first, true, |_| {});
        let second = backlog.next().await.unwrap();
        assert_eq!(offer(&backlog, tagged("a")), Offer::Accepted);
        assert!(!backlog.retry_later(second, Duration::ZERO), "the newer one takes its place");
        assert_eq!(backlog.next().await.unwrap().tries, 1);
    }

    #[tokio::test]
    async fn tags_of_one_image_are_processed_one_at_a_time() {
        let tag = |name: &str, n: u32| {
            let mut item = item("a", n);
            item.job.image.tag = Some(name.to_owned());
            item
        };
        let by_image = Backlog::new(100, Unit::Image);
        assert_eq!(offer(&by_image, tag("1", 1)), Offer::Accepted);
        assert_eq!(offer(&by_image, tag("2", 1)), Offer::Duplicate);

        let backlog = Backlog::new(12, Unit::Tag);
        for name in ["1", "2", "3"] {
            assert_eq!(offer(&backlog, tag(name, 1)), Offer::Accepted);
            assert_eq!(offer(&backlog, tag(name, 1)), Offer::Duplicate);
        }
        assert_eq!(offer(&backlog, item("b", 1)), Offer::Accepted);
        let first = backlog.next().await.unwrap();
        assert_eq!(offer(&backlog, tag("1", 1)), Offer::Duplicate, "it is being worked on");
        assert_eq!(backlog.next().await.unwrap().job.image.repository, "b", "not two of one image");
        let nobody = tokio::time::timeout(Duration::from_millis(20), backlog.next()).await;
        assert!(nobody.is_err(), "{nobody:?}");
        // Jobs that wait for another one count for their repository.
        assert_eq!(backlog.lengths(), (2, 2));
        assert_eq!(offer(&backlog, tag("1", 2)), Offer::Accepted);
        assert_eq!(offer(&backlog, tag("2", 2)), Offer::RepositoryFull);
        assert_eq!(backlog.next().await.unwrap().job.image, tag("1", 2).job.image);
        let mut last = first;
        for name in ["2", "3"] {
            backlog.finished(&last, true, |next| {
                assert_eq!(next, None, "another tag is accepted already")
            });
            last = backlog.next().await.unwrap();
            assert_eq!(last.job.image, tag(name, 1).job.image);
        }
        // A tag that names an earlier image again is processed again.
        assert_eq!(offer(&backlog, tag("1", 1)), Offer::Accepted);
        assert_eq!(drained(&backlog), (3, 1));
    }

    /// Otherwise a crash would lose the newer job.
    #[tokio::test]
    async fn a_finished_job_is_recorded_before_the_same_job_is_accepted_again() {
        let backlog = Backlog::new(8, Unit::Image);
        offer(&backlog, tagged("a"));
        let first = backlog.next().await.unwrap();
        let lines = Mutex::new(Vec::new());
        let write = |line: &'static str| lines.lock().unwrap().push(line);
        std::thread::scope(|scope| {
            backlog.finished(&first, true, |next| {
                assert_eq!(next, None);
                scope.spawn(|| {
                    backlog.offer(tagged("a"), |_| {
                        write("accepted");
                        Ok::<_, Infallible>(())
                    })
                });
                std::thread::sleep(Duration::from_millis(100));
                write("done");
            });
        });
        assert_eq!(*lines.lock().unwrap(), ["done", "accepted"]);
    }

    #[tokio::test]
    async fn repositories_take_turns() {
        let backlog = Backlog::new(1000, Unit::Image);
        for n in 0..100 {
            offer(&backlog, item("flood", n));
        }
        offer(&backlog, item("a", 1));
        offer(&backlog, item("b", 1));
        offer(&backlog, item("a", 2));
        let mut order = Vec::new();
        for _ in 0..6 {
            order.push(backlog.next().await.unwrap().job.image.repository);
        }
        assert_eq!(order, ["flood", "a", "b", "flood", "a", "flood"]);
    }

    #[tokio::test]
    async fn the_backlog_is_limited_as_a_whole_and_for_each_repository() {
        let backlog = Backlog::new(8, Unit::Image);
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Accepted);
        assert_eq!(offer(&backlog, item("a", 2)), Offer::Accepted);
        assert_eq!(offer(&backlog, item("a", 3)), Offer::RepositoryFull);
        for name in ["b", "c", "d", "e", "f", "g"] {
            assert_eq!(offer(&backlog, item(name, 1)), Offer::Accepted);
        }
        assert!(!backlog.has_room());
        assert_eq!(offer(&backlog, item("h", 1)), Offer::Full);
        assert_eq!(offer(&backlog, item("b", 1)), Offer::Duplicate, "what is known needs no room");
        backlog.next().await;
        assert_eq!(offer(&backlog, item("h", 1)), Offer::Accepted);
        assert_eq!(backlog.lengths(), (8, 1));
        assert_eq!(drained(&backlog), (1, 8));
    }

    #[tokio::test]
    async fn a_job_that_cannot_be_recorded_is_refused() {
        let backlog = Backlog::new(8, Unit::Image);
        assert_eq!(backlog.offer(item("a", 1), |_| Err("disk full")), Err("disk full"));
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Accepted);
    }

    #[tokio::test]
    async fn failed_jobs_are_retried_after_their_delay() {
        let backlog = Backlog::new(8, Unit::Image);
        offer(&backlog, item("a", 1));
        let first = backlog.next().await.unwrap();
        let begun = Instant::now();
        assert!(backlog.retry_later(first, Duration::from_millis(50)));
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Duplicate);
        assert_eq!(backlog.next().await.unwrap().tries, 2);
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_closed_backlog_hands_out_due_jobs_and_then_ends() {
        let backlog = Backlog::new(8, Unit::Image);
        offer(&backlog, item("a", 1));
        offer(&backlog, item("a", 2));
        let first = backlog.next().await.unwrap();
        backlog.retry_later(first, Duration::from_secs(1000));
        backlog.close();
        assert_eq!(offer(&backlog, item("b", 1)), Offer::Closed);
        assert!(backlog.next().await.is_some());
        assert!(backlog.next().await.is_none());
        assert!(backlog.next().await.is_none());
        let Unfinished { running, waiting } = backlog.drain();
        assert_eq!(running, [Item { tries: 1, ..item("a", 2) }]);
        assert_eq!(waiting, [Item { tries: 1, ..item("a", 1) }], "its try has ended");
    }
}
