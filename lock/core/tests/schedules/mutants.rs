//! Each schedule fails without its rule.

use std::panic::catch_unwind;

use leasehold_lock_core::mutants::{LockRule, with};

use super::timers;

/// The schedules of each rule, of groups with synchronised clocks first.
fn schedules(rule: LockRule) -> Vec<fn()> {
    let with_timers: Option<fn()> = match rule {
        LockRule::Term => Some(timers::term_a_lease_does_not_count_from_its_acks),
        LockRule::RestartWait => Some(timers::restart_wait_covers_clocks_that_drift),
        LockRule::Acks => Some(timers::acks_an_acceptor_counts_once),
        LockRule::ReleaseStops => {
            Some(timers::release_stops_an_owner_stops_before_it_sends_a_release)
        }
        _ => None,
    };
    std::iter::once(schedule(rule)).chain(with_timers).collect()
}

fn schedule(rule: LockRule) -> fn() {
    match rule {
        LockRule::Timer => timers::timer_an_acceptor_waits_until_the_term_has_passed_on_every_clock,
        LockRule::Reserve => timers::reserve_fences_rise_after_a_restart,
        LockRule::FreeReport => {
            timers::free_report_a_resource_with_an_owner_is_not_reported_as_free
        }
        LockRule::OneLease => timers::one_lease_a_late_write_replaces_no_other_lease,
        LockRule::Term => super::term_a_lease_counts_from_before_read,
        LockRule::AttemptEnd => super::attempt_end_a_late_ack_is_not_used,
        LockRule::RestartWait => super::restart_wait_covers_clocks_that_differ,
        LockRule::Epsilon => super::epsilon_a_lease_is_taken_after_its_end_by_all_clocks,
        LockRule::EpsilonStrict => super::epsilon_strict_a_lease_is_not_taken_at_its_last_moment,
        LockRule::WriteBack => {
            super::write_back_a_half_written_lease_is_completed_before_anybody_is_told
        }
        LockRule::Acks => super::acks_an_acceptor_counts_once,
        LockRule::AckBallot => super::ack_ballot_an_ack_of_an_earlier_attempt_does_not_count,
        LockRule::Run => super::run_a_copied_machine_does_not_own_the_lease_of_the_original,
        LockRule::ReleaseBallot => super::release_ballot_a_late_release_does_not_free_a_later_lease,
        LockRule::ReleaseStops => super::release_stops_an_owner_stops_before_it_sends_a_release,
        LockRule::NackBallot => super::nack_ballot_the_next_attempt_is_above_the_promised_ballot,
        LockRule::ClockWatch => super::clock_watch_clocks_that_differ_too_much_are_noticed,
    }
}

#[test]
fn mutants_fail_their_schedules() {
    for rule in LockRule::ALL {
        for (number, schedule) in schedules(*rule).into_iter().enumerate() {
            let is_missed = catch_unwind(|| with(*rule, schedule)).is_ok();
            assert!(!is_missed, "schedule {number} does not notice {rule:?}");
        }
    }
}
