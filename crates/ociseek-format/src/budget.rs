//! Limits the memory used for one image.
//!
//! Anyone who can push decides how large and how many manifests, ztocs and lists of files are. Each
//! is charged to the image's budget before its memory is allocated. All work on the image shares
//! the budget. Exceeding it is an error that names what did not fit.

use crate::printable::{exact_size, human_size};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The default limit in bytes. The program and its buffers are not included.
pub const DEFAULT_LIMIT: u64 = 384 << 20;

/// Something did not fit into the rest of a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {} of memory, but {} of the {} allowed for the image are in use",
    human_size(*needed),
    human_size(*used),
    exact_size(*limit)
)]
pub struct OverBudget {
    /// What did not fit, with its digest or path.
    pub what: String,
    /// Its size in bytes.
    pub needed: u64,
    /// Bytes of the budget that were in use.
    pub used: u64,
    /// The limit of the budget in bytes.
    pub limit: u64,
}

/// The memory budget of one image. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: u64,
    used: AtomicU64,
    /// What is charged here is also charged there.
    whole: Option<Budget>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What was kept for the lifetime of this budget. Charges that are alive would keep it, too.
        if let Some(whole) = &self.whole {
            whole.give_back(self.used.load(Ordering::Relaxed));
        }
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(DEFAULT_LIMIT)
    }
}

impl Budget {
    /// Creates a budget of `limit` bytes.
    pub fn new(limit: u64) -> Budget {
        Budget(Arc::new(Inner { limit, used: AtomicU64::new(0), whole: None }))
    }

    /// Creates a budget for one of several images that share this one. What is kept for its
    /// lifetime returns to this one when it ends.
    #[must_use]
    pub fn within(&self) -> Budget {
        let whole = Some(self.clone());
        Budget(Arc::new(Inner { limit: self.0.limit, used: AtomicU64::new(0), whole }))
    }

    /// Creates a separate budget with a fraction of this one's limit.
    #[must_use]
    pub fn apart(&self, divisor: u64) -> Budget {
        Budget::new(self.0.limit / divisor.max(1))
    }

    /// An empty charge, which can grow.
    pub fn open(&self) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }

    /// Charges `bytes` for `what` until the charge is dropped.
    ///
    /// # Errors
    /// If less is left.
    pub fn charge(&self, bytes: u64, what: impl FnOnce() -> String) -> Result<Charge, OverBudget> {
        let mut charge = self.open();
        charge.grow(bytes, what)?;
        Ok(charge)
    }

    fn take(&self, more: u64, what: impl FnOnce() -> String) -> Result<(), OverBudget> {
        let Inner { limit, used, whole } = &*self.0;
        let taken = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|used| used <= limit)
        });
        match (taken, whole) {
            (Err(used), _) => Err(OverBudget { what: what(), needed: more, used, limit: *limit }),
            (Ok(_), None) => Ok(()),
            (Ok(_), Some(whole)) => whole.take(more, what).inspect_err(|_| {
                used.fetch_sub(more, Ordering::Relaxed);
            }),
        }
    }

    fn give_back(&self, less: u64) {
        self.0.used.fetch_sub(less, Ordering::Relaxed);
        if let Some(whole) = &self.0.whole {
            whole.give_back(less);
        }
    }

    /// The most bytes that can be charged.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes currently charged.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }
}

/// Memory charged to a budget until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// Charges `more` bytes for `what`.
    ///
    /// # Errors
    /// If less is left. The charge is unchanged then.
    pub fn grow(&mut self, more: u64, what: impl FnOnce() -> String) -> Result<(), OverBudget> {
        self.budget.take(more, what)?;
        self.bytes += more;
        Ok(())
    }

    /// Reduces the charge to at most `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.budget.give_back(less);
    }

    /// Reduces the charge by `less` bytes, or to nothing.
    pub fn shrink_by(&mut self, less: u64) {
        self.shrink_to(self.bytes.saturating_sub(less));
    }

    /// Keeps the charge for the lifetime of the budget.
    pub fn keep(mut self) {
        self.bytes = 0;
    }

    /// The budget of this charge.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_memory_returns_it_to_the_budget() {
        let budget = Budget::new(100);
        let first = budget.charge(60, String::new).unwrap();
        let error = budget.clone().charge(41, || "manifest x".into()).unwrap_err();
        assert_eq!(
            error,
            OverBudget { what: "manifest x".into(), needed: 41, used: 60, limit: 100 }
        );
        let text = "manifest x needs 41 B of memory, but 60 B of the 100B allowed for the image are in use";
        assert_eq!(error.to_string(), text);
        let mut second = budget.charge(40, String::new).unwrap();
        drop(first);
        assert_eq!(budget.used(), 40);
        assert!(second.grow(61, String::new).is_err());
        second.grow(60, String::new).unwrap();
        second.shrink_to(10);
        assert_eq!(budget.used(), 10);
        second.keep();
        assert_eq!(budget.used(), 10, "kept for good");
        assert!(budget.charge(u64::MAX, String::new).is_err(), "sums do not wrap around");
    }

    #[test]
    fn images_that_share_a_budget_give_back_what_they_kept() {
        let whole = Budget::new(100);
        for _ in 0..3 {
            let image = whole.within();
            image.charge(60, String::new).unwrap().keep();
            let charge = image.clone().charge(30, String::new).unwrap();
            assert_eq!((image.used(), whole.used()), (90, 90));
            let other = whole.within();
            assert!(other.charge(11, String::new).is_err());
            assert_eq!(other.used(), 0, "what does not fit is not charged");
            drop(image);
            assert_eq!(whole.used(), 90, "a charge is alive");
            drop(charge);
            assert_eq!(whole.used(), 0);
        }
    }
}
