//! The jobs that wait in this process: a bounded queue in which each image stands once, and no repository before the others.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::job::Job;
use super::remembered::Remembered;

/// A repository may fill this part of the queue.
const SHARE: usize = 4;

/// A job and its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub job: Job,
    /// How often it was begun.
    pub tries: u32,
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    Accepted,
    /// It waits, is being done, or was done a moment ago.
    Duplicate,
    /// There is no room; later there may be.
    Full,
    /// There is room, but not for more of this repository.
    RepositoryFull,
    /// No more is taken.
    Closed,
}

pub struct Backlog {
    state: Mutex<State>,
    changed: Notify,
    capacity: usize,
}

#[derive(Default)]
struct State {
    /// By repository; none of them is empty.
    waiting: HashMap<String, VecDeque<Item>>,
    /// Those repositories, the one whose turn it is first.
    turns: VecDeque<String>,
    /// To be tried again at a time; the number tells two of one time apart.
    later: BTreeMap<(Instant, u64), Item>,
    number: u64,
    /// Those of a tag that is being worked on, by key: what it names is looked at again when that has ended.
    behind: HashMap<String, Item>,
    /// Keys of all that wait, in any of these ways.
    queued: HashSet<String>,
    /// By key.
    running: BTreeMap<String, Item>,
    done: Remembered,
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

    fn take(&mut self, now: Instant) -> Option<Item> {
        while let Some(due) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let item = due.remove();
            self.queue(item);
        }
        let repository = self.turns.pop_front()?;
        let line = self.waiting.get_mut(&repository)?;
        let item = line.pop_front();
        if line.is_empty() {
            self.waiting.remove(&repository);
        } else {
            self.turns.push_back(repository);
        }
        let mut item = item?;
        item.tries += 1;
        let key = item.job.key();
        self.queued.remove(&key);
        self.running.insert(key, item.clone());
        Some(item)
    }
}

impl Backlog {
    /// Room for `capacity` jobs.
    pub fn new(capacity: usize) -> Backlog {
        Backlog { state: Mutex::default(), changed: Notify::new(), capacity: capacity.max(1) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job, if it is new and there is room. `keep` writes it down first; if that fails it is not taken.
    pub fn offer<E>(&self, item: Item, keep: impl FnOnce(&Item) -> Result<(), E>) -> Result<Offer, E> {
        let key = item.job.key();
        let by_digest = item.job.image.digest.is_some();
        let now = Instant::now();
        let mut state = self.state();
        if state.closed {
            return Ok(Offer::Closed);
        }
        // What a tag names may be another image by now, even if it is being worked on.
        if state.queued.contains(&key) || by_digest && (state.running.contains_key(&key) || state.done.knows(&key, now))
        {
            return Ok(Offer::Duplicate);
        }
        if state.queued.len() >= self.capacity {
            return Ok(Offer::Full);
        }
        let waiting = state.waiting.get(&repository(&item.job)).map_or(0, VecDeque::len);
        if waiting >= (self.capacity / SHARE).max(1) {
            return Ok(Offer::RepositoryFull);
        }
        keep(&item)?;
        state.queued.insert(key.clone());
        if state.running.contains_key(&key) {
            state.behind.insert(key, item);
            return Ok(Offer::Accepted);
        }
        state.queue(item);
        drop(state);
        self.changed.notify_one();
        Ok(Offer::Accepted)
    }

    /// Takes a job that was accepted before, whether there is room or not.
    pub fn restore(&self, item: Item) {
        let mut state = self.state();
        if state.queued.insert(item.job.key()) {
            state.queue(item);
        }
    }

    /// The next job, of the repository whose turn it is. None: it is closed, and nothing is left that is due.
    pub async fn next(&self) -> Option<Item> {
        loop {
            let (due, closed) = {
                let mut state = self.state();
                if let Some(item) = state.take(Instant::now()) {
                    if !state.turns.is_empty() {
                        self.changed.notify_one();
                    }
                    return Some(item);
                }
                (state.later.first_key_value().map(|((due, _), _)| *due), state.closed)
            };
            match due {
                // What failed and waits for better times need not be waited for at the end.
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

    /// A job has come to its end. If it was `done`, the same image is not taken again for a while.
    /// `note` writes that down, and which job waited behind it, before another of the same name can
    /// be offered.
    pub fn finished(&self, item: &Item, done: bool, note: impl FnOnce(Option<&Item>)) {
        let key = item.job.key();
        let mut state = self.state();
        let next = self.ended(&mut state, &key);
        if done && item.job.image.digest.is_some() {
            state.done.add(key, Instant::now());
        }
        note(next.as_ref());
    }

    /// A job that failed waits for another try. False: the same waits already, or there is no waiting any more.
    pub fn again(&self, item: Item, wait: Duration) -> bool {
        let key = item.job.key();
        let mut state = self.state();
        self.ended(&mut state, &key);
        if !state.queued.insert(key) {
            return false;
        }
        state.number += 1;
        let number = state.number;
        state.later.insert((Instant::now() + wait, number), item);
        drop(state);
        self.changed.notify_one();
        true
    }

    fn ended(&self, state: &mut State, key: &str) -> Option<Item> {
        state.running.remove(key);
        let next = state.behind.remove(key)?;
        state.queue(next.clone());
        self.changed.notify_one();
        Some(next)
    }

    /// No more is taken; what is there is still handed out.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }

    /// All that is not done: what is being worked on first, then what waits. Nothing of it is handed out any more.
    pub fn drain(&self) -> Vec<Item> {
        let mut state = self.state();
        let state = &mut *state;
        state.queued.clear();
        state.turns.clear();
        let waiting = state.waiting.drain().flat_map(|(_, line)| line);
        let running = std::mem::take(&mut state.running).into_values();
        let behind = std::mem::take(&mut state.behind).into_values();
        let later = std::mem::take(&mut state.later).into_values();
        running.chain(waiting).chain(behind).chain(later).collect()
    }

    /// How many wait, and how many are being done.
    pub fn lengths(&self) -> (usize, usize) {
        let state = self.state();
        (state.queued.len(), state.running.len())
    }

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
    use crate::digest::Digest;

    fn item(repository: &str, n: u32) -> Item {
        let digest = Digest::sha256(&n.to_le_bytes());
        Item { job: Job { image: format!("r.example/{repository}@{digest}").parse().unwrap() }, tries: 0 }
    }

    fn tagged(repository: &str) -> Item {
        Item { job: Job { image: format!("r.example/{repository}:t").parse().unwrap() }, tries: 0 }
    }

    fn offer(backlog: &Backlog, item: Item) -> Offer {
        backlog.offer(item, |_| Ok::<_, Infallible>(())).unwrap()
    }

    #[tokio::test]
    async fn an_image_stands_in_it_once() {
        let backlog = Backlog::new(100);
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Accepted);
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Duplicate);
        assert_eq!(offer(&backlog, item("b", 1)), Offer::Accepted, "the same digest in another repository");
        let first = backlog.next().await.unwrap();
        assert_eq!((offer(&backlog, item("a", 1)), first.tries), (Offer::Duplicate, 1));
        backlog.finished(&first, true, |_| {});
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Duplicate);
        let second = backlog.next().await.unwrap();
        backlog.finished(&second, false, |_| {});
        assert_eq!(offer(&backlog, item("b", 1)), Offer::Accepted, "it failed, so it may come again");
    }

    #[tokio::test]
    async fn a_tag_may_have_moved_since_it_was_looked_at() {
        let backlog = Backlog::new(100);
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
        assert!(!backlog.again(second, Duration::ZERO), "the newer one takes its place");
        assert_eq!(backlog.next().await.unwrap().tries, 1);
    }

    /// Or a crash would lose the newer one.
    #[tokio::test]
    async fn the_end_of_a_job_is_written_down_before_the_same_is_accepted_again() {
        let backlog = Backlog::new(8);
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
        let backlog = Backlog::new(1000);
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
    async fn it_is_bounded_and_a_repository_has_a_share() {
        let backlog = Backlog::new(8);
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
        assert_eq!(backlog.drain().len(), 9);
    }

    #[tokio::test]
    async fn what_cannot_be_kept_is_not_taken() {
        let backlog = Backlog::new(8);
        assert_eq!(backlog.offer(item("a", 1), |_| Err("disk full")), Err("disk full"));
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Accepted);
    }

    #[tokio::test]
    async fn what_failed_comes_again_when_it_is_time() {
        let backlog = Backlog::new(8);
        offer(&backlog, item("a", 1));
        let first = backlog.next().await.unwrap();
        let begun = Instant::now();
        assert!(backlog.again(first, Duration::from_millis(50)));
        assert_eq!(offer(&backlog, item("a", 1)), Offer::Duplicate);
        assert_eq!(backlog.next().await.unwrap().tries, 2);
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn closed_it_hands_out_what_is_due_and_ends_for_all() {
        let backlog = Backlog::new(8);
        offer(&backlog, item("a", 1));
        offer(&backlog, item("a", 2));
        let first = backlog.next().await.unwrap();
        backlog.again(first, Duration::from_secs(1000));
        backlog.close();
        assert_eq!(offer(&backlog, item("b", 1)), Offer::Closed);
        assert!(backlog.next().await.is_some());
        assert!(backlog.next().await.is_none());
        assert!(backlog.next().await.is_none());
        assert_eq!(backlog.drain().len(), 2);
    }
}
