//! A memory of recent events, limited in number and time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// How many keys are remembered, and how long: about as long as registries repeat an event.
const REMEMBERED: usize = 10_000;
const MEMORY: Duration = Duration::from_secs(600);

/// Recently added keys.
#[derive(Default)]
pub struct RecentKeys {
    /// The keys, with the times when they were added.
    known: BTreeMap<String, Instant>,
    /// The keys in the order in which they were added. May include forgotten ones.
    order: VecDeque<(Instant, String)>,
}

ociseek_format::opaque_debug!(RecentKeys);

impl RecentKeys {
    /// Whether `key` was added and not yet forgotten at `now`.
    pub fn knows(&mut self, key: &str, now: Instant) -> bool {
        while let Some((at, _)) = self.order.front()
            && (self.order.len() > REMEMBERED || now.saturating_duration_since(*at) > MEMORY)
            && let Some((at, old)) = self.order.pop_front()
        {
            if self.known.get(&old) == Some(&at) {
                self.known.remove(&old);
            }
        }
        self.known.contains_key(key)
    }

    /// Adds `key`, unless it is known.
    pub fn add(&mut self, key: String, now: Instant) {
        if !self.knows(&key, now) {
            self.known.insert(key.clone(), now);
            self.order.push_back((now, key));
        }
    }

    /// Forgets all keys with this `prefix`.
    pub fn forget(&mut self, prefix: &str) {
        let names: Vec<String> = (self.known.range(prefix.to_owned()..))
            .map(|(name, _)| name.clone())
            .take_while(|name| name.starts_with(prefix))
            .collect();
        for name in names {
            self.known.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_limited_in_number_and_age() {
        let mut recent_keys = RecentKeys::default();
        let now = Instant::now();
        for n in 0..3 * REMEMBERED {
            recent_keys.add(n.to_string(), now);
        }
        assert!(
            recent_keys.order.len() <= REMEMBERED + 1
                && recent_keys.known.len() == recent_keys.order.len()
        );
        let last = (3 * REMEMBERED - 1).to_string();
        assert!(recent_keys.knows(&last, now));
        assert!(!recent_keys.knows(&last, now + MEMORY * 2));
    }
    #[test]
    fn keys_are_forgotten_by_prefix() {
        let mut recent_keys = RecentKeys::default();
        let now = Instant::now();
        for name in ["a 1", "a 2", "ab 1", "b 1"] {
            recent_keys.add(name.into(), now);
        }
        recent_keys.forget("a ");
        let known = |recent_keys: &mut RecentKeys, at| {
            ["a 1", "a 2", "ab 1", "b 1"].map(|name| recent_keys.knows(name, at))
        };
        assert_eq!(known(&mut recent_keys, now), [false, false, true, true]);
        // When it is added a second time, its time starts again.
        recent_keys.add("a 1".into(), now + MEMORY);
        assert_eq!(
            known(&mut recent_keys, now + MEMORY + Duration::from_secs(1)),
            [true, false, false, false]
        );
    }
}
