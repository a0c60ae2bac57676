//! Schedules of groups that rely on clocks of bounded rates, so that each acceptor has a timer.

use leasehold_lock_core::rules::{LEAP_MAX, ROUNDS_RESERVED};
use leasehold_lock_core::{KnownOwner, MemberEvent, MemberId};

use super::TERM_MS;
use super::group::{BOUND, Group, TERM};

/// Time after which a member speaks that was restarted at time 0: the term, stretched.
fn awake_ms() -> i64 {
    BOUND.outwait(TERM).as_millis() as i64 + 1
}

/// Moment, between the end of the term by a fast clock and by a slow clock.
const BETWEEN_MS: i64 = TERM_MS * 105 / 100;

/// m0 has a slow clock, and acquires the resource with the help of m1. m1 and m2 have fast clocks.
fn slow_owner() -> Group {
    let mut group = Group::with_timers(3);
    group.acquire(0);
    group.talk(0, 1);
    group.assert_owner(0);
    group.drop_all();
    group
}

/// Lets m2 acquire the resource with the help of m1. By now, its clock and that of m1 have been fast,
/// and that of m0 slow.
fn fast_successor(group: &mut Group, at_ms: i64) {
    group.at(at_ms);
    group.drift(0, -1);
    group.drift(1, 1);
    group.drift(2, 1);
    group.acquire(2);
    group.talk(2, 1);
    group.drop_all();
}

#[test]
pub fn timer_an_acceptor_waits_until_the_term_has_passed_on_every_clock() {
    let mut group = slow_owner();
    fast_successor(&mut group, BETWEEN_MS);
    group.assert_owner(0);
    // The first request has been refused by then.
    group.at(awake_ms() + TERM_MS / 4).tick(2);
    fast_successor(&mut group, awake_ms() + TERM_MS / 4);
    group.assert_owner(2);
}

#[test]
pub fn restart_wait_covers_clocks_that_drift() {
    let mut group = slow_owner();
    group.restart(1);
    fast_successor(&mut group, BETWEEN_MS);
    group.assert_owner(0);
}

#[test]
pub fn term_a_lease_does_not_count_from_its_acks() {
    let mut group = Group::with_timers(3);
    group.acquire(0);
    group.deliver(0, 1);
    group.deliver(1, 0);
    group.deliver(0, 1);
    group.at(2_000);
    group.drift(0, -1);
    group.deliver(1, 0);
    group.assert_owner(0);
    group.drop_all();
    // The timer of m1 ends before the term has passed since the ack.
    fast_successor(&mut group, TERM_MS * 115 / 100);
    group.assert_exclusive();
}

#[test]
pub fn one_lease_a_late_write_replaces_no_other_lease() {
    let mut group = Group::with_timers(3);
    // The second attempt of m0 has a higher ballot than the first one of m2.
    group.acquire(0);
    group.release(0);
    group.drop_all();
    group.at(10).acquire(0);
    group.deliver(0, 1);
    group.deliver(1, 0);
    let write = group.take(0, 1);
    group.restart(1);
    // m0 gives the attempt up, and releases the lease that may be half written.
    group.at(2_511).tick(0);
    let release = group.take(0, 1);
    assert_eq!((write.len(), release.len()), (1, 1));
    group.drop_all();
    group.at(10 + awake_ms()).acquire(2);
    group.talk(2, 1);
    group.assert_owner(2);
    // Both packets are late.
    group.pass(1, &write);
    group.pass(1, &release);
    group.drop_all();
    group.acquire(0);
    group.talk(0, 1);
    group.assert_owner(2);
}

#[test]
pub fn free_report_a_resource_with_an_owner_is_not_reported_as_free() {
    // The lease is at m0 and m1. m1 has a fast clock.
    let mut group = Group::with_timers(3);
    group.acquire(0);
    group.talk(0, 1);
    group.drop_all();
    group.at(9_000).find_owner(2);
    let query = group.take(2, 1);
    group.drop_all();
    // m0 renews its lease with the help of m2, after m2 has asked.
    group.at(9_900).tick(0);
    group.talk(0, 2);
    group.drop_all();
    // The timer of m1 for the lease of before has ended.
    group.at(11_200);
    group.drift(1, 1);
    group.assert_owner(0);
    group.pass(1, &query);
    group.deliver(1, 2);
    assert_eq!(group.found_owners(), []);
    group.at(11_500).tick(2);
    assert_eq!(group.found_owners(), [KnownOwner::Unknown]);

    // A member that was restarted does not know of the lease either.
    let mut group = Group::with_timers(3);
    group.acquire(0);
    group.talk(0, 1);
    group.drop_all();
    group.restart(1);
    group.at(9_000).find_owner(2);
    let query = group.take(2, 1);
    group.drop_all();
    group.at(9_900).tick(0);
    group.talk(0, 2);
    group.drop_all();
    group.at(11_200);
    group.drift(1, 1);
    group.assert_owner(0);
    group.pass(1, &query);
    group.deliver(1, 2);
    assert_eq!(group.found_owners(), []);
}

#[test]
fn queries_find_the_owner_or_a_majority_without_one() {
    let mut group = Group::with_timers(3);
    group.at(3_000);
    group.find_owner(2);
    group.talk(2, 1);
    assert_eq!(group.found_owners(), [KnownOwner::Free]);
    group.acquire(0);
    group.talk(0, 1);
    group.find_owner(0);
    group.find_owner(2);
    group.talk(2, 1);
    assert_eq!(group.found_owners().len(), 2);
    group.talk(2, 0);
    let found = group.found_owners();
    let is_m0 =
        |it: &KnownOwner| matches!(it, KnownOwner::Is { member, .. } if *member == MemberId(0));
    assert!(is_m0(&found[1]) && is_m0(&found[2]));
    let (
        KnownOwner::Is { fence, until, .. },
        KnownOwner::Is {
            fence: told,
            until: told_until,
            ..
        },
    ) = (found[1], found[2])
    else {
        panic!("{found:?}");
    };
    // m2 allows for a fast clock of the owner.
    assert!(fence == told && until < told_until && told_until < until + TERM / 4);
    group.release(0);
    group.talk(0, 1);
    group.talk(0, 2);
    group.find_owner(2);
    group.talk(2, 1);
    assert_eq!(group.found_owners()[3], KnownOwner::Free);
}

#[test]
fn a_release_wakes_a_member_that_waits() {
    let mut group = Group::with_timers(3);
    group.acquire(0);
    group.talk(0, 1);
    group.talk(0, 2);
    group.at(500).acquire_forever(2);
    group.talk(2, 1);
    group.drop_all();
    group.at(1_000).release(0);
    // m1 gets the release later than m2.
    group.deliver(0, 2);
    group.at(1_009).tick(2);
    group.talk(2, 0);
    group.assert_owner(2);
}

#[test]
fn a_lost_release_is_sent_again() {
    let mut group = Group::with_timers(3);
    group.acquire(0);
    group.talk(0, 1);
    group.talk(0, 2);
    group.at(500).acquire_forever(2);
    group.talk(2, 1);
    group.at(1_000).release(0);
    group.drop_all();
    group.at(1_313).tick(0);
    group.talk(0, 2);
    let is_confirmed = |(_, event): &(usize, MemberEvent)| {
        matches!(event, MemberEvent::Released { ends: None, .. })
    };
    assert!(group.events.iter().any(is_confirmed));
    group.at(1_322).tick(2);
    group.talk(2, 0);
    group.assert_owner(2);
}

#[test]
fn the_successor_begins_before_others_that_wait() {
    let mut group = Group::with_timers(5);
    group.acquire(0);
    for other in 1..5 {
        group.talk(0, other);
    }
    for waiting in 1..5 {
        group.at(waiting as i64 * 100).acquire_forever(waiting);
        group.talk(waiting, 0);
        group.talk(waiting, (waiting + 1) % 5);
        group.talk(waiting, (waiting + 2) % 5);
    }
    group.drop_all();
    group.at(1_000).release_to(0, Some(MemberId(3)));
    for other in 1..5 {
        group.deliver(0, other);
    }
    for other in 1..5 {
        group.at(1_009).tick(other);
    }
    group.talk(3, 0);
    group.talk(3, 1);
    group.talk(3, 0);
    group.assert_owner(3);
}

#[test]
pub fn acks_an_acceptor_counts_once() {
    super::acks_count_once(Group::with_timers(5));
}

#[test]
pub fn release_stops_an_owner_stops_before_it_sends_a_release() {
    super::release_stops(Group::with_timers(3));
}

#[test]
fn renewals_keep_the_fence_and_are_not_disturbed_by_a_member_that_waits() {
    let mut group = Group::with_timers(3);
    group.acquire(0);
    group.talk(0, 1);
    group.talk(0, 2);
    group.acquire_forever(2);
    group.talk(2, 1);
    group.talk(2, 0);
    for ms in (0..4 * TERM_MS).step_by(10) {
        group.at(ms).tick(0);
        group.tick(2);
        group.talk(0, 1);
        group.talk(2, 0);
        group.talk(2, 1);
        group.assert_owner(0);
    }
    let renewed = |(_, event): &&(usize, MemberEvent)| matches!(event, MemberEvent::Renewed { .. });
    let count = group.events.iter().filter(renewed).count();
    assert!((11..=12).contains(&count), "{count} renewals in four terms");
    // m0 is killed. The back-off is at most an eighth of an attempt.
    for ms in (4 * TERM_MS..4 * TERM_MS + awake_ms() + 320).step_by(10) {
        group.at(ms).tick(2);
        group.talk(2, 1);
        group.assert_exclusive();
    }
    group.assert_owner(2);
    let fences = group.events.iter().filter_map(|(_, event)| match event {
        MemberEvent::Acquired { holding, .. } | MemberEvent::Renewed { holding, .. } => {
            Some(holding.fence())
        }
        _ => None,
    });
    let mut fences: Vec<_> = fences.collect();
    assert!(fences.is_sorted());
    fences.dedup();
    assert_eq!(fences.len(), 2, "one for each owner");
}

#[test]
fn a_request_without_wait_is_told_the_owner_that_a_majority_knows() {
    let mut group = slow_owner();
    group.acquire(2);
    group.talk(2, 1);
    assert!(
        !group.is_told(),
        "m1 alone does not know whether m0 owns it"
    );
    group.talk(2, 0);
    assert!(group.is_told(), "{:?}", group.events);
}

#[test]
fn ballots_that_leap_are_taken_in_steps() {
    let mut group = Group::with_timers(3);
    // m2 has been restarted very often, so its floor is high.
    let steps = 3;
    group.restart_above(2, steps * LEAP_MAX);
    group.at(awake_ms()).acquire_forever(2);
    group.reserve(1, (steps + 1) * LEAP_MAX);
    let mut attempts = 0;
    while group.owners().is_empty() {
        assert!(attempts < 20, "m1 never learns the rounds of m2");
        attempts += 1;
        group.talk(2, 1);
        group.drop_all();
        group.at(awake_ms() + attempts * 2_600).tick(2);
    }
    assert!(attempts > 2, "a leap is not taken at once");
    group.assert_owner(2);
}

/// m2 has rounds far above those that m1 has reserved, and asks m1 for help. Then m1 restarts, above
/// the rounds that it has reserved.
#[test]
pub fn reserve_fences_rise_after_a_restart() {
    let mut group = Group::with_timers(3);
    group.restart_above(2, 2 * ROUNDS_RESERVED - 1);
    group.reserve(0, 9 * ROUNDS_RESERVED);
    group.at(awake_ms()).acquire_forever(2);
    for attempt in 1..4 {
        group.talk(2, 1);
        group.drop_all();
        group.at(awake_ms() + attempt * 2_600).tick(2);
    }
    let needed = group.events.iter().any(|(process, event)| {
        *process == 1 && matches!(event, MemberEvent::ReserveRounds { .. })
    });
    assert!(needed, "m1 has reserved fewer rounds");
    group.restart_above(1, ROUNDS_RESERVED);
    group.release(2);
    group.drop_all();
    group.at(3 * awake_ms()).acquire_forever(0);
    for attempt in 1..4 {
        group.talk(0, 1);
        group.at(3 * awake_ms() + attempt * 2_600).tick(0);
    }
    group.assert_owner(0);
    let fences = group.events.iter().filter_map(|(_, event)| match event {
        MemberEvent::Acquired { holding, .. } => Some(holding.fence()),
        _ => None,
    });
    assert!(fences.collect::<Vec<_>>().is_sorted_by(|a, b| a < b));
}

#[test]
fn a_member_that_has_reserved_rounds_promises_them() {
    let mut group = Group::with_timers(3);
    group.restart_above(2, ROUNDS_RESERVED - 1);
    group.reserve(1, 3 * ROUNDS_RESERVED);
    group.at(awake_ms()).acquire(2);
    group.talk(2, 1);
    group.assert_owner(2);
}

#[test]
fn a_member_that_was_restarted_often_disturbs_no_owner() {
    let mut group = Group::with_timers(5);
    group.reserves = true;
    group.acquire(0);
    group.restart_above(1, 8 * ROUNDS_RESERVED);
    for ms in (0..4 * TERM_MS).step_by(10) {
        group.at(ms).tick(0);
        for other in 1..5 {
            group.talk(0, other);
        }
        group.assert_owner(0);
    }
}
