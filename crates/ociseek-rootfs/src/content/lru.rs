//! A cache of recently used values with a limit in bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Mutex;

use ociseek_store::lock::Hold;

/// Keeps values up to a number of bytes, and evicts the least recently used ones.
pub(super) struct Lru<K, V> {
    entries: Mutex<LruEntries<K, V>>,
}

struct LruEntries<K, V> {
    max: u64,
    bytes: u64,
    /// Counts uses.
    clock: u64,
    /// The clock when the unused values were dropped last.
    dropped_at: u64,
    values: HashMap<K, LruEntry<V>>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, K>,
}

struct LruEntry<V> {
    used: u64,
    size: u64,
    value: V,
}

impl<K: Copy + Eq + Hash, V: Clone> Lru<K, V> {
    pub(super) fn new(max: u64) -> Lru<K, V> {
        let entries = LruEntries {
            max,
            bytes: 0,
            clock: 0,
            dropped_at: 0,
            values: HashMap::new(),
            order: BTreeMap::new(),
        };
        Lru { entries: Mutex::new(entries) }
    }

    /// The limit in bytes.
    pub(super) fn max(&self) -> u64 {
        self.entries.hold().max
    }

    /// Changes the limit, and evicts what exceeds it.
    pub(super) fn limit(&self, max: u64) {
        let mut entries = self.entries.hold();
        entries.max = max;
        entries.evict();
    }

    /// The size of all values in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.hold().bytes
    }

    /// Evicts the values that were not used since the last call.
    pub(super) fn drop_unused(&self) {
        let mut entries = self.entries.hold();
        let entries = &mut *entries;
        let last = std::mem::replace(&mut entries.dropped_at, entries.clock);
        while entries.order.first_key_value().is_some_and(|(used, _)| *used <= last) {
            entries.evict_oldest();
        }
    }

    pub(super) fn get(&self, key: K) -> Option<V> {
        let mut entries = self.entries.hold();
        let entries = &mut *entries;
        let entry = entries.values.get_mut(&key)?;
        entries.clock += 1;
        entries.order.remove(&entry.used);
        entries.order.insert(entries.clock, key);
        entry.used = entries.clock;
        Some(entry.value.clone())
    }

    /// Whether the value exists. Does not count as a use.
    pub(super) fn has(&self, key: K) -> bool {
        self.entries.hold().values.contains_key(&key)
    }

    /// Adds a value of `size` bytes.
    pub(super) fn put(&self, key: K, value: V, size: u64) {
        let mut entries = self.entries.hold();
        let entries = &mut *entries;
        entries.clock += 1;
        entries.bytes += size;
        entries.order.insert(entries.clock, key);
        if let Some(old) = entries.values.insert(key, LruEntry { used: entries.clock, size, value })
        {
            entries.order.remove(&old.used);
            entries.bytes -= old.size;
        }
        entries.evict();
    }
}

impl<K: Copy + Eq + Hash, V> LruEntries<K, V> {
    fn evict(&mut self) {
        while self.bytes > self.max && !self.order.is_empty() {
            self.evict_oldest();
        }
    }

    fn evict_oldest(&mut self) {
        if let Some((_, oldest)) = self.order.pop_first() {
            self.bytes -= self.values.remove(&oldest).map_or(0, |value| value.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_values_are_evicted() {
        let lru = Lru::new(30);
        for key in 0..3 {
            lru.put(key, (), 10);
        }
        assert!(lru.get(0).is_some());
        lru.put(2, (), 10);
        lru.put(3, (), 10);
        assert!(lru.get(1).is_none());
        assert!([0, 2, 3].into_iter().all(|key| lru.has(key) && lru.get(key).is_some()));
        lru.put(4, (), 31);
        assert!(lru.get(4).is_none(), "larger than all of it");
        for key in 0..3 {
            lru.put(key, (), 10);
        }
        lru.limit(15);
        assert!(!lru.has(1) && lru.has(2));
        lru.put(3, (), 10);
        assert!(!lru.has(2) && lru.has(3));
        assert!(Lru::<u32, ()>::new(0).get(0).is_none());
    }

    #[test]
    fn values_that_are_not_used_between_two_calls_are_dropped() {
        let lru = Lru::new(100);
        lru.put(0, (), 10);
        lru.put(1, (), 10);
        lru.drop_unused();
        assert!(lru.has(0) && lru.has(1) && lru.bytes() == 20, "they are new");
        lru.get(1);
        lru.put(2, (), 10);
        lru.drop_unused();
        assert!(!lru.has(0) && lru.has(1) && lru.has(2) && lru.bytes() == 20);
        lru.drop_unused();
        assert_eq!(lru.bytes(), 0);
    }
}
