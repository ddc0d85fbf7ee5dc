//! Runs a law under many schedules.

use std::sync::Arc;
use std::time::WallClock;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// The number of schedules of each law, unless `OCISEEK_SCHEDULES` has another one.
const SCHEDULES: usize = 5_000;
/// A schedule with more steps does not end.
const STEPS: usize = 100_000;
/// How many times a schedule of the second kind prefers another task.
const CHANGES: usize = 3;

/// The number in an environment variable.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|value| value.parse().expect("the variable is a number"))
}

/// Runs `law` under many schedules. Half of them take a random task at each step, the other half go
/// by priorities that change a few times (Burckhardt et al., "A Randomized Scheduler with
/// Probabilistic Guarantees of Finding Bugs"). Panics if the law panics under one of them, if all
/// tasks of a schedule wait, or if it does not end.
pub fn check(name: &str, timeouts_elapse: bool, law: impl Fn() + Send + Sync + 'static) {
    let half = number("OCISEEK_SCHEDULES").unwrap_or(SCHEDULES).div_ceil(2);
    let seed = number("OCISEEK_SCHEDULES_SEED").unwrap_or(1) as u64;
    let law = Arc::new(move || {
        std::time::begin(timeouts_elapse);
        law();
    });
    let begun = WallClock::now();
    let random = run(RandomScheduler::new_from_seed(seed, half), &law);
    let priorities = run(PctScheduler::new_from_seed(seed, CHANGES, half), &law);
    println!(
        "schedules: {name}: {} with seed {seed}, {:.1} s",
        random + priorities,
        begun.elapsed().as_secs_f32()
    );
}

fn run<L: Fn() + Send + Sync + 'static>(
    scheduler: impl Scheduler + 'static,
    law: &Arc<L>,
) -> usize {
    let mut config = Config::new();
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.failure_persistence = FailurePersistence::Print;
    config.silence_warnings = true;
    let law = Arc::clone(law);
    Runner::new(scheduler, config).run(move || law())
}
