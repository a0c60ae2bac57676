//! Tests with hand-written schedules, tests that compare the checker with the definition, and tests
//! with histories as large as the simulator's.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::generate::{TransactionsShape, disturb, history};
use super::{SerializabilityVerdict, Transaction, brute, check, check_within};
use crate::history::{HistoryAction, ValueId};
use crate::linearizability::explain;

fn transaction(process: u32, parts: &[(u64, HistoryAction)], begin: u64, end: u64) -> Transaction {
    Transaction {
        process,
        parts: parts.to_vec(),
        invoke_ns: begin * 1_000_000,
        return_ns: Some(end * 1_000_000),
    }
}

fn open(process: u32, parts: &[(u64, HistoryAction)], begin: u64) -> Transaction {
    Transaction {
        return_ns: None,
        ..transaction(process, parts, begin, begin)
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

fn swap(expected: u64, new: u64, swapped: bool) -> HistoryAction {
    HistoryAction::Cas {
        expected: Some(ValueId(expected)),
        new: ValueId(new),
        swapped,
    }
}

const ABSENT: HistoryAction = HistoryAction::Read { value: None };

fn judge(transactions: &[Transaction]) -> SerializabilityVerdict {
    let verdict = check(transactions);
    let expected = brute::is_serializable(transactions);
    assert_eq!(verdict.is_serializable(), expected, "{verdict:?}");
    verdict
}

fn assert_serializable(transactions: &[Transaction]) {
    let verdict = judge(transactions);
    assert!(verdict.is_serializable(), "{verdict:?}");
}

fn assert_violation(transactions: &[Transaction], of_keys: &[u64], parts: &[&str]) {
    let SerializabilityVerdict::Violation {
        keys, explanation, ..
    } = judge(transactions)
    else {
        panic!("{transactions:?} is not serializable");
    };
    assert_eq!(keys, of_keys);
    for part in parts {
        assert!(explanation.contains(part), "{part:?} not in {explanation}");
    }
}

#[test]
fn both_halves_of_a_write_are_seen_or_neither() {
    let both = transaction(1, &[(1, write(10)), (2, write(20))], 2, 9);
    let seen = |process, one, two, at| transaction(process, &[(1, one), (2, two)], at, at + 1);
    assert_serializable(&[
        both.clone(),
        seen(2, ABSENT, ABSENT, 3),
        seen(2, read(10), read(20), 5),
    ]);
    // Each key alone is in order.
    assert_violation(
        &[both.clone(), seen(2, read(10), ABSENT, 3)],
        &[1, 2],
        &[
            "keys 1, 2",
            "process 1 wrote value 10 (key 1), wrote value 20 (key 2) (2.000000 ms never answered)",
            "process 2 read value 10 (key 1), found no such key (key 2) (3.000000 ms to 4.000000 ms)",
        ],
    );
}

#[test]
fn two_scans_that_see_two_writes_in_two_orders_are_found() {
    let events = [
        transaction(1, &[(1, write(10))], 0, 9),
        transaction(2, &[(2, write(20))], 0, 9),
        transaction(3, &[(1, read(10)), (2, ABSENT)], 1, 8),
        transaction(4, &[(1, ABSENT), (2, read(20))], 1, 8),
    ];
    assert_violation(&events, &[1, 2], &["process 3", "process 4"]);
    assert_serializable(&events[..3]);
}

#[test]
fn the_order_of_real_time_holds_between_keys() {
    // The write of key 2 began after the write of key 1 was answered.
    let later = |begin| {
        [
            transaction(1, &[(1, write(10))], 0, 1),
            transaction(1, &[(2, write(20))], begin, begin + 1),
            transaction(2, &[(1, ABSENT), (2, read(20))], 0, 9),
        ]
    };
    assert_violation(&later(2), &[1, 2], &["process 1", "process 2"]);
    assert_serializable(&later(1));
}

#[test]
fn what_was_never_answered_happens_at_once_or_not_at_all() {
    let both = open(1, &[(1, write(10)), (2, write(20))], 2);
    let see = |process, one, two, at| transaction(process, &[(1, one), (2, two)], at, at + 1);
    assert_serializable(&[both.clone(), see(2, ABSENT, ABSENT, 50)]);
    assert_serializable(&[both.clone(), see(2, read(10), read(20), 50)]);
    assert_violation(
        &[both.clone(), see(2, ABSENT, read(20), 50)],
        &[1, 2],
        &["never answered"],
    );
    // A write takes effect only once: it cannot undo a later one.
    assert_violation(
        &[
            both,
            see(2, read(10), read(20), 3),
            transaction(3, &[(2, write(21))], 5, 6),
            see(2, read(10), read(20), 7),
        ],
        &[2],
        &["key 2 alone", "value 21"],
    );
    let scan = open(1, &[(1, read(77))], 2);
    assert_serializable(&[scan, see(2, ABSENT, ABSENT, 50)]);
}

#[test]
fn a_read_and_a_deletion_of_one_key_happen_at_one_moment() {
    let taken =
        |value, at, end| transaction(2, &[(1, read(value)), (1, HistoryAction::Delete)], at, end);
    let events = |second: Transaction| {
        [
            transaction(1, &[(1, write(10)), (2, write(20))], 0, 1),
            taken(10, 2, 8),
            second,
        ]
    };
    assert_serializable(&events(transaction(
        3,
        &[(1, ABSENT), (2, read(20))],
        9,
        10,
    )));
    assert_violation(
        &events(taken(10, 2, 8)),
        &[1],
        &["read value 10 (key 1), deleted the key (key 1)"],
    );
    assert_violation(
        &events(transaction(3, &[(1, read(10)), (2, read(20))], 9, 10)),
        &[1],
        &["key 1 alone"],
    );
}

#[test]
fn a_failed_swap_may_be_owed_to_an_unanswered_write_of_several_keys() {
    let both = open(1, &[(1, write(11)), (2, write(20))], 2);
    let events = |second| {
        [
            transaction(2, &[(1, write(10))], 0, 1),
            both.clone(),
            transaction(3, &[(1, swap(10, 12, false))], 3, 4),
            transaction(3, &[(2, second)], 5, 6),
        ]
    };
    assert_serializable(&events(read(20)));
    assert_violation(
        &events(ABSENT),
        &[1, 2],
        &["process 3 did not find value 10, to replace it by 12 (key 1)"],
    );
}

#[test]
fn a_swap_that_expected_what_nobody_wrote_fails_in_every_order() {
    let failed = swap(99, 12, false);
    let events = |other| {
        [
            transaction(1, &[(1, write(10)), (2, write(20))], 0, 9),
            transaction(2, &[(1, failed), (2, other)], 1, 8),
            transaction(3, &[(1, read(10)), (2, read(20))], 10, 11),
        ]
    };
    assert_serializable(&events(ABSENT));
    assert_serializable(&events(read(20)));
    assert_serializable(&events(swap(98, 22, false)));
    assert_violation(
        &[
            transaction(1, &[(1, write(10)), (2, write(20))], 0, 9),
            transaction(2, &[(1, failed), (2, read(20))], 1, 3),
            transaction(3, &[(1, ABSENT), (2, ABSENT)], 4, 5),
        ],
        &[2],
        &["key 2 alone"],
    );
}

#[test]
fn what_cannot_be_judged_is_unknown() {
    let unknown = |transactions: &[Transaction], part: &str| match check(transactions) {
        SerializabilityVerdict::Unknown { reason } => assert!(reason.contains(part), "{reason}"),
        verdict => panic!("{verdict:?}"),
    };
    unknown(
        &[transaction(1, &[(1, write(10))], 5, 4)],
        "ends before it begins",
    );
    let late = Transaction {
        return_ns: Some(u64::MAX - 1),
        ..transaction(1, &[(1, write(10))], 0, 1)
    };
    unknown(&[late], "impossible time");
    unknown(
        &[
            transaction(1, &[(1, write(10))], 0, 1),
            transaction(2, &[(1, write(10)), (2, write(11))], 0, 1),
        ],
        "value 10 was written twice to key 1",
    );
    unknown(
        &[transaction(1, &[(1, write(10)), (1, read(10))], 0, 1)],
        "names it twice",
    );
    assert_serializable(&[transaction(1, &[(1, ABSENT), (1, ABSENT)], 0, 1)]);
    assert_eq!(
        check(&[]),
        SerializabilityVerdict::Serializable {
            transactions: 0,
            keys: 0
        }
    );
}

#[test]
fn a_search_that_is_cut_short_never_says_ok() {
    for seed in 0..50 {
        let transactions = history(&large(seed, 12, 0));
        let verdict = check_within(&transactions, 30);
        assert!(
            matches!(verdict, SerializabilityVerdict::Unknown { .. }),
            "{verdict:?}"
        );
    }
}

/// Returns a small history of two or three keys. For some seeds, the parts of a transaction take
/// effect at different moments.
fn small(seed: u64) -> Vec<Transaction> {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut transactions = history(&TransactionsShape {
        seed,
        transactions: rng.random_range(6..=10),
        several: [40, 90, 100][rng.random_range(0..3)],
        keys: rng.random_range(2..=3),
        processes: rng.random_range(3..=6),
        duration_ns: rng.random_range(2..=20),
        unanswered: [0, 10, 30][rng.random_range(0..3)],
        torn: [0, 100, 100][rng.random_range(0..3)],
    });
    for _ in 0..[0, 1, 3, 6][rng.random_range(0..4)] {
        disturb(&mut transactions, &mut rng);
    }
    transactions
}

#[test]
fn agrees_with_the_definition_on_100_000_small_histories() {
    let [mut ordered, mut on_a_key, mut between_keys] = [0; 3];
    for seed in 0..100_000 {
        let transactions = small(seed);
        let expected = brute::is_serializable(&transactions);
        let verdict = check(&transactions);
        match &verdict {
            SerializabilityVerdict::Serializable { .. } if expected => ordered += 1,
            SerializabilityVerdict::Violation {
                transactions: culprits,
                explanation,
                ..
            } if !expected => {
                if explanation.contains("alone") {
                    on_a_key += 1;
                } else {
                    between_keys += 1;
                    // The named transactions are enough for the contradiction.
                    let are_enough = !brute::is_serializable(culprits);
                    assert!(are_enough, "seed {seed}: {explanation}");
                }
            }
            _ => {
                let lines = transactions.iter().map(|t| explain::transaction(t) + "\n");
                let lines: String = lines.collect();
                panic!("seed {seed}: {verdict:?}, {expected}:\n{lines}");
            }
        }
    }
    let counts = [ordered, on_a_key, between_keys];
    let often = counts.iter().all(|count| *count > 10_000);
    assert!(often && ordered < 70_000, "one-sided: {counts:?}");
}

fn large(seed: u64, processes: u32, torn: u32) -> TransactionsShape {
    TransactionsShape {
        seed,
        transactions: 400,
        several: 40,
        keys: 2 + seed % 7,
        processes,
        duration_ns: 1_000_000,
        unanswered: (seed % 3) as u32,
        torn,
    }
}

#[test]
fn histories_as_the_simulator_makes_them_are_judged() {
    let [mut violations, mut short] = [0; 2];
    for seed in 0..60 {
        let processes = 5 + (seed % 11) as u32;
        let verdict = check(&history(&large(seed, processes, 0)));
        assert!(verdict.is_serializable(), "seed {seed}: {verdict:?}");
        let verdict = check(&history(&large(seed, processes, 3)));
        assert!(
            !matches!(verdict, SerializabilityVerdict::Unknown { .. }),
            "seed {seed}"
        );
        if let SerializabilityVerdict::Violation { transactions, .. } = verdict {
            violations += 1;
            short += u32::from(transactions.len() <= 20);
        }
    }
    assert!(violations > 20, "{violations}");
    // A chain of swaps cannot be shortened, because each of them needs the value of the one before.
    assert!(short * 10 >= violations * 9, "{short} of {violations}");
}
