//! One schedule for each rule. Without the rule, the schedule fails.

use std::time::Duration;

mod group;
#[cfg(feature = "mutants")]
mod mutants;
mod timers;

use leasehold_lock_core::{Body, MemberEvent};

use self::group::{EPSILON, Group, TERM};

const TERM_MS: i64 = TERM.as_millis() as i64;
const EPSILON_MS: i64 = EPSILON.as_millis() as i64;
/// Time after which a member speaks that was restarted at time 0: the term, an attempt of a quarter
/// of the term, and two `epsilon`.
const AWAKE_MS: i64 = TERM_MS + TERM_MS / 4 + 2 * EPSILON_MS + 1;

/// m2 acquires the resource with the help of m1, which restarts. m0 has heard nothing of it, and its
/// ballot is lower. Its READ reaches m1 long after it was sent.
fn read_past_restart(sent_ms: i64) {
    let mut group = Group::new(3);
    group.acquire(2);
    group.talk(2, 1);
    group.assert_owner(2);
    group.drop_all();
    group.restart(1);
    group.at(sent_ms).acquire(0);
    let read = group.take(0, 1);
    group.drop_all();
    group.at(AWAKE_MS);
    group.tick(2);
    group.pass(1, &read);
    group.deliver(1, 0);
    group.deliver(0, 1);
    group.deliver(1, 0);
    group.drop_all();
    group.at(AWAKE_MS + 1).acquire(2);
    group.talk(2, 1);
    group.assert_exclusive();
}

#[test]
fn term_a_lease_counts_from_before_read() {
    read_past_restart(0);
}

#[test]
fn attempt_end_a_late_ack_is_not_used() {
    read_past_restart(TERM_MS - 2 * EPSILON_MS);
}

#[test]
fn restart_wait_covers_clocks_that_differ() {
    let mut group = Group::new(3);
    group.offset(0, EPSILON_MS / 2);
    for process in [1, 2] {
        group.offset(process, -EPSILON_MS / 2);
    }
    group.acquire(0);
    group.talk(0, 1);
    group.drop_all();
    group.restart(1);
    // The clocks move apart as far as they may, in the opposite order.
    group.offset(0, -EPSILON_MS / 2);
    for process in [1, 2] {
        group.offset(process, EPSILON_MS / 2);
    }
    group.at(TERM_MS).acquire(2);
    group.talk(2, 1);
    group.assert_exclusive();
}

/// m0 acquires a lease with a slow clock. m2 asks for the resource `after_ms` after the end of the
/// lease by its own clock, which is as fast as possible.
fn take_after_end(after_ms: i64) -> Group {
    let mut group = Group::new(3);
    group.offset(0, -EPSILON_MS / 2);
    group.offset(2, EPSILON_MS / 2);
    group.acquire(0);
    group.talk(0, 1);
    group.drop_all();
    group.at(TERM_MS - EPSILON_MS + after_ms).acquire(2);
    group.talk(2, 1);
    group
}

#[test]
fn epsilon_a_lease_is_taken_after_its_end_by_all_clocks() {
    take_after_end(1).assert_exclusive();
    take_after_end(EPSILON_MS + 1).assert_owner(2);
}

#[test]
fn epsilon_strict_a_lease_is_not_taken_at_its_last_moment() {
    let group = take_after_end(EPSILON_MS);
    group.assert_owner(0);
}

#[test]
fn write_back_a_half_written_lease_is_completed_before_anybody_is_told() {
    // The WRITE of m0 reaches only its own acceptor.
    let mut group = Group::new(3);
    group.acquire(0);
    group.deliver(0, 1);
    group.deliver(1, 0);
    group.drop_all();
    group.at(10).acquire(2);
    group.deliver(2, 0);
    group.deliver(0, 2);
    // The WRITE of m2, which completes it, is lost.
    group.drop_all();
    let told = group.is_told();
    group.at(2600).tick(0);
    group.tick(2);
    group.at(2700).acquire(1);
    group.talk(1, 2);
    assert!(!(told && group.owners() == [1]), "m2 was told of m0");
}

#[test]
fn acks_an_acceptor_counts_once() {
    acks_count_once(Group::new(5));
}

fn acks_count_once(mut group: Group) {
    group.acquire(0);
    for _ in 0..2 {
        group.deliver(0, 1);
        let acks = group.take(1, 0);
        group.pass(0, &acks);
        group.pass(0, &acks);
    }
    group.drop_all();
    group.acquire(2);
    for _ in 0..2 {
        group.talk(2, 3);
        group.talk(2, 4);
    }
    group.assert_owner(2);
}

#[test]
fn ack_ballot_an_ack_of_an_earlier_attempt_does_not_count() {
    let mut group = Group::new(3);
    group.acquire(0);
    group.deliver(0, 1);
    let late = group.take(1, 0);
    group.drop_all();
    group.acquire(2);
    group.talk(2, 1);
    group.assert_owner(2);
    // m0 gives its attempt up, and begins another one that only m1 hears of, and only its WRITE.
    group.at(2500).tick(0);
    group.acquire(0);
    group.drop_all();
    group.pass(0, &late);
    group.talk(0, 1);
    group.assert_exclusive();
}

#[test]
fn run_a_copied_machine_does_not_own_the_lease_of_the_original() {
    let mut group = Group::new(3);
    let copy = group.copy(0);
    group.acquire(0);
    group.talk(0, 1);
    group.assert_owner(0);
    group.acquire(copy);
    for member in [1, 2, 1, 2] {
        let packets = group.take(copy, member);
        group.pass(member, &packets);
        let answers = group.take(member, 0);
        group.pass(copy, &answers);
    }
    group.assert_owner(0);
}

#[test]
fn release_ballot_a_late_release_does_not_free_a_later_lease() {
    let mut group = Group::new(3);
    group.acquire(0);
    group.talk(0, 1);
    group.release(0);
    let release = group.take(0, 1);
    group.pass(1, &release);
    group.talk(0, 1);
    group.drop_all();
    group.at(100).acquire(0);
    group.talk(0, 1);
    group.assert_owner(0);
    group.drop_all();
    group.pass(1, &release);
    group.drop_all();
    group.acquire(2);
    group.talk(2, 1);
    // The first ballot was too low.
    group.at(1400).tick(2);
    group.talk(2, 1);
    group.assert_owner(0);
}

#[test]
fn release_stops_an_owner_stops_before_it_sends_a_release() {
    release_stops(Group::new(3));
}

fn release_stops(mut group: Group) {
    group.acquire(0);
    group.talk(0, 1);
    group.release(0);
    group.deliver(0, 1);
    group.drop_all();
    group.acquire(2);
    group.talk(2, 1);
    group.assert_owner(2);
}

#[test]
fn nack_ballot_the_next_attempt_is_above_the_promised_ballot() {
    let mut group = Group::new(3);
    // m2 makes attempts of which m1 hears nothing.
    for attempt in 0..20 {
        group.at(attempt * 100).acquire(2);
        group.talk(2, 0);
        group.release(2);
        group.talk(2, 0);
        group.drop_all();
    }
    group.at(2000).acquire(1);
    group.talk(1, 0);
    // The back-off after a conflict is at most half of an attempt.
    group.at(3250).tick(1);
    group.talk(1, 0);
    group.assert_owner(1);
}

#[test]
fn clock_watch_clocks_that_differ_too_much_are_noticed() {
    for (other_ms, is_told) in [
        (EPSILON_MS, false),
        (3 * EPSILON_MS, true),
        (-3 * EPSILON_MS, true),
    ] {
        let mut group = Group::new(3);
        group.offset(1, other_ms);
        group.acquire(0);
        let requests = group.take(0, 1);
        // A process that ignores requests from the past would answer nothing.
        group.pass(1, &requests);
        group.talk(1, 0);
        let differ =
            |(_, event): &(usize, MemberEvent)| matches!(event, MemberEvent::ClocksDiffer { .. });
        assert_eq!(group.events.iter().any(differ), is_told, "{other_ms} ms");
        assert!(!is_told || group.owners().is_empty());
    }
}

#[test]
fn an_ack_from_the_past_shows_a_wrong_clock() {
    for (behind_ms, is_told) in [(EPSILON_MS, false), (2 * EPSILON_MS, true)] {
        let mut group = Group::new(3);
        group.acquire(0);
        group.deliver(0, 1);
        let mut acks = group.take(1, 0);
        for ack in &mut acks {
            ack.sent = ack.sent - Duration::from_millis(behind_ms as u64);
        }
        group.pass(0, &acks);
        let differ =
            |(_, event): &(usize, MemberEvent)| matches!(event, MemberEvent::ClocksDiffer { .. });
        assert_eq!(group.events.iter().any(differ), is_told, "{behind_ms} ms");
    }
}

#[test]
fn a_completed_lease_is_told() {
    let mut group = Group::new(3);
    group.acquire(0);
    group.talk(0, 1);
    group.drop_all();
    group.acquire(2);
    group.talk(2, 1);
    // The first ballot may have been too low.
    group.at(1400).tick(2);
    group.talk(2, 1);
    assert!(group.is_told(), "{:?}", group.events);
    group.assert_owner(0);
}

#[test]
fn a_waiting_member_does_not_disturb_renewals() {
    let mut group = Group::new(3);
    group.acquire(0);
    group.talk(0, 1);
    group.talk(0, 2);
    group.drop_all();
    group.at(3334).tick(0);
    group.deliver(0, 1);
    group.deliver(1, 0);
    // The WRITE of the renewal is on its way when a member begins to wait.
    group.acquire_forever(2);
    group.deliver(2, 1);
    group.talk(0, 1);
    let renewed = |(_, event): &(usize, MemberEvent)| matches!(event, MemberEvent::Renewed { .. });
    assert!(group.events.iter().any(renewed));
    let answers = group.take(1, 2);
    let bodies: Vec<_> = answers.iter().flat_map(|it| &it.messages).collect();
    assert!(
        matches!(bodies[..], [(_, Body::Taken { .. })]),
        "{bodies:?}"
    );
}

#[test]
fn a_waiting_member_takes_over_after_the_end_of_the_lease() {
    let mut group = Group::new(3);
    group.acquire(0);
    group.talk(0, 1);
    group.talk(0, 2);
    group.acquire_forever(2);
    group.talk(2, 1);
    group.drop_all();
    // m0 is killed. The back-off is at most an eighth of an attempt.
    for ms in (TERM_MS..TERM_MS + EPSILON_MS + 320).step_by(10) {
        group.at(ms).tick(2);
        group.talk(2, 1);
        group.assert_exclusive();
    }
    group.assert_owner(2);
    let fences = group.events.iter().filter_map(|(_, event)| match event {
        MemberEvent::Acquired { holding, .. } => Some(holding.fence()),
        _ => None,
    });
    assert!(fences.collect::<Vec<_>>().is_sorted_by(|a, b| a < b));
}
