//! Runs each directed test without the rule that it tests. The test must fail.

use std::panic::catch_unwind;

use crate::mutants::{Rule, with};

macro_rules! directed {
    ($($rule:ident: $module:ident::$test:ident;)*) => {
        /// Directed tests: (rule, test that must fail without the rule, name of the test).
        const DIRECTED: &[(Rule, fn(), &str)] = &[
            $((Rule::$rule, super::$module::$test, stringify!($module::$test)),)*
        ];
    };
}

directed! {
    H01OldAck: order::an_old_ack_does_not_shorten_a_newer_promise;
    H02Repeats: order::a_repeated_guard_does_not_move_its_window;
    H02Repeats: order::a_repeated_promise_does_not_extend_the_lease;
    H02Repeats: order::a_promise_overtaken_by_its_successor_is_refused;
    H03Drift: timing::a_grant_outlives_its_promise_at_the_bound_of_drift;
    H04LatePromise: timing::a_promise_that_lay_in_a_buffer_is_refused;
    H05Barrier: barrier::after_a_lapse_the_barrier_is_that_of_the_new_promise;
    H05Lapse: barrier::a_lapse_behind_a_longer_promise_ends_the_chain;
    H05NewlyGiven: barrier::a_key_newly_given_has_the_barrier_of_the_promise_that_gave_it;
    H05NewlyGiven: barrier::a_key_taken_away_and_given_back_begins_a_new_chain;
    H06OneBarrier: barrier::each_grantor_that_is_counted_brings_its_own_barrier;
    H08Lapse: timing::a_dead_holder_is_suspected_and_its_grant_lapses_in_bounded_time;
    H12NamedLeader: configuration::the_old_leader_is_still_notified_under_a_new_leaders_configuration;
    H14UnknownConfig: configuration::a_promise_under_an_unknown_configuration_is_refused;
    H15RestartWait: restart::grantors_that_restart_together_ask_everyone_until_all_promises_have_ended;
    H17PerConfig: configuration::renewing_under_a_new_configuration_does_not_extend_the_old_promise;
    H17Shortening: configuration::a_shorter_lease_in_a_newer_configuration_shortens_only_its_own_grant;
    H24Falls: barrier::a_barrier_falls_with_the_dead_entry_it_stood_on;
    H32UpTo: order::a_late_relinquish_does_not_end_a_later_grant;
    H35NamedAck: order::a_promise_is_measured_against_the_ack_it_names;
    H40Chain: barrier::a_chain_does_not_survive_relinquish;
    H41Oldest: configuration::a_suspect_is_not_renewed_below_its_exclusion;
    H68Longest: restart::the_restart_wait_is_that_of_the_longest_lease;
    H69Cleared: configuration::what_a_range_forgot_does_not_come_back_with_its_neighbours;
}

#[test]
fn each_directed_test_fails_without_its_rule() {
    let passes = |rule: Rule, test: fn()| catch_unwind(|| with(rule, test)).is_ok();
    let blind = DIRECTED
        .iter()
        .filter(|(rule, test, _)| passes(*rule, *test));
    let blind: Vec<_> = blind.map(|(rule, _, name)| (rule, name)).collect();
    assert!(blind.is_empty(), "passes without its rule: {blind:#?}");
}
