//! The last things that happened: a short memory, bounded in number and time.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// How many things are remembered, and how long: about as long as registries send an event again.
const REMEMBERED: usize = 10_000;
const MEMORY: Duration = Duration::from_secs(600);
/// The last things that happened, for a while.
#[derive(Default)]
pub struct Remembered {
    known: HashSet<String>,
    order: VecDeque<(Instant, String)>,
}

impl Remembered {
    pub fn knows(&mut self, key: &str, now: Instant) -> bool {
        while let Some((at, _)) = self.order.front()
            && (self.order.len() > REMEMBERED || now.saturating_duration_since(*at) > MEMORY)
            && let Some((_, old)) = self.order.pop_front()
        {
            self.known.remove(&old);
        }
        self.known.contains(key)
    }

    pub fn add(&mut self, key: String, now: Instant) {
        if !self.knows(&key, now) {
            self.known.insert(key.clone());
            self.order.push_back((now, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_in_number_and_time() {
        let mut remembered = Remembered::default();
        let now = Instant::now();
        for n in 0..3 * REMEMBERED {
            remembered.add(n.to_string(), now);
        }
        assert!(remembered.order.len() <= REMEMBERED + 1 && remembered.known.len() == remembered.order.len());
        let last = (3 * REMEMBERED - 1).to_string();
        assert!(remembered.knows(&last, now));
        assert!(!remembered.knows(&last, now + MEMORY * 2));
    }
}
