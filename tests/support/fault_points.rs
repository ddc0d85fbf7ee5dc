//! Which points of a test of faults are tried, and how they ended.

use std::collections::BTreeMap;

/// The points to test: in CI `sample` of them, spread over all jobs and faults.
pub fn chosen<T>(points: Vec<T>, sample: usize) -> Vec<T> {
    let asked = std::env::var("OCISEEK_FAULT_POINTS").unwrap_or_else(|_| "1".to_owned());
    if asked == "all" || points.len() <= sample {
        return points;
    }
    let mut state = asked.parse::<u64>().expect("a seed").wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let (total, group) = (points.len(), points.len().div_ceil(sample));
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % group
    };
    let wanted: Vec<usize> = (0..total).step_by(group).map(|at| (at + random()).min(total - 1)).collect();
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
