//! The tests of faults: how many points each of them has, which of them are tried, and how they
//! ended.

use std::collections::BTreeMap;

use super::random::sampled;
use super::runs_long_tests;

/// A test that makes something fail at each point of its jobs.
#[derive(Clone, Copy)]
pub struct Harness {
    /// What fails.
    pub what: &'static str,
    /// How many points there are at least, also where only a sample of them is tried. If there are
    /// fewer, a job no longer does what it did.
    least: usize,
}

const fn harness(what: &'static str, least: usize) -> Harness {
    Harness { what, least }
}

pub const REQUESTS: Harness = harness("requests that fail", 6_000);
pub const STOPS: Harness = harness("registries that stop answering", 1_800);
pub const KILLS_AT_REQUESTS: Harness = harness("kills at requests", 1_200);
pub const FILES: Harness = harness("accesses to files that fail", 3_000);
pub const KILLS_AT_FILES: Harness = harness("kills at accesses to files", 1_500);
pub const POWER: Harness = harness("power failures", 1_500);
pub const READS: Harness = harness("mounted reads", 1_200);
pub const KERNEL_READS: Harness = harness("reads through the kernel", 450);
pub const CACHE_OF_MOUNT: Harness = harness("accesses of a mount to its cache that fail", 480);
pub const KILLS_AT_CACHE: Harness = harness("kills at accesses of a mount to its cache", 240);
pub const POWER_OF_MOUNT: Harness = harness("power failures in the cache of a mount", 240);
pub const QUEUE: Harness = harness("jobs of a queue", 450);
pub const QUEUE_RESTARTS: Harness = harness("jobs of a queue, NATS restarts", 25);
pub const MESSAGES: Harness = harness("messages to NATS", 280);
pub const RUNTIME_API: Harness = harness("hook lambda, Runtime API", 49);
pub const ECR: Harness = harness("hook lambda, ECR", 30);

const fn least_of(harnesses: &[Harness]) -> usize {
    let mut sum = 0;
    let mut at = 0;
    while at < harnesses.len() {
        sum += harnesses[at].least;
        at += 1;
    }
    sum
}

// What the project asks for.
const _: () =
    assert!(least_of(&[REQUESTS, STOPS, FILES, READS, KERNEL_READS, QUEUE, MESSAGES]) >= 2_000);
const _: () = assert!(least_of(&[KILLS_AT_REQUESTS, KILLS_AT_FILES]) >= 500);

/// The points of a test.
pub struct Points<T> {
    harness: Harness,
    /// How many there are.
    total: usize,
    /// Those of the jobs that are asked for.
    wanted: Vec<T>,
    /// A part of the names of the jobs that are asked for.
    only: Option<String>,
}

impl<T> Points<T> {
    pub fn of(harness: Harness) -> Points<T> {
        Points {
            harness,
            total: 0,
            wanted: Vec::new(),
            only: std::env::var("OCISEEK_FAULT_JOBS").ok(),
        }
    }

    /// Adds the points of a job. There must be some.
    pub fn add(&mut self, job: &str, points: impl IntoIterator<Item = T>) {
        let before = self.wanted.len();
        self.wanted.extend(points);
        let added = self.wanted.len() - before;
        assert!(added > 0, "{}: {job} has no points", self.harness.what);
        self.total += added;
        if self.only.as_ref().is_some_and(|only| !job.contains(only)) {
            self.wanted.truncate(before);
        }
    }

    /// The points to try: in CI `sample` of them, spread over all jobs and faults, and a quarter of
    /// that where long tests are left out. The score expects as many outcomes.
    pub fn chosen(self, sample: usize) -> (Vec<T>, Score) {
        let Points { harness: Harness { what, least }, total, wanted, .. } = self;
        assert!(total >= least, "{what}: {total} points, not {least}");
        let is_asked = std::env::var_os("OCISEEK_FAULT_POINTS").is_some();
        let is_whole = is_asked || runs_long_tests(&format!("most of the sample of {what}"));
        let sample = if is_whole { sample } else { sample.div_ceil(4) };
        let sample = sampled("OCISEEK_FAULT_POINTS", wanted.len(), sample);
        assert!(!sample.is_empty(), "{what}: no point is tried");
        println!("{what}: {} of {total}", sample.len());
        let score = Score { what, tried: sample.len(), ends: BTreeMap::new(), wrong: Vec::new() };
        let chosen = wanted
            .into_iter()
            .enumerate()
            .filter(|(at, _)| sample.contains(at))
            .map(|(_, point)| point);
        (chosen.collect(), score)
    }
}

/// How a run ended that never came to its point.
pub const MISSED: &str = "done before that point";

/// The results of the points: how many ended how, and the errors.
pub struct Score {
    what: &'static str,
    /// How many points are tried.
    tried: usize,
    ends: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Score {
    pub fn count(&mut self, point: &str, outcome: Result<String, String>) {
        let (end, wrong) = match outcome {
            Ok(end) => (end, None),
            Err(why) => ("wrong".to_owned(), Some(format!("{point}: {why}"))),
        };
        *self.ends.entry(end).or_default() += 1;
        self.wrong.extend(wrong);
    }

    /// Prints the numbers. Everything was tried, most points were reached, and nothing was wrong.
    pub fn conclude(self) {
        let Score { what, tried, ends, wrong } = self;
        println!("{what}: {tried} points, {ends:?}");
        assert_eq!(ends.values().sum::<usize>(), tried, "{what}: {ends:?}");
        let missed = ends.get(MISSED).copied().unwrap_or_default();
        // Rounded up: a run without long tests tries three points of some kinds.
        assert!(
            missed <= tried.div_ceil(4),
            "{missed} of {tried} points of {what} were not reached"
        );
        let shown = wrong[..wrong.len().min(12)].join("\n\n");
        assert!(wrong.is_empty(), "{} of {tried} points of {what}:\n{shown}", wrong.len());
    }
}
