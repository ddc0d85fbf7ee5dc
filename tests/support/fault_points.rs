//! Which points of a test of faults are tried, and how they ended.

use std::collections::BTreeMap;

use super::random::sampled;

/// The points to test: in CI `sample` of them, spread over all jobs and faults.
pub fn chosen<T>(points: Vec<T>, sample: usize) -> Vec<T> {
    let wanted = sampled("OCISEEK_FAULT_POINTS", points.len(), sample);
    points.into_iter().enumerate().filter(|(at, _)| wanted.contains(at)).map(|(_, point)| point).collect()
}

/// The results of the points: how many ended how, and the errors.
#[derive(Default)]
pub struct Score {
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

    /// Prints the numbers.
    pub fn conclude(self, what: &str) {
        let points: usize = self.ends.values().sum();
        println!("{what}: {points} points, {:?}", self.ends);
        let shown = self.wrong[..self.wrong.len().min(12)].join("\n\n");
        assert!(self.wrong.is_empty(), "{} of {points} points of {what}:\n{shown}", self.wrong.len());
    }
}
