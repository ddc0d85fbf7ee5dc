//! What must hold for the memory budget, whatever the order of the steps.

use std::sync::{Arc, Mutex};
use std::thread;

use crate::budget::Budget;

/// Together, the threads never have more than the limit, none is refused what is left, and all is
/// returned in the end.
pub fn the_budget_is_never_exceeded() {
    const LIMIT: u64 = 10;
    let budget = Budget::new(LIMIT);
    let held = Arc::new(Mutex::new(0));
    let threads = [(4, 4, 6), (6, 2, 1), (3, 3, 3)].map(|(first, more, left)| {
        let budget = budget.clone();
        let held = Arc::clone(&held);
        thread::spawn(move || {
            let count = |change: i64| {
                let mut held = held.lock().unwrap();
                *held += change;
                assert!((0..=LIMIT as i64).contains(&*held), "{held} bytes are held");
            };
            let mut charge = budget.open();
            let mut bytes = 0;
            for more in [first, more] {
                match charge.grow(more, String::new) {
                    Ok(()) => {
                        count(more as i64);
                        bytes += more;
                    }
                    Err(over) => assert!(over.used <= LIMIT && over.used + more > LIMIT, "{over}"),
                }
            }
            let less = bytes.saturating_sub(left);
            count(-(less as i64));
            charge.shrink_to(left);
            count(-((bytes - less) as i64));
            drop(charge);
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(budget.used(), 0);
}
