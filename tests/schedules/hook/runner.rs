//! Jobs that take a few steps.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use shuttle::rand::Rng;
use tokio::sync::watch;
use tokio::task::yield_now;

use super::job::{Job, Unit};

pub const TRIES: u32 = 3;

#[derive(Debug)]
pub enum JobOutcome {
    Done(()),
    Again(Duration),
    Dead(DeadReason),
}

/// How jobs end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// They are done.
    Done,
    /// They are done, dead, or tried again.
    Any,
    /// They are done once this many jobs have begun.
    Together(usize),
}

pub struct Runner {
    ending: Ending,
    /// The images that are being processed.
    running: Mutex<BTreeSet<String>>,
    begun: watch::Sender<usize>,
}

/// An image that is being processed until this is dropped.
struct Run<'a>(&'a Runner, String);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.running.lock().unwrap().remove(&self.1);
    }
}

impl Runner {
    pub fn new(ending: Ending) -> Runner {
        Runner { ending, running: Mutex::default(), begun: watch::channel(0).0 }
    }

    pub async fn run(&self, job: &Job, tries: u32, most: u32) -> JobOutcome {
        let image = job.image_key();
        assert!(
            self.running.lock().unwrap().insert(image.clone()),
            "{image} is processed twice at the same time"
        );
        let _running = Run(self, image);
        self.begun.send_modify(|begun| *begun += 1);
        yield_now().await;
        match self.ending {
            Ending::Done => {}
            Ending::Together(count) => {
                let mut begun = self.begun.subscribe();
                begun.wait_for(|begun| *begun >= count).await.expect("the sender is here");
            }
            Ending::Any => match shuttle::rand::thread_rng().gen_range(0..4) {
                0 => return JobOutcome::Dead("it is broken".into()),
                1 | 2 if tries < most => return JobOutcome::Again(Duration::from_secs(60)),
                _ => {}
            },
        }
        JobOutcome::Done(())
    }

    pub fn give_up(&self, _: &Job, _: u32, _: &DeadReason) {}

    pub fn unit(&self) -> Unit {
        Unit::Image
    }
}

/// Why a job is given up.
#[derive(Debug)]
pub struct DeadReason;

impl From<&str> for DeadReason {
    fn from(_: &str) -> DeadReason {
        DeadReason
    }
}
