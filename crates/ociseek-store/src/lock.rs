//! Locks whose data stays valid if a thread panics while holding one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Mutexes that are locked even after a panic.
pub trait Hold<T> {
    /// Locks, whether or not another holder panicked.
    fn hold(&self) -> MutexGuard<'_, T>;
}

impl<T> Hold<T> for Mutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
