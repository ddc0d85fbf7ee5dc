//! What must hold for claims, whatever the order of the steps.

use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use super::SpanKey;
use super::claims::{ClaimOutcome, Claims};

thread_local! {
    /// The folder of the caches, for all schedules, which share a thread of the system.
    static DIR: TempDir = tempfile::tempdir().expect("a folder can be created");
}

/// Of the clones of two caches on one folder, one at a time holds the claim on a span, and those
/// that ask again get it in the end.
pub fn claims_exclude_each_other() {
    let caches: [Arc<Claims>; 2] = Default::default();
    let path = Arc::new(DIR.with(|dir| dir.path().to_owned()));
    let holders = Arc::new([0; 2].map(Mutex::new));
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let claims = Arc::clone(&caches[number % 2]);
            let path = Arc::clone(&path);
            let holders = Arc::clone(&holders);
            thread::spawn(move || {
                let key = SpanKey([number as u8 / 3; 32]);
                let claim = loop {
                    match claims.claim(&path, &key) {
                        ClaimOutcome::Granted(claim) => break claim,
                        ClaimOutcome::Taken => thread::yield_now(),
                        ClaimOutcome::Unavailable => panic!("the folder can be written to"),
                    }
                };
                let holders = &holders[number / 3];
                let count = |change: i32| {
                    let mut count = holders.lock().unwrap();
                    *count += change;
                    assert!((0..=1).contains(&*count), "{count} hold a claim");
                };
                count(1);
                thread::yield_now();
                count(-1);
                drop(claim);
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
