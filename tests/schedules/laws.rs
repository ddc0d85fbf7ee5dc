//! The laws that hold under many schedules. `OCISEEK_SCHEDULES=N` is the number of schedules of
//! each law, and `OCISEEK_SCHEDULES_SEED=N` chooses others.

use ociseek_schedules::rootfs::content;
use ociseek_schedules::schedules::check;
use ociseek_schedules::{budget_laws, hook, layer};

/// Tests named after a law: under schedules in which timeouts never elapse, or may elapse at any
/// moment.
macro_rules! laws {
    ($($place:path: $($law:ident $timeouts:ident),+;)+) => {$($(
        #[test]
        fn $law() {
            use $place as place;
            check(stringify!($law), Timeouts::$timeouts == Timeouts::Elapse, place::$law);
        }
    )+)+};
}

#[derive(PartialEq, Eq)]
enum Timeouts {
    Never,
    Elapse,
}

laws! {
    content::laws:
        readers_share_a_fetch Never,
        abandoned_fetches_are_repeated_once Never,
        failures_are_not_kept Never,
        spans_fetched_ahead_are_shared Never,
        readers_may_leave Elapse,
        readers_need_no_memory Never,
        one_promise_at_a_time Never;
    hook::server::laws:
        accepted_jobs_are_done_once Never,
        tags_wait_for_their_image Never,
        idle_workers_begin_waiting_jobs Never,
        the_last_act_of_a_worker_wakes_another Never,
        limits_hold Never,
        failed_jobs_are_tried_again Elapse,
        nothing_is_lost_at_the_end Elapse;
    layer::laws:
        chunks_keep_their_order Never,
        failures_end_all_threads Never;
    budget_laws:
        the_budget_is_never_exceeded Never;
}
