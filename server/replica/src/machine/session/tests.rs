use std::collections::BTreeSet;
use std::mem::size_of;
use std::time::Duration;

use leasehold_wire::command::Op;
use leasehold_wire::{UNACKNOWLEDGED_MAX, Version};

use super::results::{COMPACT_BYTES, CompactOutcome};
use super::*;
use crate::machine::kv::not_a_record;

fn lasting(ttl_ms: u64, stay_ms: u64) -> Sessions {
    Sessions::new(&SessionLimits {
        ttl: Duration::from_millis(ttl_ms),
        stay: Duration::from_millis(stay_ms),
        ..SessionLimits::default()
    })
}

fn write(client: u64, sequence: u64, acked_below: u64) -> Command {
    Command::session(client, sequence, acked_below, Op::put("k", "v"))
}

fn outcome(slot: u64) -> Outcome {
    Outcome::written(leasehold_wire::Version { slot, index: 0 })
}

#[test]
fn a_retry_gets_the_first_result() {
    let mut sessions = lasting(1000, 1000);
    assert_eq!(sessions.admit(&write(7, 1, 1), 0), Admission::Fresh);
    sessions.record(&write(7, 1, 1), 0, outcome(5));
    assert_eq!(
        sessions.admit(&write(7, 1, 1), 0),
        Admission::Done(outcome(5))
    );
    assert_eq!(sessions.admit(&write(7, 2, 1), 0), Admission::Fresh);
}

#[test]
fn a_delayed_first_attempt_after_its_acknowledgement_is_refused() {
    let mut sessions = lasting(1000, 1000);
    sessions.record(&write(7, 1, 1), 0, outcome(5));
    sessions.record(&write(7, 2, 2), 0, outcome(6));
    assert_eq!(sessions.admit(&write(7, 1, 1), 0), Admission::Refused);
}

#[test]
fn sequences_may_be_executed_out_of_order() {
    let mut sessions = lasting(1000, 1000);
    sessions.record(&write(7, 3, 1), 0, outcome(5));
    assert_eq!(
        sessions.admit(&write(7, 2, 1), 0),
        Admission::Fresh,
        "not below the low-water mark"
    );
}

#[test]
fn a_session_opens_whatever_its_client_has_given_up() {
    let mut sessions = lasting(1000, 1000);
    // The client has abandoned write 1: its mark is above it. Write 2 arrives first.
    assert_eq!(sessions.admit(&write(7, 2, 2), 999), Admission::Fresh);
    sessions.record(&write(7, 2, 2), 999, outcome(5));
    assert_eq!(sessions.admit(&write(7, 1, 1), 999), Admission::Refused);
    assert_eq!(
        sessions.admit(&write(7, 2, 2), 999),
        Admission::Done(outcome(5))
    );
}

/// Tests every order of copies of three commands, with or without a pause before each.
#[test]
fn what_was_refused_is_refused_for_ever() {
    let ttl_ms = 1000;
    // The client abandons sequence 1 before it sends 2. It abandons 2, or has its answer, before it
    // sends 3.
    let commands = [write(7, 1, 1), write(7, 2, 2), write(7, 3, 3)];
    let opened: Vec<Command> = commands.map(|command| command.opened(500)).into();
    let choices = opened.len() * 2;
    let length = 5;
    for case in 0..choices.pow(length) {
        let mut sessions = lasting(ttl_ms, ttl_ms);
        let (mut now_ms, mut refused) = (500, BTreeSet::new());
        for place in 0..length {
            let choice = case / choices.pow(place) % choices;
            now_ms += (choice % 2) as u64 * (ttl_ms + STEP_MS) / 2;
            sessions.begin(now_ms, 0);
            let command = &opened[choice / 2];
            match sessions.admit(command, now_ms) {
                Admission::Refused => {
                    refused.insert(command.sequence);
                }
                Admission::Done(_) => {}
                Admission::NoRoom => panic!("there is room for any number"),
                Admission::Fresh => {
                    assert!(!refused.contains(&command.sequence), "case {case}");
                    sessions.record(command, now_ms, outcome(place.into()));
                }
            }
        }
    }
}

#[test]
fn an_expired_session_is_refused_and_not_opened_anew() {
    let mut sessions = lasting(1000, 1000);
    sessions.record(&write(7, 1, 1), 0, outcome(5));
    sessions.begin(1999, 0);
    assert!(sessions.knows(7));
    sessions.begin(2000, 0);
    assert!(!sessions.knows(7));
    assert_eq!(sessions.admit(&write(7, 2, 2), 2000), Admission::Refused);
}

#[test]
fn a_first_write_that_may_have_been_executed_and_forgotten_is_refused() {
    let mut sessions = lasting(1000, 1000);
    let first = write(7, 1, 1).opened(500);
    assert_eq!(sessions.admit(&first, 1499), Admission::Fresh);
    sessions.record(&write(7, 1, 1), 600, outcome(5));
    sessions.begin(60_000, 0);
    assert_eq!(sessions.admit(&first, 60_000), Admission::Refused);
    assert_eq!(
        sessions.admit(&first.opened(59_500), 60_000),
        Admission::Fresh
    );
}

#[test]
fn images_restore_what_they_were_taken_of() {
    let mut sessions = lasting(1000, 1000);
    sessions.record(&write(7, 1, 1), 5000, outcome(5));
    sessions.record(&write(7, 2, 1), 5500, outcome(6));
    let images = sessions.take_dirty();
    assert!(sessions.take_dirty().is_empty());
    let mut restored = lasting(1000, 1000);
    for (client, image) in images {
        restored.restore(client, image.expect("alive"));
    }
    assert_eq!(
        restored.admit(&write(7, 2, 1), 0),
        Admission::Done(outcome(6))
    );
    restored.begin(60_000, 0);
    assert_eq!(restored.len(), 0);
}

/// Opens a session of `client` at `at_ms`, and executes its first write at the same time.
fn open(sessions: &mut Sessions, client: u64, at_ms: u64) {
    let command = write(client, 1, 1).opened(at_ms);
    assert_eq!(sessions.admit(&command, at_ms), Admission::Fresh);
    sessions.record(&command, at_ms, outcome(client));
}

const LONG_MS: u64 = 3_600_000;

#[test]
fn the_least_recently_active_session_makes_room() {
    let mut sessions = lasting(LONG_MS, 2000);
    sessions.begin(0, 3);
    for (client, at_ms) in [(3, 500), (2, 900), (1, 1000)] {
        open(&mut sessions, client, at_ms);
    }
    sessions.record(&write(3, 2, 2).opened(500), 1999, outcome(9));
    let next = write(4, 1, 1).opened(2000);
    sessions.begin(2999, 3);
    assert_eq!(sessions.admit(&next, 2999), Admission::NoRoom);
    open(&mut sessions, 4, 3000);
    assert!(!sessions.knows(2) && sessions.made_room() == 1);
    // Of the sessions last active in the same second, the one with the lowest client number ends.
    open(&mut sessions, 5, 4000);
    assert!(!sessions.knows(1) && sessions.knows(3));
    assert_eq!((sessions.len(), sessions.opens_from_ms()), (3, 2000));
    sessions.check();
}

#[test]
fn a_session_that_made_room_is_not_opened_again() {
    let mut sessions = lasting(LONG_MS, 0);
    sessions.begin(0, 1);
    let first = write(7, 1, 1).opened(500);
    sessions.record(&first, 1500, outcome(5));
    open(&mut sessions, 8, 2000);
    assert!(!sessions.knows(7));
    assert_eq!(sessions.admit(&first, 9000), Admission::Refused);
    let second = write(7, 2, 2).opened(500);
    assert_eq!(sessions.admit(&second, 9000), Admission::Refused);
    // Another client that began before 2000, and has never had a session, is refused likewise.
    let other = write(9, 1, 1);
    assert_eq!(
        sessions.admit(&other.clone().opened(1999), 9000),
        Admission::Refused
    );
    assert_eq!(sessions.admit(&other.opened(2000), 9000), Admission::Fresh);
}

/// Tests every order of two kinds of commands, with or without a pause before each: copies of three
/// commands, and commands that open other sessions. There is room for one session only.
#[test]
fn what_was_refused_or_executed_is_not_executed_later_however_sessions_make_room() {
    let commands = [write(7, 1, 1), write(7, 2, 2), write(7, 3, 3)];
    let commands = commands.map(|command| command.opened(500));
    let choices = 2 * (commands.len() + 1);
    let length = 6;
    for case in 0..choices.pow(length) {
        let mut sessions = lasting(LONG_MS, 0);
        let (mut now_ms, mut over) = (500, BTreeSet::new());
        for place in 0..length {
            let choice = case / choices.pow(place) % choices;
            now_ms += (choice % 2) as u64 * STEP_MS;
            sessions.begin(now_ms, 1);
            let new = write(100 + u64::from(place), 1, 1).opened(now_ms);
            let command = commands.get(choice / 2).unwrap_or(&new);
            let is_over = over.contains(&(command.client, command.sequence));
            match sessions.admit(command, now_ms) {
                Admission::Fresh => {
                    assert!(!is_over, "case {case}");
                    sessions.record(command, now_ms, outcome(place.into()));
                }
                Admission::NoRoom => continue,
                Admission::Refused | Admission::Done(_) => {}
            }
            over.insert((command.client, command.sequence));
        }
    }
}

#[test]
fn a_lower_bound_is_reached_two_sessions_at_a_time() {
    let mut sessions = lasting(LONG_MS, 0);
    sessions.begin(0, 0);
    (1..=6).for_each(|client| open(&mut sessions, client, 0));
    for (client, left) in [(7, 5), (8, 4), (9, 3), (10, 2), (11, 2)] {
        let now_ms = client * STEP_MS;
        sessions.begin(now_ms, 2);
        open(&mut sessions, client, now_ms);
        assert_eq!(sessions.len(), left);
    }
}

#[test]
fn many_sessions_that_expire_together_end_in_slices() {
    let mut sessions = lasting(1000, 0);
    let many = 3 * EXPIRED_MAX as u64 - 1;
    (0..many).for_each(|client| open(&mut sessions, client, 0));
    for left in [2 * EXPIRED_MAX - 1, EXPIRED_MAX - 1, 0, 0] {
        sessions.begin(5000, 0);
        assert_eq!(sessions.len(), left);
        // A session that has not ended yet continues.
        let last = write(many - 1, 2, 2).opened(0);
        let goes_on = sessions.admit(&last, 5000) == Admission::Fresh;
        assert_eq!(goes_on, left > 0);
    }
}

#[test]
fn where_sessions_make_room_is_restored() {
    let mut sessions = lasting(LONG_MS, 0);
    sessions.begin(0, 1);
    open(&mut sessions, 7, 1500);
    open(&mut sessions, 8, 2000);
    let mut restored = lasting(LONG_MS, 0);
    restored.restore_opens_from(sessions.opens_from_ms());
    for (client, image) in sessions.take_dirty() {
        if let Some(image) = image {
            restored.restore(client, image);
        }
    }
    for client in [7, 8, 9] {
        let late = write(client, 1, 1).opened(1500);
        assert_eq!(restored.admit(&late, 9000), sessions.admit(&late, 9000));
    }
    restored.begin(9000, 1);
    sessions.begin(9000, 1);
    for of in [&mut sessions, &mut restored] {
        open(of, 10, 9000);
    }
    assert_eq!(restored.opens_from_ms(), sessions.opens_from_ms());
}

/// Tests whether a session is certain to exist at 4,999 ms of the replicated clock, if sessions
/// stay for 2 s. That depends on the commands in flight and on the last activity of the session.
#[test]
fn a_session_is_certain_if_nothing_in_flight_can_end_it_or_take_its_room() {
    let write_of = |client, opened_ms| write(client, 2, 2).opened(opened_ms);
    for (sessions_max, clients, client, active_ms, certain) in [
        (4, 2, 1, 0, true),     // there is room for all
        (4, 3, 1, 0, false),    // the session may have to make room
        (4, 3, 1, 2001, true),  // but it was active too recently to end
        (4, 3, 1, 1999, false), // activity is rounded down to whole seconds
        (0, 1000, 1, 0, true),  // there is room for any number
        (4, 2, 9, 0, true),     // a new session, for which there is room
        (4, 3, 9, 0, false),    // other sessions may take the room
    ] {
        let mut sessions = lasting(LONG_MS, 2000);
        sessions.begin(0, 0);
        open(&mut sessions, 1, active_ms);
        open(&mut sessions, 2, 2001);
        let flying = InFlightBound {
            clients,
            sessions_max,
        };
        let command = write_of(client, active_ms);
        let found = sessions.is_certain(&command, 4999, flying);
        assert_eq!(
            found, certain,
            "{sessions_max} {clients} {client} {active_ms}"
        );
    }
}

/// Computes the most memory that a session with one result can take, from the sizes of the types. A
/// hash table that has just grown has 16 places for 7 entries, and each place takes one byte more
/// than its entry. A node of the tree has room for 11 entries, and holds at least 5.
#[test]
fn a_session_takes_at_most_200_bytes() {
    let place = (size_of::<(u64, Session)>() + 1) as f64;
    let leaf = (11 * size_of::<(u64, u64)>() + 16) as f64;
    let inner = leaf + (12 * size_of::<usize>()) as f64;
    let bytes = place * 16.0 / 7.0 + leaf / 5.0 + inner / 25.0 * 1.25;
    assert!(bytes <= 200.0, "{bytes}");
    let mut sessions = lasting(LONG_MS, 0);
    (0..100).for_each(|client| open(&mut sessions, client, 0));
    let mut all = sessions.by_client.iter();
    let is_small = |(_, kept): (&u64, &Session)| matches!(kept.results, Results::One(..));
    assert!(all.all(is_small), "nothing of it is elsewhere");
}

/// The limit of 24 bytes holds for each result, even if the client acknowledges results late.
#[test]
fn a_session_takes_24_bytes_more_for_each_result_that_its_client_may_ask_for() {
    assert_eq!(size_of::<(u64, CompactOutcome)>(), COMPACT_BYTES);
    let mut sessions = lasting(LONG_MS, 0);
    for sequence in 1..=10 * UNACKNOWLEDGED_MAX {
        let acked_below = sequence.saturating_sub(UNACKNOWLEDGED_MAX).max(1);
        let outcome = match sequence % 4 {
            0 => Outcome::mismatch(None),
            1 => not_a_record(),
            _ => Outcome::written(Version::default()),
        };
        sessions.record(&write(7, sequence, acked_below), 0, outcome);
        let Some(Results::Many(many)) = sessions.by_client.get(&7).map(|it| &it.results) else {
            continue;
        };
        let all = &many.all;
        assert!(all.len() as u64 <= UNACKNOWLEDGED_MAX + 1 && all.capacity() <= 82);
        let small = all
            .iter()
            .all(|(_, kept)| !matches!(kept, CompactOutcome::Other(_)));
        assert!(small, "nothing of it is elsewhere");
    }
}

#[test]
fn sessions_with_many_results_weigh_more_when_they_are_written_down() {
    let mut sessions = lasting(LONG_MS, 0);
    (1..=100).for_each(|client| open(&mut sessions, client, 0));
    assert_eq!(sessions.dirty_cost(), 100);
    assert_eq!(sessions.take_dirty().len(), 100);
    assert_eq!(sessions.dirty_cost(), 0);
    for sequence in 2..=64 {
        sessions.record(&write(7, sequence, 1), 0, Outcome::default());
    }
    assert_eq!(sessions.dirty_cost(), 4);
    sessions.take_dirty();
    sessions.record(&write(7, 65, 1), 0, Outcome::default());
    assert_eq!(sessions.dirty_cost(), 5);
    // The session of a busy client always has this many results, and is written once.
    for sequence in 66..10_000 {
        sessions.record(&write(7, sequence, sequence - 64), 0, Outcome::default());
    }
    assert_eq!(sessions.dirty_cost(), 5);
    assert_eq!(sessions.take_dirty().len(), 1);
}

#[test]
fn sessions_with_results_of_transactions_weigh_more_when_they_are_written_down() {
    let mut sessions = lasting(LONG_MS, 0);
    let result = |count: usize| {
        let one = leasehold_wire::op_result::Result::Count(1);
        let one = leasehold_wire::OpResult { result: Some(one) };
        Outcome::txn(leasehold_wire::TxnResult {
            results: vec![one; count],
            ..Default::default()
        })
    };
    sessions.record(&write(7, 1, 1), 0, result(1));
    assert_eq!(sessions.dirty_cost(), 1);
    sessions.record(&write(8, 1, 1), 0, result(240));
    let long = sessions.dirty_cost() - 1;
    assert!((2..=3).contains(&long), "{long}");
    // All results together are bounded, and so is the cost.
    for sequence in 2..=64 {
        sessions.record(&write(8, sequence, 1), 0, result(240));
    }
    let most = sessions.dirty_cost() - 1;
    assert!(most > long && most <= 5 + 5 * 1024 / (RESULTS_OF_ONE * COMPACT_BYTES));
}
