//! Tests with hand-written schedules, tests that compare the checker with the definition, and tests
//! of its speed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::generate::{HistoryShape, disturb, honest};
use super::{LinearizabilityVerdict, brute, check, prepare, search};
use crate::history::{History, HistoryAction, HistoryEvent, TIME_NS_MAX, ValueId};

/// Builds an operation of `process`, with its begin and end in milliseconds.
fn event(process: u32, action: HistoryAction, begin_ms: u64, end_ms: u64) -> HistoryEvent {
    HistoryEvent {
        process,
        key: 1,
        action,
        invoke_ns: begin_ms * 1_000_000,
        return_ns: Some(end_ms * 1_000_000),
    }
}

fn open(process: u32, action: HistoryAction, begin_ms: u64) -> HistoryEvent {
    HistoryEvent {
        return_ns: None,
        ..event(process, action, begin_ms, begin_ms)
    }
}

fn write(value: u64) -> HistoryAction {
    let value = ValueId(value);
    HistoryAction::Write { value }
}

fn read(value: u64) -> HistoryAction {
    let value = Some(ValueId(value));
    HistoryAction::Read { value }
}

const ABSENT: HistoryAction = HistoryAction::Read { value: None };

fn swap(expected: Option<u64>, new: u64, swapped: bool) -> HistoryAction {
    HistoryAction::Cas {
        expected: expected.map(ValueId),
        new: ValueId(new),
        swapped,
    }
}

fn judge<const N: usize>(events: [HistoryEvent; N]) -> LinearizabilityVerdict {
    let verdict = check(&History::from_iter(events));
    assert_eq!(verdict.is_linearizable(), brute::is_linearizable(&events));
    verdict
}

fn assert_linearizable<const N: usize>(events: [HistoryEvent; N]) {
    let keys = 1;
    assert_eq!(
        judge(events),
        LinearizabilityVerdict::Linearizable { ops: N, keys }
    );
}

/// Asserts that the events are a violation, and that the explanation of the violation contains all
/// of `parts`.
fn assert_violation<const N: usize>(events: [HistoryEvent; N], parts: &[&str]) {
    let LinearizabilityVerdict::Violation {
        key,
        explanation,
        events: concerned,
    } = judge(events)
    else {
        panic!("{events:?} is not linearizable");
    };
    assert_eq!(key, 1);
    for part in parts {
        assert!(explanation.contains(part), "{part:?} not in {explanation}");
    }
    assert!(!concerned.is_empty());
    assert!(concerned.iter().all(|event| events.contains(event)));
}

#[test]
fn a_read_after_a_write_sees_it_or_something_newer() {
    assert_linearizable([
        event(1, ABSENT, 0, 1),
        event(1, write(7), 2, 3),
        event(2, read(7), 4, 5),
        event(1, write(8), 4, 9),
        event(2, read(8), 6, 7),
    ]);
}

#[test]
fn a_stale_read_is_found() {
    // The write of 8 was answered before the read began, but the read found 7.
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(1, write(8), 2, 3),
            event(2, read(7), 4, 5),
        ],
        &[
            "value 7 from 1.000000 ms to 4.000000 ms",
            "process 2 read value 7 (4.000000 ms to 5.000000 ms)",
            "process 1 wrote value 8 (2.000000 ms to 3.000000 ms)",
        ],
    );
}

#[test]
fn a_lost_write_is_found() {
    // The write was acknowledged, but the read found no key.
    assert_violation(
        [event(1, write(7), 0, 1), event(2, ABSENT, 2, 3)],
        &["nothing", "value 7", "process 2 found no such key"],
    );
}

#[test]
fn a_value_from_nowhere_is_found() {
    assert_violation(
        [event(1, write(7), 0, 1), event(2, read(9), 2, 3)],
        &["value 9 was found, but nobody wrote it"],
    );
    assert_violation(
        [event(1, write(7), 0, 1), event(2, read(u64::MAX), 2, 3)],
        &["bytes were found that no write stores"],
    );
    assert_violation(
        [event(2, read(7), 0, 1), event(1, write(7), 2, 3)],
        &["value 7 was found before it was written"],
    );
}

#[test]
fn the_new_value_and_then_the_old_is_found() {
    // Both reads overlap the write; either alone could be right.
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(1, write(8), 2, 9),
            event(2, read(8), 3, 4),
            event(3, read(7), 5, 6),
        ],
        &["process 2 read value 8", "process 3 read value 7"],
    );
}

#[test]
fn an_open_write_may_take_effect_at_any_time_or_never() {
    let first = event(1, write(7), 0, 1);
    let pending = open(2, write(8), 2);
    assert_linearizable([first, pending, event(3, read(7), 100, 101)]);
    assert_linearizable([
        first,
        pending,
        event(3, read(7), 100, 101),
        event(3, read(8), 102, 103),
    ]);
    assert_violation(
        [
            first,
            pending,
            event(3, read(8), 100, 101),
            event(3, read(7), 102, 103),
        ],
        &["never answered"],
    );
    assert_violation(
        [first, event(3, read(8), 2, 3), open(2, write(8), 4)],
        &["before it was written"],
    );
}

#[test]
fn operations_that_touch_may_come_in_either_order() {
    assert_linearizable([event(1, write(7), 0, 5), event(2, ABSENT, 5, 6)]);
    assert_violation(
        [event(1, write(7), 0, 5), event(2, ABSENT, 6, 7)],
        &["process 2 found no such key"],
    );
}

#[test]
fn a_deletion_explains_absence_once_it_has_begun() {
    assert_linearizable([
        event(1, write(7), 0, 1),
        event(2, HistoryAction::Delete, 2, 9),
        event(3, read(7), 3, 4),
        event(3, ABSENT, 5, 6),
        event(1, write(8), 7, 8),
    ]);
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(3, ABSENT, 2, 3),
            event(2, HistoryAction::Delete, 4, 5),
        ],
        &["process 3 found no such key", "value 7"],
    );
    // The value reappears although the deletion was answered.
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(2, HistoryAction::Delete, 2, 3),
            event(3, read(7), 4, 5),
        ],
        &[
            "value 7 from 1.000000 ms to 4.000000 ms",
            "process 2 deleted the key",
        ],
    );
}

#[test]
fn an_open_deletion_may_take_effect_once() {
    let events = [
        event(1, write(7), 0, 1),
        open(2, HistoryAction::Delete, 2),
        event(3, ABSENT, 3, 4),
        event(1, write(8), 5, 6),
    ];
    assert_linearizable(events);
    let [a, b, c, d] = events;
    assert_violation([a, b, c, d, event(3, ABSENT, 7, 8)], &["value 8"]);
}

#[test]
fn a_swap_succeeds_only_on_what_it_expected() {
    assert_linearizable([
        event(1, swap(None, 7, true), 0, 1),
        event(2, swap(Some(7), 8, true), 2, 3),
        event(3, swap(Some(7), 9, false), 4, 5),
        event(3, swap(None, 10, false), 6, 7),
        event(1, read(8), 8, 9),
    ]);
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(2, swap(Some(7), 8, true), 2, 9),
            event(3, swap(Some(7), 9, true), 2, 9),
        ],
        &["value 7 was replaced twice"],
    );
    // No other value was current between 7 and 8, so a read of 6 is wrong.
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(2, write(6), 2, 3),
            event(2, swap(Some(7), 8, true), 4, 5),
        ],
        &["process 2 wrote value 6"],
    );
    // The swap failed although its expected value was current all the time.
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(2, swap(Some(7), 8, false), 2, 3),
        ],
        &["did not find value 7, to replace it by 8"],
    );
    assert_violation(
        [
            event(1, write(7), 0, 1),
            event(2, swap(Some(6), 8, false), 2, 3),
            event(3, read(8), 4, 5),
        ],
        &["its write had been refused"],
    );
}

#[test]
fn a_swap_that_expected_what_nobody_wrote_fails_at_any_time() {
    let failed = |begin, end| event(2, swap(Some(99), 8, false), begin, end);
    assert_linearizable([
        failed(0, 9),
        event(1, write(7), 1, 2),
        event(3, read(7), 3, 4),
    ]);
    assert_linearizable([failed(0, 1)]);
    // The search is needed only for keys that the simpler checks have not settled.
    let events = [failed(0, 9), event(1, write(7), 1, 2)];
    let events: Vec<&HistoryEvent> = events.iter().collect();
    let key = prepare::prepare(&events).unwrap();
    search::check(&key, &mut search::Budget::for_ops(events.len())).unwrap();
    // The write has no answer, so it may not have taken effect.
    assert_linearizable([
        open(2, swap(Some(99), 8, false), 0),
        event(1, write(7), 1, 2),
        event(3, swap(Some(6), 9, false), 3, 4),
    ]);
    assert_violation(
        [
            failed(0, 9),
            event(1, write(7), 1, 2),
            event(3, ABSENT, 3, 4),
        ],
        &["found no such key"],
    );
}

#[test]
fn an_open_swap_that_was_seen_has_found_what_it_expected() {
    let swaps = [
        event(1, write(7), 0, 1),
        open(2, swap(Some(7), 8, false), 2),
        open(3, swap(Some(8), 9, false), 3),
    ];
    let [a, b, c] = swaps;
    assert_linearizable([a, b, c, event(4, read(9), 5, 6)]);
    assert_violation(
        [a, b, c, event(4, read(9), 5, 6), event(4, read(8), 7, 8)],
        &["value 8"],
    );
    assert_violation(
        [a, c, event(4, read(9), 5, 6)],
        &["value 8 was found, but nobody wrote it"],
    );
}

#[test]
fn which_of_two_unanswered_operations_took_effect_is_left_open() {
    // Either operation explains the first failed swap, but only the write explains the second.
    let create = open(1, swap(None, 5, false), 0);
    let write_6 = open(2, write(6), 0);
    for [one, two] in [[create, write_6], [write_6, create]] {
        assert_linearizable([
            one,
            two,
            event(3, swap(None, 7, false), 1, 2),
            event(3, HistoryAction::Delete, 3, 4),
            event(3, ABSENT, 5, 6),
            event(3, write(8), 7, 8),
            event(3, swap(Some(8), 9, false), 9, 10),
        ]);
    }
}

#[test]
fn keys_are_judged_apart_and_a_violation_outranks_an_unknown() {
    let at = |key, event: HistoryEvent| HistoryEvent { key, ..event };
    let twice = [
        at(1, event(1, write(7), 0, 1)),
        at(1, event(2, write(7), 2, 3)),
    ];
    let verdict = check(&History::from_iter(twice));
    let LinearizabilityVerdict::Unknown { key: 1, reason } = &verdict else {
        panic!("{verdict:?}");
    };
    assert!(reason.contains("value 7 was written twice"), "{reason}");

    let mut history = History::from_iter(twice);
    history.push(at(2, event(1, write(8), 0, 1)));
    assert_eq!(check(&history), verdict);
    history.push(at(3, event(1, read(9), 0, 1)));
    assert!(matches!(
        check(&history),
        LinearizabilityVerdict::Violation { key: 3, .. }
    ));

    let two_keys = [
        at(1, event(1, write(7), 0, 1)),
        at(2, event(1, ABSENT, 2, 3)),
    ];
    let verdict = check(&History::from_iter(two_keys));
    assert_eq!(
        verdict,
        LinearizabilityVerdict::Linearizable { ops: 2, keys: 2 }
    );
    let nothing = LinearizabilityVerdict::Linearizable { ops: 0, keys: 0 };
    assert_eq!(check(&History::new()), nothing);
}

#[test]
fn what_ends_before_it_begins_is_not_judged() {
    let verdict = check(&History::from_iter([event(1, write(7), 5, 4)]));
    assert!(
        matches!(verdict, LinearizabilityVerdict::Unknown { .. }),
        "{verdict:?}"
    );
}

/// An open swap that expects its own value has no end, because the read that found this value seems to
/// have none.
#[test]
fn an_impossible_time_is_not_judged() {
    let late = |time| HistoryEvent {
        invoke_ns: time,
        return_ns: Some(time),
        ..event(1, read(7), 0, 0)
    };
    for (time, is_known) in [
        (TIME_NS_MAX, true),
        (TIME_NS_MAX + 1, false),
        (u64::MAX, false),
    ] {
        let verdict = judge([open(2, swap(Some(7), 7, true), 0), late(time)]);
        let unknown = matches!(verdict, LinearizabilityVerdict::Unknown { .. });
        assert_eq!(unknown, !is_known, "{time}: {verdict:?}");
    }
}

#[test]
fn as_many_as_there_are_may_be_in_flight() {
    let many = |count| (0..count).map(|process| event(process, HistoryAction::Delete, 0, 9));
    let history: History = many(1000).chain([event(1000, ABSENT, 0, 9)]).collect();
    assert!(check(&history).is_linearizable());
}

#[test]
fn more_in_flight_than_the_search_can_follow_is_unknown() {
    // The failed swap needs a search, and the search cannot follow this many reads.
    let reads = (0..200).map(|process| event(process, read(7), 2, 9));
    let swapped = event(500, swap(Some(7), 8, false), 5, 6);
    let events = reads.chain([event(501, write(7), 0, 1), swapped]);
    let verdict = check(&events.collect());
    let LinearizabilityVerdict::Unknown { reason, .. } = verdict else {
        panic!("{verdict:?}");
    };
    assert!(reason.contains("in flight"), "{reason}");
}

/// Returns a small history of one key, with any mixture of operations.
fn small(seed: u64) -> Vec<HistoryEvent> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let [deletes, swaps] = [[0, 0], [25, 0], [0, 45], [20, 30]][(seed % 4) as usize];
    let shape = HistoryShape {
        seed,
        ops: rng.random_range(2..=9),
        keys: 1,
        processes: rng.random_range(2..=5),
        duration_ns: rng.random_range(2..=8),
        reads: rng.random_range(20..=50),
        deletes,
        swaps,
        unanswered: [0, 10, 30][rng.random_range(0..3)],
    };
    let mut events = honest(&shape).events().to_vec();
    for _ in 0..rng.random_range(0..8) {
        if !events.is_empty() {
            disturb(&mut events, &mut rng);
        }
    }
    events
}

#[test]
fn agrees_with_the_definition_on_400_000_small_histories() {
    let mut verdicts = [[0, 0]; 4];
    for seed in 0..400_000 {
        let events = small(seed);
        let expected = brute::is_linearizable(&events);
        let verdict = check(&events.iter().copied().collect());
        let agrees = match verdict {
            LinearizabilityVerdict::Linearizable { .. } => expected,
            LinearizabilityVerdict::Violation { .. } => !expected,
            LinearizabilityVerdict::Unknown { .. } => false,
        };
        assert!(agrees, "seed {seed}: {verdict:?}, {expected}: {events:#?}");
        verdicts[(seed % 4) as usize][usize::from(expected)] += 1;
    }
    for of_mixture in verdicts {
        for count in of_mixture {
            assert!(count > 10_000, "one-sided: {verdicts:?}");
        }
    }
}

fn large(seed: u64, keys: u64, deletes: u32, swaps: u32) -> HistoryShape {
    HistoryShape {
        seed,
        ops: 20_000,
        keys,
        processes: 24,
        duration_ns: 1_000_000,
        reads: 50,
        deletes,
        swaps,
        unanswered: 1,
    }
}

#[test]
fn long_histories_of_a_register_that_behaves_are_accepted() {
    for (seed, [deletes, swaps]) in [[0, 0], [10, 0], [0, 20], [10, 20]].into_iter().enumerate() {
        let history = honest(&large(seed as u64, 20, deletes, swaps));
        let verdict = check(&history);
        assert!(verdict.is_linearizable(), "{deletes} {swaps}: {verdict:?}");
    }
}

/// Returns the history with one answer changed: the last read of a key finds the value that the
/// first read of the key found.
fn with_a_stale_read(history: &History) -> Option<History> {
    let mut events = history.events().to_vec();
    let reads_a_value =
        |event: &HistoryEvent| matches!(event.action, HistoryAction::Read { value: Some(_) });
    let old = events.iter().position(reads_a_value)?;
    let (action, key) = (events[old].action, events[old].key);
    let late = events
        .iter()
        .rposition(|event| event.key == key && reads_a_value(event))?;
    events[late].action = action;
    Some(events.into_iter().collect())
}

#[test]
fn one_stale_read_in_a_long_history_is_found() {
    for (seed, [deletes, swaps]) in [[0, 0], [10, 0], [0, 20], [10, 20]].into_iter().enumerate() {
        let history = honest(&large(seed as u64, 20, deletes, swaps));
        let stale = with_a_stale_read(&history).expect("there are reads");
        let verdict = check(&stale);
        assert!(
            matches!(verdict, LinearizabilityVerdict::Violation { .. }),
            "{verdict:?}"
        );
    }
}

#[test]
fn hard_histories_are_decided() {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut stale = 0;
    for seed in 0..200 {
        let history = honest(&HistoryShape {
            seed,
            ops: 2_000,
            keys: rng.random_range(1..=3),
            processes: rng.random_range(2..=200),
            duration_ns: rng.random_range(10..=1_000_000),
            reads: rng.random_range(10..=50),
            deletes: rng.random_range(0..=20),
            swaps: rng.random_range(0..=30),
            unanswered: rng.random_range(0..=10),
        });
        let verdict = check(&history);
        assert!(verdict.is_linearizable(), "seed {seed}: {verdict:?}");
        let Some(history) = with_a_stale_read(&history) else {
            continue;
        };
        match check(&history) {
            LinearizabilityVerdict::Linearizable { .. } => {}
            LinearizabilityVerdict::Violation { events, .. } => {
                stale += 1;
                assert!(events.len() <= 20, "seed {seed}: {events:?}");
            }
            verdict => panic!("seed {seed}: {verdict:?}"),
        }
    }
    assert!(stale > 150, "{stale}");
}
