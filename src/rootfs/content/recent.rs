//! A cache of recently used values with a limit in bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// Keeps values up to a number of bytes, and evicts the least recently used ones.
pub(super) struct Recent<K, V> {
    max: u64,
    kept: Mutex<Kept<K, V>>,
}

struct Kept<K, V> {
    bytes: u64,
    /// Counts uses.
    clock: u64,
    values: HashMap<K, Value<V>>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, K>,
}

struct Value<V> {
    used: u64,
    size: u64,
    value: V,
}

impl<K: Copy + Eq + Hash, V: Clone> Recent<K, V> {
    pub(super) fn new(max: u64) -> Recent<K, V> {
        let kept = Kept { bytes: 0, clock: 0, values: HashMap::new(), order: BTreeMap::new() };
        Recent { max, kept: Mutex::new(kept) }
    }

    pub(super) fn get(&self, key: K) -> Option<V> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        let found = kept.values.get_mut(&key)?;
        kept.clock += 1;
        kept.order.remove(&found.used);
        kept.order.insert(kept.clock, key);
        found.used = kept.clock;
        Some(found.value.clone())
    }

    /// Whether the value exists. Does not count as a use.
    pub(super) fn has(&self, key: K) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).values.contains_key(&key)
    }

    /// Adds a value of `size` bytes.
    pub(super) fn put(&self, key: K, value: V, size: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut *kept;
        kept.clock += 1;
        kept.bytes += size;
        kept.order.insert(kept.clock, key);
        if let Some(old) = kept.values.insert(key, Value { used: kept.clock, size, value }) {
            kept.order.remove(&old.used);
            kept.bytes -= old.size;
        }
        while kept.bytes > self.max
            && let Some((_, oldest)) = kept.order.pop_first()
        {
            kept.bytes -= kept.values.remove(&oldest).map_or(0, |value| value.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_used_values_go() {
        let recent = Recent::new(30);
        for key in 0..3 {
            recent.put(key, (), 10);
        }
        assert!(recent.get(0).is_some());
        recent.put(2, (), 10);
        recent.put(3, (), 10);
        assert!(recent.get(1).is_none());
        assert!([0, 2, 3].into_iter().all(|key| recent.has(key) && recent.get(key).is_some()));
        recent.put(4, (), 31);
        assert!(recent.get(4).is_none(), "larger than all of it");
        assert!(Recent::<u32, ()>::new(0).get(0).is_none());
    }
}
